"""Progress of runs: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

from coalface.evaluation.figures import figure_name, figure_text
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.report.runs import (
    clean,
    duration,
    flat_figures,
    mapping,
    number,
    size,
    whole_number,
)

JUMP = 3.0
"""A mean training loss so many times that of the rounds before it is told."""
LINES_A_RUN = 50
"""Plain output: every round has its line up to this many rounds, else every `rounds / 50`-th."""


@dataclass
class _Now:
    """The run in progress, as the view shows it."""

    name: str
    rounds: int
    began: float
    already: int = 0
    done: int = 0
    stage: str = ""
    round: str = ""
    loss: float | None = None
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    """Of the last rounds of this stage."""
    losses_of: str = ""
    asked: int | None = None
    arrived: int | None = None
    abandoned: int = 0
    without: Counter[str] = field(default_factory=Counter)
    """Rounds in which a party's reply did not count, by its name."""
    bytes_down: float = 0
    bytes_up: float = 0
    evaluated: dict[str, float] = field(default_factory=dict)


class Progress(Callback):
    """A context manager that shows runs as they train, one after another.

    In a terminal the current run is live and a finished one keeps one line. Elsewhere a run has its first line, at most
    one line a round (`LINES_A_RUN`), its last, and one for each thing that takes a while (`doing`). `quiet` shows
    warnings alone. Names, reasons and notes are written without control characters. A run that trains `elsewhere` is
    not stopped by Ctrl-C here. The time left is (rounds to go) × (time a round has taken in this session).
    """

    def __init__(
        self,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        elsewhere: bool = False,
    ) -> None:
        self._quiet = quiet
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._clock = clock
        self._elsewhere = elsewhere
        self._now: _Now | None = None
        self._doing = ""
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if not self._quiet and self._console.is_terminal:
            self._live = Live(
                _View(self), console=self._console, refresh_per_second=4, transient=True, redirect_stderr=False
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._now is not None:  # left before it finished: say how far it came
            how = "stopped" if error is None else f"stopped by {kind.__name__ if kind else 'an error'}"
            if kind is KeyboardInterrupt:
                how = "goes on elsewhere, seen last" if self._elsewhere else "stopped by Ctrl-C"
            self._print(f"{clean(self._now.name)}  {how} after {self._rounds_done()} rounds")
            self._now = None

    def start(
        self,
        name: str,
        rounds: int,
        already: int = 0,
        sent: tuple[int, int] = (0, 0),
        before: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._now = _Now(name=name, rounds=max(rounds, 0), began=self._clock(), already=already)
        self._now.bytes_down, self._now.bytes_up = sent
        self._doing = ""
        for record in before:
            self._count(self._now, record)
        if self._live is None:
            resumed = f", resumed after {already}" if already else ""
            self._print(f"{clean(name)}  {_rounds(rounds)}{resumed}")

    def stage(self, name: str) -> None:
        """The run has come to another stage."""
        if self._now is not None and name != self._now.stage:
            self._now.stage = name
            if self._live is None:
                self._print(f"{clean(self._now.name)}  stage {clean(name)}")

    def doing(self, text: str) -> None:
        """Show it until a run begins, a round is over or a run ends; elsewhere as a line."""
        if self._doing == clean(text):
            return
        self._doing = clean(text)
        if self._live is None:
            self._print(self._doing)
        else:
            self._live.refresh()

    def round(self, record: Mapping[str, Any]) -> None:
        """Show what the record has."""
        assert (now := self._now) is not None, "start comes first"
        now.done += 1
        self._doing = ""
        now.round = clean(record.get("round", ""))
        if (loss := number(record.get("loss"))) is not None or not record.get("abandoned"):
            now.loss = loss  # a round that asks for something else than training has none
        now.asked, now.arrived = whole_number(record.get("asked")), whole_number(record.get("arrived"))
        if loss is not None and now.losses and now.losses_of == str(record.get("stage", "")):
            before = sum(now.losses) / len(now.losses)
            if loss > JUMP * before > 0:
                self.note(
                    f"{now.name}: in round {now.round} the mean training loss is {loss:.4g}; before it was {before:.4g}"
                )
        self._count(now, record)
        now.bytes_down += number(record.get("bytes_down")) or 0
        now.bytes_up += number(record.get("bytes_up")) or 0
        now.evaluated = flat_figures(record.get("judged")) or now.evaluated
        if self._live is not None:
            self._live.refresh()
            return
        every = max(1, math.ceil(now.rounds / LINES_A_RUN))
        count = now.already + now.done
        if count % every == 0 or count == now.rounds:
            self._print("  ".join([clean(now.name), f"round {self._rounds_done()}", *self._details(), self._time()]))

    @staticmethod
    def _count(now: _Now, record: Mapping[str, Any]) -> None:
        if (stage := str(record.get("stage", ""))) != now.losses_of:
            now.losses.clear()
            now.losses_of = stage
        if (loss := number(record.get("loss"))) is not None:
            now.losses.append(loss)
        failed = mapping(record.get("failed"))
        now.without.update(clean(party) for party in failed)
        now.abandoned += bool(record.get("abandoned"))

    def note(self, text: str) -> None:
        self._print(clean(text))

    def warn(self, text: str) -> None:
        """Note it, if `quiet` to the standard error."""
        if self._quiet:
            print(clean(text), file=sys.stderr)
        else:
            self.note(text)

    def finish(self, figures: Mapping[str, Any], where: str | Path) -> None:
        if self._now is None:
            return
        now, self._now, self._doing = self._now, None, ""
        flat = flat_figures(dict(figures))
        parts = [_rounds(now.already + now.done), duration(self._clock() - now.began)]
        parts += [f"{clean(figure_name(key))} {figure_text(flat, key)}" for key in _shown(flat)]
        parts.append(f"down {size(now.bytes_down)} up {size(now.bytes_up)}")
        if now.abandoned:
            parts.append(f"{now.abandoned} of {_rounds(now.already + now.done)} abandoned")
        if now.without:
            parts.append(_without(now.without))
        self._print("  ".join([f"{clean(now.name)}  done", *parts, f"in {clean(where)}"]))

    def _print(self, line: str) -> None:
        if self._quiet:
            return
        encoding = self._console.encoding or "utf-8"
        line = line.encode(encoding, "replace").decode(encoding)
        # soft_wrap: a line stays one line in a log, however narrow rich believes the file to be.
        self._console.print(Text(line), soft_wrap=True)

    def _rounds_done(self) -> str:
        now = self._now
        return f"{now.already + now.done}/{now.rounds}" if now is not None else ""

    def _details(self) -> list[str]:
        now = self._now
        if now is None:
            return []
        parts = [f"loss {now.loss:.4g}"] if now.loss is not None else []
        if now.asked is not None and now.arrived is not None:
            parts.append(f"{now.arrived}/{now.asked} parties")
        parts.append(f"down {size(now.bytes_down)} up {size(now.bytes_up)}")
        parts += [f"{clean(figure_name(key))} {figure_text(now.evaluated, key)}" for key in _shown(now.evaluated)]
        if failures := now.without.total():
            parts.append(f"{failures} failed")
        if now.abandoned:
            parts.append(f"{now.abandoned} abandoned")
        return parts

    def _time(self) -> str:
        now = self._now
        if now is None:
            return ""
        gone = self._clock() - now.began
        left = max(0, now.rounds - now.already - now.done)
        if not now.done or not left:
            return f"{duration(gone)} gone"
        return f"{duration(gone)} gone, {duration(gone / now.done * left)} left"


class _View:
    """The live view of the current run: what does not fit in a line goes on in the next."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress, now = self._progress, self._progress._now
        encoding = options.encoding or "utf-8"

        def lines(parts: Sequence[str], style: str) -> Text:
            text = "\n".join(_wrapped([clean(part) for part in parts], options.max_width))
            text = text.encode(encoding, "replace").decode(encoding)
            return Text(text, style=style, no_wrap=True, overflow="crop")

        if now is None:
            yield lines([progress._doing] if progress._doing else [], "dim")
            return
        total = max(now.rounds, now.already + now.done, 1)
        width = max(1, min(60, options.max_width))
        yield lines([now.name, f"round {progress._rounds_done()}", *([now.stage] if now.stage else [])], "bold")
        yield ProgressBar(total=total, completed=now.already + now.done, width=width)
        yield Segment.line()  # the bar has none of its own
        if details := progress._details():
            yield lines(details, "")
        yield lines([progress._time(), *([progress._doing] if progress._doing else [])], "dim")


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Lines of whole parts; of a part that is longer than a line the end is shown, where the number is."""
    lines: list[str] = []
    for part in parts:
        while cell_len(part) > max(1, width):
            part = f"…{part[2:]}"
        if lines and cell_len(joined := f"{lines[-1]}  {part}") <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return lines


def _shown(figures: Mapping[str, float]) -> list[str]:
    """The figures that fit in a line: the first of the first list, and the error of the run's own clients."""
    first = [key for key in figures if not key.endswith("_se")][:1]
    return first + [key for key in figures if key.startswith("enrolled ") and key.endswith("/eer") and key not in first]


def _without(missed: Counter[str]) -> str:
    """Whose replies did not count, in how many rounds: the three that were missed most."""
    named = ", ".join(f"{party} in {_rounds(count)}" for party, count in missed.most_common(3))
    return f"without {named}" + (f" and {len(missed) - 3:,} others" if len(missed) > 3 else "")


def _rounds(count: int) -> str:
    return f"{count} round{'s' * (count != 1)}"
