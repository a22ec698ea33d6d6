"""Progress of runs: a live view in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import html
import math
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from coalface.core.text import clean, several, size
from coalface.evaluation.figures import figure_name, figure_text
from coalface.experiments.callbacks.base import Callback, Callbacks
from coalface.experiments.report.faults import much_larger
from coalface.experiments.report.runs import (
    duration,
    flat_figures,
    mapping,
    number,
    whole_number,
)

JUMP = 3.0
"""A mean training loss so many times that of the rounds before it is told."""
LINES_A_RUN = 50
"""Plain output: every round has its line up to this many rounds, else every `rounds / 50`-th."""


@dataclass
class _CurrentRun:
    """The run in progress, as the view shows it."""

    name: str
    rounds: int
    began: float
    already: int = 0
    trained: int = 0
    """Rounds in this session."""
    stage: str = ""
    loss: float | None = None
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    """Of the last rounds of this stage."""
    losses_of: str = ""
    asked: int | None = None
    arrived: int | None = None
    abandoned: int = 0
    without: Counter[str] = field(default_factory=Counter)
    """Rounds in which a party's reply did not count, by its name."""
    large: set[str] = field(default_factory=set)
    """Parties that sent what is much larger than what others sent."""
    apart: set[str] = field(default_factory=set)
    """Why client batches were computed party by party, as far as it has been said."""
    bytes_down: float = 0
    bytes_up: float = 0
    evaluated: dict[str, float] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        """Rounds that have ended, before a resume too."""
        return self.already + self.trained

    def count(self, record: Mapping[str, Any]) -> None:
        """Take in the loss and the failures of a line of metrics.jsonl."""
        if (stage := str(record.get("stage", ""))) != self.losses_of:
            self.losses.clear()
            self.losses_of = stage
        if (loss := number(record.get("loss"))) is not None:
            self.losses.append(loss)
        self.without.update(clean(party) for party in mapping(record.get("failed")))
        self.large |= set(mapping(record.get("large")))
        self.abandoned += bool(record.get("abandoned"))

    def progress(self) -> str:
        return f"{self.ended}/{self.rounds}"

    def details(self) -> list[str]:
        parts = [f"loss {self.loss:.4g}"] if self.loss is not None else []
        if self.asked is not None and self.arrived is not None:
            parts.append(f"{self.arrived}/{self.asked} parties")
        parts.append(f"down {size(self.bytes_down)} up {size(self.bytes_up)}")
        parts += _figures(self.evaluated)
        if failures := self.without.total():
            parts.append(f"{failures} failed")
        if self.abandoned:
            parts.append(f"{self.abandoned} abandoned")
        return parts

    def time(self, clock: float) -> str:
        elapsed, rounds_left = clock - self.began, self.rounds - self.ended
        if not self.trained or rounds_left <= 0:
            return f"{duration(elapsed)} elapsed"
        return f"{duration(elapsed)} elapsed, {duration(elapsed / self.trained * rounds_left)} left"


