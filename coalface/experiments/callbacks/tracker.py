"""What experiment trackers share: a run's settings, the values of each round by name, and its figures."""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from coalface.core import registry
from coalface.core.disk import write_json
from coalface.core.errors import RecipeError
from coalface.core.parsing import read_json
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.report.runs import flat_figures, mapping, read_events

if TYPE_CHECKING:
    from coalface.experiments.recipe.schema import Recipe

TRACKERS = {
    name: f"coalface.experiments.callbacks.{name}:{tracker}"
    for name, tracker in (("tensorboard", "TensorBoard"), ("mlflow", "MLflow"), ("wandb", "WandB"))
}
"""Those that a recipe can name."""
EVALUATED = "evaluated/"
"""What the names of figures begin with."""
_OTHERWISE = {"stage", "round", "failed", "losses", "judged", "reason"}
"""Keys of a line of the metrics that are no values under their own names."""
_NAMES = {
    "asked": "parties/asked",
    "arrived": "parties/arrived",
    "abandoned": "parties/round abandoned",
    "bytes_down": "bytes/down",
    "bytes_up": "bytes/up",
    "seconds": "seconds/round",
    "checkpoint_seconds": "seconds/checkpoint",
    "loss": "loss",
}
"""Key of a line -> name of its value; a key that a method adds is `method/…`."""


class Tracker(Callback, ABC):
    """Keeps runs in an experiment tracker.

    A subclass says how a tracked run is opened, takes values, and is closed. Where one of these fails, the person is
    warned once, and the run goes on without the tracker; a resume sends what it has missed. Raises ImportError where
    the tracker's package is not installed.
    """

    name: ClassVar[str]
    """In recipes (`engine.trackers`), and of the extra of Coalface that installs the package."""
    module: ClassVar[str]
    """What is imported of the package."""

    def __init__(self) -> None:
        try:
            importlib.import_module(self.module)
        except ImportError as error:
            missing = error.name or error
            raise ImportError(f"{missing} is not installed; run pip install 'coalface[{self.name}]'") from None
        self._entered = self._works = False

    @abstractmethod
    def open(self, name: str) -> int:
        """Open the tracked run, a new one or that of the folder; returns the last round that it has already."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float], when: float) -> None:
        """Send the values of a round, which ended `when` (seconds since 1970)."""

    @abstractmethod
    def conclude(self, step: int, figures: Mapping[str, float]) -> None:
        """Send what the last round had not of the model that the run leaves; a second call changes nothing."""

    def close(self, finished: bool) -> None:
        """The run finished, or was stopped."""

    def enter(self, recipe: Recipe, out: Path, warn: Callable[[str], None]) -> None:
        self.recipe, self.out, self._warn, self._entered = recipe, out, warn, True

    def start(
        self,
        name: str,
        rounds: int,
        already: int = 0,
        sent: tuple[int, int] = (0, 0),
        before: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Open the tracked run, and send what it lacks of the rounds before a resume."""
        self._step, self._last, self._works = 0, dict[str, float](), self._entered
        self._attempt(lambda: self._begin(name, before))

    def round(self, record: Mapping[str, Any]) -> None:
        self._attempt(lambda: self._send(record, time.time()))

    def finish(self, figures: dict[str, Any], where: Path) -> None:
        new = {name: value for name, value in _evaluated(figures).items() if name not in self._last}
        self._attempt(lambda: self.conclude(self._step, new))

    def leave(self, finished: bool) -> None:
        self._attempt(lambda: self.close(finished))
        self._entered = self._works = False

    def known_id(self) -> str | None:
        """The tracked run's id, where this folder's run was tracked before."""
        return self._ids().get(self.name)

    def keep_id(self, run_id: str) -> None:
        """Keep the tracked run's id in the run's folder, so that a resume continues it."""
        write_json(self.out / "trackers.json", {**self._ids(), self.name: run_id})

    def _ids(self) -> dict[str, str]:
        path = self.out / "trackers.json"
        return read_json(path, "delete it; the run is then tracked as a new one") if path.exists() else {}

    def _begin(self, name: str, before: Sequence[Mapping[str, Any]]) -> None:
        self._known = self.open(name)
        events = [event for event in read_events(self.out)[0] if event.get("event") == "round"]
        ended = {(event.get("stage"), event.get("round")): event for event in events}  # of a repeated round the last
        for record in before:
            event = ended.get((record.get("stage"), record.get("round")), {})
            durations: dict[str, Any] = {key: event[key] for key in ("seconds", "checkpoint_seconds") if key in event}
            self._send({**record, **durations}, float(event.get("time", time.time())))

    def _send(self, record: Mapping[str, Any], when: float) -> None:
        self._step += 1
        self._last = values_of(record)
        if self._step > self._known:
            self.log(self._step, self._last, when)

    def _attempt(self, act: Callable[[], object]) -> None:
        if not self._works:
            return
        try:
            act()
        except Exception as error:  # a server that is gone, a full disk, whatever the package raises
            self._works = False
            reason = str(error).partition("\n")[0] or type(error).__name__
            self._warn(f"{self.recipe.name}: {self.name} failed, so the run goes on without it: {reason}")


def trackers_of(recipe: Recipe) -> list[Tracker]:
    """The trackers that a recipe names. Raises RecipeError where the package of one is not installed."""
    try:
        return [registry.load(TRACKERS[name])() for name in recipe.engine.trackers]
    except ImportError as error:
        raise RecipeError(f"{error}, or leave it out", where="engine.trackers") from None


def values_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Name -> value of a line of the metrics, with what the clock said of its round.

    >>> values_of({"stage": "train", "round": 3, "arrived": 2, "bytes_up": 70, "loss": 0.5, "losses": {"silo-00": 0.5}})
    {'parties/arrived': 2.0, 'bytes/up': 70.0, 'loss': 0.5, 'loss/silo-00': 0.5}
    """
    numbers = {key: value for key, value in record.items() if isinstance(value, int | float) and key not in _OTHERWISE}
    values = {_NAMES.get(key, f"method/{key}"): float(value) for key, value in numbers.items()}
    if "failed" in record:
        values["parties/failed"] = float(len(record["failed"]))
    values |= {f"loss/{party}": float(loss) for party, loss in mapping(record.get("losses")).items()}
    return values | _evaluated(record.get("judged"))


def _evaluated(figures: object) -> dict[str, float]:
    return {f"{EVALUATED}{name}": value for name, value in flat_figures(figures).items()}
