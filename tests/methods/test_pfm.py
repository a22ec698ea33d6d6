from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import naive
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tinyruns import tiny
from torch import Tensor
from worlds import recipe

from coalface.core.errors import RecipeError
from coalface.core.method import Party, Tensors
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run
from coalface.experiments.recipe.loader import parse
from coalface.methods import pfm
from coalface.methods.pfm import PFM
from coalface.training import local_training
from coalface.training.classifier import HEAD
from coalface.training.local_training import Learner
from coalface.training.local_work import LocalTraining

EXACT = Tiny(flip=False, double=True)
BETA, DECAY = 0.9, 5e-3


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("step", [0.2] * 3 + [0.02] * 2 + [0.002]),
        ("cosine", [0.1 * (1 + math.cos(math.pi * r / 6)) for r in range(6)]),
    ],
)
def test_one_trainer_with_one_step_a_round_is_torch_sgd_with_momentum(
    tmp_path: Path, schedule: Literal["step", "cosine"], rates: list[float], norm: bool
) -> None:
    """Backbone and class embeddings, with weight decay and a rate that falls."""
    build = replace(EXACT, pooled=True, norm=norm)
    work = LocalTraining(steps_per_round=1, batch_size=5, lr=0.2, schedule=schedule, momentum=BETA, weight_decay=DECAY,
                     lr_milestone_shares=(0.5, 5 / 6))  # fmt: skip
    (silo,) = naive.silos(build, work)
    net, head = silo.net, silo.head.clone().requires_grad_()
    optimiser = torch.optim.SGD([*net.parameters(), head], momentum=BETA, weight_decay=DECAY)
    for lr in rates:
        ((pixels, labels),) = silo.batches()
        optimiser.param_groups[0]["lr"] = lr
        optimiser.zero_grad()
        LOSS(net(pixels), head, labels).backward()
        optimiser.step()
    ran = run(PFM(rounds=6, local=work, loss=LOSS), tmp_path, build)
    expected = {n: t for n, t in net.state_dict().items() if t.is_floating_point()}
    velocity = {n: optimiser.state[p]["momentum_buffer"] for n, p in net.named_parameters()}
    learner = naive.kept(tmp_path, "all", Learner)
    assert naive.furthest(ran.state.backbone, expected) < 1e-12
    assert naive.furthest(ran.state.momentum, velocity) < 1e-12
    assert naive.furthest({"head": learner.head}, {"head": head}) < 1e-12
    assert naive.furthest(learner.velocity, {HEAD: optimiser.state[head]["momentum_buffer"]}) < 1e-12
    assert max(float(v.abs().max()) for v in velocity.values()) > 0.01  # or there was nothing to agree on


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 7])
def test_it_is_algorithm_1_by_a_plain_loop_and_equation_5_gives_what_6_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, norm: bool
) -> None:
    build, rounds, lr = replace(EXACT, norm=norm), 3, 0.1
    work = LocalTraining(steps_per_round=steps, batch_size=4, lr=lr, momentum=BETA, weight_decay=DECAY)
    states = naive.watched(PFM, monkeypatch)
    run(PFM(rounds=rounds, local=work, loss=LOSS), tmp_path, build)
    parties = naive.silos(build, work)
    weights = naive.shares(parties)
    theta, momentum = build().backbone.shared(), naive.zeros(build)  # line 1
    for state in states:
        ends, sums = [], []
        for silo in parties:
            theta_i, total = dict(theta), naive.zeros(build)  # line 5
            for pixels, labels in silo.batches():
                g, h, running = silo.gradients(theta_i, silo.head, pixels, labels)  # line 7
                for n in g:
                    g[n] = g[n] + DECAY * theta_i[n]
                    total[n] += g[n]
                    theta_i[n] = theta_i[n] - lr * (g[n] + BETA * momentum[n] / steps)  # line 8
                theta_i.update(running)
                silo.step_head(h, lr)  # lines 9, 10
            ends.append(theta_i)
            sums.append(total)
        before, theta = theta, naive.mean(weights, ends)  # lines 14, 15
        global_gradient = {n: (before[n] - theta[n]) / lr - BETA * momentum[n] for n in momentum}  # (5)
        assert naive.furthest(global_gradient, naive.mean(weights, sums)) < 1e-12  # what (5) means to estimate
        momentum = {n: BETA * momentum[n] + g for n, g in global_gradient.items()}  # of (6)
        assert naive.furthest(state.backbone, theta) < 1e-12
        assert naive.furthest(state.momentum, momentum) < 1e-12
        assert naive.furthest(state.momentum, {n: (before[n] - theta[n]) / lr for n in momentum}) < 1e-12  # line 16
    for silo in parties:
        own_state = naive.kept(tmp_path, silo.name, Learner)
        assert naive.furthest({"head": own_state.head}, {"head": silo.head}) < 1e-12


