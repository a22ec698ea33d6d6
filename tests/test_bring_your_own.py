"""The blocks of `docs/bring-your-own.md`, and its plug-ins by name from the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import yaml

from coalface.evaluation import figures
from coalface.evaluation.metrics import pair_figures
from coalface.experiments import run as runner
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.comparison.paired import intervals, left_out
from coalface.experiments.recipe import loader
from coalface.experiments.sweep.run import sweep

PAGE = (Path(__file__).parents[1] / "docs" / "bring-your-own.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MODULE = "\n".join(block for block in BLOCKS if block.startswith("# mine.py"))
FIRST, *SCRIPTS = [block for block in BLOCKS if not block.startswith("# mine.py")]
NAMES = ("stopped", "whole", "installed")
POINTS = """[coalface.backbones]
small = mine:Small
[coalface.partitions]
first-few = mine:FirstFew
[coalface.figures]
gap = mine:Gap
"""
COMMAND = str(Path(sys.executable).with_name("coalface"))
BY_NAME = {
    "model": {"name": "mine:Small"},
    "data": {**tinyruns.TINY["data"], "partition": {"kind": "mine:FirstFew", "few": 3}},
    "evaluation": {**tinyruns.TINY["evaluation"], "figures": ["mine:Gap"]},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: re.findall(r'out="runs/(\w+)"', script)[0])
def test_a_block_runs(folder: Path, script: str) -> None:
    names: dict[str, Any] = {}
    exec(FIRST + script, names)
    summary = names["run"].summary
    assert all(party["rounds"] for party in summary["parties"]) and "unseen" in summary["figures"]


def test_a_figure_has_its_unit_and_its_interval_wherever_it_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(FIRST + next(script for script in SCRIPTS if "mine.Gap" in script), names)
    summary, run = names["run"].summary, names["run"].path
    assert summary["own_figures"]["gap"]["unit"]["name"] == "cosine"
    runs = [run, Path("runs/longer")]
    difference, low, high, _ = intervals(runs)[runs[1], "unseen/gap"]
    first, second = (json.loads((path / "summary.json").read_text())["figures"]["unseen"]["gap"] for path in runs)
    assert difference == pytest.approx(second - first) and low < difference < high
    assert "unseen gap (cosine)" in (run / "report.html").read_text()
    assert "(cosine)" in capsys.readouterr().out


def test_of_a_long_list_the_comparison_says_that_there_is_no_interval(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_figures, "MOST_PAIRS", 39)
    run = tinyruns.run(folder / "run", evaluation={"figures": ["mine:Gap"]})
    assert any("gap has no interval" in reason for reason in left_out([run]))


def test_a_sweep_has_the_figure_with_its_unit_also_where_nothing_is_left_to_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {**tinyruns.TINY, "evaluation": BY_NAME["evaluation"], "rounds": 1}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    arguments = (folder / "recipe.yaml", ["method=fedavg,solo"], folder / "sweep", Callback())
    printout = sweep(*arguments)
    assert "unseen gap (cosine)" in printout and "percent points or the unit that a figure names" in printout
    monkeypatch.setattr(figures, "_DECLARED", {})
    assert sweep(*arguments) == printout


@pytest.mark.slow
@pytest.mark.ci
def test_plugins_by_name_run_over_workers_and_go_on_after_a_stop_to_the_same_bits(folder: Path) -> None:
    tree = {**tinyruns.TINY, **BY_NAME}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(tinyruns.Stop):
        runner.run(loader.parse(loader.merged(tree, {"engine": {"workers": 2}})), folder / "stopped", tinyruns.Stops())
    about = folder / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    short = ["model.name=small", "data.partition.kind=first-few", "evaluation.figures=[gap]", "engine.workers=2"]
    runs = [["run", "recipe.yaml", "--out", "whole"], ["run", "recipe.yaml", *short, "--out", "installed"]]
    for arguments in (["resume", "stopped"], *runs):
        done = subprocess.run([COMMAND, *arguments], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    ends = [json.loads((folder / name / "summary.json").read_text())["figures"] for name in NAMES]
    assert ends[0] == ends[1] == ends[2] and "gap" in ends[0]["unseen"]
    stopped, whole, installed = (tinyruns.model_bytes(folder / name) for name in NAMES)
    assert stopped == whole == installed
