"""Receipts of accepted replies: each reply's SHA-256 and the head of its party's ledger, in a hash chain.

The next request to a party carries the head of this chain, and the party keeps it in its commit. So each side holds
the other's word: a party that cuts or rewrites its ledger is told by the heads here, a server that does so with this
file by the heads that the parties hold. With `privacy.dp` they are told none. No resume cuts the
file: what a repeated round accepts again is listed already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from coalface.core import codec, names
from coalface.engine.party.request import Request
from coalface.privacy import countersign, ledger

FILE = "receipts.jsonl"
_SAID: dict[str, Any] = {"run": str, "party": str, "stage": str, "round": int, "call": int, "step": str, "pieces": int}
_SAID |= {"sha256": str, "lines": int | None, "head": str | None}


class Receipts:
    """The chain of a run's accepted replies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = ledger.Head()
        self._repeated: dict[str, ledger.Head] = {}
        """What is listed since the last checkpoint, and the head after each."""

    def restore(self, checkpoint_head: Mapping[str, Any] | None) -> None:
        """Follow the chain, on which a checkpoint had the head `kept`. Raises ValueError where it does not hold."""
        at = ledger.Head(**checkpoint_head) if checkpoint_head else ledger.Head()
        if self.path.exists():
            self.head = ledger.follow(self.path, most=at.lines)
        if self.head != at:
            raise ValueError(
                f"{self.path} does not hold the {at.lines} lines that it had at the last checkpoint: lines were "
                "changed or removed. Restore the file, or start a new run."
            )
        for head, line in ledger.lines(self.path, at) if self.path.exists() else ():
            self.head = head
            self._repeated[json.dumps({n: v for n, v in line.items() if n not in ("line", "chain")})] = head

    def write(self, accepted: Iterable[Mapping[str, Any]], *, flush: bool = False) -> ledger.Head:
        """Append what `receipt` gave, but for what is listed since the last checkpoint; returns the head after it."""
        texts = [json.dumps(entry) for entry in accepted]
        lines = ledger.chained((entry[1:-1] for entry in texts if entry not in self._repeated), self.head)
        if lines:
            ledger.append(self.path, lines, self.head, flush=flush)
            self.head = self.head.after(lines)
            return self.head
        return max((self._repeated[entry] for entry in texts), key=lambda head: head.lines, default=self.head)


class Countersigns:
    """The signed statements of a run: after each accepted round the server's, and then that of a party."""

    def __init__(self, folder: Path, ask: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """`ask` puts a statement to a party; it gives `key` and `signature`, or says what has `failed`."""
        self._ask, self._signed = ask, countersign.Signed(folder / countersign.FILE)
        self._key = countersign.SigningKey(folder / countersign.SERVER_KEY)
        self._stated = {countersign.text_of(line) for line in self._signed.lines if "of" not in line}
        self._keys = {line["party"]: line["key"] for line in self._signed.lines if "of" in line}
        """Party -> the key that it has signed with."""

    def sign(self, about: Mapping[str, Any], head: ledger.Head, party: str) -> str:
        """Sign that the receipts have this head after a round, and have a party sign it; why it did not, if so.

        What a repeated round has signed already is not signed again; what has been stated and not countersigned when
        a run was killed is.
        """
        statement = {**about, "lines": head.lines, "head": head.chain}
        text, last = countersign.text_of(statement), self._signed.last
        if text not in self._stated:
            self._stated.add(text)
            signature = self._key.sign("server", text)
            last = self._signed.append({**statement, "key": self._key.public, "signature": signature})
        elif last is None or "of" in last or countersign.text_of(last) != text:
            return ""
        said = self._ask(party, last)
        key, signature = (str(said.get(name)) for name in ("key", "signature"))
        if "failed" in said:
            return str(said["failed"])
        if self._keys.get(party, key) != key:
            return "it has signed with another key before"
        if not countersign.is_signed(key, signature, "party", text, last["signature"]):
            return "its signature does not hold"
        self._keys[party] = key
        self._signed.append({"of": last["line"], "party": party, "key": key, "signature": signature})
        return ""


def receipt(request: Request, reply: codec.Encoded, head: tuple[int, str] | None) -> dict[str, Any]:
    """What is listed of an accepted reply; `head` is what its party says of its ledger: its lines, the last hash."""
    about: dict[str, Any] = {"run": request.run, "party": request.party, "stage": request.stage}
    about |= {"round": request.round, "call": request.call, "step": request.step}
    lines, last = head or (None, None)
    return about | {"pieces": len(reply.sums), "sha256": combined(reply.sums), "lines": lines, "head": last}


def check_receipt(path: Path, line: Mapping[str, Any]) -> None:
    """Raise ValueError where a line of the file does not say what `receipt` says."""
    where = f"{path}, line {line['line'] + 1}"
    if wrong := [name for name, kind in _SAID.items() if not isinstance(line.get(name, ()), kind)]:
        raise ValueError(f"{where}: it does not say {wrong[0]!r} as a receipt does")
    try:
        names.check_name(line["party"])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def combined(sums: Iterable[str]) -> str:
    """One SHA-256 for a reply, of those of its pieces, which its ledger lists."""
    return hashlib.sha256("".join(sums).encode()).hexdigest()
