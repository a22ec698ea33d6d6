"""A run that ends below the model that it started from says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tinyruns

import coalface as cf
from coalface.experiments import execution
from coalface.experiments.report.runs import below_start


@pytest.mark.parametrize(("accuracy", "is_below"), [(55.9, True), (56.1, False), (70.0, False)])
def test_it_is_told_beyond_two_standard_errors(
    accuracy: float, is_below: bool, fedavg_run: Path, tmp_path: Path
) -> None:
    """√(1.2² + 1.6²) = 2, so that 60 − 4 is the bound."""
    out = Path(shutil.copytree(fedavg_run, tmp_path / "run"))
    summary = json.loads((out / "summary.json").read_text())
    summary["untrained"] = {"unseen": {"accuracy": 60.0, "accuracy_se": 1.2, "eer": 40.0}}
    summary["figures"] = {"unseen": {"accuracy": accuracy, "accuracy_se": 1.6, "eer": 45.0}}
    heard = tinyruns.Silent()
    execution.finish(out, summary, heard, report=False)
    run = cf.FinishedRun(out)
    for text in (" ".join(heard.notes), repr(run), run._repr_html_()):
        assert ("fell from 60.0 ± 1.2" in text and "55.9 ± 1.6" in text and "local.lr" in text) is is_below


def test_of_a_noised_run_it_is_the_noise() -> None:
    figures = {
        "untrained": {"unseen": {"accuracy": 90.0, "accuracy_se": 1.0}},
        "figures": {"unseen": {"accuracy": 50.0}},
    }
    assert "noise of privacy.dp" in below_start(figures | {"privacy": {"noise_multiplier": 1.0}})
    assert "local.lr" in below_start(figures | {"privacy": {"noise_multiplier": 0.0}})


def test_without_an_accuracy_or_its_error_nothing_is_told() -> None:
    for figures in ({}, {"eer": 40.0}, {"accuracy": 90.0}):
        assert not below_start({"untrained": {"unseen": figures}, "figures": {"unseen": {"accuracy": 50.0}}})
    assert not below_start({})
