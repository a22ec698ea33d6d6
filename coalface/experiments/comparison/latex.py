"""A comparison as a LaTeX table, by the package booktabs."""

from __future__ import annotations

import itertools

from coalface.core.text import clean
from coalface.evaluation.figures import figure_of
from coalface.experiments.comparison.table import Comparison, Row, notes
from coalface.experiments.report.long_table import Record

SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}
"""What a letter of its own meaning is written as."""


def latex(comparison: Comparison) -> str:
    """A row for each run, and beneath it how far it lies from the first: in bold where that is decided."""
    by_list = [
        (on, len([*keys])) for on, keys in itertools.groupby(comparison.figures, lambda key: key.rpartition("/")[0])
    ]
    spans = [f"\\multicolumn{{{count}}}{{c}}{{{escape(on)}}}" for on, count in by_list]
    ends = list(itertools.accumulate((count for _, count in by_list), initial=1))
    rules = [f"\\cmidrule(lr){{{start + 1}-{end}}}" for start, end in itertools.pairwise(ends)]
    titles = [escape(figure_of(key).axis_title) for key in comparison.figures]
    lines = [*(f"% {clean(note)}" for note in notes(comparison)), "% Bold: the difference is decided."]
    lines += [f"\\begin{{tabular}}{{l{'r' * len(titles)}}}", "\\toprule", _line("", spans), "".join(rules)]
    lines += [_line("", titles), "\\midrule"]
    first = comparison.rows[0].run.label
    for row, following in itertools.zip_longest(comparison.rows, comparison.rows[1:]):
        lines.append(_line(escape(row.run.label), [_value(row, key) for key in comparison.figures]))
        alike = following is not None and _numbers(following) == _numbers(row)  # runs of other seeds
        if row.differences and not alike:
            cells = [_difference(row.differences.get(key)) for key in comparison.figures]
            lines.append(_line(f"\\quad less {escape(first)}", cells))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def escape(text: str) -> str:
    r"""Text as LaTeX sets it.

    >>> print(escape("50 % of a_b"))
    50 \% of a\_b
    """
    return "".join(SPECIAL.get(letter, letter) for letter in clean(text))


def _line(head: str, cells: list[str]) -> str:
    return " & ".join([head, *cells]).strip() + r" \\"


def _value(row: Row, key: str) -> str:
    figures = row.run.figures
    return _maths(figure_of(key).text(figures[key], figures.get(f"{key}_se"))) if key in figures else ""


def _difference(record: Record | None) -> str:
    if record is None:
        return ""
    signed = figure_of(record.metric).difference_text
    value = signed(record.value)
    if record.low is None or record.high is None:
        return _maths(value)
    interval = f"\\;[{signed(record.low)},\\,{signed(record.high)}]"
    return _maths(f"\\mathbf{{{value}}}" if record.is_decided else value, interval)


def _maths(number: str, behind: str = "") -> str:
    """Numbers with their signs; a comma between thousands takes no space."""
    return f"${number.replace(',', '{,}').replace('±', chr(92) + 'pm')}{behind}$".replace("−", "-")


def _numbers(row: Row) -> list[tuple[str, float, float | None]]:
    return [(key, record.value, record.low) for key, record in row.differences.items()]
