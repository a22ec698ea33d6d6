"""Which methods secure sums can hide, and what the conformance check makes of others' methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cases import by_default

from coalface.core.method import Federation
from coalface.experiments.conformance.secure import check_secure_sums
from coalface.experiments.conformance.subject import Failure, Subject
from coalface.experiments.plan import preflight
from coalface.methods import METHODS
from coalface.methods.fedavg import FedAvg, State
from coalface.training.local_work import LocalTraining

HIDDEN = {
    **dict.fromkeys(
        "fedavg fedprox mime mimelite moon slowmo fedadam fedyogi fedadagrad pfm feduv solo ditto fedrep fedbabu "
        "adafedfr".split(),
        "yes",
    ),
    **dict.fromkeys(
        ("fedfr-joint", "ss-fedfr", "cl-fedfr", "finetune", "kd"),
        "yes, but not rows of classifier that one party alone changes",
    ),
}
"""Method -> what `coalface methods` says of it; all others are refused."""


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_whether_its_replies_can_be_hidden_or_why_not(name: str) -> None:
    says = preflight.secure_sums(name)
    assert says == HIDDEN[name] if name in HIDDEN else says.startswith("no: ") and "step " in says or "posts" in says


@pytest.mark.parametrize("name", ["scaffold", *by_default(0, ["feddyn"])])
def test_others_can_be_hidden_where_all_weigh_alike(name: str, tmp_path: Path) -> None:
    settings = {"weights": "equal", "local": LocalTraining(steps_per_round=2, batch_size=4, lr=0.05)}
    subject = Subject(METHODS[name], tmp_path, settings)
    check_secure_sums(subject)
    assert (tmp_path / "sums-True" / "opened.jsonl").exists()


@dataclass(frozen=True, kw_only=True)
class Peeks(FedAvg):
    """Trains on only where it sees single replies."""

    title = "peeks at single replies"

    def round(self, fed: Federation, state: State) -> State:
        kept: dict[str, Any] = {}

        class Peeking:
            def __getattr__(self, name: str) -> Any:
                return getattr(fed, name)

            def ask(self, *arguments: Any, **named: Any) -> Any:
                kept["answer"] = fed.ask(*arguments, **named)
                return kept["answer"]

        after = FedAvg.round(self, Peeking(), state)  # type: ignore[arg-type]
        return after if kept["answer"].each else replace(after, backbone=state.backbone)


def test_a_method_that_comes_to_another_state_without_single_replies_fails_the_check(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="the state differs"):
        check_secure_sums(Subject(Peeks, tmp_path))
