"""The provenance of a run: the recipe and the source code that it began with, and whether they still hold.

It lies beside the checkpoints and not in `config.yaml`, which people open, copy and edit.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import linecache
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import yaml

from coalface.core.disk import write_json, write_text, writing
from coalface.core.errors import PluginError, RecipeError
from coalface.core.method import Method
from coalface.core.parsing import strict_json
from coalface.core.registry import Registry
from coalface.engine.robust.aggregators import AGGREGATORS
from coalface.evaluation.metrics.pair_figures import PAIR_FIGURES
from coalface.experiments.recipe import loader, schema
from coalface.experiments.recipe.partitions import PARTITIONS
from coalface.experiments.recipe.schema import LOSS, OPTIMIZER, Recipe
from coalface.experiments.recipe.sections import SOURCES
from coalface.experiments.report import runs
from coalface.methods import METHODS
from coalface.models import BACKBONES

BEGUN = Path("checkpoints", "begun.json")
"""In a run folder: the resolved `recipe`, and `code`, the digests of `code_behind`; `sha256` is of them both."""
SHARED = ("coalface.methods.", "coalface.training.", "coalface.evaluation.metrics.exact")
"""Where the arithmetic of the methods here stands. The rest of the package (engines, reports, commands) is none of a
method's own code: if it counted, no run would go on after any upgrade."""
INSTALLED = ("site-packages", "dist-packages")
"""Folders in which everything installed lies beside everything else."""


@dataclass(frozen=True)
class Begun:
    """What a run was begun with."""

    recipe: Recipe
    code: Mapping[str, str]
    """Module -> SHA-256 of its source, as `code_behind` finds it."""


def keep(out: Path, recipe: Mapping[str, Any], code: Mapping[str, str]) -> None:
    """Keep a resolved recipe, and the code of its method, as what the run was begun with."""
    content = {"recipe": recipe, "code": code}
    (out / BEGUN).parent.mkdir(parents=True, exist_ok=True)
    write_json(out / BEGUN, {**content, "sha256": _digest(content)})


def write_config(out: Path, resolved: Mapping[str, Any]) -> None:
    """Write `config.yaml`."""
    write_text(out / "config.yaml", yaml.safe_dump(dict(resolved), sort_keys=False, allow_unicode=True))


def adjust(out: Path, recipe: Recipe, adjusted: Sequence[str]) -> None:
    """Record in the run folder the keys that a resume changes."""
    tree, resolved, begun = loader.load(out / "config.yaml").resolved(), recipe.resolved(), begun_with(out)
    before = begun.recipe.resolved()
    event: dict[str, Any] = {"event": "adjusted"}
    for section, key in (path.split(".") for path in adjusted):
        event[f"{section}.{key}"] = {"from": before[section][key], "to": resolved[section][key]}
        tree[section][key] = resolved[section][key]
    note(out, event)
    write_config(out, tree)
    keep(out, tree, begun.code)


def begun_with(out: Path) -> Begun:
    """What a run was begun with. Raises RecipeError where there is no run, or what it was begun with cannot be read."""
    path = out / BEGUN
    try:
        content = json.loads(path.read_bytes())
        if content.pop("sha256") != _digest(content):
            raise ValueError("it is not as it was written")
        return Begun(loader.parse(content["recipe"]), dict(content["code"]))
    except (FileNotFoundError, NotADirectoryError):
        if not (out / "config.yaml").exists():
            raise RecipeError("not a run folder; it has no config.yaml", where=out) from None
        wrong = "missing"
    except PluginError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # a RecipeError as well
        wrong = f"cannot be read ({error})"
    raise RecipeError(
        f"{wrong}: this file says what the run was begun with. Put it back from a copy of the run, or start a new run "
        "in another folder",
        where=path,
    )


def recipe_of(out: Path, begun: Begun | None = None) -> Recipe:
    """The recipe of a run folder; `begun` is what it was begun with, where that is read already.

    Raises RecipeError where there is no run, and where `config.yaml` is not what the run was begun with, but for
    `schema.ADJUSTABLE`.
    """
    begun, path = begun or begun_with(out), out / "config.yaml"
    remove, resume = f"`rm {shlex.quote(str(path))}`", f"`coalface resume {shlex.quote(str(out))}`"
    if not path.exists():
        raise RecipeError(f"missing: {resume} writes it as it was", where=path)
    mend = f"{remove}, and {resume} writes it as it was. For another recipe start a new run"
    try:
        recipe = loader.load(path)
    except PluginError:
        raise
    except RecipeError as error:
        raise RecipeError(f"cannot be read: {error}. {mend}", where=path) from None
    differ = unlike(begun.recipe, recipe)
    if changed := {key: values for key, values in differ.items() if key not in schema.ADJUSTABLE}:
        raise RecipeError(f"not the recipe that the run was begun with: {changes_text(changed)}. {mend}", where=path)
    return recipe


