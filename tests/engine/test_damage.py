"""Whatever becomes of one file of a run's folder: a resume and an evaluation give the same bytes, or name the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import torch
from toys import Moves

from coalface.core.errors import DataError
from coalface.evaluation import finished_model, membership
from coalface.experiments import execution
from coalface.experiments import run as experiment
from coalface.experiments.conformance import tiny_federation
from coalface.experiments.conformance.tiny_federation import Stop, Tiny, raw, stopping
from coalface.experiments.report import runs

pytestmark = pytest.mark.usefixtures("toy_steps")


def flipped(path: Path, part: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(part * (len(data) - 1))] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped at its start": lambda path: flipped(path, 0.0),
    "flipped in it": lambda path: flipped(path, 0.3),
    "flipped in its midst": lambda path: flipped(path, 0.6),
    "flipped at its end": lambda path: flipped(path, 1.0),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3]) and None,
    "emptied": lambda path: path.write_bytes(b"") and None,
    "removed": lambda path: path.unlink(),
}


def damaged(whole: Path, below: Path, damages: Iterable[str] = DAMAGES) -> Iterator[tuple[Path, Path, str]]:
    """A copy of a run for every file and damage: its folder, the file in it, what became of it."""
    for path in sorted(whole.rglob("*")):
        for name in damages:
            if path.is_file() and path.stat().st_size:
                copy = below / "copy"
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(whole, copy)
                DAMAGES[name](copy / path.relative_to(whole))
                yield copy, path.relative_to(whole), name


def names(error: Exception, path: Path) -> bool:
    """Whether an error names a file, or the checkpoint that it is a part of, and says what to do."""
    name = path.parent.name if path.parent.parent.name == "checkpoints" else path.name
    return name in str(error) and any(word in str(error) for word in ("estore", "resume", "remove"))


# --- the engine -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [False, True])
def test_a_resume_of_the_engine(tmp_path: Path, finished: bool) -> None:
    method, build = Moves(rounds=2 if finished else 3), Tiny(parties=1)
    unbroken = tiny_federation.run(method, tmp_path / "unbroken", build).bytes()
    whole = tmp_path / "whole"
    if finished:
        tiny_federation.run(method, whole, build)
    else:
        with pytest.raises(Stop):
            tiny_federation.run(method, whole, build, transport=stopping(2))
    bad = []
    for copy, path, damage in damaged(whole, tmp_path, ["flipped in its midst", "cut", "removed"]):
        try:
            ran = tiny_federation.run(method, copy, build).bytes()
            differ = [key for key in unbroken if ran.get(key) != unbroken[key]]
            if path.suffix == ".commit":  # that of a reply is lost: it is made again, and its ledger lists it twice
                differ = [key for key in differ if "ledger" not in key]
            if differ:
                bad.append((str(path), damage, differ))
        except Exception as error:
            if not names(error, path):
                bad.append((str(path), damage, repr(error)))
    assert not bad


# --- whole runs -------------------------------------------------------------------------------------------------------


def results(run: Path) -> dict[str, Any]:
    """What a run leaves, but for what the clock says."""
    files: dict[str, Any] = tinyruns.model_bytes(run)
    for name in ("config.yaml", "metrics.jsonl", "evidence.json", "trained_on.npz", "judged/unseen.npz"):
        files[name] = (run / name).read_bytes()
    summary = json.loads((run / "summary.json").read_text())
    files["summary"] = {
        key: value for key, value in summary.items() if key not in ("seconds", "ledger", "environment")
    }  # a reply may be listed twice
    return files


def evaluated(run: Path) -> Any:
    """What an evaluation reads of a run: its model, and who it was trained on."""
    backbone, about = finished_model.read_model(run)
    members = membership.read(run)
    known = None if members is None else [members.names.tolist(), members.images.tolist()]
    return raw(backbone.module.state_dict()), about, known


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("finished", [False, True])
def test_a_resume_and_an_evaluation_of_a_run(tmp_path: Path, finished: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tinyruns.run(tmp_path / "copy", name="tiny")  # of the same name, which a page shows
    expected, seen = results(whole), evaluated(whole)
    if not finished:
        shutil.rmtree(whole)
        with monkeypatch.context() as patched:
            patched.setattr(execution, "InProcess", stopping(3))
            with pytest.raises(Stop):
                tinyruns.run(whole, name="tiny")
    whole = whole.rename(tmp_path / "whole")
    bad = []
    for copy, path, damage in damaged(whole, tmp_path):
        if finished:
            try:
                known = evaluated(copy)
                if known != seen and not (damage == "removed" and path.name == membership.FILE):  # nothing says it then
                    bad.append((str(path), damage, "evaluated otherwise"))
            except Exception as error:
                if not names(error, path):
                    bad.append((str(path), damage, repr(error)))
        try:
            experiment.resume(copy, tinyruns.Silent())
            if differ := [key for key, value in results(copy).items() if expected[key] != value]:
                bad.append((str(path), damage, differ))
        except Exception as error:
            if not names(error, path):
                bad.append((str(path), damage, repr(error)))
        torch.set_num_threads(1)
    assert not bad


@pytest.mark.parametrize("line", ['{"stage": [1], "round": 2}', '{"stage": "train", "round": "2"}'])
@pytest.mark.parametrize("place", [0, 1])
def test_a_round_without_its_stage_or_number_is_refused_wherever_it_stands(
    place: int, line: str, tmp_path: Path
) -> None:
    lines = ['{"stage": "train", "round": 1}', '{"stage": "train", "round": 2}']
    (tmp_path / "metrics.jsonl").write_text("".join(f"{text}\n" for text in lines) + '{"stage": "tr')
    assert [record["round"] for record in runs.read_metrics(tmp_path)] == [1, 2]
    lines[place] = line
    (tmp_path / "metrics.jsonl").write_text("".join(f"{text}\n" for text in lines))
    with pytest.raises(DataError) as error:
        runs.read_metrics(tmp_path)
    assert f"metrics.jsonl, line {place + 1}" in str(error.value)


def test_a_resume_leaves_out_a_damaged_line_of_the_events_and_writes_a_damaged_summary_anew(tmp_path: Path) -> None:
    run = tinyruns.run(tmp_path / "run")
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join([lines[0], "{broken\n", *lines[1:]]))
    (run / "summary.json").write_text("{broken")
    view = tinyruns.Silent()
    experiment.resume(run, view)
    assert any("events.jsonl, line 2 is not JSON" in note for note in view.notes)
    assert json.loads((run / "summary.json").read_text())["rounds"] == 2
