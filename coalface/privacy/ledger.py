"""The ledger: a line for every piece that leaves a party, in a hash chain that the party keeps.

Each line holds the hash of the line before it, so that no line can be changed, dropped or added in the middle without
breaking the chain from there on. Whoever keeps the last hash (the head) can check the whole file.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coalface.core.codec import Entry
from coalface.core.disk import writing
from coalface.core.parsing import parse_json

START = "0" * 64
BEGINS = b'{"line": 0, '
"""What every ledger begins with."""
_CHAIN = b'"chain": "'
_LONGEST = 1 << 20  # bytes; no line is nearly as long
_RESTORE = "Restore the file, or start a new run: a chain that is patched proves nothing."


@dataclass(frozen=True)
class Head:
    """The end of a ledger: how many lines it has, the hash of the last one, and the bytes of them all."""

    lines: int = 0
    chain: str = START
    size: int = 0

    def after(self, lines: list[str]) -> Head:
        """The head once these lines have been appended."""
        size = self.size + sum(len(line.encode()) + 1 for line in lines)
        return Head(self.lines + len(lines), json.loads(lines[-1])["chain"], size) if lines else self


def lines_for(
    entries: Sequence[Entry],
    sums: Sequence[str],
    context: Mapping[str, str | int],
    head: Head,
    protections: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """The ledger lines of one message: its header and every tensor, with name, kind, shape, dtype, bytes and SHA-256.

    `context` says when, by which step, to whom and how protected; `protections` has the tensors, by name, that are
    protected otherwise. The bytes of the lines add up to the bytes sent.
    """
    common = json.dumps(dict(context))[1:-1]
    other = {name: json.dumps({**context, "protection": how})[1:-1] for name, how in protections.items()}
    pieces = zip(entries, sums, strict=True)
    return chained(
        (f'{other.get(entry.name, common)}, {_described(entry)}, "sha256": "{digest}"' for entry, digest in pieces),
        head,
    )


def chained(contents: Iterable[str], head: Head) -> list[str]:
    """Lines that follow a head; each says some members of a JSON object, between its number and its hash."""
    lines, chain = [], head.chain
    for place, members in enumerate(contents):
        body = f'{{"line": {head.lines + place}, {members}, "chain": "'
        chain = hashlib.sha256(f"{chain}{body}".encode()).hexdigest()
        lines.append(f'{body}{chain}"}}')
    return lines


@functools.lru_cache(1 << 12)  # the same tensors leave in every round
def _described(entry: Entry) -> str:
    about = {"name": entry.name, "kind": entry.kind, "shape": entry.shape, "dtype": entry.dtype, "bytes": entry.bytes}
    return json.dumps(about)[1:-1]


def read_head(path: Path, *, at: int | None = None) -> Head:
    """The head of a ledger file, or of its first `at` bytes; a last line that was cut off by a crash does not count.

    Raises ValueError where the last line is not one of a ledger.
    """
    try:
        with open(path, "rb") as file:
            end, span, tail = file.seek(0, os.SEEK_END), 4096, b""
            end = end if at is None else min(end, at)
            while tail.count(b"\n") < 2 and len(tail) < end:  # the last whole line may be a long one
                span *= 2
                start = max(0, end - span)
                file.seek(start)
                tail = file.read(end - start)
    except FileNotFoundError:
        return Head()
    whole, newline, cut = tail.rpartition(b"\n")
    if not newline:
        return Head()
    try:
        last = parse_json(whole.rpartition(b"\n")[2], longest=_LONGEST, any_number=True)
        return Head(last["line"] + 1, last["chain"], end - len(cut))
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: its last line is not a line of a ledger. {_RESTORE}") from None


def ends(path: Path, head: Head, *, at: int | None = None) -> bool:
    """Whether a ledger file, or its first `at` bytes, has this head."""
    try:
        return read_head(path, at=at) == head
    except ValueError:
        return False


def extend(path: Path, lines: list[str], head: Head, *, flush: bool = False) -> Head:
    """Append those of some consecutive lines that are not there yet; returns the new head.

    What lies after `head` in the file is written over. Raises ValueError where the lines do not follow it, since
    others are missing in between or were changed.
    """
    present = head.lines - json.loads(lines[0])["line"] if lines else 0
    if present >= len(lines):
        return head
    if present < 0 or json.loads(lines[present])["chain"] != _chained(head.chain, lines[present].encode()):
        mismatch = f"{-present} lines are missing after it" if present < 0 else "these do not follow from it"
        raise ValueError(
            f"{path} ends after line {head.lines}, and a reply that left the party has the lines "
            f"{head.lines - present + 1} to {head.lines - present + len(lines)}: {mismatch}. {_RESTORE}"
        )
    append(path, lines[present:], head, flush=flush)
    return head.after(lines[present:])


def append(path: Path, lines: list[str], head: Head, *, flush: bool = False) -> None:
    """Append lines that follow the head of the file; what lies after the head is written over."""
    text = "".join(f"{line}\n" for line in lines).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        with writing(path):
            os.pwrite(descriptor, text, head.size)
            os.ftruncate(descriptor, head.size + len(text))
            if flush:
                os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lines(path: Path, head: Head = Head()) -> Iterator[tuple[Head, dict[str, Any]]]:
    """Each line after a head with the head after it, as far as a crash left it.

    That is up to a line that is cut off or no text of a line. Raises ValueError naming the first whole line that breaks
    the chain.
    """
    with open(path, "rb") as file:
        file.seek(head.size)
        for text in file:
            chain = _chained(head.chain, text)
            try:
                entry = parse_json(text, longest=_LONGEST, any_number=True)
                holds = text.endswith(f'"chain": "{chain}"}}\n'.encode()) and entry["line"] == head.lines
            except (ValueError, KeyError, TypeError):
                return
            if not text.endswith(b"\n"):
                return
            if not holds:
                raise ValueError(_breaks(path, head))
            head = Head(head.lines + 1, chain, head.size + len(text))
            yield head, entry


def follow(path: Path, head: Head = Head(), *, most: int | None = None) -> Head:
    """The last head of `lines`, which may raise, or that after `most` lines. It reads no line whose hash is right."""
    with open(path, "rb") as file:
        file.seek(head.size)
        for text in itertools.islice(file, most):
            chain = _chained(head.chain, text)
            begins, ends = f'{{"line": {head.lines}, '.encode(), f'"chain": "{chain}"}}\n'.encode()
            if not (text.startswith(begins) and text.endswith(ends)):
                break
            head = Head(head.lines + 1, chain, head.size + len(text))
        else:
            return head
    last = head
    for last, _ in itertools.islice(lines(path, head), most and most - head.lines):  # noqa: B007 - the last
        pass
    return last


def find(path: Path, head: Head, sums: Sequence[str]) -> Head | None:
    """The head after the lines of a message with these hashes, where they stand after another head; else None."""
    read: list[str] = []
    for after, line in lines(path, head):
        read.append(str(line["sha256"]))
        if read[-len(sums) :] == list(sums):
            return after
    return None


def verify(path: Path) -> Head:
    """Follow the chain from the start to the end. Raises ValueError naming the first line that breaks it."""
    head = follow(path)
    if head.size != path.stat().st_size:
        raise ValueError(_breaks(path, head))
    return head


def is_cut_off(path: Path, head: Head) -> bool:
    """Whether there is text after the last of `lines`: a line that is being written, or was when the power went.

    Raises ValueError where it is a whole line that does not follow, which nobody can have been writing.
    """
    with open(path, "rb") as file:
        file.seek(head.size)
        text = file.readline(_LONGEST)
    if text.endswith(b"\n") and not _follows(head, text) or len(text) == _LONGEST:
        raise ValueError(_breaks(path, head))
    return bool(text)


def _follows(head: Head, text: bytes) -> bool:
    try:
        return bool(parse_json(text, longest=_LONGEST, any_number=True)["chain"] == _chained(head.chain, text))
    except (ValueError, KeyError, TypeError):
        return False


def check_holds(path: Path, head: Head) -> None:
    """Raise ValueError unless the file has the lines up to a head that its party wrote down."""
    if head.lines and not ends(path, head, at=head.size):
        raise ValueError(
            f"{path}, line {head.lines}: it is not the line that the party's last accepted commit ends with, so lines "
            f"were changed, removed or added after they were written. {_RESTORE}"
        )


def _chained(chain: str, line: bytes) -> str:
    """The hash that a line must end with, after one with the hash `chain`."""
    return hashlib.sha256(chain.encode() + line[: line.rfind(_CHAIN) + len(_CHAIN)]).hexdigest()


def _breaks(path: Path, head: Head) -> str:
    return (
        f"{path}, line {head.lines + 1}: the hash chain breaks here: this line or one before it was changed, removed "
        f"or added after it was written. {_RESTORE}"
    )
