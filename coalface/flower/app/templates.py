"""The templates of a Flower project and of the kits, which lie in `coalface/flower/templates`."""

from __future__ import annotations

import json
import shlex

from jinja2 import Environment, PackageLoader, StrictUndefined

TEMPLATES = Environment(
    loader=PackageLoader("coalface.flower"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {"quote": shlex.quote, "json": json.dumps}


def render(path: str, /, **values: object) -> str:
    """The text of a template, by its path without `.j2`."""
    return TEMPLATES.get_template(f"{path}.j2").render(values)
