"""What a finished run leaves, so that any comparison can be made later without the scores: small, and JSON can hold it.

Evidence holds ranks and places in the pair list; who is in the pairs is read again from the list. Every figure of a
draw is that of the list with each pair repeated as often as it weighs in the draw, its threshold found anew.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.bootstrap import Bootstrap, PairIdentities
from coalface.evaluation.metrics.figure import Figure
from coalface.evaluation.metrics.verification import allowed, check_scores, equal_error


def accuracy_evidence(
    scores: NDArray[np.float64],
    pairs: PairIdentities,
    fars: Sequence[float] = (0.01, 0.001),
    folds: Sequence[int] | None = None,
) -> dict[str, Any]:
    """What `resample` needs for the cross-validated accuracy, and for EER and TAR at some FARs: the rank of each score.

    Equal scores have one rank. FARs that the list is too short to carry are left out, as among the figures of a run.
    `folds` are those evaluated, as in `evaluate_pairs`; None: all.
    """
    check_scores(scores, pairs.same)
    if pairs.headline is not None:
        raise ValueError("a list with a headline mask is not evaluated by accuracy: keep tar_evidence of it")
    _, ranks = np.unique(scores, return_inverse=True)
    evaluated = pairs.impostor if folds is None else np.flatnonzero(~pairs.same & np.isin(pairs.folds, folds))
    carried = [float(far) for far in fars if allowed(far, len(evaluated))]
    evaluated_folds = {} if folds is None else {"folds": list(folds)}
    return {"form": "ranks-1", "list": pairs.sha256, "fars": carried, **evaluated_folds, "data": _packed([ranks])}


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
    best = order if reach >= len(order) else order[: int((impostor > impostor[order[reach]]).sum())]
    ordered = impostor[best]
    levels = np.unique(impostor[order[: len(best) + 1]])  # the first that is not kept parts the genuine pairs below
    above = len(levels) - np.searchsorted(levels, genuine)  # levels that reach the genuine score
    tied = np.append(False, ordered[1:] == ordered[:-1])[: len(best)]
    return {
        "form": "tail-1",
        "list": pairs.sha256,
        "fars": [float(far) for far in fars],
        "kept": len(best),
        "data": _packed([best, tied, above]),
    }


def hits_evidence(right: NDArray[np.bool_]) -> dict[str, str]:
    """What `resample` needs for rank-1, beside the evidence of the pairs: which of the (q,) queries were right."""
    return {"hits": _packed([right.astype(np.int64)])}


def hits(evidence: dict[str, Any], bootstrap: Bootstrap) -> Drawn:
    """Rank-1 in every draw, a query weighing its identity's count; nothing where nobody was looked up.

    Identities that no pair names are in no draw, and their queries weigh nothing.
    """
    queries = bootstrap.pairs.queries
    if queries is None or "hits" not in evidence:
        return {}
    (right,) = _unpacked(evidence["hits"], [len(queries)])
    people = bootstrap.pairs.people
    place = np.searchsorted(people, queries)
    in_list = (place < len(people)) & (people[np.minimum(place, len(people) - 1)] == queries)
    queries_of = np.bincount(place[in_list], minlength=len(people))
    right_of = np.bincount(place[in_list], weights=right[in_list], minlength=len(people))
    weight = queries_of @ bootstrap.counts.astype(np.int64)
    values = np.where(weight > 0, right_of @ bootstrap.counts / np.maximum(weight, 1), np.nan)
    return {"rank-1": (values, np.zeros(len(values), dtype=bool))}


def drawn_evidence(figures: Mapping[Figure, tuple[float, NDArray[np.float64]]], bootstrap: Bootstrap) -> dict[str, Any]:
    """Values of figures on the list as it is and in every draw (draws,), for whom no ranks are enough."""
    own = {
        figure.name: {"point": point, "better": figure.better, "data": _packed([values.astype("<f8").view("<u4")])}
        for figure, (point, values) in figures.items()
    }
    return {"draws": bootstrap.sha256, "own": own}


def drawn_figures(evidence: dict[str, Any], bootstrap: Bootstrap) -> dict[str, tuple[float, NDArray[np.float64], str]]:
    """Figure -> (value, (draws,) values, which way is better); none where the evidence is of other draws."""
    if evidence.get("draws") != bootstrap.sha256:
        return {}
    figures = {}
    for name, own in evidence["own"].items():
        (halves,) = _unpacked(own["data"], [2 * bootstrap.counts.shape[1]])
        figures[name] = (float(own["point"]), halves.astype("<u4").view("<f8").astype(float), str(own["better"]))
    return figures


Drawn = dict[str, tuple[NDArray[np.float64], NDArray[np.bool_]]]
"""Figure -> (draws,) its values, and where the kept tail was too short for one."""


def _tars(evidence: dict[str, Any], bootstrap: Bootstrap) -> Drawn:
    pairs, size = bootstrap.pairs, evidence["kept"]
    best, tied, above = _unpacked(evidence["data"], [size, size, len(pairs.genuine)])
    left, right = pairs.sides(pairs.impostor[best])
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
    drawn = {"accuracy": np.empty(draws)}
    if "fars" in evidence:
        drawn |= {"eer": np.empty(draws), **{f"tar@far={far:g}": np.empty(draws) for far in evidence["fars"]}}
    for block, counts in bootstrap.blocks():
        weights = np.where(same[:, None], counts[left], counts[left] * counts[right]).T.copy()
        drawn["accuracy"][block] = _accuracies(weights, same, ranks, fold, starts, evidence.get("folds"))
        if "folds" in evidence:
            weights[:, ~np.isin(fold, evidence["folds"])] = 0
        if "fars" in evidence:
            genuine, impostor = _below(weights, same, starts), _below(weights, ~same, starts)
            drawn["eer"][block] = _eers(genuine, impostor)
            for far in evidence["fars"]:
                drawn[f"tar@far={far:g}"][block] = _tars_below(genuine, impostor, far)
    return {figure: (values, np.zeros(draws, dtype=bool)) for figure, values in drawn.items()}


def _accuracies(
    weights: NDArray[np.int32],
    same: NDArray[np.bool_],
    ranks: NDArray[np.int64],
    fold: NDArray[np.int64],
    starts: NDArray[np.int64],
    folds: Sequence[int] | None,
) -> NDArray[np.float64]:
    rates, present = np.zeros(len(weights)), np.zeros(len(weights))
    signed = np.where(same, weights, -weights)
    of_all, balance_of_all = np.add.reduceat(weights, starts, axis=1), np.add.reduceat(signed, starts, axis=1)
    for number in np.unique(fold) if folds is None else folds:
        in_fold = np.flatnonzero(fold == number)
        others = _without(of_all, weights[:, in_fold], ranks[in_fold])
        cut = _best_cuts(others > 0, _without(balance_of_all, signed[:, in_fold], ranks[in_fold]))
        right_weight = (weights[:, in_fold] * ((ranks[in_fold] >= cut[:, None]) == same[in_fold])).sum(axis=1)
        fold_weight = weights[:, in_fold].sum(axis=1)
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
    return np.array([equal_error(*points) for points in zip(far, missed, strict=True)])


def _without(levels: NDArray[np.int32], pairs: NDArray[np.int32], ranks: NDArray[np.int64]) -> NDArray[np.int32]:
    """(draws, levels) sums over the pairs of each level, less some (draws, pairs) whose `ranks` ascend."""
    starts = np.flatnonzero(np.diff(ranks, prepend=-1))
    remaining = levels.copy()
    remaining[:, ranks[starts]] -= np.add.reduceat(pairs, starts, axis=1)
    return remaining


def _best_cuts(occurs: NDArray[np.bool_], balance: NDArray[np.int32]) -> NDArray[np.int64]:
    """For each draw, the rank from which on it is best to accept.

    Both are (draws, levels): whether some pair of a level is in the draw, and its genuine pairs less its impostors.
    The rule is that of `best_threshold`: of the ranks that occur in the draw (and the one above all), the middle best.
    """
    wrong = np.zeros((len(balance), balance.shape[1] + 1), dtype=np.int32)
    np.cumsum(balance, axis=1, out=wrong[:, 1:])
    best = wrong == wrong.min(axis=1, keepdims=True)
    best[:, :-1] &= occurs
    draw, cut = np.nonzero(best)
    ties = np.bincount(draw, minlength=len(balance))
    return cut[np.cumsum(ties) - ties + (ties - 1) // 2]


RESAMPLERS = {"ranks-1": _from_ranks, "tail-1": _tars}
"""How each form of evidence is read."""


def _packed(columns: Sequence[NDArray[Any]]) -> str:
    # The four bytes of each number go to four planes: the upper ones are nearly constant and cost next to nothing.
    planes = [np.ascontiguousarray(column, dtype="<u4").view(np.uint8).reshape(-1, 4).T.tobytes() for column in columns]
    return base64.b85encode(zlib.compress(b"".join(planes), 9)).decode("ascii")


def _unpacked(data: str, sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    """What `_packed` was given. Raises ValueError for anything else."""
    size = 4 * sum(sizes)
    unpacking = zlib.decompressobj()
    try:
        raw = unpacking.decompress(base64.b85decode(data), size + 1)  # no more, whatever it would unpack to
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(raw) != size or not unpacking.eof:
        raise ValueError(f"{len(raw)} bytes or more where {size} are due")
    columns, start = [], 0
    for size in sizes:
        planes = np.frombuffer(raw, dtype=np.uint8, count=4 * size, offset=start).reshape(4, size)
        columns.append(np.ascontiguousarray(planes.T).view("<u4").ravel().astype(np.int64))
        start += 4 * size
    return columns
