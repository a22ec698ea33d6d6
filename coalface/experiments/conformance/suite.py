"""The whole suite over one method, as a person asks for it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalface.core.checks import UnknownKey
from coalface.experiments.conformance.checks import CHECKS
from coalface.experiments.conformance.subject import Failure, Subject
from coalface.experiments.conformance.tiny_federation import WORK
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import BY_NAME, Recipe
from coalface.methods import METHODS


@dataclass(frozen=True)
class Result:
    """What came of one check."""

    check: str
    ok: bool
    holds: str
    """What is true of a method that passes."""
    wrong: str = ""
    mend: str = ""


def find_subject(name: str, changes: Sequence[str], folder: Path, sends: frozenset[str] = frozenset()) -> Subject:
    """The method of a name with changes of a recipe, in which its own settings need not be `methods.NAME.SETTING`.

    Raises RecipeError for an unknown method or setting.
    """
    cls = METHODS.find(name, "METHOD")
    own = [f.name for f in dataclasses.fields(cls) if f.name not in BY_NAME.shared]  # type: ignore[arg-type]
    for key in (re.split("[.=]", change)[0] for change in changes):
        if key not in (*own, *Recipe.model_fields):
            raise UnknownKey(key, own, f"a recipe, nor a setting of {name}")
    changes = [f"methods.{name}.{c}" if re.split("[.=]", c)[0] in own else c for c in changes]
    first = [f"method={name}", *preflight.stand_in(name)]
    methods: list[Any] = [loader.load(None, [*first, *more]).build_method() for more in ((), changes)]
    settings = _changed_fields(*methods)
    if "local" in settings:
        settings["local"] = dataclasses.replace(WORK, **_changed_fields(*(method.local for method in methods)))
    return Subject(cls, folder, settings, sends)


def _changed_fields(usual: Any, changed: Any) -> dict[str, Any]:
    values = {field.name: getattr(changed, field.name) for field in dataclasses.fields(changed)}
    return {name: value for name, value in values.items() if value != getattr(usual, name)}


def check_all(subject: Subject) -> Iterator[Result]:
    """The results as they come; where the method cannot be run at all, the first alone."""
    for name, check in CHECKS.items():
        holds = (check.__doc__ or "").partition("\n")[0]
        try:
            check(subject)
            yield Result(name, True, holds)
        except Failure as failure:
            yield Result(name, False, holds, failure.wrong, failure.mend)
        except Exception as error:  # whatever the method of somebody else raises
            yield Result(name, False, holds, f"{type(error).__name__}: {error}", "Mend the method's own error first.")
            if name == next(iter(CHECKS)):
                return
