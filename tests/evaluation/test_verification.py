"""Every figure against a loop that follows its definition word by word, on scores with many ties."""

import json
import math

import numpy as np
import pytest
from cases import by_default
from naive import fold_rates
from scipy.interpolate import interp1d
from scipy.optimize import brentq
from sklearn.metrics import roc_auc_score, roc_curve
from unit_rows import spread, unit

from coalface.evaluation.metrics import verification as v

SEEDS = range(12)


def scored(seed, count=120, ties=True):
    rng = np.random.default_rng(seed)
    same = rng.permutation(count) < count // 2
    scores = np.clip(rng.normal(0.35 * same, 0.3), -1, 1)
    return (np.round(scores, 1) if ties else scores), same


def naive_tar(scores, same, allowance):
    """The best TAR of any threshold, over all that accept at most `allowance` impostors."""
    candidates = [*scores.tolist(), np.inf]
    thresholds = [t for t in candidates if sum(s >= t for s in scores[~same]) <= allowance]
    return max(sum(s >= t for s in scores[same]) for t in thresholds) / same.sum()


def naive_eer(scores, same):
    levels = [*sorted(set(scores.tolist())), math.inf]
    far = [sum(s >= t for s in scores[~same]) / (~same).sum() for t in levels]
    missed = [sum(s < t for s in scores[same]) / same.sum() for t in levels]
    for j in range(1, len(levels)):
        if missed[j] >= far[j]:
            share = (far[j - 1] - missed[j - 1]) / ((far[j - 1] - missed[j - 1]) + (missed[j] - far[j]))
            return far[j - 1] * (1 - share) + far[j] * share


def test_scores_are_cosines_whatever_the_block():
    rng = np.random.default_rng(0)
    features = spread(rng, 50)
    left, right = rng.integers(50, size=(2, 1001))
    expected = [float(features[a].astype(float) @ features[b].astype(float)) for a, b in zip(left, right, strict=True)]
    for block in (1, 7, 256, 5000):
        np.testing.assert_allclose(v.score_pairs(features, left, right, block), expected, atol=1e-6)


def test_threshold_worked_by_hand():
    # Impostors 0.1 and 0.5, genuine 0.4 and 0.9. At 0.4 and at 0.9 one pair is wrong, at 0.5 two: the lower of two.
    assert v.best_threshold(np.array([0.1, 0.4, 0.5, 0.9]), np.array([False, True, False, True])) == 0.4
    # All scores equal, more impostors: accepting nobody is best.
    assert v.best_threshold(np.array([0.5, 0.5, 0.5]), np.array([False, True, False])) == np.nextafter(0.5, 1)
    # Three equally good: the middle one.
    scores = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert v.best_threshold(scores, np.array([False, True, False, True, False, True])) == 0.4


@pytest.mark.parametrize("seed", by_default(2, range(4)))
def test_ten_fold_accuracy_is_its_definition(seed):
    scores, same = scored(seed)
    fold = np.random.default_rng(seed).permutation(120) % 10
    result = v.ten_fold_accuracy(scores, same, fold)
    rates = fold_rates(scores.tolist(), same.tolist(), fold.tolist())
    assert result.mean == pytest.approx(sum(rates) / 10, abs=1e-12)
    error = math.sqrt(sum((rate - sum(rates) / 10) ** 2 for rate in rates) / 9 / 10)
    assert result.error == pytest.approx(error, abs=1e-12)


def test_tenths_are_contiguous_and_even():
    same = np.array([True] * 25 + [False] * 40)
    fold = v.tenths(same)
    assert fold[:25].tolist() == sorted(fold[:25].tolist()) and fold[25:].tolist() == sorted(fold[25:].tolist())
    assert set(np.bincount(fold[:25]).tolist()) == {2, 3} and np.bincount(fold[25:]).tolist() == [4] * 10
    with pytest.raises(ValueError, match="9 genuine pairs cannot make 10 folds"):
        v.tenths(np.array([True] * 9 + [False] * 40))


