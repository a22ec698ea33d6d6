"""Runs of recipes in folders: started, resumed, and set back to a round."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from filelock import Timeout

from coalface.core import disk
from coalface.core.disk import writing
from coalface.core.errors import DataError, RecipeError
from coalface.core.parsing import parse_yaml
from coalface.data.stores import telling_passed_over
from coalface.engine import checkpoint
from coalface.experiments import provenance, status
from coalface.experiments.callbacks.base import Callback, Callbacks, PretrainingCallbacks
from coalface.experiments.callbacks.tracker import trackers_of
from coalface.experiments.execution import Carrier, execute, finish
from coalface.experiments.prepare import prepare
from coalface.experiments.recipe import loader, schema
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import device, party_data, tuning

_FIRST = {"checkpoints", *(f"{name}{end}" for name in (provenance.BEGUN, "config.yaml") for end in ("", ".new"))}
"""What a run writes first: where it was killed before it had `config.yaml`, the last of it, it begins anew."""


def run(recipe: Recipe, out: Path, callback: Callback, *, report: bool = True, carrier: Carrier | None = None) -> Path:
    """Run a recipe into a new folder. Raises RecipeError where the folder already holds a run, or anything else.

    Without a `carrier` the parties are played here.
    """
    if (out / "config.yaml").exists():
        raise RecipeError(
            f"the folder already has a run; `coalface resume {quote(str(out))}` continues it, or give another --out",
            where=out,
        )
    if out.exists() and not out.is_dir():
        raise RecipeError("this is a file, and a run needs a folder; give another --out", where=out)
    if out.exists() and any(str(path.relative_to(out)) not in _FIRST for path in out.rglob("*")):
        raise RecipeError("the folder is not empty and not a run; give another --out", where=out)
    return _carry_out(recipe, out, callback, report=report, carrier=carrier)


def resume(
    out: Path,
    callback: Callback,
    changes: tuple[str, ...] = (),
    *,
    carrier: Carrier | None = None,
    changed_code: bool = False,
) -> Path:
    """Go on with a run from its last checkpoint; a finished one is only evaluated and reported again.

    Changes of `schema.ADJUSTABLE` go into `config.yaml` and, as a line, into `events.jsonl`. Raises RecipeError for
    other changes of what the result depends on, in `config.yaml` too, and, unless `changed_code`, where the code of the
    method has changed since its first round.
    """
    beginning = provenance.begun_with(out)
    if not (out / "config.yaml").exists():
        provenance.write_config(out, beginning.recipe.resolved())
    written_recipe = provenance.recipe_of(out, beginning)
    if carrier is None and status.read_begins(out).get("elsewhere"):
        raise RecipeError(
            "the parties of this run are at their own nodes, whose kits are not on this machine; use the operator's "
            "`run.sh` with the same run-config",
            where=out,
        )
    recipe = loader.load(out / "config.yaml", changes)
    differ = provenance.unlike(beginning.recipe, recipe)
    if fixed := [key for key in differ if key not in schema.ADJUSTABLE]:
        train_on = f" (to train on from its model: model.weights={out})" if (out / "summary.json").exists() else ""
        raise RecipeError(
            f"a resume keeps the recipe of {out}; for another value start a new run{train_on}. It may "
            f"change {', '.join(schema.FREE + schema.ADJUSTABLE)}",
            where=", ".join(fixed),
        )
    if (out / "summary.json").exists():
        if differ:
            raise RecipeError(f"{out} is finished, and had another value", where=", ".join(differ))
        if not any((out / "checkpoints").glob("[0-9]*")):
            raise RecipeError(
                "the run is finished and its checkpoints are gone, so a resume would train again, over its results; "
                "restore them from a copy, or leave the run as it is",
                where=out,
            )
    untrained = not any([*(out / "checkpoints").glob("[0-9]*"), *(out / "parties").glob("*/*.commit")])
    provenance.accept_code(out) if changed_code or untrained else provenance.check_code(out, beginning, recipe)
    if parse_yaml((out / "config.yaml").read_text(encoding="utf-8")) != written_recipe.resolved():  # it was cut off
        provenance.write_config(out, written_recipe.resolved())
    if (out / "summary.json").exists():
        callback.note(f"{recipe.name}: finished already; its model is evaluated and reported again")
    return _carry_out(recipe, out, callback, adjusted=tuple(differ), carrier=carrier)


def go_back(out: Path, after: int) -> None:
    """Take a run back to the end of its round `after`, counted over all stages; a resume goes on from there.

    What parties have sent since stays in their ledgers. Raises RecipeError where no accepted checkpoint is kept of it.
    """
    recipe = provenance.recipe_of(out)
    if (out / "summary.json").exists():
        raise RecipeError("the run is finished, so it cannot go back to a round", where=out)
    folder, rounds = out / "checkpoints", [stage.rounds for stage in recipe.build_method().stages()]
    with alone(out):
        ends = checkpoint.accepted_ends(folder, rounds)
        if after not in ends:
            kept = f"checkpoints after round {', '.join(map(str, sorted(ends)))}" if ends else "no accepted checkpoint"
            raise RecipeError(f"there is no checkpoint after round {after}; {out} keeps {kept}", where="--from-round")
        checkpoint.go_back(folder, ends[after])
        provenance.note(out, {"event": "adjusted", "from_round": after})


def _carry_out(
    recipe: Recipe,
    out: Path,
    callback: Callback,
    *,
    report: bool = True,
    adjusted: tuple[str, ...] = (),
    carrier: Carrier | None = None,
) -> Path:
    """Run a recipe in a folder, from where it stands there."""
    device.check_device(recipe)
    callbacks = Callbacks([callback, *trackers_of(recipe)])
    party_data.check_here(recipe) if carrier is None else party_data.check_elsewhere(recipe)
    began = time.perf_counter()
    recipe = tuning.tuned(recipe, lambda text: callback.note(f"{recipe.name}: {text}"))
    with telling_passed_over(lambda text: callback.warn(f"{recipe.name}: {text}")) as passed_over:
        prepared = prepare(recipe, callback, begin_or_resume, elsewhere=carrier is not None)
        for note in prepared.notes:
            callback.note(f"{recipe.name}: {note}")
        try:
            out.mkdir(parents=True, exist_ok=True)
        except (FileNotFoundError, NotADirectoryError) as error:  # as below /proc, and below a file
            raise DataError("no folder can be made here; give another --out", where=out) from error
        if not (out / "config.yaml").exists():
            provenance.keep(out, recipe.resolved(), provenance.code_behind(recipe))
            provenance.write_config(out, recipe.resolved())
        with entered(callbacks, recipe, out):
            with writing(out), alone(out):
                summary = execute(
                    prepared, out, callbacks, passed_over, began=began, adjusted=adjusted, carrier=carrier
                )
            finish(out, summary, callbacks, report=report)
    return out


@contextlib.contextmanager
def entered(callback: Callback, recipe: Recipe, out: Path) -> Iterator[None]:
    """Within, a callback hears the run of a folder."""
    finished = False
    callback.enter(recipe, out, callback.warn)
    try:
        yield
        finished = True
    finally:
        callback.leave(finished)


def begin_or_resume(recipe: Recipe, out: Path, callback: Callback) -> None:
    """Run a recipe in a folder of its own, or resume it there."""
    observers = PretrainingCallbacks([callback])
    resume(out, observers) if (out / "config.yaml").exists() else run(recipe, out, observers)


@contextlib.contextmanager
def alone(out: Path) -> Iterator[None]:
    """Hold the run folder. Raises RecipeError where another process is at it."""
    try:
        held = disk.lock(out / "run.lock").acquire(timeout=1)  # `coalface status` holds it for an instant
    except Timeout:
        raise RecipeError("another process is running it; wait for that, or end it", where=out) from None
    with held:
        yield
