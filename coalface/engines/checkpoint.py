"""Checkpoints of a run at the server: written beside their place, flushed, renamed; the last few are kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalface import wire
from coalface.disk import writing
from coalface.engines.commits import flush_folder


class CheckpointError(RuntimeError):
    """A run folder from which this run cannot go on; the message says why and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands after a round; everything that a resume needs but the parties' own folders."""

    ordinal: int
    """Rounds begun since the start of the run, over all stages."""
    stage: int
    round: int
    """The round of the stage that this is the end of."""
    state: bytes
    """The method's state, as safetensors."""
    record: dict[str, Any]
    """Everything else, as JSON: accepted commits, tallies, the length of the metrics, numerics."""
    posted: dict[str, bytes]
    """Encoded messages of posted work that is still open, by name."""


def save(folder: Path, checkpoint: Checkpoint, *, keep: int) -> None:
    """Write `folder/NNNNNNN/` with `checkpoint.json` and `state.safetensors`, then remove all but the last `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / ".new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    about: dict[str, Any] = {"ordinal": checkpoint.ordinal, "stage": checkpoint.stage, "round": checkpoint.round}
    about |= {"record": checkpoint.record}
    files = {"state": checkpoint.state, **checkpoint.posted}
    about["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    for name, data in files.items():
        _write(fresh / f"{name}.safetensors", data)
    _write(fresh / "checkpoint.json", json.dumps(about, separators=(",", ":")).encode())
    flush_folder(fresh)
    place = folder / f"{checkpoint.ordinal:07d}"
    shutil.rmtree(place, ignore_errors=True)  # only where a resume repeats a round
    os.rename(fresh, place)
    flush_folder(folder)
    for old in _found(folder)[:-keep]:
        shutil.rmtree(old)


def load(folder: Path) -> Checkpoint | None:
    """The last checkpoint of a run, or None where it has none yet. Raises CheckpointError where it is damaged."""
    found = _found(folder)
    if not found:
        return None
    place = found[-1]
    try:
        about = json.loads((place / "checkpoint.json").read_bytes())
        files = {name: (place / f"{name}.safetensors").read_bytes() for name in about["sha256"]}
        if damaged := [n for n, data in files.items() if hashlib.sha256(data).hexdigest() != about["sha256"][n]]:
            raise ValueError(f"{damaged[0]}.safetensors is not what was written")
        state = files.pop("state")
        return Checkpoint(about["ordinal"], about["stage"], about["round"], state, about["record"], files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{place}: the checkpoint cannot be read ({error}). Remove that folder to go on from the one before it."
        ) from error


def unpack_state(data: bytes, cls: type) -> Any:
    """The method's state from a checkpoint. Raises CheckpointError where the method has changed since."""
    try:
        return wire.unpack(bytearray(data), cls)
    except wire.WireError as error:
        raise CheckpointError(
            f"the checkpoint does not hold a {cls.__name__} of this version ({error}). Resume with the version that "
            "wrote it, or start a new run."
        ) from error


def _found(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("[0-9]*") if (p / "checkpoint.json").exists())


def _write(path: Path, data: bytes) -> None:
    with writing(path), open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
