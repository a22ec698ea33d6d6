"""The personalised protocols: how well a client's own model serves the client's own identities.

FedFR (C.-T. Liu et al. 2022), "Evaluation Metrics": every client's model embeds the test images of all clients, and is
evaluated by 1:1 verification and 1:N identification; the figures are means over the clients. With C clients of 100
identities of 40 test images each, C = 40, one client has 78,000 genuine and 624,000,000 impostor pairs, 4,000 mated and
156,000 non-mated probes. `docs/figures.md` writes the convention down.

Scores are T of `exact`; counts are exact, and no matrix of scores is stored.
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
from coalface.evaluation.metrics.exact import BLOCK, Floats, Places, check_unit, exactly, scan
from coalface.evaluation.metrics.figure import Figure
from coalface.evaluation.metrics.open_set import TpirAtFpir, tpirs_at
from coalface.evaluation.metrics.verification import (
    TAR,
    TarAtFar,
    allowed,
    genuine_pairs,
    ranks_asked,
    tars_of_ranked,
)

OneToOne = Literal["paper", "official"]
"""Impostors of 1:1. `paper`: an image of the client with one of another client. `official`, as in the paper's public
code: these, and the pairs of the client's own images that show different identities."""
OneToMany = Literal["standard", "legacy", "official"]
"""Which 1:N: the standard definition, the threshold and the match of the paper's public code, or these with its
templates too; see `evaluate_client`."""

TPIR = Figure("tpir@fpir=", "TPIR at FPIR ")
FIGURES = (TPIR,)

FARS = (1e-6, 1e-5)
FPIRS = (1e-5, 1e-4)


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
        tars = {f"{TAR.at(tar.far)} ({self.one_to_one})": 100 * tar.tar for tar in self.tars if tar.carried}
        tpirs = {f"{TPIR.at(t.fpir)} ({self.one_to_many})": 100 * t.tpir for t in self.tpirs if t.carried}
        return tars | tpirs


def over_clients(evaluated: Sequence[Personalised]) -> tuple[dict[str, float], dict[str, int]]:
    """The mean of every figure over the clients that carry it, each alike, in percent; and how many these are.

    Raises ValueError where there is no client, or where two were evaluated by different modes.
    """
    if not evaluated:
        raise ValueError("there is no client to take a mean over: evaluate one at least")
    if len(modes := sorted({(client.one_to_one, client.one_to_many) for client in evaluated})) > 1:
        raise ValueError(f"the clients were evaluated by different modes, {modes}: evaluate all of them by one")
    values: dict[str, list[float]] = {}
    for client in evaluated:
        for name, value in client.figures().items():
            values.setdefault(name, []).append(value)
    means = {name: math.fsum(of_clients) / len(of_clients) for name, of_clients in values.items()}
    return means, {name: len(of_clients) for name, of_clients in values.items()}


def gallery_of(features: Floats, identities: Places, *, unit: bool = True) -> tuple[Floats, Places]:
    """(k, d) a client's gallery by the unit features (n, d) of its training images, and the k identities, ascending.

    A template is the mean of an identity's features, at length one, or as long as it is where `unit` is False.
    """
    check_unit(features, "training image", identities)
    names, labels = np.unique(identities, return_inverse=True)
    return templates(features, labels, len(names), unit=unit).astype(np.float32), names


