"""What figures are called, counted in and written as."""

from __future__ import annotations

import numpy as np
import pytest

from coalface.evaluation.figures import axis_title, figure_name, figure_of, figure_text
from coalface.evaluation.metrics import verification
from coalface.evaluation.metrics.clustering import evaluate_clusters
from coalface.evaluation.metrics.figure import Figure


def test_figures_read_as_the_field_writes_them() -> None:
    assert figure_name("devtest/tar@far=0.001") == "devtest TAR at FAR 0.001"
    assert figure_name("tpir@fpir=1e-05 (standard)") == "TPIR at FPIR 1e-05 (standard)"
    assert figure_name("devtest/eer") == "devtest EER" and axis_title("devtest/eer") == "devtest EER (%)"
    assert figure_name("threshold@far=0.1") == axis_title("threshold@far=0.1") == "threshold at FAR 0.1 (cosine)"
    assert figure_name("theirs/my_own") == "theirs my_own"  # of a method that declares none


def test_values_have_the_digits_and_the_sign_of_their_unit() -> None:
    figures = {
        "a/accuracy": 83.14,
        "a/accuracy_se": 1.06,
        "a/eer": 4.567,
        "a/clusters": 1200.0,
        "a/threshold@far=0.1": 0.5,
    }
    assert figure_text(figures, "a/accuracy", sign=True) == "83.1 ± 1.1 %"
    assert [figure_text(figures, f"a/{name}") for name in ("eer", "clusters", "rank-1")] == ["4.57", "1,200", ""]
    assert figure_text(figures, "a/threshold@far=0.1", sign=True) == "0.500000"
    assert figure_of("eer").mean_text(4.567, 1.0) == "4.57 ± 1.00" and figure_of("eer").difference_text(-1) == "−1.00"


@pytest.mark.parametrize(("name", "better"), [("a/eer", "lower"), ("a/rank-1", "higher"), ("clusters", "")])
def test_which_way_is_better(name: str, better: str) -> None:
    assert figure_of(name).better == better


def test_what_is_computed_is_declared() -> None:
    figures = verification.evaluate_pairs(np.linspace(-1, 1, 40), np.arange(40) % 3 == 0, fars=(0.1,)).figures()
    figures |= evaluate_clusters([0, 0, 1], [0, 0, 1]).figures()
    names = [name for name in figures if not name.endswith("_se")]
    assert names and not [name for name in names if figure_of(name) == Figure(name, title=name)]
