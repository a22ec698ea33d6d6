from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import recipe

from coalface.core.method import Tensors
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.methods import fedavg
from coalface.training.classifier import HEAD
from coalface.training.local_training import learn
from coalface.training.local_work import LocalTraining


def distance(left: Tensors, right: Tensors) -> float:
    return sum(float((left[n] - right[n]).square().sum()) for n in left)


@pytest.mark.parametrize("norm", [False, True])
def test_without_the_term_it_is_fedavg_bit_for_bit(tmp_path: Path, norm: bool) -> None:
    build = Tiny(norm=norm)
    prox = run(recipe("fedprox", mu=0.0)[0], tmp_path / "prox", build).bytes()
    assert prox == run(recipe("fedavg")[0], tmp_path / "avg", build).bytes()


@pytest.mark.parametrize("policy", ["average", "local"])
def test_the_pull_is_the_gradient_of_the_proximal_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    """Autograd of (μ/2) ‖w − w_t‖² over the shared parameters; class embeddings and BatchNorm's own are not held."""
    mu, checked = 0.3, []

    def watched(party: Any, backbone: Tensors, *arguments: Any, pull: Any, **options: Any) -> Any:
        def check(trained: Tensors, images: torch.Tensor, labels: torch.Tensor) -> Tensors:
            leaves = {n: w.detach().double().requires_grad_() for n, w in trained.items() if n in backbone}
            term = mu / 2 * sum((w - backbone[n].double()).square().sum() for n, w in leaves.items())
            expected = dict(zip(leaves, torch.autograd.grad(term, list(leaves.values())), strict=True))
            pulled = pull(trained, images, labels)
            assert set(pulled) == set(expected)
            assert HEAD in trained
            assert HEAD not in pulled
            for n, g in expected.items():
                assert torch.allclose(pulled[n].double(), g, rtol=1e-5, atol=1e-9)
            checked.append(max(float(g.abs().max()) for g in expected.values()))
            return pulled

        return learn(party, backbone, *arguments, pull=check, **options)

    monkeypatch.setattr(fedavg, "learn", watched)
    run(recipe("fedprox", mu=mu, rounds=1)[0], tmp_path, Tiny(norm=True, policy=policy))
    assert checked[0] == 0.0  # the first step starts at w_t
    assert max(checked) > 0.001


def test_a_stronger_term_stays_nearer_to_the_global_model(tmp_path: Path) -> None:
    initial = Tiny()().backbone.shared()
    work = LocalTraining(epochs=4, batch_size=4, lr=0.05)
    moved = [
        distance(run(recipe("fedprox", mu=mu, rounds=1, local=work)[0], tmp_path / str(mu)).state.backbone, initial)
        for mu in (0.0, 0.5, 4.0)
    ]
    assert moved[0] > 1.1 * moved[1] > 1.1 * 1.1 * moved[2]
