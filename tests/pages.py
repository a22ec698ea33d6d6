"""Pages as a browser reads them, and tables of Markdown."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr", "wbr"}


def markdown_rows(text: str) -> list[list[str]]:
    """The cells of all tables of a text, heads and rules among them."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


class Reader(HTMLParser):
    """Reads a page strictly: every tag is closed in order. Keeps tags, text, and rows of tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.page = page
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def check_offline(self) -> None:
        """It runs nothing and takes nothing from outside."""
        assert not {tag for tag, _ in self.tags} & {"script", "link", "img", "iframe", "object", "base", "form"}
        for _, attributes in self.tags:
            assert not {"src", "href", "srcset", "data"} & set(attributes)
            assert not any(name.startswith("on") for name in attributes)
        assert not re.findall(r"url\(|@import", self.page)
        assert set(re.findall(r"https?://[^\"' ]+", self.page)) <= {"http://www.w3.org/2000/svg"}
