"""The ledger: a line for every piece that leaves a party, in a hash chain that the party keeps.

Each line holds the hash of the line before it, so that no line can be changed, dropped or added in the middle without
breaking the chain from there on. Whoever keeps the last hash (the head) can check the whole file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coalface.wire import Encoded

START = "0" * 64


@dataclass(frozen=True)
class Head:
    """The end of a ledger: how many lines it has and the hash of the last one."""

    lines: int = 0
    chain: str = START


def lines_for(encoded: Encoded, context: Mapping[str, str | int], head: Head) -> list[str]:
    """The ledger lines of one message: its header and every tensor, with name, kind, shape, dtype, bytes and SHA-256.

    `context` says when, by which step, to whom and how protected. The bytes of the lines add up to the bytes sent.
    """
    lines, chain, common = [], head.chain, json.dumps(dict(context))[1:-1]
    for place, entry in enumerate(encoded.entries):
        body = (
            f'{{"line": {head.lines + place}, {common}, "name": {json.dumps(entry.name)}, "kind": "{entry.kind}", '
            f'"shape": {json.dumps(entry.shape)}, "dtype": "{entry.dtype}", "bytes": {entry.bytes}, '
            f'"sha256": "{entry.sha256}", "chain": "'
        )
        chain = hashlib.sha256(f"{chain}{body}".encode()).hexdigest()
        lines.append(f'{body}{chain}"}}')
    return lines


def read_head(path: Path) -> Head:
    """The head of a ledger file; a last line that was cut off by a crash does not count."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 8192))
            whole = file.read().rpartition(b"\n")[0]
    except FileNotFoundError:
        return Head()
    if not whole:
        return Head()
    last = json.loads(whole.rpartition(b"\n")[2])
    return Head(last["line"] + 1, last["chain"])


def extend(path: Path, lines: list[str], *, flush: bool = False) -> None:
    """Append those of some consecutive lines that are not there yet, and take away a line that a crash cut off."""
    there = read_head(path).lines - json.loads(lines[0])["line"]
    if there < len(lines):
        append(path, lines[max(0, there) :], flush=flush)


def append(path: Path, lines: list[str], *, flush: bool = False) -> None:
    """Append lines that follow the head of the file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        tail = os.pread(descriptor, 8192, max(0, end - 8192))
        if tail and not tail.endswith(b"\n"):
            end -= len(tail) - (tail.rfind(b"\n") + 1)
            os.ftruncate(descriptor, end)
        os.pwrite(descriptor, ("\n".join(lines) + "\n").encode(), end)
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
    return Head(number + 1, chain)
