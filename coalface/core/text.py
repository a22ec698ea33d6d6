"""Names and counts as they stand in a sentence."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence


def shown(name: object) -> str:
    r"""A name, path or message as it may reach a terminal: what cannot be printed stands there escaped.

    A file may be called anything but `/` and NUL: a line break in it would forge a line, ESC would command the
    terminal, and a byte that is no text cannot be written at all. What is escaped already stays as it is.

    >>> print(shown("new\nline, \x1b[31m, José"))
    new\nline, \x1b[31m, José
    """
    text = str(name)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clean(text: object) -> str:
    """A name or a reason on one line, without the control characters that could drive a terminal.

    Format characters go as well: a right-to-left override would reorder what a person reads.
    """
    full = str(text)
    if full.isprintable():
        return full
    return "".join(" " if c.isspace() else "?" if unicodedata.category(c)[0] == "C" else c for c in full)


def told(text: object, most: int = 200) -> str:
    r"""What another says, as it may stand in a report: `shown`, and cut after `most` characters.

    >>> told("no\nroom"), told("a" * 1_000_000, most=4)
    ('no\\nroom', 'aaaa…')
    """
    full = str(text)
    short = shown(full[: most + 1])
    return short if len(short) <= most else f"{short[:most]}…"


def natural(name: str) -> list[tuple[int, str]]:
    """A key to sort names by, in which numbers stand in their order.

    >>> sorted(["r10", "r2", "a"], key=natural)
    ['a', 'r2', 'r10']
    """
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"([0-9]+)", name)]


def several(count: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> several(1, "image"), several(2_000, "identity", "identities")
    ('1 image', '2,000 identities')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def size(count: float) -> str:
    """Bytes in decimal units.

    >>> size(950), size(1_234_567)
    ('950 B', '1.23 MB')
    """
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = 0
    while abs(count) >= 999.5 and power < len(units) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.0f} {units[power]}" if power == 0 else f"{count:.3g} {units[power]}"


def first_few(names: Sequence[str] | Sequence[int], most: int = 3) -> str:
    """The first names of a row, for a sentence.

    >>> first_few(["ann", "bo"]), first_few(["ann", "bo", "cy", "di"])
    ('ann, bo', 'ann, bo, cy, …')
    """
    return ", ".join(map(str, names[:most])) + (", …" if len(names) > most else "")


def html_table(rows: Sequence[Sequence[object]], header: Sequence[object] = (), caption: object = "") -> str:
    """A table for a notebook; the first column names its row.

    >>> html_table([["EER", "<3"]])
    '<table><tr><th style="text-align:left">EER</th><td>&lt;3</td></tr></table>'
    """

    def line(cells: Sequence[str]) -> str:
        return f"<tr>{''.join(cells)}</tr>"

    def safe(cell: object) -> str:
        return html.escape(str(cell)).replace("\n", "<br>")

    lines = [f"<caption>{safe(caption)}</caption>"] if caption else []
    lines += [line([f"<th>{safe(cell)}</th>" for cell in header])] if header else []
    for first, *others in rows:
        named = f'<th style="text-align:left">{safe(first)}</th>'
        lines.append(line([named, *(f"<td>{safe(cell)}</td>" for cell in others)]))
    return f"<table>{''.join(lines)}</table>"
