"""What lies beside the images and is not read is told at the start, once, and kept in the summary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tinyruns
from commands import invoked
from tinyruns import Silent, picture_folders

from coalface.core.errors import RecipeError
from coalface.data import stores
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.experiments.report import faults, runs

PEOPLE = [f"p{number:02d}" for number in range(6)]
ASTRAY = "2 images not directly in an identity's folder, as in NAME/photo.jpg: p00/2019/1.png, p00/2019/2.png"
UNREAD = "1 file with other endings than images have (.heic 1): q01/1.heic"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folders of people to train on and of others to evaluate on, each with something that is not read."""
    picture_folders(tmp_path / "data" / "faces", PEOPLE)
    picture_folders(tmp_path / "data" / "other", ["q00", "q01", "q02"], seed=1)
    deeper = tmp_path / "data" / "faces" / "p00" / "2019"
    deeper.mkdir()
    for number in (1, 2):
        shutil.copy(deeper.parent / "p00_0001.png", deeper / f"{number}.png")
    (tmp_path / "data" / "other" / "q01" / "1.heic").write_bytes(b"x")
    return tmp_path


def tree(root: Path, **changes: Any) -> dict[str, Any]:
    lists = {"other": {"kind": "balanced", "pairs": 10, "source": {"kind": "folder", "path": "other"}}}
    data = {"root": str(root / "data"), "faces": {"kind": "folder", "path": "faces"}, "size": 32}
    data["partition"] = {"kind": "equal", "parties": 2}
    made = {"name": "tiny", "rounds": 1, "local": {"batch_size": 8}, "data": data, "evaluation": {"pairs": lists}}
    return loader.merged({**made, "engine": {"threads": 1}}, changes)


def lines(root: Path) -> list[str]:
    return [f"{root / 'data' / 'faces'}: ignored: {ASTRAY}", f"{root / 'data' / 'other'}: ignored: {UNREAD}"]


class Listening(Silent):
    """Remembers what was told before the first round."""

    before: list[str]

    def start(self, *about: Any) -> None:
        self.before = list(self.notes)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_tells_it_once_at_its_start_and_keeps_it(
    root: Path, quick_workers: None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[Path] = []
    walk = stores.passed_over
    monkeypatch.setattr(
        stores, "passed_over", lambda path, *rest, **more: (walked.append(path), walk(path, *rest, **more))[1]
    )
    view = Listening()
    out = experiment.run(loader.parse(tree(root, engine={"threads": 1, "workers": workers})), root / "run", view)
    assert [note for note in view.before if "ignored" in note] == [f"tiny: {line}" for line in lines(root)]
    assert sum("ignored" in note for note in view.notes) == 2
    assert walked == [root / "data" / "faces", root / "data" / "other"]
    assert json.loads((out / "summary.json").read_text())["passed_over"] == lines(root)
    assert set(lines(root)) <= {said.removesuffix(".") for said in faults.at_the_head(runs.read(out))}


def test_parties_own_images_public_people_and_a_pre_training_tell_it_too(root: Path) -> None:
    own = picture_folders(root / "own", ["r00", "r01"], seed=2)
    (own / "loose.png").write_bytes(b"x")
    folders = {"a": own, "b": root / "data" / "other"}
    parts = {name: {"kind": "folder", "path": str(path)} for name, path in folders.items()}
    made = tree(root, method="fedfr-joint", pretrain={"method": "centralized", "rounds": 1})
    own_data = {"scenario": "own", "parties": ["a", "b"], "party_data": parts, "public": made["data"]["faces"]}
    made = loader.merged(made, {"data": own_data})
    made["evaluation"] = {"pairs": {}}
    view = Listening()
    experiment.run(loader.parse(made), root / "run", view, report=False)
    told = [note.removeprefix("tiny: ") for note in view.before if note.startswith("tiny: ") and "ignored" in note]
    loose = f"{own}: ignored: 1 image not directly in an identity's folder, as in NAME/photo.jpg: loose.png"
    assert sorted(told) == sorted([*lines(root), loose])


def test_a_dry_run_tells_it(root: Path) -> None:
    (root / "recipe.yaml").write_text(json.dumps(tree(root)))
    done = invoked("run", root / "recipe.yaml", "--dry-run")
    assert done.exit_code == 0 and all(done.output.count(line) == 1 for line in lines(root)), done.output


def test_a_dry_run_tells_it_before_what_it_led_to(root: Path) -> None:
    (root / "recipe.yaml").write_text(json.dumps(tree(root)))
    done = invoked("run", root / "recipe.yaml", "data.partition.parties=99", "--dry-run")
    assert done.exit_code == 1 and isinstance(done.exception, RecipeError)
    assert done.stderr.splitlines() == [f"note: {line}" for line in lines(root)[:1]]


def test_a_run_that_shows_no_progress_tells_it(root: Path) -> None:
    (root / "recipe.yaml").write_text(json.dumps(tree(root)))
    done = invoked("run", root / "recipe.yaml", "--quiet", "--out", root / "run")
    assert done.exit_code == 0 and done.stdout == f"report: {root / 'run' / 'report.html'}\n"
    assert done.stderr.splitlines() == [f"tiny: {line}" for line in lines(root)]


def test_evaluate_tells_it_beside_its_figures(root: Path, fedavg_run: Path) -> None:
    done = invoked("evaluate", fedavg_run, "--on", root / "data" / "other", "--pairs", 10, "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["pairs"] == 20
    assert done.stderr.splitlines() == [f"note: {lines(root)[1]}"]
    sound = invoked("evaluate", fedavg_run, "--on", tinyruns.picture_folders(root / "s", PEOPLE), "--pairs", 10)
    assert sound.exit_code == 0 and sound.stderr == ""
