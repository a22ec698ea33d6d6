"""What docs/secure-sums.md shows: its round in Python, and its benchmark with smaller numbers."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from pages import blocks

import coalface

ROOT = Path(coalface.__file__).parents[1]


def test_the_round_on_the_page_gives_the_mean_that_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "secure-sums.md").read_text(encoding="utf-8")
    (code,) = [text for language, text in blocks(page) if language == "python"]
    exec(compile(code, "secure-sums.md", "exec"), {})
    assert capsys.readouterr().out.strip() == code.rpartition("#")[2].strip() == "[ 0.5   -0.25   0.125] 46"


@pytest.mark.slow
def test_the_benchmark_of_the_engine_says_what_each_stage_sends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(ROOT / "benchmarks" / "secure_rounds.py")
    monkeypatch.setattr(sys, "argv", [path, "--parties", "3", "--rounds", "1"])
    runpy.run_path(path, run_name="__main__")
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if " ms " in line]
    stages = {words[2]: int(words[6].replace(",", "")) for words in lines}
    assert list(stages) == ["without", "advertise", "share", "mask", "unmask"]
    numbers = 4 * 310_768
    assert numbers < stages["mask"] < numbers + 300 and stages["without"] > numbers and stages["advertise"] == 208


def test_the_benchmark_opens_whole_rounds_and_counts_every_byte(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(ROOT / "benchmarks" / "secure_sums.py")
    for options in (["--parties", "6", "--megabytes", "0.01"], ["--whole", "6"]):
        monkeypatch.setattr(sys, "argv", [path, *options])
        runpy.run_path(path, run_name="__main__")
    printed = capsys.readouterr().out
    shares, vector, opened = 5 * (82 + 64) + 64, 4 * 2501, 6 * 33
    assert f"bytes up: [96, {shares}, {vector}, {opened}] = {96 + shares + vector + opened:,} = " in printed
    assert "6 parties, 1 MB, 1 left: 5 + 5 masks" in printed
