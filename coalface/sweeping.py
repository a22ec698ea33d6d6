"""Sweeps: a grid of recipes into one table, resumable from one small text file.

`OUT/cells.jsonl` has a line for every finished cell: the hash of its resolved recipe, what was swept, the figures, and
the evidence for paired comparisons. That file alone says what is done; a cell whose hash has changed is run again.
A cell that fails does not stop the others: `OUT/failed.json` has its reason, and the next sweep tries it again, last.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coalface import config, experiment, pairlists, world
from coalface.comparing import bootstrap_of, paired
from coalface.config import Recipe, RecipeError
from coalface.engines.transport import RunFailed
from coalface.experiment import View
from coalface.judging import read_lists, write_json, write_text
from coalface.report.runs import clean, figure_name, size, start_name
from coalface.yamltext import parse_yaml

AVERAGED = ("seed", "half_split")
"""Keys over which a setting's cells are averaged."""


@dataclass(frozen=True)
class Cell:
    """One point of the grid."""

    chosen: dict[str, Any]
    """Swept key -> its value here."""
    recipe: Recipe

    @property
    def name(self) -> str:
        """Names the cell for people."""
        return " ".join(f"{key.rpartition('.')[2]}={_shown(value)}" for key, value in self.chosen.items())

    @property
    def setting(self) -> str:
        """What was swept besides the seed and the half of the folds; cells of one setting are averaged."""
        swept = ", ".join(f"{key}={_shown(value)}" for key, value in self.chosen.items() if key not in AVERAGED)
        return swept or self.recipe.method


