"""Checkpoints of a run at the server: written beside their place, flushed, renamed; the last few are kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coalface.core import codec
from coalface.core.disk import flush_folder, writing
from coalface.core.errors import RunError

_DIGEST = b',"digest":"'
"""In `checkpoint.json`, before the SHA-256 of all that precedes it."""
_KEYS = {"ordinal", "stage", "round", "record", "sha256", "digest"}
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError)


class CheckpointError(RunError):
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
    """By name, the moments of the server optimiser, and the encoded messages of posted work that is still open."""
    passed_over: tuple[str, ...] = field(default=(), compare=False)
    """Why those after it could not be gone on from, the last one first."""


ABANDONED = "abandoned"
"""The file that marks a checkpoint in which the state is that of the one before it: no round was accepted since."""


def save(folder: Path, checkpoint: Checkpoint, *, keep: int, advanced: bool = True) -> None:
    """Write `folder/NNNNNNN/` with `checkpoint.json` and `state.safetensors`, and remove old ones.

    The last `keep` stay that have `advanced` (a round was accepted since the one before), and the last of all: so
    rounds that are abandoned, for what was accepted before, do not push out what one could go back to.
    """
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
    text = json.dumps(about, separators=(",", ":")).encode()[:-1]
    digest = hashlib.sha256(text).hexdigest().encode()
    _write(fresh / "checkpoint.json", text + _DIGEST + digest + b'"}')
    if not advanced:
        _write(fresh / ABANDONED, b"")
    flush_folder(fresh)
    place = folder / f"{checkpoint.ordinal:07d}"
    shutil.rmtree(place, ignore_errors=True)  # only where a resume repeats a round
    os.rename(fresh, place)
    flush_folder(folder)
    folders = _found(folder)
    earlier = [path for path in folders if path <= place]  # what is after it was passed over
    stay = {*_accepted(earlier)[-keep:], place}
    for old in folders:
        if old not in stay:
            shutil.rmtree(old)


def accepted_ends(folder: Path, rounds: Sequence[int]) -> dict[int, Path]:
    """How many rounds, over all stages of so many each, a checkpoint that one can go back to is the end of -> it."""
    ends = {}
    for place in _accepted(_found(folder)):
        with contextlib.suppress(*UNREADABLE):  # to a damaged one nobody can go back
            checkpoint = _read(place, ())
            ends[sum(rounds[: checkpoint.stage]) + checkpoint.round] = place
    return ends


def go_back(folder: Path, place: Path) -> None:
    """Remove the checkpoints after one of `accepted_ends`, the last first, so that it is the last."""
    for later in reversed(_found(folder)):
        if later > place:
            shutil.rmtree(later)
    flush_folder(folder)


def load(folder: Path, fits: Callable[[Mapping[str, Any]], None] | None = None) -> Checkpoint | None:
    """The last checkpoint of a run, or None where it has none yet. Raises CheckpointError where it is damaged.

    With `fits` it is the last one from which a resume can go on: that is as it was written, and with whose record
    `fits` does not raise ValueError, as it does where the run folder is not as it was then.
    """
    passed: list[str] = []
    for place in reversed(_found(folder)):
        try:
            checkpoint = _read(place, tuple(passed))
            if fits is not None:
                fits(checkpoint.record)
            return checkpoint
        except UNREADABLE as error:
            passed.append(f"{place}: this checkpoint cannot be used ({error})")
            if fits is None:
                raise CheckpointError(
                    f"{passed[0]}. A resume goes on from the one before it, if there is one."
                ) from error
    if not passed:
        return None
    raise CheckpointError(f"{passed[0]}, nor one before it. Restore what is named, or start a new run.")


def _read(place: Path, passed_over: tuple[str, ...]) -> Checkpoint:
    about = read_about(place)
    files = {name: (place / f"{name}.safetensors").read_bytes() for name in about["sha256"]}
    if damaged := [n for n, data in files.items() if hashlib.sha256(data).hexdigest() != about["sha256"][n]]:
        raise ValueError(f"{damaged[0]}.safetensors is not what was written")
    state = files.pop("state")
    return Checkpoint(about["ordinal"], about["stage"], about["round"], state, about["record"], files, passed_over)


def read_about(place: Path) -> dict[str, Any]:
    """What a checkpoint says of itself. Raises one of `UNREADABLE` where that is not what was written."""
    text = (place / "checkpoint.json").read_bytes()
    about: dict[str, Any] = json.loads(text)
    body, _, digest = text.rpartition(_DIGEST)
    if set(about) != _KEYS or digest != hashlib.sha256(body).hexdigest().encode() + b'"}':
        raise ValueError("checkpoint.json is not what was written")
    return about


def unpack_state(data: bytes, cls: type) -> Any:
    """The method's state from a checkpoint. Raises CheckpointError where the method has changed since."""
    try:
        return codec.decode(bytearray(data), cls)
    except codec.WireError as error:
        raise CheckpointError(
            f"the checkpoint does not hold a {cls.__name__} of this version ({error}). Resume with the version that "
            "wrote it, or start a new run."
        ) from error


def _accepted(places: list[Path]) -> list[Path]:
    return [place for place in places if not (place / ABANDONED).exists()]


def _found(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*"))


def _write(path: Path, data: bytes) -> None:
    with writing(path), open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
