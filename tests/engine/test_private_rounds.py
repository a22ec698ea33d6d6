"""Beside the noised sums nothing of a round tells a party what another replied, or who was drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import invoked
from toys import Control, Moved, Moves, Values

from coalface.core.method import Party, step
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request
from coalface.engine.transport import Reply
from coalface.experiments.conformance.tiny_federation import run
from coalface.privacy.dp import PartyPrivacy

pytestmark = pytest.mark.usefixtures("toy_steps")


@dataclass(frozen=True, kw_only=True)
class Still(Moves):
    """A party's reply may be zero, as in the neighbouring run."""

    still: str = ""

    @step(role="trainer")
    def move(self, party: Party, own: Control | None, common: Values) -> tuple[Moved, Control]:
        moved, control = Moves.move(self, party, own, common)
        if party.name == self.still:
            zeros = {name: torch.zeros_like(tensor) for name, tensor in moved.delta.items()}
            moved = dataclasses.replace(moved, values=common.values, delta=zeros)
        return moved, control


def sent(folder: Path, still: str, **settings: Any) -> list[Request]:
    """The requests of round 2."""
    requests: list[Request] = []

    class Tap(InProcess):
        def exchange(self, asked: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for request, reply in super().exchange(asked):
                requests.append(request)
                yield request, reply

    run(Still(rounds=2, still=still), folder, transport=Tap, max_update_norm=0.0, **settings)
    return [request for request in requests if request.round == 2]


def test_a_request_tells_of_others_replies_by_what_was_noised_alone(tmp_path: Path) -> None:
    """All but `common`, which is made of noised sums, is byte for byte that of the neighbouring run."""
    for privacy in (PartyPrivacy(), None):
        runs = [sent(tmp_path / f"{privacy is None}-{still}", still, privacy=privacy) for still in ("", "silo-2")]
        assert [request.party for request in runs[0]] == ["silo-0", "silo-1", "silo-2"]
        assert all(own.common != other.common for own, other in zip(*runs, strict=True))
        plain = [[repr(dataclasses.replace(request, common=None)) for request in requests[:2]] for requests in runs]
        assert (plain[0] == plain[1]) == (privacy is not None)


def test_verify_says_that_the_parties_keep_nothing_of_the_receipts(tmp_path: Path) -> None:
    for privacy in ("null", "{noise_multiplier: 1.0}"):
        folder = tmp_path / privacy[:4]
        run(Moves(rounds=2), folder, privacy=None if privacy == "null" else PartyPrivacy())
        (folder / "config.yaml").write_text(f"privacy: {{dp: {privacy}}}\n")
        result = invoked("ledger", "verify", folder)
        assert result.exit_code == 0 and "6 replies of 3 parties" in result.output
        assert ("by privacy.dp the parties keep no hash" in result.output) == (privacy != "null")
        receipts = folder / "receipts.jsonl"
        receipts.write_text("".join(receipts.read_text().splitlines(keepends=True)[:3]))
        assert invoked("ledger", "verify", folder).exit_code == 1
