"""The documentation: links lead somewhere, modules exist, the API reference is whole, examples of docstrings hold."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import coalface

PACKAGE = Path(coalface.__file__).parent
ROOT = PACKAGE.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OVERVIEW = [ROOT / "docs" / name for name in ("architecture.md", "glossary.md")] + sorted(
    (ROOT / "docs/spec").glob("*")
)
NAMED = r"`((?:core|data|models|training|privacy|methods|engine|evaluation|experiments|flower|cli)/[\w/]*(?:\.py)?)`"


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", link):  # an address elsewhere
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken_links(page)


@pytest.mark.parametrize("page", OVERVIEW, ids=lambda page: page.name)
def test_modules_that_the_architecture_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = re.findall(NAMED, text)
    for package, files in re.findall(r"^\| `([\w/]+)` \| (`[^|]*`) \|", text, flags=re.MULTILINE):
        paths += [f"{package}/{name}" for name in re.findall(r"`([\w/.]+)`", files) if (PACKAGE / package).is_dir()]
    assert paths or page.parent.name == "spec", "the page names no module any more, or in another form"
    assert not [name for name in paths if not (PACKAGE / name).exists()]


def test_the_readme_holds_on_a_package_index() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not re.findall(r"\]\((?!\w+:)", text), "a link that leads nowhere on an index: name the page in its place"
    for picture, words in re.findall(
        r'<img src="([^"]+)"[^>]* alt="([^"]+)"', text
    ):  # which a reader there does not see
        assert (ROOT / picture).stat().st_size < 150_000 and picture in words
    named = re.findall(r"`((?:docs|coalface)/[\w./-]+)`", text)
    assert named and not [name for name in named if not (ROOT / name).exists()]


def test_the_api_reference_has_every_name_of_the_package() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = dict(re.findall(r"^::: ([\w.]+)(?:\n    options: .*members: \[(.*)\])?", text, re.MULTILINE))
    missing = set()
    for name, module in coalface._MODULES.items():
        home = getattr(getattr(coalface, name), "__module__", module)
        members = shown.get(home)
        if f"{home}.{name}" not in shown and (members is None or (members and name not in members.split(", "))):
            missing.add(f"{home}.{name}")
    assert not missing


def test_examples_of_docstrings_hold() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if ">>>" in path.read_text(encoding="utf-8")]
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    results = [doctest.testmod(importlib.import_module(module)) for module in modules]
    assert sum(result.attempted for result in results) > 50 and not sum(result.failed for result in results)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One, two\n[a](#one-two) [b](#three) [c](gone.md) [d](https://example.org)\n", encoding="utf-8")
    assert broken_links(page) == ["#three", "gone.md"]
