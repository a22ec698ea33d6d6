"""All that a run of a tiny federation sends, as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from coalface.engine.local import InProcess
from coalface.engine.party.request import Request
from coalface.engine.transport import Reply


@dataclass
class Heard:
    """Every request and reply of a run, as bytes."""

    requests: list[tuple[Request, bytes, bytes]] = field(default_factory=list)
    replies: list[tuple[Request, bytes]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Where a step changed the message that it was given."""


def listening(heard: Heard) -> type[InProcess]:
    """A transport that keeps what was sent."""

    def sent(request: Request) -> tuple[bytes, bytes]:
        return tuple(bytes(m.data) if m else b"" for m in (request.common, request.each))  # type: ignore[return-value]

    class Listening(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            given: dict[str, tuple[bytes, bytes]] = {}  # by party: one's reply comes when the next has been asked

            def noted() -> Iterator[Request]:
                for request in requests:
                    given[request.party] = sent(request)
                    heard.requests.append((request, *given[request.party]))
                    yield request

            for request, reply in super().exchange(noted()):
                if sent(request) != given[request.party]:
                    heard.changed.append(f"{request.party}, step {request.step}, round {request.round}")
                if isinstance(reply, Exception):
                    raise reply
                heard.replies.append((request, bytes(reply.data)))
                yield request, reply

    return Listening


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
