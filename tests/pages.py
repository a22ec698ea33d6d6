"""Pages as a browser reads them, tables of Markdown, and what a page of the docs tells its reader to do."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

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
    """Reads a page strictly: every tag is closed in order. Keeps tags, text, rows of tables, scripts, and charts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.page = page
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.scripts: list[str] = []
        self.charts: list[dict[str, Any]] = []
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
        if self.open[-1:] == ["script"]:
            attributes = self.tags[-1][1]
            if "type" not in attributes:
                self.scripts.append(data)
            elif self.open[-2] == "figure":
                self.charts.append(json.loads(data))
        elif "style" not in self.open:
            self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def check_offline(self) -> None:
        """It takes nothing from outside, and runs the scripts alone that its policy names by their hashes."""
        assert not {tag for tag, _ in self.tags} & {"link", "iframe", "object", "base", "form"}
        for tag, attributes in self.tags:
            if tag == "img":
                assert (attributes.pop("src") or "").startswith("data:image/jpeg;base64,")
            assert not {"src", "href", "srcset", "data"} & set(attributes)
            assert not any(name.startswith("on") for name in attributes)
        around = re.sub("<script.*?</script>", "", self.page, flags=re.DOTALL)
        assert not re.findall(r"url\((?!#)|@import", around)
        assert set(re.findall(r"https?://[^\"' ]+", around)) <= {
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1999/xlink",
        }
        (policy,) = (
            a["content"] or "" for tag, a in self.tags if tag == "meta" and "Security" in (a.get("http-equiv") or "")
        )
        assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
        assert not {"'unsafe-inline'", "'unsafe-eval'"} & set(policy.partition("script-src")[2].split())
        for script in self.scripts:
            assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
        assert len(self.scripts) == 1
