from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import naive
import pytest
import torch
from cases import by_default
from test_fedrep import Apart
from worlds import recipe

from coalface.core.local_results import PERSONAL_MODEL
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, raw, run
from coalface.methods.fedbabu import FedBABU
from coalface.methods.solo import Own
from coalface.training import local_training
from coalface.training.local_training import Learner, fresh_head
from coalface.training.local_work import LocalTraining
from coalface.training.losses.sphereface2 import SphereFace2


@pytest.mark.parametrize(
    ("norm", "policy", "tuning_lr"),
    by_default(
        2, [(True, "local", None), (False, "average", 0.1), (True, "average", 0.1), (True, "parameters-only", None)]
    ),
)
def test_it_is_algorithm_1_by_a_plain_loop_and_then_each_party_tunes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: bool, policy: Any, tuning_lr: float | None
) -> None:
    build = Tiny(flip=False, double=True, norm=norm, policy=policy)
    work = LocalTraining(steps_per_round=3, batch_size=4, lr=0.1, schedule="cosine", weight_decay=5e-3)
    states = naive.watched(FedBABU, monkeypatch)
    ran = run(FedBABU(rounds=3, local=work, loss=LOSS, tuning_epochs=2, tuning_lr=tuning_lr), tmp_path, build)
    silos, shared = naive.silos(build, work), set(build().backbone.shared())
    theta = {n: t.clone() for n, t in build().backbone.module.state_dict().items() if t.is_floating_point()}
    own = {silo.name: {n: t for n, t in theta.items() if n not in shared} for silo in silos}
    for state, lr in zip(states, [0.1, 0.075, 0.025], strict=True):
        ends = []
        for silo in silos:
            y, velocity = {**theta, **own[silo.name]}, naive.zeros(build)
            for pixels, labels in silo.batches():
                g, _, running = silo.gradients(y, silo.head, pixels, labels)
                for n in g:
                    velocity[n] = 0.9 * velocity[n] + g[n] + 5e-3 * y[n]
                    y[n] = y[n] - lr * velocity[n]
                y.update(running)
            ends.append({n: t for n, t in y.items() if n in shared})
            own[silo.name] = {n: t for n, t in y.items() if n not in shared}
        theta = {**theta, **naive.mean(naive.shares(silos), ends)}
        assert naive.furthest(state.backbone, {n: t for n, t in theta.items() if n in shared}) < 1e-10
    assert raw(ran.state.backbone) == raw(states[-1].backbone)  # the second stage leaves it alone
    personal, generic = dict(ran.server.local_results(PERSONAL_MODEL, ran.models)), ran.own_models()
    for silo in silos:
        federated = naive.kept(tmp_path, silo.name, Learner)
        assert raw({"head": federated.head}) == raw({"head": fresh_head(silo._party)})
        if policy != "average":
            assert naive.furthest(generic[silo.name], {**theta, **own[silo.name]}) < 1e-10
        y, velocity = {**theta, **own[silo.name]}, naive.zeros(build)
        silo._work = LocalTraining(epochs=2, batch_size=4, weight_decay=5e-3)
        silo._party = replace(silo._party, stage="tune")
        for pixels, labels in silo.batches():
            g, h, running = silo.gradients(y, silo.head, pixels, labels)
            for n in g:
                velocity[n] = 0.9 * velocity[n] + g[n] + 5e-3 * y[n]
                y[n] = y[n] - (tuning_lr or 0.01) * velocity[n]
            y.update(running)
            silo.step_head(h, tuning_lr or 0.01)
        tuned = naive.kept(tmp_path, silo.name, Own)
        assert naive.furthest({"head": tuned.learner.head}, {"head": silo.head}) < 1e-10
        assert naive.furthest(personal[silo.name], y) < 1e-10 and naive.furthest(y, theta) > 1e-3


def test_numbers_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """β = 1/2. With h at 0, w_a = 0 → 1/2 → 1 and w_b = 0 → −1/2 → −1, mean −1/2; from there 1/4 → 1, −3/4 → −1: again.

    Tuning, two epochs of one step, h and w together: w_a = −1/2 → 1/4 → 5/8, h_a = −3/4, −9/8; w_b = −3/4, −7/8,
    h_b = 1/4, 3/8.
    """
    monkeypatch.setattr(local_training, "fresh_head", lambda party, rows: torch.zeros(rows, 1, dtype=torch.float64))
    monkeypatch.setattr(naive, "Square", Apart)
    assert naive.worked(FedBABU, tmp_path, monkeypatch, tuning_epochs=2, tuning_lr=0.5) == [{"backbone": -0.5}] * 2
    tuned = [naive.kept(tmp_path, party, Own) for party in "ab"]
    assert [float(own.backbone["w"]) for own in tuned] == [5 / 8, -7 / 8]
    assert [float(own.learner.head) for own in tuned] == [-9 / 8, 3 / 8]


def test_what_a_loss_trains_beside_the_class_embeddings_is_fixed_with_them(tmp_path: Path) -> None:
    loss = SphereFace2(scale=16.0, margin=0.1)
    run(recipe("fedbabu", loss=loss)[0], tmp_path, Tiny())
    federated, tuned = naive.kept(tmp_path, "silo-0", Learner), naive.kept(tmp_path, "silo-0", Own).learner
    first = loss.extra(2)
    assert first and raw(federated.extra) == raw(first) != raw(tuned.extra)


def test_the_second_stage_sends_numbers_alone(tmp_path: Path) -> None:
    ran = run(recipe("fedbabu")[0], tmp_path)
    lines = [json.loads(text) for path in (ran.folder / "ledger").iterdir() for text in path.read_text().splitlines()]
    assert {line["name"] for line in lines if line["step"] == "tune"} == {"header"}
    assert {line["name"] for line in lines if line["step"] == "train"} > {"header"}


def test_the_work_of_each_stage_is_told() -> None:
    method = FedBABU(local=LocalTraining(steps_per_round=3, batch_size=4), tuning_epochs=2)
    assert [method.round_work(stage, 1, "trainer", "a", 10) for stage in ("train", "tune")] == [(3, 12), (6, 20)]


@pytest.mark.parametrize("setting", [{"tuning_epochs": 0}, {"tuning_lr": 0.0}, {"tuning_lr": float("nan")}])
def test_it_tunes_for_an_epoch_or_more_at_some_rate(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=min(setting)):
        FedBABU(**setting)
