from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import toys

from coalface.core import codec
from coalface.engine import checkpoint
from coalface.engine.checkpoint import Checkpoint, CheckpointError


def made(ordinal: int) -> Checkpoint:
    state = toys.State(values={"a": torch.full((2,), float(ordinal))}, control={})
    packed = bytes(codec.pack(state).data)
    return Checkpoint(ordinal, 1, ordinal - 1, packed, {"accepted": {"silo-0": "x"}}, {"posted-0-common": b"abc"})


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    for ordinal in (9, 10, 11, 100):
        checkpoint.save(tmp_path, made(ordinal), keep=2)
        assert checkpoint.load(tmp_path) == made(ordinal)
    assert names(tmp_path) == ["0000011", "0000100"]
    assert checkpoint.unpack_state(made(3).state, toys.State).values["a"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_a_crash_while_saving_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    checkpoint.save(tmp_path, made(3), keep=1)

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, call, crash)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path, made(4), keep=1)
    assert checkpoint.load(tmp_path) == made(3)
    checkpoint.save(tmp_path, made(4), keep=1)
    assert (checkpoint.load(tmp_path), names(tmp_path)) == (made(4), ["0000004"])


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"ordinal": 4}'])
def test_a_damaged_checkpoint_says_how_to_go_on(tmp_path: Path, damage: str) -> None:
    for ordinal in (3, 4):
        checkpoint.save(tmp_path, made(ordinal), keep=2)
    (tmp_path / "0000004" / "checkpoint.json").write_text(damage)
    with pytest.raises(CheckpointError, match=r"0000004: this checkpoint cannot be used .*from the one before it"):
        checkpoint.load(tmp_path)
    loaded = checkpoint.load(tmp_path, fits=lambda record: None)
    assert loaded == made(3) and "0000004" in loaded.passed_over[0]
    checkpoint.save(tmp_path, made(4), keep=2)
    assert names(tmp_path) == ["0000003", "0000004"] and checkpoint.load(tmp_path) == made(4)


def test_where_the_run_folder_does_not_fit_the_one_before_is_taken(tmp_path: Path) -> None:
    for ordinal in (3, 4):
        checkpoint.save(tmp_path, replace(made(ordinal), record={"metrics": ordinal}), keep=2)

    def fits(most: int, record: Mapping[str, Any]) -> None:
        if record["metrics"] > most:
            raise ValueError("metrics.jsonl is too short")

    loaded = checkpoint.load(tmp_path, partial(fits, 3))
    assert loaded is not None and loaded.ordinal == 3 and "too short" in loaded.passed_over[0]
    with pytest.raises(CheckpointError, match=r"0000004.*metrics.jsonl is too short.*nor one before it. Restore"):
        checkpoint.load(tmp_path, partial(fits, 2))


def test_every_flipped_byte_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, made(3), keep=1)
    for path in sorted((tmp_path / "0000003").iterdir()):
        content = path.read_bytes()
        for place in range(0, len(content), 3):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(CheckpointError, match=path.stem):
                checkpoint.load(tmp_path)
        path.write_bytes(content)


def test_a_state_of_another_version_says_so() -> None:
    with pytest.raises(CheckpointError, match=r"does not hold a Lagging of this version.*or start a new run"):
        checkpoint.unpack_state(made(3).state, toys.Lagging)
