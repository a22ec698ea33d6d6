"""A partition written down: a text file with a line `identity, party` or `image, party` for each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.core.names import check_party
from coalface.data.faceset import FaceSet

HELD_OUT = "-"
"""In place of a party: nobody trains on this identity."""


@dataclass(frozen=True)
class PartitionFile:
    """Who holds which identities and images; an image's own line goes before that of its identity."""

    path: Path
    parties: dict[str, str]
    """Identity, or image as `identity/file name` -> party, or `-`."""
    lines: dict[str, int]
    """Identity or image -> its line, from 1 on."""
    sha256: str
    """That of the file."""

    def check(self, faces: FaceSet) -> None:
        """Raise DataError for a line that names neither an identity nor an image of all faces."""
        unknown = self.parties.keys() - set(faces.names)
        if unknown and faces.files is not None:
            unknown -= {faces.files[row] for row in faces.rows}
        if unknown:
            name = min(unknown, key=self.lines.__getitem__)
            raise DataError(f"{name} is neither an identity nor an image of data.faces", where=self._line(name))

    def hold_out(self, faces: FaceSet) -> tuple[FaceSet, FaceSet]:
        """(those to train on, those held out). Raises DataError where an identity would be both."""
        names, owners = self._owners(faces)
        aside = owners == (names.index(HELD_OUT) if HELD_OUT in names else -1)
        held = np.unique(faces.labels[aside])
        if len(both := np.intersect1d(held, faces.labels[~aside])):
            name = faces.names[both[0]]
            line = next(n for n, party in self.parties.items() if party == HELD_OUT and f"{n}/".startswith(f"{name}/"))
            raise DataError(f"other images of {name} are a party's; hold out all of them", where=self._line(line))
        return faces.only(np.setdiff1d(np.flatnonzero(faces.counts()), held)), faces.only(held)

    def assign(self, faces: FaceSet) -> dict[str, FaceSet]:
        """Party -> its images, by name. Raises DataError for an identity or an image without a line."""
        names, owners = self._owners(faces)
        if len(without := np.flatnonzero(owners < 0)):
            name = faces.names[faces.labels[without[0]]]
            raise DataError(f"no line has {name}; give it a party, or {HELD_OUT} to hold it out", where=self.path)
        parties = {}
        for number, party in enumerate(names):
            view = faces.select(np.flatnonzero(owners == number))
            if len(view):
                parties[party] = view.only(np.flatnonzero(view.counts()))
            elif party != HELD_OUT:
                raise ValueError(f"{party} would have nobody of those who are trained on; remove its lines")
        return parties

    def _owners(self, faces: FaceSet) -> tuple[list[str], NDArray[np.int64]]:
        """(the parties by name, (n,) the number of each image's party, −1 without a line)."""
        names = sorted(set(self.parties.values()))
        numbers = {name: names.index(party) for name, party in self.parties.items()}
        owners = np.array([numbers.get(name, -1) for name in faces.names], dtype=np.int64)[faces.labels]
        if faces.files is not None and numbers.keys() - set(faces.names):
            for image, row in enumerate(faces.rows):
                owners[image] = numbers.get(faces.files[row], owners[image])
        return names, owners

    def _line(self, name: str) -> str:
        return f"{self.path}, line {self.lines[name]}"


def read_partition(path: Path) -> PartitionFile:
    """Read a partition. Raises DataError, with the line, for one that is not `identity or image, party`."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise DataError(f"cannot read the partition: {reason}", where=path) from None
    parties: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, comma, party = (part.strip() for part in line.rpartition(","))
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        if not comma or not name:
            raise DataError("a line is `identity or image, party`", where=where)
        if name in parties:
            raise DataError(f"{name} is in line {lines[name]} already; remove one", where=where)
        try:
            parties[name] = party if party == HELD_OUT else check_party(party)
        except ValueError as error:
            raise DataError(str(error), where=where) from None
        lines[name] = number
    if not set(parties.values()) - {HELD_OUT}:
        raise DataError("no line names a party", where=path)
    return PartitionFile(path, parties, lines, hashlib.sha256(data).hexdigest())
