"""Losses that draw and keep a state: in steps of a classifier, over workers and a resume, and as a plug-in by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import torch
from torch import Tensor

from coalface.core.errors import RecipeError
from coalface.data.augment import Augment
from coalface.experiments import run as runner
from coalface.experiments.callbacks.base import Callbacks
from coalface.experiments.conformance.tiny_federation import WORK, Stop, Tiny, run, stopping, workers
from coalface.experiments.recipe import loader
from coalface.methods.fedavg import FedAvg
from coalface.training.classifier import classifier_for
from coalface.training.local_training import Learner, learn
from coalface.training.losses.base import CosineLoss, cosines
from coalface.training.losses.curricularface import CurricularFace
from coalface.training.losses.elasticface import ElasticFace
from coalface.training.sgd import SGD

PAGES = [page.read_text(encoding="utf-8") for page in (Path(__file__).parents[2] / "docs").glob("bring-your-own*.md")]
BLOCKS = re.findall(r"```python\n(.*?)```", "\n".join(PAGES), re.DOTALL)
PLUGIN = "import coalface as cf\n" + next(block for block in BLOCKS if "class Growing" in block)


@dataclass(frozen=True)
class PerClass(CurricularFace):
    def state(self, classes: int) -> dict[str, Tensor]:
        return {"t": torch.zeros(classes)}


@pytest.mark.parametrize("sample_rate", [None, 0.5])
def test_a_step_is_given_what_was_drawn_and_the_state_of_its_own_batch(sample_rate: float | None) -> None:
    party, rng = naive.party("all", Tiny(pooled=True)), np.random.default_rng(7)
    head, embeddings = (torch.randn(6, 8, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    labels, t = torch.tensor([4, 1, 1, 4, 2, 2]), 0.0
    loss, given = CurricularFace(momentum=0.5), {"t": torch.zeros(())}
    classifier = classifier_for(party, head, loss, SGD(lr=0.0), extra=given, sample_rate=sample_rate)
    for _ in range(3):
        rows = classifier.select(labels, rng)
        value, gradients = classifier.gradients(embeddings.requires_grad_(), rows, {})
        t = 0.5 * float(cosines(embeddings, head)[torch.arange(6), labels].mean().detach()) + 0.5 * t
        (seen,) = classifier.trained.values()
        assert value.item() == pytest.approx(loss(embeddings, seen, rows, t=torch.tensor(t)).item(), rel=1e-5)
        classifier.step(gradients)
        assert classifier.state().extra["t"].item() == pytest.approx(t, rel=1e-5)
    assert given["t"] == 0 and "loss.t" not in classifier.state().velocity

    elastic = classifier_for(party, head, ElasticFace(), SGD(lr=0.0))
    elastic.select(labels, np.random.default_rng(3))
    value, _ = elastic.gradients(embeddings, labels, {})
    drawn = ElasticFace().draw(6, np.random.default_rng(3))
    assert value.item() == ElasticFace()(embeddings, head, labels, **drawn).item()


def test_the_state_goes_on_where_the_round_before_left_it() -> None:
    frozen = replace(WORK, lr=1e-12, steps_per_round=1, batch_size=100)  # so that each batch has the same mean
    party = naive.party("all", Tiny(pooled=True))
    party = replace(party, compute=replace(party.compute, augment=Augment(flip=False)))
    learner, loss = None, CurricularFace(momentum=0.5)
    states = []
    for _ in range(3):
        _, learner = learn(party, party.initial, learner, frozen, loss, momentum="reset")
        states.append(learner.extra["t"].item())
    first, second, third = states
    assert first != 0
    assert (second, third) == pytest.approx((1.5 * first, 1.75 * first), rel=1e-4)


@pytest.mark.parametrize("loss", [ElasticFace(scale=16.0, plus=True), CurricularFace(scale=16.0)], ids=str)
@pytest.mark.usefixtures("quick_workers")
def test_workers_and_a_resume_give_the_same_bits(loss: CosineLoss, tmp_path: Path) -> None:
    method = FedAvg(rounds=3, local=replace(WORK, sample_rate=0.7), loss=loss)
    alone = run(method, tmp_path / "alone").bytes()
    assert run(method, tmp_path / "two", transport=workers(2)).bytes() == alone
    with pytest.raises(Stop):
        run(method, tmp_path / "stopped", transport=stopping(4), checkpoint_every=2)
    assert run(method, tmp_path / "stopped", checkpoint_every=2).bytes() == alone
    assert run(method, tmp_path / "seed", seed=1).bytes() != alone
    kept = naive.kept(tmp_path / "alone", min(Tiny()().data), Learner)
    assert [float(t) != 0 for t in kept.extra.values()] == [True] * len(loss.state(6))


@pytest.mark.usefixtures("quick_workers")
def test_a_loss_of_a_plugin_draws_and_keeps_the_same_over_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_loss.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    tree: dict[str, Any] = {
        "name": "own",
        "rounds": 2,
        "loss": {"name": "mine_loss:Growing", "scale": 20.0},
        "data": {"size": 32, "faces": {"identities": 8, "images": 4}, "partition": {"kind": "equal", "parties": 2}},
    }
    states = []
    for count in (1, 2):
        folder = tmp_path / f"run{count}"
        runner.run(loader.parse({**tree, "engine": {"workers": count, "threads": 1}}), folder, Callbacks([]))
        states.append([path.read_bytes() for path in sorted((folder / "parties").rglob("*.commit"))])
    assert len(states[0]) == 2 and states[0] == states[1]


@pytest.mark.parametrize(
    ("changes", "loss", "where"),
    [
        ({"engine": {"processes_per_party": {"party-0": 2}}}, "elasticface", "engine.processes_per_party"),
        ({"local": {"sample_rate": 0.5}}, f"{__name__}:PerClass", "local.sample_rate"),
        ({"method": "mime"}, "curricularface", "methods.mime"),
    ],
)
def test_what_a_recipe_cannot_do_with_a_loss_is_refused(changes: dict[str, Any], loss: str, where: str) -> None:
    with pytest.raises(RecipeError) as error:
        loader.parse({"loss": {"name": loss}, **changes})
    assert error.value.where == where