def _shown(value: Any) -> str:
    """A value as one would write it on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def grid(path: Path, changes: Sequence[str]) -> list[Cell]:
    """The cells of `key=a,b,c …` over a recipe, the last key fastest. Raises RecipeError.

    Commas separate values, except those inside brackets or quotes: `data.source.domains=[studio],[studio,night]` has
    two values.
    """
    axes: dict[str, list[Any]] = {}
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator:
            raise RecipeError(f"{change!r} is not a change: write key=value or key=a,b,c")
        if key in axes:
            raise RecipeError(f"{key} is given twice: write all its values in one, as {key}=a,b,c")
        try:
            values = parse_yaml(f"[{text}]") or [None]
        except ValueError as error:
            raise RecipeError(f"{change!r}: the values are not YAML ({error}); put them in quotes?") from None
        axes[key] = [value for place, value in enumerate(values) if value not in values[:place]]
    tree, cells = config.read(path), []
    for point in itertools.product(*axes.values()):
        chosen = dict(zip(axes, point, strict=True))
        changed = tree
        for key, value in chosen.items():
            changed = config.with_value(changed, key, value)
        swept = {key: value for key, value in chosen.items() if len(axes[key]) > 1}
        cells.append(Cell(swept, config.parse(changed)))
    return cells


def sweep(
    path: Path, changes: Sequence[str], out: Path, view: View, *, baseline: str | None = None, keep_runs: bool = False
) -> str:
    """Run the cells that are not done yet, then write and return the table (`OUT/table.md`).

    Raises RunFailed, with the table of what is done, where cells have failed.
    """
    cells = grid(path, changes)
    _baseline([cell.setting for cell in cells], baseline)  # a mistake in it should not show after hours
    out.mkdir(parents=True, exist_ok=True)
    done, failed = read_cells(out / "cells.jsonl"), _read_failed(out)
    numbered = enumerate(cells, start=1)
    for number, cell in sorted(numbered, key=lambda one: one[1].recipe.digest() in failed):  # a stable sort
        digest = cell.recipe.digest()
        if digest in done:
            continue
        view.note(f"cell {number} of {len(cells)}: {cell.name}")
        try:
            done[digest] = _run(cell, out / "runs" / digest, view, keep_runs)
        except (RuntimeError, OSError, ValueError) as error:
            failed[digest] = clean(error)
            view.note(f"cell {number} of {len(cells)} failed: {clean(error)}")
            write_json(out / "failed.json", failed)
            continue
        with open(out / "cells.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(done[digest]) + "\n")
        if failed.pop(digest, None) is not None:
            write_json(out / "failed.json", failed)
        if not keep_runs:
            shutil.rmtree(out / "runs" / digest)
    text, whole = table(cells, done, baseline, failed)
    if whole or not (out / "table.md").exists():
        write_text(out / "table.md", text)
    said = f"{text}\ncells: {out / 'cells.jsonl'}\ntable: {out / 'table.md'}{'' if whole else ' (left as it was)'}"
    if missing := sum(cell.recipe.digest() not in done for cell in cells):
        raise RunFailed(f"{missing} of {len(cells)} cells failed; the same command tries them again\n\n{said}")
    return said


def _run(cell: Cell, place: Path, view: View, keep_runs: bool) -> dict[str, Any]:
    """Run a cell, or go on with it, and return its line."""
    if (place / "config.yaml").exists():
        experiment.resume(place, view)
    else:
        recipe = cell.recipe.model_copy(update={"name": f"{cell.recipe.name} {cell.name}".rstrip()})
        experiment.run(recipe, place, view, report=keep_runs)
    return _line(cell, place)


def _read_failed(out: Path) -> dict[str, str]:
    """The reason of each cell that has failed and was not done since, by the hash of its recipe."""
    path = out / "failed.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def read_cells(path: Path) -> dict[str, dict[str, Any]]:
    """Finished cells by the hash of their recipe; a last line that was cut off does not count, and is taken away."""
    found: dict[str, dict[str, Any]] = {}
    if not path.exists():
        return found
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    for number, line in enumerate(data[:whole].decode("utf-8").splitlines(), start=1):
        try:
            cell = json.loads(line)
            found[cell["hash"]] = cell
        except (ValueError, KeyError, TypeError) as error:
            raise RecipeError(
                f"{path}, line {number} is no cell ({error!r}): delete the line, and it is run again"
            ) from None
    return found


def _line(cell: Cell, place: Path) -> dict[str, Any]:
    summary = json.loads((place / "summary.json").read_text(encoding="utf-8"))
    kept = ("method", "seed", "rounds", "bytes", "seconds", "figures", "untrained")
    lists = {name: identities.sha256 for name, identities in read_lists(place / "judged")}
    records = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    losses = [record.get("loss") for record in records]
    evidence = json.loads((place / "evidence.json").read_text(encoding="utf-8"))
    line = {"hash": cell.recipe.digest(), "cell": cell.chosen, **{k: summary[k] for k in kept}}
    line |= {"last_loss": losses[-1] if losses else None, "losses": _smoothed(records, cell.recipe)}
    return {**line, "lists": lists, "evidence": evidence}


def _smoothed(records: Sequence[Mapping[str, Any]], recipe: Recipe) -> dict[str, float]:
    """Each party's final training loss: L ← 0.99^K L + (1 − 0.99^K) l over the rounds, l a round's mean over K steps.

    So rounds of every length are smoothed as one step by 0.99 would be (Bai et al. 2021, Table 1).
    """
    keep = 0.99 ** (recipe.build_local().iterations or 100)
    found: dict[str, float] = {}
    for record in records:
        for party, loss in record.get("losses", {}).items():
            found[party] = keep * found.get(party, loss) + (1 - keep) * loss
    return found


def table(
    cells: Sequence[Cell],
    done: Mapping[str, Mapping[str, Any]],
    baseline: str | None = None,
    failed: Mapping[str, str] | None = None,
) -> tuple[str, bool]:
    """The table in Markdown: a row for every setting with its mean and spread over seeds, then the differences.

    Also whether it is whole: False where the images that the differences need cannot be read here, and they are left
    out. Cells that are not in `done` are listed with their reason from `failed`.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    seeds: dict[str, int] = {}
    for cell in cells:
        group = groups.setdefault(cell.setting, [])
        group += [done[digest]] if (digest := cell.recipe.digest()) in done else []
        seeds[cell.setting] = seeds.get(cell.setting, 0) + 1
    there = {label: group for label, group in groups.items() if group}
    names = list(dict.fromkeys(n for g in there.values() for n in _flat(g[0]["figures"]) if not n.endswith("_se")))
    rows = [["setting", "seeds", *map(figure_name, names), "down", "up", "seconds"]]
    starts: dict[str, list[Mapping[str, Any]]] = {}  # what was not trained yet, of the first setting that starts so
    for cell in cells:
        if cell.setting in there:
            starts.setdefault(start_name(cell.recipe.pretrain), there[cell.setting])
    rows += [_row(label, group, "untrained", names) for label, group in starts.items()]
    for label, group in groups.items():
        row = _row(label, group, "figures", names) if group else [label, "0", *[""] * (len(names) + 3)]
        row[1] += "" if len(group) == seeds[label] else f" of {seeds[label]}"
        rows.append(row)
    lines = [
        *aligned(rows, left=1),
        "",
        "Figures in percent: mean over seeds ± standard deviation over seeds. Bytes and seconds: mean of a run.",
    ]
    whole = True
    if missing := [cell for cell in cells if cell.recipe.digest() not in done]:
        reasons = [(failed or {}).get(cell.recipe.digest(), "not run") for cell in missing]
        lines += ["", *(f"- {c.name or c.setting}: failed: {why}" for c, why in zip(missing, reasons, strict=True))]
    if len(there) > 1:
        first = _baseline(list(groups if baseline is not None else there), baseline)
        recipe = next(cell.recipe for cell in cells if cell.setting == first)
        try:
            lines += ["", *_differences(recipe, there, first)] if first in there else []
        except (OSError, ValueError) as error:
            whole = False
            lines += ["", f"Differences are left out: their pair lists cannot be made here ({clean(error)})."]
    return "\n".join(lines) + "\n", whole


