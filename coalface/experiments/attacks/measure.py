"""An attack on a recipe, over seeds and defences: a cell each, kept as soon as it is done, and one table."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from coalface.core.checks import nearest
from coalface.core.disk import write_text
from coalface.core.errors import RecipeError
from coalface.core.method import Models
from coalface.core.parsing import parse_yaml
from coalface.engine.transport import RunFailed
from coalface.experiments import provenance
from coalface.experiments.attacks.base import Attack, NotAttackable
from coalface.experiments.attacks.replay import changes_images, changes_replies, replay
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.prepare import Make
from coalface.experiments.recipe.schema import Recipe
from coalface.models.folder import read_about, read_tensors

KINDS = {
    "linkage": "linkage.Linkage",
    "membership": "membership.Membership",
    "poisoning": "poisoning.Poisoning",
    "template-inversion": "template_inversion.TemplateInversion",
    "update-inversion": "update_inversion.UpdateInversion",
}
"""Kind -> its class, in a module of this package."""
NOTHING = "–"
NONE = "none"
"""The defence of a run as its recipe has it."""
CELLS, TABLE = "cells.jsonl", "table.md"


@dataclass(frozen=True)
class Cell:
    """One attack on one replay."""

    title: str
    """The recipe and its changes, as the command has them."""
    recipe: str
    """The digest of the recipe, with the defence and the seed."""
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


def read_options(texts: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE of each, with values as in YAML. Raises RecipeError for another form."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise RecipeError(f"{text!r} is no setting; write KEY=VALUE", where="--option")
        options[key] = parse_yaml(value)
    return options


def measure(
    load: Callable[[Sequence[str]], Recipe],
    title: str,
    kind: str,
    out: Path,
    callback: Callback,
    make: Make,
    *,
    defences: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    run: Path | None = None,
    options: dict[str, Any] | None = None,
) -> list[Cell]:
    """The cells of an attack, computed where `out` has none, seed by seed; `out` also comes to hold the table.

    `load` gives the recipe with some changes; a defence is such changes, as a line. Of a `run` whose recipe that is, a
    replay that leaves another model is warned of. Raises RecipeError where the recipe
    cannot be run without a defence.
    """
    attack, options = attack_of(kind), options or {}
    known_options = inspect.signature(attack).parameters.keys() - {"run", "seed"}
    for key in options:
        nearest(key, dict.fromkeys(sorted(known_options)), "--option")
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
            cell = Cell(title, recipe.digest(), kind, text, defence, seed)
            if cell.key not in known:
                callback.note(f"{kind}, seed {seed}, defence {defence}")
                make_attack = functools.partial(attack, **options)
                known[cell.key] = _computed(cell, recipe, make_attack, callback, make, run)
                with open(out / CELLS, "a", encoding="utf-8") as lines:
                    lines.write(json.dumps(asdict(known[cell.key]), ensure_ascii=False) + "\n")
            write_text(out / TABLE, "\n".join(table(list(known.values()))) + "\n")
    return list(known.values())


def _computed(
    cell: Cell, recipe: Recipe, make_attack: Callable[..., Attack], callback: Callback, make: Make, run: Path | None
) -> Cell:
    began, outcomes, refused = time.perf_counter(), tuple[dict[str, Any], ...](), ""
    try:
        attack, models = replay(recipe, make_attack, callback, make)
        only_watches = not (changes_images(attack) or changes_replies(attack))
        same_recipe = run is not None and recipe.digest() == provenance.recipe_of(run).digest()
        if run is not None and only_watches and same_recipe and not _is_left_by(models, run):
            callback.warn(
                f"the replay leaves another model than {run} has: it was trained on another machine, or changed"
            )
        outcomes = tuple(asdict(outcome) for outcome in attack.outcomes(models))
    except (NotAttackable, RecipeError, RunFailed) as error:
        if isinstance(error, RecipeError) and cell.defence == NONE:
            raise
        refused = str(error)
    seconds = round(time.perf_counter() - began, 2)
    return dataclasses.replace(cell, outcomes=outcomes, refused=refused, seconds=seconds)


def _is_left_by(models: Models, run: Path) -> bool:
    """Whether a run's folder has the model for everybody, bit by bit; True where there is none to compare."""
    folder = run / "model"
    if models.shared is None or not (folder / "backbone.safetensors").exists():
        return True
    kept = read_tensors(folder, "backbone.safetensors", read_about(folder))
    return all(torch.equal(tensor, kept[name]) for name, tensor in models.shared.items())


def read_cells(out: Path) -> Iterator[Cell]:
    """The cells that a folder holds."""
    if (out / CELLS).exists():
        for line in (out / CELLS).read_text(encoding="utf-8").splitlines():
            read = json.loads(line)
            yield Cell(**read | {"outcomes": tuple(read["outcomes"])})


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """Markdown: a row for each figure, a column for chance and for each defence; means over seeds, and their range.

    Where chance differs between cells (as that of a model without liars does), each figure has its own in brackets.
    """
    defences = list(dict.fromkeys(cell.defence for cell in cells))
    figures: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    chances: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for cell in cells:
        for outcome in cell.outcomes:
            about = " ".join([cell.title, *_options(cell)])
            row = cell.kind, about, outcome["target"], outcome["attacker"], outcome["figure"]
            figures.setdefault(row, {}).setdefault(cell.defence, []).append(outcome["value"])
            chances.setdefault(row, {}).setdefault(cell.defence, []).append(outcome["chance"])
    yield f"| attack | run | on | by | figure | chance | {' | '.join(defences)} |"
    yield f"|---|---|---|---|---|---:|{'---:|' * len(defences)}"
    for row, by_defence in figures.items():
        of_row = {defence: _text(chances[row].get(defence, [])) for defence in defences}
        values = [_text(by_defence.get(defence, [])) for defence in defences]
        if len(set(of_row.values()) - {NOTHING}) > 1:  # a chance of its own beside each value
            values = [f"{value} [{of_row[defence]}]" for defence, value in zip(defences, values, strict=True)]
        yield f"| {' | '.join(row)} | {of_row[next(iter(by_defence))]} | {' | '.join(values)} |"
    for refused in dict.fromkeys(
        f"{cell.kind}, {cell.title}, {cell.defence}: {cell.refused}" for cell in cells if cell.refused
    ):
        yield f"\n{refused}"


def _options(cell: Cell) -> list[str]:
    return [f"{key}={value}" for key, value in json.loads(cell.options).items()]


def _text(values: Sequence[float]) -> str:
    if len(set(values)) < 2:
        return f"{values[0]:.1f}" if values else NOTHING
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
