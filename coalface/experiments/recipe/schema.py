"""Recipes: YAML at the door, checked and resolved, plain arguments behind it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from coalface.core.checks import RecipeError as RecipeError
from coalface.core.checks import build, nearest, short, unknown_key
from coalface.core.declarations import without_none
from coalface.core.method import Method
from coalface.core.names import made_plain
from coalface.core.text import told
from coalface.core.yaml_text import parse_yaml
from coalface.engine.faults import Trouble
from coalface.experiments.recipe import own_data, validate
from coalface.experiments.recipe.import_insightface import understood
from coalface.experiments.recipe.sections import Data, Engine, Judge, Model, Name, PartyName, Section, Validator
from coalface.experiments.recipe.sections import PairsFrom as PairsFrom
from coalface.experiments.recipe.sections import Source as Source
from coalface.methods import METHODS
from coalface.training.distributed.classifier import check_shardable
from coalface.training.local_work import LocalWork
from coalface.training.losses.base import CosineLoss
from coalface.training.losses.registry import LOSSES

ADJUSTABLE = ("engine.quorum", "engine.patience", "engine.max_update_norm", "engine.oversized", "engine.retries")
"""What a resume may change although the result depends on it; the run folder then records the change."""
FREE = (
    "data.root",
    *(f"engine.{key}" for key in ("workers", "window", "save_replies", "checkpoint", "keep", "tensorboard")),
)
"""Keys that the result does not depend on: a resumed run may change them."""

FEDERATED = (
    *("block", "shards", "cohorts", "updates", "quorum", "patience", "on_error", "tensorboard"),
    *("max_update_norm", "oversized", "max_share", "retries"),
)
"""Keys of `engine` that are about a run and its parties, not about the machine: a pre-training has its own."""


class Recipe(Section):
    """One experiment."""

    name: Name = "run"
    seed: int = 0
    method: str = "fedavg"
    rounds: int = Field(20, ge=1)
    local: dict[str, Any] = {}
    """`coalface.training.local_work.LocalWork`, the same for all methods."""
    loss: dict[str, Any] = {"name": "cosface", "scale": 30.0, "margin": 0.35}
    methods: dict[str, dict[str, Any]] = {}
    """Settings of single methods, by name; they hold when that method is chosen."""
    data: Data = Data()
    model: Model = Model()
    judge: Judge = Judge()
    validators: dict[PartyName, Validator] = {}
    """Party name -> its pairs. They take part where the method has a step for validators."""
    half_split: Literal["first", "second"] | None = None
    """Which half of the folds the validators `half_of` a list hold. The list is then judged on the folds of the other
    half alone, each with its threshold chosen on all nine others. A fair figure is the mean of both runs."""
    engine: Engine = Engine()
    trouble: dict[str, Any] = {}
    """`coalface.engine.faults.Trouble`."""
    pretrain: dict[str, Any] | None = None
    """A recipe of its own, whose model this run starts from; kept by content in the cache.

    It takes from this recipe what both must share: `seed`, `data`, `model`, the lists of `judge` and the `validators`
    (nobody who is judged, or whom a validator holds, may be trained on) and `engine` as far as it says how this machine
    computes. Everything else (`method`, `rounds`, `local`, `loss`, `methods`, `trouble`) is what `pretrain` says, or
    the default of any recipe: a sweep over this run's learning rate or loss starts every cell from one and the same
    model. With `data.private` it trains on the public identities, all of their images; where parties have images of
    their own, on `data.public`; else on those of this run, less the images of `data.test`. A pooled method takes no
    partition, but where `data.party_augment` asks whose each image would be.
    """

    def build_method(self) -> Method:
        """The method with its settings. Raises RecipeError for settings that it does not have."""
        nearest(self.method, METHODS, "method")
        made = {name: self._method(nearest(name, METHODS, "methods")) for name in {self.method: {}, **self.methods}}
        return made[self.method]

    def _method(self, name: str) -> Method:
        cls = METHODS[name]
        cls.check_frozen()
        shared = {"rounds": self.rounds, "local": self.build_local(), "loss": self.build_loss()}
        known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        given = {k: v for k, v in shared.items() if k in known}
        if clash := set(self.methods.get(name, {})) & set(given):
            raise RecipeError(
                f"methods.{name}.{min(clash)}: set it at the top of the recipe, where all methods share it"
            )
        return build(cls, self.methods.get(name, {}), f"methods.{name}", given)

    def build_local(self) -> LocalWork:
        """The local work."""
        return build(LocalWork, self.local, "local")

    def build_loss(self) -> CosineLoss:
        """The loss."""
        settings = dict(self.loss)
        name = nearest(settings.pop("name", "cosface"), LOSSES, "loss.name")
        return build(LOSSES[name], settings, "loss")

    def build_trouble(self) -> Trouble:
        """The simulated trouble."""
        return build(Trouble, self.trouble, "trouble")

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, defaults included, as `config.yaml` holds it."""
        whole = self.model_dump(mode="json")
        whole["local"] = dataclasses.asdict(self.build_local())
        whole["loss"] = {"name": self.loss.get("name", "cosface"), **dataclasses.asdict(self.build_loss())}
        method = self.build_method()
        own = {f.name for f in dataclasses.fields(method)} - {"rounds", "local", "loss"}  # type: ignore[arg-type]
        whole["methods"] = {self.method: {k: v for k, v in dataclasses.asdict(method).items() if k in own}}  # type: ignore[call-overload]
        return typing.cast(dict[str, Any], json.loads(json.dumps(whole)))

    def essence(self) -> dict[str, Any]:
        """The resolved recipe without the keys that the result does not depend on (`FREE`)."""
        whole = self.resolved()
        for section, key in (path.split(".") for path in FREE):
            del whole[section][key]
        return own_data.unplaced(whole)

    def digest(self) -> str:
        """Names what the result depends on: the recipe's essence without its name, and without what is not set.

        So a key that a later version adds, unset by default, changes no hash.
        """
        whole = _what_is_set({key: value for key, value in self.essence().items() if key != "name"})
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]

    def pretraining(self) -> Recipe:
        """The recipe of the model that this run starts from: `pretrain` over what it takes from this one."""
        changes, whole = dict(self.pretrain or {}), self.model_dump(mode="json")
        tree = {key: whole[key] for key in ("seed", "data", "model")} | {"name": made_plain(f"{self.name}-pretrain")}
        tree["judge"] = {"lists": whole["judge"]["lists"]}  # a run stops where it would train on those it judges
        known = {n: v for n, v in whole["validators"].items() if v["half_of"] is None and not v["own"]}
        tree["validators"] = known  # nor on theirs
        tree["engine"] = {k: v for k, v in whole["engine"].items() if k not in FEDERATED}
        if (
            (method := METHODS.get(str(changes.get("method")))) is not None
            and method.pooled
            and not self.data.party_augment
        ):
            tree["data"] = {**whole["data"], "partition": {"seed": self.data.partition.seed}}  # nothing is dealt
        if self.data.private is not None:  # nobody's test images are among the public ones
            private = {
                **whole["data"]["private"],
                "dealt": None,
            }  # who holds the others does not matter
            tree["data"] = {**tree["data"], "side": "public", "test": None, "private": private}
        if self.data.source.kind == own_data.OWN:  # the parties' images are not here
            tree["data"] = own_data.before(whole["data"], changes)
        if self.data.domains is not None:
            whole_domains = {**whole["data"]["domains"], "clients": 1}  # one model, whoever holds the target
            tree["data"] = {**tree["data"], "side": "source", "domains": whole_domains}
        try:
            return parse(merged(tree, changes))
        except RecipeError as error:
            raise RecipeError(f"pretrain.{error}") from None

    def root(self) -> Path:
        """The data root. Raises RecipeError where none is given."""
        found = self.data.root or os.environ.get("COALFACE_DATA")
        if not found:
            raise RecipeError(
                "this recipe reads images from the data root, and none is given: set the environment variable "
                "COALFACE_DATA to the folder that holds the data sets, or add data.root=FOLDER"
            )
        return Path(found)


