"""What a party has answered, on its disk before the answer leaves it."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from coalface.core.disk import flush_folder, writing
from coalface.privacy.secure_sums.context import SecureSumError


class Answers:
    """The answers of one party that must not be given twice in different forms; with `path` they outlive a kill.

    Two vectors under the same masks differ by what they hide, and shares for two sets of survivors can give both
    secrets of a party. Without `path` they are kept in memory alone, and without `flush` they do not outlive a power
    cut: for simulations. Several processes may have the same `path`: each reads what the others wrote before it
    answers, and none writes meanwhile.
    """

    def __init__(self, path: Path | None = None, *, flush: bool = True) -> None:
        self.path, self._flush = path, flush
        self._seen: dict[tuple[str, str], str] = {}
        self._rho: dict[tuple[str, str], float] = {}
        """By place and digest, in the order in which they left, what each thing with noise has cost."""
        self._file, self._read = 0, 0
        """Which file was read, and how many bytes of it."""

    def record(self, place: str, what: str, digest: bytes) -> None:
        """Write down what is about to be answered.

        Raises SecureSumError (`answered`) where another answer was given at this place.
        """
        with self._locked() as write:
            key, answer = (place, what), digest.hex()
            if key not in self._seen:
                write({"place": place, "what": what, "sha256": answer})
                self._seen[key] = answer
            elif self._seen[key] != answer:
                raise SecureSumError(
                    "answered",
                    f"{place}: this was answered before about other parties or for another vector, and the two "
                    "together would tell single replies. Give a new run a new name and a new seed",
                )

    def spend(self, place: str, digest: bytes, rho: float, check: Callable[[float], None]) -> float:
        """Write down what is about to leave with noise, and its ρ; the same at a place costs it once.

        Returns the ρ of all that had left with it when it first did. `check` is given that, and raises where it is too
        much.
        """
        with self._locked() as write:
            key = place, digest.hex()
            if key not in self._rho:
                check(sum(self._rho.values()) + rho)
                write({"place": place, "sha256": key[1], "rho": rho if math.isfinite(rho) else None})
                self._rho[key] = rho
            before = itertools.takewhile(lambda other: other != key, self._rho)
            return sum(self._rho[other] for other in before) + self._rho[key]

    def spent(self, *, but: str) -> float:
        """The ρ of all that has left with noise, but at one place."""
        with self._locked():
            return sum(rho for (place, _), rho in self._rho.items() if place != but)

    @contextmanager
    def _locked(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Within, all that was answered is read, no other process answers, and what is yielded writes a line."""
        if self.path is None:
            yield lambda entry: None
            return
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.path, "a+b", opener=_own) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # till the file is closed
            self._read_on(file)
            yield lambda entry: self._write(file, entry)

    def _read_on(self, file: IO[bytes]) -> None:
        """Read what the file has more than when it was last read; all of another file that lies in its place."""
        about = os.fstat(file.fileno())
        if about.st_ino != self._file or about.st_size < self._read:
            self._seen, self._rho, self._file, self._read = {}, {}, about.st_ino, 0
        file.seek(self._read)
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # nothing was answered before its line was whole on the disk
            file.truncate(self._read + whole)
        try:
            for line in data[:whole].decode().splitlines():
                entry = json.loads(line)
                if "rho" in entry:
                    self._rho[entry["place"], entry["sha256"]] = _spent(entry["rho"])
                else:
                    self._seen[entry["place"], entry["what"]] = entry["sha256"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SecureSumError(
                "answered", f"{self.path} is damaged, and says what was answered: restore it, or start a new run"
            ) from None
        self._read += whole

    def _write(self, file: IO[bytes], entry: dict[str, Any]) -> None:
        assert self.path is not None
        line = json.dumps(entry).encode() + b"\n"
        with writing(self.path):
            file.write(line)
            file.flush()
            if self._flush:
                os.fsync(file.fileno())
        if self._flush and not self._read:
            flush_folder(self.path.parent)  # without it a power cut may take the new file away
        self._read += len(line)


def _spent(rho: float | None) -> float:
    """ρ of a line; JSON has no infinity. Raises ValueError or TypeError for what is none."""
    if rho is None:
        return math.inf
    if not rho > 0:
        raise ValueError(f"{rho} is no ρ")
    return float(rho)


def _own(path: str, flags: int) -> int:
    """A new file is its owner's alone."""
    return os.open(path, flags, 0o600)
