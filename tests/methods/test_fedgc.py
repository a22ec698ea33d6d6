"""FedGC by a plain loop: local softmaxes, the mean of the backbones, and the corrected class embeddings."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import naive
import naive_clients as clients
import pytest
import torch
from cases import by_default
from naive_clients import heard_run, metrics

from coalface.core.method import Party, Tensors, step
from coalface.engine.faults import SimulatedFaults
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run
from coalface.methods.fedavg import FedAvg, Global
from coalface.methods.fedgc import Classes, FedGC, Update
from coalface.privacy.templates import TemplateNoise
from coalface.training.local_training import Learner
from coalface.training.local_work import LocalTraining
from coalface.training.losses.cross_client import Correction

WORK = LocalTraining(epochs=2, batch_size=4, lr=0.05, momentum=0.5, weight_decay=5e-3)
EXACT = Tiny(flip=False, double=True)
STRONG = Correction(scale=4.0, step=0.2)
"""So soft that classes of any cosine push each other."""


def corrected(classes: Tensors, settings: Correction) -> Tensors:
    """W ← normalise(W − λ ∇Reg(W)), by torch's gradients of the double sum."""
    owners = [client for client in sorted(classes) for _ in classes[client]]
    rows = torch.cat([classes[client] for client in sorted(classes)])
    rows = (rows / rows.norm(dim=1, keepdim=True)).requires_grad_()
    fixed, total = rows.detach(), torch.zeros((), dtype=torch.float64)
    for i, owner in enumerate(owners):
        own = torch.exp(settings.scale * fixed[i] @ rows[i])
        foreign = [torch.exp(settings.scale * fixed[i] @ rows[j]) for j, o in enumerate(owners) if o != owner]
        total = total - torch.log(own / (own + sum(foreign)))
    (slopes,) = torch.autograd.grad(total, rows)
    moved = fixed - settings.step * slopes
    moved = moved / moved.norm(dim=1, keepdim=True)
    return dict(zip(sorted(classes), moved.split([len(classes[c]) for c in sorted(classes)]), strict=True))


