"""insightface's configuration words, understood in recipes, and its `.py` configurations, read without running them."""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from coalface.core.errors import RecipeError
from coalface.core.text import shown

WORDS = ("margin_list", "embedding_size", "sample_rate", "val_targets")
"""What a recipe may say at its top in insightface's words."""

NETWORKS = {"r18": "ir18", "r34": "ir34", "r50": "ir50", "r100": "ir100", "mbf": "mobilefacenet"}
"""insightface's names of networks → ours."""

SCALE = 64.0
"""insightface's factor on the cosines, which its configurations do not name."""

_SETTLED = {
    "output": "the run folder is named on the command line",
    "resume": "`coalface resume RUN` goes on with a run",
    "save_all_states": "every run can be resumed",
    "verbose": "evaluation.every says after how many rounds the model is evaluated",
    "frequent": "progress is live",
    "dali": "packs take the place of DALI",
    "dali_aug": "packs take the place of DALI",
    "num_workers": "packs are read through a memory map",
    "num_classes": "counted from the data",
    "num_image": "counted from the data",
    "warmup_step": "it is worked out there from warmup_epoch",
    "total_step": "it is worked out there from num_epoch",
    "seed": "",
}
"""Words that need no translation here, and why."""


@dataclass
class Translation:
    """A recipe's keys, and what of the configuration could not be carried over."""

    recipe: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def loss_of(margins: Any) -> dict[str, Any]:
    """The loss of a `margin_list` (m₁, m₂, m₃), which stands for cos(m₁ θ + m₂) − m₃ at scale 64.

    Raises RecipeError where more than one of the three margins is in use: that combination is no loss here.
    """
    try:
        first, second, third = (float(value) for value in margins)
    except (TypeError, ValueError):
        raise RecipeError(
            f"margin_list: three numbers are needed, (m1, m2, m3) of cos(m1·θ + m2) − m3, as (1.0, 0.5, 0.0) for "
            f"ArcFace; got {margins!r}"
        ) from None
    used = {"sphereface": first != 1, "arcface": second != 0, "cosface": third != 0}
    if sum(used.values()) > 1:
        raise RecipeError(
            f"margin_list: {margins!r} combines {' and '.join(n for n, u in used.items() if u)}: no loss here does. "
            "Give one margin: (m, 0, 0) for SphereFace, (1, m, 0) for ArcFace, (1, 0, m) for CosFace"
        )
    if used["sphereface"]:
        if first < 1 or first != int(first):
            raise RecipeError(f"margin_list: SphereFace multiplies the angle by a whole number; got {first:g}")
        return {"name": "sphereface", "scale": SCALE, "margin_factor": int(first)}
    if used["arcface"]:
        return {"name": "arcface", "scale": SCALE, "margin": second}
    return (
        {"name": "cosface", "scale": SCALE, "margin": third} if used["cosface"] else {"name": "softmax", "scale": SCALE}
    )


