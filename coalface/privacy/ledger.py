"""The ledger: a line for every piece that leaves a party, in a hash chain that the party keeps.

Each line holds the hash of the line before it, so that no line can be changed, dropped or added in the middle without
breaking the chain from there on. Whoever keeps the last hash (the head) can check the whole file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coalface.wire import Encoded, Entry

START = "0" * 64


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


def lines_for(encoded: Encoded, context: Mapping[str, str | int], head: Head) -> list[str]:
    """The ledger lines of one message: its header and every tensor, with name, kind, shape, dtype, bytes and SHA-256.

    `context` says when, by which step, to whom and how protected. The bytes of the lines add up to the bytes sent.
    """
    lines, chain, common = [], head.chain, json.dumps(dict(context))[1:-1]
    for place, (entry, digest) in enumerate(zip(encoded.entries, encoded.sums, strict=True)):
        body = f'{{"line": {head.lines + place}, {common}, {_described(entry)}, "sha256": "{digest}", "chain": "'
        chain = hashlib.sha256(f"{chain}{body}".encode()).hexdigest()
        lines.append(f'{body}{chain}"}}')
    return lines


@functools.lru_cache(1 << 12)  # the same tensors leave in every round
def _described(entry: Entry) -> str:
    about = {"name": entry.name, "kind": entry.kind, "shape": entry.shape, "dtype": entry.dtype, "bytes": entry.bytes}
    return json.dumps(about)[1:-1]


def read_head(path: Path) -> Head:
    """The head of a ledger file; a last line that was cut off by a crash does not count."""
    try:
        with open(path, "rb") as file:
            end, span, tail = file.seek(0, os.SEEK_END), 4096, b""
            while tail.count(b"\n") < 2 and len(tail) < end:  # the last whole line may be a long one
                span *= 2
                file.seek(max(0, end - span))
                tail = file.read()
    except FileNotFoundError:
        return Head()
    whole, newline, cut = tail.rpartition(b"\n")
    if not newline:
        return Head()
    last = json.loads(whole.rpartition(b"\n")[2])
    return Head(last["line"] + 1, last["chain"], end - len(cut))


def extend(path: Path, lines: list[str], *, flush: bool = False) -> None:
    """Append those of some consecutive lines that are not there yet, and take away a line that a crash cut off."""
    head = read_head(path)
    there = head.lines - json.loads(lines[0])["line"]
    if there < len(lines):
        append(path, lines[max(0, there) :], head, flush=flush)


def append(path: Path, lines: list[str], head: Head, *, flush: bool = False) -> None:
    """Append lines that follow the head of the file; what lies after the head is written over."""
    text = "".join(f"{line}\n" for line in lines).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, text, head.size)
        os.ftruncate(descriptor, head.size + len(text))
        if flush:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(path: Path) -> Head:
    """Follow the chain from the start. Raises ValueError naming the first line that breaks it."""
    chain, number = START, -1
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file):
            body, _, rest = text.rpartition('"chain": "')
            expected = hashlib.sha256(f'{chain}{body}"chain": "'.encode()).hexdigest()
            if rest != f'{expected}"}}\n' or json.loads(text)["line"] != number:
                raise ValueError(
                    f"{path}, line {number + 1}: the hash chain breaks here: this line or one before it was changed, "
                    "removed or added after it was written."
                )
            chain = expected
    return Head(number + 1, chain, path.stat().st_size)
