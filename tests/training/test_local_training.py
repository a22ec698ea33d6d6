from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from naive import party
from torch import Tensor

from coalface.core.errors import RecipeError
from coalface.core.method import Party, Tensors
from coalface.experiments.conformance.tiny_federation import LOSS, WORK, Net, Tiny
from coalface.training.classifier import HEAD, classifier_for, sampled_classes
from coalface.training.local_training import Learner, fresh_head, learn, train
from coalface.training.local_work import LocalTraining
from coalface.training.losses.registry import LOSSES
from coalface.training.sgd import SGD


def problem() -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Tensor]]:
    rng = torch.Generator().manual_seed(1)
    weights = [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in ((4, 3), (3,), (2, 4))]
    inputs = torch.randn((5, 3), generator=rng, dtype=torch.float64)

    def loss(w: Sequence[Tensor]) -> Tensor:
        return (torch.tanh((inputs + w[1]) @ w[0].T) @ w[2].T).square().sum()

    return weights, loss


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("spend", [False, True])
def test_a_step_is_that_of_torch(momentum: float, weight_decay: float, spend: bool) -> None:
    ours, loss = problem()
    torch_weights = [w.clone().requires_grad_() for w in ours]
    optimiser = torch.optim.SGD(torch_weights, lr=0.05, momentum=momentum, weight_decay=weight_decay)
    velocity = [torch.zeros_like(w) for w in ours]
    for _ in range(8):
        optimiser.zero_grad()
        loss(torch_weights).backward()
        optimiser.step()
        gradients = torch.autograd.grad(loss(tracked := [w.clone().requires_grad_() for w in ours]), tracked)
        untouched = [g.clone() for g in gradients]
        SGD(0.05, momentum, weight_decay).step(ours, gradients, velocity, spend=spend)
        unchanged = all(torch.equal(g, before) for g, before in zip(gradients, untouched, strict=True))
        assert unchanged == (not (spend and weight_decay))
    for weight, expected in zip(ours, torch_weights, strict=True):
        assert (weight - expected.detach()).abs().max().item() < 1e-12


def test_two_steps_worked_by_hand() -> None:
    w, v = [torch.tensor([1.0])], [torch.zeros(1)]
    sgd = SGD(lr=0.1, momentum=0.5, weight_decay=0.2)
    sgd.step(w, [torch.tensor([2.0])], v)  # v = 2 + 0.2·1 = 2.2, w = 1 − 0.22
    assert (v[0].item(), w[0].item()) == pytest.approx((2.2, 0.78))
    sgd.step(w, [torch.tensor([0.0])], v)  # v = 1.1 + 0.2·0.78 = 1.256, w = 0.78 − 0.1256
    assert (v[0].item(), w[0].item()) == pytest.approx((1.256, 0.6544))


