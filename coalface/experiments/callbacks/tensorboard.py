"""TensorBoard's events of a run, beside `metrics.jsonl`: what its lines hold, as scalars over the rounds of all stages.

They follow from `metrics.jsonl` and `events.jsonl`, and are written anew from these when a run begins or goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coalface.core.disk import writing
from coalface.core.errors import RecipeError
from coalface.evaluation.figures import figure_name, figure_of
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report.runs import flat_figures, mapping

FOLDER = "tensorboard"
"""In the run's folder; `tensorboard --logdir` takes it, or a folder of runs."""
JUDGED = "judged/"
_OTHERWISE = {"stage", "round", "failed", "losses", "judged", "reason"}
"""Keys of a line that are no scalars under their own names."""


def check(recipe: Recipe) -> None:
    """Raise RecipeError where events are asked for and the package that writes them is not installed."""
    if recipe.engine.tensorboard:
        try:
            import tensorboard.summary.writer.record_writer  # noqa: F401
        except ImportError as error:
            raise RecipeError(
                f"{error.name or error} is not installed; run pip install 'coalface[tracking]', or leave this key out",
                where="engine.tensorboard",
            ) from None


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Tag -> value of a line of the metrics, with what the clock said of its round.

    >>> scalars({"stage": "train", "round": 3, "arrived": 2, "bytes_up": 70, "loss": 0.5, "losses": {"silo-00": 0.5}})
    {'parties/arrived': 2.0, 'bytes/up': 70.0, 'loss': 0.5, 'loss/silo-00': 0.5}
    """
    numbers = {key: value for key, value in record.items() if isinstance(value, int | float) and key not in _OTHERWISE}
    values = {_tag(key): float(value) for key, value in numbers.items()}
    if "failed" in record:
        values["parties/failed"] = float(len(record["failed"]))
    values |= {f"loss/{party}": float(loss) for party, loss in mapping(record.get("losses")).items()}
    return values | _evaluated(record.get("judged"))


def _tag(key: str) -> str:
    if key.startswith("bytes_"):
        return f"bytes/{key.removeprefix('bytes_')}"
    tags = {"asked": "parties/asked", "arrived": "parties/arrived", "abandoned": "parties/round abandoned"}
    tags |= {"seconds": "seconds/round", "checkpoint_seconds": "seconds/checkpoint", "loss": "loss"}
    return tags.get(key, f"method/{key}")


def _evaluated(figures: object) -> dict[str, float]:
    return {f"{JUDGED}{name}": value for name, value in flat_figures(figures).items()}


class TensorBoard(Callback):
    """Writes a run's events into its folder."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._step = 0
        self._last: dict[str, float] = {}
        """What was written of the last round."""
        self._file = out / FOLDER / f"events.out.tfevents.{int(time.time())}.coalface"

    def start(
        self,
        name: str,
        rounds: int,
        already: int = 0,
        sent: tuple[int, int] = (0, 0),
        before: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write the events of the rounds that a resume does not repeat, in place of all that are there."""
        self._file.parent.mkdir(exist_ok=True)
        stale = [path for path in self._file.parent.glob("*tfevents*") if path != self._file]
        fresh = self._file.with_name("new")
        fresh.unlink(missing_ok=True)
        _write(fresh, [(time.time(), None, {})])
        for when, record in itertools.islice(_done(self._out), already):
            self._add(record, when, fresh)
        fresh.replace(self._file)
        for path in stale:
            path.unlink()

    def round(self, record: dict[str, Any]) -> None:
        """Write a round's events."""
        self._add(record, time.time(), self._file)

    def finish(self, figures: dict[str, Any], where: Path) -> None:
        """Write the figures of the model that the run leaves, unless its last round was evaluated."""
        new = {tag: value for tag, value in _evaluated(figures).items() if tag not in self._last}
        _write(self._file, [(time.time(), self._step, new)])

    def _add(self, record: Mapping[str, Any], when: float, file: Path) -> None:
        self._step += 1
        self._last = scalars(record)
        _write(file, [(when, self._step, self._last)])


def _done(out: Path) -> Iterator[tuple[float, dict[str, Any]]]:
    """Each line of the metrics with what the events say of its round, and when that ended."""
    clock: dict[tuple[Any, Any], dict[str, Any]] = {}
    clock_time = 0.0
    for event in _lines(out / "events.jsonl"):
        clock_time = float(event.get("time", clock_time))
        if event.get("event") == "round":  # of a round that was repeated, the last
            clock[event.get("stage"), event.get("round")] = {"time": clock_time, **event}
    for record in _lines(out / "metrics.jsonl"):
        timed = clock.get((record.get("stage"), record.get("round")), {})
        durations: dict[str, Any] = {key: timed[key] for key in ("seconds", "checkpoint_seconds") if key in timed}
        yield float(timed.get("time", clock_time)), {**record, **durations}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with open(path, encoding="utf-8") as file:
            for text in file:
                with contextlib.suppress(ValueError):  # a kill may have cut the last one off
                    yield dict(json.loads(text))


def _write(path: Path, events: Iterable[tuple[float, int | None, Mapping[str, float]]]) -> None:
    """Append events: when, of which round (None: the file's beginning), which values."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.summary.writer.record_writer import RecordWriter

    def metadata(tag: str) -> SummaryMetadata | None:
        """What TensorBoard writes over the drawing of a figure, and beside it."""
        if not tag.startswith(JUDGED):
            return None
        key = tag.removeprefix(JUDGED)
        figure = figure_of(key)
        better = f"; {figure.better} is better" if figure.better else ""
        return SummaryMetadata(
            display_name=figure_name(key),
            summary_description=f"in {figure.unit.name}{better}",
            plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"),
        )

    with writing(path), open(path, "ab") as file:
        writer = RecordWriter(file)
        for when, step, values in events:
            scalars = [
                Summary.Value(tag=tag, simple_value=value, metadata=metadata(tag)) for tag, value in values.items()
            ]
            if step is None:
                event = Event(wall_time=when, file_version="brain.Event:2")
            else:
                event = Event(wall_time=when, step=step, summary=Summary(value=scalars))
            writer.write(event.SerializeToString())
