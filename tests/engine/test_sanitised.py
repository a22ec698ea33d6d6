"""Fields with a method's own noise: what a ledger says of them, and a reply that is made again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import CALLS, Moves, State, Values

from coalface.core import codec
from coalface.core.method import Federation, Party, free, message, step
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request, Withheld
from coalface.engine.transport import Reply, RunFailed
from coalface.experiments.conformance.tiny_federation import run
from coalface.privacy.noise import seeded_secret


@message
class Told:
    row: Tensor | None = free("sanitised")
    rho: float | None = None
    """Of all rows that have left."""


@dataclass(frozen=True, kw_only=True)
class Noises(Moves):
    """Sends a row of its own noise in rounds 1 and 3; the one that a repeated step comes to is `drift` away."""

    drift: float = 0.0

    def round(self, fed: Federation, state: State) -> State:
        fed.ask(self.row, common=Values(values=state.values))
        return state

    @step(role="trainer")
    def row(self, party: Party, common: Values) -> Told:
        assert party.releases.secret == seeded_secret(party.seed)
        CALLS.append((party.name, "row", party.stage, party.round))
        if party.round % 2 == 0:
            return Told(row=None)
        row = torch.ones(2, 3) + self.drift * CALLS.count(CALLS[-1])
        name = f"{party.stage}/{party.round}"
        rho = party.releases.spend(name, hashlib.sha256(codec.raw(row)).digest(), 0.25 * party.round, lambda rho: None)
        return Told(row=row, rho=rho)

    def protection(self, reply: Told) -> str:
        return f"ones, {reply.rho}"


def protections(folder: Path) -> list[tuple[int, str, str]]:
    lines = [json.loads(line) for line in (folder / "ledger" / "silo-1.jsonl").read_text().splitlines()]
    return [(line["round"], line["name"], line["protection"]) for line in lines]


@pytest.mark.usefixtures("toy_steps")
def test_a_ledger_says_how_each_is_protected_and_what_has_left_is_counted(tmp_path: Path) -> None:
    run(Noises(rounds=4), tmp_path)
    assert protections(tmp_path) == [
        (1, "header", "none"), (1, "row", "ones, 0.25"), (2, "header", "none"),
        (3, "header", "none"), (3, "row", "ones, 1.0"), (4, "header", "none"),
    ]  # fmt: skip


class Twice(InProcess):
    """Asks everything twice."""

    again: list[tuple[Any, Any]]

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        for request, reply in InProcess.exchange(self, requests):
            self.again.extend((reply, repeated) for _, repeated in InProcess.exchange(self, [request]))
            yield request, reply


@pytest.mark.usefixtures("toy_steps")
@pytest.mark.parametrize(("drift", "saved", "refused"), [(0.0, False, 0), (1e-6, False, 6), (1e-6, True, 0)])
def test_a_reply_that_is_made_again_counts_once_and_one_that_came_out_otherwise_does_not_leave(
    tmp_path: Path, drift: float, saved: bool, refused: int
) -> None:
    Twice.again = []
    CALLS.clear()
    run(Noises(rounds=3, drift=drift), tmp_path, transport=Twice, save_replies=saved)
    assert sum(isinstance(repeated, Withheld) for _, repeated in Twice.again) == refused
    assert all(reply.data == again.data for reply, again in Twice.again if not isinstance(again, Withheld))
    assert [how for _, name, how in protections(tmp_path) if name == "row"] == [
        f"ones, {rho}"
        for rho in ([0.25, 1.25] if refused else [0.25, 1.0])  # what was made and withheld is counted too
    ]


@dataclass(frozen=True, kw_only=True)
class Mute(Noises):
    """Does not say by what its rows are protected."""

    def protection(self, reply: Told) -> str:
        return Moves.protection(self, reply)


@pytest.mark.usefixtures("toy_steps")
def test_a_method_that_does_not_say_how_sends_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="declared `sanitised`; nothing says by what"):
        run(Mute(rounds=1), tmp_path)
    assert not list((tmp_path / "ledger").glob("*"))
