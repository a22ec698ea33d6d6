"""What a party has answered, on its disk before the answer leaves it."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import nullcontext
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
        self._file, self._read = 0, 0
        """Which file was read, and how many bytes of it."""

    def record(self, place: str, what: str, digest: bytes) -> None:
        """Write down what is about to be answered.

        Raises SecureSumError (`answered`) where another answer was given at this place.
        """
        if self.path is not None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with nullcontext() if self.path is None else open(self.path, "a+b", opener=_own) as file:
            if file is not None:
                fcntl.flock(file, fcntl.LOCK_EX)  # till the file is closed
                self._read_on(file)
            key, answer = (place, what), digest.hex()
            if key not in self._seen:
                if file is not None:
                    self._write(file, {"place": place, "what": what, "sha256": answer})
                self._seen[key] = answer
            elif self._seen[key] != answer:
                raise SecureSumError(
                    "answered",
                    f"{place}: this was answered before about other parties or for another vector, and the two "
                    "together would tell single replies. Give a new run a new name and a new seed",
                )

    def _read_on(self, file: IO[bytes]) -> None:
        """Read what the file has more than when it was last read; all of another file that lies in its place."""
        about = os.fstat(file.fileno())
        if about.st_ino != self._file or about.st_size < self._read:
            self._seen, self._file, self._read = {}, about.st_ino, 0
        file.seek(self._read)
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # nothing was answered before its line was whole on the disk
            file.truncate(self._read + whole)
        try:
            for line in data[:whole].decode().splitlines():
                entry = json.loads(line)
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


def _own(path: str, flags: int) -> int:
    """A new file is its owner's alone."""
    return os.open(path, flags, 0o600)
