from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import naive
import naive_clients as clients
import pytest
import torch
from cases import by_default
from naive_clients import EXACT, STEPS, WHOLE, along_cosine, heard_run
from torch import Tensor

from coalface.core import codec
from coalface.core.method import Party, Tensors, generator, step
from coalface.engine.faults import SimulatedFaults
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.methods.fedface import PRESETS, Centre, FedFace, Global, Update
from coalface.training.losses.spreadout import Spreading

TROUBLED = SimulatedFaults(dropout=0.2, lost=0.2)


def hinge(embeddings: Tensor, trained: Tensors) -> tuple[list[float], Tensor, Tensors]:
    """(7) by hand: max(0, m − cos)² of each image, and the slopes of their mean."""
    n, losses, by_embeddings, by_w = len(embeddings), [], torch.zeros_like(embeddings), torch.zeros_like(trained["w"])
    for j, embedding in enumerate(embeddings):
        cosine, by_one, by_other = along_cosine(embedding, trained["w"][0])
        gap = max(0.0, 0.9 - cosine)
        losses.append(gap**2)
        by_embeddings[j] = -2 * gap / n * by_one
        by_w[0] += -2 * gap / n * by_other
    return losses, by_embeddings, {"w": by_w}


def still(embeddings: Tensor, trained: Tensors) -> tuple[list[float], Tensor, Tensors]:
    """The same with a class embedding that stays as it is."""
    return *hinge(embeddings, trained)[:2], {}


def spread(centres: Tensors, settings: Spreading, top_k: int | None = None) -> Tensors:
    """(9) by the double loop over ordered pairs, as many steps as the settings say, each ending at length one."""
    names = sorted(centres)
    w = {c: centres[c][0] / centres[c].norm() for c in names}
    moved = {c: torch.zeros_like(w[c]) for c in names}
    for _ in range(settings.steps):
        slope, terms = {c: torch.zeros_like(w[c]) for c in names}, 0
        for client in names:
            nearest = sorted((c for c in names if c != client), key=lambda c: -float(w[client] @ w[c]))  # noqa: B023
            for neighbour in nearest[:top_k]:
                terms += 1
                gap = max(0.0, settings.margin - (1 - float(w[client] @ w[neighbour])))
                slope[client] += 2 * gap * w[neighbour]
                slope[neighbour] += 2 * gap * w[client]
        for c in names:
            if settings.reduce == "mean":
                slope[c] /= terms
            if settings.tangent:
                slope[c] -= (slope[c] @ w[c]) * w[c]
            moved[c] = settings.momentum * moved[c] + slope[c]
        w = {c: w[c] - settings.step * moved[c] for c in names}
        w = {c: w[c] / w[c].norm() for c in names}
    return {c: w[c][None] for c in names}


def drawn(build: Tiny) -> Tensors:
    """The directions that the server draws from its stream `class embeddings` as the stage begins."""
    names = sorted(build().data)
    rows = generator(0, "server", "train", 0, "class embeddings").standard_normal((len(names), 8))
    return {name: torch.tensor(row / (row**2).sum() ** 0.5)[None] for name, row in zip(names, rows, strict=True)}


def agree(method: FedFace, folder: Path, monkeypatch: pytest.MonkeyPatch, build: Tiny, **rules: Any) -> set[str]:
    """Hold every round of a run against the plain loop; returns what came to pass on the way."""
    settings = method.spreading or method.presets[method.preset]
    states = naive.watched(type(method), monkeypatch)
    _, heard = heard_run(method, folder, build, **rules)
    theta, centres, branches = (
        build().backbone.shared(),
        drawn(build) if method.head_init == "random" else {},
        set[str](),
    )
    lines, members = clients.metrics(folder), clients.clients(build, method.local)
    for line, state, came in zip(lines, states, clients.counted(heard, "train", lines), strict=True):
        lr = method.local.lr_at(line["round"], method.rounds)
        ends, losses = {}, 0.0
        for name in came:
            client = members[name]
            if name not in centres:
                branches.add("started in the first round" if line["round"] == 1 else "started later")
            start = centres[name] if name in centres else client.mean_feature(theta)
            end, end_leaves = client.train(line["round"], theta, {"w": start}, still if method.fixed else hinge, lr)
            ends[name] = end, end_leaves["w"]
            losses += client.images * client.loss
        total = sum(members[name].images for name in came)
        theta = naive.mean([members[name].images / total for name in came], [ends[name][0] for name in came])
        centres = centres | {name: w / w.norm() for name, (_, w) in ends.items()}
        top_k = getattr(method, "top_k", None)
        after = spread(centres, settings, top_k) if method.spreadout else centres
        if naive.furthest(after, centres) > 1e-3:
            branches.add("spread")
        centres = after
        assert naive.furthest(state.backbone, theta) < 1e-12
        assert naive.furthest(state.centres, centres) < 1e-12
        assert line["loss"] == pytest.approx(losses / total, abs=1e-12)
        branches |= {"failed"} if line["failed"] else set()
    assert naive.furthest(theta, build().backbone.shared()) > 1e-3
    return branches


