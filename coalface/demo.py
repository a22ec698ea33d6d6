"""The demonstration: three ways to train on the same synthetic faces, compared on one page."""

from __future__ import annotations

import shutil
from pathlib import Path

from coalface import comparing, config, experiment
from coalface.config import Recipe, RecipeError
from coalface.experiment import View
from coalface.report import page, table

RECIPE = {
    "name": "demo",
    "rounds": 30,
    "local": {"epochs": 1, "batch": 16, "lr": 0.02, "schedule": "cosine"},
    "loss": {"name": "cosface", "scale": 16.0, "margin": 0.2},
    "data": {
        "source": {"kind": "synthetic", "identities": 360, "images": 10, "domains": ["studio"]},
        "hold_out": 120,
        "partition": {"kind": "equal", "parties": 8},
    },
    "engine": {"workers": 2, "threads": 1},
    "judge": {"every": 10, "lists": {"unseen": {"kind": "balanced", "pairs": 1500}}},
}

METHODS = ("fedavg", "solo", "centralized")

REPORT = "report.html"
"""The page that compares them."""


def recipe(method: str) -> Recipe:
    """The demonstration's recipe for one method."""
    return config.parse({**RECIPE, "name": f"demo-{method}", "method": method})


def run(out: Path, view: View) -> str:
    """Train, compare, and return what to tell the person. A demonstration that is there already is replaced."""
    if out.exists():
        if not out.is_dir() or not {entry.name for entry in out.iterdir()} <= {*METHODS, REPORT}:
            raise RecipeError(f"{out} holds something that is no demonstration, and is left alone: give another --out")
        shutil.rmtree(out)
    runs = [experiment.run(recipe(method), out / method, view, report=False) for method in METHODS]
    intervals = comparing.intervals(runs)
    report = page.build(runs[0], *runs[1:], intervals=intervals, to=out / REPORT)
    for place in runs:
        page.build(place)
    compared = table.text(table.compare(runs, intervals), width=120)
    return f"{compared}\nthe report: {report}\nthe runs:   {', '.join(str(r) for r in runs)}"
