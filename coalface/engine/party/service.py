"""The service of a party: its answers to a server elsewhere, over any connection.

A reply is encoded bytes, or the kind of the error for which it failed: what an error says may name images, so it stays
in the party's log.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from coalface.core import codec
from coalface.engine.party.executor import ExecutorContext, PartyExecutor, Request
from coalface.engine.transport import Member

log = logging.getLogger(__name__)

_COMMIT = re.compile(r"[0-9]{7,20}\.[0-9]{3,20}-[0-9a-f]{24}")
"""`Request.id`: the name of a commit's file, which the server says."""

Said = Mapping[str, Any]
Data = Mapping[str, bytes | bytearray | memoryview]


@dataclass(frozen=True)
class PartyService:
    """What a node plays: one party."""

    name: str
    member: Member
    context: ExecutorContext
    public: str | None = None
    """Who is in the public images that it holds (`FaceSet.who`), where the method shares some."""


def answer(service: Callable[[], PartyService], about: str, values: Said, data: Data) -> tuple[Said, Data]:
    """What a party says to a message: plain values and bytes. An error of any kind is logged here and told as `failed`.

    `about` is one of `coalface.flower.app.records`: its last word says what is asked.
    """
    try:
        return _WORK[about.rpartition(".")[2]](service(), values, data)
    except Exception as error:
        log.exception("%s failed", about)
        return {"failed": type(error.__cause__ or error).__name__}, {}


def _join(service: PartyService, said: Said, data: Data) -> tuple[Said, Data]:
    return {"name": service.name, **asdict(service.member), "public": service.public}, {}


def _step(service: PartyService, said: Said, data: Data) -> tuple[Said, Data]:
    request, executor = _request(service, said, data), PartyExecutor(service.context, service.name)
    encoded = codec.data_of(executor.answer(request))
    sha256 = hashlib.sha256(encoded).hexdigest()
    return {"id": request.id, "sha256": sha256, "head": executor.head}, {"reply": encoded}


def _finalize(service: PartyService, said: Said, data: Data) -> tuple[Said, Data]:
    PartyExecutor(service.context, service.name).finalize(_commit(said["accepted"]), said["ordinal"])
    return {}, {}


def _check(service: PartyService, said: Said, data: Data) -> tuple[Said, Data]:
    try:
        PartyExecutor(service.context, service.name).check(_commit(said["accepted"]), whole=said["whole"])
    except (FileNotFoundError, ValueError) as error:
        log.error("what the party keeps does not hold: %s", error)
        return {"fault": type(error).__name__}, {}
    return {}, {}


def _request(service: PartyService, said: Said, data: Data) -> Request:
    if said["party"] != service.name:
        raise ValueError(f"a request for {said['party']} came to {service.name}: it is left alone")
    common, each = (codec.Encoded(bytearray(data[name])) if name in data else None for name in ("common", "each"))
    ordinal, checkpointed = said["horizon"]
    said = {**said, "base": _commit(said["base"]), "horizon": (ordinal, _commit(checkpointed))}
    return Request(**said, common=common, each=each)


def _commit(name: str | None) -> str | None:
    """The name of a commit, or None for none. Raises ValueError for what would lead out of the party's folder."""
    if name is not None and not _COMMIT.fullmatch(name):
        raise ValueError(f"{name[:80]!r} names no commit: the request is left alone")
    return name


_WORK = {"join": _join, "step": _step, "settle": _finalize, "check": _check}
