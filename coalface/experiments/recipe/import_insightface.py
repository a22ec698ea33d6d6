"""insightface's configuration words, understood in recipes, and its `.py` configurations, read without running them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from coalface.core.checks import nearest
from coalface.core.errors import RecipeError
from coalface.core.parsing import read_text
from coalface.core.text import shown

WORDS = {
    "margin_list": "loss",
    "embedding_size": "model.embedding_size",
    "sample_rate": "local.sample_rate",
    "val_targets": "evaluation.pairs",
}
"""What a recipe may say at its top in insightface's words -> the key that it stands for."""
NETWORKS = {"r18": "ir18", "r34": "ir34", "r50": "ir50", "r100": "ir100", "mbf": "mobilefacenet"}
"""insightface's names of networks -> ours."""
SCALE = 64.0
"""insightface's factor on the cosines, which its configurations do not name."""
NEEDLESS = {
    *("output", "resume", "save_all_states", "verbose", "frequent", "dali", "dali_aug", "num_workers", "seed"),
    *("num_classes", "num_image", "warmup_step", "total_step"),
}
"""Words of how a run is carried out there, and what is counted here."""
NUMBERS = {"num_epoch": int, "batch_size": int, "lr": float, "momentum": float, "weight_decay": float}
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
BOUND = 1 << 63
"""Numbers of a configuration lie below this: products of products would grow without end."""


def loss_of(margins: Any) -> dict[str, Any]:
    """The loss of a `margin_list` (m₁, m₂, m₃), which stands for cos(m₁ θ + m₂) − m₃ at scale 64.

    Raises RecipeError where more than one of the three margins is in use: that combination is no loss here.
    """
    try:
        first, second, third = (float(value) for value in margins)
    except (TypeError, ValueError):
        raise RecipeError(
            f"give three numbers, (m1, m2, m3) of cos(m1·θ + m2) − m3, as (1.0, 0.5, 0.0) for ArcFace; got {margins!r}",
            where="margin_list",
        ) from None
    if (first != 1) + (second != 0) + (third != 0) > 1 or first < 1 or first != int(first):
        raise RecipeError(
            f"no loss has the margins {margins!r}; give (m, 0, 0) for SphereFace with a whole number m, (1, m, 0) "
            "for ArcFace or (1, 0, m) for CosFace",
            where="margin_list",
        )
    if first != 1:
        return {"name": "sphereface", "scale": SCALE, "margin_factor": int(first)}
    if second or third:
        return {"name": "arcface" if second else "cosface", "scale": SCALE, "margin": second or third}
    return {"name": "softmax", "scale": SCALE}


