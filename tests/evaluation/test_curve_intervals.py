"""Intervals of curves against their definition: the list with each pair repeated as often as it weighs."""

import numpy as np
import pytest
from paired_runs import repeated, scored, small_list
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from coalface.evaluation.metrics.bootstrap import Bootstrap, PairIdentities, draw_identities
from coalface.evaluation.metrics.curve_intervals import curve_intervals
from coalface.evaluation.metrics.verification import eer, tar_at_far

FARS = (0.01, 0.05, 0.2, 0.29, 1.0)
EVERY_DRAW = [0.025, 0.975]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_the_ends_are_quantiles_of_the_figures_of_the_repeated_lists(seed, ties):
    pairs = small_list(seed)
    scores, counted = scored(pairs, seed, ties), np.flatnonzero(pairs.headline | ~pairs.same)
    bootstrap = draw_identities(pairs, np.random.default_rng(seed), draws=60)
    intervals = curve_intervals(scores[counted], counted, bootstrap, FARS)
    tars, aucs, eers = [], [], []
    for counts in bootstrap.counts.T:
        places = repeated(pairs, counts)
        drawn, same = scores[places], pairs.same[places]
        tars.append([at.tar for at in tar_at_far(drawn, same, FARS)])
        aucs.append(roc_auc_score(same, drawn))
        eers.append(eer(drawn, same))
    assert intervals.tar == pytest.approx(np.quantile(tars, EVERY_DRAW, axis=0), abs=1e-12)
    assert intervals.auc == pytest.approx(np.quantile(aucs, EVERY_DRAW), abs=1e-12)
    assert intervals.eer == pytest.approx(np.quantile(eers, EVERY_DRAW), abs=1e-12)


def test_models_scored_on_one_list_weigh_alike():
    pairs = small_list(0, headline=False)
    first, second = scored(pairs, 1), scored(pairs, 2, gap=0.1)
    bootstrap = Bootstrap(pairs, np.ones((len(pairs.people), 1), dtype=np.int32))
    both = np.tile(np.arange(len(first)), 2)
    intervals = curve_intervals(np.concatenate([first, second]), both, bootstrap, FARS)
    scores, same = np.concatenate([first, second]), np.tile(pairs.same, 2)
    assert intervals.eer == pytest.approx([eer(scores, same)] * 2)
    assert intervals.tar[0] == pytest.approx([at.tar for at in tar_at_far(scores, same, FARS)])


def test_independent_people_give_the_interval_of_a_binomial():
    """2,000 genuine pairs of 2,000 people, at a threshold that far more impostors hold still: σ² = p (1 − p) / n."""
    rng, people = np.random.default_rng(0), 2000
    left = np.concatenate([np.arange(people), rng.integers(people, size=40_000)])
    right = np.concatenate([np.arange(people), (left[people:] + rng.integers(1, people, size=40_000)) % people])
    pairs = PairIdentities(left, right, sha256="abc")
    scores = rng.normal(pairs.same * 1.0, 0.4)
    bootstrap = draw_identities(pairs, rng, draws=400)
    low, high = curve_intervals(scores, np.arange(len(scores)), bootstrap, [0.5]).tar[:, 0]
    (at,) = tar_at_far(scores, pairs.same, [0.5])
    expected = 2 * norm.ppf(0.975) * np.sqrt(at.tar * (1 - at.tar) / people)
    assert low < at.tar < high and high - low == pytest.approx(expected, rel=0.25)


def test_draws_without_pairs_of_both_kinds_do_not_count():
    pairs = PairIdentities(np.array([0, 0]), np.array([0, 1]), sha256="abc")
    counts = np.array([[1, 2, 0], [1, 0, 2]], dtype=np.int32)
    scores, places = np.array([0.9, 0.1]), np.array([0, 1])
    assert curve_intervals(scores, places, Bootstrap(pairs, counts), [0.5]).auc == (1.0, 1.0)
    assert curve_intervals(scores, places, Bootstrap(pairs, counts[:, 1:]), [0.5]) is None
