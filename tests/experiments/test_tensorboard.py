"""TensorBoard's events, read back by its own reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinyruns
from tinyruns import Silent, Stop

from coalface.experiments import run as experiment
from coalface.experiments.callbacks import tensorboard
from coalface.experiments.recipe import loader

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

WANTED = {"engine": {"trackers": "tensorboard"}}


def read(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value) of each event, as TensorBoard finds them in a run's folder."""
    events = EventAccumulator(str(run / tensorboard.FOLDER)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def steps(values: Callable[[dict[str, Any]], float], run: Path) -> list[tuple[int, Any]]:
    return [(place, pytest.approx(values(record))) for place, record in enumerate(metrics(run), 1)]


def test_what_the_metrics_hold_is_there_round_by_round(tmp_path: Path) -> None:
    run = tinyruns.run(tmp_path / "run", **loader.merged(WANTED, {"evaluation": {"every": 1}}))
    events = read(run)
    assert events["loss"] == steps(lambda r: r["loss"], run)
    assert events["loss/silo-01"] == steps(lambda r: r["losses"]["silo-01"], run)
    assert events["bytes/up"] == steps(lambda r: r["bytes_up"], run)
    assert events["bytes/down"] == steps(lambda r: r["bytes_down"], run)
    assert events["parties/arrived"] == [(1, 2.0), (2, 2.0)] and events["parties/failed"] == [(1, 0.0), (2, 0.0)]
    assert events["evaluated/unseen/eer"] == steps(lambda r: r["judged"]["unseen"]["eer"], run)
    assert [step for step, seconds in events["seconds/round"] if seconds > 0] == [1, 2]
    about = EventAccumulator(str(run / tensorboard.FOLDER)).Reload().SummaryMetadata("evaluated/unseen/eer")
    assert (about.display_name, about.summary_description) == ("unseen EER", "in percent; lower is better")
    plain = tinyruns.run(tmp_path / "plain", evaluation={"every": 1})
    assert (plain / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    assert not (plain / tensorboard.FOLDER).exists()


def test_a_resume_leaves_each_round_once_and_the_last_figures(
    tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    out = tmp_path / "run"
    stop_after(3)
    with pytest.raises(Stop):
        tinyruns.run(out, rounds=4, **WANTED)
    stop_after(0)
    before = read(out)
    assert [step for step, _ in before["loss"]] == [1, 2]
    view = Silent()
    experiment.resume(out, view)
    events = read(out)
    assert events["loss"] == steps(lambda r: r["loss"], out) and len(events["loss"]) == 4
    assert events["seconds/round"][:2] == before["seconds/round"] and len(events["seconds/round"]) == 4
    figures = json.loads((out / "summary.json").read_text())["figures"]["unseen"]
    assert events["evaluated/unseen/eer"] == [(4, pytest.approx(figures["eer"]))]
    assert view.started and view.rounds and view.finished == [out]
    assert len(list((out / tensorboard.FOLDER).iterdir())) == 1
    experiment.resume(out, Silent())  # a finished run is evaluated again
    assert read(out) == events
