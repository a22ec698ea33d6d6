"""The gradient that an update tells, without what the method has added to local steps; and gradients that are sent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tinyruns import Silent, tiny
from torch import Tensor

from coalface.core.method import Models
from coalface.experiments.attacks.base import Exchange, Outcome
from coalface.experiments.attacks.poisoning import Poisoning
from coalface.experiments.attacks.replay import replay
from coalface.experiments.attacks.updates import GRADIENT, MEAN, UPDATE, Change, UpdateAttack
from coalface.experiments.prepare import PreparedRun
from coalface.methods import mime
from coalface.training import gradients as training_gradients
from coalface.training import local_training

Gradient = dict[str, Tensor]


class Noting(UpdateAttack):
    """Keeps each change."""

    kind = "noting"

    def __init__(self, run: PreparedRun, seed: int) -> None:
        super().__init__(run, seed)
        self.changes: list[Change] = []

    def study(self, change: Change) -> None:
        self.changes.append(change)

    def outcomes(self, models: Models) -> list[Outcome]:
        self.conclude(models)
        return []


def noted(**changes: Any) -> list[Change]:
    attack, models = replay(tiny(**changes), Noting, Silent())
    attack.outcomes(models)
    assert isinstance(attack, Noting)
    return attack.changes


def mean(gradients: list[Gradient]) -> Gradient:
    return {n: torch.stack([g[n].double() for g in gradients]).mean(0) for n in gradients[0]}


def assert_near(gradient: Gradient, expected: Gradient) -> None:
    assert gradient.keys() == expected.keys()
    for name, g in gradient.items():
        assert distance(g, expected[name]) < 0.02  # steps decay weights that have moved


def distance(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ / ‖b‖."""
    return float((a - b).norm() / b.norm())


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Gradient, Gradient]]:
    """Of each local step the gradient of its own, and what Mime subtracts, the gradient of the same batch at x."""
    seen, at_x = list[tuple[Gradient, Gradient]](), list[Gradient]()
    add, gradient_at = local_training.add_to, training_gradients.gradient

    def noting_add(gradients: Gradient, added: Gradient) -> None:
        own = {n: g.clone() for n, g in gradients.items() if n in added}
        seen.append((own, at_x[-1] if at_x else {n: torch.zeros_like(g) for n, g in own.items()}))
        add(gradients, added)

    def noting_gradient(*about: Any) -> Gradient:
        at_x.append(gradient_at(*about))
        return at_x[-1]

    monkeypatch.setattr(local_training, "add_to", noting_add)
    monkeypatch.setattr(mime, "gradient", noting_gradient)
    return seen


@pytest.mark.parametrize(
    ("method", "count"), [("scaffold", 2), ("pfm", 2), ("mimelite", 2), ("mime", 2), ("feddyn", 1)]
)
def test_what_a_method_adds_to_local_steps_is_taken_off(
    method: str, count: int, steps: list[tuple[Gradient, Gradient]]
) -> None:
    """Held against the gradients of the steps themselves; of Mime against their difference from those at x.

    FedDyn's pull back to θ, which is left in, is zero in a first step. Its mean has the server's own step too.
    """
    local = {"steps_per_round": count, "batch_size": 4, "momentum": 0.9}
    changes = noted(method=method, rounds=3, local=local, methods={"feddyn": {"alpha": 5.0}})
    told = [{n: g - at_x[n] for n, g in own.items()} for own, at_x in steps]
    of_parties = [mean(told[at : at + count]) for at in range(0, len(told), count)]  # two a round
    updates = list(zip([c for c in changes if c.target == UPDATE], [*of_parties[:2], *of_parties[4:]], strict=True))
    means = [change for change in changes if change.target == MEAN]
    for change, expected in updates:
        assert_near(change.gradient(list(expected)), expected)
        assert change.steps == count and len(change.names) == 4 * count
    for change, expected in updates[2:]:
        left_in = dataclasses.replace(change, drift={}).gradient(list(expected))
        assert all(distance(g, expected[name]) > 0.05 for name, g in left_in.items())
    if method != "feddyn":
        for change, gradients in zip(means, (of_parties[:2], of_parties[4:]), strict=True):
            expected = mean(gradients)
            assert_near(change.gradient(list(expected)), expected)


