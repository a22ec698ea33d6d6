"""Is one method better than another? Paired bootstrap over identities, from evidence small enough to keep.

A pair list holds each identity many times, so its pairs are not independent: what is drawn again is the identity. In a
draw, each of the P identities of the list is counted c_i times (P draws with replacement). A genuine pair of identity i
weighs c_i, an impostor pair of i and j weighs c_i · c_j. Every figure is that of the list with each pair repeated as
often as it weighs, its threshold found anew. The same draws serve every method and every seed. The difference of two
methods in a draw is that of their means over seeds; its 2.5 % and 97.5 % quantiles over the draws are the interval.

The interval speaks of the test identities alone; the spread over seeds is given apart. It errs on the wide side: a
product of counts varies more than the count of a pair drawn by itself, so where methods differ by chance of the pair
and not of the identity, it is up to 1.4 times as wide as it need be (simulated in the tests).

A finished run leaves *evidence*: a small dict that JSON can hold, from which any comparison can be made later without
the scores. It holds ranks and places in the pair list; who is in the pairs is read again from the list.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coalface.evaluate.verification import allowed, check_scores, tenths

ERRORS = ("eer",)
"""Figures of which the lower one is better."""
BLOCK = 128
"""Draws worked on at once, so that the weights of a few thousand pairs stay in the cache."""


@dataclass(frozen=True, eq=False)
class PairIdentities:
    """Who is in each pair of a list of n pairs."""

    left: NDArray[np.int64]
    """(n,) identity number of the first image."""
    right: NDArray[np.int64]
    sha256: str
    """That of the pair list: evidence made on another list is refused."""
    headline: NDArray[np.bool_] | None = None
    """(n,) the genuine pairs that count (impostor pairs all count); None: all."""
    fold: NDArray[np.int64] | None = None
    """(n,) the fold of each pair, for the accuracy; None: `tenths`."""

    def __post_init__(self) -> None:
        for word, column in (("right", self.right), ("headline", self.headline), ("fold", self.fold)):
            if column is not None and len(column) != len(self.left):
                raise ValueError(f"`{word}` has {len(column)} entries for {len(self.left)} pairs: give one per pair")

    @cached_property
    def same(self) -> NDArray[np.bool_]:
        return self.left == self.right

    @cached_property
    def genuine(self) -> NDArray[np.int64]:
        """The places in the list of the genuine pairs that count."""
        return np.flatnonzero(self.same if self.headline is None else self.same & self.headline)

    @cached_property
    def impostor(self) -> NDArray[np.int64]:
        """The places in the list of the impostor pairs."""
        return np.flatnonzero(~self.same)

    @cached_property
    def people(self) -> NDArray[np.int64]:
        """(P,) the identities that some pair names, ascending."""
        return np.unique(np.concatenate([self.left, self.right]))

    @cached_property
    def folds(self) -> NDArray[np.int64]:
        """(n,) the fold of each pair. Raises ValueError for a list that brings none and is too short for `tenths`."""
        return tenths(self.same) if self.fold is None else self.fold

    def sides(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Both identities of some pairs, as places in `people`."""
        return np.searchsorted(self.people, self.left[places]), np.searchsorted(self.people, self.right[places])


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Draws of the identities of a pair list, the same for all that is compared."""

    pairs: PairIdentities
    counts: NDArray[np.int32]
    """(P, draws) how often each identity was drawn; each column sums to P."""

    @cached_property
    def weights(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(draws,) the weight of all genuine pairs that count, and of all impostor pairs."""
        return self._weights(self.pairs.genuine, self.pairs.impostor)

    def weights_of(self, folds: Sequence[int] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same of the pairs of some folds; None: of all."""
        if folds is None:
            return self.weights
        mine = np.isin(self.pairs.folds, folds)
        return self._weights(*(places[mine[places]] for places in (self.pairs.genuine, self.pairs.impostor)))

    def _weights(
        self, genuine_places: NDArray[np.int64], impostor_places: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        people, draws = self.counts.shape
        owner, _ = self.pairs.sides(genuine_places)
        genuine = np.bincount(owner, minlength=people) @ self.counts.astype(np.int64)
        left, right = self.pairs.sides(impostor_places)
        impostor = np.zeros(draws, dtype=np.int64)
        for start in range(0, len(left), BLOCK):
            block = slice(start, start + BLOCK)
            impostor += (self.counts[left[block]] * self.counts[right[block]]).sum(axis=0)
        return genuine, impostor

    def blocks(self) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """The draws, `BLOCK` at a time."""
        for start in range(0, self.counts.shape[1], BLOCK):
            draws = slice(start, start + BLOCK)
            yield draws, np.ascontiguousarray(self.counts[:, draws])


@dataclass(frozen=True, eq=False)
class Resampled:
    """One figure of one run, on the whole list and in every draw."""

    figure: str
    """`accuracy`, `eer` or `tar@far=0.01` and so on."""
    point: float
    """Fraction, on the list as it is."""
    values: NDArray[np.float64]
    """(draws,) fractions; NaN in a draw in which no genuine or no impostor pair is left of those judged."""
    short: NDArray[np.bool_]
    """(draws,) True where the kept tail did not reach the threshold: the value is then a lower bound."""
    bootstrap: Bootstrap
    folds: tuple[int, ...] | None = None
    """The folds whose pairs were judged; None: all."""


@dataclass(frozen=True)
class PairedDifference:
    """First method less second, in fractions."""

    figure: str
    difference: float
    """Of the means over seeds, on the list as it is."""
    low: float
    """The interval that holds 95 % of the draws."""
    high: float
    verdict: Literal["first", "second", "undecided"]
    """Which is better (of an EER, the lower one); undecided if the interval holds zero."""
    first: tuple[float, ...]
    """The first method's figure, seed by seed."""
    second: tuple[float, ...]
    draws: int
    """Draws that counted."""
    short: int
    """Of these, draws in which the tail of some run was too short: many of them make the interval doubtful."""

    def figures(self) -> dict[str, float | int | str | None]:
        """For a table: percent points, and the spread over seeds apart (standard deviation, s² with n − 1)."""
        return {
            "figure": self.figure,
            "difference": 100 * self.difference,
            "low": 100 * self.low,
            "high": 100 * self.high,
            "verdict": self.verdict,
            "first": 100 * float(np.mean(self.first)),
            "first_spread": _spread(self.first),
            "second": 100 * float(np.mean(self.second)),
            "second_spread": _spread(self.second),
            "draws": self.draws,
            "short": self.short,
        }


def draw_identities(pairs: PairIdentities, rng: np.random.Generator, draws: int = 2000) -> Bootstrap:
    """Draw the P identities of a list P times with replacement, `draws` times over."""
    people = len(pairs.people)
    if people < 2 or draws < 1:
        raise ValueError(f"cannot draw {people} identities {draws} times: give 2 identities and 1 draw at the least")
    counts = rng.multinomial(people, np.full(people, 1 / people), size=draws)
    return Bootstrap(pairs=pairs, counts=np.ascontiguousarray(counts.T, dtype=np.int32))


def accuracy_evidence(
    scores: NDArray[np.float64],
    pairs: PairIdentities,
    fars: Sequence[float] = (0.01, 0.001),
    folds: Sequence[int] | None = None,
) -> dict[str, Any]:
    """What `resample` needs for the cross-validated accuracy, and for EER and TAR at some FARs: the rank of each score.

    Equal scores have one rank. FARs that the list is too short to carry are left out, as among the figures of a run.
    `folds` are those judged, as in `judge`; None: all.
    """
    check_scores(scores, pairs.same)
    if pairs.headline is not None:
        raise ValueError("a list with a headline mask is not judged by accuracy: keep tar_evidence of it")
    _, ranks = np.unique(scores, return_inverse=True)
    judged = pairs.impostor if folds is None else np.flatnonzero(~pairs.same & np.isin(pairs.folds, folds))
    carried = [float(far) for far in fars if allowed(far, len(judged))]
    half = {} if folds is None else {"folds": list(folds)}
    return {"form": "ranks-1", "list": pairs.sha256, "fars": carried, **half, "data": _packed([ranks])}


def tar_evidence(
    scores: NDArray[np.float64], pairs: PairIdentities, fars: Sequence[float] = (0.01, 0.001), tail: float = 2.5
) -> dict[str, Any]:
    """What `resample` needs for TAR at some FARs: the best impostors in order, and where the genuine pairs lie there.

    Of N impostors the best `tail` · max(fars) · N + 100 are kept, less those tied with the first that is not. A draw in
    which these weigh no more than its FAR allows is reported as short. 200,000 impostors and 6,000 genuine pairs make
    17 to 27 KB. A model that gives all pairs one score leaves an empty tail, and every draw of it is short.
    """
    check_scores(scores, pairs.same)
    impostor, genuine = scores[pairs.impostor], scores[pairs.genuine]
    order = np.argsort(-impostor, kind="stable")
    reach = math.ceil(tail * allowed(max(fars), len(order))) + 100
    kept = order if reach >= len(order) else order[: int((impostor > impostor[order[reach]]).sum())]
    ordered = impostor[kept]
    levels = np.unique(impostor[order[: len(kept) + 1]])  # the first that is not kept parts the genuine pairs below
    above = len(levels) - np.searchsorted(levels, genuine)  # levels that reach the genuine score
    tied = np.append(False, ordered[1:] == ordered[:-1])[: len(kept)]
    return {
        "form": "tail-1",
        "list": pairs.sha256,
        "fars": [float(far) for far in fars],
        "kept": len(kept),
        "data": _packed([kept, tied, above]),
    }


def resample(evidence: dict[str, Any], bootstrap: Bootstrap) -> dict[str, Resampled]:
    """The figures of one run in every draw, by name: `accuracy`, `eer`, and `tar@far=0.01` for each FAR it names.

    Evidence of a tail gives TARs alone; evidence of ranks that names no FARs, as it was kept at first, accuracy alone.

    Evidence of some folds gives the figures of their pairs, as `judge` does with `folds`.

    Raises ValueError for evidence of another list, of an unknown form or damaged.
    """
    pairs = bootstrap.pairs
    if evidence.get("list") != pairs.sha256:
        raise ValueError(
            f"the evidence is of pair list {evidence.get('list')}, the comparison is on {pairs.sha256}: "
            "judge the run again on this list, or compare on that one"
        )
    if evidence.get("form") not in RESAMPLERS:
        raise ValueError(f"evidence of form {evidence.get('form')!r} is unknown: it must be one of {list(RESAMPLERS)}")
    everybody = Bootstrap(pairs, np.ones((len(pairs.people), 1), dtype=np.int32))
    resampler = RESAMPLERS[evidence["form"]]
    points, drawn = resampler(evidence, everybody), resampler(evidence, bootstrap)
    folds = tuple(evidence["folds"]) if "folds" in evidence else None
    empty = np.minimum(*bootstrap.weights_of(folds)) == 0
    return {
        figure: Resampled(figure, float(points[figure][0][0]), np.where(empty, np.nan, values), short, bootstrap, folds)
        for figure, (values, short) in drawn.items()
    }


def compare(first: Sequence[Resampled], second: Sequence[Resampled]) -> PairedDifference:
    """The paired difference of two methods in one figure, each given by its runs over the seeds."""
    runs = [*first, *second]
    if not first or not second:
        raise ValueError("a comparison needs at least one run of each method")
    if len({run.figure for run in runs}) > 1 or any(run.bootstrap is not runs[0].bootstrap for run in runs):
        raise ValueError("paired runs need the same figure and the same draws: resample them all from one Bootstrap")
    if not same_pairs(first, second):
        raise ValueError("the two sides were judged on other folds of the list: give each side both halves, or one")
    drawn = np.mean([run.values for run in first], axis=0) - np.mean([run.values for run in second], axis=0)
    counted = np.isfinite(drawn)
    if not counted.any():
        raise ValueError("every draw is without genuine or without impostor pairs: the list has too few identities")
    low, high = np.quantile(drawn[counted], [0.025, 0.975])
    points = [tuple(run.point for run in side) for side in (first, second)]
    return PairedDifference(
        figure=runs[0].figure,
        difference=float(np.mean(points[0]) - np.mean(points[1])),
        low=float(low),
        high=float(high),
        verdict=_verdict(runs[0].figure, low, high),
        first=points[0],
        second=points[1],
        draws=int(counted.sum()),
        short=int((counted & np.any([run.short for run in runs], axis=0)).sum()),
    )


def same_pairs(first: Sequence[Resampled], second: Sequence[Resampled]) -> bool:
    """Whether both sides were judged on the same folds of the list, each as often in proportion."""

    def halves(runs: Sequence[Resampled]) -> dict[tuple[int, ...] | None, Fraction]:
        told = [run.folds for run in runs]
        return {folds: Fraction(told.count(folds), len(told)) for folds in told}

    return halves(first) == halves(second)


def _verdict(figure: str, low: float, high: float) -> Literal["first", "second", "undecided"]:
    if low <= 0 <= high:
        return "undecided"
    return "first" if (low > 0) != (figure in ERRORS) else "second"


Drawn = dict[str, tuple[NDArray[np.float64], NDArray[np.bool_]]]


def _tars(evidence: dict[str, Any], bootstrap: Bootstrap) -> Drawn:
    pairs, size = bootstrap.pairs, evidence["kept"]
    kept, tied, above = _unpacked(evidence["data"], [size, size, len(pairs.genuine)])
    left, right = pairs.sides(pairs.impostor[kept])
    groups = np.flatnonzero(tied == 0)
    by_rank = np.argsort(above, kind="stable")
    owner, _ = pairs.sides(pairs.genuine[by_rank])
    genuine_weight, impostor_weight = bootstrap.weights
    drawn: Drawn = {}
    for far in evidence["fars"]:
        drawn[f"tar@far={far:g}"] = (np.empty(len(genuine_weight)), np.zeros(len(genuine_weight), dtype=bool))
    allowances = [np.array([allowed(far, int(weight)) for weight in impostor_weight]) for far in evidence["fars"]]
    for draws, counts in bootstrap.blocks():
        false_accepts = np.cumsum(np.add.reduceat(counts[left] * counts[right], groups, axis=0), axis=0)
        true_accepts = np.zeros((len(owner) + 1, counts.shape[1]), dtype=np.int64)
        np.cumsum(counts[owner], axis=0, out=true_accepts[1:])
        for allowance, (values, short) in zip(allowances, drawn.values(), strict=True):
            accepted = (false_accepts <= allowance[draws]).sum(axis=0)  # whole groups of tied impostors
            reached = np.searchsorted(above[by_rank], accepted, side="right")
            values[draws] = true_accepts[reached, np.arange(len(reached))] / np.maximum(genuine_weight[draws], 1)
            short[draws] = (accepted == len(groups)) & (size < len(pairs.impostor))
    return drawn


def _from_ranks(evidence: dict[str, Any], bootstrap: Bootstrap) -> Drawn:
    pairs, draws = bootstrap.pairs, bootstrap.counts.shape[1]
    (ranks,) = _unpacked(evidence["data"], [len(pairs.left)])
    order = np.argsort(ranks, kind="stable")
    ranks, same = ranks[order], pairs.same[order]
    fold = pairs.folds[order]
    left, right = pairs.sides(order)
    starts = np.flatnonzero(np.append(True, np.diff(ranks)))  # of each group of equal scores
    found = {"accuracy": np.empty(draws)}
    if "fars" in evidence:
        found |= {"eer": np.empty(draws), **{f"tar@far={far:g}": np.empty(draws) for far in evidence["fars"]}}
    for block, counts in bootstrap.blocks():
        weights = np.where(same[:, None], counts[left], counts[left] * counts[right]).T.copy()
        found["accuracy"][block] = _accuracies(weights, same, ranks, fold, starts, evidence.get("folds"))
        if "folds" in evidence:
            weights[:, ~np.isin(fold, evidence["folds"])] = 0
        if "fars" in evidence:
            genuine, impostor = _below(weights, same, starts), _below(weights, ~same, starts)
            found["eer"][block] = _eers(genuine, impostor)
            for far in evidence["fars"]:
                found[f"tar@far={far:g}"][block] = _tars_below(genuine, impostor, far)
    return {figure: (values, np.zeros(draws, dtype=bool)) for figure, values in found.items()}


def _accuracies(
    weights: NDArray[np.int32],
    same: NDArray[np.bool_],
    ranks: NDArray[np.int64],
    fold: NDArray[np.int64],
    starts: NDArray[np.int64],
    folds: Sequence[int] | None,
) -> NDArray[np.float64]:
    rates, present = np.zeros(len(weights)), np.zeros(len(weights))
    for number in np.unique(fold) if folds is None else folds:
        own = np.flatnonzero(fold == number)
        cut = _best_cuts(weights, same, own, starts)
        right_weight = (weights[:, own] * ((ranks[own] >= cut[:, None]) == same[own])).sum(axis=1)
        fold_weight = weights[:, own].sum(axis=1)
        rates += right_weight / np.maximum(fold_weight, 1)
        present += fold_weight > 0
    return np.asarray(rates / np.maximum(present, 1))


def _below(weights: NDArray[np.int32], kind: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """(draws, levels + 1) what the pairs of one kind weigh whose score is less than each level; last, all of them."""
    below = np.zeros((len(weights), len(starts) + 1), dtype=np.int64)
    np.cumsum(np.add.reduceat(np.where(kind, weights, 0), starts, axis=1), axis=1, out=below[:, 1:])
    return below


def _tars_below(genuine: NDArray[np.int64], impostor: NDArray[np.int64], far: float) -> NDArray[np.float64]:
    """(draws,) TAR at the lowest level that accepts no more impostors than allowed, as in `tar_at_far`."""
    total = impostor[:, -1:]
    allowance = np.array([[allowed(far, int(weight))] for weight in total[:, 0]])
    level = (total - impostor > allowance).sum(axis=1)
    accepted = genuine[:, -1] - genuine[np.arange(len(genuine)), level]
    return np.asarray(accepted / np.maximum(genuine[:, -1], 1))


def _eers(genuine: NDArray[np.int64], impostor: NDArray[np.int64]) -> NDArray[np.float64]:
    """(draws,) where the straight lines between the points of each draw's ROC have FAR = 1 − TAR, as in `eer`."""
    far, missed = 1 - impostor / np.maximum(impostor[:, -1:], 1), genuine / np.maximum(genuine[:, -1:], 1)
    far[:, -1], missed[:, -1] = 0, 1  # above all; said for draws without genuine or impostor pairs, which do not count
    gap = missed - far  # rises from −1 to 1
    draw, after = np.arange(len(gap)), np.argmax(gap >= 0, axis=1)
    before = after - 1
    step = -gap[draw, before] / (gap[draw, after] - gap[draw, before])
    return np.asarray(far[draw, before] + step * (far[draw, after] - far[draw, before]))


def _best_cuts(
    weights: NDArray[np.int32], same: NDArray[np.bool_], own: NDArray[np.int64], starts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each draw, the rank from which on it is best to accept, judged on all pairs but `own`.

    The rule is that of `best_threshold`: of the ranks that occur in the draw (and the one above all), the middle best.
    """
    others = weights.copy()  # (draws, pairs), pairs in ascending order of score
    others[:, own] = 0
    occurs = np.add.reduceat(others, starts, axis=1) > 0
    wrong = np.zeros((len(weights), len(starts) + 1), dtype=np.int32)
    np.cumsum(np.add.reduceat(np.where(same, others, -others), starts, axis=1), axis=1, out=wrong[:, 1:])
    best = wrong == wrong.min(axis=1, keepdims=True)
    best[:, :-1] &= occurs
    draw, cut = np.nonzero(best)
    found = np.bincount(draw, minlength=len(weights))
    return cut[np.cumsum(found) - found + (found - 1) // 2]


RESAMPLERS = {"ranks-1": _from_ranks, "tail-1": _tars}
"""How each form of evidence is read."""


def _packed(columns: Sequence[NDArray[Any]]) -> str:
    # The four bytes of each number go to four planes: the upper ones are nearly constant and cost next to nothing.
    planes = [np.ascontiguousarray(column, dtype="<u4").view(np.uint8).reshape(-1, 4).T.tobytes() for column in columns]
    return base64.b85encode(zlib.compress(b"".join(planes), 9)).decode("ascii")


def _unpacked(data: str, sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    try:
        raw = zlib.decompress(base64.b85decode(data))
        if len(raw) != 4 * sum(sizes):
            raise ValueError(f"{len(raw)} bytes where {4 * sum(sizes)} are due")
    except (ValueError, zlib.error, binascii.Error) as cause:
        raise ValueError(f"the evidence is damaged ({cause}): judge the run again") from cause
    columns, start = [], 0
    for size in sizes:
        planes = np.frombuffer(raw, dtype=np.uint8, count=4 * size, offset=start).reshape(4, size)
        columns.append(np.ascontiguousarray(planes.T).view("<u4").ravel().astype(np.int64))
        start += 4 * size
    return columns


def _spread(points: Sequence[float]) -> float | None:
    return 100 * float(np.std(points, ddof=1)) if len(points) > 1 else None