def test_two_lists():
    result = v.two_list_accuracy(
        np.array([0.1, 0.5]),
        np.array([False, True]),
        np.array([0.5, 0.4, 0.6, 0.2]),
        np.array([True, True, False, False]),
    )
    assert (result.mean, result.error, result.thresholds) == (0.5, 0.25, (0.5,))


@pytest.mark.parametrize("seed", by_default(2, SEEDS))
@pytest.mark.parametrize("far", [0.001, 0.02, 0.05, 0.1, 0.29, 0.5, 1])
def test_tar_is_the_best_that_the_allowance_permits(seed, far):
    scores, same = scored(seed, count=200)
    (result,) = v.tar_at_far(scores, same, [far])
    allowance = {0.001: 0, 0.02: 2, 0.05: 5, 0.1: 10, 0.29: 29, 0.5: 50, 1: 100}[far]
    assert result.tar == pytest.approx(naive_tar(scores, same, allowance), abs=1e-12)
    assert result.false_accepts == (scores[~same] >= result.threshold).sum() <= allowance
    assert result.tar == pytest.approx((scores[same] >= result.threshold).mean(), abs=1e-12)
    assert result.carried == (allowance > 0) and result.impostors == 100


def test_tied_impostors_are_rejected_together():
    scores = np.array([0.9, 0.7, 0.7, 0.3, 0.8, 0.7, 0.1])
    same = np.array([False, False, False, False, True, True, True])
    half, most = v.tar_at_far(scores, same, [0.5, 0.75])  # 2 and 3 of 4 impostors allowed
    assert (half.false_accepts, half.tar) == (1, 1 / 3)  # a second would bring the third with it
    assert (most.false_accepts, most.tar) == (3, 2 / 3)
    assert 0.7 < half.threshold < 0.7 + 1e-12


def test_a_far_that_the_list_cannot_carry_says_so():
    scores, same = scored(0, count=200)
    (result,) = v.tar_at_far(scores, same, [0.001])
    assert not result.carried and result.false_accepts == 0
    assert result.threshold > scores[~same].max()
    for far in (0, -0.1, 1.5):
        with pytest.raises(ValueError, match="not a rate"):
            v.tar_at_far(scores, same, [far])


@pytest.mark.parametrize("seed", by_default(4, SEEDS))
def test_eer_is_its_definition_and_what_scipy_finds_on_sklearns_curve(seed):
    scores, same = scored(seed)
    assert v.eer(scores, same) == pytest.approx(naive_eer(scores, same), abs=1e-12)
    far, tar, _ = roc_curve(same, scores, drop_intermediate=False)
    assert v.eer(scores, same) == pytest.approx(brentq(lambda x: 1 - x - interp1d(far, tar)(x), 0, 1), abs=1e-9)


@pytest.mark.parametrize("seed", by_default(4, SEEDS))
def test_auc_counts_the_pairs_of_pairs_in_order_as_sklearn_does(seed):
    scores, same = scored(seed)
    above = [(g > i) + (g == i) / 2 for g in scores[same] for i in scores[~same]]
    assert v.auc(scores, same) == pytest.approx(sum(above) / len(above), abs=1e-12)
    assert v.auc(scores, same) == pytest.approx(roc_auc_score(same, scores), abs=1e-12)


def test_eer_worked_by_hand():
    same = np.array([False, False, True, True])
    assert v.eer(np.array([0.1, 0.2, 0.8, 0.9]), same) == 0
    assert v.eer(np.array([0.1, 0.8, 0.2, 0.9]), same) == 0.5
    assert v.eer(np.array([0.8, 0.9, 0.1, 0.2]), same) == 1
    assert v.eer(np.array([0.5, 0.5, 0.5, 0.5]), same) == 0.5


