"""Verification: are two images of one identity? Accuracy, TAR at FAR, EER, ROC.

A pair is accepted iff its score is at least the threshold. Every threshold is an exact order statistic of the scores;
`docs/figures.md` writes the convention down. Functions return fractions; `VerificationResult.figures` gives percent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.figure import COSINE, Figure

ACCURACY = Figure("accuracy")
TAR = Figure("tar@far=", "TAR at FAR ")
THRESHOLD = Figure("threshold@far=", "threshold at FAR ", COSINE, better="")
EER = Figure("eer", "EER", better="lower")
ACCURACY_TWO_LISTS = Figure("accuracy_two_lists")
THRESHOLD_TWO_LISTS = Figure("threshold_two_lists", unit=COSINE, better="")
FIGURES = (ACCURACY, TAR, THRESHOLD, EER, ACCURACY_TWO_LISTS, THRESHOLD_TWO_LISTS)


@dataclass(frozen=True)
class Accuracy:
    """The share of pairs decided rightly, with thresholds chosen on other pairs."""

    mean: float
    """Fraction, 0 to 1: the mean over the folds."""
    error: float
    """The standard error of the mean."""
    thresholds: tuple[float, ...]
    """The threshold of each fold: a cosine."""


@dataclass(frozen=True)
class TarAtFar:
    """The true accept rate where at most floor(far × impostors) impostor pairs are accepted."""

    far: float
    tar: float
    """Fraction, 0 to 1, of the genuine pairs that are accepted."""
    threshold: float
    """The lowest threshold that keeps to the allowance: just above the best impostor that must be rejected."""
    false_accepts: int
    """Impostor pairs accepted; below the allowance where a tie would have gone over it."""
    impostors: int
    carried: bool
    """False where floor(far × impostors) is 0: the list is too short for this FAR, and `tar` is that at no accepts."""


@dataclass(frozen=True)
class VerificationResult:
    """What one pair list says of one model."""

    accuracy: Accuracy | None
    """None for a list with a headline mask: with so many impostors to a genuine pair, accuracy would say little."""
    tars: tuple[TarAtFar, ...]
    eer: float

    def figures(self) -> dict[str, float]:
        """The figures in percent, unrounded: `accuracy`, `accuracy_se`, `tar@far=0.01`, …, `eer`.

        A TAR that the list is too short to carry is left out, so that no table shows it.
        """
        figures: dict[str, float] = {}
        if self.accuracy is not None:
            figures |= {ACCURACY.name: 100 * self.accuracy.mean, f"{ACCURACY.name}_se": 100 * self.accuracy.error}
        figures |= {TAR.at(tar.far): 100 * tar.tar for tar in self.tars if tar.carried}
        return figures | {EER.name: 100 * self.eer}


def evaluate_pairs(
    scores: NDArray[np.float64],
    same: NDArray[np.bool_],
    fold: NDArray[np.int64] | None = None,
    headline: NDArray[np.bool_] | None = None,
    fars: Sequence[float] = (0.01, 0.001),
    folds: Sequence[int] | None = None,
) -> VerificationResult:
    """Evaluate a model by the scores (n,) of pairs.

    `headline` (n,) marks the genuine pairs that count (impostor pairs all count); a list that has it is evaluated by
    TAR and EER alone. `fold` is as in `ten_fold_accuracy`. With `folds` only their pairs are evaluated, while the
    others still choose thresholds of the accuracy.
    """
    if headline is not None and headline.shape != same.shape:
        raise ValueError(f"the headline mask has {headline.shape} entries for {same.shape} pairs: give one per pair")
    counted = np.ones(len(same), dtype=bool) if headline is None else headline | ~same
    scores, counted_same = scores[counted], same[counted]
    if folds is not None:
        fold = tenths(same) if fold is None else fold
    accuracy = ten_fold_accuracy(scores, counted_same, fold, folds=folds) if headline is None else None
    if folds is not None and fold is not None:
        in_folds = np.isin(fold[counted], folds)
        scores, counted_same = scores[in_folds], counted_same[in_folds]
    return VerificationResult(
        accuracy=accuracy,
        tars=tuple(tar_at_far(scores, counted_same, fars)),
        eer=eer(scores, counted_same),
    )


def score_pairs(
    features: NDArray[np.float32], left: NDArray[np.int64], right: NDArray[np.int64], block: int = 256
) -> NDArray[np.float64]:
    """The cosine of each pair of unit rows: (n,), summed in float64, `block` pairs at a time."""
    scores = np.empty(len(left))
    for start in range(0, len(left), block):
        stop = start + block
        product = features[left[start:stop]]  # a copy, because the index is an array
        product *= features[right[start:stop]]
        product.sum(axis=1, dtype=np.float64, out=scores[start:stop])
    return scores


def tenths(same: NDArray[np.bool_], folds: int = 10) -> NDArray[np.int64]:
    """Folds for a list that brings none: contiguous tenths of its genuine pairs, and of its impostor pairs.

    Examples:
        >>> tenths(np.array([True, True, False, False, True, False]), folds=3).tolist()
        [0, 1, 0, 1, 2, 2]
    """
    fold = np.empty(len(same), dtype=np.int64)
    for kind, word in ((same, "genuine"), (~same, "impostor")):
        count = int(kind.sum())
        if count < folds:
            raise ValueError(f"{count} {word} pairs cannot make {folds} folds: use a list with at least {folds}")
        fold[kind] = np.arange(count) * folds // count
    return fold


def ten_fold_accuracy(
    scores: NDArray[np.float64],
    same: NDArray[np.bool_],
    fold: NDArray[np.int64] | None = None,
    folds: Sequence[int] | None = None,
) -> Accuracy:
    """The field's cross-validated accuracy: each fold is decided by the threshold that is best on all the others.

    `fold` (n,) numbers the fold of each pair; None means `tenths`. The error is s / √F over the F folds, s² with F − 1.
    The threshold is chosen among the scores of the other folds, as `best_threshold` does. `folds` are those whose mean
    is taken (None: all); each still has its threshold chosen on all other folds of the list.
    """
    check_scores(scores, same)
    fold = tenths(same) if fold is None else fold
    numbers = np.unique(fold)
    if len(numbers) < 2:
        raise ValueError("all pairs are in one fold: cross-validation needs two or more; pass fold=None to make ten")
    order = np.argsort(scores, kind="stable")
    ordered, genuine, places = scores[order], same[order], fold[order]
    rates, thresholds = [], []
    for number in numbers if folds is None else folds:
        elsewhere = places != number
        threshold = _best_cut(ordered[elsewhere], genuine[elsewhere])
        accepted = ordered[~elsewhere] >= threshold
        rates.append((accepted == genuine[~elsewhere]).mean())
        thresholds.append(float(threshold))
    error = float(np.std(rates, ddof=1) / math.sqrt(len(rates)))
    return Accuracy(mean=float(np.mean(rates)), error=error, thresholds=tuple(thresholds))


def two_list_accuracy(
    train_scores: NDArray[np.float64],
    train_same: NDArray[np.bool_],
    test_scores: NDArray[np.float64],
    test_same: NDArray[np.bool_],
) -> Accuracy:
    """The two-file form of LFW's View 1: the threshold best on one list (pairsDevTrain) decides another (pairsDevTest).

    The error is the binomial √(p(1 − p) / n).
    """
    check_scores(test_scores, test_same)
    threshold = best_threshold(train_scores, train_same)
    rate = float(((test_scores >= threshold) == test_same).mean())
    return Accuracy(mean=rate, error=math.sqrt(rate * (1 - rate) / len(test_same)), thresholds=(threshold,))


def best_threshold(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    """The score that decides most pairs rightly as a threshold.

    Candidates are the distinct scores and one value just above the highest (accept nobody). Of k equally good
    candidates the ((k + 1) // 2)-th from below is taken: the middle leans neither to accepting nor to rejecting. So
    the choice rests on the order of the scores alone.

    Examples:
        >>> best_threshold(np.array([0.1, 0.2, 0.6, 0.9]), np.array([False, False, True, True]))
        0.6
    """
    check_scores(scores, same)
    order = np.argsort(scores, kind="stable")
    return _best_cut(scores[order], same[order])


def _best_cut(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    # scores ascending. Rejecting the lowest i pairs costs `wrong[i]` pairs more than accepting all of them.
    wrong = np.concatenate([[0], np.cumsum(np.where(same, 1, -1))])
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(scores)) + 1, [len(scores)]])
    best = cuts[wrong[cuts] == wrong[cuts].min()]
    chosen = best[(len(best) - 1) // 2]
    return float(scores[chosen]) if chosen < len(scores) else float(np.nextafter(scores[-1], np.inf))


def allowed(far: float, impostors: int) -> int:
    """floor(far × impostors), far being the decimal number as it is written: 0.29 of 100 is 29, not 28.

    Examples:
        >>> allowed(0.29, 100), int(0.29 * 100)
        (29, 28)
    """
    share = Fraction(str(float(far)))
    if not 0 < share <= 1:
        raise ValueError(f"a FAR of {far} is not a rate: give a number above 0 and at most 1, such as 0.001")
    return math.floor(share * impostors)


def tar_at_far(scores: NDArray[np.float64], same: NDArray[np.bool_], fars: Sequence[float]) -> list[TarAtFar]:
    """TAR at each FAR, FAR as a count: of N impostor pairs at most floor(far × N) may be accepted.

    The threshold lies just above the best impostor that must be rejected. So impostors tied with that one are
    rejected too, and fewer than floor(far × N) may be accepted. With N = 1,000: far 0.01 allows 10; far 0.0001 allows
    none, and `carried` is False.
    """
    check_scores(scores, same)
    impostors = np.sort(scores[~same])[::-1]
    ranked = [Ranked.of_sorted(impostors, rank) for rank in ranks_asked(fars, len(impostors))]
    return tars_of_ranked(ranked, len(impostors), scores[same], fars)


class Ranked(NamedTuple):
    """The r-th highest of some scores."""

    value: float
    above: int
    """How many are higher: r − 1, or fewer where others are tied with it."""

    @classmethod
    def of_sorted(cls, scores: NDArray[np.float64], rank: int) -> Ranked:
        """Of scores that descend."""
        value = float(scores[rank - 1])
        return cls(value, int((scores > value).sum()))

    def allowing(self, count: int, scores: int, genuine: NDArray[np.float64]) -> tuple[float, int]:
        """The lowest threshold that accepts at most `count` of so many scores, and how many it accepts.

        It lies just above the best that must be rejected, which this is; where all may be accepted this is the least
        of them, and the threshold the least of these and the genuine ones.
        """
        if count >= scores:
            return min(self.value, float(genuine.min())), scores
        return float(np.nextafter(self.value, np.inf)), self.above


def ranks_asked(fars: Sequence[float], impostors: int) -> list[int]:
    """The rank of the best impostor that must be rejected at each FAR; of the last where all may be accepted."""
    return [min(1 + allowed(far, impostors), impostors) for far in fars]


def tars_of_ranked(
    ranked: Sequence[Ranked], impostors: int, genuine: NDArray[np.float64], fars: Sequence[float]
) -> list[TarAtFar]:
    """`tar_at_far` by the impostor scores of `ranks_asked` alone."""
    results = []
    for far, best_rejected in zip(fars, ranked, strict=True):
        count = allowed(far, impostors)
        threshold, accepted = best_rejected.allowing(count, impostors, genuine)
        tar = int((genuine >= threshold).sum()) / len(genuine)
        results.append(TarAtFar(float(far), tar, threshold, accepted, impostors, carried=count >= 1))
    return results


def genuine_pairs(identities: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both places of every pair of one identity, each pair once."""
    order = np.argsort(identities, kind="stable")
    _, starts, counts = np.unique(identities[order], return_index=True, return_counts=True)
    pairs = [start + np.stack(np.triu_indices(n, 1)) for start, n in zip(starts, counts, strict=True)]
    left, right = order[np.concatenate(pairs, axis=1)]
    return left, right


def pair_loss(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    """The mean over pairs of 1 − s where genuine and max(0, s) where impostor: the cosine embedding loss, margin 0.

    Examples:
        >>> pair_loss(np.array([0.5, 0.2, -1.0]), np.array([True, False, False]))
        0.2333333333333333
    """
    check_scores(scores, same)
    return float(np.where(same, 1 - scores, np.maximum(scores, 0)).mean())


def eer(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    """The equal error rate: where the ROC, its exact points joined by straight lines, has FAR = 1 − TAR."""
    check_scores(scores, same)
    levels = np.unique(scores)
    # Entry j: the threshold is levels[j]; the last entry: above all.
    far = 1 - np.append(np.searchsorted(np.sort(scores[~same]), levels), (~same).sum()) / (~same).sum()
    missed = np.append(np.searchsorted(np.sort(scores[same]), levels), same.sum()) / same.sum()
    return equal_error(far, missed)


def equal_error(far: NDArray[np.float64], missed: NDArray[np.float64]) -> float:
    """Where FAR = 1 − TAR on straight lines between points by ascending threshold, from (1, 0) to (0, 1)."""
    gap = missed - far  # rises from −1 to 1
    after = int(np.argmax(gap >= 0))
    step = -gap[after - 1] / (gap[after] - gap[after - 1])
    return float(far[after - 1] + step * (far[after] - far[after - 1]))


def auc(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    """The area under the ROC: how often a genuine pair scores above an impostor pair, where a tie counts half."""
    check_scores(scores, same)
    impostor, genuine = np.sort(scores[~same]), scores[same]
    below = np.searchsorted(impostor, genuine, side="left") + np.searchsorted(impostor, genuine, side="right")
    return int(below.sum()) / 2 / (len(genuine) * len(impostor))


def roc(scores: NDArray[np.float64], same: NDArray[np.bool_], points: int = 200) -> dict[str, list[float]]:
    """`far` and `tar` of at most so many points of the ROC, for a drawing: FAR k / N log-spaced from 1 / N to 1, each
    TAR exact.
    """
    check_scores(scores, same)
    impostor, genuine = np.sort(scores[~same]), np.sort(scores[same])
    total = len(impostor)
    counts = np.unique(np.geomspace(1, total, points).round().astype(np.int64))
    counts = np.unique(np.append(counts, total))
    rejected = total - 1 - counts[:-1]  # the best impostor that must be rejected; at FAR 1 there is none
    missed = np.searchsorted(genuine, impostor[rejected], side="right")
    return {"far": (counts / total).tolist(), "tar": np.append(1 - missed / len(genuine), 1.0).tolist()}


def histogram(scores: NDArray[np.float64], same: NDArray[np.bool_], bins: int = 100) -> dict[str, list[Any]]:
    """How many `genuine` and `impostor` scores lie in equal intervals over what was observed, its ends rounded outward.

    `edges` are one more than the intervals.

    The cosines of an untrained model may all lie within a hundredth of each other. The ends are multiples of a tenth
    of the power of ten at or below the width, within [−1, 1], which rounding may put a cosine past.
    """
    check_scores(scores, same)
    inside = np.clip(scores, -1, 1)
    width = max(float(np.ptp(inside)), 1e-6)
    places = 1 - math.floor(math.log10(width))
    low = max(-1.0, round(math.floor(inside.min() * 10**places) / 10**places, places))
    high = min(1.0, round(math.ceil(inside.max() * 10**places) / 10**places, places))
    if low == high:
        low, high = (low, low + 10**-places) if low < 1 else (1 - 10**-places, 1.0)
    ends = (min(low, float(inside.min())), max(high, float(inside.max())))
    genuine, edges = np.histogram(inside[same], bins=bins, range=ends)
    impostor, _ = np.histogram(inside[~same], bins=bins, range=ends)
    return {"edges": edges.tolist(), "genuine": genuine.tolist(), "impostor": impostor.tolist()}


def check_scores(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> None:
    """Raise ValueError unless there is one finite score per pair, and pairs of both kinds."""
    if scores.shape != same.shape or scores.ndim != 1 or same.dtype != np.bool_:
        raise ValueError(
            f"scores {scores.shape} and same {same.dtype} {same.shape} do not go together: "
            "each pair needs one score and one bool that says whether it is genuine"
        )
    if not same.any() or same.all():
        word = "genuine" if not same.any() else "impostor"
        raise ValueError(f"the pair list has no {word} pairs: verification needs both kinds")
    bad = int((~np.isfinite(scores)).sum())
    if bad:
        raise ValueError(f"{bad} of {len(scores)} scores are not finite: the embeddings they come from are broken")
