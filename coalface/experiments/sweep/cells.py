"""The finished cells of a sweep as lines of JSON: `cells.jsonl`, and packed as `cells.jsonl.gz` once they are large."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coalface.core.disk import writing
from coalface.core.errors import DataError
from coalface.evaluation.figures import declare_all

LARGE = 1 << 20
"""Bytes of cells above which `pack_cells` packs them."""
_MOST = 1 << 28
"""Bytes of packed cells once they are unpacked; a thousandth of them can stand for so many."""


def packed(path: Path) -> Path:
    """Where cells lie that are packed; cells that were finished since lie at `path` itself."""
    return path.with_name(path.name + ".gz")


def read_cells(path: Path, *, mend: bool = True) -> dict[str, dict[str, Any]]:
    """Finished cells by the hash of their recipe, packed or not; a last line that was cut off does not count.

    With `mend` it is taken away. Raises DataError for a line that is no cell, or not as it was written.
    """
    cells: dict[str, dict[str, Any]] = {}
    for file in (packed(path), path):
        for number, line in enumerate(_lines(file, mend), start=1):
            try:
                cell = json.loads(line)
                if cell.pop("sha256", None) not in (None, _digest(cell)):  # versions before this one wrote none
                    raise ValueError("it was changed")
                cells[cell["hash"]] = cell
                declare_all(cell.get("own_figures"))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                where = f"{file}, line {number}"
                raise DataError(f"not a cell ({error!r}); delete the line to run the cell again", where=where) from None
    return cells


def append_cell(path: Path, cell: Mapping[str, Any]) -> None:
    """Add a finished cell."""
    with writing(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({**cell, "sha256": _digest(cell)}) + "\n")


def _digest(cell: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(cell).encode()).hexdigest()


def pack_cells(path: Path) -> None:
    """Pack cells that are more than `LARGE`: the same cells give the same bytes.

    A kill in between leaves the same cells in both files, and the next call takes the second away.
    """
    if not path.exists():
        return
    lines = dict.fromkeys([*_lines(packed(path)), *_lines(path)])  # each once
    data = "".join(f"{line}\n" for line in lines).encode()
    if len(data) <= LARGE:
        return
    fresh = path.with_name(path.name + ".new")
    with writing(packed(path)):
        fresh.write_bytes(gzip.compress(data, 9, mtime=0))
    fresh.rename(packed(path))
    path.unlink()


def _lines(file: Path, mend: bool = False) -> list[str]:
    """The whole lines of a file; none where there is no file."""
    if not file.exists():
        return []
    data = file.read_bytes()
    if file.suffix == ".gz":
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as unpacked:
                data = unpacked.read(_MOST + 1)
            if len(data) > _MOST:
                raise ValueError(f"it holds more than {_MOST:,} bytes")
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise DataError(f"cannot unpack it ({error}); restore it from a copy", where=file) from None
    whole = data.rfind(b"\n") + 1
    try:
        lines = data[:whole].decode().splitlines()
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            "not UTF-8 text; delete the line to run the cell again", where=f"{file}, line {number}"
        ) from None
    if mend and whole < len(data) and file.suffix != ".gz":
        os.truncate(file, whole)
    return lines