def evaluate_client(
    features: Floats,
    identities: Places,
    clients: Places,
    client: int,
    gallery: Floats,
    gallery_identities: Places,
    *,
    fars: Sequence[float] = FARS,
    fpirs: Sequence[float] = FPIRS,
    one_to_one: OneToOne = "paper",
    one_to_many: OneToMany = "standard",
    block: tuple[int, int] = BLOCK,
) -> Personalised:
    """Evaluate one client's model on the test images of all clients.

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
    - `official`: as `legacy`, and templates may be shorter than one: `gallery_of(…, unit=False)`.

    Raises ValueError where shapes do not fit, embeddings are not of length one, an identity is at two clients, a
    client's identity has no template or another's has one, and where the client or the others have no test image.
    """
    unit = one_to_many != "official"
    is_own = _check_client(features, identities, clients, client, gallery, gallery_identities, unit=unit)
    for mode, modes in ((one_to_one, OneToOne), (one_to_many, OneToMany)):
        if mode not in get_args(modes):
            raise ValueError(f"there is no mode {mode!r}: choose {' or '.join(get_args(modes))}")
    own_images, other_images = np.flatnonzero(is_own), np.flatnonzero(~is_own)
    left, right = genuine_pairs(identities[own_images])
    genuine = exactly(features, own_images[left], features, own_images[right])
    impostors = len(own_images) * len(other_images)
    if one_to_one == "official":
        impostors += len(own_images) * (len(own_images) - 1) // 2 - len(genuine)
    tars: list[TarAtFar] = []
    if len(genuine):
        ranks = ranks_asked(fars, impostors)
        paper = one_to_one == "paper"
        columns = other_images if paper else np.concatenate([other_images, own_images])
        turn = np.append(np.full(len(other_images), len(own_images)), np.arange(len(own_images)))

        def counted_not(rows: slice, at: slice) -> NDArray[np.bool_]:
            one_person = identities[own_images[rows], None] == identities[columns[at]]
            # A pair of the client's own images counts once.
            twice = turn[at] <= np.arange(rows.start, rows.stop)[:, None]
            return one_person | twice

        excluded = None if paper else counted_not
        ranked = scan(
            features[own_images], features, ranks=ranks, places=columns, excluded=excluded, block=block
        ).ranked
        tars = tars_of_ranked(ranked, impostors, genuine, fars)
    order = np.argsort(gallery_identities)
    own_templates = order[np.searchsorted(gallery_identities[order], identities[own_images])]
    mate = exactly(features, own_images, gallery, own_templates)

    def mates(rows: slice, columns: slice) -> NDArray[np.bool_]:
        return identities[rows, None] == gallery_identities[columns]

    if one_to_many == "standard":
        rival = scan(features, gallery, nearest=True, excluded=mates, block=block).nearest
        tpirs = tpirs_at(fpirs, mate, mate > rival[is_own], rival[~is_own])
    else:
        trials = len(features) * len(gallery) - len(own_images)
        counts = [_allowed_by_legacy(fpir, len(features)) for fpir in fpirs]
        ranks = [min(1 + count, trials) for count in counts]
        ranked = scan(features, gallery, ranks=ranks, excluded=mates, block=block).ranked
        tpirs = []
        for fpir, count, best_rejected in zip(fpirs, counts, ranked, strict=True):
            threshold, wrong = best_rejected.allowing(count, trials, mate)
            tpir = float((mate >= threshold).mean())
            tpirs.append(TpirAtFpir(float(fpir), tpir, threshold, wrong, trials, carried=count >= 1))
    return Personalised(
        one_to_one=one_to_one,
        one_to_many=one_to_many,
        tars=tuple(tars),
        tpirs=tuple(tpirs),
        genuine=len(genuine),
        impostors=impostors,
        mated=len(own_images),
        non_mated=len(other_images),
    )


def _allowed_by_legacy(fpir: float, probes: int) -> int:
    allowed(fpir, probes)  # refuses what is no rate
    return math.ceil(Fraction(str(float(fpir))) * probes) - 1


def _check_client(
    features: Floats,
    identities: Places,
    clients: Places,
    client: int,
    gallery: Floats,
    gallery_identities: Places,
    *,
    unit: bool,
) -> NDArray[np.bool_]:
    """(n,) which test images are the client's own."""
    check_unit(features, "test image", identities)
    check_unit(gallery, "template", gallery_identities, shorter=not unit)
    if clients.shape != identities.shape or features.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"test images {features.shape}, clients {clients.shape} and gallery {gallery.shape} do not go together: "
            "give each test image its client, and all embeddings by one model"
        )
    is_own: NDArray[np.bool_] = clients == client
    if is_own.all() or not is_own.any():
        raise ValueError(
            f"client {client} has {int(is_own.sum()):,} of {len(is_own):,} test images: give some, and of others"
        )
    own_people, other_people = np.unique(identities[is_own]), np.unique(identities[~is_own])
    for people, reason in (
        (np.intersect1d(own_people, other_people), "have test images at another client too"),
        (np.setdiff1d(own_people, gallery_identities), "have no template in its gallery"),
    ):
        if len(people):
            raise ValueError(f"{len(people)} identities of client {client} {reason}, the first is {people[0]}")
    if len(np.unique(gallery_identities)) < len(gallery_identities):
        raise ValueError("an identity has two templates in the gallery: give it one, the mean of its features")
    if len(strange := np.intersect1d(other_people, gallery_identities)):
        raise ValueError(f"the gallery of client {client} has a template of identity {strange[0]}, another client's")
    return is_own
