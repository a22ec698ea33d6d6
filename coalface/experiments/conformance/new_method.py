"""A new method outside this repository: its file, and the test of its formula."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from coalface.core.disk import write_text
from coalface.core.errors import RecipeError
from coalface.methods import METHODS

TEMPLATES = Environment(
    loader=PackageLoader("coalface.experiments.conformance"), undefined=StrictUndefined, keep_trailing_newline=True
)


def class_of(name: str) -> str:
    """`MyMethod` for `my-method`."""
    return "".join(part.capitalize() for part in re.split("[-_]", name))


def write_method(name: str, folder: Path) -> tuple[Path, Path]:
    """Write a method that works, and its test, into a folder. Raises RecipeError."""
    module = name.replace("-", "_")
    if not re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", module) or keyword.iskeyword(module):
        raise RecipeError(
            f"{name!r} cannot name a module; use small letters, digits and -, as in my-method", where="NAME"
        )
    if name in METHODS:
        raise RecipeError(f"{name!r} is a method already; use another name", where="NAME")
    files = folder / f"{module}.py", folder / f"test_{module}.py"
    if taken := next((file for file in files if file.exists()), None):
        raise RecipeError("this file exists; give the method another name", where=str(taken))
    if importlib.util.find_spec(module) is not None:
        raise RecipeError(f"a module {module} is installed here, and would be hidden; use another name", where="NAME")
    folder.mkdir(parents=True, exist_ok=True)
    for file, template in zip(files, ("method", "test_method"), strict=True):
        write_text(file, TEMPLATES.get_template(f"{template}.py.j2").render(module=module, cls=class_of(name)))
    return files
