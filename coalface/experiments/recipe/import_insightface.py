"""insightface's `.py` configurations as recipes, read without running them."""

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
from coalface.experiments.recipe.insightface_words import WORDS

NETWORKS = {"r18": "ir18", "r34": "ir34", "r50": "ir50", "r100": "ir100", "mbf": "mobilefacenet"}
"""insightface's names of networks -> ours."""
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
