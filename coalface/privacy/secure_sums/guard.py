"""What a party has answered, on its disk before the answer leaves it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from coalface.core.disk import flush_folder, writing
from coalface.privacy.secure_sums.context import SecureSumError, SumContext


class Answers:
    """The answers of one party that must not be given twice in different forms; with `path` they outlive a kill.

    Two vectors under the same masks differ by what they hide, and shares for two sets of survivors can give both
    secrets of a party. Without `path` they are kept in memory alone, and without `flush` they do not outlive a power
    cut: for simulations.
    """

    def __init__(self, path: Path | None = None, *, flush: bool = True) -> None:
        self.path, self._flush = path, flush
        self._seen: dict[tuple[str, str], str] = {}
        if path is not None and path.exists():
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):  # nothing was answered before its line was whole on the disk
                os.truncate(path, whole)
            for line in data[:whole].decode().splitlines():
                entry = json.loads(line)
                self._seen[entry["place"], entry["what"]] = entry["sha256"]

    def record(self, context: SumContext, what: str, digest: bytes) -> None:
        """Write down what is about to be answered.

        Raises SecureSumError (`answered`) where another answer was given at this place of the run.
        """
        key = (context.place, what)
        if key not in self._seen:
            entry = {"place": context.place, "what": what, "sha256": digest.hex()}
            if self.path is not None:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with writing(self.path), open(self.path, "a", encoding="utf-8", opener=_own) as file:
                    file.write(json.dumps(entry) + "\n")
                    file.flush()
                    if self._flush:
                        os.fsync(file.fileno())
                if self._flush and not self._seen:
                    flush_folder(self.path.parent)  # without it a power cut may take the new file away
            self._seen[key] = digest.hex()
        elif self._seen[key] != digest.hex():
            raise SecureSumError(
                "answered",
                f"stage {context.stage}, round {context.round}, call {context.call}: this was answered before about "
                "other parties or for another vector, and the two together would tell single replies. Give a new "
                "run a new name",
            )


def _own(path: str, flags: int) -> int:
    """A new file is its owner's alone."""
    return os.open(path, flags, 0o600)