class Progress(Callback):
    """A context manager that shows runs as they train, one after another.

    In a terminal or a notebook the current run is live and a finished one keeps one line. Elsewhere a run has its first
    line, at most one line a round (`LINES_A_RUN`), its last, and one for each thing that takes a while (`doing`).
    `quiet` shows warnings alone. Names, reasons and notes are written without control characters. A run that trains
    `elsewhere` is not stopped by Ctrl-C here. The time left is (rounds to go) × (time a round has taken in this
    session).
    """

    def __init__(
        self,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        elsewhere: bool = False,
    ) -> None:
        self._quiet = quiet
        self._in_notebook = console is None and Console().is_jupyter
        self._console = console or Console(file=sys.stdout, highlight=False, force_jupyter=False)
        self._clock = clock
        self._elsewhere = elsewhere
        self._run: _CurrentRun | None = None
        self._doing = ""
        self._live: Live | _NotebookView | None = None

    def __enter__(self) -> Self:
        if not self._quiet and self._in_notebook:
            self._live = _NotebookView(self)
        elif not self._quiet and self._console.is_terminal:
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
        if self._run is not None:  # left before it finished: say how far it came
            how = "stopped" if error is None else "stopped by an error"
            if kind is KeyboardInterrupt:
                how = "goes on elsewhere, seen last" if self._elsewhere else "stopped by Ctrl-C"
            self._print(f"{clean(self._run.name)}  {how} after {self._run.progress()} rounds")
            self._run = None

    def start(
        self,
        name: str,
        rounds: int,
        already: int = 0,
        sent: tuple[int, int] = (0, 0),
        before: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._run = _CurrentRun(name=name, rounds=max(rounds, 0), began=self._clock(), already=already)
        self._run.bytes_down, self._run.bytes_up = sent
        self._doing = ""
        for record in before:
            self._run.count(record)
        if self._live is None:
            resumed = f", resumed after {already}" if already else ""
            self._print(f"{clean(name)}  {several(rounds, 'round')}{resumed}")
        elif isinstance(self._live, _NotebookView):
            self._live.refresh()

    def stage(self, name: str) -> None:
        """The run has come to another stage."""
        if self._run is not None and name != self._run.stage:
            self._run.stage = name
            if self._live is None:
                self._print(f"{clean(self._run.name)}  stage {clean(name)}")

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
        assert (run := self._run) is not None, "start comes first"
        run.trained += 1
        self._doing = ""
        if (loss := number(record.get("loss"))) is not None or not record.get("abandoned"):
            run.loss = loss  # a round that asks for something else than training has none
        run.asked, run.arrived = whole_number(record.get("asked")), whole_number(record.get("arrived"))
        if loss is not None and run.losses and run.losses_of == str(record.get("stage", "")):
            before = sum(run.losses) / len(run.losses)
            if loss > JUMP * before > 0:
                place = f"{run.name}: in round {record.get('round', '')}"
                self.note(f"{place} the mean training loss is {loss:.4g}; before it was {before:.4g}")
        if warning := much_larger([record], run.large):
            self.warn(f"{run.name}: {warning}")
        for why in set(mapping(record.get("apart"))) - run.apart:
            run.apart.add(why)
            self.note(f"{run.name}: parties of a client batch were computed one by one, which takes longer: {why}")
        run.count(record)
        run.bytes_down += number(record.get("bytes_down")) or 0
        run.bytes_up += number(record.get("bytes_up")) or 0
        run.evaluated = flat_figures(record.get("judged")) or run.evaluated
        if self._live is not None:
            self._live.refresh()
            return
        every = max(1, math.ceil(run.rounds / LINES_A_RUN))
        if run.ended % every == 0 or run.ended == run.rounds:
            parts = [clean(run.name), f"round {run.progress()}", *run.details(), run.time(self._clock())]
            self._print("  ".join(parts))
            run.evaluated = {}  # a line shows what is new in it

    def note(self, text: str) -> None:
        self._print(clean(text))

    def warn(self, text: str) -> None:
        """Note it, if `quiet` to the standard error."""
        if self._quiet:
            print(clean(text), file=sys.stderr)
        else:
            self.note(text)

    def finish(self, figures: Mapping[str, Any], where: str | Path) -> None:
        if self._run is None:
            return
        run, self._run, self._doing = self._run, None, ""
        parts = [
            several(run.ended, "round"),
            duration(self._clock() - run.began),
            *_figures(flat_figures(dict(figures))),
        ]
        parts.append(f"down {size(run.bytes_down)} up {size(run.bytes_up)}")
        if run.abandoned:
            parts.append(f"{run.abandoned} of {several(run.ended, 'round')} abandoned")
        if run.without:
            parts.append(_without(run.without))
        line = "  ".join([f"{clean(run.name)}  done", *parts, f"in {clean(where)}"])
        if isinstance(self._live, _NotebookView):
            self._live.conclude(line)
        else:
            self._print(line)

    def _print(self, line: str) -> None:
        if self._quiet:
            return
        encoding = self._console.encoding or "utf-8"
        line = line.encode(encoding, "replace").decode(encoding)
        # soft_wrap: a line stays one line in a log, however narrow rich believes the file to be.
        self._console.print(Text(line), soft_wrap=True)


class _View:
    """The live view of the current run: what does not fit in a line goes on in the next."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress, run = self._progress, self._progress._run
        encoding = options.encoding or "utf-8"

        def lines(parts: Sequence[str], style: str) -> Text:
            text = "\n".join(_wrapped([clean(part) for part in parts if part], options.max_width))
            text = text.encode(encoding, "replace").decode(encoding)
            return Text(text, style=style, no_wrap=True, overflow="crop")

        if run is None:
            yield lines([progress._doing], "dim")
            return
        width = max(1, min(60, options.max_width))
        yield lines([run.name, f"round {run.progress()}", run.stage], "bold")
        yield ProgressBar(total=max(run.rounds, run.ended, 1), completed=run.ended, width=width)
        yield Segment.line()  # the bar has none of its own
        yield lines(run.details(), "")
        yield lines([run.time(progress._clock()), progress._doing], "dim")


class _NotebookView:
    """The live view in the output of a notebook's cell: HTML that needs no widgets, and is saved as it is seen."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._output: Any = None

    def refresh(self) -> None:
        progress, run = self._progress, self._progress._run
        if run is None:
            self._show(progress._doing, "")
            return
        title = "  ".join(filter(None, [run.name, f"round {run.progress()}", run.stage]))
        details = "  ".join([*run.details(), run.time(progress._clock()), progress._doing])
        bar = f'<br><progress max="{max(run.rounds, 1)}" value="{run.ended}" style="width: 100%"></progress><br>'
        self._show(f"{title}  {details}", f"<b>{_escaped(title)}</b>{bar}{_escaped(details)}")

    def conclude(self, line: str) -> None:
        """Show a line in place of the run's progress; the next run has an output of its own."""
        self._show(line, "")
        self._output = None

    def stop(self) -> None:
        """The output stays as it is."""

    def _show(self, text: str, markup: str) -> None:
        from IPython.display import display

        content = {"text/plain": clean(text), "text/html": markup or _escaped(text)}
        if self._output is None:
            self._output = display(content, raw=True, display_id=True)
        else:
            self._output.update(content, raw=True)


def _escaped(text: str) -> str:
    return html.escape(clean(text)).replace("  ", " &nbsp;")


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


def _figures(figures: Mapping[str, float]) -> list[str]:
    """The figures that fit in a line: the first of the first list, and the error of the run's own clients."""
    keys = [key for key in figures if not key.endswith("_se")][:1]
    keys += [key for key in figures if key.startswith("enrolled ") and key.endswith("/eer") and key not in keys]
    return [f"{clean(figure_name(key))} {figure_text(figures, key)}" for key in keys]


def _without(missed: Counter[str]) -> str:
    """Whose replies did not count, in how many rounds: the three that were missed most."""
    worst = ", ".join(f"{party} in {several(count, 'round')}" for party, count in missed.most_common(3))
    return f"without {worst}" + (f" and {several(len(missed) - 3, 'other')}" if len(missed) > 3 else "")


@contextlib.contextmanager
def with_progress(callbacks: Callback | Sequence[Callback], progress: bool = True) -> Iterator[Callback]:
    """The callbacks as one, beside the progress that is shown unless there is a `Progress` among them."""
    several = [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
    for callback in several:
        if not isinstance(callback, Callback):
            raise TypeError(f"callbacks hold {callback!r}; give objects of classes that extend coalface.Callback")
    if any(isinstance(callback, Progress) for callback in several):
        yield Callbacks(several)
        return
    with Progress(quiet=not progress) as view:
        yield Callbacks([view, *several])