@pytest.mark.parametrize(
    ("settings", "build", "rules"),
    by_default(
        2,
        [
            ({}, EXACT, {}),
            ({"sample": 2, "rounds": 5}, replace(EXACT, norm=True), {}),
            ({"head_momentum": "keep"}, EXACT, {}),
            ({"rounds": 6}, EXACT, {"faults": SimulatedFaults(dropout=0.4, lost=0.3), "min_reply_fraction": 0.3}),
        ],
    ),
)
def test_the_rounds_are_those_of_a_plain_loop(
    settings: dict[str, Any], build: Tiny, rules: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FedGC(**{"rounds": 3, "local": WORK, "loss": LOSS, "correction": STRONG} | settings)
    states = naive.watched(FedGC, monkeypatch)
    _, heard = heard_run(method, tmp_path, build, **rules)
    lines, silos = metrics(tmp_path), {silo.name: silo for silo in naive.silos(build, WORK)}
    theta, classes = build().backbone.shared(), dict[str, torch.Tensor]()
    for line, state, came in zip(lines, states, clients.counted(heard, "train", lines), strict=True):
        for h in heard:
            if h.request.round == line["round"]:  # to each its own, and to nobody those of another
                sent = classes.get(h.request.party, torch.zeros(0, 8, dtype=torch.float64))
                assert (
                    naive.furthest({"w": h.each.classes}, {"w": sent}) < 1e-10
                    if len(sent)
                    else not h.each.classes.numel()
                )
        ends = []
        for name in came:
            silo, y, velocity = silos[name], dict(theta), naive.zeros(build)
            silo.head = classes.get(name, silo.head)
            if method.head_momentum is None:
                silo.head_velocity = torch.zeros_like(silo.head)
            for pixels, labels in silo.batches():
                g, h_, running = silo.gradients(y, silo.head, pixels, labels)
                for n in g:
                    velocity[n] = WORK.momentum * velocity[n] + g[n] + WORK.weight_decay * y[n]
                    y[n] = y[n] - WORK.lr * velocity[n]
                y.update(running)
                silo.step_head(h_, WORK.lr)
            ends.append(y)
        total = sum(silos[name].images for name in came)
        theta = naive.mean([silos[name].images / total for name in came], ends)
        before = classes | {name: silos[name].head for name in came}
        classes = corrected(before, STRONG)
        assert (
            len(classes) == 1
            or naive.furthest(classes, {n: w / w.norm(dim=1, keepdim=True) for n, w in before.items()}) > 1e-3
        )
        assert naive.furthest(state.backbone, theta) < 1e-10 and naive.furthest(state.classes, classes) < 1e-10
    assert len(classes) == 3 and naive.furthest(theta, build().backbone.shared()) > 1e-3


@pytest.mark.parametrize("momentum", by_default(1, ["reset", "keep"]))
def test_of_one_client_it_is_fedavg_whose_class_embeddings_are_brought_to_length_one(
    momentum: Literal["reset", "keep"], tmp_path: Path
) -> None:
    """No foreign class, nothing to correct: in the first round the same bits, and then the loss at other lengths."""
    build, settings = replace(EXACT, parties=1), {"rounds": 1, "local": WORK, "loss": LOSS, "momentum": momentum}
    corrected_run = run(FedGC(**settings), tmp_path / "fedgc", build)
    assert (
        naive.furthest(corrected_run.state.backbone, run(FedAvg(**settings), tmp_path / "plain", build).state.backbone)
        == 0
    )
    head = naive.kept(tmp_path / "fedgc", "silo-0", Learner).head
    (sent,) = corrected_run.state.classes.values()
    torch.testing.assert_close(sent, head / head.norm(dim=1, keepdim=True), rtol=0, atol=1e-15)
    assert [line["correction"] for line in metrics(tmp_path / "fedgc")] == [0.0]


def test_with_one_identity_a_client_the_server_alone_moves_anything(tmp_path: Path) -> None:
    """A softmax over one class has no gradient: the classes are spread, no image is looked at, nothing is learned."""
    build = replace(clients.EXACT, parties=7)
    method = FedGC(rounds=4, local=replace(WORK, weight_decay=0.0), loss=LOSS, correction=STRONG)
    ran = run(method, tmp_path, build)
    assert naive.furthest(ran.state.backbone, build().backbone.shared()) == 0
    lines = metrics(tmp_path)
    assert {line["loss"] for line in lines} == {0.0}
    assert lines[-1]["correction"] < lines[0]["correction"] and lines[-1]["cosine"] < lines[0]["cosine"]


def test_class_embeddings_can_leave_with_noise(tmp_path: Path) -> None:
    """They are templates, so `privacy.templates` acts on them, and on nothing else."""
    noise = TemplateNoise(noise_multiplier=0.5)
    ran = run(FedGC(rounds=2, local=WORK, loss=LOSS), tmp_path, EXACT, templates=noise)
    lines = [json.loads(line) for line in (tmp_path / "ledger" / "silo-0.jsonl").read_text().splitlines()]
    assert {(line["name"] == "classes", line["protection"]) for line in lines} == {
        (True, noise.protection), (False, "none"),
    }  # fmt: skip
    assert all(w.norm(dim=1).sub(1).abs().max() < 1e-9 for w in ran.state.classes.values())


@dataclass(frozen=True, kw_only=True)
class Odd(FedGC):
    """One client sends class embeddings of another shape in the second round."""

    what: str = "rows"

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global, each: Classes) -> tuple[Update, Learner]:
        reply, learner = FedGC.train(self, party, own, common, each)
        w = reply.classes
        odd = {"rows": torch.cat([w, w[:1]]), "zeros": w * torch.tensor([[1.0], [0.0]]).to(w), "none": w[:0]}
        return replace(reply, classes=odd[self.what]) if (party.name, party.round) == ("silo-2", 2) else reply, learner


@pytest.mark.parametrize("what", by_default(1, ["rows", "zeros", "none"]))
def test_what_does_not_fit_leaves_the_class_embeddings_before_it(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = naive.watched(Odd, monkeypatch)
    still = Correction(step=0.0)
    _, heard = heard_run(Odd(rounds=3, local=WORK, loss=LOSS, correction=still, what=what), tmp_path, EXACT)
    before, after, next_ = (state.classes["silo-2"] for state in states)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-15)
    assert (next_ - after).abs().max() > 1e-3
    assert sum(h.request.party == "silo-2" and not len(h.each.classes) for h in heard) == 1  # before its first reply
