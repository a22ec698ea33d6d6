"""Recipes at the door: from YAML, or a tree of keys, to a recipe whose parts have been checked."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from coalface.core.checks import at_key, needs_section, short
from coalface.core.errors import DataError, PluginError, RecipeError
from coalface.core.names import made_plain
from coalface.core.parsing import parse_yaml, read_text
from coalface.core.text import told
from coalface.data.partition_file import read_partition
from coalface.experiments.recipe import included, own_data, short_keys, validate
from coalface.experiments.recipe.base import first_error
from coalface.experiments.recipe.insightface_words import translate_words
from coalface.experiments.recipe.partitions import PARTITIONS, FromFile
from coalface.experiments.recipe.scenarios import SCENARIOS, Partitioned
from coalface.experiments.recipe.schema import NAMED, Pretraining, Recipe
from coalface.experiments.recipe.sections import SOURCES
from coalface.methods import METHODS
from coalface.models.pretrained.input import IMAGENET, convention_of
from coalface.models.pretrained.weights import identify
from coalface.training.classifier import check_sampleable
from coalface.training.distributed.softmax import check_shardable
from coalface.training.losses.registry import LOSSES

FEDERATED = frozenset(
    "sum_block processes_per_party client_batch update_dtype min_reply_fraction max_abandoned_rounds on_error "
    "trackers max_update_norm oversized max_share retries aggregator".split()
)
"""Keys of `engine` that are about a run and its parties, not about the machine: a pre-training has its own."""


PINNED = ("weights", "sha256", "input")
"""Keys of `model` that follow from the file of weights."""


def load(path: str | os.PathLike[str] | None, changes: Sequence[str] = ()) -> Recipe:
    """A recipe from a YAML file, or an included one by its name, with changes such as `local.lr=0.05`.

    Raises RecipeError.
    """
    tree = read(path) if path is not None else {}
    if "grids" in tree:
        raise RecipeError(f"it has `grids`; `coalface sweep {quote(str(path))}` runs them", where=str(path))
    values: dict[str, Any] = {}
    for change in changes:
        _check_utf8(change)
        key, separator, text = change.partition("=")
        if not separator or not key:
            raise RecipeError(f"{told(change, 80)!r} is not a change; write key=value, for example local.lr=0.05")
        try:
            value = parse_yaml(text)
        except ValueError as error:
            raise RecipeError(f"the value is not YAML ({error}); try it in quotes", where=told(change, 80)) from None
        tree, values[key] = with_value(tree, key, value), value
    for key in values:
        if not _has(tree, key):
            raise RecipeError("a later change selects something without this key; remove one of the two", where=key)
    return parse(tree)


def _has(tree: Any, key: str) -> bool:
    first, rest = _first_name(key)
    return not key or (isinstance(tree, Mapping) and first in tree and _has(tree[first], rest))


def _first_name(key: str) -> tuple[str, str]:
    """A dotted key as its first name and the rest; below `methods`, `package.module:Name` is one name."""
    whole = re.fullmatch(r"([^:]+:[^.]+)\.?(.*)", key)
    if whole and not key.startswith("methods."):
        return whole[1], whole[2]
    first, _, rest = key.partition(".")
    return first, rest


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keys of a recipe file, not yet checked; its name is the file's unless it gives one. Raises RecipeError."""
    path = included.locate(path)
    try:
        tree = parse_yaml(read_text(path)) or {}
    except ValueError as error:
        raise RecipeError(f"not YAML: {error}", where=path) from None
    if not isinstance(tree, dict):
        raise RecipeError("a recipe is a mapping of keys, such as `rounds: 20`", where=path)
    return {"name": path.stem, **tree}


def parse(tree: Mapping[str, Any]) -> Recipe:
    """A checked recipe. Raises RecipeError, for an unknown key with the nearest known one."""
    _check_utf8(tree)
    tree = {key: {"name": value} if key in NAMED and isinstance(value, str) else value for key, value in tree.items()}
    keys = _with_teacher(translate_words(tree))
    pretrain = keys.pop("pretrain", None)
    try:
        recipe = Recipe.model_validate(keys)
    except ValidationError as error:
        raise short_keys.with_hint(first_error(Recipe, error), keys) from None
    rounds = recipe.local.rounds
    if rounds is not None and rounds != recipe.rounds:
        if "rounds" in recipe.model_fields_set:
            raise RecipeError(
                f"{recipe.rounds} rounds contradict local.total_steps and local.steps_per_round, which make {rounds}; "
                "remove one of the three",
                where="rounds",
            )
        recipe = recipe.model_copy(update={"rounds": rounds})
    if (recipe.local.sample_rate or 1) < 1:
        with at_key("local.sample_rate"):
            check_sampleable(recipe.loss)
    if any(size > 1 for size in recipe.engine.processes_per_party.values()):
        with at_key("engine.processes_per_party"):
            check_shardable(recipe.loss)
    validate.check(recipe)
    recipe = _with_weights(_with_partition_file(recipe))
    return recipe if pretrain is None else recipe.model_copy(update={"pretrain": _pretraining(recipe, pretrain)})


