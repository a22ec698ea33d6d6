"""Methods, partitions and readers of other packages, by `package.module:Name`, over worker processes and a resume."""

from __future__ import annotations

import hashlib
import json
import linecache
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tinyruns
import torch
from numpy.typing import NDArray
from tinyruns import Silent

import coalface
from coalface.core.errors import PluginError, RecipeError
from coalface.experiments import run as runner
from coalface.experiments.comparison import table
from coalface.experiments.provenance import plugins
from coalface.experiments.recipe import loader
from coalface.experiments.report.runs import keep_digests
from coalface.models.folder import ABOUT

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-method.md"
METHOD = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
SCRIPT = f"""{METHOD}

import sys
import coalface as cf

data = cf.Silos(size=32, faces=cf.Synthetic(identities=8, images=4), partition=cf.Equal(parties=2))
cf.Experiment(method=Damped(rounds=1), data=data, engine=cf.Engine(workers=int(sys.argv[2]))).run(sys.argv[1])
"""
PARTITION = '''
from __future__ import annotations
from coalface.experiments.recipe.partitions import Partition

class Halves(Partition):
    """The first identities at one party, the others at another."""

    first: int = 3

    def assign(self, faces, rng, domains):
        return {"a": faces.only(range(self.first)), "b": faces.only(range(self.first, len(faces.names)))}
'''


class Drawn(coalface.Reader):
    def open(self, *, size: int, grey: bool) -> coalface.Images:
        return coalface.Images([], [])


class Gap(coalface.PairFigure):
    figure = coalface.Figure("gap")

    def compute(self, scores: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
        return 0.0


@pytest.fixture
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "halves_plugin.py").write_text(PARTITION)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "halves_plugin", raising=False)  # of another test, with a folder of its own
    return "halves_plugin:Halves"


@pytest.mark.slow
@pytest.mark.ci
def test_a_script_without_a_guard_runs_its_own_method_over_workers_to_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for workers in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "script.py", f"run{workers}", workers], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "run1" / "model" / ABOUT).read_bytes() == (tmp_path / "run2" / "model" / ABOUT).read_bytes()
    command = [str(Path(sys.executable).with_name("coalface")), "resume", "run1"]
    resumed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert resumed.returncode == 1 and "__main__:Damped" in resumed.stderr


def test_a_partition_of_a_plugin_takes_its_keys_and_comes_back_from_the_recipe(halves: str) -> None:
    recipe = loader.parse({"data": {"partition": {"kind": halves, "first": 5}}})
    assert recipe.partition is not None and recipe.partition.model_dump() == {"kind": halves, "seed": None, "first": 5}
    assert loader.parse(recipe.resolved()).partition == recipe.partition


@pytest.mark.parametrize(
    ("partition", "where", "kind"),
    [
        ({"frst": 5}, "data.partition.frst", RecipeError),
        ({"first": "x"}, "data.partition.first", RecipeError),
        ({"kind": "halves_plugin:Quarters"}, "data.partition.kind", PluginError),
        ({"kind": "pathlib:Path"}, "data.partition.kind", PluginError),
        ({"kind": "halves"}, "data.partition.kind", RecipeError),
    ],
)
def test_what_a_plugin_refuses_is_said_at_its_key(
    halves: str, partition: dict[str, object], where: str, kind: type[RecipeError]
) -> None:
    with pytest.raises(RecipeError) as error:
        loader.parse({"data": {"partition": {"kind": halves, **partition}}})
    assert (error.value.where, type(error.value)) == (where, kind)


def test_a_setting_of_a_method_with_dots_in_its_name_is_changed_from_the_command_line() -> None:
    name = "coalface.methods.fedprox:FedProx"
    recipe = loader.load(None, [f"method={name}", f"methods.{name}.mu=0.25"])
    assert recipe.build_method().mu == 0.25  # type: ignore[attr-defined]


