"""An attack on a recipe, over seeds and defences: a cell each, kept as soon as it is done, and one table."""

from __future__ import annotations

import functools
import importlib
import json
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coalface.core.checks import nearest
from coalface.core.disk import write_text
from coalface.core.errors import RecipeError
from coalface.experiments.attacks.base import Attack, NotAttackable
from coalface.experiments.attacks.replay import replay
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.prepare import Make
from coalface.experiments.recipe.schema import Recipe

KINDS = {"linkage": "linkage.Linkage"}
"""Kind -> its class, in a module of this package."""
NONE = "none"
"""The defence of a run as its recipe has it."""
CELLS, TABLE = "cells.jsonl", "table.md"


@dataclass(frozen=True)
class Cell:
    """One attack on one replay."""

    recipe: str
    """Its digest, with the defence and the seed."""
    kind: str
    options: str
    defence: str
    seed: int
    outcomes: tuple[dict[str, Any], ...] = ()
    refused: str = ""
    """Why there is none: the run cannot be had so, or leaves the attacker nothing."""
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        """What the cell follows from."""
        return self.recipe, self.kind, self.options


def attack_of(kind: str) -> type[Attack]:
    """The class of a kind. Raises RecipeError for an unknown one."""
    module, name = KINDS[nearest(kind, dict.fromkeys(KINDS), "--kind")].split(".")
    attack: type[Attack] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return attack


def measure(
    load: Callable[[Sequence[str]], Recipe],
    kind: str,
    out: Path,
    callback: Callback,
    make: Make,
    *,
    defences: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    options: dict[str, Any] | None = None,
) -> list[Cell]:
    """The cells of an attack, computed where `out` has none, seed by seed; `out` also comes to hold the table.

    `load` gives the recipe with some changes; a defence is such changes, as a line. Raises RecipeError where the recipe
    cannot be run without a defence.
    """
    attack, options = attack_of(kind), options or {}
    out.mkdir(parents=True, exist_ok=True)
    known = {cell.key: cell for cell in read_cells(out)}
    for seed in seeds:
        for defence in (NONE, *defences):
            changes = [*([] if defence == NONE else shlex.split(defence)), f"seed={seed}"]
            try:
                recipe = load(changes)
            except RecipeError as error:
                if defence == NONE:
                    raise
                callback.warn(f"{defence}: {error}")
                continue
            text = json.dumps(options, sort_keys=True, default=str)
            cell = Cell(recipe.digest(), kind, text, defence, seed)
            if cell.key not in known:
                callback.note(f"{kind}, seed {seed}, defence {defence}")
                known[cell.key] = _computed(cell, recipe, functools.partial(attack, **options), callback, make)
                with open(out / CELLS, "a", encoding="utf-8") as lines:
                    lines.write(json.dumps(asdict(known[cell.key]), ensure_ascii=False) + "\n")
            write_text(out / TABLE, "\n".join(table(list(known.values()))) + "\n")
    return list(known.values())


def _computed(cell: Cell, recipe: Recipe, make_attack: Callable[..., Attack], callback: Callback, make: Make) -> Cell:
    began, outcomes, refused = time.perf_counter(), tuple[dict[str, Any], ...](), ""
    try:
        attack, models = replay(recipe, make_attack, callback, make)
        outcomes = tuple(asdict(outcome) for outcome in attack.outcomes(models))
    except (NotAttackable, RecipeError) as error:
        if isinstance(error, RecipeError) and cell.defence == NONE:
            raise
        refused = str(error)
    return Cell(*_about(cell), outcomes, refused, round(time.perf_counter() - began, 2))


def _about(cell: Cell) -> tuple[str, str, str, str, int]:
    return cell.recipe, cell.kind, cell.options, cell.defence, cell.seed


def read_cells(out: Path) -> Iterator[Cell]:
    """The cells that a folder holds."""
    if (out / CELLS).exists():
        for line in (out / CELLS).read_text(encoding="utf-8").splitlines():
            read = json.loads(line)
            yield Cell(**read | {"outcomes": tuple(read["outcomes"])})


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """Markdown: a row for each figure, a column for chance and for each defence; means over seeds, and their range."""
    defences = list(dict.fromkeys(cell.defence for cell in cells))
    figures: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    chances: dict[tuple[Any, ...], float] = {}
    for cell in cells:
        for outcome in cell.outcomes:
            row = cell.kind, outcome["target"], outcome["attacker"], outcome["figure"]
            figures.setdefault(row, {}).setdefault(cell.defence, []).append(outcome["value"])
            chances[row] = outcome["chance"]
    yield f"| attack | on | by | figure | chance | {' | '.join(defences)} |"
    yield f"|---|---|---|---|---:|{'---:|' * len(defences)}"
    for row, by_defence in figures.items():
        values = [_text(by_defence.get(defence, [])) for defence in defences]
        yield f"| {' | '.join(row)} | {chances[row]:.1f} | {' | '.join(values)} |"
    for refused in dict.fromkeys(f"{cell.kind}, {cell.defence}: {cell.refused}" for cell in cells if cell.refused):
        yield f"\n{refused}"


def _text(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else "–"
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
