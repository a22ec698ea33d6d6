"""Trackers beside a run: settings, each round once, figures, and a failure that ends nothing."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tinyruns
from tinyruns import Silent, Stop, tiny

import coalface
from coalface.core import registry
from coalface.core.errors import RecipeError
from coalface.experiments import run as experiment
from coalface.experiments.callbacks.mlflow import MLflow
from coalface.experiments.callbacks.tracker import TRACKERS, Tracker
from coalface.experiments.plan import preflight

Points = dict[str, list[tuple[int, float]]]


class Memory(Tracker):
    """A tracker in memory, which has up to `works_for` rounds."""

    name, module = "memory", "json"

    def __init__(self, works_for: int = 99) -> None:
        super().__init__()
        self.works_for, self.points = works_for, Points()
        self.ended: list[bool] = []

    def open(self, name: str) -> int:
        self.keep_id("one")
        return len(self.points.get("loss", []))

    def log(self, step: int, values: Mapping[str, float], when: float) -> None:
        if step > self.works_for:
            raise ConnectionError("the server is gone\nand has left a traceback")
        for name, value in values.items():
            self.points.setdefault(name, []).append((step, value))

    def conclude(self, step: int, figures: Mapping[str, float]) -> None:
        self.points |= {name: [(step, value)] for name, value in figures.items()}

    def close(self, finished: bool) -> None:
        self.ended.append(finished)


def losses(run: Path) -> list[tuple[int, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [(step, pytest.approx(json.loads(line)["loss"])) for step, line in enumerate(lines, 1)]


def eer(run: Path) -> float:
    return pytest.approx(json.loads((run / "summary.json").read_text())["figures"]["unseen"]["eer"])


def test_a_run_in_python_is_tracked_beside_its_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker, out = Memory(), tmp_path / "a"
    faces = coalface.Synthetic(identities=10, images=4)
    coalface.fit(faces, out=out, parties=2, rounds=2, hold_out=4, size=32, lr=0.02, callbacks=[tracker])
    assert tracker.points["loss"] == losses(out) and tracker.points["evaluated/unseen/eer"] == [(2, eer(out))]
    assert tracker.ended == [True]
    assert "round 2/2" in capsys.readouterr().out


def test_a_tracker_that_fails_is_told_once_and_has_all_rounds_after_a_resume(tmp_path: Path) -> None:
    tracker, view = Memory(works_for=1), Silent()
    run = tmp_path / "run"
    experiment.run(tiny(rounds=4), run, experiment.Callbacks([view, tracker]))
    assert [note for note in view.notes if "memory" in note] == [
        "tiny: memory failed, so the run goes on without it: the server is gone"
    ]
    assert tracker.points["loss"] == losses(run)[:1] and view.finished == [run] and not tracker.ended
    tracker.works_for = 99
    experiment.resume(run, tracker)
    assert tracker.points["loss"] == losses(run) and len(losses(run)) == 4
    assert tracker.points["evaluated/unseen/eer"] == [(4, eer(run))]


def test_a_run_that_is_stopped_or_cannot_begin_is_closed(tmp_path: Path, stop_after: Callable[[int], None]) -> None:
    tracker = Memory()
    stop_after(2)
    with pytest.raises(Stop):
        experiment.run(tiny(rounds=3), tmp_path / "run", tracker)
    assert tracker.ended == [False]
    with experiment.alone(tmp_path / "run"), pytest.raises(RecipeError, match="another process"):
        experiment.resume(tmp_path / "run", tracker)
    assert tracker.ended == [False]


def test_rounds_that_a_resume_repeats_are_sent_once(tmp_path: Path, stop_after: Callable[[int], None]) -> None:
    tracker, view, out = Memory(), Silent(), tmp_path / "run"
    stop_after(3)
    with pytest.raises(Stop):
        experiment.run(tiny(rounds=4, engine={"checkpoint_every": 9}), out, tracker)
    assert [step for step, _ in tracker.points["loss"]] == [1, 2]
    stop_after(0)
    experiment.resume(out, experiment.Callbacks([view, tracker]))
    assert len(view.rounds) == 4 and tracker.points["loss"] == losses(out)


def test_a_pre_training_is_not_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    tracker, out = Memory(), tmp_path / "run"
    experiment.run(tiny(pretrain={"method": "centralized", "rounds": 3}, rounds=1), out, tracker)
    assert tracker.points["loss"] == losses(out) and len(losses(out)) == 1
    assert not list((tmp_path / "cache").rglob("trackers.json"))


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_told_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = registry.load(TRACKERS[name])
    monkeypatch.setitem(sys.modules, tracker.module, None)
    recipe = tiny(engine={"trackers": name})
    for act in (lambda: experiment.run(recipe, tmp_path / "run", Silent()), lambda: preflight.check(recipe)):
        with pytest.raises(RecipeError, match=rf"pip install 'coalface\[{name}\]'") as error:
            act()
        assert error.value.where == "engine.trackers"
    assert not (tmp_path / "run").exists()
    with pytest.raises(ImportError):
        tracker()


@pytest.mark.filterwarnings("ignore")  # of the packages
class TestMLflow:
    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        for package in ("mlflow", "sqlalchemy", "alembic"):
            pytest.importorskip(package)
        uri = f"sqlite:///{tmp_path}/store.db"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        return uri

    def test_a_resume_continues_the_run_with_each_round_once(
        self, store: str, tmp_path: Path, stop_after: Callable[[int], None]
    ) -> None:
        out = tmp_path / "run"
        stop_after(3)
        with pytest.raises(Stop):
            tinyruns.run(out, rounds=4, engine={"trackers": "mlflow"})
        client, run_id, status, points = self.read(out)
        assert status == "KILLED" and [step for step, _ in points["loss"]] == [1, 2]
        stop_after(0)
        for _ in range(2):  # then the finished run
            experiment.resume(out, Silent())
            client, run_id, status, points = self.read(out)
            assert status == "FINISHED" and points["loss"] == losses(out) and len(losses(out)) == 4
            assert points["evaluated/unseen/eer"] == [(4, eer(out))]
        params = client.get_run(run_id).data.params
        assert (params["method"], params["data.partition.parties"]) == ("fedavg", "2")
        experiments = [client.get_experiment_by_name("coalface").experiment_id]
        assert [run.info.run_id for run in client.search_runs(experiments)] == [run_id]

    def test_python_names_experiment_and_store(
        self, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        out = tmp_path / "run"
        experiment.run(tiny(), out, MLflow("faces", store))
        client, run_id, _, _ = self.read(out, store)
        assert client.get_run(run_id).info.experiment_id == client.get_experiment_by_name("faces").experiment_id

    def test_a_store_that_is_gone_ends_no_run(self, store: str, tmp_path: Path) -> None:
        view = Silent()
        tracker = MLflow(uri=f"sqlite:///{tmp_path}/missing/folder/../../\0/store.db")
        experiment.run(tiny(), tmp_path / "run", experiment.Callbacks([view, tracker]))
        assert len([note for note in view.notes if "mlflow failed" in note]) == 1 and view.finished

    @staticmethod
    def read(out: Path, uri: str | None = None) -> tuple[Any, str, str, Points]:
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        run_id = json.loads((out / "trackers.json").read_text())["mlflow"]
        run = client.get_run(run_id)
        points = {
            name: [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]
            for name in run.data.metrics
        }
        return client, run_id, run.info.status, points


@pytest.mark.filterwarnings("ignore")  # of the package
class TestWandB:
    def test_a_resume_leaves_one_offline_run_with_each_round_once(
        self, tmp_path: Path, stop_after: Callable[[int], None]
    ) -> None:
        pytest.importorskip("wandb")
        out = tmp_path / "run"
        stop_after(3)
        with pytest.raises(Stop):
            tinyruns.run(out, rounds=4, engine={"trackers": "wandb"})
        assert [step for step, _ in self.read(out)[2]["loss"]] == [1, 2]
        stop_after(0)
        experiment.resume(out, Silent())
        config, summary, points = self.read(out)
        assert points["loss"] == losses(out) and len(losses(out)) == 4
        assert config["method"] == "fedavg" and config["local"]["lr"] == tiny().local.lr
        assert summary["evaluated/unseen/eer"] == eer(out)

    @staticmethod
    def read(out: Path) -> tuple[dict[str, Any], dict[str, Any], Points]:
        """(config, summary, points) of the one offline run of a folder."""
        import wandb
        from wandb.proto.wandb_internal_pb2 import Record

        wandb.teardown()  # its process writes the file to the end
        (file,) = (out / "wandb").glob("offline-run-*/run-*.wandb")
        config, summary, points = dict[str, Any](), dict[str, Any](), Points()
        for record in map(Record.FromString, log_records(file.read_bytes())):
            config |= {item.key: json.loads(item.value_json) for item in record.config.update}
            summary |= {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.summary.update}
            for item in record.history.item:
                name = item.key or item.nested_key[0]
                points.setdefault(name, []).append((record.history.step.num, json.loads(item.value_json)))
        return config, summary, points


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, of which the first seven bytes are W&B's own.

    Blocks of 32 KiB hold fragments: crc (4 bytes), length (2), kind (1: whole, 2: first, 3: middle, 4: last), content.
    """
    position, record = 7, b""
    while position < len(data):
        if (room := -position % 32768) and room < 7:
            position += room
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        position += 7
        record += data[position : position + length]
        position += length
        if kind in (1, 4):
            yield record
            record = b""
