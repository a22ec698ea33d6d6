"""The monitor of a federation: the progress and status of its run, and the logs of its parts."""

from __future__ import annotations

import collections
import contextlib
import datetime
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from coalface.core.errors import RecipeError
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


def now() -> datetime.datetime:
    """By this machine's clock."""
    return datetime.datetime.now(datetime.UTC)


def say_faults(faults: Iterable[str], tell: Callable[[str], None]) -> None:
    """What is wrong with the kits. It stops nothing here: what matters is refused by TLS or by the SuperLink."""
    for fault in faults:
        tell(f"kits: {fault}")


# --- a run as it goes -------------------------------------------------------------------------------------------------


def follow(here: Loopback, number: int, folder: Path, *, quiet: bool = False) -> None:
    """Show a run until it ends. Raises Down where it fails, with the reason that the SuperLink has."""
    shown, asked, began = -1, 0.0, False
    with Progress(quiet=quiet, elsewhere=True) as view:
        while True:
            at = _standing(folder)
            held = at is not None and at.state == "running"
            ended, began = began and not held, began or held
            if ended or time.monotonic() - asked > ASKS:
                state, why = here.state_of(number)
                asked = time.monotonic()
            else:
                state, why = "running", ""
            shown = _advance(view, folder, shown)
            if ended:
                view.doing("the SuperLink ends the run")
            elif held and at is not None and shown == at.rounds:
                view.doing("the server evaluates the model, and the parties check their ledgers")
            if state == "finished:completed":
                found = runs.read(folder)
                view.finish(found.summary.get("figures") or {}, folder)
                return
            if state.startswith("finished"):
                said = why if why and why != "N/A" else state
                raise Down(
                    f"the run has failed: {said}\nthe server's log is {launcher.log(here.kits, RUN)}; `coalface resume "
                    f"{quote(str(folder))}` goes on from its last checkpoint, `coalface down {here.typed}` ends the "
                    "federation"
                )
            time.sleep(LOOKS)


def _standing(folder: Path) -> following.Status | None:
    try:
        return following.status(folder)
    except (FileNotFoundError, ValueError):  # it has not begun, or is being written
        return None


def _advance(view: Progress, folder: Path, shown: int) -> int:
    """Report the rounds that have ended since the last look; -1 before the run is there."""
    try:
        run = runs.read(folder)
    except (FileNotFoundError, ValueError):  # it has not begun, or is being written
        return shown
    if shown < 0:
        status = _standing(folder)
        if status is None or not any(event.get("event") == "begins" for event in run.events):
            return shown
        sent = status.bytes_down, status.bytes_up
        view.start(run.name, status.rounds, len(run.metrics), sent, run.metrics)
        return len(run.metrics)
    for record in run.metrics[shown:]:
        view.stage(str(record.get("stage", "")))
        view.round(record)
    return max(shown, len(run.metrics))


# --- where it stands --------------------------------------------------------------------------------------------------


def told(place: Path) -> dict[str, Any]:
    """The status of a run folder or of kits: `run`, and where there are kits on this machine, `processes`."""
    kits = place if (place / "federation.yaml").is_file() else None
    folder = place if kits is None else _latest(place)
    run = following.status(folder).as_dict() if folder is not None else None
    if kits is None and run is not None and run["kits"] and Path(run["kits"]).is_dir():
        kits = Path(run["kits"])
    return {"run": run, "processes": _processes(kits) if kits is not None else None}


def _latest(kits: Path) -> Path | None:
    """The run that was written last below the folder where a start put them."""
    begun = [path.parent for path in launcher.read_state(kits)[0].glob("*/config.yaml")]

    def last_written(folder: Path) -> float:
        events = folder / "events.jsonl"
        return events.stat().st_mtime if events.exists() else 0.0

    return max(begun, key=last_written, default=None)


def _processes(kits: Path) -> dict[str, int]:
    """Part -> how many processes of it there are on this machine, also of those that have none."""
    counts = collections.Counter(one.part for one in marked.find_processes(kits) if one.part != RUN)
    return {part: counts[part] for part in (SUPERLINK, *project.read_kits(kits).parties)}


def shown(status: dict[str, Any], at: float, *, live: bool = False) -> RenderableType:
    """A status as a person reads it."""
    parts: list[RenderableType] = []
    if status["run"] is not None:
        parts.append(standing.rendered(status["run"], at, live=live))
        if status["run"]["state"] == "stopped":
            parts.append(Text(_goes_on(status["run"])))
    else:
        parts.append(Text("no run has begun"))
    if (processes := status["processes"]) is not None:
        away = [part for part, count in processes.items() if not count]
        if len(away) == len(processes):
            parts.append(Text("on this machine nothing of it runs"))
        else:
            there = [f"{part} ({count})" for part, count in processes.items() if count]
            parts.append(Text(f"processes here: {', '.join(there)}" + (f"; gone: {', '.join(away)}" if away else "")))
    return Group(*parts)


def _goes_on(run: dict[str, Any]) -> str:
    if run["elsewhere"] and not run["kits"]:
        return "the operator's `run.sh` with the same run-config goes on"
    return f"`coalface resume {quote(run['folder'])}` goes on"


def watch(place: Path) -> None:
    """Show a status anew every second until its run has ended, or Ctrl-C."""
    console = Console(highlight=False)
    with Live(shown(told(place), time.time(), live=True), console=console, refresh_per_second=1) as view:
        while (status := told(place))["run"] is None or status["run"]["state"] == "running":
            view.update(shown(status, time.time(), live=True))
            time.sleep(LOOKS)
        view.update(shown(status, time.time(), live=True))


# --- what its parts say -----------------------------------------------------------------------------------------------


def logs(place: Path, party: str | None) -> list[Path]:
    """The logs of a party, or of the server. Raises RecipeError where none is on this machine, with where it is."""
    kits = place
    if not (place / "federation.yaml").is_file():
        status = following.status(place)
        if not status.elsewhere:
            raise RecipeError("the run's own process played its parties, and they have no logs", where=place)
        if not status.kits or not Path(status.kits).is_dir():
            whose = (
                f"{party}'s log is what its start.sh prints, on its machine" if party else "`flwr log` has the server's"
            )
            raise RecipeError(f"`coalface up` did not start the federation on this machine: {whose}", where=place)
        kits = Path(status.kits)
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
    with contextlib.ExitStack() as held:
        files = {path: held.enter_context(open(path, encoding="utf-8", errors="replace")) for path in paths}
        for file in files.values():
            file.seek(0, 2)
        while True:
            found = [(path, line) for path, file in files.items() for line in file]
            yield from ((path, _line(line)) for path, line in found)
            if not found:
                time.sleep(0.3)


def _line(line: str) -> str:
    return runs.clean(plain(line.rstrip("\n")))
