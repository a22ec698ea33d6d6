"""The cells of attacks as lines of JSON, kept as soon as each is done, and their table."""

from __future__ import annotations

import json
import os
import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """`Attack.version_of` the attack that was made."""
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
        """What the cell follows from, but for the version."""
        return self.recipe, self.kind, self.options, self.judge


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
    """Markdown: for each command a table of its figures by defence, means over seeds and their range.

    Each figure has chance beside it in brackets (as that of a model without liars, it may differ between defences), and
    its seeds where they are not all of the command's.
    """
    by_command: dict[str, list[Cell]] = {}
    for cell in cells:
        by_command.setdefault(cell.command, []).append(cell)
    for command, group in by_command.items():
        yield from (f"`coalface attack {command}`, {_seeds(cell.seed for cell in group)}; chance in brackets:", "")
        yield from _table_of(group)
        refusals = (f"{cell.defence}: {cell.refused}" for cell in group if cell.refused)
        yield from (f"\n{refusal}" for refusal in dict.fromkeys(refusals))
        yield ""


def _table_of(cells: Sequence[Cell]) -> Iterator[str]:
    """The lines of one command's table; where there are more defences than figures, these are its columns."""
    defences = list(dict.fromkeys(cell.defence for cell in cells))
    by_figure: dict[tuple[str, str, str], dict[str, dict[int, Outcome]]] = {}
    for cell in cells:
        for outcome in cell.outcomes:
            key = outcome.target, outcome.attacker, outcome.figure
            by_figure.setdefault(key, {}).setdefault(cell.defence, {})[cell.seed] = outcome
    lines, seeds = [["", *defences]], {cell.seed for cell in cells}
    for (target, attacker, figure), by_defence in by_figure.items():
        name = f"{target}, by the {attacker}: {figure} ({_trials(by_defence.values())})"
        lines.append([name, *(_value(by_defence.get(defence, {}), seeds) for defence in defences)])
    if len(defences) > len(by_figure):
        lines = [list(line) for line in zip(*lines, strict=True)]
    if by_figure:
        yield f"| {' | '.join(lines[0])} |"
        yield f"|---|{'---:|' * (len(lines[0]) - 1)}"
        yield from (f"| {' | '.join(line)} |" for line in lines[1:])


def _trials(outcomes: Iterable[Mapping[int, Outcome]]) -> str:
    """Of how many people, images or messages a figure is, in the cells of all defences."""
    counts = sorted({outcome.trials for by_seed in outcomes for outcome in by_seed.values()})
    return f"{counts[0]:,}{f' to {counts[-1]:,}' if counts[1:] else ''} trial{'s' * (counts[-1] != 1)}"


def _value(by_seed: Mapping[int, Outcome], seeds: set[int]) -> str:
    if not by_seed:
        return NOTHING
    outcomes, which = by_seed.values(), "" if by_seed.keys() == seeds else f", {_seeds(by_seed)}"
    chances = [round(o.chance, 1) for o in outcomes]
    chance = _text(chances if len(set(chances)) > 1 else chances[:1])
    return f"{_text([o.value for o in outcomes])} [{chance}]{which}"


def _seeds(seeds: Iterable[int]) -> str:
    ordered = sorted(set(seeds))
    return f"seed{'s' * (len(ordered) > 1)} {', '.join(map(str, ordered))}"


def _text(values: Sequence[float]) -> str:
    """The mean and the range of several seeds; a number alone is of one."""
    if len(values) < 2:
        return f"{values[0]:.1f}"
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


_CELL = TypeAdapter(Cell)
