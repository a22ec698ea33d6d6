"""FedFR for domain adaptation against its three stages as a plain loop, and its domain constraint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import torch
from cases import by_default
from naive_unlabelled import LR, TAU, WORLD, Client, made

from coalface.core.method import Tensors
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.methods import fedfr_uda
from coalface.methods.fedfr_uda import Own
from coalface.training.local_work import Cursor


@dataclass
class Loop:
    """The method from its paper."""

    build: Tiny
    pretrain: int = 2
    rounds: int = 4
    constraint: float = 0.5
    weights: str = "equal"
    source: bool = True
    relabel: int = 0
    clients: dict[str, Client] = field(default_factory=dict)

    def __call__(self) -> Tensors:
        self.clients = {name: Client(name, self.build) for name in ("silo-0", "silo-1", "silo-2")}
        source, *targets = self.clients.values()
        w = {n: t.double() for n, t in self.build().backbone.shared().items()}
        drawn = source.party.stream("pretrain", "head").standard_normal((2, 8), dtype=np.float32)
        source.head = (torch.from_numpy(drawn) * 0.01).double()
        for t in range(self.pretrain):
            w = source.train("pretrain", w, LR * (1 + math.cos(math.pi * t / self.pretrain)) / 2, 0.0, keep=True)
        if self.pretrain:  # the next stage has orders of its own
            source.velocity, source.cursor = {}, Cursor(epoch=source.cursor.epoch + 1)
        else:
            source.head = source.means(w)
        for t in range(self.rounds):
            if t == 0 or (self.relabel and t % self.relabel == 0):
                for target in targets:
                    target.label(w, TAU, 2)
                    target.head = target.means(w)
            lr = LR * (1 + math.cos(math.pi * t / self.rounds)) / 2
            active = [*([source] if self.source else []), *targets]
            trained = [
                client.train("train", w, lr, self.constraint if client is source else 0.0, keep=False)
                for client in active
            ]
            n = [1 if self.weights == "equal" else len(client.mine) for client in active]
            w = {k: torch.stack([c / sum(n) * x[k] for c, x in zip(n, trained, strict=True)]).sum(0) for k in w}
        return w


@pytest.mark.parametrize(
    "settings",
    by_default(
        4,
        [
            {},
            {"pretrain": 1, "relabel": 1, "rounds": 3, "weights": "images"},
            {"source": False},
            {"constraint": 0.0},
            {"weights": "images"},
            {"relabel": 2},
            {"pretrain": 0},
        ],
    ),
    ids=str,
)
@pytest.mark.parametrize("norm", [False, True])
def test_it_is_its_paper_as_a_plain_loop(settings: dict[str, Any], norm: bool, tmp_path: Path) -> None:
    build = replace(WORLD, norm=norm)
    ran = run(made(**{"pretrain": 2} | settings), tmp_path, build)
    loop = Loop(build, **settings)
    assert naive.furthest(ran.state.backbone, loop()) < 1e-10
    for name, client in loop.clients.items():
        state = naive.kept(tmp_path, name, Own)
        assert state.labels is None if name == "silo-0" else torch.equal(state.labels.labels, client.labels)
        if name != "silo-0" or settings.get("source", True):
            assert client.head is not None and float((state.learner.head - client.head).abs().max()) < 1e-10
            assert (state.learner.cursor.epoch, state.learner.cursor.offset) == (
                client.cursor.epoch,
                client.cursor.offset,
            )
    if "relabel" not in settings:  # of later models the images may all fall into one
        labels_ = [loop.clients[name].labels for name in ("silo-1", "silo-2")]
        assert any((labels < 0).any() for labels in labels_)  # some were dropped
        assert all(labels.max() > 0 for labels in labels_)


# --- the domain constraint --------------------------------------------------------------------------------------------


def test_without_constraint_there_is_no_pull_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = run(made(constraint=0.0), tmp_path / "free", WORLD).bytes()
    held_bytes = run(made(constraint=5.0), tmp_path / "held", WORLD).bytes()
    plain = fedfr_uda.learn
    monkeypatch.setattr(
        fedfr_uda, "learn", lambda *arguments, **options: plain(*arguments, **{**options, "pull": None})
    )
    unpulled = run(made(constraint=5.0), tmp_path / "unpulled", WORLD).bytes()
    assert unpulled == free != held_bytes
