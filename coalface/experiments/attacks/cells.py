"""The cells of attacks as lines of JSON, kept as soon as each is done, and their table."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coalface.core.disk import writing
from coalface.core.errors import DataError
from coalface.core.parsing import parse_json
from coalface.experiments.attacks.base import Outcome

NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """One attack on one replay."""

    title: str
    """The recipe and its changes, as the command has them."""
    recipe: str
    """The digest of the recipe, with the defence and the seed."""
    kind: str
    options: str
    defence: str
    seed: int
    outcomes: tuple[Outcome, ...] = ()
    refused: str = ""
    """Why there is none: the run cannot be had so, or leaves the attacker nothing."""
    seconds: float = 0.0
    version: int = 1
    """`Attack.version` of the attack that was made."""
    judge: str = ""
    """SHA-256 of the judge's file, where the attack has one."""

    @property
    def settings(self) -> list[str]:
        """The options as the command has them."""
        return [f"{key}={value}" for key, value in parse_json(self.options).items()]

    @property
    def key(self) -> tuple[str | int, ...]:
        """What the cell follows from."""
        return self.recipe, self.kind, self.options, self.version, self.judge


def read_cells(path: Path) -> Iterator[Cell]:
    """The cells of a file; a last line that was cut off is taken away. Raises DataError for another that is none."""
    if not path.exists():
        return
    data = path.read_bytes()
    if len(data) > (whole := data.rfind(b"\n") + 1):
        os.truncate(path, whole)
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            cell = _CELL.validate_python(parse_json(line, any_number=True))
            _ = cell.settings
        except (ValueError, AttributeError, RecursionError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            where = f"{path}, line {number}"
            raise DataError(f"not a cell ({why}); delete the line to compute the cell again", where=where) from None
        yield cell


def append_cell(path: Path, cell: Cell) -> None:
    """Add a cell that is done."""
    with writing(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(cell), ensure_ascii=False) + "\n")


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """Markdown: a row for each figure, a column for chance and for each defence; means over seeds, and their range.

    Where chance differs between cells (as that of a model without liars does), each figure has its own in brackets.
    """
    defences = list(dict.fromkeys(cell.defence for cell in cells))
    figures: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    chances: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for cell in cells:
        for outcome in cell.outcomes:
            about = " ".join([cell.title, *cell.settings])
            row = cell.kind, about, outcome.target, outcome.attacker, outcome.figure
            figures.setdefault(row, {}).setdefault(cell.defence, []).append(outcome.value)
            chances.setdefault(row, {}).setdefault(cell.defence, []).append(outcome.chance)
    yield f"| attack | run | on | by | figure | chance | {' | '.join(defences)} |"
    yield f"|---|---|---|---|---|---:|{'---:|' * len(defences)}"
    for row, by_defence in figures.items():
        of_row = {defence: _text(chances[row].get(defence, [])) for defence in defences}
        values = [_text(by_defence.get(defence, [])) for defence in defences]
        if len(set(of_row.values()) - {NOTHING}) > 1:  # a chance of its own beside each value
            values = [f"{value} [{of_row[defence]}]" for defence, value in zip(defences, values, strict=True)]
        yield f"| {' | '.join(row)} | {of_row[next(iter(by_defence))]} | {' | '.join(values)} |"
    for refused in dict.fromkeys(
        f"{cell.kind}, {cell.title}, {cell.defence}: {cell.refused}" for cell in cells if cell.refused
    ):
        yield f"\n{refused}"


def _text(values: Sequence[float]) -> str:
    if len(set(values)) < 2:
        return f"{values[0]:.1f}" if values else NOTHING
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


_CELL = TypeAdapter(Cell)
