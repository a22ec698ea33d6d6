"""Whether images are whole: each decoded once, and what its decoder complains of meanwhile.

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
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.data.readers.headers import Header
from coalface.data.source import check_image, in_order

T = TypeVar("T")

_BATCH = 64
"""Images that are decoded under one capture; if there is a complaint, they are decoded again one by one."""
_DAMAGE = re.compile(rb"^(?:Corrupt JPEG data(?!: bad ICC)|Premature end of JPEG|Inconsistent progression)[^\n]*", re.M)
_DECODERS = re.compile(
    rb"^(?:Corrupt JPEG|Premature end of JPEG|Inconsistent progression|Invalid SOS|Application transferred too many"
    rb"|Unknown Adobe|Warning: unknown JFIF|libpng (?:warning|error)|TIFF|\[ ?(?:WARN|ERROR|INFO)\b)[^\n]*\n?",
    re.M,
)
"""What libjpeg (its table of messages), libpng and OpenCV say; anything else is somebody else's, and is passed on."""


class StderrCapture:
    """Turns the standard error of the process aside while something is done, and says what decoders wrote there.

    Other threads' writing is turned aside as well for that moment, and written afterwards. Where there is no standard
    error, nothing is captured.
    """

    def __enter__(self) -> Self:
        self._files = contextlib.ExitStack()
        try:
            self._stderr = os.dup(2)
        except OSError:
            self._stderr = -1
        else:
            self._files.callback(os.close, self._stderr)
            self._captured = self._files.enter_context(tempfile.TemporaryFile()).fileno()
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def run(self, work: Callable[[], T]) -> tuple[T, list[str]]:
        """What `work` gives, and the complaints about damage that were written meanwhile, one a line."""
        if self._stderr < 0:
            return work(), []
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(self._captured, 2)
        try:
            result = work()
        finally:
            os.dup2(self._stderr, 2)
            output = os.pread(self._captured, os.lseek(self._captured, 0, os.SEEK_CUR), 0)
            os.lseek(self._captured, 0, os.SEEK_SET)
            if foreign := _DECODERS.sub(b"", output):
                os.write(self._stderr, foreign)
        return result, [line.decode("ascii", "replace") for line in _DAMAGE.findall(output)]


def check_whole(encoded: bytes | memoryview, where: str, capture: StderrCapture) -> tuple[Header, NDArray[np.uint8]]:
    """Header and pixels of an encoded image that is decoded without a complaint; DataError, naming `where`, else."""
    return decoded_whole(lambda: check_image(encoded, where), where, capture)


def decoded_whole(decode: Callable[[], T], where: str, capture: StderrCapture) -> T:
    """What `decode` makes of an image without a complaint of its decoder; DataError, naming `where`, else."""
    image, complaints = capture.run(decode)
    if complaints:
        raise DataError(
            f"it is damaged in the middle (its decoder says: {complaints[0]}): replace it from the original, or delete "
            "it",
            where=where,
        )
    return image


def all_whole(
    read: Callable[[int], tuple[bytes | memoryview, str]], count: int
) -> Iterator[tuple[bytes | memoryview, Header]]:
    """The encoded images 0 to `count` − 1 and their headers in turn; DataError names the first that is not whole.

    `read` gives an image and what an error calls it. Several threads decode; of a batch that the decoder complained
    of, each image is decoded again, to find which it was.
    """

    def attempt(i: int) -> tuple[bytes | memoryview, Header] | ValueError:
        try:
            encoded, where = read(i)
            return encoded, check_image(encoded, where)[0]
        except ValueError as error:
            return error

    with StderrCapture() as capture:
        for start in range(0, count, _BATCH):
            decoded = in_order(lambda i, start=start: attempt(start + i), min(_BATCH, count - start))  # type: ignore[misc]
            batch, complaints = capture.run(functools.partial(tuple, decoded))
            for i, decoded_image in enumerate(batch, start):
                if isinstance(decoded_image, ValueError):
                    raise decoded_image
                if complaints:
                    check_whole(decoded_image[0], read(i)[1], capture)
                yield decoded_image
