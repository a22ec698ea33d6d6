from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from server_runs import controls, listed, metrics
from toys import CALLS, Moves, State, Values

from coalface.core import codec
from coalface.core.local_results import OWN_MODEL
from coalface.core.method import Federation
from coalface.engine.faults import SimulatedFaults
from coalface.experiments.conformance.tiny_federation import run

pytestmark = pytest.mark.usefixtures("toy_steps")


def test_a_round_is_what_the_method_says(tmp_path: Path) -> None:
    ran = run(Moves(rounds=2), tmp_path)
    # Parties of 12, 11 and 10 images move by 1, 2 and 3: the weighted mean is (12·1 + 11·2 + 10·3) / 33 a round.
    expected = 2 * (12 * 1 + 11 * 2 + 10 * 3) / 33
    assert ran.state.values["a"].tolist() == pytest.approx([expected] * 3)
    assert ran.state.control["a"].tolist() == pytest.approx([2 * (1 + 2 + 3)] * 3)
    assert [c.total["a"][0].item() for c in controls(ran).values()] == [2.0, 4.0, 6.0]
    assert [(r["round"], r["asked"], r["arrived"], r["loss"]) for r in metrics(tmp_path)] == [
        (n, 3, 3, 2.0) for n in (1, 2)
    ]
    assert ran.models.shared is ran.state.values
    assert {p: m["a"][0].item() for p, m in ran.own_models().items()} == {"silo-0": 2.0, "silo-1": 4.0, "silo-2": 6.0}


def test_bytes_are_those_that_were_encoded(tmp_path: Path) -> None:
    ran = run(Moves(rounds=2), tmp_path)
    assert ran.server.at.totals["up"] == sum(listed(tmp_path).values())
    assert ran.server.at.totals["up"] == sum(r["bytes_up"] for r in metrics(tmp_path))
    first = codec.size(Values(values={"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.float64)}))
    assert (
        ran.server.at.totals["down"] == 2 * 3 * first == sum(t.bytes_down for t in ran.server.at.party_stats.values())
    )
    assert [t.rounds for t in ran.server.at.party_stats.values()] == [2, 2, 2]
    assert [t.last_loss for t in ran.server.at.party_stats.values()] == [1.0, 2.0, 3.0]


def test_only_a_sample_trains_and_the_rest_stays_as_it_was(tmp_path: Path) -> None:
    ran = run(Moves(rounds=6, sample=2), tmp_path)
    rounds = {party: sum(call[0] == party for call in CALLS) for party in ran.server.at.party_stats}
    assert sum(rounds.values()) == 12
    assert [t.rounds for t in ran.server.at.party_stats.values()] == list(rounds.values())
    assert {p: c.rounds for p, c in controls(ran).items()} == {p: n for p, n in rounds.items() if n}


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_observers_see_models_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    def observe(server: Any, models: Any) -> dict[str, Any]:
        own = {p: m["a"][0].item() for p, m in server.local_results(OWN_MODEL, models)}
        return {"first": models.shared["a"][0].item(), "own": own}

    plain = run(Moves(rounds=5), tmp_path / "plain")
    evaluated = run(Moves(rounds=5), tmp_path / "judged", observers=[observe, lambda *_: {"two": 2}], evaluate_every=2)
    records = metrics(tmp_path / "judged")
    assert [r["round"] for r in records if "judged" in r] == [2, 4, 5]
    assert records[3]["judged"]["own"] == {"silo-0": 4.0, "silo-1": 8.0, "silo-2": 12.0}
    assert records[3]["judged"]["two"] == 2
    with_evaluation, without = evaluated.bytes(), plain.bytes()
    assert with_evaluation.pop("metrics") != without.pop("metrics")
    assert with_evaluation == without


def test_the_lab_sees_every_party_whoever_dropped_out_or_is_at_work(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Busy(Moves):
        def round(self, fed: Federation, state: State) -> State:
            state = Moves.round(self, fed, state)
            fed.post(self.move, common=Values(values=state.values))
            return state

    seen: list[set[str]] = []

    def observe(server: Any, models: Any) -> dict[str, Any]:
        seen.append(set(dict(server.local_results(OWN_MODEL, models))))
        return {}

    faults = SimulatedFaults(dropout=0.5)
    watched: dict[str, Any] = {"observers": [observe], "evaluate_every": 1}
    run(Moves(rounds=4), tmp_path / "dropout", faults=faults, min_reply_fraction=0.0, **watched)
    run(Busy(rounds=1), tmp_path / "busy", **watched)
    assert seen == [{"silo-0", "silo-1", "silo-2"}] * 5
