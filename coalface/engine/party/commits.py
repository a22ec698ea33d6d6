"""Commits on the disk: one file with the private states, the saved reply and the ledger lines, renamed into place.

Every byte of it is covered by a SHA-256: the header by the one behind it, the saved reply by its ledger lines, the rest
by those that the header holds. What is encrypted is authenticated already.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coalface.core.codec import Hashing
from coalface.core.disk import flush_folder, writing
from coalface.privacy import ledger

if TYPE_CHECKING:  # cryptography, which it needs, comes with Flower alone
    from coalface.engine.party.encryption import Cipher, Vault

REPLY, LINES, DATA = "(reply)", "(ledger)", "(data)"
"""In a commit, beside the private states, which have the names of their classes; `DATA`: what they were made from."""
_MAPPED = 1 << 22  # what is larger than 4 MiB is mapped, so that a step reads only the tensors that it uses
_START = 1 << 14  # bytes that are read to open a commit: small private states are among them
_MARK = 16  # bytes after the header of an encrypted commit, by which it is known to be as it was written
_DIGEST = 32  # bytes of SHA-256 after the header of any other

_REMEDY = "Restore the party's folder, or start a new run: going on without it would silently begin the party anew."


class DamagedCommit(ValueError):
    """A commit that is not as it was written: a power cut can leave a file empty, cut short or full of zeros."""


class LockedCommit(ValueError):
    """A commit that does not open with the party's key, or without one. It is left as it is, and nothing goes on."""


