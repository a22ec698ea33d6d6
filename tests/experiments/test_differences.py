from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from worlds import recipe

from coalface.core.method import Method, Tensors
from coalface.experiments.conformance.differences import ANOTHER_ORDER, first_difference
from coalface.experiments.conformance.tiny_federation import Ran, run


@pytest.fixture
def scaffold(tmp_path: Path) -> tuple[Method, Ran, Ran]:
    """A method, a run of it, and the same run in a folder that may be changed."""
    method, build = recipe("scaffold", rounds=1)
    ran = run(method, tmp_path / "run", build)
    shutil.copytree(ran.folder, tmp_path / "other")
    return method, ran, replace(ran, folder=tmp_path / "other")


def test_a_state_that_differs_is_named_by_class_and_field(scaffold: tuple[Method, Ran, Ran]) -> None:
    method, ran, other = scaffold
    assert first_difference(method, ran, other) == ""
    backbone: Tensors = ran.state.backbone
    in_another_order = replace(other, state=replace(ran.state, backbone=dict(reversed(backbone.items()))))
    assert first_difference(method, ran, in_another_order) == f"State.backbone: {ANOTHER_ORDER}"
    moved = replace(other, state=replace(ran.state, backbone={**backbone, "up.bias": backbone["up.bias"] + 0.5}))
    assert first_difference(method, ran, moved) == "State.backbone, 'up.bias': values differ by up to 0.5"


def test_lines_that_differ_are_named_by_file_and_round(scaffold: tuple[Method, Ran, Ran]) -> None:
    method, ran, other = scaffold
    ledger = other.folder / "ledger" / "silo-1.jsonl"
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join([lines[0], lines[2], lines[1], *lines[3:]]) + "\n")
    assert first_difference(method, ran, other) == f"ledger/silo-1.jsonl, round 1, step train: {ANOTHER_ORDER}"
    metrics = other.folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"asked": 3', '"asked": 2').replace('"asked":3', '"asked":2'))
    assert first_difference(method, ran, other) == "metrics.jsonl, round 1: asked is 3, and 2"
