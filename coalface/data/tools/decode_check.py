"""Whether images are whole: each decoded once, with an ear on what the decoder complains of while it does.

libjpeg fills what it cannot make out with grey, or with what it takes for the image, and says so on the standard error
of the process, past everything that Python could hear. So that is turned aside while an image is decoded.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from coalface.core.errors import DataError
from coalface.data.readers.headers import Header
from coalface.data.source import check_image, in_order

T = TypeVar("T")

_BATCH = 64
"""Images that are decoded with one ear on them all; if there is a complaint, they are decoded again one by one."""
_DAMAGE = re.compile(rb"^(?:Corrupt JPEG data(?!: bad ICC)|Premature end of JPEG|Inconsistent progression)[^\n]*", re.M)
_DECODERS = re.compile(
    rb"^(?:Corrupt JPEG|Premature end of JPEG|Inconsistent progression|Invalid SOS|Application transferred too many"
    rb"|Unknown Adobe|Warning: unknown JFIF|libpng (?:warning|error)|TIFF|\[ ?(?:WARN|ERROR|INFO)\b)[^\n]*\n?",
    re.M,
)
"""What libjpeg (its table of messages), libpng and OpenCV say; anything else is somebody else's, and is passed on."""


class Ear:
    """Turns the standard error of the process aside while something is done, and says what decoders wrote there.

    Other threads' writing is turned aside as well for that moment, and written afterwards. Where there is no standard
    error, nothing is heard.
    """

    def __enter__(self) -> Self:
        self._kept = contextlib.ExitStack()
        try:
            self._error = os.dup(2)
        except OSError:
            self._error = -1
        else:
            self._kept.callback(os.close, self._error)
            self._file = self._kept.enter_context(tempfile.TemporaryFile())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._kept.close()

    def hear(self, work: Callable[[], T]) -> tuple[T, list[str]]:
        """What `work` gives, and the complaints about damage that were heard meanwhile, one a line."""
        if self._error < 0:
            return work(), []
        if sys.stderr is not None:
            sys.stderr.flush()
        heard = self._file.fileno()
        os.dup2(heard, 2)
        try:
            done = work()
        finally:
            os.dup2(self._error, 2)
            length = os.lseek(heard, 0, os.SEEK_CUR)
            said = os.pread(heard, length, 0) if length else b""
            if length:
                os.lseek(heard, 0, os.SEEK_SET)
                if others := _DECODERS.sub(b"", said):
                    os.write(self._error, others)
        return done, [line.decode("ascii", "replace") for line in _DAMAGE.findall(said)]


def check_whole(encoded: bytes | memoryview, where: str, ear: Ear) -> Header:
    """The header of an encoded image that is decoded without a complaint; DataError, naming `where`, for others."""
    header, said = ear.hear(lambda: check_image(encoded, where))
    if said:
        raise DataError(
            f"it is damaged in the middle (its decoder says: {said[0]}): replace it from the original, or delete it",
            where=where,
        )
    return header


def all_whole(
    read: Callable[[int], tuple[bytes | memoryview, str]], count: int
) -> Iterator[tuple[bytes | memoryview, Header]]:
    """The encoded images 0 to `count` − 1 and their headers in turn; DataError names the first that is not whole.

    `read` gives an image and what an error calls it. Several threads decode; of a batch that the decoder complained
    of, each image is decoded again, to find which it was.
    """

    def one(i: int) -> tuple[bytes | memoryview, Header] | ValueError:
        try:
            encoded, where = read(i)
            return encoded, check_image(encoded, where)
        except ValueError as error:
            return error

    with Ear() as ear:
        for start in range(0, count, _BATCH):
            decoded = in_order(lambda i, start=start: one(start + i), min(_BATCH, count - start))  # type: ignore[misc]
            batch, said = ear.hear(functools.partial(tuple, decoded))
            for i, known in enumerate(batch, start):
                if isinstance(known, ValueError):
                    raise known
                if said:
                    check_whole(known[0], read(i)[1], ear)
                yield known