class Liar(Poisoning):
    """Keeps what the liar's backbones are changed by, call by call."""

    def __init__(self, run: PreparedRun, seed: int) -> None:
        super().__init__(run, seed, how="backdoor", share=0.5)
        self.sent: list[tuple[Gradient, Gradient]] = []
        """(x, y − x)."""

    def watch(self, exchange: Exchange) -> None:
        if exchange.request.party == "silo-01" and exchange.update is not None:
            self.sent.append((exchange.sent[0].backbone, exchange.update))


@pytest.mark.parametrize("method", ["scaffold", "pfm", "mimelite", "mime", "feddyn"])
def test_a_liar_sends_what_plain_steps_would_have_left(method: str, steps: list[tuple[Gradient, Gradient]]) -> None:
    """Two steps over all its 80 images, after one of the honest party.

    FedDyn's pull back to θ is left in, and the momentum of its steps, which is 0 here; others' steps have none.
    """
    changes = {"methods": {"feddyn": {"alpha": 0.1}}, "data": {"augment": {"flip": False}}}
    local = {"batch_size": 40, "momentum": 0.0 if method == "feddyn" else 0.9}
    recipe = tiny(method=method, rounds=3, local=local, **changes)
    attack, _ = replay(recipe, Liar, Silent())
    assert isinstance(attack, Liar) and len(attack.sent) == 3 and len(steps) == 9
    for round_, (x, moved) in enumerate(attack.sent):
        expected = mean([own for own, _ in steps[3 * round_ + 1 : 3 * round_ + 3]])
        for name, g in expected.items():
            assert distance(-moved[name] / (2 * 0.05) - 5e-4 * x[name], g) < 0.02, name


def test_of_fedrep_the_images_of_the_steps_that_train_the_backbone_are_counted_alone() -> None:
    changes = noted(method="fedrep", rounds=1, local={"steps_per_round": 1, "batch_size": 4})
    assert [(change.target, len(change.names)) for change in changes] == [(UPDATE, 4), (UPDATE, 4), (MEAN, 8)]


def test_a_stage_that_sends_no_backbone_is_no_change_of_one() -> None:
    """`fedbabu` ends with a round in which parties tune models of their own."""
    changes = noted(method="fedbabu", rounds=1, local={"steps_per_round": 1, "batch_size": 4})
    assert [(change.target, len(change.names)) for change in changes] == [(UPDATE, 4), (UPDATE, 4), (MEAN, 8)]


@pytest.mark.parametrize("method", ["mimelite", "mime"])
def test_a_gradient_that_is_sent_is_attacked_with_the_images_that_it_is_of(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, whole = list[Gradient](), training_gradients.full_gradient

    def noting(*about: Any, **settings: Any) -> Gradient:
        sent.append(whole(*about, **settings))
        return sent[-1]

    monkeypatch.setattr(mime, "full_gradient", noting)
    local = {"steps_per_round": 1, "batch_size": 4, "momentum": 0.9, "weight_decay": 0.01}
    changes = noted(method=method, rounds=2, local=local)
    gradients = [change for change in changes if change.target == GRADIENT]
    assert len(gradients) == len(sent) == 4
    for change, gradient in zip(gradients, sent, strict=True):
        without_decay = {n: g - 0.01 * change.before[n] for n, g in gradient.items()}
        assert_near(change.gradient(list(gradient)), without_decay)
        assert change.images == len(change.names) == 16  # all of the party's
    assert {len(change.names) for change in changes if change.target == UPDATE} == {4}


@pytest.mark.parametrize("method", ["mimelite", "mime"])
def test_secure_sums_hide_gradients_and_leave_the_mean_of_the_local_steps(method: str) -> None:
    local = {"steps_per_round": 1, "batch_size": 4}
    secure = {"secure": {"dropouts": 0, "corrupt": 0}}
    changes = noted(method=method, rounds=1, local=local, data={"partition": {"parties": 3}}, privacy=secure)
    assert [(change.target, len(change.names)) for change in changes] == [(MEAN, 12)]
