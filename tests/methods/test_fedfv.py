from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import naive
import naive_clients as clients
import pytest
import torch
from cases import by_default
from naive_clients import EXACT, STEPS, WHOLE, Heard, Slopes, along_cosine, heard_run
from torch import Tensor

from coalface.core.method import Tensors, generator
from coalface.engine.faults import SimulatedFaults
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.experiments.plan import on_paper
from coalface.methods import fedfv
from coalface.methods.fedfv import FedFV
from coalface.training.fedfv import draw_subsets


def softmax_against(negatives: list[Tensor], scale: float) -> Slopes:
    """(2) by hand: −log p_0 over the cosines to [w ; W̃], and the slopes of the mean: none by W̃."""

    def slopes(embeddings: Tensor, leaves: Tensors) -> tuple[list[float], Tensor, Tensors]:
        n, losses, by_embeddings, by_w = (
            len(embeddings),
            [],
            torch.zeros_like(embeddings),
            torch.zeros_like(leaves["w"]),
        )
        for j, embedding in enumerate(embeddings):
            cosines = [along_cosine(embedding, row) for row in (leaves["w"][0], *negatives)]
            powers = [math.exp(scale * cosine) for cosine, _, _ in cosines]
            shares = [power / sum(powers) for power in powers]
            losses.append(-math.log(shares[0]))
            for place, (share, (_, by_one, by_other)) in enumerate(zip(shares, cosines, strict=True)):
                pull = scale * (share - (place == 0)) / n
                by_embeddings[j] += pull * by_one
                if place == 0:
                    by_w[0] += pull * by_other
        return losses, by_embeddings, {"w": by_w}

    return slopes


def fused(unselected: list[Tensor], method: FedFV, round_: int) -> list[Tensor]:
    """Lines 6 to 10: the normalised means of those that the server draws from its stream `fuse`."""
    rng = generator(0, "server", "train", round_, "fuse")
    fused_rows = []
    for subset in draw_subsets(len(unselected), method.equivalents, method.fused, rng):
        total = sum((unselected[i][0] / unselected[i].norm() for i in subset), torch.zeros(8, dtype=torch.float64))
        fused_rows.append(total / total.norm())
    return fused_rows


@pytest.mark.parametrize(
    ("settings", "build", "rules"),
    by_default(
        2,
        [
            ({}, EXACT, {}),
            ({"fused": 3, "scale": 5.0, "local": STEPS}, replace(EXACT, norm=True), {}),
            ({"equivalents": 1, "sample": 5}, EXACT, {}),
            (
                {"fused": 3, "sample": 4, "rounds": 4},
                EXACT,
                {"faults": SimulatedFaults(dropout=0.2, lost=0.3), "min_reply_fraction": 0.2},
            ),
        ],
    ),
)
def test_it_is_algorithm_2_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, build: Tiny, rules: Any
) -> None:
    """With W̃ of all that were not selected, also where a selected one fails; and it has no part in training."""
    method = FedFV(**{"rounds": 3, "local": WHOLE, "sample": 3, "equivalents": 6} | settings)
    states = naive.watched(FedFV, monkeypatch)
    _, heard = heard_run(method, tmp_path, build, **rules)
    everyone = sorted(build().data)
    rows = generator(0, "server", "train", 0, "class embeddings").standard_normal((7, 8))
    centres = {c: torch.tensor(row / (row**2).sum() ** 0.5)[None] for c, row in zip(everyone, rows, strict=True)}
    theta, lines, members = build().backbone.shared(), clients.metrics(tmp_path), clients.clients(build, method.local)
    for line, state, came in zip(lines, states, clients.counted(heard, "train", lines), strict=True):
        rng = generator(0, "server", "train", line["round"])
        chosen = {everyone[i] for i in rng.choice(7, size=method.sample, replace=False)}
        assert set(came) == chosen - set(line["failed"])
        equivalents = fused([centres[c] for c in everyone if c not in chosen], method, line["round"])
        slopes = softmax_against(equivalents, method.scale)
        ends = {c: members[c].train(line["round"], theta, {"w": centres[c]}, slopes, method.local.lr) for c in came}
        total = sum(members[c].images for c in came)
        theta = naive.mean([members[c].images / total for c in came], [ends[c][0] for c in came])
        centres |= {c: leaves["w"] / leaves["w"].norm() for c, (_, leaves) in ends.items()}
        assert naive.furthest(state.backbone, theta) < 1e-12
        assert naive.furthest(state.centres, centres) < 1e-12
        loss = sum(members[c].images * members[c].loss for c in came) / total
        assert line["loss"] == pytest.approx(loss, abs=1e-12)
    assert any(line["failed"] for line in lines) == bool(rules)
    assert naive.furthest(theta, build().backbone.shared()) > 1e-3


def by_round(heard: list[Heard]) -> dict[int, list[Heard]]:
    return {r: [h for h in heard if h.request.round == r] for r in sorted({h.request.round for h in heard})}


def test_the_others_are_fused_from_those_that_are_not_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class embedding of a selected client can be anything: the others that are sent are the same bytes."""
    plain, turned = fedfv.first_directions, ""

    def start(fed: Any) -> Tensors:
        return {c: -w.flip(1) if c == turned else w for c, w in plain(fed).items()}

    monkeypatch.setattr(fedfv, "first_directions", start)
    method, sent = FedFV(rounds=1, local=WHOLE, sample=4, equivalents=12), {}
    for turned in ("", *sorted(EXACT().data)):  # noqa: B007 - `start` reads it
        _, heard = heard_run(method, tmp_path / f"all{turned}")
        sent[turned] = heard[0].common.others
    selected = {h.request.party for h in heard}
    unchanged = {c for c, others in sent.items() if c and torch.equal(others, sent[""])}
    assert unchanged == selected
    assert len(selected) == 4


def test_what_is_fused_follows_from_a_secret_where_the_server_has_one(tmp_path: Path) -> None:
    """Who is asked follows from the seed, as in a simulation."""
    method, sent, asked = FedFV(rounds=1, local=WHOLE, sample=3, equivalents=6), {}, {}
    for name, secret in {"seed": None, "one": b"a" * 32, "again": b"a" * 32, "other": b"b" * 32}.items():
        _, heard = heard_run(method, tmp_path / name, secret=secret)
        sent[name], asked[name] = heard[0].common.others, [h.request.party for h in heard]
    assert torch.equal(sent["one"], sent["again"])
    assert not any(torch.equal(sent[a], sent[b]) for a, b in (("seed", "one"), ("one", "other"), ("seed", "other")))
    assert len({tuple(names) for names in asked.values()}) == 1


@pytest.mark.parametrize(("settings", "left"), [({"sample": 6}, 1), ({"sample": 7}, 0), ({"sample": 5, "fused": 3}, 2)])
def test_too_few_that_are_not_selected_is_an_error_before_anybody_trains(
    tmp_path: Path, settings: Any, left: int
) -> None:
    method = FedFV(rounds=1, local=WHOLE, equivalents=3, **settings)
    says = f"not selected: {left}, .* fuses {method.fused}"
    with pytest.raises(ValueError, match=says):
        run(method, tmp_path, EXACT)
    assert not (tmp_path / "parties").exists()
    assert not (tmp_path / "ledger").exists()
    with pytest.raises(ValueError, match=says):  # and so it is on paper, before a folder is made
        on_paper.plan(method, {"trainer": sorted(EXACT().data)}, EXACT().backbone)
