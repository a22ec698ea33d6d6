"""The conformance suite over every registered method. A new method joins by being registered.

Where the settings of `tiny` do not fit a method, it has a line in `worlds.OWN`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from torch import Tensor

from coalface.core.method import Federation, Mean, Party, Tensors, free, message, step
from coalface.engine import processes
from coalface.engine.faults import COUNT_FAULTS, TENSOR_FAULTS
from coalface.experiments.conformance import checks
from coalface.experiments.conformance.checks import CHECKS, check_kill, check_nonsense, check_resume
from coalface.experiments.conformance.leaks import leaks
from coalface.experiments.conformance.subject import Subject
from coalface.experiments.conformance.tiny_federation import LOSS, WORK, Tiny
from coalface.methods import METHODS
from coalface.methods.fedavg import FedAvg, Global, State
from coalface.methods.fedfr_joint import FedFRJoint
from coalface.training.local_training import Learner, learn

SLOW = (pytest.mark.slow, pytest.mark.ci)
THREE = ("scaffold", "fedface", "pfm-fv")
"""With state at both sides, with one identity a party, and with validators: by default, of what costs several runs."""
DEFAULT = {"worker processes": THREE, "nonsense": THREE, "lost replies": THREE, "kill and resume": THREE[:1]}
"""Check -> the methods that are held to it by default, where these are not one of a kind; the others are slow."""

SENDS = {name: frozenset({"Own.model"}) for name, cls in METHODS.items() if issubclass(cls, FedFRJoint)} | {
    "fedrep": frozenset({"Own.backbone"}),
    "moon": frozenset({"Contrasted.model"}),
}
"""Method -> the private state that it sends: a party's own last reply."""


def cases(checks: Iterable[str]) -> list[Any]:
    """(check, method) of every registered method."""
    defaults = {check: DEFAULT.get(check, worlds.ONE_OF_A_KIND) for check in checks}
    return [
        pytest.param(check, name, marks=() if name in defaults[check] else SLOW)
        for check in defaults
        for name in METHODS
    ]


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """A registered method to check; the run that nobody disturbs is made once for all checks."""

    @functools.cache
    def subject(name: str) -> Subject:
        return Subject(
            METHODS[name], tmp_path_factory.mktemp(name), worlds.OWN.get(name, {}), SENDS.get(name, frozenset())
        )

    return subject


@pytest.mark.parametrize(("check", "name"), cases(check for check in CHECKS if check != "learning"))
@pytest.mark.usefixtures("quick_workers")
def test_it_conforms(check: str, name: str, subjects: Callable[[str], Subject]) -> None:
    CHECKS[check](subjects(name))


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("name", METHODS)
def test_it_can_be_stopped_at_any_answer(name: str, subjects: Callable[[str], Subject]) -> None:
    places = ((0.0, True), (0.0, False), (0.99, True), (0.99, False), (0.3, True), (0.6, False))
    check_resume(subjects(name), places)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("kind", [kind for kind in (*TENSOR_FAULTS, *COUNT_FAULTS) if kind not in ("nan", "absurd")])
@pytest.mark.parametrize("name", METHODS)
def test_every_kind_of_nonsense_is_refused(name: str, kind: str, subjects: Callable[[str], Subject]) -> None:
    check_nonsense(subjects(name), [kind])


@message
class LeakingUpdate:
    backbone: Tensors
    images: int
    loss: float
    extra: Tensor = free("weight")


@dataclass(frozen=True, kw_only=True)
class Leaking(FedAvg):
    """Sends what it should keep."""

    what: str = "head"

    def round(self, fed: Federation, state: State) -> State:
        aggregate = [Mean("backbone", by="images")]
        answer = fed.ask(self.train, common=Global(backbone=state.backbone), aggregate=aggregate)
        return State(backbone=answer.aggregated["backbone"])

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[LeakingUpdate, Learner]:
        loss, kept = learn(party, common.backbone, own, self.local, self.loss, momentum="reset")
        shared, images = party.backbone.shared(), len(party.data)
        extra = kept.head if self.what == "head" else torch.from_numpy(party.data.take(np.arange(2)))
        return LeakingUpdate(backbone=shared, images=images, loss=loss, extra=extra), kept


@pytest.mark.parametrize(("what", "named"), [("head", "Learner.head"), ("images", "the images")])
def test_a_method_that_leaks_is_found_out(what: str, named: str, tmp_path: Path) -> None:
    method = Leaking(rounds=2, local=WORK, loss=LOSS, what=what)
    assert named in leaks(method, tmp_path, Tiny())


def test_a_kill_is_tried_where_every_process_keeps_sets_in_the_same_order(
    quick_workers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Subject(FedAvg, tmp_path)
    with processes.starting(), ProcessPoolExecutor(1, processes.spawn_context()) as pool:
        order = pool.submit(checks.set_order, subject.variant[1]).result()
    monkeypatch.setattr(checks, "TRIES", 2)
    monkeypatch.setattr(checks, "set_order", lambda build: order)
    check_kill(subject)
