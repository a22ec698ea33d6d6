"""The status of a run, from its folder: finished, running or stopped."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coalface.core import disk
from coalface.core.errors import RecipeError
from coalface.core.method import plays
from coalface.core.names import KITS
from coalface.core.text import natural
from coalface.engine import checkpoint
from coalface.engine.rounds import FEW
from coalface.engine.run_state import PartyStats
from coalface.engine.transport import Member
from coalface.engine.update_bounds import FEW as BOUND_FROM
from coalface.experiments import provenance
from coalface.experiments.recipe import loader
from coalface.experiments.report import runs
from coalface.experiments.report.runs import as_dicts, as_list, mapping, number, whole_number


@dataclass(frozen=True)
class PartyStatus:
    """What the server knows of a party."""

    name: str
    role: str = ""
    images: int | None = None
    identities: int | None = None
    rounds: int = 0
    """In which it took part."""
    failed: int = 0
    """Replies that did not come, or were refused."""
    reason: str = ""
    """Of the last failure."""
    seen: float | None = None
    """When its last reply was taken in; of a round under way it is known when that ends."""
    late: int = 0
    """Replies that came after their deadline, and were thrown away."""
    bytes_down: int = 0
    bytes_up: int = 0


@dataclass(frozen=True)
class Status:
    """Where a run stands."""

    name: str
    method: str
    folder: str
    state: str
    """`running`, `stopped` or `finished`."""
    stage: str
    round: int
    """Rounds that have ended, over all stages."""
    rounds: int
    doing: str
    """What the server waits for."""
    since: float | None
    abandoned: int
    counted: int
    """The round after which the parties' rounds and bytes were counted: the last checkpoint's."""
    bytes_down: int
    bytes_up: int
    elsewhere: bool
    """Its parties are nodes of their own."""
    kits: str
    """The folder of kits that started it on this machine, if any."""
    parties: tuple[PartyStatus, ...] = ()
    judged: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def began(out: Path, members: Mapping[str, Member], *, asked: Mapping[str, Any] | None) -> None:
    """Note in a run's events that it begins or goes on, and who takes part; of more than `FEW`, how many.

    `asked` is the run-config of a run whose parties are elsewhere, None of any other.
    """
    about: dict[str, Any] = {"event": "begins", "time": time.time(), "elsewhere": asked is not None}
    about["command"] = provenance.command_line()
    if asked is not None:
        about["run_config"] = dict(asked)
    if kits := os.environ.get(KITS):
        about["kits"] = kits
    if len(members) <= FEW:
        about["parties"] = {name: member.role for name, member in members.items()}
        counts = {name: [member.images, member.identities] for name, member in members.items() if member.images}
        about |= {"counts": counts} if counts else {}
    provenance.note(out, about)


def brought_up(out: Path) -> tuple[Path, dict[str, Any]] | None:
    """(the kits, the run-config) of a run that `coalface up` has started from kits which are on this machine."""
    begins = read_begins(out)
    kits = Path(begins.get("kits", ""))
    return (kits, mapping(begins.get("run_config"))) if (kits / "federation.yaml").is_file() else None


def read_begins(out: Path) -> dict[str, Any]:
    """What was noted when a run began or went on the last time; of a run that has not begun, nothing.

    `elsewhere` says whether its parties are nodes of their own, or played beside its server.
    """
    path = out / "events.jsonl"
    last: dict[str, Any] = {}
    if path.exists():
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if '"event": "begins"' in line and line.endswith("\n"):
                    try:
                        last = mapping(json.loads(line))
                    except (ValueError, RecursionError) as error:
                        raise RecipeError(f"damaged ({error}); restore it, or remove it", where=path) from None
    return last


def status(out: Path) -> Status:
    """Where a run stands. Raises FileNotFoundError or ValueError where `out` is not a run folder, or cannot be read."""
    run = runs.read(out)
    stages = _stages(out, run)
    begins = mapping(next((e for e in reversed(run.events) if e.get("event") == "begins"), None))
    last = run.metrics[-1] if run.metrics else {}
    party_stats, checkpoint_totals, counted = _checkpoint(out, stages)
    parties, counts = mapping(begins.get("parties")), mapping(begins.get("counts"))
    for party in as_dicts(run.summary.get("parties")):
        if isinstance(name := party.get("name"), str):
            parties[name] = party.get("role", "")
            party_stats[name] = _party_stats(party.get(key) for key in vars(PartyStats()))
    totals = run.bytes or checkpoint_totals
    is_running = _held(out / "run.lock")
    doing, since = _doing(run.events, last) if is_running else ("", None)
    return Status(
        name=run.name,
        method=run.method,
        folder=str(out),
        state="running" if is_running else "finished" if run.summary else "stopped",
        stage=str(last.get("stage", "")),
        round=len(run.metrics),
        rounds=sum(stages),
        doing=doing,
        since=since,
        abandoned=sum(bool(r.get("abandoned")) for r in run.metrics),
        counted=counted,
        bytes_down=whole_number(totals.get("down")) or 0,
        bytes_up=whole_number(totals.get("up")) or 0,
        elsewhere=bool(begins.get("elsewhere")),
        kits=str(begins.get("kits", "")),
        parties=_parties(run, {str(n): str(role) for n, role in parties.items()}, party_stats, counts),
        judged=_evaluated(run),
    )


def _parties(
    run: runs.Run, roles: Mapping[str, str], party_stats: Mapping[str, PartyStats], counts: Mapping[str, Any]
) -> tuple[PartyStatus, ...]:
    reasons: dict[str, str] = {}
    failed: dict[str, int] = {}
    for record in run.metrics:
        for name, why in mapping(record.get("failed")).items():
            reasons[name], failed[name] = f"round {record.get('round')}: {why}", failed.get(name, 0) + 1
    last_seen: dict[str, float] = {}
    late: dict[str, int] = {}
    for event in run.events:
        for name, count in mapping(event.get("late")).items():
            late[name] = late.get(name, 0) + (whole_number(count) or 0)
        for name, when in mapping(event.get("seen")).items():
            if (clock := number(when)) is not None:
                last_seen[name] = clock
    return tuple(
        PartyStatus(
            name=name,
            role=roles.get(name, ""),
            **dict(zip(("images", "identities"), map(whole_number, as_list(counts.get(name))), strict=False)),
            rounds=(stats := party_stats.get(name, PartyStats())).rounds,
            failed=max(stats.failed, failed.get(name, 0)),
            reason=reasons.get(name, ""),
            seen=last_seen.get(name),
            late=late.get(name, 0),
            bytes_down=stats.bytes_down,
            bytes_up=stats.bytes_up,
        )
        for name in sorted(roles.keys() | party_stats.keys(), key=natural)
    )


def _stages(out: Path, run: runs.Run) -> list[int]:
    """The rounds of each stage."""
    try:
        return [stage.rounds for stage in loader.load(out / "config.yaml").build_method().stages()]
    except (RecipeError, OSError):  # of another version; the rest can be told all the same
        return [whole_number(run.config.get("rounds")) or 0]


def _checkpoint(out: Path, stages: Sequence[int]) -> tuple[dict[str, PartyStats], dict[str, Any], int]:
    """What the last checkpoint has counted: by party, in bytes over all of them, and the rounds up to it."""
    for place in sorted((out / "checkpoints").glob("[0-9]*"), reverse=True):
        with contextlib.suppress(*checkpoint.UNREADABLE):  # damaged, or being removed as a newer one is written
            last = checkpoint.read_about(place)
            record, rounds = mapping(last["record"]), whole_number(last["round"]) or 0
            tallies = {name: _party_stats(counts) for name, counts in mapping(record.get("tallies")).items()}
            return tallies, mapping(record.get("totals")), sum(stages[: last["stage"]]) + rounds
    return {}, {}, 0


def _party_stats(counts: Iterable[object]) -> PartyStats:
    """Rounds, failures and bytes of a party, as a run has written them."""
    return PartyStats(*(whole_number(count) or 0 for count in itertools.islice(counts, 4)))


def _doing(events: tuple[dict[str, Any], ...], last: Mapping[str, Any]) -> tuple[str, float | None]:
    """What the last event says that the server is at, and since when."""
    event = mapping(next((e for e in reversed(events) if e.get("event") != "adjusted"), None))
    kind, since = event.get("event"), number(event.get("time"))
    where = f"round {event.get('round')}, {event.get('step')} of {event.get('parties')} parties"
    if kind in ("asks", "collects"):
        return f"waits for {where}", since
    if kind == "begins":
        return "prepares", since
    return "works on what came", since


def _held(lock: Path) -> bool:
    """Whether a process holds the run's folder. A start that meets this look waits for it."""
    try:
        with open(lock, "rb") as file:  # as other users may
            disk.lock_shared(file, wait=False)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _evaluated(run: runs.Run) -> dict[str, float]:
    if run.figures:
        return run.figures
    return next((figures for r in reversed(run.metrics) if (figures := runs.flat_figures(r.get("judged")))), {})


def image_counts(members: Mapping[str, Member], most: float | None) -> list[str]:
    """What each party said when it joined, of up to `FEW`; then whose share is above the bound `most`."""
    images = {name: member.images for name, member in members.items() if plays(member.role, "trainer")}
    whole = sum(images.values())
    share = {name: count / whole for name, count in images.items()} if whole else {}
    lines = []
    for name, member in members.items() if len(members) <= FEW and whole else ():
        of_all = f", {100 * share[name]:.0f} % of all" if name in share else ""
        lines.append(f"{name} {member.role} {member.images:,} images of {member.identities:,} identities{of_all}")
    for name, part in share.items():
        if most is not None and len(share) >= BOUND_FROM and part > most:
            lines.append(
                f"{name} has {100 * part:.4g} % of all images, as it says, and counts in a mean as if it had fewer "
                f"(engine.max_share is {most:g}); engine.max_share=1 has it count in full"
            )
    return lines