def _flat(figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {f"{on}/{name}": value for on, each in figures.items() for name, value in each.items()}


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """A Markdown table whose columns stand beneath each other as text too, the first `left` to the left.

    >>> aligned([["method", "%"], ["solo", "81.20"]], left=1)
    ['| method |     % |', '|--------|------:|', '| solo   | 81.20 |']
    """
    safe = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*safe, strict=True)]
    lines = []
    for row in safe:
        padded = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append(f"| {' | '.join(padded)} |")
    rule = ["-" * (w + 2) if i < left else "-" * (w + 1) + ":" for i, w in enumerate(widths)]
    return [lines[0], f"|{'|'.join(rule)}|", *lines[1:]]


def _row(label: str, group: Sequence[Mapping[str, Any]], key: str, names: Sequence[str]) -> list[str]:
    flat = [_flat(cell[key]) for cell in group]
    shown = []
    for name in names:
        values = [f[name] for f in flat if name in f]
        spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        shown.append(f"{np.mean(values):.2f}{spread}" if values else "")
    ran = key == "figures"
    shown += [size(float(np.mean([c["bytes"][way] for c in group]))) if ran else "" for way in ("down", "up")]
    shown.append(f"{np.mean([c['seconds']['total'] for c in group]):.0f}" if ran else "")
    return [label, str(len(group)), *shown]


def _baseline(settings: Sequence[str], wanted: str | None) -> str:
    """The first setting that has the wanted `key=value`."""
    found = [setting for setting in settings if wanted is None or wanted in (setting, *setting.split(", "))]
    if not found:
        known = "; ".join(dict.fromkeys(settings))
        raise RecipeError(f"--baseline {wanted}: no setting of the sweep has it; there are {known}")
    return found[0]


def _differences(recipe: Recipe, groups: Mapping[str, Sequence[Mapping[str, Any]]], first: str) -> list[str]:
    train, held = world.training_faces(recipe)
    lines = [
        f"Differences to {first}, percent points, 95 % interval (2,000 paired draws of the judged identities):",
        "",
    ]
    rows = [["setting", "figure", "difference", "interval", "verdict"]]
    for chosen in pairlists.judged(recipe, train, held):
        bootstrap = bootstrap_of(chosen.identities)
        base = [cell["evidence"][chosen.name] for cell in groups[first]]
        for label, group in groups.items():
            if label == first:
                continue
            found = paired([cell["evidence"].get(chosen.name, ()) for cell in group], base, bootstrap)
            if not found:
                rows.append([label, chosen.name, "", "", "judged on other pairs"])
            for name, difference in found.items():
                d = difference.figures()
                verdict = "higher" if difference.low > 0 else "lower" if difference.high < 0 else "undecided"
                numbers = [f"{d['difference']:+.2f}", f"{d['low']:+.2f} to {d['high']:+.2f}"]
                rows.append([label, figure_name(f"{chosen.name}/{name}"), *numbers, verdict])
    return [*lines, *aligned(rows, left=2)]
