"""`docs/results/claims.md`: its table of sweeps has the cells, and the hours, that the folders of figures have.

To write cells and hours anew: `REWRITE_TEXTS=1 .venv/bin/python -m pytest tests/experiments/test_claims_page.py`
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import coalface
from coalface.experiments.sweep.cells import read_cells

PAGE = Path(coalface.__file__).parents[1] / "docs" / "results" / "claims.md"
ROW = re.compile(r"^(\| `coalface sweep .+ \| )(\d+)(.*) \| (\d+\.\d)( \| \[.+\]\((.+)/table\.md\) \|)$", re.MULTILINE)
RUN = re.compile(r"^\| `coalface run .+ \| (\d+\.\d) \|")
SUM = re.compile(r"^(\| (?:the five papers|the later ones) \| \| )(\d+\.\d)( \| \|)$", re.MULTILINE)


def written(text: str) -> str:
    """The page with the cells and hours of the files; a cell that two sweeps have takes the hours of the first."""
    seconds: dict[str, float] = {}
    summed = 0.0
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if found := ROW.match(line):
            before, _, words, _, after, folder = found.groups()
            cells = read_cells(PAGE.parent / folder / "cells.jsonl", mend=False)
            of_its_own = {digest: cell["seconds"]["total"] for digest, cell in cells.items() if digest not in seconds}
            seconds.update(of_its_own)
            hours = sum(of_its_own.values()) / 3600
            if shared := len(cells) - len(of_its_own):
                words = f", {shared} of them those before"
            lines[number] = f"{before}{len(cells)}{words} | {hours:.1f}{after}\n"
            summed += hours
        elif found := RUN.match(line):
            summed += float(found[1])
        elif found := SUM.match(line):
            lines[number] = f"{found[1]}{summed:.1f}{found[3]}\n"
            summed = 0.0
    return "".join(lines)


def test_the_table_of_sweeps_has_the_cells_and_hours_of_the_files() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(ROW.findall(text)) > 30 and len(SUM.findall(text)) == 2, "the table has another form"
    if os.environ.get("REWRITE_TEXTS"):
        PAGE.write_text(written(text), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == written(text)


def test_each_sweep_that_a_row_names_is_in_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    claims, _, sweeps = text.partition("## Commands and hours")
    named = {
        name for row in re.findall(r"\| ([\w/, -]+/[\w/, -]+) \|$", claims, re.MULTILINE) for name in row.split(", ")
    }
    commands = set(re.findall(r"`coalface sweep ([\w/-]+)", sweeps))
    listed = commands | {command.replace("/sweeps/", "/") for command in commands}
    assert len(named) > 15 and named - listed == set()
