"""The papers of the methods in BibTeX, from `papers.bib`."""

from __future__ import annotations

import re
from importlib.resources import files


def bibtex(method: str | None = None) -> str:
    """The entries of a method's papers, or of all; empty for a method without a paper."""
    text = files(__package__).joinpath("papers.bib").read_text(encoding="utf-8")
    entries = re.findall(r"^@.+?^}$", text, re.MULTILINE | re.DOTALL)
    return "\n\n".join(entry for entry in entries if method is None or method in methods_of(entry))


def methods_of(entry: str) -> list[str]:
    """The methods that an entry names as its keywords."""
    return re.findall(r"[\w-]+", entry.partition("keywords = ")[2])