def _pretraining(recipe: Recipe, changes: Any) -> Pretraining:
    """The pre-training of a recipe: its own keys over what it takes from the recipe."""
    if isinstance(changes, Pretraining):
        return changes
    if not isinstance(changes, Mapping):
        raise needs_section("pretrain", changes, list(Recipe.model_fields))
    validate.check_public_start(recipe)
    name = str(changes.get("method"))
    if name == "distill" != recipe.method and name in recipe.methods:
        raise RecipeError(
            "`pretrain` distills, and its settings stand below `pretrain.methods`", where="methods.distill"
        )
    whole = recipe.model_dump(mode="json")
    tree = {key: whole[key] for key in ("seed", "data", "model")} | {"name": made_plain(f"{recipe.name}-pretrain")}
    if recipe.model.batchnorm == "frozen":  # by statistics that this pre-training makes
        tree["model"] |= {"batchnorm": "average"}
    tree["evaluation"] = {"pairs": whole["evaluation"]["pairs"]}  # a run stops where it would train on their people
    validators = {n: v for n, v in whole["validators"].items() if v["validates"] is None and not v["own"]}
    tree["validators"] = validators  # nor on theirs
    tree["engine"] = {k: v for k, v in whole["engine"].items() if k not in FEDERATED}
    tree["data"] = _data_before(recipe, whole["data"], changes)
    try:
        inner = parse(merged(tree, changes))
        if inner.model.input != recipe.model.input:
            raise RecipeError("another than the run's; give both the same", where="model.input")
        return Pretraining(inner, json.dumps(with_files(changes, inner)))
    except RecipeError as error:
        raise within_pretrain(error) from None


def within_pretrain(error: RecipeError) -> RecipeError:
    """The error of a pre-training's recipe, with its keys as they stand in the recipe around it."""
    where = error.where if "/" in error.where else f"pretrain.{error.where}".removesuffix(".")  # a file stays one
    return RecipeError(error.text.replace("methods.distill.", "pretrain.methods.distill."), where=where)


def _data_before(recipe: Recipe, data: Mapping[str, Any], pretrain: Mapping[str, Any]) -> dict[str, Any]:
    """`data` of a pre-training, from that of a recipe as plain values."""
    tree, name = dict(data), pretrain.get("method")
    method = METHODS.get(str(name))
    if recipe.own is not None:  # the parties' images are not here
        return own_data.pretraining_data(recipe.own, tree, pretrain)
    if recipe.domains is not None:
        return tree | {"side": "source", "clients": 1}  # one model, whoever holds the target
    assigned = "partition" in tree and not isinstance(recipe.partition, FromFile)  # a file also says who is held out
    if method is not None and method.pools and not recipe.party_augment and assigned:
        tree["partition"] = {"seed": tree["partition"]["seed"]}  # nothing is assigned
    if recipe.private is not None:  # of public people nothing is kept to test or unknown, whoever holds the others
        tree |= {"side": "public", "test": None, "unlabelled": None, "private": {**tree["private"], "assigned": None}}
    return tree


def _with_partition_file(recipe: Recipe) -> Recipe:
    """The recipe with the SHA-256 of the partition's file, if it has one."""
    data, partition = recipe.data, recipe.partition
    if not isinstance(data, Partitioned) or not isinstance(partition, FromFile) or partition.sha256 is not None:
        return recipe
    path = Path(partition.path) if Path(partition.path).is_absolute() else recipe.root() / partition.path
    kept = partition.model_copy(update={"sha256": read_partition(path).sha256})
    return recipe.model_copy(update={"data": data.model_copy(update={"partition": kept})})


