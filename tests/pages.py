"""Pages as a browser reads them, tables of Markdown, and what a page of the docs tells its reader to do."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "img", "link", "input", "hr", "wbr"}


def markdown_rows(text: str) -> list[list[str]]:
    """The cells of all tables of a text, heads and rules among them."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each block of a page."""
    return re.findall(r"^```(.*)\n((?s:.*?))^```$", page, re.MULTILINE)


def commands(block: str) -> list[list[str]]:
    """The words of each command, without the variables before it."""
    lines = [shlex.split(line, comments=True) for line in block.replace("\\\n", "").splitlines()]
    return [[word for word in words if not re.match("[A-Z_]+=", word)] for words in lines if words]


def execute(folder: Path, *words: str) -> str:
    """What a command in a folder prints, by the programs of this environment; it may not fail."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("COALFACE_DATA", None)
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def play(page: str, folder: Path, added: Callable[[list[str]], Sequence[str]]) -> str:
    """Do in a folder what a page says, from top to bottom; what its last command prints.

    A recipe is written under its name, Python and the commands of `coalface` are run, each with words that are `added`.
    """
    last = ""
    for language, text in blocks(page):
        if language == "yaml" and (name := re.match(r"name: (\w+)\n", text)):
            (folder / f"{name[1]}.yaml").write_text(text, encoding="utf-8")
        elif language == "python":
            execute(folder, "python", "-c", text)
        for words in commands(text) if language == "sh" else []:
            if words[0] == "coalface":
                last = execute(folder, *words, *added(words))
    return last


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