def load(path: str | os.PathLike[str] | None, changes: Sequence[str] = ()) -> Recipe:
    """A recipe from a YAML file with changes such as `local.lr=0.05`. Raises RecipeError."""
    tree = read(path) if path is not None else {}
    if "grids" in tree:
        raise RecipeError(
            f"{path} is a file of grids, not a recipe: `coalface sweep {quote(str(path))}` runs its cells"
        )
    for change in changes:
        _check_utf8(change)
        key, separator, text = change.partition("=")
        if not separator:
            raise RecipeError(f"{told(change, 80)!r} is not a change: write key=value, for example local.lr=0.05")
        try:
            value = parse_yaml(text)
        except ValueError as error:
            raise RecipeError(f"{told(change, 80)!r}: the value is not YAML ({error}); put it in quotes?") from None
        tree = with_value(tree, key, value)
    return parse(tree)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keys of a recipe file, not yet checked; its name is the file's unless it gives one. Raises RecipeError."""
    try:
        tree = parse_yaml(Path(path).read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise RecipeError(f"{path}: there is no such recipe; `ls recipes/*/` shows those that come along") from None
    except ValueError as error:
        raise RecipeError(f"{path} is not YAML: {error}") from None
    if not isinstance(tree, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys, such as `rounds: 20`")
    return {"name": Path(path).stem, **tree}


def _what_is_set(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {k: bare for k, v in tree.items() if (bare := _what_is_set(v)) not in (None, {}, [])}


def with_value(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The tree with one dotted key set. Another loss keeps what it can of the settings of the loss before."""
    if key == "loss.name" and isinstance(value, str) and value in LOSSES and isinstance(tree.get("loss"), Mapping):
        known = {f.name for f in dataclasses.fields(LOSSES[value])}
        kept = {k: v for k, v in tree["loss"].items() if k in known and v is not None}
        return {**tree, "loss": {**kept, "name": value}}
    first, _, rest = key.partition(".")
    if not rest:
        return {**tree, first: value}
    below = tree.get(first)
    if below is not None and not isinstance(below, Mapping):
        raise RecipeError(
            f"{short(key)}={told(value, 80)}: {short(first)} holds {repr(below)[:200]}, which has no keys below it"
        )
    return {**tree, first: with_value(below or {}, rest, value)}


def merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with a tree of changes laid over it."""
    result = dict(tree)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def parse(tree: Mapping[str, Any]) -> Recipe:
    """A checked recipe. Raises RecipeError, for an unknown key with the nearest known one."""
    _check_utf8(tree)
    try:
        recipe = Recipe.model_validate(understood(tree))
    except ValidationError as error:
        raise RecipeError(_fault(error)) from None
    rounds = recipe.build_local().rounds
    if rounds is not None and rounds != recipe.rounds:
        if "rounds" in recipe.model_fields_set:
            raise RecipeError(
                f"rounds is {recipe.rounds}, but local.steps and local.iterations make {rounds}: leave one of them out"
            )
        recipe = recipe.model_copy(update={"rounds": rounds})
    recipe.build_method()
    recipe.build_trouble()
    if (recipe.build_local().sample_rate or 1) < 1 and recipe.build_loss().rows(2) != 2:
        raise RecipeError(
            f"local.sample_rate: the loss {recipe.loss['name']!r} has several class embeddings for a class and cannot "
            "sample them; leave sample_rate out, or take another loss"
        )
    if any(size > 1 for size in recipe.engine.shards.values()):
        try:
            check_shardable(recipe.build_loss())
        except ValueError as error:
            raise RecipeError(f"engine.shards: {error}") from None
    validate.check(recipe)
    if recipe.pretrain is not None:
        recipe.pretraining()
    return recipe


def _check_utf8(found: Any, where: str = "") -> None:
    """Raise RecipeError for text that no file of a run could hold, as the name of a folder can be."""
    if isinstance(found, Mapping):
        for key, value in found.items():
            _check_utf8(key, where)
            _check_utf8(value, f"{where}.{key}" if where else key)
    elif isinstance(found, list | tuple):
        for value in found:
            _check_utf8(value, where)
    elif isinstance(found, str):
        try:
            found.encode()
        except UnicodeEncodeError:
            said = f"{told(found)} is not UTF-8, so the recipe of a run cannot hold it: rename the file or folder"
            raise RecipeError(f"{short(where)}: {said}" if where else said) from None


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    loc = first["loc"][:-2] if first["loc"][-1:] == ("[key]",) else first["loc"]  # what is wrong is the key itself
    path = [part for part in loc if "[" not in str(part)]  # pydantic names the member of a union as well
    where = short(".".join(str(part) for part in path))
    if first["type"] == "extra_forbidden":
        return unknown_key(where, _keys_at(path[:-1]))
    if first["type"] in ("model_type", "dict_type"):
        known = f", such as {', '.join(_keys_at(path)[:3])}" if _keys_at(path) else ""
        return f"{where}: a section with keys below it is needed{known}; got {repr(first['input'])[:200]}"
    if first["type"] == "value_error":  # of a key or a value, which it names itself
        return f"{where}: {first['msg'].removeprefix('Value error, ')}"
    return f"{where}: {first['msg']}; got {repr(first['input'])[:200]}"


def _keys_at(path: Sequence[str | int]) -> list[str]:
    """The keys that a recipe can have below a path."""
    found: Any = Recipe
    for part in path:
        if isinstance(found, type) and issubclass(found, BaseModel):
            found, _ = without_none(found.model_fields[str(part)].annotation)
        else:
            found = typing.get_args(found)[1]  # below a name that the recipe gives, such as that of a pair list
    return list(found.model_fields) if isinstance(found, type) and issubclass(found, BaseModel) else []