def test_parties_of_unequal_steps_each_apply_one_whole_momentum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With epochs K differs from party to party; β M is applied once a round at each all the same."""
    build, applied = Tiny(), dict[str, list[tuple[Tensors, float]]]()

    def noting(party: Party, *arguments: Any, pull: Any, **options: Any) -> Any:
        def noted(trained: Tensors, images: Tensor, labels: Tensor) -> Tensors:
            added: Tensors = pull(trained, images, labels)
            if party.round == 2:
                applied.setdefault(party.name, []).append(dict(added))
            return added

        return local_training.learn(party, *arguments, pull=noted, **options)

    monkeypatch.setattr(pfm, "learn", noting)
    states = naive.watched(PFM, monkeypatch)
    run(
        recipe("pfm", rounds=2, local=LocalTraining(epochs=1, batch_size=3, momentum=BETA))[0],
        tmp_path,
        replace(build, each=7),
    )
    assert len({len(steps) for steps in applied.values()}) > 1
    for steps in applied.values():
        total = {n: torch.stack([step[n] for step in steps]).sum(0) for n in steps[0]}
        assert naive.furthest(total, {n: BETA * m for n, m in states[0].momentum.items()}) < 1e-5


def test_batchnorm_statistics_take_no_momentum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the plain mean by images, whatever M is; M has no entry for them, and the parameters do feel it."""
    build = Tiny(norm=True, double=True)
    method = recipe("pfm", rounds=2)[0]
    states = naive.watched(PFM, monkeypatch)
    run(method, tmp_path / "whole", build)
    assert set(states[1].momentum) == set(states[1].backbone) - {"norm.running_mean", "norm.running_var"}
    images = {name: len(faces) for name, faces in build().data.items()}
    sent: dict[str, Tensors] = {}

    def noting(party: Party, *arguments: Any, **options: Any) -> Any:
        outcome = local_training.learn(party, *arguments, **options)
        if party.round == 2:
            sent[party.name] = party.backbone.shared()
        return outcome

    monkeypatch.setattr(pfm, "learn", noting)
    again = run(method, tmp_path / "again", build).state.backbone
    total = sum(images.values())
    mean = {n: sum(images[p] / total * sent[p][n].double() for p in sent) for n in again}
    assert naive.furthest(again, mean) < 1e-12
    assert not torch.equal(again["norm.running_mean"], states[0].backbone["norm.running_mean"])


def test_numbers_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 1, M = 0: y_a = 3/4, y_b = −3/4, M = (0 + 3/8) / η. Round 2, β M / K = 3/16: y_a = −3/8 → 7/32 → 33/64,
    y_b = −3/8 → −25/32 → −63/64, so Θ = (33 − 3 · 63) / 256 and M = (−3/8 − Θ) / η.
    """
    assert naive.worked(PFM, tmp_path, monkeypatch) == [
        {"backbone": -0.375, "momentum": 0.75},
        {"backbone": -0.609375, "momentum": 0.46875},
    ]


# --- K and the schedule -----------------------------------------------------------------------------------------------


@given(
    steps=st.integers(1, 40),
    milestones=st.lists(st.integers(1, 240), max_size=3),
    total=st.one_of(st.none(), st.integers(1, 240)),
)
def test_steps_of_a_round_that_do_not_fit_the_schedule_are_refused_with_the_nearest(
    steps: int, milestones: list[int], total: int | None
) -> None:
    marks = [*milestones, *([total] if total is not None else [])]
    outside = total is not None and any(mark > total for mark in milestones)
    settings: dict[str, Any] = {
        "steps_per_round": steps,
        "total_steps": total,
        "lr_milestones": tuple(milestones),
        "schedule": "step",
    }
    fits = [k for k in range(1, 241) if all(mark % k == 0 for mark in marks)]
    if not marks or (not outside and steps in fits):
        work = LocalTraining(**settings)
        assert work.rounds == (None if total is None else total / steps)
        for round_ in range(1, 1 + (total or 240) // steps if milestones else 1):  # one rate for all steps of a round
            of_round = range((round_ - 1) * steps, round_ * steps)
            rates = {0.1 / 10 ** sum(d <= step for d in milestones) for step in of_round}
            assert len(rates) == 1 and work.lr_at(round_, 99) == pytest.approx(rates.pop())
        return
    with pytest.raises(ValueError) as refused:
        LocalTraining(**settings)
    if not outside:
        nearest = int(str(refused.value).rpartition("the nearest K that does is ")[2])
        assert nearest in fits
        assert abs(nearest - steps) == min(abs(k - steps) for k in fits)


def test_a_recipe_takes_its_rounds_from_the_steps_and_refuses_others() -> None:
    local = {"total_steps": 60, "steps_per_round": 5}
    free = {"name": "any", "method": "pfm", "local": local}
    assert parse(free).rounds == 12
    assert parse({**free, "rounds": 12}).build_method().rounds == 12
    with pytest.raises(RecipeError, match="12") as error:
        parse({**free, "rounds": 11})
    assert error.value.where == "rounds"
    with pytest.raises(RecipeError, match=r"the nearest K that does is 6$"):
        tiny(method="pfm", rounds=10, local={"total_steps": 60, "steps_per_round": 7, "epochs": 1})