def unlike(begun: Recipe, current: Recipe) -> dict[str, tuple[str | None, str | None]]:
    """Key -> (value in `begun`, value `now`), of what the result depends on; None where a side has no such key."""
    before, after = runs.flatten(begun.essence()), runs.flatten(current.essence())
    keys = sorted(before.keys() | after.keys())
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def changes_text(changed: dict[str, tuple[str | None, str | None]]) -> str:
    """What `unlike` has found, as a person reads it."""
    first = [f"{key} was {before} and is now {after}" for key, (before, after) in list(changed.items())[:5]]
    return "; ".join([*first, *([f"and {len(changed) - 5} more"] if len(changed) > 5 else [])])


# --- the code of the method and of plug-ins ---------------------------------------------------------------------------


def plugins(recipe: Recipe) -> Iterator[tuple[str, str, Any]]:
    """(key of the recipe, name there, class, function or object) of each."""
    data, evaluation = recipe.data, recipe.evaluation
    named: list[tuple[str, Registry[Any] | None, str]] = [
        ("method", METHODS, recipe.method),
        ("model.name", BACKBONES, recipe.model.name),
        ("loss.name", LOSS.registry, LOSS.name_of(recipe.loss)),
    ]
    if (aggregator := recipe.engine.aggregator) is not None:
        named.append(("engine.aggregator.name", AGGREGATORS, AGGREGATORS.name_of(type(aggregator))))
    if recipe.server_optimizer is not None:
        named.append(("server_optimizer.name", OPTIMIZER.registry, OPTIMIZER.name_of(recipe.server_optimizer)))
    if recipe.partition is not None:
        named.append(("data.partition.kind", PARTITIONS.plugins, recipe.partition.kind))
    sources = {f"data.{key}": getattr(data, key, None) for key in ("faces", "public")}
    sources |= {f"data.{part}": source for part, source in data.parts.items()}
    sources |= {f"evaluation.pairs.{name}.source": pairs.source for name, pairs in evaluation.pairs.items()}
    named += [(f"{key}.kind", SOURCES.plugins, source.kind) for key, source in sources.items() if source is not None]
    named += [(f"evaluation.figures.{place}", PAIR_FIGURES, name) for place, name in enumerate(evaluation.figures)]
    for key, registry, name in named:
        if registry is not None and name not in registry.own:
            yield key, name, registry.find(name, key)


def module_of(thing: Any) -> str:
    """The module that has a class or a function, or the class of an object."""
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


def code_behind(recipe: Recipe) -> dict[str, str]:
    """`code_of` the recipe's method and plug-ins, and of its pre-training's, whose model the run starts from."""
    before = {} if recipe.pretrain is None else code_behind(recipe.pretrain.recipe)
    for _, name, thing in plugins(recipe):
        if name.startswith("python:"):  # its name says what it is made of
            continue
        parts = getattr(thing, "__mro__", [thing])
        before |= _code_from(module_of(thing), [module_of(part) for part in parts])
        cells = {f"{module_of(part)}:{part.__qualname__}": cell for part in parts if (cell := cell_of(part))}
        before |= {name: hashlib.sha256(cell).hexdigest() for name, cell in cells.items()}
    return dict(sorted((before | code_of(recipe.build_method())).items()))


def cell_of(thing: Any) -> bytes:
    """The source of the notebook cell that defines a class or a function; empty for one that is of a file.

    A class is found by its methods: `inspect` does not find one that no file has.
    """
    if source_of(module_of(thing)) is not None:
        return b""
    codes = [getattr(part, "__code__", None) for part in [thing, *getattr(thing, "__dict__", {}).values()]]
    texts = ("".join(linecache.getlines(code.co_filename)) for code in codes if code is not None)
    return next(filter(None, texts), "").encode()


def code_digest(recipe: Recipe) -> str:
    """SHA-256 of `code_behind`: the same at a server and at its nodes, or they would not compute the same."""
    return hashlib.sha256(json.dumps(code_behind(recipe)).encode()).hexdigest()


def code_of(method: Method) -> dict[str, str]:
    """Module -> SHA-256 of its source: the method's own, those of its bases, components and loss, and what they import.

    Imports are followed wherever in a source they stand, within `SHARED`, and for a method of one's own within its
    package, or beside its file. What has no source file (a zip, a notebook) is left out.
    """
    parts = [method, *(getattr(method, field.name) for field in dataclasses.fields(method))]  # type: ignore[arg-type]
    return _code_from(type(method).__module__, [cls.__module__ for part in parts for cls in type(part).__mro__])


