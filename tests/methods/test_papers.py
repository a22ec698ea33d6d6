"""Every method that names a paper can be cited, by entries that BibTeX can read."""

from __future__ import annotations

import re

import pytest
from commands import outputs

from coalface.methods import METHODS
from coalface.methods.papers import bibtex, methods_of

ENTRIES = bibtex().split("\n\n")
NEEDED = {"@inproceedings": "booktitle", "@misc": "eprint", "@article": "journal"}
BOUNDS = {"solo", "centralized"}


@pytest.mark.parametrize("name", METHODS)
def test_the_entries_of_a_method_are_of_the_papers_that_it_names(name: str) -> None:
    paper, entries = METHODS[name].paper, bibtex(name)
    assert bool(entries) == (name not in BOUNDS)
    for surname, year in re.findall(r"(\w+) et al\. (\d{4})", paper):
        assert re.search(rf"author = \{{{surname}, .*?year = \{{{year}\}}", entries, re.DOTALL), paper


def test_every_entry_is_whole_and_of_a_method() -> None:
    assert len({entry.partition(",")[0] for entry in ENTRIES}) == len(ENTRIES)
    for entry in ENTRIES:
        kind, fields = entry.partition("{")[0], re.findall(r"^  (\w+) = \{.+\},$", entry, re.MULTILINE)
        assert entry.count("{") == entry.count("}") and len(fields) == len(entry.splitlines()) - 2
        assert {"author", "title", "year", NEEDED[kind]} <= set(fields)
        assert methods_of(entry) and set(methods_of(entry)) <= METHODS.keys()


def test_the_command_prints_them() -> None:
    assert outputs("methods", "--bibtex", "fedfv")[0] == f"{bibtex('fedfv')}\n"
    assert outputs("methods", "--bibtex")[0] == f"{bibtex()}\n"
    assert outputs("methods", "--bibtex", "solo") == ("", "solo names no paper\n")
