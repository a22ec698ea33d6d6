from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import torch
from cases import by_default
from naive_fedfr import l_con
from torch import Tensor, nn
from worlds import recipe

from coalface.core.method import Tensors
from coalface.data.augment import Augment
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run
from coalface.methods.moon import Contrasted, Moon
from coalface.models.groups import Backbone
from coalface.training.compute import Compute
from coalface.training.local_work import LocalTraining


@pytest.mark.parametrize("policy", ["average", *by_default(0, ["local"])])
def test_without_the_term_it_is_fedavg_bit_for_bit(tmp_path: Path, policy: Any) -> None:
    build = Tiny(norm=True, policy=policy)
    moon = run(recipe("moon", mu=0.0)[0], tmp_path / "moon", build)
    plain = run(recipe("fedavg")[0], tmp_path / "plain", build)
    for key in ("state", "metrics", "ledger silo-1"):
        assert moon.bytes()[key] == plain.bytes()[key]


@pytest.mark.parametrize("policy", ["average", *by_default(0, ["local"])])
def test_it_is_algorithm_1_by_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any) -> None:
    """The term image by image; the models that it compares with are in evaluation mode, with BatchNorm as at the
    party."""
    build, mu, tau = Tiny(flip=False, double=True, norm=True, policy=policy), 2.0, 0.7
    work = LocalTraining(epochs=2, batch_size=4, lr=0.1, momentum=0.5, weight_decay=5e-3)
    states = naive.watched(Moon, monkeypatch)
    run(Moon(rounds=3, local=work, loss=LOSS, mu=mu, temperature=tau, head_momentum="keep"), tmp_path, build)
    parties, x = naive.silos(build, work), build().backbone.shared()
    kept = {silo.name: build().backbone.kept() for silo in parties}
    last: dict[str, Tensors] = {}
    for state in states:
        ends = []
        for silo in parties:
            y, velocity = x | kept[silo.name], naive.zeros(build)
            anchor, previous = ({**m, **kept[silo.name]} for m in (x, last.get(silo.name, x)))
            for pixels, labels in silo.batches():
                references = [embedded(silo.net, model, pixels) for model in (anchor, previous)]
                g, h, running = silo.gradients(y, silo.head, pixels, labels)
                extra = contrast_gradient(silo.net, y, pixels, references, tau)
                for n in g:
                    velocity[n] = 0.5 * velocity[n] + g[n] + mu * extra[n] + 5e-3 * y[n]
                    y[n] = y[n] - 0.1 * velocity[n]
                y.update(running)
                silo.step_head(h, 0.1)
            last[silo.name] = {n: y[n] for n in x}
            kept[silo.name] = {n: y[n] for n in kept[silo.name]}
            ends.append(last[silo.name])
        x = naive.mean(naive.shares(parties), ends)
        assert naive.furthest(state.backbone, x) < 1e-12
    for silo in parties:
        own = naive.kept(tmp_path, silo.name, Contrasted)
        assert naive.furthest(own.model, last[silo.name]) < 1e-12
        assert naive.furthest({"head": own.head}, {"head": silo.head}) < 1e-12


def embedded(net: nn.Module, model: Tensors, pixels: Tensor) -> Tensor:
    net.load_state_dict({**net.state_dict(), **model})
    with torch.no_grad():
        embeddings: Tensor = net.eval()(pixels).clone()
    net.train()
    return embeddings


def contrast_gradient(net: nn.Module, at: Tensors, pixels: Tensor, references: list[Tensor], tau: float) -> Tensors:
    """∇ of the mean of (5), at a model in training mode."""
    net.load_state_dict({**net.state_dict(), **at})
    net.zero_grad()
    z = net.train()(pixels)
    torch.stack([l_con(*vectors, tau) for vectors in zip(z, *references, strict=True)]).mean().backward()
    return {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}


class Plane(nn.Module):
    """W (2, 2), at first diagonal; the embedding of an image of two pixels is W p."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_size = 2
        self.w = nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 0.5]], dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.w.T


def plane() -> FederatedData:
    """Party a has one image of the pixels 1 and −1/5, party b four of −3/5 and 1/5."""
    pixels = np.array([[255, 102]] + 4 * [[51, 153]], dtype=np.uint8).reshape(5, 1, 2, 1)
    rows = {"a": np.arange(1), "b": np.arange(1, 5)}
    data = {p: FaceSet(pixels, r, np.zeros(len(r), dtype=np.int64), (f"person {p}",)) for p, r in rows.items()}
    return FederatedData(data, Backbone(Plane()), Compute(augment=Augment(flip=False), dtype=torch.float64))


FLUKE = [
    [[0.8196945000000001, 0.0538685], [0.02693425, 0.49164525]],
    [[0.673644742000517, 0.09754108758765723], [0.04358542726248902, 0.4869243459502901]],
    [[0.5581070781034092, 0.13190301238769542], [0.06313590942676889, 0.4799881378959013]],
]
"""W after rounds 1 to 3 of two clients, by `MOONClient` and `Server` of fluke-fl 0.8.1 in float64: their loss the mean
of z²/2, μ = 2, τ = 1/2, batches of 2, 2 epochs, η = 1/4, shares 1/5 and 4/5, a new optimiser each round."""


def test_fluke_comes_to_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = LocalTraining(epochs=2, batch_size=2, lr=0.25, momentum=0.0, weight_decay=0.0)
    states = naive.watched(Moon, monkeypatch)
    run(Moon(rounds=3, local=work, loss=naive.Square(), mu=2.0), tmp_path, plane)
    for state, expected in zip(states, FLUKE, strict=True):
        assert (state.backbone["w"] - torch.tensor(expected, dtype=torch.float64)).abs().max() < 1e-7


def test_the_first_round_is_fedavgs_and_the_loss_is_without_the_term(tmp_path: Path) -> None:
    """Both models are the global one: the gradients cancel to rounding."""
    build = Tiny(double=True, flip=False)
    moon = run(recipe("moon", rounds=1, mu=3.0)[0], tmp_path / "moon", build)
    plain = run(recipe("fedavg", rounds=1)[0], tmp_path / "plain", build)
    assert naive.furthest(moon.state.backbone, plain.state.backbone) < 1e-12
    losses = [ran.server.at.party_stats["silo-1"].last_loss for ran in (moon, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)


def test_a_larger_term_keeps_embeddings_nearer_to_the_global_models(tmp_path: Path) -> None:
    build = replace(Tiny(double=True), parties=2)
    cosines = []
    for mu in (0.0, 20.0):
        ran = run(recipe("moon", rounds=3, mu=mu)[0], tmp_path / str(mu), build)
        net, world = build().backbone.module, build()
        own = naive.kept(tmp_path / str(mu), "silo-1", Contrasted).model
        (pixels, _), *_ = naive.Silo("silo-1", build, LocalTraining()).everything()
        z = [embedded(net, world.backbone.shared() | model, pixels) for model in (own, ran.state.backbone)]
        cosines.append(float(torch.nn.functional.cosine_similarity(*z).mean()))
    assert cosines[1] > cosines[0]
