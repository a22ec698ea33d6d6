"""A comparison as a LaTeX table, and as CSV."""

from __future__ import annotations

import csv
import io
import re

import pytest
from commands import said

from coalface.core.errors import RecipeError
from coalface.experiments.comparison import latex, table

KEY = "devtest/accuracy"


def lines_of(text: str) -> list[list[str]]:
    """The cells of each line of a table."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    return [re.split(r" ?(?<!\\)& ?", line.removesuffix(r" \\")) for line in lines if line.endswith(r"\\")]


def check_letters(text: str) -> None:
    """Braces and dollars come in pairs, and no letter of its own meaning stands bare."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    bare = re.sub(r"\\[&%$#_{}]", "", body)
    assert bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0
    assert not re.search(r"[#_~^%]", bare) and body.isascii()
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0


def test_each_run_has_a_line_and_its_differences_another(write_run):
    runs = [write_run("a_1 & 50 %", method="fedavg"), write_run("b", gain=17.0), write_run("c", gain=19.0)]
    intervals = {(runs[1], KEY): (-4.9, -7.0, -2.5, 3), (runs[2], KEY): (-1, -3, 1, 3)}
    text = latex.latex(table.compare(runs, intervals))
    check_letters(text)
    groups, titles, first, second, less, third, less_too = lines_of(text)
    assert groups == ["", r"\multicolumn{3}{c}{devtest}"] and r"\cmidrule(lr){2-4}" in text
    assert titles == ["", r"accuracy (\%)", r"TAR at FAR 0.01 (\%)", r"EER (\%)"]
    assert first[:2] == [r"a\_1 \& 50 \%", r"$80.0 \pm 1.1$"] and second[0] == "b" and third[0] == "c"
    assert less[0] == less_too[0] == r"\quad less a\_1 \& 50 \%"
    assert less[1] == r"$\mathbf{-4.90}\;[-7.00,\,-2.50]$" and less_too[1] == r"$-1.00\;[-3.00,\,+1.00]$"
    assert less[2] == "$-4.50$"  # without an interval
    assert [text.count(rule) for rule in ("\\toprule", "\\midrule", "\\bottomrule", "{lrrr}")] == [1] * 4


def test_runs_of_several_seeds_have_one_line_of_differences(write_run):
    runs = [write_run(name) for name in ("a", "b-0", "b-1")]
    intervals = {
        (run, key): (-2.0, -3.0, -1.0, 2) for run in runs[1:] for key in (KEY, "devtest/eer", "devtest/tar@far=0.01")
    }
    text = latex.latex(table.compare(runs, intervals))
    assert [cells[0] for cells in lines_of(text)[2:]] == ["a", "b-0", "b-1", r"\quad less a"]


def test_thousands_and_letters_are_written_as_latex_sets_them():
    assert latex.escape("a\\b ~ x^2 {c} #1 $ <|>\n") == (
        r"a\textbackslash{}b \textasciitilde{} x\textasciicircum{}2 \{c\} \#1 \$ \textless{}\textbar{}\textgreater{} "
    )


def test_csv_has_a_line_for_each_run_and_figure(write_run):
    runs = [write_run("=a"), write_run('b, "two"', gain=17.0)]
    text = table.csv(table.compare(runs, {(runs[1], KEY): (-3.0, -4.5, -1.5, 3)}))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["run"], row["pairs"], row["figure"]) for row in rows] == [
        (name, "devtest", figure) for name in ("'=a", 'b, "two"') for figure in ("accuracy", "tar@far=0.01", "eer")
    ]
    assert rows[0] | {"value": "80.0", "se": "1.1", "unit": "percent", "difference": "", "decided": ""} == rows[0]
    assert rows[3] | {"difference": "-3.0", "low": "-4.5", "high": "-1.5", "seeds": "3", "decided": "True"} == rows[3]
    assert rows[4] | {"low": "", "decided": ""} == rows[4] and float(rows[4]["difference"]) == pytest.approx(-4.5)


def test_the_command_prints_one_form(write_run):
    runs = [write_run("a"), write_run("b")]
    compared = table.compare(runs)
    assert said("compare", *runs, "--latex") == latex.latex(compared)
    assert said("compare", *runs, "--csv") == table.csv(compared)
    with pytest.raises(RecipeError, match="--latex"):
        said("compare", *runs, "--csv", "--latex")
