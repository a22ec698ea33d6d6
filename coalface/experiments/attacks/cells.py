"""The cells of attacks as lines of JSON, kept as soon as each is done, and their table."""

from __future__ import annotations

import json
import os
import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

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
    def command(self) -> str:
        """What computes it, without a defence and for the recipe's own seed."""
        given = parse_json(self.options).items()
        settings = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in given]
        return " ".join(
            [f"{self.title} --kind {self.kind}", *(f"--option {shlex.quote(setting)}" for setting in settings)]
        )

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
            _ = cell.command
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
    rows: dict[tuple[str, ...], dict[str, list[Outcome]]] = {}
    for cell in cells:
        for outcome in cell.outcomes:
            row: tuple[str, ...] = (f"`{cell.command}`", outcome.target, outcome.attacker, outcome.figure)
            rows.setdefault(row, {}).setdefault(cell.defence, []).append(outcome)
    yield f"| `coalface attack …` | on | by | figure | trials | chance | {' | '.join(defences)} |"
    yield f"|---|---|---|---|---:|---:|{'---:|' * len(defences)}"
    for row, by_defence in rows.items():
        chances = {
            defence: _text(sorted({round(o.chance, 1) for o in by_defence.get(defence, [])})) for defence in defences
        }
        values = [_text([o.value for o in by_defence.get(defence, [])]) for defence in defences]
        if len(set(chances.values()) - {NOTHING}) > 1:  # a chance of its own beside each value
            values = [f"{value} [{chances[defence]}]" for defence, value in zip(defences, values, strict=True)]
        first = next(iter(by_defence.values()))
        about = str(first[0].trials), chances[next(iter(by_defence))]
        yield f"| {' | '.join((*row, *about, *values))} |"
    for refused in dict.fromkeys(f"`{cell.command}`, {cell.defence}: {cell.refused}" for cell in cells if cell.refused):
        yield f"\n{refused}"


def _text(values: Sequence[float]) -> str:
    """The mean and the range of several seeds; a number alone is of one."""
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else NOTHING
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


_CELL = TypeAdapter(Cell)