def _code_from(home: str, modules: Sequence[str]) -> dict[str, str]:
    """Module -> SHA-256 of its source, of these modules and what they import."""
    package, file = home.partition(".")[0], source_of(home)
    beside = file.parent if file is not None and file.parent.name not in INSTALLED else None
    digests: dict[str, str] = {}
    pending, visited = list(modules), set[str]()
    while pending:
        name = pending.pop()
        if name in visited or (package == "coalface" and not name.startswith(SHARED)):
            continue
        visited.add(name)
        if (path := source_of(name)) is None:
            continue
        near = beside is not None and beside.joinpath(*name.split(".")) in (path.with_suffix(""), path.parent)
        if name.startswith(SHARED) or name.partition(".")[0] == package or near:
            source = path.read_bytes()
            digests[name] = hashlib.sha256(source).hexdigest()
            pending += _imported(source, name if path.name == "__init__.py" else name.rpartition(".")[0])
    return digests


@functools.lru_cache(maxsize=256)
def _imported(source: bytes, package: str) -> frozenset[str]:
    """What a module of a package may import: of `from a import b` both a and a.b, which may be a module or not."""
    modules = set[str]()
    with contextlib.suppress(SyntaxError, ValueError):  # of a file that was broken since: its digest tells it
        for node in _statements(ast.parse(source)):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                with contextlib.suppress(ImportError):  # it leads out of all packages, and so cannot be carried out
                    base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                    modules.update((base, *(f"{base}.{alias.name}" for alias in node.names)))
    return frozenset(modules)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements of a source, in whatever others they stand; `ast.walk` goes through expressions as well."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(node, block, ()):
            yield statement
            yield from _statements(statement)


def check_code(out: Path, begun: Begun, recipe: Recipe) -> None:
    """Raise RecipeError where the code behind a recipe is not that with which the run was begun."""
    current = code_behind(recipe)
    if changed := changed_code(begun.code, current):
        modules = [f"{name} ({begun.code[name][:8]}, now {current.get(name, 'gone')[:8]})" for name in changed]
        raise RecipeError(
            "the code of its method or plug-ins has changed since the run began, by the SHA-256 of "
            f"{', '.join(modules)}; put it back, or start a new run. `coalface resume {shlex.quote(str(out))} "
            "--changed-code` goes on all the same, as a run of two methods, and notes it in events.jsonl",
            where=out,
        )


def accept_code(out: Path) -> None:
    """Go on with the code of the run's method as it is now; what has changed is noted in its events."""
    record = begun_with(out)
    current = code_behind(recipe_of(out, record))
    if changed := changed_code(record.code, current):
        about = {name: {"from": record.code[name], "to": current.get(name)} for name in changed}
        note(out, {"event": "adjusted", "code": about})
        keep(out, record.recipe.resolved(), current)


def changed_code(begun: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """The modules that were changed since, or are gone. One that is new shows in those that use it.

    Of one that runs, but whose source is not there any more, nothing can be said, nor of what it uses.
    """
    blind = any(name in sys.modules and source_of(name) is None for name in begun)
    return [name for name, digest in begun.items() if current.get(name, digest if blind else None) != digest]


def note(out: Path, event: Mapping[str, Any]) -> None:
    """Append a line to a run's events; a last one that a kill, or a full disk, has cut off is taken away."""
    with writing(out / "events.jsonl"), open(out / "events.jsonl", "a+b") as file:
        file.seek(0)
        file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
        file.write(strict_json(event).encode() + b"\n")


def command_line() -> str:
    """What this process was started with, such as `coalface resume runs/a`."""
    program = Path(sys.argv[0])
    is_module = program.parts[-3:] == ("coalface", "cli", "main.py")
    return shlex.join(["coalface" if is_module else program.name, *sys.argv[1:]])


def source_of(name: str) -> Path | None:
    """The file with a module's source, if there is one."""
    file = _located(name)[0]
    path = Path(file) if file else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


def _located(name: str) -> tuple[str | None, Sequence[str] | None]:
    """(the file of a module, the folders of a package), without importing what a function may never import."""
    if (module := sys.modules.get(name)) is not None:
        return getattr(module, "__file__", None), getattr(module, "__path__", None)
    parent = name.rpartition(".")[0]
    folders = _located(parent)[1] if parent else None
    try:
        spec = PathFinder.find_spec(name, folders) if folders or not parent else None
    except KeyError:  # of a package whose loader makes others up, such as setuptools'
        spec = None
    return (spec.origin, spec.submodule_search_locations) if spec is not None else (None, None)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
