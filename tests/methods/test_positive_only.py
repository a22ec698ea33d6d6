"""Positive losses alone: class embeddings and features fall together."""

from __future__ import annotations

import json
from pathlib import Path

from worlds import LocalWork, recipe, run

LONG = LocalWork(batch=8, lr=0.2)


def test_class_embeddings_come_together_where_nothing_keeps_them_apart(tmp_path: Path) -> None:
    found = {}
    for name in ("positive-only", "fedaws"):
        method, build = recipe(name, rounds=60, local=LONG)
        ran = run(method, tmp_path / name, build, checkpoint=60)
        lines = [json.loads(line) for line in (ran.folder / "metrics.jsonl").read_text().splitlines()]
        found[name] = lines[0]["cosine"], lines[-1]["cosine"]
    first, last = found["positive-only"]
    assert first < last and last > 0.6 > 0.5 > found["fedaws"][1], found
