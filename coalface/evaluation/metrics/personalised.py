"""The personalised protocols: how well a client's own model serves the client's own identities.

FedFR (C.-T. Liu et al. 2022), "Evaluation Metrics": every client's model embeds the test images of all clients, and is
judged by 1:1 verification and 1:N identification; the figures are means over the clients. With C clients of 100
identities of 40 test images each, C = 40, one client has 78,000 genuine and 624,000,000 impostor pairs, 4,000 mated and
156,000 non-mated probes. `docs/figures.md` writes the convention down.

The score of a pair is that of `verification.score_pairs`, to the last bit; counts are exact, and no matrix of scores is
stored (`coalface.evaluation.metrics.streaming`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.enrolled import templates
from coalface.evaluation.metrics.streaming import BLOCK, Pairs, order_statistics, scores_of
from coalface.evaluation.metrics.verification import TarAtFar, allowed, score_pairs, tar_at_far

OneToOne = Literal["paper", "official"]
"""Impostors of 1:1. `paper`: an image of the client with one of another client. `official`, as in the paper's public
code: these, and the pairs of the client's own images that show different identities."""
OneToMany = Literal["standard", "legacy"]
"""Which 1:N: the standard definition, or that of the paper's public code; see `judge_client`."""

FARS = (1e-6, 1e-5)
FPIRS = (1e-5, 1e-4)


@dataclass(frozen=True)
class TpirAtFpir:
    """The true positive identification rate where few who are not enrolled are taken for somebody who is."""

    fpir: float
    tpir: float
    """Fraction, 0 to 1, of the mated probes."""
    threshold: float
    """The lowest threshold that keeps to the allowance."""
    false_positives: int
    """Non-mated probes accepted; in `legacy`, pairs that are."""
    trials: int
    """Non-mated probes; in `legacy`, pairs of a probe and the template of another identity."""
    carried: bool
    """False where the allowance is 0: there are too few probes for this FPIR, and `tpir` is that at no accepts."""


@dataclass(frozen=True)
class Personalised:
    """What the two protocols say of one client's model."""

    one_to_one: OneToOne
    one_to_many: OneToMany
    tars: tuple[TarAtFar, ...]
    """Empty where no identity of the client has two test images: there is no genuine pair."""
    tpirs: tuple[TpirAtFpir, ...]
    genuine: int
    """Pairs of two test images of one identity of the client."""
    impostors: int
    mated: int
    """Probes that are the client's own test images."""
    non_mated: int

    def figures(self) -> dict[str, float]:
        """In percent, unrounded: `tar@far=1e-06 (paper)`, …, `tpir@fpir=1e-05 (standard)`, …, what is carried alone."""
        tars = {f"tar@far={tar.far:g} ({self.one_to_one})": 100 * tar.tar for tar in self.tars if tar.carried}
        found = {f"tpir@fpir={t.fpir:g} ({self.one_to_many})": 100 * t.tpir for t in self.tpirs if t.carried}
        return tars | found


@dataclass(frozen=True)
class OverClients:
    """The means over clients; each client counts alike."""

    means: dict[str, float]
    """Figure -> percent: the mean over the clients that carry it."""
    carried: dict[str, int]
    """Figure -> how many these are."""
    clients: int

    def figures(self) -> dict[str, float]:
        """The means, in percent, unrounded. A figure that no client carries is not there."""
        return dict(self.means)


def over_clients(judged: Sequence[Personalised]) -> OverClients:
    """The mean of every figure over the clients that carry it.

    Raises ValueError where there is no client, or where two were judged by different modes.
    """
    if not judged:
        raise ValueError("there is no client to take a mean over: judge one at least")
    if len(modes := sorted({(each.one_to_one, each.one_to_many) for each in judged})) > 1:
        raise ValueError(f"the clients were judged by different modes, {modes}: judge all of them by one")
    values: dict[str, list[float]] = {}
    for each in judged:
        for name, value in each.figures().items():
            values.setdefault(name, []).append(value)
    means = {name: math.fsum(found) / len(found) for name, found in values.items()}
    return OverClients(means, {name: len(found) for name, found in values.items()}, len(judged))


