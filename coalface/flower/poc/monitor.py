"""The monitor of a federation: the progress and status of its run, and the logs of its parts."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from coalface.core.errors import RecipeError
from coalface.core.text import clean
from coalface.experiments import status as following
from coalface.experiments.callbacks.progress import Progress
from coalface.experiments.report import runs
from coalface.experiments.report import status as standing
from coalface.flower.poc import launcher
from coalface.flower.poc import processes as marked
from coalface.flower.poc.launcher import RUN, SUPERLINK, Down, Loopback, plain
from coalface.flower.provision import project

LOOKS = 1.0
"""Seconds between two looks at a run's folder."""
ASKS = 10.0
"""Seconds between two questions to the SuperLink, each of which starts a process."""


# --- a run as it goes -------------------------------------------------------------------------------------------------


def follow(federation: Loopback, number: int, folder: Path, *, quiet: bool = False) -> None:
    """Show a run until it ends. Raises Down where it fails, with the reason that the SuperLink has."""
    rounds_shown, asked_at, began = -1, 0.0, False
    with Progress(quiet=quiet, elsewhere=True) as view:
        while True:
            status = _status(folder)
            is_running = status is not None and status.state == "running"
            ended, began = began and not is_running, began or is_running
            state, why = "running", ""
            if ended or time.monotonic() - asked_at > ASKS:
                state, why = federation.state_of(number)
                asked_at = time.monotonic()
            rounds_shown = _advance(view, folder, rounds_shown)
            if ended:
                view.doing("the SuperLink ends the run")
            elif is_running and status is not None and rounds_shown == status.rounds:
                view.doing("the server evaluates the model, and the parties check their ledgers")
            if state == "finished:completed":
                view.finish(runs.read(folder).summary.get("figures") or {}, folder)
                return
            if state.startswith("finished"):
                reason = why if why and why != "N/A" else state
                raise Down(
                    f"the run has failed: {reason}\nthe server's log is {launcher.log(federation.kits, RUN)}; "
                    f"`coalface resume {quote(str(folder))}` goes on from its last checkpoint, "
                    f"`coalface down {federation.typed}` ends the federation"
                )
            time.sleep(LOOKS)


def _status(folder: Path) -> following.Status | None:
    try:
        return following.status(folder)
    except (FileNotFoundError, ValueError):  # it has not begun, or is being written
        return None


def _advance(view: Progress, folder: Path, rounds_shown: int) -> int:
    """Report the rounds that have ended since the last look; -1 before the run is there."""
    try:
        run = runs.read(folder)
    except (FileNotFoundError, ValueError):  # it has not begun, or is being written
        return rounds_shown
    if rounds_shown < 0:
        status = _status(folder)
        if status is None or not any(event.get("event") == "begins" for event in run.events):
            return rounds_shown
        sent = status.bytes_down, status.bytes_up
        view.start(run.name, status.rounds, len(run.metrics), sent, run.metrics)
        return len(run.metrics)
    for record in run.metrics[rounds_shown:]:
        view.stage(str(record.get("stage", "")))
        view.round(record)
    return max(rounds_shown, len(run.metrics))


# --- its status -------------------------------------------------------------------------------------------------------


def read_status(place: Path) -> dict[str, Any]:
    """The status of a run folder or of kits: `run`, and where there are kits on this machine, `processes`."""
    kits = place if (place / "federation.yaml").is_file() else None
    folder = place if kits is None else _latest(place)
    run = following.status(folder).as_dict() if folder is not None else None
    if kits is None and run is not None and run["kits"] and Path(run["kits"]).is_dir():
        kits = Path(run["kits"])
    return {"run": run, "processes": _processes(kits) if kits is not None else None}


def _latest(kits: Path) -> Path | None:
    """The run that was written last below the folder where a start put them."""
    folders = [path.parent for path in launcher.read_state(kits)[0].glob("*/config.yaml")]

    def last_written(folder: Path) -> float:
        events = folder / "events.jsonl"
        return events.stat().st_mtime if events.exists() else 0.0

    return max(folders, key=last_written, default=None)


def _processes(kits: Path) -> dict[str, int]:
    """Part -> how many processes of it there are on this machine, also of those that have none."""
    counts = collections.Counter(process.part for process in marked.find_processes(kits) if process.part != RUN)
    return {part: counts[part] for part in (SUPERLINK, *project.read_kits(kits).parties)}


def render(status: dict[str, Any], at: float, *, live: bool = False) -> RenderableType:
    """A status as a person reads it."""
    parts: list[RenderableType] = []
    if status["run"] is not None:
        parts.append(standing.rendered(status["run"], at, live=live))
        if status["run"]["state"] == "stopped":
            command = f"`coalface resume {quote(status['run']['folder'])}`"
            if status["run"]["elsewhere"] and not status["run"]["kits"]:
                command = "the operator's `run.sh` with the same run-config"
            parts.append(Text(f"{command} goes on"))
    else:
        parts.append(Text("no run has begun"))
    if (processes := status["processes"]) is not None:
        away = [part for part, count in processes.items() if not count]
        if len(away) == len(processes):
            parts.append(Text("on this machine nothing of it runs"))
        else:
            present = [f"{part} ({count})" for part, count in processes.items() if count]
            parts.append(Text(f"processes here: {', '.join(present)}" + (f"; gone: {', '.join(away)}" if away else "")))
    return Group(*parts)


def watch(place: Path) -> None:
    """Show a status anew every second until its run has ended, or Ctrl-C."""
    console = Console(highlight=False)
    with Live(render(read_status(place), time.time(), live=True), console=console, refresh_per_second=1) as view:
        while (status := read_status(place))["run"] is None or status["run"]["state"] == "running":
            view.update(render(status, time.time(), live=True))
            time.sleep(LOOKS)
        view.update(render(status, time.time(), live=True))


# --- logs -------------------------------------------------------------------------------------------------------------


def logs(place: Path, party: str | None) -> list[Path]:
    """The logs of a party, or of the server. Raises RecipeError where none is on this machine, with where it is."""
    kits = place
    if not (place / "federation.yaml").is_file():
        status = following.status(place)
        if not status.elsewhere:
            raise RecipeError("the run's own process played its parties, and they have no logs", where=place)
        kits = Path(status.kits)
        if not status.kits or not kits.is_dir():
            advice = "`flwr log` has the server's"
            if party:
                advice = f"{party}'s log is what its start.sh prints, on its machine"
            raise RecipeError(f"`coalface up` did not start the federation on this machine: {advice}", where=place)
    launcher.check_party(kits, party)
    paths = [launcher.log(kits, part) for part in ((party,) if party else (SUPERLINK, RUN))]
    if not (existing := [path for path in paths if path.exists()]):
        raise RecipeError(
            f"it does not exist: `coalface up {quote(str(kits))}` has not started this part on this machine; "
            "elsewhere the log is what start.sh prints",
            where=paths[0],
        )
    return existing


def tail(path: Path, count: int) -> list[str]:
    """The last lines, without what could drive a terminal."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return [_line(line) for line in collections.deque(file, count)]


def growing(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Lines of several files as they come, for ever, each with its file."""
    with contextlib.ExitStack() as stack:
        files = {path: stack.enter_context(open(path, encoding="utf-8", errors="replace")) for path in paths}
        for file in files.values():
            file.seek(0, 2)
        while True:
            lines = [(path, _line(line)) for path, file in files.items() for line in file]
            yield from lines
            if not lines:
                time.sleep(0.3)


def _line(line: str) -> str:
    return clean(plain(line.rstrip("\n")))
