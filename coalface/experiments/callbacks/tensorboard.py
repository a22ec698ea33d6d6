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
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report.runs import flat_figures, mapping

FOLDER = "tensorboard"
"""In the run's folder; `tensorboard --logdir` takes it, or a folder of runs."""
_TOLD_APART = {"stage", "round", "failed", "losses", "judged", "reason"}


def check(recipe: Recipe) -> None:
    """Raise RecipeError where events are wanted and the package that writes them is not installed."""
    if recipe.engine.tensorboard:
        try:
            import tensorboard.summary.writer.record_writer  # noqa: F401
        except ImportError as error:
            raise RecipeError(
                f"engine.tensorboard: {error.name or error} is not installed: pip install 'coalface[tracking]', or "
                "leave engine.tensorboard out"
            ) from None


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Tag -> value of a line of the metrics, with what the clock said of its round.

    >>> scalars({"stage": "train", "round": 3, "arrived": 2, "bytes_up": 70, "loss": 0.5, "losses": {"silo-00": 0.5}})
    {'parties/arrived': 2.0, 'bytes/up': 70.0, 'loss': 0.5, 'loss/silo-00': 0.5}
    """
    found: dict[str, float] = {}
    for key, value in record.items():
        if key not in _TOLD_APART and isinstance(value, int | float):
            found[_tag(key)] = float(value)
    if "failed" in record:
        found["parties/failed"] = float(len(record["failed"]))
    found |= {f"loss/{party}": float(loss) for party, loss in mapping(record.get("losses")).items()}
    return found | _evaluated(record.get("judged"))


def _tag(key: str) -> str:
    if key.startswith("bytes_"):
        return f"bytes/{key.removeprefix('bytes_')}"
    named = {"asked": "parties/asked", "arrived": "parties/arrived", "abandoned": "parties/round abandoned"}
    named |= {"seconds": "seconds/round", "checkpoint_seconds": "seconds/checkpoint", "loss": "loss"}
    return named.get(key, f"method/{key}")


def _evaluated(figures: object) -> dict[str, float]:
    return {f"judged/{name}": value for name, value in flat_figures(figures).items()}


class Tracked(Callback):
    """A view of a run that writes events as well."""

    def __init__(self, callback: Callback, out: Path) -> None:
        self._callback, self._out = callback, out
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
        self._callback.start(name, rounds, already, sent, before)
        self._file.parent.mkdir(exist_ok=True)
        others = [path for path in self._file.parent.glob("*tfevents*") if path != self._file]
        fresh = self._file.with_name("new")
        fresh.unlink(missing_ok=True)
        _write(fresh, [(time.time(), None, {})])
        for when, record in itertools.islice(_done(self._out), already):
            self._add(record, when, fresh)
        fresh.replace(self._file)
        for path in others:
            path.unlink()

    def round(self, record: dict[str, Any]) -> None:
        """Write a round's events."""
        self._callback.round(record)
        self._add(record, time.time(), self._file)

    def doing(self, text: str) -> None:
        self._callback.doing(text)

    def note(self, text: str) -> None:
        self._callback.note(text)

    def warn(self, text: str) -> None:
        self._callback.warn(text)

    def finish(self, figures: dict[str, Any], where: Path) -> None:
        """Write the figures of the model that the run leaves, unless its last round was evaluated."""
        self._callback.finish(figures, where)
        new = {tag: value for tag, value in _evaluated(figures).items() if tag not in self._last}
        _write(self._file, [(time.time(), self._step, new)])

    def _add(self, record: Mapping[str, Any], when: float, file: Path) -> None:
        self._step += 1
        self._last = scalars(record)
        _write(file, [(when, self._step, self._last)])


def _done(out: Path) -> Iterator[tuple[float, dict[str, Any]]]:
    """Each line of the metrics with what the events say of its round, and when that ended."""
    clock: dict[tuple[Any, Any], dict[str, Any]] = {}
    now = 0.0
    for event in _lines(out / "events.jsonl"):
        now = float(event.get("time", now))
        if event.get("event") == "round":  # of a round that was repeated, the last
            clock[event.get("stage"), event.get("round")] = {"time": now, **event}
    for record in _lines(out / "metrics.jsonl"):
        said = clock.get((record.get("stage"), record.get("round")), {})
        taken: dict[str, Any] = {key: said[key] for key in ("seconds", "checkpoint_seconds") if key in said}
        yield float(said.get("time", now)), {**record, **taken}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with open(path, encoding="utf-8") as file:
            for text in file:
                with contextlib.suppress(ValueError):  # a kill may have cut the last one off
                    yield dict(json.loads(text))


def _write(path: Path, events: Iterable[tuple[float, int | None, Mapping[str, float]]]) -> None:
    """Append events: when, of which round (None: the file's beginning), which values."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    with writing(path), open(path, "ab") as file:
        writer = RecordWriter(file)
        for when, step, values in events:
            said = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            if step is None:
                event = Event(wall_time=when, file_version="brain.Event:2")
            else:
                event = Event(wall_time=when, step=step, summary=Summary(value=said))
            writer.write(event.SerializeToString())
