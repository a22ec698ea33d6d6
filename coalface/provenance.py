"""What a run was begun with, and whether that is still so: the recipe, and the source code of its method.

It lies beside the checkpoints and not in `config.yaml`, which people open, copy and edit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from coalface import config
from coalface.config import Recipe, RecipeError
from coalface.core import Method
from coalface.disk import writing
from coalface.jsontext import strict_json
from coalface.judging import write_json
from coalface.report import runs

BEGUN = Path("checkpoints", "begun.json")
"""In a run folder: the resolved `recipe`, and `code`, the digests of `code_of`; `sha256` is of them both."""
SHARED = ("coalface.methods.", "coalface.learn.")
"""Where the arithmetic of the methods here stands. The rest of the package (engines, reports, commands) is none of a
method's own code: if it counted, no run would go on after any upgrade."""


def keep(out: Path, *, anew: bool = False) -> None:
    """Keep the recipe in `config.yaml` as the one that the run was begun with, unless one is kept, or `anew`.

    A run of a version that kept none has it from its next resume on.
    """
    kept = _kept(out)
    if kept and not anew:
        return
    recipe = config.load(out / "config.yaml")
    code = kept.get("code") or code_of(recipe.build_method())
    (out / BEGUN).parent.mkdir(parents=True, exist_ok=True)
    _write(out, recipe.resolved(), code)


def _write(out: Path, recipe: Mapping[str, Any], code: Mapping[str, str]) -> None:
    begun = {"recipe": recipe, "code": code}
    write_json(out / BEGUN, {**begun, "sha256": _digest(begun)})


def recipe_of(out: Path) -> Recipe:
    """The recipe of a run folder.

    Raises RecipeError where there is no run, and where `config.yaml` is not what the run was begun with, but for
    `config.ADJUSTABLE`. What a version kept no record of can be told damaged only where it is empty.
    """
    path = out / "config.yaml"
    if not path.exists():
        raise RecipeError(f"{out} holds no run: there is no config.yaml in it. Give the folder that a run has written")
    begun = begun_with(out)
    remove, resume = f"`rm {shlex.quote(str(path))}`", f"`coalface resume {shlex.quote(str(out))}`"
    mend = f"{remove}, and {resume} writes it as it was. For another recipe start a new run"
    try:
        found = config.load(path)
    except RecipeError as error:
        raise RecipeError(f"{path} cannot be read: {error}" + (f". {mend}" if begun else "")) from None
    if begun is None:
        if not config.read(path).keys() - {"name"}:
            raise RecipeError(f"{path} is empty, and this run kept no other copy: put back the recipe it was run by")
        return found
    if changed := {key: was for key, was in unlike(begun, found).items() if key not in config.ADJUSTABLE}:
        raise RecipeError(f"{path} is not the recipe that the run was begun with: {said(changed)}. {mend}")
    return found


def begun_with(out: Path) -> Recipe | None:
    """The recipe that a run was begun with; None where a version kept none."""
    kept = _kept(out)
    try:
        return config.parse(kept["recipe"]) if kept else None
    except RecipeError as error:
        raise _unreadable(out, error) from None


def unlike(begun: Recipe, now: Recipe) -> dict[str, tuple[str | None, str | None]]:
    """Key -> (value in `begun`, value `now`), of what the result depends on; None where a side has no such key."""
    one, other = runs.flatten(begun.essence()), runs.flatten(now.essence())
    return {
        key: (one.get(key), other.get(key))
        for key in sorted(one.keys() | other.keys())
        if one.get(key) != other.get(key)
    }


def said(changed: dict[str, tuple[str | None, str | None]]) -> str:
    """What `unlike` has found, as a person reads it."""
    first = [f"{key} was {was} and is now {now}" for key, (was, now) in list(changed.items())[:5]]
    return "; ".join([*first, *([f"and {len(changed) - 5} more"] if len(changed) > 5 else [])])


# --- the code of the method -------------------------------------------------------------------------------------------


def code_of(method: Method) -> dict[str, str]:
    """Module -> SHA-256 of its source: the method's own, those of its bases, components and loss, and what they use.

    That is followed through what the modules hold, within `SHARED`, and for a method of one's own within its package,
    or beside its file. What has no source (a zip, a notebook) is left out.
    """
    parts = [method, *(getattr(method, field.name) for field in dataclasses.fields(method))]  # type: ignore[arg-type]
    home = type(method).__module__
    package, folder = home.partition(".")[0], getattr(_source(home), "parent", None)
    found: dict[str, str] = {}
    left, seen = [cls.__module__ for part in parts for cls in type(part).__mro__], set[str]()
    while left:
        name = left.pop()
        if name in seen or name not in sys.modules:
            continue
        path = _source(name)
        beside = path is not None and path.parent == folder
        own = package != "coalface" and (name.partition(".")[0] == package or beside)
        if not (own or name.startswith(SHARED)):
            continue
        seen.add(name)
        if path is not None:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        for value in vars(sys.modules[name]).values():
            uses = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(uses, str):
                left.append(uses)
    return dict(sorted(found.items()))


def check_code(out: Path, method: Method) -> None:
    """Raise RecipeError where the method's code is not that with which the run was begun."""
    if changed := _changed(out, method):
        raise RecipeError(
            f"{out}: the code of its method was changed since the run began ({', '.join(changed)}), so it would be a "
            "run of two methods: put the code back, or start a new run. `coalface resume "
            f"{shlex.quote(str(out))} --changed-code` goes on all the same, and notes it in events.jsonl"
        )


def accept_code(out: Path) -> None:
    """Take the method's code as it is now for the run's, and note in its events what was changed."""
    method, kept = recipe_of(out).build_method(), _kept(out)
    if not (changed := _changed(out, method)):
        return
    now = code_of(method)
    about = {name: {"from": kept["code"][name], "to": now.get(name)} for name in changed}
    note(out, {"event": "adjusted", "code": about})
    _write(out, kept["recipe"], now)


def note(out: Path, event: Mapping[str, Any]) -> None:
    """Append a line to a run's events; a last one that a kill, or a full disk, has cut off is taken away."""
    with writing(out / "events.jsonl"), open(out / "events.jsonl", "a+b") as file:
        file.seek(0)
        file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
        file.write(strict_json(event).encode() + b"\n")


def _changed(out: Path, method: Method) -> list[str]:
    """The modules that were changed since the run began, or are gone. One that is new shows in those that use it.

    Of one whose source is not there any more, but which runs, nothing can be said.
    """
    begun, now = _kept(out).get("code", {}), code_of(method)
    unknown = {name for name in begun if name in sys.modules and _source(name) is None}
    return [name for name, digest in begun.items() if now.get(name) != digest and name not in unknown]


def _source(name: str) -> Path | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    path = Path(file) if file else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


def _kept(out: Path) -> dict[str, Any]:
    path = out / BEGUN
    if not path.exists():
        return {}
    try:
        kept = json.loads(path.read_bytes())
        digest = kept.pop("sha256", None)  # a version wrote none
        begun = {"recipe": dict(kept.pop("recipe")), "code": dict(kept.pop("code"))}
        if kept or (digest is not None and digest != _digest(begun)):
            raise ValueError("it is not as it was written")
        return begun
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(out, error) from None


def _digest(begun: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(begun, sort_keys=True).encode()).hexdigest()


def _unreadable(out: Path, error: Exception) -> RecipeError:
    return RecipeError(
        f"{out / BEGUN}, which says what the run was begun with, cannot be read ({error}): it is damaged, or of "
        "another version. If config.yaml is as it was, remove that file and resume"
    )
