from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from server_runs import Asks
from toys import CALLS, Moved, Moves, Nudge, State, Values

from coalface.core import codec
from coalface.core.method import Federation, Mean
from coalface.core.parsing import parse_json
from coalface.engine.faults import SimulatedFaults
from coalface.engine.local import InProcess
from coalface.engine.party import commits
from coalface.engine.party.request import Request
from coalface.engine.transport import Reply
from coalface.experiments.conformance.tiny_federation import Stop, run, stopping

pytestmark = pytest.mark.usefixtures("toy_steps")
DOWN = Values(values={"a": torch.zeros(3)})
NUDGE = Nudge(amount=torch.zeros(1))


def move(**more: Any) -> Any:
    return lambda m, f, s: f.ask(m.move, **{"common": DOWN, **more})


@pytest.mark.parametrize(
    ("asks", "error", "names"),
    [
        (move(to=["nobody"]), ValueError, "nobody"),
        (move(common=NUDGE), TypeError, "Nudge"),
        (lambda m, f, s: f.ask(m.remember, to=["silo-1"], each={"silo-0": NUDGE}), ValueError, "silo-1"),
        (lambda m, f, s: f.ask(m.remember, common=DOWN), TypeError, "common"),
        (move(aggregate=[Mean("w")]), ValueError, "'w'"),
        (move(aggregate=[Mean("values"), Mean("values", by="images")]), ValueError, "same name"),
        (move(aggregate=[Mean("values"), Mean("delta", name="values")]), ValueError, "same name"),
        (move(aggregate=[Mean("values", by={"silo-0": 1, "silo-O1": 1})]), ValueError, "silo-O1"),
        (lambda m, f, s: f.sample("trainer", 9), ValueError, "9 of 3"),
    ],
)
def test_what_cannot_be_asked_is_an_error_before_anybody_trains(
    tmp_path: Path, asks: Any, error: type[Exception], names: str
) -> None:
    with pytest.raises(error, match=names):
        run(Asks(rounds=1, asks=asks), tmp_path)
    assert CALLS == []


def test_an_answer_tells_who_arrived_even_when_all_fields_were_aggregated(tmp_path: Path) -> None:
    draws: list[Any] = []

    def ask(method: Moves, fed: Federation, state: State) -> None:
        common, aggregate = Values(values=state.values), [Mean("values"), Mean("delta")]
        draws.append(fed.ask(method.remember, each={"silo-1": NUDGE, "silo-0": NUDGE}))
        draws.append(fed.ask(method.move, common=common, aggregate=aggregate))

    run(Asks(rounds=1, asks=ask), tmp_path, faults=SimulatedFaults(corrupt={"silo-2": "nan"}))
    notes, moves = draws
    assert (notes.arrived, list(notes.each), notes.each["remembered"]) == (
        ("silo-0", "silo-1"),
        ["drawn", "remembered"],
        {"silo-0": 1, "silo-1": 1},
    )
    assert (notes.aggregated, set(moves.aggregated), set(moves.each)) == ({}, {"values", "delta"}, {"images", "loss"})
    assert (moves.arrived, set(moves.failed)) == (("silo-0", "silo-1"), {"silo-2"})


def test_what_a_run_writes_is_strict_json(tmp_path: Path) -> None:
    def ask(method: Moves, fed: Federation, state: State) -> None:
        fed.log(gone=math.nan, far=math.inf, near=0.5)
        fed.ask(method.move, common=Values(values=state.values))

    run(Asks(rounds=1, asks=ask), tmp_path)
    for name in ("metrics.jsonl", "events.jsonl"):
        for line in (tmp_path / name).read_text().splitlines():
            parse_json(line)
    record = parse_json((tmp_path / "metrics.jsonl").read_text())
    assert (record["gone"], record["far"], record["near"]) == (None, None, 0.5)


def test_a_reason_that_a_party_writes_is_cut(tmp_path: Path) -> None:
    """The names in a reply are the party's, and what is wrong with it quotes them."""
    long = "\x1b" + "x" * 10_000

    class Naming(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for request, reply in super().exchange(requests):
                if request.party == "silo-0":
                    moved = Moved(values={long: torch.zeros(1)}, delta={}, images=1, loss=0.0)
                    yield request, codec.encode(moved)
                else:
                    yield request, reply

    def ask(method: Moves, fed: Federation, state: State) -> None:
        fed.ask(method.move, common=Values(values=state.values))

    run(Asks(rounds=1, asks=ask), tmp_path, transport=Naming)
    (reason,) = parse_json((tmp_path / "metrics.jsonl").read_text())["failed"].values()
    assert len(reason) <= 201 and "\\x1bxxx" in reason


def test_single_fields_are_not_written_over_later(tmp_path: Path) -> None:
    draws: list[dict[str, Any]] = []

    def ask(method: Moves, fed: Federation, state: State) -> None:
        for _ in range(2):
            draws.append(fed.ask(method.remember, each={p: NUDGE for p in fed.parties("trainer")}).each["drawn"])

    run(Asks(rounds=2, asks=ask), tmp_path)
    drawn = [tuple(t.tolist()) for each in draws for t in each.values()]
    assert len(set(drawn)) == 12  # every party, call and round draws by itself, and none took another's memory


def test_single_fields_of_saved_replies_do_not_change_with_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved reply may be a map of its commit, which is written over a few rounds later."""
    draws: list[Any] = []

    def ask(method: Moves, fed: Federation, state: State) -> None:
        draws.append(fed.ask(method.remember, each={p: NUDGE for p in fed.parties("trainer")}).each["drawn"])

    monkeypatch.setattr(commits, "_MAPPED", 0)
    method = Asks(rounds=6, asks=ask)
    run(method, tmp_path / "unbroken")
    expected = [{p: t.tolist() for p, t in each.items()} for each in draws]
    with pytest.raises(Stop):
        run(method, tmp_path / "broken", transport=stopping(5))  # all of round 2 is answered, and nobody heard
    draws.clear()
    run(method, tmp_path / "broken")
    assert [{p: t.tolist() for p, t in each.items()} for each in draws] == expected[1:]


# --- memory: one request ahead ----------------------------------------------------------------------------------------


def test_one_request_is_made_ahead_of_the_reply_that_is_summed(tmp_path: Path) -> None:
    order: list[str] = []

    class Watching(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            def noted() -> Iterator[Request]:
                for request in requests:
                    order.append(f"made {request.party}")
                    yield request

            for request, reply in super().exchange(noted()):
                yield request, reply
                order.append(f"summed {request.party}")

    run(Moves(rounds=1), tmp_path, transport=Watching)
    assert order == ["made silo-0", "made silo-1", "summed silo-0", "made silo-2", "summed silo-1", "summed silo-2"]
