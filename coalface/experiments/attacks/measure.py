"""An attack on a recipe, over seeds and defences: a cell each, kept as soon as it is done, and one table."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from coalface.core import registry
from coalface.core.checks import nearest, wrong_value
from coalface.core.disk import write_text
from coalface.core.errors import RecipeError
from coalface.core.method import Models
from coalface.core.parsing import parse_yaml
from coalface.engine.transport import RunFailed
from coalface.experiments import provenance
from coalface.experiments.attacks.base import Attack, NotAttackable, Outcome
from coalface.experiments.attacks.cells import Cell, append_cell, read_cells, table
from coalface.experiments.attacks.judge import digest_of
from coalface.experiments.attacks.replay import replay
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.recipe.scenarios import OfFaces
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import Synthetic
from coalface.models.folder import read_about, read_tensors

KINDS = {
    "linkage": "linkage:Linkage",
    "membership": "membership:Membership",
    "poisoning": "poisoning:Poisoning",
    "template-inversion": "template_inversion:TemplateInversion",
    "update-inversion": "update_inversion:UpdateInversion",
}
"""Kind -> its class, in a module of this package."""
NONE = "none"
"""The defence of a run as its recipe has it."""
CELLS, TABLE = "cells.jsonl", "table.md"


def attack_of(kind: str) -> type[Attack]:
    """The class of a kind. Raises RecipeError for an unknown one."""
    attack: type[Attack] = registry.load(f"{__package__}.{KINDS[nearest(kind, dict.fromkeys(KINDS), '--kind')]}")
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
    *,
    defences: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    run: Path | None = None,
    options: dict[str, Any] | None = None,
) -> list[Cell]:
    """The cells of an attack, computed where `out` has none, seed by seed; `out` also comes to hold the table.

    Another seed than the recipe's draws other synthetic people too: a range is of people as well. `load` gives the
    recipe with some changes; a defence is such changes, as a line. Of a `run` whose recipe that is, a replay that
    leaves another model is warned of, and that it has none yet. Raises RecipeError where the recipe cannot be had with
    a defence, or be run without one.
    """
    attack = attack_of(kind)
    _check_options(attack, options := options or {})
    as_given = load(())
    recipes = [
        (seed, defence, load([*([] if defence == NONE else shlex.split(defence)), *_changes_of(seed, as_given)]))
        for seed in seeds
        for defence in (NONE, *defences)
    ]
    if run is not None and not (run / "model").exists():
        callback.warn(f"{run} is not finished: the replay goes on to the end of its recipe, to a model that it lacks")
    out.mkdir(parents=True, exist_ok=True)
    known = {cell.key: cell for cell in read_cells(out / CELLS) if cell.version >= attack_of(cell.kind).version}
    text, judge = json.dumps(options, sort_keys=True, default=str), digest_of(options.get("judge", ""))
    for seed, defence, recipe in recipes:
        cell = Cell(title, recipe.digest(), kind, text, defence, seed, version=attack.version_of(recipe), judge=judge)
        if cell.key not in known or known[cell.key].version < cell.version:
            callback.note(f"{kind}, seed {seed}, defence {defence}")
            make_attack = functools.partial(attack, **options)
            known[cell.key] = _computed(cell, recipe, make_attack, callback, run)
            append_cell(out / CELLS, known[cell.key])
        write_text(out / TABLE, "\n".join(table(list(known.values()))) + "\n")
    return list(known.values())


def _changes_of(seed: int, recipe: Recipe) -> list[str]:
    """The changes to a recipe by which it is played with another seed: with other people too, where they are drawn."""
    changes, faces = [f"seed={seed}"], recipe.data.faces if isinstance(recipe.data, OfFaces) else None
    if isinstance(faces, Synthetic) and seed != recipe.seed:
        changes.append(f"data.faces.seed={faces.seed ^ recipe.seed ^ seed}")
    return changes


def _check_options(attack: type[Attack], options: dict[str, Any]) -> None:
    """Raise RecipeError for an option that an attack does not know, or takes otherwise."""
    parameters = dict(inspect.signature(attack, eval_str=True).parameters)
    del parameters["run"], parameters["seed"]
    for key, value in options.items():
        kind = parameters[nearest(key, parameters, "--option")].annotation
        try:
            TypeAdapter(kind).validate_python(value, strict=True)
        except ValidationError as error:
            raise wrong_value(f"--option {key}", value, error.errors()) from None


def _computed(
    cell: Cell, recipe: Recipe, make_attack: Callable[..., Attack], callback: Callback, run: Path | None
) -> Cell:
    began, outcomes, refused = time.perf_counter(), tuple[Outcome, ...](), ""
    try:
        attack, models = replay(recipe, make_attack, callback)
        same_recipe = run is not None and recipe.digest() == provenance.recipe_of(run).digest()
        if run is not None and attack.only_watches and same_recipe and not _is_left_by(models, run):
            callback.warn(
                f"the replay leaves another model than {run} has: it was trained on another machine, or changed"
            )
        outcomes = tuple(attack.outcomes(models))
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
