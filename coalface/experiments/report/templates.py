"""The HTML templates of this package: escaped, without control characters, and strict about what they are not given."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from coalface.core.disk import writing
from coalface.core.text import clean
from coalface.experiments.report.vega import IN_THE_DARK


@cache
def template(name: str) -> Template:
    """A template beside this file, which may include others."""
    environment = Environment(
        loader=FunctionLoader(lambda file: (files("coalface.experiments.report") / file).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.globals["IN_THE_DARK"] = IN_THE_DARK
    return environment.get_template(name)


def write_page(to: Path, page: str) -> Path:
    """Write a page and return its path; a letter that is no text becomes a question mark."""
    with writing(to):
        to.write_bytes(page.encode("utf-8", "replace"))
    return to


def _shown(value: object) -> object:
    """What a template writes for a value: text without control characters, nothing for None."""
    return value if isinstance(value, Markup) else "" if value is None else clean(value)