@dataclass
class Commit:
    """One commit as it lies on the disk: a JSON header, then the private states, then the saved reply."""

    path: Path | None = None
    base: str | None = None
    """The commit that its step started from."""
    head: ledger.Head = ledger.Head()
    """The head of the ledger once this commit's lines are in it."""
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(offset, length) of each private state by class name, of the `REPLY`, the `LINES` of the ledger, the `DATA`."""
    shards: tuple[str, ...] = ()
    """Where several processes play the party: the files, beside it, in which those after the first keep their parts."""
    sums: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each part but the `REPLY`; none where it is encrypted."""
    vault: Vault | None = None
    """The party's, where it has one."""
    cipher: Cipher | None = None
    """Opens what the spans say, where they are encrypted."""
    start: bytes = b""
    """The first bytes of the file."""

    @classmethod
    def open(cls, path: Path, vault: Vault | None = None) -> Commit:
        """Read the header; with a `vault`, of a commit that was written with it.

        Raises FileNotFoundError where the commit is gone, DamagedCommit where it is not whole, and LockedCommit where
        it was written with another vault, with one or without, or was changed since; with what to do.
        """
        try:
            with open(path, "rb", buffering=0) as file:
                total = os.fstat(file.fileno()).st_size
                start = file.read(_START)
                length = int.from_bytes(start[:8], "little")
                if not 0 < length <= total - 8:
                    raise ValueError(f"{total} bytes hold no header of {length}")
                start += file.read(max(0, 8 + length + _DIGEST - len(start)))
                text = start[8 : 8 + length]
                head = json.loads(text)
                if unknown := head.keys() - {"base", "ledger", "spans", "shards", "receipts", "sha256", "sealed"}:
                    raise ValueError(f"its header says {min(unknown)!r}")
                sealed = head.get("sealed")
                sums = dict(head["sha256"]) if sealed is None else {}
                mark = start[8 + length :][: _DIGEST if sealed is None else _MARK]
            if sealed is None and mark != hashlib.sha256(text).digest():
                raise ValueError("its header is not the one that was written")
            spans = {name: (8 + length + index(begin), index(size)) for name, (begin, size) in head["spans"].items()}
            if any(begin < 8 + length + len(mark) or size < 0 for begin, size in spans.values()):
                raise ValueError("a part of it lies outside of it")
            if (end := max((begin + size for begin, size in spans.values()), default=8 + length + len(mark))) != total:
                raise ValueError(f"it was written with {end} bytes and has {total}")
            after, shards = ledger.Head(**head["ledger"]), tuple(map(_beside_it, head.get("shards", ())))
            key_id = sealed if sealed is None else str(sealed["key"])
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path}: the private state that the server last accepted is not here. {_REMEDY}"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedCommit(
                f"{path} is damaged ({error}), and with it the private state that the server last accepted. {_REMEDY}"
            ) from None
        if key_id != (None if vault is None else vault.id):
            raise LockedCommit(f"{path}{_why_locked(key_id, vault)}. Nothing of it was changed.")
        cipher = None
        if vault is not None:
            with _unlocking(path):
                cipher = vault.cipher(path.name, text)
                cipher.check(mark)
        return cls(path, head.get("base"), after, spans, shards, sums, vault, cipher, start)

    @staticmethod
    def receipts_in(path: Path) -> tuple[int, str] | None:
        """What a commit's request said of the server's chain, read without the party's key; None if nothing."""
        try:
            with open(path, "rb") as file:
                lines, last = json.loads(file.read(int.from_bytes(file.read(8), "little")))["receipts"]
            return int(lines), str(last)
        except (OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError, RecursionError):
            return None

    @classmethod
    def whole(cls, path: Path, vault: Vault | None = None) -> Commit:
        """As `open`, once the parts of the other processes that it names have been opened as well."""
        commit = cls.open(path, vault)
        for name in commit.shards:
            commit._shard(name)
        return commit

    def part(self, rank: int, size: int) -> Commit:
        """What process `rank` of `size` keeps of it. Raises ValueError where another number of processes wrote it."""
        if self.path is None or (rank == 0 and len(self.shards) + 1 == size):
            return self
        if len(self.shards) + 1 != size:
            raise ValueError(
                f"{self.path}: the private state lies in {len(self.shards) + 1} parts, and the party is played by "
                f"{size} processes: go on with the engine.processes_per_party that the run was begun with"
            )
        return self._shard(self.shards[rank - 1])

    def states(self, *, but: str = "") -> dict[str, bytes | bytearray | memoryview]:
        """The private states by class name, but one."""
        names = [name for name in self.spans if name != but and not name.startswith("(")]
        states = {name: self.read(name, whole=True) for name in names}
        return {name: part for name, part in states.items() if part is not None}

    def lines(self) -> list[str]:
        """The ledger lines of the message that left with it."""
        return bytes(self.read(LINES) or b"").decode().splitlines()

    def check(self) -> None:
        """Read every part, with those of the other processes. Raises DamagedCommit, or LockedCommit, as `read`."""
        for name in self.spans:
            self.read(name, whole=True)
        for name in self.shards:
            self._shard(name).check()

    def _shard(self, name: str) -> Commit:
        """A part that another process wrote, which has no parts of its own."""
        assert self.path is not None
        shard = Commit.open(self.path.with_name(name), self.vault)
        if shard.shards:
            raise DamagedCommit(f"{shard.path}, a part of {self.path.name}, names parts of its own. {_REMEDY}")
        return shard

    def read(self, name: str, *, whole: bool = False) -> bytearray | memoryview | None:
        """The bytes of one private state (by class name), of the reply or of the lines; None if it holds none.

        Raises DamagedCommit where they are not those that were written, and LockedCommit where they are encrypted
        besides. A private state that is mapped is looked through only if it is read `whole`.
        """
        if name not in self.spans or self.path is None:
            return None
        begin, size = self.spans[name]
        near = begin + size <= len(self.start)
        stored = bytearray(self.start[begin : begin + size]) if near else read_span(self.path, begin, size)
        if self.cipher is not None:
            with _unlocking(self.path):
                return self.cipher.open(stored, self.spans[name][0])
        if whole or len(stored) <= _MAPPED or name == REPLY:
            if name == REPLY:
                unchanged = self._is_reply(stored)
            else:
                unchanged = hashlib.sha256(stored).hexdigest() == self.sums.get(name)
            if not unchanged:
                raise DamagedCommit(
                    f"{self.path} is damaged: {name} is not what was written, its SHA-256 is another. {_REMEDY}"
                )
        return stored

    def _is_reply(self, data: bytearray | memoryview) -> bool:
        """Whether it is, piece by piece, what the ledger lists of it."""
        start, view = 0, memoryview(data)
        try:
            for line in map(json.loads, self.lines()):
                end = start + line["bytes"]
                if hashlib.sha256(view[start:end]).hexdigest() != line["sha256"]:
                    return False
                start = end
        except (ValueError, KeyError, TypeError):
            return False
        return start == len(data)


