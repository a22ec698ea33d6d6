from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import worlds
from toys import CALLS, HOOKS, Control, Lagged, Moves, Nudge, Staged, State, Values
from worlds import Ran, Stop, Tiny, run, stopping

from coalface import wire
from coalface.core import Federation, Mean, Party
from coalface.engines import commits
from coalface.engines.checkpoint import CheckpointError
from coalface.engines.commits import Commit
from coalface.engines.desk import Request
from coalface.engines.local import InProcess
from coalface.engines.transport import Reply, RunFailed
from coalface.engines.trouble import Trouble

pytestmark = pytest.mark.usefixtures("toy_steps")
ROLES = Tiny(parties=4, roles=(("silo-2", "validator"), ("silo-3", "validator")))


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def controls(ran: Ran) -> dict[str, Control]:
    """The private control variate of every party, as it lies on the disk after the run."""
    found = {}
    for party in ran.server.at.tallies:
        (path,) = (ran.folder / "parties" / party).glob("*.commit")
        stored = Commit.open(path).read("Control")
        assert stored is not None
        found[party] = wire.unpack(stored, Control)
    return found


def stopped_and_resumed(method: Any, folder: Path, after: int, build: Any = Tiny(), **rules: Any) -> Ran:  # noqa: B008
    with pytest.raises(Stop):
        run(method, folder, build, transport=stopping(after), **rules)
    return run(method, folder, build, **rules)


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_a_round_is_what_the_method_says(tmp_path: Path) -> None:
    ran = run(Moves(rounds=2), tmp_path)
    # Parties of 12, 11 and 10 images move by 1, 2 and 3: the weighted mean is (12·1 + 11·2 + 10·3) / 33 a round.
    expected = 2 * (12 * 1 + 11 * 2 + 10 * 3) / 33
    assert ran.state.values["a"].tolist() == pytest.approx([expected] * 3)
    assert ran.state.control["a"].tolist() == pytest.approx([2 * (1 + 2 + 3)] * 3)
    assert [c.total["a"][0].item() for c in controls(ran).values()] == [2.0, 4.0, 6.0]
    assert [(r["stage"], r["round"], r["asked"], r["arrived"], r["loss"]) for r in metrics(tmp_path)] == [
        ("train", 1, 3, 3, 2.0),
        ("train", 2, 3, 3, 2.0),
    ]
    assert ran.models.shared is ran.state.values
    assert {p: m["a"][0].item() for p, m in ran.own_models().items()} == {"silo-0": 2.0, "silo-1": 4.0, "silo-2": 6.0}


