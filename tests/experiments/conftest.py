from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tinyruns import Stop

from coalface.engine import server
from coalface.experiments.api.face_model import FaceModel

WriteRun = Callable[..., Path]


def run_folder(
    folder: Path, method: str = "fedavg", parties: int = 4, rounds: int = 6, gain: float = 20.0, **changes: Any
) -> Path:
    """A run folder with plausible numbers; `changes` replace keys of summary.json."""
    rng = np.random.default_rng([rounds, len(method)])
    names = [f"silo-{i:02}" for i in range(parties)]
    folder.mkdir(parents=True)
    config = {
        "name": folder.name,
        "seed": 1,
        "data": {"train": {"min_images": 4}, "image_size": 112},
        "model": {"name": "sphere20"},
        "method": method,
        "rounds": rounds,
        "methods": {method: {"sample": None}},
        "engine": "local",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    records, events = [], []
    for r in range(1, rounds + 1):
        share = 1 - np.exp(-3 * r / rounds)
        accuracy = 60 + gain * share + rng.normal(0, 0.4)
        record = {
            "stage": "train",
            "round": r,
            "asked": parties,
            "arrived": parties - (r == 3),
            "failed": {"silo-02": "sent NaN in backbone"} if r == 3 else {},
            "abandoned": False,
            "bytes_down": 4_200_000 * parties,
            "bytes_up": 4_200_100 * parties,
            "loss": 6.0 - 4 * share + rng.normal(0, 0.05),
            "drift": float(share),
        }
        if r % 2 == 0:
            record["judged"] = {"devtest": {"accuracy": accuracy, "accuracy_se": 1.0, "eer": 100 - accuracy}}
        records.append(record)
        events.append({"event": "round", "stage": "train", "round": r, "seconds": 1.5, "checkpoint_seconds": 0.01})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    edges = np.linspace(-1, 1, 81)
    centre = 0.15 + gain / 80
    genuine = np.histogram(rng.normal(centre, 0.15, 3000).clip(-1, 1), edges)[0].tolist()
    impostor = np.histogram(rng.normal(0.05, 0.1, 3000).clip(-1, 1), edges)[0].tolist()
    far = np.logspace(-4, 0, 60)
    trained = {"accuracy": 60 + gain, "accuracy_se": 1.1, "tar@far=0.01": 10 + 1.5 * gain, "eer": 40 - gain}
    summary: dict[str, Any] = {
        "name": folder.name,
        "method": method,
        "setting": "cross-silo",
        "pooled": False,
        "seed": 1,
        "rounds": rounds,
        "parties": [
            {
                "name": name,
                "role": "trainer",
                "identities": 30 + i,
                "images": 600 + 10 * i,
                "rounds": rounds - (i == 2),
                "failed": int(i == 2),
                "bytes_down": 4_200_000 * rounds,
                "bytes_up": 4_200_100 * rounds,
                "last_loss": 1.5 + i / 10,
                "judged": {"devtest": {"accuracy": 70.0 + i}} if method == "solo" else None,
            }
            for i, name in enumerate(names)
        ],
        "bytes": {"down": 4_200_000 * parties * rounds, "up": 4_200_100 * parties * rounds},
        "seconds": {"total": 75.2, "training": 60.0, "judging": 14.0, "checkpoint": 0.2},
        "figures": {"devtest": trained},
        "untrained": {"devtest": {"accuracy": 60.0, "accuracy_se": 1.4, "tar@far=0.01": 8.0, "eer": 41.0}},
        "curves": {
            "devtest": {
                "roc": {"far": far.tolist(), "tar": (far ** (0.55 - gain / 100)).tolist()},
                "histogram": {"edges": edges.tolist(), "genuine": genuine, "impostor": impostor},
                "auc": 91.25,
                "thresholds": [{"far": 0.01, "attained": 0.0095, "threshold": 0.3125, "tar": 0.4}],
            }
        },
        "numerics": {"threads": 1, "cohorts": "off", "block": 16},
        "ledger": {
            "lines": 48 * rounds,
            "bytes": 4_200_100 * parties * rounds,
            "tensors": [
                {"name": "backbone.conv1.weight", "kind": "parameter", "shape": [64, 3, 3, 3], "dtype": "float32"}
                | {"bytes": 6912, "count": parties * rounds},
                {"name": "backbone.bn1.mean", "kind": "buffer", "shape": [64], "dtype": "float32"}
                | {"bytes": 256, "count": parties * rounds},
                {"name": "images", "kind": "count", "shape": [], "dtype": "int64", "bytes": 8, "count": parties},
            ],
            "head": {name: f"{i:02x}" * 32 for i, name in enumerate(names)},
        },
        "messages": [
            {"step": "train", "direction": "down", "field": "Global.backbone", "kind": "tensors", "bytes": 4_200_000}
            | {"to": "all parties"},
            {"step": "train", "direction": "up", "field": "Update.backbone", "kind": "tensors", "bytes": 4_200_000}
            | {"to": "server"},
            {
                "step": "train",
                "direction": "up",
                "field": "Update.images",
                "kind": "count",
                "bytes": 100,
                "to": "server",
            },
        ],
        "stays": ["Own.head", "Own.cursor", "party.data"],
    }
    (folder / "summary.json").write_text(json.dumps(summary | changes))
    return folder


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """A function (folder name, changes…) → a run folder under the test's own directory."""
    return lambda name="demo-fedavg", **changes: run_folder(tmp_path / name, **changes)


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Stop runs once the line of a round is written, before its checkpoint; 0: never more."""
    write = server.Server._write_line

    def stop(round_number: int) -> None:
        def write_and_stop(self: Any, name: str, record: Any) -> bytes:
            line = write(self, name, record)
            if name == "metrics.jsonl" and record["round"] == round_number:
                raise Stop
            return line

        monkeypatch.setattr(server.Server, "_write_line", write_and_stop)

    return stop


@pytest.fixture(scope="module")
def model(fedavg_run: Path) -> FaceModel:
    """The model of the tiny run, to use a gallery with."""
    return FaceModel.from_run(fedavg_run)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The file of a gallery's key."""
    (tmp_path / "gallery.key").write_bytes(bytes(range(40)))
    return tmp_path / "gallery.key"