def understood(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's tree with insightface's words at its top (`WORDS`) put where this project keeps them.

    Raises RecipeError where a word and the key that it stands for are both given, or a value has no counterpart.
    """
    found = {word: tree[word] for word in WORDS if word in tree}
    rest: dict[str, Any] = {key: value for key, value in tree.items() if key not in WORDS}
    if "margin_list" in found:
        _put(rest, "loss", loss_of(found["margin_list"]), "margin_list")
    if "embedding_size" in found:
        _put(rest, "model.embedding_size", found["embedding_size"], "embedding_size")
    if "sample_rate" in found:
        _put(rest, "local.sample_rate", found["sample_rate"], "sample_rate")
    if "val_targets" in found:
        _put(rest, "evaluation.pairs", _targets(found["val_targets"], rest), "val_targets")
    return rest


def _targets(names: Any, tree: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise RecipeError(f"val_targets: a list of names is needed, as [lfw, cfp_fp, agedb_30]; got {names!r}")
    if not names:
        return {}
    source = (tree.get("data") or {}).get("faces") or {}
    folder = source.get("path") if source.get("kind") in ("rec", "folder", "pack") else None
    if folder is None:
        raise RecipeError(
            "val_targets: the packs NAME.bin lie beside the training images, and data.faces.path names no folder. "
            "Give data.faces: {kind: rec, path: FOLDER}, or evaluation.pairs instead of val_targets"
        )
    return {name: {"kind": "bin", "path": f"{folder}/{name}.bin"} for name in names}


def _put(tree: dict[str, Any], key: str, value: Any, word: str) -> None:
    *sections, last = key.split(".")
    at = tree
    for section in sections:
        below = at.get(section)
        at[section] = dict(below) if isinstance(below, Mapping) else {}
        at = at[section]
    if last in at:
        raise RecipeError(f"{word}: it stands for {key}, which the recipe gives as well; keep one of the two")
    at[last] = value


# --- configurations as Python files -----------------------------------------------------------------------------------


def read_config(path: str | Path) -> dict[str, Any]:
    """The values of an insightface configuration, from its syntax alone: `config.NAME = VALUE` lines, nothing is run.

    Values are numbers, strings, booleans, None, lists, tuples and dictionaries of them, and sums, differences,
    products and quotients of numbers or of values that were set above. Raises RecipeError naming file and line.
    """
    path = Path(path)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise RecipeError(f"{path}: there is no such file") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RecipeError(f"{path} is no Python file ({error}): give a configuration of insightface") from None
    found: dict[str, Any] = {}
    whose = _configuration(tree)
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom) or _is_text(statement):
            continue
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise _cannot(path, statement, "this is not a line such as config.lr = 0.1")
        target = statement.targets[0]
        if isinstance(target, ast.Name):  # config = edict()
            empty = isinstance(statement.value, ast.Call) and not statement.value.args and not statement.value.keywords
            if empty:
                continue
            raise _cannot(path, statement, "only keys of the configuration are read, as config.lr = 0.1")
        if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
            raise _cannot(path, statement, "only keys of the configuration are read, as config.lr = 0.1")
        if target.value.id != whose:
            raise _cannot(path, statement, f"the configuration is {whose}, and this belongs to {target.value.id}")
        if _SECRET.search(target.attr):
            found[target.attr] = None  # neither kept nor shown, whatever it is
            continue
        try:
            found[target.attr] = _checked(_value(statement.value, found, path, whose), statement.value, path)
        except RecursionError:
            raise RecipeError(f"{path}, line {statement.lineno}: the value is nested too deeply to be read") from None
    if not found:
        raise RecipeError(f"{path}: no line such as config.lr = 0.1 is in it; give a configuration of insightface")
    return found


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


_SECRET = re.compile("key|token|passw|secret|credential", re.I)
"""In the name of a word whose value is not for others to see, as insightface's `wandb_key`."""
_BOUND = 1 << 63
"""Whole numbers of a configuration lie below this: products of products would grow without end."""


def _configuration(tree: ast.Module) -> str:
    """What the configuration is called in a file: `config` where that occurs, else the first whose keys are set."""
    targets = [t for statement in tree.body if isinstance(statement, ast.Assign) for t in statement.targets]
    owners = [t.value.id for t in targets if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name)]
    return "config" if "config" in owners or not owners else owners[0]


def _checked(value: Any, node: ast.expr, path: Path) -> Any:
    """A value that a recipe can hold; RecipeError for others."""
    if isinstance(value, list | tuple):
        return type(value)(_checked(entry, node, path) for entry in value)
    if isinstance(value, dict):
        return {_checked(key, node, path): _checked(entry, node, path) for key, entry in value.items()}
    if value is not None and not isinstance(value, bool | int | float | str):
        raise _cannot(path, node, f"a value of kind {type(value).__name__} has no place in a recipe")
    if isinstance(value, int | float) and not (abs(value) < _BOUND and math.isfinite(value)):
        raise _cannot(path, node, "the number is too large: below 2^63 is what a recipe holds")
    return value


def _value(node: ast.expr, found: Mapping[str, Any], path: Path, whose: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        pass
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == whose
        and node.attr in found
    ):
        return found[node.attr]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = (_checked(_value(side, found, path, whose), node, path) for side in (node.left, node.right))
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in (left, right)):
            try:
                return _OPERATORS[type(node.op)](left, right)
            except ArithmeticError as error:
                raise _cannot(path, node, str(error)) from None
    raise _cannot(path, node, "its value is not a plain one, and nothing in the file is run")


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _cannot(path: Path, node: ast.stmt | ast.expr, why: str) -> RecipeError:
    text = ast.unparse(node)[:80]
    text = text.partition("=")[0] + "…" if _SECRET.search(text) else text
    return RecipeError(f"{path}, line {node.lineno}: {text}: {why}. Write the value out by hand")