def bare_loop(client: Party, work: LocalTraining, velocity: bool = True) -> tuple[Tensors, Tensor, float]:
    """Local training as one would write it with torch alone, for one round."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        net = Net(norm=not isinstance(client.backbone.module.norm, torch.nn.Identity))
    head = fresh_head(client).requires_grad_()
    optimiser = torch.optim.SGD(
        [*net.parameters(), head], lr=work.lr, momentum=work.momentum, weight_decay=work.weight_decay
    )
    total, images = 0.0, 0
    for epoch in range(work.epochs):
        order = client.stream(client.stage, "epoch", epoch).permutation(len(client.data))
        for start in range(0, len(order), work.batch_size):
            index = order[start : start + work.batch_size]
            pixels, labels = client.compute.batch(client.data, index, client.rng)
            value = LOSS(net(pixels), head, labels)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            total, images = total + value.item() * len(index), images + len(index)
    return dict(net.state_dict()), head.detach(), total / images


@pytest.mark.parametrize("norm", [False, True])
def test_a_round_is_a_bare_torch_loop(norm: bool) -> None:
    work = replace(WORK, epochs=3, momentum=0.9, weight_decay=0.01)
    client = party("silo-0", Tiny(norm=norm))
    mean, learner = learn(client, client.initial, None, work, LOSS, momentum="keep")
    expected, head, loss = bare_loop(party("silo-0", Tiny(norm=norm)), work)
    shared = client.backbone.shared()
    assert all(torch.allclose(shared[n], expected[n], atol=1e-6) for n in shared)
    assert torch.allclose(learner.head, head, atol=1e-6)
    assert mean == pytest.approx(loss, rel=1e-5)
    assert (learner.cursor.epoch, learner.cursor.offset) == (3, 0)


def two_rounds(momentum: Any, work: LocalTraining = WORK) -> tuple[Learner, Learner, Tensors]:
    """Two rounds at a party on its own weights."""
    client = party()
    _, first = learn(client, client.initial, None, work, LOSS, momentum=momentum)
    between = client.backbone.shared()
    client = party(round_=2)
    _, second = learn(client, between, first, work, LOSS, momentum=momentum)
    return first, second, client.backbone.shared()


def test_momentum_is_kept_reset_or_left_out_as_declared() -> None:
    learner, reset, none = (two_rounds(m) for m in ("keep", "reset", "none"))
    assert set(learner[0].velocity) == {HEAD, "down.weight", "down.bias", "up.weight", "up.bias"}
    assert reset[0].velocity == none[0].velocity == {}
    weights = [r[2]["up.weight"] for r in (learner, reset, none)]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    without = two_rounds("reset", replace(WORK, momentum=0.0))
    assert torch.equal(without[2]["up.weight"], weights[2])


def test_kept_momentum_makes_two_rounds_one_long_one() -> None:
    work = LocalTraining(steps_per_round=2, batch_size=4, lr=0.05)
    _, second, weights = two_rounds("keep", work)
    client = party()
    draws = [party(), party(round_=2)]
    client = replace(client, rng=Both(draws[0].rng, draws[1].rng, 2))  # the flips of rounds 1 and 2
    _, once = learn(client, client.initial, None, replace(work, steps_per_round=4), LOSS, momentum="keep")
    assert all(torch.equal(weights[n], t) for n, t in client.backbone.shared().items())
    assert torch.equal(second.head, once.head)
    assert all(torch.equal(second.velocity[n], t) for n, t in once.velocity.items())
    assert vars(second.cursor) == vars(once.cursor)


class Both(np.random.Generator):
    """Draws from one generator a number of times, then from another."""

    def __init__(self, first: np.random.Generator, second: np.random.Generator, times: int) -> None:
        super().__init__(first.bit_generator)
        self.sources = [first] * times + [second] * 1000

    def random(self, *arguments: Any, **options: Any) -> Any:
        return self.sources.pop(0).random(*arguments, **options)


def test_a_pull_is_added_to_the_gradient() -> None:
    client, target = party(), {"up.bias": torch.full((8,), 3.0)}
    strength, pulled_names = 0.7, []

    def pull(trained: Tensors, images: Tensor, labels: Tensor) -> Tensors:
        pulled_names.append(sorted(trained))
        return {n: strength * (trained[n].detach() - t) for n, t in target.items()}

    batches = [np.arange(4)]
    sgd = SGD(lr=0.1)
    client.backbone.load(client.initial)
    train(client, classifier_for(client, fresh_head(client), LOSS, sgd), batches, sgd)
    plain = client.backbone.shared()
    client = party()
    client.backbone.load(client.initial)
    train(client, classifier_for(client, fresh_head(client), LOSS, sgd), batches, sgd, pull=pull)
    pulled = client.backbone.shared()
    assert pulled_names == [sorted([HEAD, "down.weight", "down.bias", "up.weight", "up.bias"])]
    moved = plain["up.bias"] - 0.1 * strength * (client.initial["up.bias"] - target["up.bias"])
    assert torch.allclose(pulled["up.bias"], moved, atol=1e-6)
    assert torch.equal(pulled["up.weight"], plain["up.weight"])


def test_a_loss_that_is_not_finite_says_what_to_do() -> None:
    client = party()
    with pytest.raises(FloatingPointError, match=r"training loss is (nan|inf) at learning rate .*lower local.lr"):
        learn(client, client.initial, None, replace(WORK, lr=1e30, epochs=3), LOSS, momentum="reset")


def test_a_kind_of_momentum_that_is_not_known_is_refused() -> None:
    client = party()
    with pytest.raises(RecipeError, match="reset, keep, none"):
        learn(client, client.initial, None, WORK, LOSS, momentum="yes")  # type: ignore[arg-type]


# --- sampled class embeddings (partial FC) ----------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "expected"), [(0.1, 3), (0.5, 5), (1.0, 10)])
def test_sampled_classes_hold_those_of_the_batch_and_as_many_others_as_the_rate_says(
    rate: float, expected: int
) -> None:
    labels = torch.tensor([7, 2, 7, 4])
    drawn = set()
    for seed in range(200):
        rows = sampled_classes(labels, 10, rate, np.random.default_rng(seed))
        assert len(rows) == expected and {2, 4, 7} <= set(rows.tolist())
        assert rows.tolist() == sorted(set(rows.tolist())) and rows.dtype == torch.int64
        drawn |= set(rows.tolist())
    assert drawn == ({2, 4, 7} if expected == 3 else set(range(10)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sampled_steps_are_those_of_the_chosen_rows_alone(momentum: float) -> None:
    """The same two steps by hand: gather rows, differentiate the loss over them, step, scatter; the others stay."""
    sgd = SGD(lr=0.05, momentum=momentum, weight_decay=0.1)
    client, twin = (party("all", Tiny(pooled=True)) for _ in range(2))
    head = torch.randn((6, client.backbone.embedding_size), generator=torch.Generator().manual_seed(3))
    batches = [np.array([0, 7]), np.array([1, 8])]  # of two identities; a third is drawn for each
    client.backbone.load(client.initial)
    trained = train(client, classifier_for(client, head, LOSS, sgd, sample_rate=0.5), batches, sgd)
    rows_after, velocity = trained.head, trained.velocity
    shared = client.backbone.shared()
    twin.backbone.load(twin.initial)
    module, expected, speed = twin.backbone.module.train(), head.clone(), torch.zeros_like(head)
    speeds = [torch.zeros_like(p) for p in module.parameters()]
    touched: set[int] = set()
    for index in batches:
        pixels, labels = twin.compute.batch(twin.data, index, twin.rng)
        rows = sampled_classes(labels, len(head), 0.5, twin.rng)
        touched |= set(rows.tolist())
        part = expected[rows].requires_grad_()
        places = torch.tensor([rows.tolist().index(label) for label in labels.tolist()])
        parameters = [*module.parameters(), part]
        gradients = torch.autograd.grad(LOSS(twin.compute.embed(module, pixels), part, places), parameters)
        of_rows = speed[rows]
        sgd.step(parameters, gradients, [*speeds, of_rows])
        expected[rows], speed[rows] = part.detach(), of_rows
    assert torch.equal(rows_after, expected)
    assert all(torch.equal(a, b) for a, b in zip(shared.values(), twin.backbone.shared().values(), strict=True))
    assert torch.equal(velocity[HEAD], speed) if momentum else velocity == {}
    untouched_rows = sorted(set(range(len(head))) - touched)
    assert 2 <= len(untouched_rows) <= 3
    assert torch.equal(rows_after[untouched_rows], head[untouched_rows])


# --- losses with rows and tensors of their own ------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_trains_for_two_rounds_and_learns(name: str) -> None:
    """What a loss has beside one class embedding a class is made, trained, kept with its momentum, and goes on."""
    settings = {} if name in ("positive", "sphereface2") else {"scale": 8.0}
    loss = LOSSES[name](**settings)
    work = LocalTraining(batch_size=6, lr=0.05, momentum=0.5, weight_decay=0.0, epochs=6)
    client = party("all", Tiny(pooled=True))
    first, learner = learn(client, client.initial, None, work, loss, momentum="keep")
    assert len(learner.head) == loss.rows(6)
    assert set(learner.extra) == set(loss.extra(6) | loss.state(6))
    assert {f"loss.{n}" for n in loss.extra(6)} == set(learner.velocity) - set(client.backbone.parameters) - {HEAD}
    for extra, start in (loss.extra(6) | loss.state(6)).items():
        assert not torch.equal(learner.extra[extra], start)
    again = party("all", Tiny(pooled=True), round_=2)
    second, later_learner = learn(again, client.backbone.shared(), learner, work, loss, momentum="keep")
    assert second < first
    assert not any(torch.equal(later_learner.extra[n], learner.extra[n]) for n in learner.extra)