def _with_teacher(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The keys with `teacher` where it belongs, below `methods`, and with the SHA-256 of its file."""
    keys = dict(tree)
    if "teacher" in keys:
        keys = merged(keys, {"methods": {"distill": {"teacher": keys.pop("teacher")}}})
    methods = keys.get("methods")
    settings = methods.get("distill") if isinstance(methods, Mapping) else None
    if isinstance(settings, Mapping) and settings.get("input") == "imagenet":
        keys = merged(keys, {"methods": {"distill": {"input": dataclasses.asdict(IMAGENET)}}})
    if isinstance(settings, Mapping) and settings.get("teacher") and not settings.get("sha256"):
        path = Path(str(settings["teacher"])).absolute()
        with at_key("methods.distill.teacher", OSError, DataError):
            pinned = {"teacher": str(path), "sha256": identify(path)[0]}
        return merged(keys, {"methods": {"distill": pinned}})
    return keys


def _with_weights(recipe: Recipe) -> Recipe:
    """The recipe with the SHA-256 of the weights that it starts from, and the input convention that they bring."""
    model = recipe.model
    if model.weights is None or model.sha256 is not None:
        return recipe
    path = Path(model.weights).absolute()
    with at_key("model.weights", OSError, DataError):
        sha256, about = identify(path, model.party)
    convention = model.input
    if about:
        if about["backbone"] != model.name:
            raise RecipeError(
                f"{path} has the weights of a {about['backbone']} at {about['size']}×{about['size']}; use that",
                where="model.name",
            )
        convention = convention_of(about)
        if model.input not in (None, convention):
            raise RecipeError(f"the weights of {path} bring their own; remove this key", where="model.input")
    kept = model.model_copy(update={"weights": str(path), "sha256": sha256, "input": convention})
    return recipe.model_copy(update={"model": kept})


def with_files(tree: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """The keys of a recipe, with the SHA-256 of files that they name: who has another machine needs no such file."""
    if "weights" in (given := tree.get("model", {})):
        tree = {**tree, "model": {**given, **recipe.model.model_dump(mode="json", include={*PINNED})}}
    if recipe.pretrain is not None:
        tree = {**tree, "pretrain": recipe.pretrain.write()}
    return _with_teacher(tree)


def with_value(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The tree with one dotted key set; `loss` and `model` may be given by name.

    Another loss, or scenario, keeps what it can of the settings before.
    """
    if key in NAMED and isinstance(value, str):
        key = f"{key}.name"
    if key == "loss.name" and isinstance(value, str) and value in LOSSES and isinstance(tree.get("loss"), Mapping):
        fields = {f.name for f in dataclasses.fields(LOSSES[value])}
        settings = {k: v for k, v in tree["loss"].items() if k in fields and v is not None}
        return {**tree, "loss": {**settings, "name": value}}
    if key == "data.scenario" and isinstance(tree.get("data"), Mapping):
        return {**tree, "data": SCENARIOS.of_kind(tree["data"], value)}
    if key == "kind":
        return _of_kind(tree, value)
    first, path_below = _first_name(key)
    if not path_below:
        return {**tree, first: value}
    below = {} if tree.get(first) is True else tree.get(first)  # `secure: true` is all of its keys as they are
    if below is not None and not isinstance(below, Mapping):
        raise RecipeError(f"{repr(below)[:200]} has no keys below it", where=short(first))
    return {**tree, first: with_value(below or {}, path_below, value)}


def merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with a tree of changes laid over it; data of another scenario keeps what that has of the keys before."""
    result = _of_kind(tree, changes["kind"]) if "kind" in changes else dict(tree)
    data, changed_data = tree.get("data"), changes.get("data")
    if isinstance(data, Mapping) and isinstance(changed_data, Mapping) and "scenario" in changed_data:
        result["data"] = SCENARIOS.of_kind(data, changed_data["scenario"])
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            value = merged(result[key], value)
        result[key] = value
    return result


def _of_kind(tree: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """A source or a partition of another kind, with what that has of the keys before."""
    for kinds in (PARTITIONS, SOURCES):
        with contextlib.suppress(PluginError):  # it may be of the other
            if kinds.class_of(kind) is not None:
                return kinds.of_kind(tree, kind)
    return {**tree, "kind": kind}


def _check_utf8(value: Any, where: str = "") -> None:
    """Raise RecipeError for text that no file of a run could hold, as the name of a folder can be."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            _check_utf8(key, where)
            _check_utf8(below, f"{where}.{key}" if where else key)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_utf8(item, where)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            text = f"{told(value)} is not UTF-8, so the recipe of a run cannot hold it; rename the file or folder"
            raise RecipeError(text, where=short(where)) from None