def _beside_it(name: str) -> str:
    """A name of a file in the same folder. Raises ValueError for any other."""
    if Path(name).name != name or name in ("", "..") or "\0" in name:
        raise ValueError(f"{name!r} names no part of it")
    return name


def _why_locked(key_id: str | None, vault: Vault | None) -> str:
    """Why a commit cannot be read that says with which key it was written, after its path."""
    rekey = "end the node and run `coalface party rekey HOME"
    if vault is None:
        return (
            ": the private state is encrypted with the key of the party's node: start the node with key=… in its "
            f"configuration, or to have it in the clear {rekey} --from KEY`"
        )
    if key_id is None:
        return (
            f": the private state is in the clear, and {vault.party}'s node was given a key to encrypt it with: "
            f"{rekey} --to KEY`, or leave key=… out of its configuration"
        )
    return (
        f": the private state is encrypted with another key than that of {vault.party}'s node: start the node with "
        f"the key that it was written with, or {rekey} --from OLD --to NEW`"
    )


@contextmanager
def _unlocking(path: Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise LockedCommit(
            f"{path} was changed after it was written, or is a file of another run, party or place ({error}). {_REMEDY}"
        ) from None


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
    flush: bool,
    over: Path | None = None,
    shards: Iterable[str] = (),
    vault: Vault | None = None,
    receipts: Sequence[int | str] | None = None,
) -> None:
    """Write a commit beside its place and rename it there; `over` is a file whose disk blocks may be used again.

    A `REPLY` is covered by the `LINES` that go with it, which list the SHA-256 of its pieces.
    `shards` names the parts of other processes, which lie there already; `receipts` are lines and last hash of what
    the server said that it has accepted. With a `vault` the commit is encrypted but for its header: names of classes,
    sizes, and these heads.
    """
    spans, offset = {}, _DIGEST if vault is None else _MARK
    for name, part in parts.items():
        size = len(part) if vault is None else vault.taken(len(part))
        spans[name] = (offset, size)
        offset += size
    about: dict[str, Any] = {"base": base, "ledger": vars(after), "spans": spans}
    if shard_names := list(shards):
        about["shards"] = shard_names
    if receipts is not None:
        about["receipts"] = list(receipts)
    if vault is not None:
        about["sealed"] = vault.fresh()
    else:
        summed = [name for name in parts if name != REPLY]
        about["sha256"] = dict(zip(summed, Hashing([memoryview(parts[name]) for name in summed]).result(), strict=True))
    head = json.dumps(about).encode()
    start = [len(head).to_bytes(8, "little"), head]
    fresh = path.with_suffix(".new")
    if over is not None:
        os.rename(over, fresh)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        with writing(path):
            if vault is not None:
                cipher = vault.cipher(path.name, head)
                _write(descriptor, [*start, cipher.mark()])
                for name, part in parts.items():
                    _write(descriptor, cipher.seal(part, 8 + len(head) + spans[name][0]))
            else:
                start.append(hashlib.sha256(head).digest())
                if os.writev(descriptor, [*start, *parts.values()]) != 8 + len(head) + offset:  # 2 GiB at most
                    os.lseek(descriptor, sum(map(len, start)), os.SEEK_SET)
                    _write(descriptor, parts.values())
            os.ftruncate(descriptor, 8 + len(head) + offset)
            if flush:
                os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(fresh, path)
    if flush:
        flush_folder(path.parent)  # without it a power cut may undo the rename


def _write(descriptor: int, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
    for piece in pieces:
        with memoryview(piece) as view:
            written_bytes = 0
            while written_bytes < len(view):
                written_bytes += os.write(descriptor, view[written_bytes:])