@pytest.mark.parametrize(
    ("settings", "build", "rules", "sees"),
    by_default(
        4,
        [
            ({}, EXACT, {}, {"started in the first round", "spread"}),
            ({"local": STEPS}, replace(EXACT, norm=True), {}, {"started in the first round", "spread"}),
            ({"spreadout": False}, EXACT, {}, {"started in the first round"}),
            ({"preset": "official"}, EXACT, {}, {"started in the first round", "spread"}),
            ({"head_init": "random", "fixed": True}, EXACT, {}, {"spread"}),
            ({"spreading": Spreading(margin=1.1, step=0.05)}, EXACT, {}, {"started in the first round", "spread"}),
            ({"sample": 3, "rounds": 3}, EXACT, {}, {"started in the first round", "started later", "spread"}),
            (
                {"rounds": 3},
                EXACT,
                {"faults": TROUBLED, "min_reply_fraction": 0.3},
                {"started in the first round", "started later", "spread", "failed"},
            ),
        ],
    ),
)
def test_it_is_algorithm_1_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, build: Tiny, rules: Any, sees: set[str]
) -> None:
    """A client without a class embedding starts from its mean feature by the θ of that round, whenever that is."""
    method = FedFace(**{"rounds": 2, "local": WHOLE} | settings)
    assert agree(method, tmp_path, monkeypatch, build, **rules) == sees


def test_the_constants_of_the_presets() -> None:
    """The text's (v from its authors' code), and those of the code: ten steps of the mean, by momentum, at lengths."""
    paper, official = PRESETS["paper"], PRESETS["official"]
    assert (paper.margin, paper.step, paper.steps, paper.momentum, paper.reduce) == (0.7, 0.01, 1, 0.0, "sum")
    assert (official.margin, official.steps, official.momentum, official.reduce) == (0.7, 10, 0.9, "mean")
    assert FedFace().target_cosine == 0.9
    assert FedFace().rounds == 200
    assert FedFace().sample is None
    assert FedFace().preset == "paper"


def test_the_servers_step_is_of_no_learning_rate(tmp_path: Path) -> None:
    """With fixed class embeddings the server alone moves them: the same at ten times the clients' rate."""
    common: dict[str, Any] = {"rounds": 3, "head_init": "random", "fixed": True}
    slow, fast = (FedFace(local=replace(WHOLE, lr=lr), **common) for lr in (0.05, 0.5))
    slow_state, fast_state = run(slow, tmp_path / "slow", EXACT).state, run(fast, tmp_path / "fast", EXACT).state
    assert naive.furthest(slow_state.centres, drawn(EXACT)) > 0.01
    assert naive.furthest(fast_state.centres, slow_state.centres) < 1e-15
    assert naive.furthest(fast_state.backbone, slow_state.backbone) > 0.01


def test_nobody_is_sent_the_class_embedding_of_another(tmp_path: Path) -> None:
    _, heard = heard_run(FedFace(rounds=3, local=WHOLE), tmp_path)
    rows = {(h.request.round, h.request.party): h.each.centre for h in heard}
    assert all(not w.any() for (round_, _), w in rows.items() if round_ == 1)
    later = {key: w for key, w in rows.items() if key[0] > 1}
    assert all(float(w.norm()) == pytest.approx(1, abs=1e-12) for w in later.values())
    assert len({w.numpy().tobytes() for w in later.values()}) == len(later) == 14
    assert {name for h in heard for name in vars(h.common)} == {"backbone"}
    replies = [codec.decode(bytearray(h.data), Update) for h in heard]
    assert all(float(reply.centre.norm()) == pytest.approx(1, abs=1e-12) for reply in replies)


@dataclass(frozen=True, kw_only=True)
class Blank(FedFace):
    """One client sends a class embedding of zeros in some rounds, as one whose images have no mean direction does."""

    blank: tuple[int, ...] = ()

    @step(role="trainer")
    def train(self, party: Party, common: Global, each: Centre) -> Update:
        reply: Update = FedFace.train(self, party, common, each)
        return replace(reply, centre=torch.zeros(1, 8)) if party.name == "silo-2" and self.none(party) else reply

    def none(self, party: Party) -> bool:
        return party.round in self.blank


def test_a_class_embedding_of_zeros_leaves_the_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = replace(EXACT, double=False)
    states = naive.watched(Blank, monkeypatch)
    method = Blank(rounds=4, local=WHOLE, spreadout=False, blank=(1, 2, 4))
    _, heard = heard_run(method, tmp_path, build)
    sent = {h.request.round: h.each.centre for h in heard if h.request.party == "silo-2"}
    assert [bool(sent[r].any()) for r in (1, 2, 3, 4)] == [False, False, False, True]  # it has none, and so it is told
    assert ["silo-2" in s.centres for s in states] == [False, False, True, True]
    assert torch.allclose(states[3].centres["silo-2"], states[2].centres["silo-2"], atol=1e-7)
    assert all(len(s.centres) == 7 - (place < 2) for place, s in enumerate(states))
