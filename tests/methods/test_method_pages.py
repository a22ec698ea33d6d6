"""The pages of the methods point at code that is there."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import coalface
from coalface.core import parsing
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader
from coalface.training.federated_validation import FederatedValidation

ROOT = Path(coalface.__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_piece_of_code_stands_in_its_file(page: Path) -> None:
    quotes = re.findall(r"`((?:methods|training)/[\w/]+\.py)`: `([^`]+)`", page.read_text(encoding="utf-8"))
    assert quotes
    for file, code in quotes:
        assert code in (ROOT / "coalface" / file).read_text(encoding="utf-8"), f"{page.name}: {code} is not in {file}"


def test_the_settings_of_federated_validation_are_all_told_with_their_defaults() -> None:
    text = (ROOT / "docs" / "methods" / "pfm.md").read_text(encoding="utf-8")
    defaults = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+?)`? \|", text.partition("## Settings")[2], re.MULTILINE))
    assert defaults == {field.name: str(field.default).lower() for field in dataclasses.fields(FederatedValidation)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_recipes_it_names_are_there(page: Path) -> None:
    for name in re.findall(r"recipes/[\w/.-]+\.yaml", page.read_text(encoding="utf-8")):
        assert (ROOT / name).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_whole_recipes_in_it_can_be_planned(page: Path) -> None:
    for block in re.findall(r"^```yaml\n(name: .+?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        assert "checked as a run does" in preflight.describe(loader.parse(parsing.parse_yaml(block)))