def translate_words(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's tree with insightface's words at its top (`WORDS`) put where this project keeps them.

    Raises RecipeError where a word and the key that it stands for are both given, or a value has no counterpart.
    """
    recipe: dict[str, Any] = {key: value for key, value in tree.items() if key not in WORDS}
    for word, key in WORDS.items():
        if word not in tree:
            continue
        value = tree[word]
        if word == "margin_list":
            value = loss_of(value)
        elif word == "val_targets":
            value = _targets(value, tree)
        section, _, last = key.partition(".")
        below = recipe.get(section) or {}
        if section in recipe if not last else last in below:
            raise RecipeError(f"it means {key}, which the recipe also sets; keep one of the two", where=word)
        recipe[section] = {**below, last: value} if last else value
    return recipe


def _targets(names: Any, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The lists of pairs beside the training images."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise RecipeError(f"give a list of names, as [lfw, cfp_fp, agedb_30]; got {names!r}", where="val_targets")
    folder = ((tree.get("data") or {}).get("faces") or {}).get("path")
    if names and folder is None:
        raise RecipeError(
            "the packs NAME.bin are searched beside the training images, but data.faces.path names no folder. Give "
            "data.faces: {kind: rec, path: FOLDER}, or evaluation.pairs instead of val_targets",
            where="val_targets",
        )
    return {name: {"kind": "bin", "path": f"{folder}/{name}.bin"} for name in names}


def read_config(path: str | Path) -> dict[str, Any]:
    """The values of an insightface configuration, from its syntax alone: `config.NAME = VALUE` lines, nothing is run.

    Values are numbers, strings, booleans, None, lists, tuples and dictionaries of them, and sums, differences,
    products and quotients of numbers or of values that were set above. Raises RecipeError naming file and line.
    """
    try:
        tree = ast.parse(read_text(Path(path)), str(path))
    except FileNotFoundError:
        raise RecipeError("does not exist", where=path) from None
    except SyntaxError as error:
        raise RecipeError(
            f"not Python ({error.msg}); give an insightface configuration", where=f"{path}, line {error.lineno}"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise RecipeError(f"not Python: {error}; give an insightface configuration", where=path) from None
    config: dict[str, Any] = {}
    owner = ""
    for statement in tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if text or isinstance(statement, ast.Import | ast.ImportFrom) or isinstance(target, ast.Name):
            continue  # such as config = edict()
        try:
            if not isinstance(statement, ast.Assign) or not isinstance(target, ast.Attribute):
                raise ValueError("this is not a line such as config.lr = 0.1")
            owner = owner or ast.unparse(target.value)
            config[_key(target, owner)] = _value(statement.value, config, owner)
        except (ValueError, ArithmeticError, RecursionError) as error:
            where = f"{path}, line {statement.lineno}"
            raise RecipeError(
                f"{error}; the file is not executed, so write the value out by hand", where=where
            ) from None
    if not config:
        raise RecipeError("it has no line such as config.lr = 0.1; give an insightface configuration", where=path)
    return config


def _key(target: ast.Attribute, owner: str) -> str:
    """What an attribute of the configuration is called."""
    if not isinstance(target.value, ast.Name) or target.value.id != owner:
        raise ValueError(f"the configuration is {owner}, and this belongs to {ast.unparse(target.value)[:80]}")
    return target.attr


def _value(node: ast.expr, config: Mapping[str, Any], owner: str) -> Any:
    """A literal, a value that was set above, or arithmetic over numbers. Raises ValueError for anything else."""
    if isinstance(node, ast.Attribute) and (key := _key(node, owner)) in config:
        return config[key]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        sides = [_value(side, config, owner) for side in (node.left, node.right)]
        if all(isinstance(side, int | float) and abs(side) < BOUND for side in sides):
            return OPERATORS[type(node.op)](*sides)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        raise ValueError("the value is neither plain nor made of smaller numbers set above") from None


def translate(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The recipe of an insightface configuration, as pooled training (`method: centralized`), and what it lacks.

    Raises RecipeError for a network that is not here, and ValueError or TypeError for a value of another type.
    """
    numbers = {word: number(config[word]) for word, number in NUMBERS.items() if word in config}
    local: dict[str, Any] = {"epochs": 1}
    local |= {word: value for word, value in numbers.items() if word != "num_epoch"}
    data: dict[str, Any] = {"size": 112, "grey": False, "min_images": 1, "faces": {"kind": "synthetic"}}
    recipe: dict[str, Any] = {"method": "centralized", "local": local, "data": data}
    words = {word: config[word] for word in WORDS if word in config}
    recipe |= {word: list(value) if isinstance(value, tuple) else value for word, value in words.items()}
    remarks = []
    if "num_epoch" in numbers:
        recipe["rounds"] = numbers["num_epoch"]
    if "network" in config:
        recipe["model"] = {"name": NETWORKS[nearest(config["network"], NETWORKS, "network")]}
        if config["network"] == "mbf":
            remarks.append("network 'mbf' is wider there (2.06 M parameters); here it is the paper's MobileFaceNet")
    if "batch_size" in numbers:
        remarks.append("batch_size is for each GPU there, for the whole batch here")
    if config.get("fp16"):
        recipe["engine"] = {"autocast": "bfloat16"}
        remarks.append("fp16: mixed precision is bfloat16 here, which needs no loss scale")
    if config.get("optimizer", "sgd") != "sgd":
        remarks.append("optimizer: local training is SGD with momentum here")
    if config.get("warmup_epoch"):
        remarks.append("warmup_epoch: the learning rate has no warm-up here")
    if "lr" in numbers:
        local["schedule"] = "cosine"
        remarks.append("the learning rate falls as a square to zero there; `cosine` is the nearest schedule here")
    if config.get("rec") not in (None, "synthetic"):
        data["faces"] = {"kind": "rec", "path": str(config["rec"])}
    else:
        remarks.append(
            "rec names no training images: give data.faces, as {kind: rec, path: FOLDER}; till then synthetic "
            "faces stand there"
        )
        if recipe.pop("val_targets", None):
            remarks.append("val_targets are left out: their packs would be beside the training images")
    translated = {*WORDS, *NEEDLESS, *NUMBERS, "network", "fp16", "optimizer", "warmup_epoch", "rec"}
    remarks += [f"{word} has no counterpart here" for word in config if word not in translated]
    return recipe, remarks


def as_recipe(path: str | Path) -> str:
    """The recipe of an insightface configuration as YAML text; what it lacks is said in comments at the top."""
    config = read_config(path)
    try:
        recipe, remarks = translate(config)
        text = yaml.safe_dump({"name": Path(path).stem, **recipe}, sort_keys=False)
    except RecipeError:
        raise
    except (TypeError, ValueError, OverflowError, yaml.YAMLError) as error:
        raise RecipeError(f"a value is not of the type that its word needs ({error})", where=path) from None
    head = [f"# From insightface's {shown(Path(path).name)}: pooled training, the bound for every federated method."]
    return "\n".join([*head, *(f"# - {remark}." for remark in remarks), text])
