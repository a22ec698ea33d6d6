"""What tests of secure sums in runs share: parties that answer otherwise at a stage, and what was hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coalface.engine.local import InProcess
from coalface.engine.party.commits import Commit
from coalface.engine.party.request import Request, StepFailed, Unanswered
from coalface.engine.party.sums import HiddenReply
from coalface.engine.sums.hidden import HiddenMeans
from coalface.engine.transport import Reply
from coalface.privacy.secure import SecureSettings

WIDE = SecureSettings(clip=64.0, most_images=100)
"""Toys and tiny networks move far."""
STAGES = ("advertise", "share", "mask", "unmask")


def changing(change: Callable[[Request, Reply], Reply]) -> type[InProcess]:
    """A transport whose replies are changed on their way."""

    class Changing(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for request, reply in super().exchange(requests):
                yield request, change(request, reply)

    return Changing


def stage_of(request: Request) -> str:
    assert request.sum is not None
    return request.sum.stage


def away(
    parties: Mapping[str, Iterable[str]], failure: type[StepFailed] = Unanswered, rounds: Iterable[int] | None = None
) -> type[InProcess]:
    """A transport to parties of which some, by stage, do not answer it."""
    gone = {stage: frozenset(names) for stage, names in parties.items()}

    def drop(request: Request, reply: Reply) -> Reply:
        absent = request.party in gone.get(stage_of(request), ()) and (rounds is None or request.round in rounds)
        return failure("away") if absent else reply

    return changing(drop)


def hidden_vectors(folder: Path) -> dict[str, NDArray[Any]]:
    """Each party's vector of its last round, as it lies on its disk."""
    last = {path.parent.name: path for path in sorted(folder.glob("parties/*/*.commit"))}
    return {name: HiddenReply.read(Commit.open(path)).vector for name, path in last.items()}


def opened_totals(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[Any]]:
    """The sums that the server comes to know, in their order."""
    totals: list[NDArray[Any]] = []
    decode = HiddenMeans.decode
    monkeypatch.setattr(HiddenMeans, "decode", lambda self, total: totals.append(total.copy()) or decode(self, total))
    return totals


def ring_sum(vectors: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """The sum in plain whole numbers, brought into the ring."""
    columns = [vector.tolist() for vector in vectors]
    bits = 32
    total = [sum(column) % 2**bits for column in zip(*columns, strict=True)]
    return np.array([number - 2**bits if number >= 2 ** (bits - 1) else number for number in total])