@pytest.mark.usefixtures("quick_workers")
def test_a_run_over_workers_records_where_its_plugins_are_from_and_refuses_to_go_on_with_others(
    halves: str, tmp_path: Path
) -> None:
    partition = {"kind": halves, "first": 1}
    out = tinyruns.run(tmp_path / "run", report=True, data={"partition": partition}, engine={"workers": 2})
    environment = json.loads((out / "summary.json").read_text())["environment"]
    digest = hashlib.sha256((tmp_path / "halves_plugin.py").read_bytes()).hexdigest()
    recorded = {"name": halves, "distribution": None, "version": None, "sha256": digest}
    assert environment["plugins"] == {"data.partition.kind": recorded}
    assert environment["coalface"] == coalface.__version__ and environment["torch"] == torch.__version__
    begins = json.loads((out / "events.jsonl").read_text().splitlines()[0])
    assert begins["command"] == environment["command"]  # which a resume's takes the place of
    assert "halves_plugin" in (out / "report.html").read_text()
    (tmp_path / "halves_plugin.py").write_text(PARTITION + "# changed\n")
    with pytest.raises(RecipeError, match=rf"halves_plugin \({digest[:8]}, now "):
        runner.resume(out, Silent())


def test_what_a_notebook_cell_defines_is_recorded_and_checked_by_the_cells_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = types.ModuleType("notebook")  # without a file, as __main__ is in a notebook
    monkeypatch.setitem(sys.modules, "notebook", notebook)

    def carry_out(cell: str, name: str) -> None:
        monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
        exec(compile(cell, name, "exec"), vars(notebook))

    carry_out(PARTITION, "/tmp/ipykernel_1/1.py")
    out = tinyruns.run(tmp_path / "run", data={"partition": {"kind": "notebook:Halves", "first": 1}})
    plugin = json.loads((out / "summary.json").read_text())["environment"]["plugins"]["data.partition.kind"]
    assert plugin["sha256"] == hashlib.sha256(PARTITION.encode()).hexdigest()
    carry_out(PARTITION, "/tmp/ipykernel_2/1.py")  # the same cell in another kernel
    runner.resume(out, Silent())
    carry_out(PARTITION.replace("= 3", "= 4"), "/tmp/ipykernel_2/2.py")
    with pytest.raises(RecipeError, match=rf"notebook:Halves \({plugin['sha256'][:8]}, now "):
        runner.resume(out, Silent())


@pytest.mark.parametrize(("cause", "install"), [("import no_such", True), ("from json import no_such", False)])
def test_only_a_missing_module_is_one_to_install(
    cause: str, install: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"broken{install}.py").write_text(cause)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError) as error:
        loader.parse({"method": f"broken{install}:Nope"}).build_method()
    assert error.value.where == "method" and ("Install" in error.value.text) == install


def test_every_reader_and_figure_that_a_recipe_names_is_among_its_plugins() -> None:
    reader, figure = f"{__name__}:Drawn", f"{__name__}:Gap"
    two = {"kind": "joined", "parts": {"a": {"kind": reader}, "b": {"kind": reader}}}
    pairs = {"other": {"kind": "balanced", "source": {"kind": reader}}}
    tree = {"data": {"faces": two, "hold_out": 4}, "evaluation": {"pairs": pairs, "figures": [figure]}}
    assert [(key, name) for key, name, _ in plugins(loader.parse(tree))] == [
        ("data.a.kind", reader),
        ("data.b.kind", reader),
        ("evaluation.pairs.other.source.kind", reader),
        ("evaluation.figures.0", figure),
    ]


def test_environments_that_differ_are_told_by_a_comparison(fedavg_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(fedavg_run, other)
    summary = json.loads((other / "summary.json").read_text())
    summary["environment"] |= {"torch": "1.0", "date": "yesterday", "plugins": {"method": {"name": "my.own:Method"}}}
    (other / "summary.json").write_text(json.dumps(summary))
    keep_digests(other)
    (sentence,) = (line for line in table.notes(table.compare([fedavg_run, other])) if "environments" in line)
    assert "torch" in sentence and "my.own:Method" in sentence and "date" not in sentence
