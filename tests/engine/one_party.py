"""One party's executor: requests to it one after the other, and what lies at it then."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from toys import Moves, Nudge, Values

from coalface.core import codec
from coalface.engine.party.commits import Commit
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.party.request import Request
from coalface.experiments.conformance.tiny_federation import Tiny, setup

PARTY = "silo-1"


def at(folder: Path, method: Any = None, **changes: Any) -> PartyExecutor:
    build = Tiny(roles=(("silo-2", "validator"),))
    context = setup(method or Moves(note=True), folder, build).context(build())
    return PartyExecutor(replace(context, **changes), PARTY)


def request(ordinal: int = 1, base: str | None = None, step: str = "move", **changes: Any) -> Request:
    values = Values(values={"a": torch.full((3,), float(ordinal)), "b": torch.zeros(2, 2, dtype=torch.float64)})
    moves = step != "remember"
    common, each = codec.encode(values) if moves else None, codec.encode(Nudge(amount=torch.tensor(1.0)))
    when = ("train", ordinal, 9, ordinal, 1 if moves else 2)
    return replace(
        Request("test", PARTY, *when, step, common, None if moves else each, base, horizon=(0, None)), **changes
    )


def chain(executor: PartyExecutor, requests: Iterable[Request]) -> list[Request]:
    """Answer requests one after the other, each on top of the one before."""
    answered: list[Request] = []
    for request_ in requests:
        answered.append(replace(request_, base=answered[-1].id if answered else None))
        executor.answer(answered[-1])
    return answered


def moves(count: int) -> list[Request]:
    return [request(ordinal) for ordinal in range(1, count + 1)]


def data(reply: Any) -> bytes:
    return bytes(reply.data)


def place(executor: PartyExecutor, request_: Request) -> Path:
    return executor.folder / f"{request_.id}.commit"


def kept(executor: PartyExecutor, request_: Request, cls: Any) -> Any:
    """The private state of a class in the commit of a request."""
    stored = Commit.open(place(executor, request_)).read(cls.__name__)
    return None if stored is None else codec.decode(stored, cls)


def commits(executor: PartyExecutor) -> list[str]:
    return sorted(path.stem for path in executor.folder.glob("*.commit"))


def ledger_bytes(executor: PartyExecutor) -> bytes:
    return executor.ledger.read_bytes() if executor.ledger.exists() else b""


def shorten(executor: PartyExecutor, after: Request | None) -> None:
    """Take from the ledger all lines after those of a reply."""
    os.truncate(executor.ledger, Commit.open(place(executor, after)).head.size if after else 0)


def flip(path: Path, place: int) -> None:
    changed = bytearray(path.read_bytes())
    changed[place] ^= 1
    path.write_bytes(changed)
