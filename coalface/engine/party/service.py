"""The service of a party: its answers to a server elsewhere, over any connection.

A reply is encoded bytes, or the kind of the error for which it failed: what an error says may name images, so it stays
in the party's log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from coalface.core import codec
from coalface.engine.party.context import ExecutorContext
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.party.request import Request, SumStage
from coalface.engine.transport import Member
from coalface.privacy.countersign import countersign

log = logging.getLogger(__name__)

MOST_PARTIES = 1 << 20
"""More than any secure sum has."""

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
    run: str
    """The name of the run by the party's recipe."""
    public: str | None = None
    """Who is in the public images that it holds (`FaceSet.who`), where the method shares some."""
    code: str | None = None
    """What the code of the method is here: `coalface.experiments.provenance.code_digest`."""


def answer(service: Callable[[], PartyService], about: str, values: Said, data: Data) -> tuple[Said, Data]:
    """What a party says to a message: plain values and bytes. An error of any kind is logged here and told as `failed`.

    `about` is one of `coalface.flower.app.records`: its last word says what is asked.
    """
    try:
        return _WORK[about.rpartition(".")[2]](service(), values, data)
    except Exception as error:
        log.exception("%s failed", about)
        return {"failed": type(error.__cause__ or error).__name__}, {}


def _join(service: PartyService, values: Said, data: Data) -> tuple[Said, Data]:
    return {"name": service.name, **asdict(service.member), "public": service.public, "code": service.code}, {}


def _step(service: PartyService, values: Said, data: Data) -> tuple[Said, Data]:
    request, executor = _request(service, values, data), PartyExecutor(service.context, service.name)
    reply = executor.answer(request)
    return {"id": request.id, "sha256": reply.digest, "head": executor.head}, {"reply": reply.data}


def _finalize(service: PartyService, values: Said, data: Data) -> tuple[Said, Data]:
    PartyExecutor(service.context, service.name).commits.finalize(_commit(values["accepted"]), values["ordinal"])
    return {}, {}


def _check(service: PartyService, values: Said, data: Data) -> tuple[Said, Data]:
    try:
        PartyExecutor(service.context, service.name).commits.check(_commit(values["accepted"]), whole=values["whole"])
    except (FileNotFoundError, ValueError) as error:
        log.error("what the party keeps does not hold: %s", error)
        return {"fault": type(error).__name__}, {}
    return {}, {}


def _countersign(service: PartyService, values: Said, data: Data) -> tuple[Said, Data]:
    return countersign(service.context.folder, service.name, values), {}


def _request(service: PartyService, values: Said, data: Data) -> Request:
    if values["party"] != service.name:
        raise ValueError(f"a request for {values['party']} came to {service.name}: it is left alone")
    if values["run"] != service.run:  # under another name a party would answer again what binds it
        raise ValueError(f"a request of the run {str(values['run'])[:80]!r} came to {service.run!r}: it is left alone")
    if wrong := [name for name in ("round", "rounds", "ordinal", "call") if type(values[name]) is not int]:
        raise TypeError(f"{wrong[0]} is {values[wrong[0]]!r}, and no whole number: the request is left alone")
    common, each = (codec.Encoded(bytearray(data[name])) if name in data else None for name in ("common", "each"))
    ordinal, checkpointed = values["horizon"]
    values = {**values, "base": _commit(values["base"]), "horizon": (ordinal, _commit(checkpointed))}
    return Request(**values | {"sum": _sum_stage(values["sum"])}, common=common, each=each)


def _sum_stage(said: Any) -> SumStage | None:
    """What the server says of a secure sum. Raises ValueError or TypeError for what is none."""
    if said is None:
        return None
    stage, asked, means, request = said
    pairs = tuple((str(field), str(weight)) for field, weight in means)
    if not (isinstance(stage, str) and type(asked) is int and 0 < asked <= MOST_PARTIES):
        raise ValueError("not a stage of a secure sum: the request is left alone")
    return SumStage(stage, asked, pairs, _commit(request or None) or "")  # type: ignore[arg-type]  # others are refused


def _commit(name: str | None) -> str | None:
    """The name of a commit, or None for none. Raises ValueError for what would lead out of the party's folder."""
    if name is not None and not _COMMIT.fullmatch(name):
        raise ValueError(f"{name[:80]!r} names no commit: the request is left alone")
    return name


_WORK = {"join": _join, "step": _step, "settle": _finalize, "check": _check, "countersign": _countersign}
