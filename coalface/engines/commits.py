"""Commits on the disk: one file with the private states, the saved reply and the ledger lines, renamed into place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coalface.privacy import ledger

REPLY, LINES = "(reply)", "(ledger)"  # in a commit, beside the private states, which have the names of their classes
_MAPPED = 1 << 22  # what is larger than 4 MiB is mapped, so that a step reads only the tensors that it uses


_REMEDY = "Restore the party's folder, or start a new run: going on without it would silently begin the party anew."


class DamagedCommit(ValueError):
    """A commit that is not as it was written: a power cut can leave a file empty, cut short or full of zeros."""


@dataclass
class Commit:
    """One commit as it lies on the disk: a JSON header, then the private states, then the saved reply."""

    path: Path | None = None
    base: str | None = None
    """The commit that its step started from."""
    head: ledger.Head = ledger.Head()
    """The head of the ledger once this commit's lines are in it."""
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(offset, length) of each private state by class name, of the `REPLY` and of the `LINES` of the ledger."""
    shards: tuple[str, ...] = ()
    """Where several processes play the party: the files, beside it, in which those after the first keep their parts."""

    @classmethod
    def open(cls, path: Path) -> Commit:
        """Read the header.

        Raises FileNotFoundError where the commit is gone, and DamagedCommit where it is not whole, with what to do.
        """
        try:
            with open(path, "rb") as file:
                there = os.fstat(file.fileno()).st_size
                length = int.from_bytes(file.read(8), "little")
                if not 0 < length <= there - 8:
                    raise ValueError(f"{there} bytes hold no header of {length}")
                head = json.loads(file.read(length))
            spans = {name: (8 + length + start, size) for name, (start, size) in head["spans"].items()}
            if (end := max((start + size for start, size in spans.values()), default=8 + length)) != there:
                raise ValueError(f"it was written with {end} bytes and has {there}")
            return cls(path, head.get("base"), ledger.Head(**head["ledger"]), spans, tuple(head.get("shards", ())))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path}: the private state that the server last accepted is not here. {_REMEDY}"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedCommit(
                f"{path} is damaged ({error}), and with it the private state that the server last accepted. {_REMEDY}"
            ) from None

    @classmethod
    def whole(cls, path: Path) -> Commit:
        """As `open`, once the parts of the other processes that it names have been opened as well."""
        commit = cls.open(path)
        for name in commit.shards:
            cls.open(path.with_name(name))
        return commit

    def part(self, rank: int, size: int) -> Commit:
        """What process `rank` of `size` keeps of it. Raises ValueError where another number of processes wrote it."""
        if self.path is None or (rank == 0 and len(self.shards) + 1 == size):
            return self
        if len(self.shards) + 1 != size:
            raise ValueError(
                f"{self.path}: the private state lies in {len(self.shards) + 1} parts, and the party is played by "
                f"{size} processes: go on with the engine.shards that the run was begun with"
            )
        return Commit.open(self.path.with_name(self.shards[rank - 1]))

    def states(self, *, but: str = "") -> dict[str, bytes | bytearray | memoryview]:
        """The private states by class name, but one."""
        found = {name: self.read(name) for name in self.spans if name not in (REPLY, LINES, but)}
        return {name: part for name, part in found.items() if part is not None}

    def lines(self) -> list[str]:
        """The ledger lines of the message that left with it."""
        return bytes(self.read(LINES) or b"").decode().splitlines()

    def read(self, name: str) -> bytearray | memoryview | None:
        """The bytes of one private state (by class name), of the reply or of the lines; None if it holds none."""
        if name not in self.spans or self.path is None:
            return None
        return read_span(self.path, *self.spans[name])


def read_span(path: Path, start: int, size: int) -> bytearray | memoryview:
    """`size` writable bytes of a file from `start` on; many are mapped, and so in memory only once they are used."""
    if size > _MAPPED:
        return np.memmap(path, dtype=np.uint8, mode="c", offset=start, shape=(size,)).data
    data = bytearray(size)
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        file.readinto(data)
    return data


def write_commit(
    path: Path,
    base: str | None,
    after: ledger.Head,
    parts: Mapping[str, bytes | bytearray | memoryview],
    *,
    over: Path | None,
    flush: bool,
    shards: Iterable[str] = (),
) -> None:
    """Write a commit beside its place and rename it there; `over` is a file whose disk blocks may be used again.

    `shards` names the parts of other processes, which lie there already.
    """
    spans, offset = {}, 0
    for name, part in parts.items():
        spans[name] = (offset, len(part))
        offset += len(part)
    about: dict[str, Any] = {"base": base, "ledger": vars(after), "spans": spans}
    if named := list(shards):
        about["shards"] = named
    head = json.dumps(about).encode()
    fresh = path.with_suffix(".new")
    if over is not None:
        os.rename(over, fresh)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        written = os.writev(descriptor, [len(head).to_bytes(8, "little"), head, *parts.values()])
        if written != 8 + len(head) + offset:  # one call writes at most 2 GiB
            os.lseek(descriptor, 8 + len(head), os.SEEK_SET)
            for part in parts.values():
                with memoryview(part) as rest:
                    done = 0
                    while done < len(rest):
                        done += os.write(descriptor, rest[done:])
        os.ftruncate(descriptor, 8 + len(head) + offset)
        if flush:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(fresh, path)
    if flush:
        flush_folder(path.parent)  # without it a power cut may undo the rename


def flush_folder(path: Path) -> None:
    """Flush a folder to the disk: which files it has, by which names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
