"""Summaries of ledgers: which tensors left a party, how often, in how many bytes and rounds, to whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import index
from pathlib import Path
from typing import Any

from coalface.core.compression import SCALES
from coalface.core.errors import RecipeError
from coalface.core.text import natural
from coalface.engine.client_batch import CLIENT_BATCHES
from coalface.experiments.plan import messages
from coalface.experiments.recipe import loader
from coalface.methods import METHODS
from coalface.privacy import ledger

Contents = Mapping[tuple[str, str], str]
"""(step, field) -> what it holds, a `coalface.core.declarations.Content`."""


def spans(rounds: Iterable[int]) -> list[list[int]]:
    """First and last of each run of consecutive rounds.

    >>> spans({3, 1, 2, 7})
    [[1, 3], [7, 7]]
    """
    merged: list[list[int]] = []
    for number in sorted(rounds):
        if merged and number == merged[-1][1] + 1:
            merged[-1][1] = number
        else:
            merged.append([number, number])
    return merged


@dataclass
class Row:
    """Tensors that left alike: those of one field, or a single one."""

    run: str
    step: str
    name: str
    kind: str
    to: str
    protection: str
    content: str
    """What the method declares that the field holds; empty where the method is not known."""
    rows: str = ""
    """Of a vector under masks, the fields with rows that one party alone may have changed: their sum is that row."""
    parties: set[str] = field(default_factory=set)
    """Whose ledgers list it."""
    sent: dict[str, int] = field(default_factory=dict)
    """How many times each tensor of it left."""
    bytes: int = 0
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)
    rounds: dict[str, set[int]] = field(default_factory=dict)
    """By stage."""

    @property
    def times(self) -> int:
        """In how many messages it was."""
        return max(self.sent.values())

    def as_dict(self) -> dict[str, Any]:
        shapes = sorted(self.shapes)
        return {
            "run": self.run,
            "step": self.step,
            "name": self.name,
            "kind": self.kind,
            "content": self.content,
            "tensors": len(self.sent),
            "shapes": [list(shape) for shape in shapes],
            "dtypes": sorted(self.dtypes),
            "times": self.times,
            "bytes": self.bytes,
            "rounds": {stage: spans(rounds) for stage, rounds in self.rounds.items()},
            "to": self.to,
            "protection": self.protection,
            **({"rows": self.rows} if self.rows else {}),
            "parties": len(self.parties),
        }


@dataclass(frozen=True)
class LedgerReading:
    """One ledger: how long it is, and where its chain stands."""

    party: str
    path: str
    lines: int
    bytes: int
    """That its lines say were sent."""
    head: str
    cut_off: bool = False
    """Its last line is not whole: it is being written, or a crash cut it off. It is not counted."""
    fault: str = ""
    """Why the chain does not hold, from the line that is named; what is before it is counted."""
    found: int | None = None
    """The line that ends with the hash that was looked for; 0 where that is of an empty ledger."""


@dataclass(frozen=True)
class LedgerSummary:
    """What several ledgers say."""

    ledgers: tuple[LedgerReading, ...]
    rows: tuple[Row, ...]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.ledgers)

    def as_dict(self) -> dict[str, Any]:
        ledgers = [asdict(entry) for entry in self.ledgers]
        return {"ledgers": ledgers, "bytes": self.bytes, "left": [row.as_dict() for row in self.rows]}


def ledger_files(path: Path) -> list[Path]:
    """The ledgers of a file, a run's folder or a party's home. Raises RecipeError where there is none."""
    if path.is_file():
        with open(path, "rb") as file:
            begins = file.read(len(ledger.BEGINS))
        if not ledger.BEGINS.startswith(begins):
            raise RecipeError("not a ledger; give a run folder, a party's home, or a ledger file", where=path)
        return [path]
    ledgers = [path / f"{CLIENT_BATCHES}.jsonl"] if (path / f"{CLIENT_BATCHES}.jsonl").exists() else []
    parties = [*path.glob("ledger/*.jsonl")] or [*path.glob("*/ledger/*.jsonl")]
    ledgers += sorted(parties, key=lambda file: natural(str(file)))
    if not ledgers:
        raise RecipeError(
            "no ledger here; give a run folder, a party's home, or a ledger file. A party's ledger lies at that party, "
            "below its home",
            where=path,
        )
    return ledgers


def contents_of(path: Path, method: str | None = None) -> Contents:
    """(step, field) -> what it holds, by the declarations of a method: the one named, or that of the ledgers' run.

    Empty where `path` is not in a run's folder, as at a party's home, and where the run's method is nobody's registered
    name: to read a ledger imports no module that a file beside it names. Raises RecipeError for an unknown `method`.
    """
    if method is None:
        places = [place / "config.yaml" for place in ([path] if path.is_dir() else [path.parent, path.parents[1]])]
        config = next((place for place in places if place.is_file()), None)
        method = loader.read(config).get("method") if config else None
        if not isinstance(method, str) or method not in tuple(METHODS):
            return {}
    return messages.what_leaves(METHODS.find(method, "--method"))


def read_ledgers(
    paths: Iterable[Path], *, by_tensor: bool = False, head: str | None = None, contents: Contents | None = None
) -> LedgerSummary:
    """Follow the chains of ledgers, line by line, and sum up what they list; with `by_tensor`, tensor by tensor.

    `contents` says what fields hold. `head` is a hash that was written down: `LedgerReading.found` then says at which
    line a ledger has it.
    """
    rows: dict[tuple[str, ...], Row] = {}
    readings = tuple(_read(path, rows, by_tensor, head, contents or {}) for path in paths)
    return LedgerSummary(readings, tuple(rows.values()))


def _read(
    path: Path, rows: dict[tuple[str, ...], Row], by_tensor: bool, head: str | None, contents: Contents
) -> LedgerReading:
    at, total, fault, cut_off = ledger.Head(), 0, "", False
    line_of_head = 0 if head == ledger.START else None
    try:
        for at, line in ledger.lines(path):
            total += _add(rows, path.stem, line, by_tensor, contents)
            if at.chain == head:
                line_of_head = at.lines
        cut_off = ledger.is_cut_off(path, at)
    except ValueError as error:
        fault = str(error)
    return LedgerReading(path.stem, str(path), at.lines, total, at.chain, cut_off, fault, line_of_head)


def _add(
    rows: dict[tuple[str, ...], Row], party: str, line: Mapping[str, Any], by_tensor: bool, contents: Contents
) -> int:
    """Count a line in its row; returns its bytes. Raises ValueError where it lacks what a line must say."""
    try:
        name, (above, _, below) = str(line["name"]), str(line["name"]).partition("/")
        row_name = f"{above}/*" if below and not by_tensor else name
        run, step, kind, to, protection = (str(line[column]) for column in ("run", "step", "kind", "to", "protection"))
        rows_named = str(line.get("rows", "")) if row_name == "vector" else ""
        key = (run, step, row_name, kind, to, protection, rows_named)
        shape, size, number = tuple(map(index, line["shape"])), index(line["bytes"]), index(line["round"])
        parties, dtype, stage = index(line.get("parties", 1)), str(line["dtype"]), str(line["stage"])
        if (row := rows.get(key)) is None:
            content = _content(line, step, above.removeprefix(SCALES), contents)
            row = rows[key] = Row(run, step, row_name, kind, to, protection, content, rows_named)
        row.parties.add(party)
        row.sent[name] = row.sent.get(name, 0) + parties  # a batch's line is of many
        row.bytes += size
        row.shapes.add(shape)
        row.dtypes.add(dtype)
        row.rounds.setdefault(stage, set()).add(number)
        return size
    except (KeyError, TypeError) as error:
        raise ValueError(f"line {line.get('line', 0) + 1} does not say what a line of a ledger says: {error}") from None


def _content(line: Mapping[str, Any], step: str, field: str, contents: Contents) -> str:
    """What a piece holds; of a vector under masks, what of all parties its sum is."""
    if "sum" not in line:
        return contents.get((step, field), "")
    summed = dict.fromkeys(contents.get((step, name), "") for name in str(line.get("of", "")).split(", "))
    return f"sum of {', '.join(filter(None, summed))}" if field == "vector" and any(summed) else ""


def shown_shape(shapes: Sequence[Sequence[int]]) -> str:
    """Of one tensor its shape, of several how different they are."""
    if len(shapes) != 1:
        return f"{len(shapes)} shapes"
    return "×".join(map(str, shapes[0])) or "–"


def shown_rounds(rounds: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """Rounds by stage, such as `train 1–5, 7`."""
    stages = []
    for stage, spans in rounds.items():
        words = [f"{first}" if first == last else f"{first}–{last}" for first, last in spans]
        tail = f", … {words[-1]}" if len(words) > 6 else ""
        stages.append(f"{stage} {', '.join(words[:5] if tail else words)}{tail}")
    return "; ".join(stages)