@pytest.mark.parametrize("seed", by_default(4, SEEDS))
def test_roc_points_are_tars_at_their_far(seed):
    scores, same = scored(seed)
    curve = v.roc(scores, same, points=20)
    counts = np.round(np.array(curve["far"]) * 60).astype(int)
    assert counts[0] == 1 and counts[-1] == 60 and len(counts) <= 20
    np.testing.assert_allclose(curve["tar"], [naive_tar(scores, same, k) for k in counts], atol=1e-12)


@pytest.mark.parametrize(
    ("scores", "ends"),
    [
        ([0.0512, 0.31, 0.4288], (0.05, 0.43)),
        ([-0.07, 0.2, 0.939], (-0.1, 1.0)),  # 1.009 wide: to tenths
        ([0.998712, 0.99912, 0.999346], (0.99871, 0.99935)),
        ([0.5, 0.5, 0.5], (0.5, 0.5000001)),
        ([1.0, 1.0, 1.0 + 1e-9], (0.9999999, 1.0)),
        ([-1.0, -1.0, -1.0], (-1.0, -0.9999999)),
    ],
)
def test_a_histogram_spans_what_was_observed(scores, ends):
    same = np.array([True, False, True])
    bars = v.histogram(np.array(scores), same, bins=7)
    assert (bars["edges"][0], bars["edges"][-1]) == pytest.approx(ends, abs=1e-12)
    assert sum(bars["genuine"]) == 2 and sum(bars["impostor"]) == 1


def features_and_pairs(seed=0, pairs=400):
    rng = np.random.default_rng(seed)
    identity = rng.integers(12, size=60)
    features = unit(rng.normal(size=(12, 8))[identity] + rng.normal(size=(60, 8)))
    left, right = rng.integers(60, size=(2, pairs))
    return features, left, right, identity[left] == identity[right]


def test_a_result_gathers_the_figures_in_percent():
    features, left, right, same = features_and_pairs()
    fold = np.arange(400) % 10
    scores = v.score_pairs(features, left, right)
    result = v.evaluate_pairs(scores, same, fold, fars=(0.1, 0.01, 1e-4))
    figures = result.figures()
    assert list(figures) == ["accuracy", "accuracy_se", "tar@far=0.1", "tar@far=0.01", "eer"]  # 1e-4 is not carried
    assert figures["accuracy"] == 100 * v.ten_fold_accuracy(scores, same, fold).mean
    assert figures["tar@far=0.1"] == 100 * v.tar_at_far(scores, same, [0.1])[0].tar
    assert figures["eer"] == 100 * v.eer(scores, same)
    assert json.loads(json.dumps(figures)) == figures


def test_genuine_pairs_outside_the_headline_do_not_count():
    features, left, right, same = features_and_pairs()
    headline = same & (np.arange(400) % 2 == 0)
    scores = v.score_pairs(features, left, right)
    result = v.evaluate_pairs(scores, same, headline=headline)
    counted = headline | ~same
    alone = v.evaluate_pairs(scores[counted], same[counted])
    assert result.accuracy is None and (result.tars, result.eer) == (alone.tars, alone.eer)
    with pytest.raises(ValueError, match="one per pair"):
        v.evaluate_pairs(scores, same, headline=headline[:-1])


def test_wrong_use_is_explained():
    good, same = np.array([0.1, 0.2]), np.array([True, False])
    with pytest.raises(ValueError, match="do not go together"):
        v.eer(good, same[:1])
    with pytest.raises(ValueError, match="do not go together"):
        v.eer(good, same.astype(np.int64))
    with pytest.raises(ValueError, match="no impostor pairs"):
        v.eer(good, np.array([True, True]))
    with pytest.raises(ValueError, match="1 of 2 scores are not finite"):
        v.eer(np.array([0.1, np.nan]), same)
    with pytest.raises(ValueError, match="all pairs are in one fold"):
        v.ten_fold_accuracy(good, same, np.array([0, 0]))
