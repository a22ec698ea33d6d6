"""What is fuzzed of a reader, and the folder in which it finds the bytes as a file."""

from __future__ import annotations

import atexit
import io
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalface.core.errors import DataError
from coalface.core.parsing import parse_json

PLACE = Path(tempfile.mkdtemp(prefix="coalface-fuzz-"))
atexit.register(shutil.rmtree, PLACE, ignore_errors=True)


@dataclass(frozen=True)
class Reader:
    """A reader as a function of bytes, which may refuse them by certain errors and in no other way."""

    read: Callable[[bytes], object]
    sound: tuple[bytes, ...]
    """Bytes that it reads, where mutation begins."""
    errors: tuple[type[BaseException], ...] = (DataError,)

    def holds(self, data: bytes) -> bool:
        """Read bytes; whether they were not refused. Whatever else it raises is a defect of the reader."""
        try:
            self.read(data)
        except self.errors as error:
            if type(error) is FileNotFoundError or not isinstance(error, OSError):
                return False
            raise
        return True


def put(name: str, data: bytes) -> Path:
    """Write a file anew: a map of the one before keeps its bytes."""
    path = PLACE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def anew(name: str) -> Path:
    """An empty folder."""
    path = PLACE / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def of_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of a path as one of bytes."""
    return lambda data: read(put(name, data))


def whole_or_within(whole: Callable[[bytes], object], within: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """A reader of whole files; what follows a NUL is put into one whose checksums are right: no mutation finds them."""
    return lambda data: within(data[1:]) if data[:1] == b"\0" else whole(data)


def parts(data: bytes, count: int) -> list[bytes]:
    """`count` pieces, each after its length in two bytes; what is missing is empty."""
    pieces = []
    for _ in range(count):
        length = int.from_bytes(data[:2], "big")
        pieces.append(data[2 : 2 + length])
        data = data[2 + length :]
    return pieces


def joined(*pieces: bytes) -> bytes:
    """What `parts` takes apart."""
    return b"".join(len(piece).to_bytes(2, "big") + piece for piece in pieces)


def archive(members: dict[str, bytes]) -> bytes:
    """A zip of files by name, not packed."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archived:
        for name, content in members.items():
            archived.writestr(name, content)
    return file.getvalue()


def parsed(data: bytes) -> dict[str, Any]:
    """JSON of keys and values to which a digest is added, which mutation would not find."""
    try:
        about = parse_json(data, any_number=True)
    except ValueError as error:
        raise DataError(str(error)) from None
    return about if isinstance(about, dict) else {}
