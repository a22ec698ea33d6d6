"""A run as its page may be passed on: without paths, names of parties, host, user, command line and messages.

Numbers stay. A text stays where the code chose it: a word of the recipe's schema or a name in the package's registries,
and in the sections of `BY_CODE`. Any other is left out, so whatever a later version writes is left out too.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from coalface.experiments.recipe.included import FOLDER
from coalface.experiments.report import page
from coalface.experiments.report.charts import SCORE, WEIGHT
from coalface.experiments.report.runs import Run, mapping, read
from coalface.experiments.report.templates import write_page
from coalface.methods import METHODS
from coalface.models import BACKBONES

LEFT_OUT = "left out"
BY_CODE = frozenset(
    "name method setting stage messages stays readable numerics own_figures "
    "parties.name parties.role ledger.tensors ledger.head".split()
)
"""Places below which texts are the code's; the name of the run, its author chose."""
ENVIRONMENT = ("coalface", "commit", "python", "torch", "numpy", "system", "processor", "date")
"""What of the environment stays; versions, and no place."""
BY_PARTY_IN_RECIPES = (
    "data.parties data.party_data data.party_augment data.faces.parts data.partition.shares local.party_batch_size "
    "data.hold_out data.rehearsal engine.processes_per_party faults.slow faults.corrupt"
).split()
"""Keys of a recipe with an entry for each party."""
BY_PARTY = ("failed", "losses", "large")
"""Keys of a metrics line with an entry for each party."""


def build(run: Path, to: Path | None = None) -> Path:
    """Write the page of a run to pass on, to RUN/shared.html by default, and return its path.

    Raises FileNotFoundError or ValueError where the run folder cannot be read.
    """
    return write_page(to or run / "shared.html", page.render(shared(read(run))))


def shared(run: Run) -> Run:
    """The run with "party 1", "party 2", … in place of its parties, and nothing that says where it was carried out."""
    names = {name: f"party {number}" for number, name in enumerate(dict.fromkeys(_parties(run)), 1)}
    scrub = functools.partial(_scrub, names=names)
    summary = {key: scrub(value, key) for key, value in run.summary.items() if key != "environment"}
    environment = mapping(run.summary.get("environment"))
    if environment:
        summary["environment"] = {key: environment[key] for key in ENVIRONMENT if key in environment}
    config = {key: scrub(value, key) for key, value in run.config.items()}
    return replace(
        run,
        label=_renamed(run.name, names),
        config=config,
        config_text=yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        metrics=tuple({_key(key, names): scrub(value, key) for key, value in line.items()} for line in run.metrics),
        events=(),
        summary=summary,
        is_shared=True,
    )


def _parties(run: Run) -> Iterator[str]:
    """The names of all parties, of unfinished runs too."""
    yield from (str(party.get("name")) for party in run.parties)
    yield from mapping(mapping(run.summary.get("ledger")).get("head"))
    yield from mapping(run.config.get("validators"))
    for place in BY_PARTY_IN_RECIPES:
        *sections, key = place.split(".")
        section = functools.reduce(lambda value, name: mapping(value.get(name)), sections, mapping(run.config))
        own = section.get(key)
        yield from map(str, own) if isinstance(own, dict | list) else ()
    for line in run.metrics:
        for key in BY_PARTY:
            yield from mapping(line.get(key))
        yield from (key.removeprefix(WEIGHT) for key in line if key.startswith(WEIGHT))
        yield from (key.removeprefix(SCORE) for key in line if key.startswith(SCORE))


def _scrub(value: object, place: str, *, names: Mapping[str, str]) -> Any:
    """What may be shown of a value; `place` is where it stands, with points between the keys."""
    if isinstance(value, dict):
        return {
            _renamed(key, names): _scrub(item, place if place in BY_CODE else f"{place}.{key}", names=names)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_scrub(item, place, names=names) for item in value]
    if not isinstance(value, str):
        return value
    if place in BY_CODE:
        return _renamed(value, names)
    return names.get(value) or (value if value in _vocabulary() else LEFT_OUT)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A text in which parties' names are replaced where they stand as words."""
    longest_first = sorted(names, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first))
    return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda match: names[match[0]], text) if names else text


def _key(key: str, names: Mapping[str, str]) -> str:
    """The key of a metrics line, such as `weight/PARTY`."""
    name, slash, others = key.partition("/")
    return name + slash + _renamed(others, names)


@functools.cache
def _vocabulary() -> frozenset[str]:
    """The words that a recipe can choose from, and the names of the package's methods and backbones."""
    schema = json.loads((FOLDER / "recipe.schema.json").read_text(encoding="utf-8"))
    return frozenset([*_choices(schema), *METHODS, *BACKBONES])


def _choices(schema: object) -> Iterator[str]:
    """The texts that are a choice or a default somewhere in a JSON schema."""
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key in ("enum", "const", "default"):
            yield from _texts(value)
        else:
            yield from _choices(value)
    for item in schema if isinstance(schema, list) else ():
        yield from _choices(item)


def _texts(value: object) -> Iterator[str]:
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict | list):
            yield from _texts(item)
