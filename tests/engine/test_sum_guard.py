"""Sums that hide single replies are opened over one set of parties by one set of weights, also over a kill."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_runs import metrics

from coalface.core.method import Abandoned, Mean, Ticket
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.run_state import Call
from coalface.engine.sums.opened import Opened
from coalface.engine.sums.running import RunningMean
from coalface.engine.transport import Reply
from coalface.experiments.conformance.tiny_federation import LOSS, Ran, Tiny, run
from coalface.methods import METHODS
from coalface.training.federated_validation import FederatedValidation
from coalface.training.local_work import LocalTraining

FIVE = Tiny(parties=5, validators=1)
WORK = LocalTraining(steps_per_round=2, batch_size=4, lr=0.1, momentum=0.9)


def aggregated(rounds: int = 4, **settings: Any) -> Any:
    validation = FederatedValidation(fv="folded", smoothing=0.5, **settings)
    return METHODS["pfm-fv"](rounds=rounds, local=WORK, loss=LOSS, validation=validation)


class Dies(BaseException):
    """The process is killed here."""


class DiesInRound3(InProcess):
    """The sums of round 3 have been opened, and no checkpoint of it was written."""

    def post(self, ticket: Ticket, requests: Sequence[Request]) -> None:
        if ticket.round == 3:
            raise Dies
        super().post(ticket, requests)


class AwayInRound3(InProcess):
    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        for request, reply in super().exchange(requests):
            yield request, StepFailed("away") if (request.round, request.party) == (3, "silo-2") else reply


class DeafInRound3(InProcess):
    """The validator does not answer what is collected after the kill, so that the weighting does not move as before."""

    def collect(self, ticket: Ticket, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        for request, reply in super().collect(ticket, requests):
            yield request, StepFailed("away") if ticket.round == 1 else reply


def opened_sums(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    sums: list[str] = []
    result = RunningMean.result
    monkeypatch.setattr(RunningMean, "result", lambda self: sums.append(self.mean.key) or result(self))
    return sums


def killed_and_resumed(folder: Path, transport: Any = InProcess, *, every: int = 1) -> Ran:
    with pytest.raises(Dies):
        run(aggregated(), folder, FIVE, transport=DiesInRound3, checkpoint_every=every)
    return run(aggregated(), folder, FIVE, transport=transport, checkpoint_every=every, on_error="exclude")


def test_a_repeated_round_in_which_the_same_parties_answer_is_the_same_round(tmp_path: Path) -> None:
    whole = run(aggregated(), tmp_path / "whole", FIVE)
    ran = killed_and_resumed(tmp_path / "killed")
    assert ran.bytes() == whole.bytes() and not any(r["abandoned"] for r in metrics(ran.folder))
    assert len((ran.folder / "opened.jsonl").read_text().splitlines()) == 4  # one for a round, though 3 ran twice
    assert (ran.folder / "opened.jsonl").read_bytes() == (whole.folder / "opened.jsonl").read_bytes()


@pytest.mark.parametrize(("transport", "every"), [(AwayInRound3, 1), (AwayInRound3, 4), (DeafInRound3, 4)])
def test_a_repeated_round_with_other_parties_or_weights_opens_no_sum(
    transport: Any, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Dies):
        run(aggregated(), tmp_path, FIVE, transport=DiesInRound3, checkpoint_every=every)
    sums = opened_sums(monkeypatch)
    ran = run(aggregated(), tmp_path, FIVE, transport=transport, checkpoint_every=every, on_error="exclude")
    lines = metrics(ran.folder)
    assert [r["abandoned"] for r in lines] == [False, False, True, False]
    assert "opened over other parties or by other weights" in lines[2]["reason"]
    assert len(sums) == 3 * (1 if every == 1 else 3)  # of rounds 4, or 1, 2 and 4


CALL = Call("train", ("a", "b", "c"), "train", 7, 9, 7, 1, None, None)
SUMS = (Mean("backbone", by={"a": 0.5, "b": 0.25, "c": 0.25}, name="one", once=True),)


def test_what_was_opened_is_known_to_the_next_process_also_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "opened.jsonl"
    Opened(path).record(CALL, SUMS, ["b", "a"])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])  # the process was killed while it wrote of another round
    again = Opened(path)
    assert path.read_bytes() == whole
    again.record(CALL, SUMS, ["a", "b"])  # in another order: the same sum
    assert path.read_bytes() == whole
    for aggregate, arrived in (
        (SUMS, ["a", "b", "c"]),
        ((replace(SUMS[0], by={"a": 0.5, "b": 0.3, "c": 0.2}),), ["a", "b"]),
        ((*SUMS, replace(SUMS[0], name="two")), ["a", "b"]),
    ):
        with pytest.raises(Abandoned, match="step train: before the run was resumed"):
            again.record(CALL, aggregate, arrived)
    again.record(replace(CALL, round=8), SUMS, ["a", "c"])
    again.record(replace(CALL, call=2), SUMS, ["a", "c"])
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [7, 8, 7]


def test_what_a_sum_costs_is_written_once_and_before_whom_it_was_opened_over(tmp_path: Path) -> None:
    path, cost = tmp_path / "opened.jsonl", {"asked": ["a", "b", "c"], "rho": 0.5}
    for _ in range(2):
        Opened(path).spend(CALL, **cost)
    asked = Opened(path)
    asked.record(CALL, SUMS, ["a", "b"])
    Opened(path).spend(CALL, **cost)
    assert ["rho" in json.loads(line) for line in path.read_text().splitlines()] == [True, False]
    entry = Opened(path).entries["train", 7, 1]
    assert entry["rho"] == 0.5 and entry["sha256"] == asked.entries["train", 7, 1]["sha256"]
    for other in ({"rho": 0.25}, {"asked": ["a", "b"]}):
        with pytest.raises(Abandoned):
            Opened(path).spend(CALL, **cost | other)
    before, after = Opened(path), Opened(path)
    record = before.record_lines()
    after.spend(replace(CALL, round=8), **cost)
    after.check(record)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match="not as it was written"):
        Opened(path).check(record)