def translate(config: Mapping[str, Any]) -> Translation:
    """The recipe of an insightface configuration, as pooled training (`method: centralized`), and what it lacks.

    Raises RecipeError for a network or a loss that is not here.
    """
    made = Translation({"method": "centralized"})
    recipe, remarks = made.recipe, made.remarks
    data: dict[str, Any] = {"size": 112, "grey": False, "min_images": 1}
    local: dict[str, Any] = {"epochs": 1}
    for word, value in config.items():
        if word == "network":
            recipe["model"] = {"name": _network(value)}
            if value == "mbf":
                remarks.append("network 'mbf' is wider there (2.06 M parameters); here it is the paper's MobileFaceNet")
        elif word == "rec":
            data["faces"] = _source(value, remarks)
        elif word == "num_epoch":
            recipe["rounds"] = int(value)
        elif word in ("lr", "momentum", "weight_decay"):
            local[word] = float(value)
        elif word == "batch_size":
            local["batch_size"] = int(value)
            remarks.append("batch_size is for each GPU there, for the whole batch here")
        elif word == "fp16":
            recipe["engine"] = {"autocast": "bfloat16"} if value else {}
            remarks += ["fp16: mixed precision is bfloat16 here, which needs no loss scale"] if value else []
        elif word == "optimizer" and value != "sgd":
            remarks.append(f"optimizer {value!r}: local training is SGD with momentum here")
        elif word in WORDS:
            recipe[word] = list(value) if isinstance(value, tuple) else value
        elif word == "warmup_epoch" and value:
            remarks.append("warmup_epoch: the learning rate has no warm-up here")
        elif word not in (*_SETTLED, "optimizer", "warmup_epoch"):
            remarks.append(f"{word}{_told(word, value)} has no counterpart here")
    if "lr" in local:
        local["schedule"] = "cosine"
        remarks.append("the learning rate falls as a square to zero there; `cosine` is the nearest schedule here")
    if "faces" not in data:
        data["faces"] = _source(None, remarks)
    if data["faces"]["kind"] != "rec" and recipe.pop("val_targets", None):
        remarks.append("val_targets are left out: they lie beside the training images, and no folder of these is named")
    recipe |= {"local": local, "data": data}
    return made


def _source(rec: Any, remarks: list[str]) -> dict[str, Any]:
    """The training images that the word `rec` names."""
    if rec is None or rec == "synthetic":
        remarks.append(
            "rec 'synthetic' is a dummy of one image there, to measure speed; here synthetic faces take its place"
            if rec == "synthetic"
            else "rec names no training images: give data.faces, as {kind: rec, path: FOLDER}; till then synthetic "
            "faces stand there"
        )
        return {"kind": "synthetic"}
    return {"kind": "rec", "path": str(rec)}


def _told(word: str, value: Any) -> str:
    """A word's value for a remark; nothing where its name, or something in it, speaks of a secret."""
    text = repr(value)
    if _SECRET.search(word) or (isinstance(value, dict | list | tuple) and _SECRET.search(text)):
        return ""
    return f" = {text[:80]}{'…' if len(text) > 80 else ''}"


def as_recipe(path: str | Path) -> str:
    """The recipe of an insightface configuration as YAML text; what it lacks is said in comments at the top."""
    try:
        made = translate(read_config(path))
    except RecipeError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise RecipeError(f"{path}: a value is not of the kind that its word needs ({error})") from None
    head = [f"# From insightface's {shown(Path(path).name)}: pooled training, the bound for every federated method."]
    head += [f"# - {remark}." for remark in made.remarks]
    return "\n".join(head) + "\n" + yaml.safe_dump({"name": Path(path).stem, **made.recipe}, sort_keys=False)


def _network(name: Any) -> str:
    if name not in NETWORKS:
        near = difflib.get_close_matches(str(name), NETWORKS, n=1, cutoff=0.0)[0]
        raise RecipeError(f"network: {name!r} is not here; the nearest is {near!r}. Known: {', '.join(NETWORKS)}")
    return NETWORKS[name]
