"""The demonstration: three ways to train on the same synthetic faces, compared on one page."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalface import __version__
from coalface.core.errors import RecipeError
from coalface.experiments import run as experiment
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.comparison import page, paired, table
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe

METHODS = ("fedavg", "solo", "centralized")

REPORT = "report.html"
"""The page that compares them."""

MARKER = "demonstration.json"
"""Written first: only a folder that holds it is a demonstration, and may be replaced by one."""


def recipe(method: str) -> Recipe:
    """The demonstration's recipe for one method."""
    return loader.load("synthetic/silos", [f"method={method}", f"name=demo-{method}"])


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
    """Train and compare; one that was stopped goes on.

    A finished one of the same version and recipes is kept, and only its page is made anew, unless `fresh`. Raises
    RecipeError where `out` holds anything that no demonstration has made.
    """
    marker = {"version": __version__, "recipes": {method: recipe(method).digest() for method in METHODS}}
    out = out.resolve() if out.is_symlink() or not out.name else out
    _check_replaceable(out)
    runs, trained = [out / method for method in METHODS], False
    if fresh or _read_marker(out) != marker:
        for place in filter(Path.exists, runs):
            shutil.rmtree(place)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
    for method, place in zip(METHODS, runs, strict=True):
        if (place / "report.html").exists():  # the last thing that a run writes
            continue
        trained = True
        if (place / "config.yaml").exists():
            callback.note(f"resuming {place}")
            experiment.resume(place, callback)
        else:
            experiment.run(recipe(method), place, callback)
    compared = paired.compare_runs(runs)
    page.build(compared, out / REPORT)
    return Demonstration(out, compared, trained)


def _read_marker(folder: Path) -> object:
    """The version and the recipes that a demonstration is of; None without a marker that can be read."""
    try:
        return json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _check_replaceable(folder: Path) -> None:
    """Raise RecipeError unless nothing but a demonstration would be lost with the folder."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    held = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if MARKER not in held or held - {*METHODS, REPORT, MARKER}:
        raise RecipeError(
            "the folder is not a demonstration, and nothing in it was changed; give another --out", where=folder
        )
