"""`docs/trust.md` and the cells of attacks whose figures it tells."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import coalface
from coalface.experiments.attacks import measure
from coalface.experiments.attacks.cells import read_cells

PAGE = Path(coalface.__file__).parents[1] / "docs" / "trust.md"
NOISE = "privacy.dp.clip=0.3 privacy.dp.noise_multiplier=6.31 privacy.dp.delta=1e-5"


def cells(kind: str, of: str = "value") -> dict[tuple[str, ...], float]:
    """(recipe and changes, options, defence, target, figure) -> the committed seeds' mean of value or chance."""
    values: dict[tuple[str, ...], list[float]] = {}
    for cell in read_cells(PAGE.parent / "results" / "attacks" / kind / measure.CELLS):
        for outcome in cell.outcomes:
            key = cell.title.removeprefix("attacks/"), cell.options, cell.defence, outcome.target, outcome.figure
            values.setdefault(key, []).append(getattr(outcome, of))
    return {key: statistics.mean(of_seeds) for key, of_seeds in values.items()}


def rows(header: str) -> dict[str, list[str]]:
    """The table with a header that begins so: first cell of each row -> the others."""
    lines = PAGE.read_text(encoding="utf-8").partition(f"\n{header}")[2].partition("\n\n")[0].splitlines()[2:]
    parts = [[part.strip() for part in line.strip("|").split("|")] for line in lines]
    return {first: others for first, *others in parts}


def assert_shows(text: str, *values: float) -> None:
    """The numbers that a cell begins with, parted by slashes, are these as rounded there."""
    shown = re.match(r"\**(−?[\d.]+)(?: / (−?[\d.]+))?", text)
    assert shown, text
    numbers = [number.replace("−", "-") for number in shown.groups() if number]
    for number, value in zip(numbers, values, strict=True):
        half = 0.5 * 10.0 ** -len(number.partition(".")[2])
        assert abs(float(number) - value) < half + 0.02, f"{text}: the cells have {value:.2f}"


def method_of(title: str) -> str:
    return next((word.removeprefix("method=") for word in title.split() if word.startswith("method=")), "fedavg")


def entries(column: int) -> dict[str, str]:
    """Method -> the word that its entry in the table of what attackers got begins with; of `fedavg` that of silos."""
    return {
        method: re.split("[,;]", entry.strip("*"))[0]
        for first, row in rows("| method | template: who").items()
        for method in re.findall(r"`([a-z-]+)`", first)
        for entry in row[column : column + 1]
        if first != "`fedavg`, one person a client"
    }


def bullet(begins: str) -> list[str]:
    """The numbers of the item of a list that begins so, without those in brackets."""
    told = PAGE.read_text(encoding="utf-8").partition(f"\n- **{begins}**")[2].partition("\n")[0]
    return re.findall(r"−?\d[\d.]*\d|\d", re.sub(r"\([^)]*\)|`[^`]*`", "", told))


def assert_tells(begins: str, skip: int, *values: float) -> None:
    """The item has these numbers, after some."""
    for text, value in zip(bullet(begins)[skip:], values, strict=True):
        assert_shows(text, value)