def gallery_of(
    features: NDArray[np.float32], identities: NDArray[np.int64], *, unit: bool = True
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(k, d) a client's gallery by the unit features (n, d) of its training images, and the k identities, ascending.

    A template is the mean of an identity's features, at length one. With `unit=False` it keeps the length of the mean,
    as in the paper's public code: scores then favour identities whose images lie close together.
    """
    names, labels = np.unique(identities, return_inverse=True)
    _check(features, identities, "training image")
    found = templates(features, labels, len(names))
    if not unit:
        found = np.stack([features[labels == label].mean(axis=0, dtype=np.float64) for label in range(len(names))])
    return found.astype(np.float32), names


def judge_client(
    features: NDArray[np.float32],
    identities: NDArray[np.int64],
    clients: NDArray[np.int64],
    client: int,
    gallery: NDArray[np.float32],
    gallery_identities: NDArray[np.int64],
    *,
    fars: Sequence[float] = FARS,
    fpirs: Sequence[float] = FPIRS,
    one_to_one: OneToOne = "paper",
    one_to_many: OneToMany = "standard",
    block: int = BLOCK,
) -> Personalised:
    """Judge one client's model on the test images of all clients.

    `features` (n, d) are the unit embeddings of all test images by this client's model (zeros stay zeros),
    `identities` (n,) whom they show, and `clients` (n,) whose they are. `gallery` (k, d) are the templates of the
    client's identities, by `gallery_of`, and `gallery_identities` (k,) name them. `block` alters time and memory alone.

    **1:1.** Genuine are all pairs of two test images of one identity of the client; for impostors see `OneToOne`. TAR
    at FAR is that of `verification.tar_at_far`: of N impostors at most ⌊FAR · N⌋ are accepted.

    **1:N.** Probes are all test images; the client's own are mated, the others' non-mated. With s the score of a probe
    and a template:

    - `standard`: a non-mated probe is a false positive iff its largest s reaches the threshold; of M non-mated probes
      at most ⌊FPIR · M⌋ are. A mated probe counts iff s with its own template reaches the threshold and is larger than
      s with every other: ties go against the probe.
    - `legacy`: the threshold lies just above the ⌈FPIR · n⌉-th largest s of all probes and templates of different
      identities, with n the number of probes, mated ones included. A mated probe counts iff s with its own template
      reaches it, whatever it has with others. So ⌈FPIR · n⌉ − 1 pairs are accepted, which is the allowance.

    Raises ValueError where shapes do not fit, embeddings are not of length one, an identity is at two clients, a
    client's identity has no template or another's has one, and where the client or the others have no test image.
    """
    own = _check_client(features, identities, clients, client, gallery, gallery_identities)
    for mode, known in ((one_to_one, OneToOne), (one_to_many, OneToMany)):
        if mode not in get_args(known):
            raise ValueError(f"there is no mode {mode!r}: choose {' or '.join(get_args(known))}")
    mine, others = np.flatnonzero(own), np.flatnonzero(~own)
    within = mine if one_to_one == "official" else None
    impostors = Pairs(features[mine], identities[mine], features, identities, others, within)
    genuine = _genuine_scores(features, identities, mine)
    tars = _tars(impostors, genuine, fars, block) if len(genuine) else []
    judge = _standard if one_to_many == "standard" else _legacy
    return Personalised(
        one_to_one=one_to_one,
        one_to_many=one_to_many,
        tars=tuple(tars),
        tpirs=tuple(judge(_Lookup(features, identities, own, gallery, gallery_identities), fpirs, block)),
        genuine=len(genuine),
        impostors=len(impostors),
        mated=len(mine),
        non_mated=len(others),
    )


# 1:1


def _genuine_scores(
    features: NDArray[np.float32], identities: NDArray[np.int64], mine: NDArray[np.int64]
) -> NDArray[np.float64]:
    found = []
    for identity in np.unique(identities[mine]):
        images = mine[identities[mine] == identity]
        left, right = np.triu_indices(len(images), 1)
        found.append(score_pairs(features, images[left], images[right]))
    return np.concatenate(found)


def _tars(pairs: Pairs, genuine: NDArray[np.float64], fars: Sequence[float], block: int) -> list[TarAtFar]:
    """What `tar_at_far` says of the genuine scores and those of all impostor pairs."""
    counts = [allowed(far, len(pairs)) for far in fars]
    return [
        TarAtFar(float(far), float((genuine >= threshold).mean()), threshold, accepted, len(pairs), count >= 1)
        for far, count, (threshold, accepted) in zip(
            fars, counts, _thresholds(pairs, counts, float(genuine.min()), block), strict=True
        )
    ]


def _thresholds(pairs: Pairs, counts: Sequence[int], lowest: float, block: int) -> list[tuple[float, int]]:
    """The lowest threshold that accepts at most so many of the pairs, for each count, and how many it accepts.

    Where all may be accepted it is the least score of all, `lowest` of the genuine ones included.
    """
    total, found = len(pairs), []
    statistics = order_statistics(pairs, [min(count + 1, total) for count in counts], block=block)
    for count, one in zip(counts, statistics, strict=True):
        everybody = (min(one.value, lowest), total)
        found.append(everybody if count >= total else (float(np.nextafter(one.value, np.inf)), one.above))
    return found


# 1:N


@dataclass(frozen=True, eq=False)
class _Lookup:
    """Probes and a gallery, as in `judge_client`."""

    features: NDArray[np.float32]
    identities: NDArray[np.int64]
    own: NDArray[np.bool_]
    """(n,) which probes are mated."""
    gallery: NDArray[np.float32]
    gallery_identities: NDArray[np.int64]

    def pairs(self) -> Pairs:
        """All templates and probes of different identities."""
        places = np.arange(len(self.features))
        return Pairs(self.gallery, self.gallery_identities, self.features, self.identities, places)

    def mate_scores(self) -> NDArray[np.float64]:
        """The score of each mated probe with its own template."""
        order = np.argsort(self.gallery_identities)
        place = order[np.searchsorted(self.gallery_identities[order], self.identities[self.own])]
        return scores_of(self.features, np.flatnonzero(self.own), self.gallery, place)

    def best_of_others(self, block: int) -> NDArray[np.float64]:
        """(n,) the largest score of each probe with a template of another identity; −inf where there is none.

        A float32 product tells which templates can be the best; the scores of these decide.
        """
        best, error = np.full(len(self.features), -np.inf), self.pairs().error
        for start in range(0, len(self.features), block):
            product = self.features[start : start + block] @ self.gallery.T
            mates = self.identities[start : start + block, None] == self.gallery_identities
            product[mates] = -np.inf
            bound = (product.max(axis=1).astype(np.float64) - 2 * error).astype(np.float32)
            near = (product >= np.nextafter(bound, np.float32(-np.inf))[:, None]) & ~mates
            probe, template = np.nonzero(near)
            np.maximum.at(best, probe + start, scores_of(self.features, probe + start, self.gallery, template))
        return best


def _standard(lookup: _Lookup, fpirs: Sequence[float], block: int) -> list[TpirAtFpir]:
    best, mate = lookup.best_of_others(block), lookup.mate_scores()
    first = mate > best[lookup.own]
    scores = np.concatenate([mate, best[~lookup.own]])
    found = tar_at_far(scores, np.arange(len(scores)) < len(mate), fpirs)
    return [
        TpirAtFpir(
            fpir=one.far,
            tpir=float((first & (mate >= one.threshold)).mean()),
            threshold=one.threshold,
            false_positives=one.false_accepts,
            trials=one.impostors,
            carried=one.carried,
        )
        for one in found
    ]


def _legacy(lookup: _Lookup, fpirs: Sequence[float], block: int) -> list[TpirAtFpir]:
    mate, pairs = lookup.mate_scores(), lookup.pairs()
    counts = [_allowed_by_legacy(fpir, len(lookup.own)) for fpir in fpirs]
    return [
        TpirAtFpir(float(fpir), float((mate >= threshold).mean()), threshold, accepted, len(pairs), count >= 1)
        for fpir, count, (threshold, accepted) in zip(
            fpirs, counts, _thresholds(pairs, counts, float(mate.min()), block), strict=True
        )
    ]


def _allowed_by_legacy(fpir: float, probes: int) -> int:
    allowed(fpir, probes)  # refuses what is no rate
    return math.ceil(Fraction(str(float(fpir))) * probes) - 1


# Helpers


def _check_client(
    features: NDArray[np.float32],
    identities: NDArray[np.int64],
    clients: NDArray[np.int64],
    client: int,
    gallery: NDArray[np.float32],
    gallery_identities: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """(n,) which test images are the client's own."""
    _check(features, identities, "test image")
    _check(gallery, gallery_identities, "template", least=0.0)
    if clients.shape != identities.shape or features.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"test images {features.shape}, clients {clients.shape} and gallery {gallery.shape} do not go together: "
            "give each test image its client, and all embeddings by one model"
        )
    own: NDArray[np.bool_] = clients == client
    if own.all() or not own.any():
        raise ValueError(
            f"client {client} has {int(own.sum()):,} of {len(own):,} test images: a client without any has nothing to "
            "be judged on, leave it out; one alone has nobody to be told from"
        )
    mine, theirs = np.unique(identities[own]), np.unique(identities[~own])
    if len(twice := np.intersect1d(mine, theirs)):
        raise ValueError(
            f"{len(twice)} identities of client {client} have test images at another client too, the first is "
            f"{twice[0]}: these would be impostors to themselves; judge clients with identities of their own"
        )
    if len(np.unique(gallery_identities)) < len(gallery_identities):
        raise ValueError("an identity has two templates in the gallery: give it one, the mean of its features")
    if len(lost := np.setdiff1d(mine, gallery_identities)):
        raise ValueError(
            f"{len(lost)} identities of client {client} with test images have no template in its gallery, the first is "
            f"{lost[0]}: add the mean of its training features, or leave its test images out"
        )
    if len(strange := np.intersect1d(theirs, gallery_identities)):
        raise ValueError(
            f"the gallery of client {client} has a template of identity {strange[0]}, which is another client's: a "
            "client registers its own identities alone"
        )
    return own


def _check(rows: NDArray[np.float32], identities: NDArray[np.int64], what: str, least: float = 1.0) -> None:
    """Raise ValueError unless there is a row, each of length one (`least` at least) or zero, with one identity each."""
    if rows.ndim != 2 or rows.dtype != np.float32 or identities.shape != rows.shape[:1]:
        raise ValueError(
            f"{what}s: {rows.dtype} {rows.shape} with identities {identities.shape} do not go together: "
            "give float32 (n, d), and one identity each"
        )
    if not len(rows):
        raise ValueError(f"there is no {what}: give one at least")
    squares = np.einsum("id,id->i", rows, rows)
    right = (squares >= least - 1e-3) & (squares <= 1 + 1e-3) | (squares == 0)
    if len(odd := np.flatnonzero(~right)):
        raise ValueError(
            f"{len(odd):,} of {len(rows):,} {what}s have embeddings that are not of length one, the first is number "
            f"{odd[0]:,}, of length {np.sqrt(squares[odd[0]]):g}: normalise them"
        )
