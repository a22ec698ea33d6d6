"""Recipes: YAML at the door, checked and resolved, plain arguments behind it."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from coalface.core import Method, without_none
from coalface.engines.trouble import Trouble
from coalface.learn.margins import LOSSES, CosineLoss
from coalface.learn.work import LocalWork
from coalface.methods import METHODS

T = TypeVar("T")


class RecipeError(ValueError):
    """A recipe that cannot be run; the message names the key and the remedy."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Section):
    """Where face images come from."""

    kind: Literal["folder", "pack", "synthetic", "joined"] = "synthetic"
    path: str | None = None
    """`folder` and `pack`: below the data root unless absolute."""
    identities: int = 400
    """`synthetic`: how many people."""
    images: int = 20
    """`synthetic`: images of each."""
    first: int = 0
    """`synthetic`: the number of the first person."""
    seed: int = 0
    """`synthetic`: people of another seed are other people."""
    domains: tuple[str, ...] = ("studio",)
    """`synthetic`: person i is seen in domain i modulo their number."""
    parts: dict[str, Source] = {}
    """`joined`: named sources of the other kinds, packs aside. Identity `s1` of part `orl` is called `orl/s1`."""


class Augmentation(_Section):
    """Changes to training images."""

    flip: bool = True
    crop: int = 0
    colour: float = 0.0
    blur: float = 0.0


class Partition(_Section):
    """How the training identities are dealt to the parties."""

    kind: Literal["equal", "one-identity", "dirichlet", "by-domain"] = "equal"
    """`by-domain`: a party for each part of a joined source, or for each of the synthetic domains, named as it is."""
    parties: int = 8
    alpha: float = 0.5
    """`dirichlet`: the smaller, the more unequal."""
    seed: int | None = None
    """Of the deal; None: the run's seed."""


class Data(_Section):
    """Training images."""

    root: str | None = None
    """None: the environment variable COALFACE_DATA."""
    source: Source = Source()
    size: int = 64
    """Side of the images in pixels."""
    grey: bool = True
    exclude: tuple[str, ...] | dict[str, tuple[str, ...]] = ()
    """Pair lists whose identities are not trained on. Of a joined source: part -> lists, each holding for that part."""
    min_images: int = 2
    """Identities with fewer images are left out."""
    max_identities: int | None = None
    """Take only so many identities, drawn by the deal's seed."""
    hold_out: int = 0
    """Identities set aside for judging, drawn by a fixed seed."""
    partition: Partition = Partition()
    augment: Augmentation = Augmentation()


class PairsFrom(_Section):
    """A list of pairs to judge on."""

    kind: Literal["lfw", "all-pairs", "balanced"] = "balanced"
    path: str | None = None
    """`lfw`: the list. `all-pairs`: a list whose identities are taken."""
    source: Source | None = None
    """Images other than the training source's, for example another domain."""
    part: str | None = None
    """Of a joined training source, the part that is judged on: its held-out identities, or its images by file name."""
    pairs: int = 3000
    """`balanced`: genuine pairs, and as many impostor pairs, over the identities held out."""


class Judge(_Section):
    """What is judged, and when."""

    every: int = 0
    """Rounds between two judgements during the run; 0: the end only."""
    flip: bool = False
    """Add the embedding of the mirrored image."""
    parties: int = Field(16, ge=1)
    """Where each party has a model of its own: so many are judged, the first by name, and their mean is the figure."""
    lists: dict[str, PairsFrom] = {}


class Model(_Section):
    """The backbone."""

    name: str = "cnn-small"
    embedding_size: int | None = None
    batchnorm: Literal["average", "local", "parameters-only"] = "average"


class Engine(_Section):
    """How the run is carried out on this machine."""

    workers: int = Field(1, ge=1)
    threads: int | None = Field(None, ge=1)
    """Threads of each step; None: the cores divided by the workers. Part of the numerics."""
    window: int | None = Field(None, ge=1)
    """Parties under way or waiting to be folded; None: four for each worker."""
    block: int = Field(16, ge=1)
    device: str = "cpu"
    autocast: Literal["bfloat16"] | None = None
    channels_last: bool = False
    flush_denormals: bool = True
    save_replies: bool = True
    checkpoint: int = Field(1, ge=1)
    keep: int = Field(2, ge=1)
    quorum: float = Field(0.5, ge=0, le=1)
    patience: int = Field(5, ge=0)
    on_error: Literal["stop", "exclude"] = "stop"