def test_bytes_are_those_that_were_encoded(tmp_path: Path) -> None:
    ran = run(Moves(rounds=2), tmp_path)
    ledgers = [json.loads(t) for p in (tmp_path / "ledger").iterdir() for t in p.read_text().splitlines()]
    assert ran.server.at.totals["up"] == sum(entry["bytes"] for entry in ledgers)
    assert ran.server.at.totals["up"] == sum(r["bytes_up"] for r in metrics(tmp_path))
    first = wire.size(Values(values={"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.float64)}))
    assert ran.server.at.totals["down"] == 2 * 3 * first == sum(t.bytes_down for t in ran.server.at.tallies.values())
    assert [t.rounds for t in ran.server.at.tallies.values()] == [2, 2, 2]
    assert [t.last_loss for t in ran.server.at.tallies.values()] == [1.0, 2.0, 3.0]


def test_only_a_sample_trains_and_the_rest_stays_as_it_was(tmp_path: Path) -> None:
    ran = run(Moves(rounds=6, sample=2), tmp_path)
    rounds = {party: sum(call[0] == party for call in CALLS) for party in ran.server.at.tallies}
    assert sum(rounds.values()) == 12
    assert [t.rounds for t in ran.server.at.tallies.values()] == list(rounds.values())
    assert {p: c.rounds for p, c in controls(ran).items()} == {p: n for p, n in rounds.items() if n}


# --- what fails -------------------------------------------------------------------------------------------------------


def test_a_refused_reply_is_named_and_leaves_its_party_where_it_was(tmp_path: Path) -> None:
    ran = run(Moves(rounds=2), tmp_path, trouble=Trouble(corrupt={"silo-1": "nan"}))
    assert ran.state.values["a"].tolist() == pytest.approx([2 * (12 * 1 + 10 * 3) / 22] * 3)
    assert ran.state.control["a"].tolist() == pytest.approx([2.0 * (1 + 3)] * 3)
    assert metrics(tmp_path)[0]["failed"] == {"silo-1": "values/a holds values that are not finite"}
    assert ran.server.at.tallies["silo-1"].failed == 2
    assert list((tmp_path / "parties" / "silo-1").iterdir()) == []


@pytest.mark.parametrize("kind", ["lost", "dropout"])
def test_control_variates_add_up_whatever_is_lost(tmp_path: Path, kind: str) -> None:
    """SCAFFOLD's invariant: the server's c is the mean of the c_i, through lost replies and abandoned rounds."""
    trouble = Trouble(**{kind: 0.4})
    ran = run(Moves(rounds=12), tmp_path, trouble=trouble, quorum=0.6, patience=12)
    records = metrics(tmp_path)
    assert {r["abandoned"] for r in records} == {True, False}
    total = sum(c.total["a"][0].item() for c in controls(ran).values())
    assert ran.state.control["a"][0].item() == pytest.approx(total)
    done = [r for r in records if not r["abandoned"]]
    accepted = {p: sum(p not in r["failed"] for r in done) for p in ran.server.at.tallies}
    assert {p: c.rounds for p, c in controls(ran).items()} == accepted
    trained = {p: sum(call[0] == p for call in CALLS) for p in ran.server.at.tallies}
    reached = 12 if kind == "lost" else None  # a lost reply was trained for, a dropped party was not
    assert kind == "dropout" or set(trained.values()) == {reached}
    assert kind == "lost" or sum(trained.values()) == sum(r["arrived"] for r in records)


def test_an_abandoned_round_changes_nothing_and_says_why(tmp_path: Path) -> None:
    def broken(party: Party) -> None:
        if party.round == 2 and party.name != "silo-0":
            raise ValueError("cannot read its images")

    HOOKS.append(broken)
    ran = run(Moves(rounds=3), tmp_path, on_error="exclude")
    (HOOKS.clear(), CALLS.clear())
    good = run(Moves(rounds=2), tmp_path / "good")
    assert torch.equal(ran.state.values["a"], good.state.values["a"])
    record = metrics(tmp_path)[1]
    assert (record["abandoned"], record["arrived"]) == (True, 1)
    assert record["reason"].startswith("1 of 3 replies count, 2 are needed (silo-1: silo-1, step move, train round 2:")
    assert [c.rounds for c in controls(ran).values()] == [2, 2, 2]


def only_first(party: Party) -> None:
    if party.name != "silo-0" and CALLS[-1][1] == "remember":
        raise ValueError("no")


def test_what_a_round_accepted_before_it_was_abandoned_does_not_count(tmp_path: Path) -> None:
    """The first ask of the last round goes well and the second does not."""
    HOOKS.append(lambda party: only_first(party) if party.round == 3 else None)
    ran = run(Moves(rounds=3, note=True, at_least=3), tmp_path, on_error="exclude")
    assert metrics(tmp_path)[-1]["abandoned"]
    assert [c.rounds for c in controls(ran).values()] == [2, 2, 2]
    assert {p: m["a"][0].item() for p, m in ran.own_models().items()} == {"silo-0": 2.0, "silo-1": 4.0, "silo-2": 6.0}


@pytest.mark.parametrize(("quorum", "parties", "need"), [(0.5, 3, 2), (0.0, 3, 1), (1.0, 3, 3), (0.34, 3, 2)])
def test_a_quorum_is_rounded_up(tmp_path: Path, quorum: float, parties: int, need: int) -> None:
    for bad in range(parties):
        trouble = Trouble(corrupt={f"silo-{i}": "nan" for i in range(bad)})
        run(Moves(rounds=1), tmp_path / str(bad), trouble=trouble, quorum=quorum)
        assert metrics(tmp_path / str(bad))[0]["abandoned"] == (parties - bad < need)


def test_a_quorum_that_is_met_exactly_is_met(tmp_path: Path) -> None:
    parties = 25
    missing = {f"silo-{i}": "nan" for i in range(25 - 7)}  # 0.28 · 25 is a little more than 7 in floating point
    assert 0.28 * 25 > 7
    run(Moves(rounds=1), tmp_path, Tiny(parties=parties), trouble=Trouble(corrupt=missing), quorum=0.28)
    assert not metrics(tmp_path)[0]["abandoned"]


def test_a_failed_step_ends_a_simulation_with_its_cause(tmp_path: Path) -> None:
    def broken(party: Party) -> None:
        raise OSError("the disk is gone")

    HOOKS.append(broken)
    with pytest.raises(
        RunFailed, match=r"silo-0, step move, train round 1: OSError: the disk is gone.*exclude"
    ) as caught:
        run(Moves(), tmp_path)
    assert isinstance(caught.value.__cause__, Exception)
    assert isinstance(caught.value.__cause__.__cause__, OSError)


@dataclass(frozen=True, kw_only=True)
class Weighted(Moves):
    """Only one party has a weight."""

    def round(self, fed: Federation, state: State) -> State:
        folds = [Mean("values", by={"silo-1": 1.0})]
        answer = fed.ask(self.move, common=Values(values=state.values), folds=folds)
        return State(values=answer.folded["values"], control=state.control)


def test_a_round_without_any_weight_is_abandoned(tmp_path: Path) -> None:
    run(Weighted(rounds=1), tmp_path, trouble=Trouble(corrupt={"silo-1": "nan"}))
    assert "give a party that answers a weight" in metrics(tmp_path)[0]["reason"]


# --- asking wrongly ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Asks(Moves):
    """Asks whatever a test wants to see asked."""

    asks: Callable[[Moves, Federation, State], Any]

    def round(self, fed: Federation, state: State) -> State:
        self.asks(self, fed, state)
        return state


DOWN = Values(values={"a": torch.zeros(3)})
NUDGE = Nudge(amount=torch.zeros(1))


@pytest.mark.parametrize(
    ("asks", "error", "says"),
    [
        (lambda m, f, s: f.ask(m.move, to=["nobody"], common=DOWN), ValueError, r"\['nobody'\] are not parties with"),
        (lambda m, f, s: f.ask(m.move, to=[], common=DOWN), ValueError, "there are no parties with the role 'trainer'"),
        (lambda m, f, s: f.ask(m.move, to=["silo-1", "silo-1"], common=DOWN), ValueError, "named twice.*each once"),
        (
            lambda m, f, s: f.ask(m.remember, to=["silo-1"], each={"silo-0": NUDGE}),
            ValueError,
            r"nothing for \['silo-1",
        ),
        (lambda m, f, s: f.ask(m.move, common=NUDGE), TypeError, "`common` is a Nudge, but the step declares .*Values"),
        (lambda m, f, s: f.ask(m.move), TypeError, "the step needs `common`, a Values; give it"),
        (lambda m, f, s: f.ask(m.remember, common=DOWN), TypeError, "`common` is a Values, but the step declares None"),
        (
            lambda m, f, s: f.ask(m.move, common=DOWN, folds=[Mean("w")]),
            ValueError,
            r"Mean\('w'\): no tensors of Moved",
        ),
        (
            lambda m, f, s: f.ask(m.move, common=DOWN, folds=[Mean("values"), Mean("values", by="images")]),
            ValueError,
            "two folds are called 'values', so one would be lost: give each Mean a `name`",
        ),
        (
            lambda m, f, s: f.ask(m.move, common=DOWN, folds=[Mean("values"), Mean("delta", name="values")]),
            ValueError,
            "two folds are called 'values'",
        ),
        (
            lambda m, f, s: f.ask(m.move, common=DOWN, folds=[Mean("values", by={"silo-0": 1, "silo-O1": 1})]),
            ValueError,
            r"gives weights to \['silo-O1'\], .*The parties are silo-0, silo-1, silo-2",
        ),
        (
            lambda m, f, s: f.ask(m.remember, each={"silo-0": NUDGE}, folds=[Mean("drawn")]),
            ValueError,
            r"Note.drawn is free\(\)",
        ),
        (lambda m, f, s: f.sample("trainer", 9), ValueError, "cannot sample 9 of 3"),
    ],
)
def test_asking_what_cannot_be_answered_is_an_error_before_anybody_trains(
    tmp_path: Path, asks: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        run(Asks(rounds=1, asks=asks), tmp_path)
    assert CALLS == []


def test_an_answer_tells_who_arrived_even_when_all_fields_were_folded(tmp_path: Path) -> None:
    seen: list[Any] = []

    def ask(method: Moves, fed: Federation, state: State) -> None:
        common, folds = Values(values=state.values), [Mean("values"), Mean("delta")]
        seen.append(fed.ask(method.remember, each={"silo-1": NUDGE, "silo-0": NUDGE}))
        seen.append(fed.ask(method.move, common=common, folds=folds))

    run(Asks(rounds=1, asks=ask), tmp_path, trouble=Trouble(corrupt={"silo-2": "nan"}))
    notes, moves = seen
    assert (notes.arrived, list(notes.each), notes.each["remembered"]) == (
        ("silo-0", "silo-1"),
        ["drawn", "remembered"],
        {"silo-0": 1, "silo-1": 1},
    )
    assert (notes.folded, set(moves.folded), set(moves.each)) == ({}, {"values", "delta"}, {"images", "loss"})
    assert (moves.arrived, set(moves.failed)) == (("silo-0", "silo-1"), {"silo-2"})


def test_single_fields_are_not_written_over_later(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def ask(method: Moves, fed: Federation, state: State) -> None:
        for _ in range(2):
            seen.append(fed.ask(method.remember, each={p: NUDGE for p in fed.parties("trainer")}).each["drawn"])

    run(Asks(rounds=2, asks=ask), tmp_path)
    drawn = [tuple(t.tolist()) for each in seen for t in each.values()]
    assert len(set(drawn)) == 12  # every party, call and round draws by itself, and none took another's memory


def test_single_fields_of_saved_replies_do_not_change_with_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved reply may be a map of its commit, which is written over a few rounds later."""
    seen: list[Any] = []

    def ask(method: Moves, fed: Federation, state: State) -> None:
        seen.append(fed.ask(method.remember, each={p: NUDGE for p in fed.parties("trainer")}).each["drawn"])

    monkeypatch.setattr(commits, "_MAPPED", 0)
    method = Asks(rounds=6, asks=ask)
    run(method, tmp_path / "unbroken")
    expected = [{p: t.tolist() for p, t in each.items()} for each in seen]
    with pytest.raises(Stop):
        run(method, tmp_path / "broken", transport=stopping(5))  # all of round 2 is answered, and nobody heard
    seen.clear()
    run(method, tmp_path / "broken")
    assert [{p: t.tolist() for p, t in each.items()} for each in seen] == expected[1:]


# --- memory: one request ahead ----------------------------------------------------------------------------------------


def test_the_next_request_is_made_after_the_last_reply_was_folded(tmp_path: Path) -> None:
    order: list[str] = []

    class Watching(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            def noted() -> Iterator[Request]:
                for request in requests:
                    order.append(f"made {request.party}")
                    yield request

            for request, reply in super().exchange(noted()):
                yield request, reply
                order.append(f"folded {request.party}")

    run(Moves(rounds=1), tmp_path, transport=Watching)
    assert order == [f"{what} silo-{i}" for i in range(3) for what in ("made", "folded")]


# --- work beside training ---------------------------------------------------------------------------------------------


def test_posted_work_is_collected_in_the_round_that_was_set(tmp_path: Path) -> None:
    ran = run(Lagged(rounds=5, lag=2), tmp_path, ROLES)
    # Posted in round 1 (values 0), collected in round 3 and posted anew (values 2), collected in 4 (values 3), in 5.
    # The score is 2 · the sum of three equal values + how many the validator has seen.
    assert {k: t.tolist() for k, t in ran.state.scores.items()} == {
        "round-3": [1.0, 1.0],
        "round-4": [2.0 * 3 * 2 + 2] * 2,
        "round-5": [2.0 * 3 * 3 + 3] * 2,
    }


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("after", range(1, 16, 2))
def test_a_run_with_open_tickets_stopped_anywhere_and_resumed_is_the_unbroken_run(
    tmp_path: Path, after: int, every: int
) -> None:
    method = Lagged(rounds=5, lag=2)
    unbroken = run(method, tmp_path / "unbroken", ROLES, checkpoint=every).bytes()
    resumed = stopped_and_resumed(method, tmp_path / "broken", after, ROLES, checkpoint=every).bytes()
    assert resumed == unbroken


def test_a_party_that_still_works_on_something_is_not_asked(tmp_path: Path) -> None:
    def ask(method: Moves, fed: Federation, state: State) -> None:
        fed.post(method.move, to=["silo-1"], common=Values(values=state.values))
        fed.ask(method.move, common=Values(values=state.values))

    with pytest.raises(ValueError, match=r"step move: \['silo-1'\] still work on what was posted.*collect that ticket"):
        run(Asks(rounds=1, asks=ask), tmp_path)


def test_a_ticket_is_collected_once(tmp_path: Path) -> None:
    def ask(method: Moves, fed: Federation, state: State) -> None:
        ticket = fed.post(method.move, common=Values(values=state.values))
        assert fed.collect(ticket).arrived == fed.parties("trainer")
        fed.collect(ticket)

    with pytest.raises(ValueError, match="is not open: a ticket is collected once"):
        run(Asks(rounds=1, asks=ask), tmp_path)


def test_work_posted_in_an_abandoned_round_is_over_before_the_next(tmp_path: Path) -> None:
    HOOKS.append(lambda party: 1 / 0 if party.round == 1 and party.name == "silo-0" else None)
    ran = run(Lagged(rounds=4, lag=1, fragile=True), tmp_path, ROLES, on_error="exclude")
    assert [r["abandoned"] for r in metrics(tmp_path)] == [True, False, False, False]
    # The candidate of the abandoned round was scored, and that does not count: 3 posted, 2 collected, 1 left open.
    assert {k: t.tolist() for k, t in ran.state.scores.items()} == {"round-3": [1.0] * 2, "round-4": [8.0] * 2}
    scored = [call for call in CALLS if call[1] == "score"]
    assert [call[3] for call in scored] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_work_of_an_abandoned_round_ends_from_the_state_that_it_was_posted_on(tmp_path: Path) -> None:
    """The same in every engine, although one does the work at once and another when it is collected."""
    bases: dict[str, list[str | None]] = {"posted": [], "collected": []}

    class Spying(InProcess):
        def post(self, ticket: Any, requests: Any) -> None:
            bases["posted"] += [request.base for request in requests]

        def collect(self, ticket: Any, requests: Any) -> Iterator[tuple[Request, Reply]]:
            bases["collected"] += [request.base for request in requests]
            return super().collect(ticket, requests)

    def ask(method: Moves, fed: Federation, state: State) -> None:
        fed.ask(method.remember, each={"silo-0": NUDGE})
        fed.post(method.remember, each={"silo-0": NUDGE})
        fed.ask(method.move, to=["silo-1"], common=Values(values=state.values), at_least=2)

    run(Asks(rounds=1, asks=ask), tmp_path, transport=Spying)
    assert bases["posted"] == bases["collected"] != [None]


# --- stages -----------------------------------------------------------------------------------------------------------


def test_a_stage_hands_its_state_to_the_next(tmp_path: Path) -> None:
    ran = run(Staged(), tmp_path)
    assert ran.state.begun_with["a"].tolist() == [2.0] * 3
    assert ran.state.sum.item() == 3 * (1 + 2 + 3)
    assert [(r["stage"], r["round"]) for r in metrics(tmp_path)] == [
        ("moves", 1),
        ("moves", 2),
        ("sums", 1),
        ("sums", 2),
    ]
    assert {(call[2], call[3]) for call in CALLS if call[1] == "remember"} == {("sums", 0), ("sums", 1), ("sums", 2)}


@pytest.mark.parametrize("after", range(15))
def test_every_stage_can_be_resumed(tmp_path: Path, after: int) -> None:
    unbroken = run(Staged(), tmp_path / "unbroken", checkpoint=3).bytes()
    assert stopped_and_resumed(Staged(), tmp_path / "broken", after, checkpoint=3).bytes() == unbroken


# --- stopping and resuming --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("after", range(0, 24, 3))
def test_stopped_anywhere_and_resumed_is_the_unbroken_run(tmp_path: Path, after: int, every: int) -> None:
    method, rules = Moves(rounds=5, note=True), {"checkpoint": every, "trouble": Trouble(lost=0.2), "quorum": 0.3}
    unbroken = run(method, tmp_path / "unbroken", **rules)
    resumed = stopped_and_resumed(method, tmp_path / "broken", after, **rules)
    assert resumed.bytes() == unbroken.bytes()
    for what in ("tallies", "totals"):
        assert getattr(resumed.server.at, what) == getattr(unbroken.server.at, what)


def test_tallies_survive_a_resume_where_nothing_is_sent_down(tmp_path: Path) -> None:
    method = worlds.recipe("solo")[0]
    unbroken = run(method, tmp_path / "unbroken")
    resumed = stopped_and_resumed(method, tmp_path / "broken", 7)
    assert resumed.server.at.tallies == unbroken.server.at.tallies
    assert [t.rounds for t in resumed.server.at.tallies.values()] == [3, 3, 3]


@pytest.mark.parametrize("name", ["solo", "fedavg"])
def test_nothing_is_pending_after_a_run(tmp_path: Path, name: str) -> None:
    run(worlds.recipe(name)[0], tmp_path)
    assert [len(list(p.iterdir())) for p in sorted((tmp_path / "parties").iterdir())] == [1, 1, 1]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = run(Moves(), tmp_path).bytes()
    ran = len(CALLS)
    assert run(Moves(), tmp_path).bytes() == first
    assert len(CALLS) == ran


def test_lines_of_rounds_that_are_repeated_are_taken_back(tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 4:
            raise Stop

    with pytest.raises(Stop):
        run(Moves(rounds=5), tmp_path, checkpoint=3, report=stop)
    assert len(metrics(tmp_path)) == 4
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "cut')
    run(Moves(rounds=5), tmp_path, checkpoint=3)
    assert [r["round"] for r in metrics(tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("resumed_before", [False, True])
def test_a_damaged_checkpoint_is_removed_and_the_one_before_it_serves(tmp_path: Path, resumed_before: bool) -> None:
    """Stopped in round 5, when some parties have answered already; the checkpoint of round 4 cannot be read."""
    unbroken = run(Moves(rounds=5), tmp_path / "unbroken").bytes()
    for after in (12, 1) if resumed_before else (13,):
        with pytest.raises(Stop):
            run(Moves(rounds=5), tmp_path / "broken", save_replies=False, transport=stopping(after))
    last = sorted((tmp_path / "broken" / "checkpoints").iterdir())[-1]
    (last / "state.safetensors").unlink()
    with pytest.raises(CheckpointError, match="Remove that folder"):
        run(Moves(rounds=5), tmp_path / "broken")
    shutil.rmtree(last)
    assert run(Moves(rounds=5), tmp_path / "broken", save_replies=False).bytes() == unbroken


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"numerics": replace(worlds.NUMERICS, block=4)}, r"other numerics: block 2 \(now 4\)"),
        ({"numerics": replace(worlds.NUMERICS, threads=3, cohorts="on")}, r"threads 1 \(now 3\), cohorts off \(now on"),
        ({"seed": 1}, "other numerics: the seed"),
    ],
)
def test_a_run_is_not_resumed_with_other_numerics(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    run(Moves(rounds=2), tmp_path)
    with pytest.raises(CheckpointError, match=says + r".*Resume with the same, or start a new run"):
        run(Moves(rounds=2), tmp_path, **changes)


# --- judging ----------------------------------------------------------------------------------------------------------


def test_observers_see_models_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    def observe(server: Any, models: Any) -> dict[str, Any]:
        own = {p: m["a"][0].item() for p, m in server.own_models(models)}
        return {"first": models.shared["a"][0].item(), "own": own}

    plain = run(Moves(rounds=5), tmp_path / "plain")
    judged = run(Moves(rounds=5), tmp_path / "judged", observers=[observe, lambda *_: {"two": 2}], judge=2)
    records = metrics(tmp_path / "judged")
    assert [r["round"] for r in records if "judged" in r] == [2, 4, 5]
    assert records[3]["judged"]["own"] == {"silo-0": 4.0, "silo-1": 8.0, "silo-2": 12.0}
    assert records[3]["judged"]["two"] == 2
    with_judging, without = judged.bytes(), plain.bytes()
    assert with_judging.pop("metrics") != without.pop("metrics")
    assert with_judging == without


def test_the_lab_sees_every_party_whoever_dropped_out_or_is_at_work(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Busy(Moves):
        def round(self, fed: Federation, state: State) -> State:
            state = Moves.round(self, fed, state)
            fed.post(self.move, common=Values(values=state.values))
            return state

    seen: list[set[str]] = []

    def observe(server: Any, models: Any) -> dict[str, Any]:
        seen.append(set(dict(server.own_models(models))))
        return {}

    trouble = Trouble(dropout=0.5)
    run(Moves(rounds=4), tmp_path / "dropout", observers=[observe], judge=1, trouble=trouble, quorum=0.0)
    run(Busy(rounds=1), tmp_path / "busy", observers=[observe], judge=1)
    assert seen == [{"silo-0", "silo-1", "silo-2"}] * 5
