"""Sweeps: a grid of recipes into one table, resumable from one small text file.

`OUT/cells.jsonl` has a line for every finished cell: the hash of its resolved recipe, what was swept, the figures, and
the evidence for paired comparisons. That file alone says what is done; a cell whose hash has changed is run again.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from coalface import config, experiment, world
from coalface.comparing import bootstrap_of, paired
from coalface.config import Recipe, RecipeError
from coalface.experiment import View
from coalface.judging import read_lists


@dataclass(frozen=True)
class Cell:
    """One point of the grid."""

    chosen: dict[str, Any]
    """Swept key -> its value here."""
    recipe: Recipe

    @property
    def name(self) -> str:
        """Names the cell for people."""
        return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.chosen.items())


def grid(path: Path, changes: Sequence[str]) -> list[Cell]:
    """The cells of `key=a,b,c …` over a recipe, the last key fastest. Raises RecipeError."""
    axes = []
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator:
            raise RecipeError(f"{change!r} is not a change: write key=value or key=a,b,c")
        value = yaml.safe_load(text)
        many = text.split(",") if isinstance(value, str | tuple) and "," in text else None
        values = [yaml.safe_load(v) for v in many] if many else value if isinstance(value, list) else [value]
        axes.append([(key, v) for v in values])
    cells = []
    for point in itertools.product(*axes):
        recipe = config.load(path, [f"{key}={json.dumps(value)}" for key, value in point]).with_threads()
        swept = {key: value for (key, value), axis in zip(point, axes, strict=True) if len(axis) > 1}
        cells.append(Cell(swept, recipe))
    return cells


def sweep(
    path: Path, changes: Sequence[str], out: Path, view: View, *, baseline: str | None = None, keep_runs: bool = False
) -> str:
    """Run the cells that are not done yet, then write and return the table (`OUT/table.md`)."""
    cells = grid(path, changes)
    out.mkdir(parents=True, exist_ok=True)
    done = read_cells(out / "cells.jsonl")
    for number, cell in enumerate(cells, start=1):
        digest = cell.recipe.digest()
        if digest in done:
            continue
        view.note(f"cell {number} of {len(cells)}: {cell.name}")
        place = out / "runs" / digest
        recipe = cell.recipe.model_copy(update={"name": f"{cell.recipe.name} {cell.name}"})
        if (place / "config.yaml").exists():
            experiment.resume(place, view)
        else:
            experiment.run(recipe, place, view, report=keep_runs)
        done[digest] = _line(cell, place)
        with open(out / "cells.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(done[digest]) + "\n")
        if not keep_runs:
            shutil.rmtree(place)
    text = table(cells, done, baseline)
    (out / "table.md").write_text(text, encoding="utf-8")
    return f"{text}\ncells: {out / 'cells.jsonl'}\ntable: {out / 'table.md'}"


def read_cells(path: Path) -> dict[str, dict[str, Any]]:
    """Finished cells by the hash of their recipe; a last line that was cut off does not count, and is taken away."""
    found: dict[str, dict[str, Any]] = {}
    if not path.exists():
        return found
    whole, _, cut = path.read_text(encoding="utf-8").rpartition("\n")
    if cut:
        path.write_text(whole + "\n" if whole else "", encoding="utf-8")
    for line in whole.splitlines():
        cell = json.loads(line)
        found[cell["hash"]] = cell
    return found


def _line(cell: Cell, place: Path) -> dict[str, Any]:
    summary = json.loads((place / "summary.json").read_text(encoding="utf-8"))
    kept = ("method", "seed", "rounds", "bytes", "seconds", "figures", "untrained")
    lists = {name: identities.sha256 for name, identities in read_lists(place / "judged")}
    losses = [json.loads(line).get("loss") for line in (place / "metrics.jsonl").read_text().splitlines()]
    evidence = json.loads((place / "evidence.json").read_text(encoding="utf-8"))
    line = {"hash": cell.recipe.digest(), "cell": cell.chosen, **{k: summary[k] for k in kept}}
    return {**line, "last_loss": losses[-1] if losses else None, "lists": lists, "evidence": evidence}


def table(cells: Sequence[Cell], done: Mapping[str, Mapping[str, Any]], baseline: str | None = None) -> str:
    """The table in Markdown: a row for every setting with its mean and spread over seeds, then the differences."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        label = ", ".join(f"{k}={v}" for k, v in cell.chosen.items() if k != "seed") or cell.recipe.method
        groups.setdefault(label, []).append(done[cell.recipe.digest()])
    names = list(dict.fromkeys(n for g in groups.values() for n in _flat(g[0]["figures"]) if not n.endswith("_se")))
    lines = ["| setting | seeds | " + " | ".join(names) + " | down | up | seconds |", "|---" * (len(names) + 5) + "|"]
    lines.append(_row("untrained", next(iter(groups.values())), "untrained", names))
    lines += [_row(label, group, "figures", names) for label, group in groups.items()]
    lines += [
        "",
        "Figures in percent: mean over seeds ± standard deviation over seeds. Bytes and seconds: mean of a run.",
    ]
    if len(groups) > 1:
        first = _baseline(groups, baseline)
        lines += ["", *_differences(cells[0].recipe, groups, first)]
    return "\n".join(lines) + "\n"


def _flat(figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {f"{on}/{name}": value for on, each in figures.items() for name, value in each.items()}


def _row(label: str, group: Sequence[Mapping[str, Any]], key: str, names: Sequence[str]) -> str:
    flat = [_flat(cell[key]) for cell in group]
    shown = []
    for name in names:
        values = [f[name] for f in flat if name in f]
        spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        shown.append(f"{np.mean(values):.2f}{spread}" if values else "")
    ran = key == "figures"
    shown += [f"{np.mean([c['bytes'][way] for c in group]) / 1e6:.1f} MB" if ran else "" for way in ("down", "up")]
    shown.append(f"{np.mean([c['seconds']['total'] for c in group]):.0f}" if ran else "")
    return f"| {label} | {len(group)} | " + " | ".join(shown) + " |"


def _baseline(groups: Mapping[str, Any], wanted: str | None) -> str:
    if wanted is None:
        return next(iter(groups))
    found = [label for label in groups if wanted in label.split(", ")]
    if not found:
        raise RecipeError(f"--baseline {wanted}: no setting of the sweep has it; there are {'; '.join(groups)}")
    return found[0]


def _differences(recipe: Recipe, groups: Mapping[str, Sequence[Mapping[str, Any]]], first: str) -> list[str]:
    train, held = world.training_faces(recipe)
    lines = [
        f"Differences to {first}, percent points, 95 % interval (2,000 paired draws of the judged identities):",
        "",
    ]
    lines += ["| setting | figure | difference | interval | verdict |", "|---|---|---|---|---|"]
    for chosen in world.judged(recipe, train, held):
        bootstrap = bootstrap_of(chosen.identities)
        base = [cell["evidence"][chosen.name] for cell in groups[first]]
        for label, group in groups.items():
            if label == first:
                continue
            found = paired([cell["evidence"][chosen.name] for cell in group], base, bootstrap)
            for name, difference in found.items():
                d = difference.figures()
                verdict = {"first": "higher", "second": "lower"}.get(str(d["verdict"]), "undecided")
                lines.append(
                    f"| {label} | {chosen.name}/{name} | {d['difference']:+.2f} | {d['low']:+.2f} to {d['high']:+.2f} "
                    f"| {verdict} |"
                )
    return lines