class Recipe(_Section):
    """One experiment."""

    name: str = "run"
    seed: int = 0
    method: str = "fedavg"
    rounds: int = Field(20, ge=1)
    local: dict[str, Any] = {}
    """`coalface.learn.work.LocalWork`, the same for all methods."""
    loss: dict[str, Any] = {"name": "cosface", "scale": 30.0, "margin": 0.35}
    methods: dict[str, dict[str, Any]] = {}
    """Settings of single methods, by name; they hold when that method is chosen."""
    data: Data = Data()
    model: Model = Model()
    judge: Judge = Judge()
    engine: Engine = Engine()
    trouble: dict[str, Any] = {}
    """`coalface.engines.trouble.Trouble`."""
    pretrain: dict[str, Any] | None = None
    """A recipe of its own, as changes to this one, whose model this run starts from; kept by content in the cache."""

    def build_method(self) -> Method:
        """The method with its settings. Raises RecipeError for settings that it does not have."""
        name = nearest(self.method, METHODS, "method")
        for other in self.methods:
            nearest(other, METHODS, "methods")
        cls = METHODS[name]
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

    def digest(self) -> str:
        """Names what the result depends on: the resolved recipe without its name, its paths' root and its workers."""
        whole = self.resolved()
        for section, key in (("data", "root"), ("engine", "workers"), ("engine", "window"), ("engine", "save_replies")):
            del whole[section][key]
        for key in ("checkpoint", "keep"):
            del whole["engine"][key]
        del whole["name"]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]

    def with_threads(self) -> Recipe:
        """The recipe with `engine.threads` filled in: the cores of this machine divided by the workers."""
        if self.engine.threads is not None:
            return self
        threads = max(1, (os.cpu_count() or 1) // self.engine.workers)
        return self.model_copy(update={"engine": self.engine.model_copy(update={"threads": threads})})

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
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            tree = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        except FileNotFoundError:
            raise RecipeError(f"{path}: there is no such recipe; `ls recipes/*/` shows those that come along") from None
        except yaml.YAMLError as error:
            raise RecipeError(f"{path} is not YAML: {error}") from error
        if not isinstance(tree, dict):
            raise RecipeError(f"{path}: a recipe is a mapping of keys, such as `rounds: 20`")
        tree.setdefault("name", Path(path).stem)
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator:
            raise RecipeError(f"{change!r} is not a change: write key=value, for example local.lr=0.05")
        tree = with_value(tree, key, yaml.safe_load(text))
    return parse(tree)


def with_value(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The tree with one dotted key set."""
    first, _, rest = key.partition(".")
    if not rest:
        return {**tree, first: value}
    below = tree.get(first) or {}
    if not isinstance(below, Mapping):
        raise RecipeError(f"{key}: {first} holds {below!r}, which has no keys below it")
    return {**tree, first: with_value(below, rest, value)}


def merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with a tree of changes laid over it."""
    result = dict(tree)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def parse(tree: Mapping[str, Any]) -> Recipe:
    """A checked recipe. Raises RecipeError, for an unknown key with the nearest known one."""
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise RecipeError(unknown_key(where, _keys_at(Recipe, first["loc"][:-1]))) from None
        raise RecipeError(f"{where}: {first['msg']}; got {first['input']!r}") from None
    recipe.build_method()
    recipe.build_trouble()
    return recipe


def _keys_at(model: Any, path: Sequence[str | int]) -> list[str]:
    for part in path:
        inner, _ = (
            without_none(model.model_fields[part].annotation) if hasattr(model, "model_fields") else (model, False)
        )
        model = typing.get_args(inner)[1] if typing.get_origin(inner) is dict else inner
    return list(model.model_fields) if hasattr(model, "model_fields") else []


def unknown_key(where: str, known: Sequence[str]) -> str:
    """What to say of a key that is not known."""
    parent, _, key = where.rpartition(".")
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    hint = f"did you mean {parent + '.' if parent else ''}{near[0]}? " if near else ""
    return f"{where} is not a key of a recipe; {hint}Known here: {', '.join(known) or 'none'}"


def nearest(name: str, registry: Mapping[str, Any], what: str) -> str:
    """The name itself, if the registry has it. Raises RecipeError with the nearest one else."""
    if name not in registry:
        near = difflib.get_close_matches(name, list(registry), n=1, cutoff=0.0)[0]
        raise RecipeError(f"{what}: {name!r} is not known; did you mean {near!r}? Known: {', '.join(registry)}")
    return name


def build(cls: type[T], settings: Mapping[str, Any], where: str, given: Mapping[str, Any] | None = None) -> T:
    """A dataclass from a mapping, its types checked. Raises RecipeError naming the key."""
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values, types = dict(given or {}), typing.get_type_hints(cls)
    for key, value in settings.items():
        if key not in fields:
            raise RecipeError(unknown_key(f"{where}.{key}", [n for n in fields if n not in (given or {})]))
        if dataclasses.is_dataclass(types[key]) and isinstance(value, Mapping):
            values[key] = build(typing.cast(type[Any], types[key]), value, f"{where}.{key}")
            continue
        try:
            values[key] = TypeAdapter(types[key]).validate_python(value)
        except ValidationError as error:
            raise RecipeError(f"{where}.{key}: {error.errors()[0]['msg']}; got {value!r}") from None
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{where}: {error}") from error
