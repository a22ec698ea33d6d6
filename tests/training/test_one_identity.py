"""What clients of one identity share; the methods built on it are held against plain loops in tests/methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import naive
import numpy as np
import pytest
import torch
from torch import Tensor

from coalface.core.method import Party
from coalface.experiments.conformance.tiny_federation import Tiny
from coalface.training import one_identity
from coalface.training.fedfv import AgainstOthers
from coalface.training.local_work import Cursor, LocalTraining
from coalface.training.losses.base import OwnClassLoss
from coalface.training.losses.hinge import OnCodes, PositiveHinge
from coalface.training.one_identity import batches, first_centres, train_many, train_one

EXACT = Tiny(parties=4, one_identity=True, double=True)
"""Clients of 6, 5, 4 and 6 images, half of which are turned at random."""
ONE = LocalTraining(epochs=1, batch_size=8, lr=0.3, weight_decay=0.01)


def party(i: int, build: Tiny = EXACT, round_: int = 1, rounds: int = 9) -> Party:
    return naive.party(f"silo-{i}", build, round_, rounds)


def members(build: Tiny = EXACT, round_: int = 1) -> list[Party]:
    """All parties, who share one network as those of a process do."""
    first = party(0, build)
    return [replace(party(i, build, round_), backbone=first.backbone) for i in range(build.parties)]


def rows(k: int, d: int = 8, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((k, d)))


# --- the first class embeddings ---------------------------------------------------------------------------------------


def test_the_first_class_embedding_is_the_mean_of_unit_embeddings_at_length_one() -> None:
    """By a loop over images as they are, in a network that is not in training, whatever state it is found in."""
    build = replace(EXACT, norm=True)
    someone, theta = party(1, build), build().backbone.shared()
    theta = {n: t + 0.1 for n, t in theta.items()}
    someone.backbone.module.train()
    centre = first_centres([someone], theta, [torch.zeros(1, 8, dtype=torch.float64)])[0]
    net = build().backbone.module.eval()
    net.load_state_dict({**net.state_dict(), **theta})
    total = torch.zeros(8, dtype=torch.float64)
    for image in someone.compute.plain(someone.data):
        embedding = net(image[None])[0].detach()
        total += embedding / embedding.norm()
    assert torch.allclose(centre[0], total / total.norm(), atol=1e-14)


def test_only_who_has_none_gets_a_first_one_and_each_its_own() -> None:
    some, theta = members(), EXACT().backbone.shared()
    none, random_centre = torch.zeros(1, 8, dtype=torch.float64), rows(1)
    sent = [none, random_centre, none, none]
    centres_ = first_centres(some, theta, sent)
    assert centres_[1] is random_centre
    for place in (0, 2, 3):
        alone = first_centres([some[place]], theta, [none])[0]
        assert torch.allclose(centres_[place], alone, atol=1e-14)
        assert float(alone.norm()) == pytest.approx(1, abs=1e-14)
    assert not sent[0].any()  # what was sent stays as it is
    assert len({t.numpy().tobytes() for t in centres_}) == 4


# --- which images a round takes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "work",
    [
        LocalTraining(epochs=1, batch_size=2),
        LocalTraining(epochs=3, batch_size=2),
        LocalTraining(steps_per_round=3, batch_size=4),
        LocalTraining(steps_per_round=5, batch_size=1),
        LocalTraining(steps_per_round=3, batch_size=4, party_batch_size={"silo-1": 3, "silo-2": 1}),
    ],
    ids=str,
)
@pytest.mark.parametrize("client", [0, 1, 2])
def test_work_goes_on_where_the_round_stands(work: LocalTraining, client: int) -> None:
    """As with a cursor that is carried from round to round, though nothing is kept."""
    cursor = Cursor()
    for round_ in range(1, 10):
        someone = party(client, round_=round_)
        expected, cursor = work.batches(someone, cursor)
        batches_ = batches(someone, work)
        assert [b.tolist() for b in batches_] == [b.tolist() for b in expected]


# --- many parties as one batch ----------------------------------------------------------------------------------------


LOSSES: list[tuple[OwnClassLoss, dict[str, Any]]] = [
    (PositiveHinge(0.9), {}),
    (PositiveHinge(0.9), {"fixed": True}),
    (AgainstOthers(rows(5, seed=3), 4.0), {}),
    (OnCodes(), {"extra": {"projection": rows(8, 8, seed=4)}, "fixed": True}),
    (OnCodes(), {"extra": {"projection": rows(8, 8, seed=4)}}),
]


SEVERAL = replace(ONE, batch_size=3, momentum=0.5)
CASES = [(work, *case) for work in (ONE, replace(ONE, schedule="cosine", momentum=0.5)) for case in LOSSES]
CASES += [(SEVERAL, *case) for case in LOSSES[:-1]]  # codes that are trained are codes before the first step alone


@pytest.mark.parametrize(("work", "loss", "settings"), CASES)
def test_many_are_the_mean_of_each(loss: OwnClassLoss, settings: dict[str, Any], work: LocalTraining) -> None:
    """Σ n_i θ_i / Σ n_i, the same of what the loss trains beside, and each class embedding and loss its party's own.

    Images are turned as they would be at the party alone.
    """
    theta, codes = EXACT().backbone.shared(), isinstance(loss, OnCodes)
    centres = [rows(1, seed=s).sign() if codes else rows(1, seed=s) for s in range(4)]
    centres_before = [c.clone() for c in centres]
    together = train_many(members(round_=4), theta, centres, work, loss, **settings)
    backbone = {n: t.clone() for n, t in together.backbone.items()}
    each, ends = [], []
    for place in range(4):
        alone = party(place, round_=4)
        trained = train_one(alone, theta, centres[place], work, loss, **settings)
        each.append(trained)
        ends.append({n: t.clone() for n, t in alone.backbone.shared().items()})
    counts = [len(p.data) for p in members()]
    assert len(set(counts)) > 1
    share = [n / sum(counts) for n in counts]
    assert naive.furthest(backbone, naive.mean(share, ends)) < 1e-13
    assert naive.furthest(backbone, theta) > 1e-4
    if settings.get("extra"):
        assert naive.furthest(together.extra, naive.mean(share, [t.extra for t in each])) < 1e-13
        assert naive.furthest(together.extra, settings["extra"]) > 1e-4
    for centre, trained, before in zip(together.centres, each, centres_before, strict=True):
        assert (centre - trained.head).abs().max() < 1e-13
        assert bool((centre == before).all()) is bool(settings.get("fixed"))
    assert list(together.losses) == pytest.approx([t.loss for t in each], abs=1e-13)
    assert all(
        torch.equal(a, b) for a, b in zip(centres, centres_before, strict=True)
    )  # and what was sent stays as it is


# --- where they cannot be one batch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["one", "centres", "embeddings"])
def test_a_party_of_several_identities_is_refused_by_name(work: str) -> None:
    several, theta = naive.party("silo-1", Tiny()), Tiny()().backbone.shared()
    with pytest.raises(ValueError, match=r"silo-1 holds 2 identities.*set data.scenario=devices"):
        if work == "one":
            train_one(several, theta, torch.ones(1, 8), ONE, PositiveHinge())
        elif work == "centres":
            first_centres([several], theta, [torch.zeros(1, 8)])
        else:
            one_identity.embeddings_of(several, theta)
