"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


def print_table(rows: Sequence[dict[str, Any]], numbers: Collection[str] = ()) -> None:
    """Rows under the keys of the first; the columns in `numbers` stand at the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for key in rows[0]:
        table.add_column(key, overflow="fold", justify="right" if key in numbers else "left")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    print_wide(table)


def print_wide(renderable: Any) -> None:
    """What rich can draw, in the width of the terminal, and in 160 columns where there is none."""
    from rich.console import Console

    console = Console(highlight=False)
    Console(highlight=False, width=console.width if console.is_terminal else 160).print(renderable)
