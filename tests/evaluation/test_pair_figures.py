"""Figures of plug-ins against the package's own: the same values, on the list and in every draw of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from test_paired import scored, small_list

from coalface.core.errors import PluginError, RecipeError
from coalface.evaluation import figures
from coalface.evaluation.metrics import pair_figures, paired
from coalface.evaluation.metrics.bootstrap import bootstrap_of
from coalface.evaluation.metrics.evidence import accuracy_evidence, tar_evidence
from coalface.evaluation.metrics.figure import Figure, Unit
from coalface.evaluation.metrics.pair_figures import PairFigure
from coalface.evaluation.metrics.verification import eer, tar_at_far


class Errors(PairFigure):
    figure = Figure("errors", unit=Unit("permille", 1), better="lower")

    def compute(self, scores, same):
        return 1000 * eer(scores, same)


class Accepted(PairFigure):
    figure = Figure("accepted")

    def compute(self, scores, same):
        return 100 * tar_at_far(scores, same, [0.2])[0].tar


class Unsteady(PairFigure):
    figure = Figure("unsteady")

    def compute(self, scores, same):
        return float("nan")


@pytest.mark.parametrize(("headline", "folds"), [(False, None), (False, (1, 2)), (True, None)])
def test_draws_are_those_of_the_same_figure_of_the_package(headline, folds):
    pairs = replace(small_list(0, pairs=150, headline=headline), fold=np.arange(150) % 5)
    scores, bootstrap, own = scored(pairs, 0), bootstrap_of(pairs), (Errors(), Accepted())
    of_package = tar_evidence(scores, pairs, (0.2,)) if headline else accuracy_evidence(scores, pairs, (0.2,), folds)
    evidence = json.loads(json.dumps(of_package | pair_figures.evidence(own, scores, pairs, folds)))
    runs = paired.resample(evidence, bootstrap)
    for name, known, scale in (("errors", "eer", 1000), ("accepted", "tar@far=0.2", 100)):
        if known in runs:  # a tail tells no EER
            np.testing.assert_allclose(runs[name].values, scale * runs[known].values, atol=1e-9)
            assert runs[name].point == pytest.approx(scale * runs[known].point)
    assert pair_figures.values(own, scores, pairs, folds)["accepted"] == pytest.approx(runs["accepted"].point)


def test_a_difference_is_in_the_figures_unit_and_the_lower_one_is_better():
    pairs = small_list(0, pairs=150, headline=False)
    sides, bootstrap = [], bootstrap_of(pairs)
    for gap in (0.2, 1.2):
        scores = scored(pairs, 1, gap=gap)
        evidence = accuracy_evidence(scores, pairs) | pair_figures.evidence([Errors()], scores, pairs)
        sides.append(paired.resample(evidence, bootstrap))
    seeds = [[run["errors"], replace(run["errors"], seed=1)] for run in sides]
    difference = paired.compare(seeds[1], seeds[0])
    assert difference.verdict == "first" and difference.in_unit[1] < difference.in_unit[0] < difference.in_unit[2] < 0
    assert difference.in_unit[0] == pytest.approx(1000 * (sides[1]["eer"].point - sides[0]["eer"].point))


def test_a_list_that_is_too_long_has_values_and_no_draws(monkeypatch):
    monkeypatch.setattr(pair_figures, "MOST_PAIRS", 100)
    pairs = small_list(0, pairs=150, headline=False)
    evidence = accuracy_evidence(scored(pairs, 1), pairs) | pair_figures.evidence([Errors()], scored(pairs, 1), pairs)
    assert evidence["own"] == {"errors": None} and "errors" not in paired.resample(evidence, bootstrap_of(pairs))


def test_a_figure_that_is_no_number_or_has_a_name_that_is_taken_is_refused():
    pairs = small_list(0, pairs=150, headline=False)
    with pytest.raises(PluginError) as error:
        pair_figures.values([Unsteady()], scored(pairs, 1), pairs)
    assert error.value.where == "evaluation.figures"
    with pytest.raises(RecipeError) as error:
        pair_figures.find_figures([f"{__name__}:Errors"] * 2)
    assert error.value.where == "evaluation.figures"
    for taken in ("eer", "tar@far=0.5", "mine_se", "a/b"):
        with pytest.raises(ValueError):
            figures.declare(Figure(taken))
