"""The demonstration: three ways to train on the same synthetic faces, compared on one page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalface import __version__
from coalface.core.errors import RecipeError
from coalface.experiments import compare
from coalface.experiments import run as experiment
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report import page, table

RECIPE = {
    "name": "demo",
    "rounds": 30,
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.02, "schedule": "cosine"},
    "loss": {"name": "cosface", "scale": 16.0, "margin": 0.2},
    "data": {
        "faces": {"kind": "synthetic", "identities": 360, "images": 10, "domains": ["studio"]},
        "hold_out": 120,
        "partition": {"kind": "equal", "parties": 8},
    },
    "engine": {"workers": 2, "threads": 1},
    "evaluation": {"every": 10, "pairs": {"unseen": {"kind": "balanced", "pairs": 1500}}},
}

METHODS = ("fedavg", "solo", "centralized")

REPORT = "report.html"
"""The page that compares them."""

MARKER = "demonstration.json"
"""Written first: only a folder that holds it is a demonstration, and may be replaced by one."""


def recipe(method: str) -> Recipe:
    """The demonstration's recipe for one method."""
    return loader.parse({**RECIPE, "name": f"demo-{method}", "method": method})


@dataclass(frozen=True)
class Demonstration:
    """A finished demonstration, and what its runs come to."""

    folder: Path
    compared: table.Comparison
    trained: bool
    """False where it was there already."""

    def text(self) -> str:
        """The comparison, and where the report and the runs are."""
        runs = ", ".join(str(self.folder / method) for method in METHODS)
        lines = [table.text(self.compared, width=120), f"the report: {self.folder / REPORT}", f"the runs:   {runs}"]
        return "\n".join(
            [*lines, *([] if self.trained else ["It was there already, and was not trained again; --fresh does that."])]
        )

    def as_dict(self) -> dict[str, Any]:
        """The comparison as `coalface compare --json` has it, and the report."""
        return {"report": str(self.folder / REPORT), **table.as_dict(self.compared)}


def run(out: Path, callback: Callback, *, fresh: bool = False) -> Demonstration:
    """Train and compare.

    It is made in a hidden folder beside `out`, where an unfinished one is gone on with, and takes its place when it is
    whole. A finished one of the same version and recipes is kept, and only its page is made anew, unless `fresh`.

    Raises RecipeError where `out` holds anything that no demonstration has made.
    """
    out = out.resolve() if out.is_symlink() or not out.name else out
    making, before = (out.with_name(f".{out.name}.{what}") for what in ("unfinished", "before"))
    mine = {"version": __version__, "recipes": {method: recipe(method).digest() for method in METHODS}}
    whole = all((out / method / "summary.json").exists() for method in METHODS)
    if whole and _made(out) == mine and not fresh:
        compared = _compare([out / method for method in METHODS], out / REPORT)
        return Demonstration(out, compared, trained=False)
    for place in (out, making, before):
        _may_go(place)
    if making.exists() and (fresh or _made(making) != mine):
        shutil.rmtree(making)
    making.mkdir(parents=True, exist_ok=True)
    (making / MARKER).write_text(json.dumps(mine, indent=1) + "\n", encoding="utf-8")
    for method in METHODS:
        place = making / method
        if not (place / "config.yaml").exists():
            experiment.run(recipe(method), place, callback)
        elif not (place / "report.html").exists():  # the last thing that a run writes
            callback.note(f"resuming {place}")
            experiment.resume(place, callback)
    compared = _compare([making / method for method in METHODS], making / REPORT)
    _may_go(out)  # somebody may have put something there meanwhile
    if out.exists():
        shutil.rmtree(before, ignore_errors=True)
        out.rename(before)
    making.rename(out)
    shutil.rmtree(before, ignore_errors=True)
    return Demonstration(out, compared, trained=True)


def _compare(runs: Sequence[Path], to: Path) -> table.Comparison:
    intervals = compare.intervals(runs)
    page.build(runs[0], *runs[1:], intervals=intervals, to=to)
    return table.compare(runs, intervals)


def _made(folder: Path) -> object:
    """What the folder's marker says: the version and the recipes that a demonstration is of; None without a marker."""
    try:
        return json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _may_go(folder: Path) -> None:
    """Raise RecipeError unless nothing but a demonstration would be lost with the folder."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    held = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if MARKER not in held or held - {*METHODS, REPORT, MARKER}:
        raise RecipeError(
            "the folder is not a demonstration, and nothing in it was changed; give another --out", where=folder
        )
