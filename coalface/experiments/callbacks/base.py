"""The callback interface: what a run reports as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coalface.experiments.recipe.schema import Recipe


class Callback:
    """Hears how a run goes, and does nothing: one that shows or keeps something overrides what it wants to hear."""

    def enter(self, recipe: Recipe, out: Path, warn: Callable[[str], None]) -> None:
        """A recipe is run or resumed in the folder `out`; `warn` shows the person a line, such as of a failure here."""

    def start(
        self,
        name: str,
        rounds: int,
        already: int = 0,
        sent: tuple[int, int] = (0, 0),
        before: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """A run begins; `rounds` are those of all its stages, `already` those done before it was resumed.

        `sent` are the bytes down and up of the rounds before it was resumed, `before` their lines of metrics.jsonl.
        """

    def round(self, record: dict[str, Any]) -> None:
        """A round is over; `record` is its line of metrics.jsonl."""

    def doing(self, text: str) -> None:
        """What takes a while now."""

    def packing(self, done: int, total: int) -> None:
        """How far images that a run needs are packed: a note now and then."""
        if done == total or (done and done % 5000 == 0):
            self.note(f"packing images: {done:,} of {total:,}")

    def teaching(self, done: int, total: int) -> None:
        """How many images a teacher has embedded, now and then."""
        self.note(f"the teacher embeds images: {done:,} of {total:,}")

    def note(self, text: str) -> None:
        """A line for the person."""

    def warn(self, text: str) -> None:
        """A note of what may be wrong."""

    def finish(self, figures: dict[str, Any], where: Path) -> None:
        """The run is over: its figures by what was evaluated, as in summary.json, and the folder that holds it."""

    def leave(self, finished: bool) -> None:
        """The run that was entered is over, or was stopped before it finished."""


class Callbacks(Callback):
    """Several as one: each hears everything, in their order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = tuple(callbacks)


def _for_all(name: str) -> Callable[..., None]:
    def tell(self: Callbacks, *args: Any, **options: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, name)(*args, **options)

    return tell


for _name in [name for name in vars(Callback) if not name.startswith("_")]:
    setattr(Callbacks, _name, _for_all(_name))


class PretrainingCallbacks(Callbacks):
    """The callbacks of a run, as its pre-training has them: they hear it, and enter no run of its own."""

    def enter(self, recipe: Recipe, out: Path, warn: Callable[[str], None]) -> None:
        pass

    def leave(self, finished: bool) -> None:
        pass
