"""What the tests of every method share: their variants, and all that a run of one sends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from worlds import Ran, Tiny, recipe, run

from coalface.core.method import Method
from coalface.engine.local import InProcess
from coalface.engine.party.executor import Request
from coalface.engine.transport import Reply
from coalface.methods import METHODS

SLOW = (pytest.mark.slow, pytest.mark.ci)


def variants(name: str) -> tuple[Method, Tiny]:
    """The method with BatchNorm and, where it can, partly asked.

    BatchNorm is kept at the parties, but not where validators need it, nor where clients keep nothing.
    """
    fields = {f.name for f in METHODS[name].__dataclass_fields__.values()}  # type: ignore[attr-defined]
    method, build = recipe(name, **({"sample": 2} if "sample" in fields else {}))
    stateless = METHODS[name].scenario == "devices" or not any(d.keeps for d in METHODS[name].own_steps.values())
    shared = build.validators or stateless
    return method, replace(build, norm=True, policy="average" if shared else "local")


@dataclass
class Heard:
    """Every request and reply of a run, as bytes."""

    requests: list[tuple[Request, bytes, bytes]]
    replies: list[tuple[Request, bytes]]
    changed: list[str]


def listening(heard: Heard) -> type[InProcess]:
    """A transport that keeps what was sent, and notes where a step changed the message that it was given."""

    class Listening(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            def noted() -> Iterator[Request]:
                for request in requests:
                    sent = tuple(bytes(m.data) if m else b"" for m in (request.common, request.each))
                    heard.requests.append((request, *sent))
                    yield request

            for request, reply in super().exchange(noted()):
                _, common, each = heard.requests[-1]
                after = tuple(bytes(m.data) if m else b"" for m in (request.common, request.each))
                if after != (common, each):
                    heard.changed.append(f"{request.party}, step {request.step}, round {request.round}")
                assert not isinstance(reply, Exception), reply
                heard.replies.append((request, bytes(reply.data)))
                yield request, reply

    return Listening


def listened(method: Method, folder: Path, build: Tiny) -> tuple[Ran, Heard]:
    heard = Heard([], [], [])
    return run(method, folder, build, transport=listening(heard)), heard


def all_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from all_tensors(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from all_tensors(item)
    elif hasattr(value, "__coalface_kind__"):
        yield from all_tensors(vars(value))
