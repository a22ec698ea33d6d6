"""Headers of encoded images, read without decoding: a file of 140 KB can claim, and fill, 432 MB."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coalface.core.errors import DataError
from coalface.core.text import several

PIXEL_LIMIT = 40_000_000
"""Width × height of the largest image that is decoded: 120 MB in three channels. The largest
photographs of the field's data sets have about half as many."""

Bytes = bytes | memoryview

_HEADER_TEXT = 65_536
"""Bytes in which the header of a PNM, its comments included, must end."""
_MAGICS: dict[str, bytes | tuple[bytes, ...]] = {
    "jpeg": b"\xff\xd8\xff",
    "png": b"\x89PNG\r\n\x1a\n",
    "pnm": (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"),
    "bmp": b"BM",
}

_OTHERS = (
    (rb"GIF8", "a GIF"),
    (rb"II\*\0|MM\0\*", "a TIFF"),
    (rb"(?s)....ftyp(hei|hev|mif|msf)", "a HEIC"),
    (rb"(?s)....ftypavi", "an AVIF"),
)
"""How images of other kinds begin."""


@dataclass(frozen=True)
class Header:
    """What an image says of itself before it is decoded."""

    kind: str
    """`jpeg`, `png`, `pnm`, `bmp` or `webp`."""
    width: int
    height: int
    channels: int
    """1 grey, 2 grey and alpha, 3 colour, 4 colour and alpha (or CMYK). An image with a palette counts as colour."""


def kind_of(encoded: Bytes) -> str | None:
    """The kind of an encoded image, by its first bytes: as `Header.kind`, None for anything else."""
    begin = bytes(encoded[:12])
    for kind, magic in _MAGICS.items():
        if begin.startswith(magic):
            return kind
    return "webp" if begin[:4] == b"RIFF" and begin[8:] == b"WEBP" else None


def read_header(encoded: Bytes, where: str | Path) -> Header:
    """Kind, width, height and channels of an encoded JPEG, PNG, PNM (PBM, PGM, PPM), BMP or WebP.

    Only the header is looked at: that it is whole and its numbers possible, not that an image follows.

    Raises DataError for any other bytes. Sources: ITU-T T.81 (JPEG), W3C PNG 3, the Netpbm manual, Microsoft's
    BITMAPFILEHEADER and its successors, RFC 6386 and RFC 9649 (WebP).
    """
    kind = kind_of(encoded)
    if kind is None:
        if not len(encoded):
            raise DataError("it is empty (0 bytes); replace it from the original, or delete it", where=where)
        if other := next((name for magic, name in _OTHERS if re.match(magic, bytes(encoded[:16]))), None):
            raise DataError(f"it is {other}, which is not read: make a PNG or JPEG of it", where=where)
        raise damaged(encoded, where, "it begins as no JPEG, PNG, PNM, BMP or WebP")
    try:
        width, height, channels = _READERS[kind](encoded)
    except (struct.error, IndexError, ValueError) as error:
        why = f" ({error})" if isinstance(error, ValueError) else ""
        raise damaged(encoded, where, f"its {kind.upper()} header is broken off{why}") from None
    if width < 1 or height < 1:
        raise damaged(encoded, where, f"its {kind.upper()} header claims {width} × {height} pixels")
    return Header(kind, width, height, channels)


def check_header(encoded: Bytes, where: str | Path) -> Header:
    """The header of a whole encoded image that may be decoded.

    Raises DataError as `read_header` does, for a width × height above `PIXEL_LIMIT`, for a PNG whose chunk claims more
    bytes than there are (the decoder would set them aside, up to 2 GB), and for a JPEG without an end (OpenCV 4 would
    fill what is missing with grey).
    """
    header = read_header(encoded, where)
    if (area := header.width * header.height) > PIXEL_LIMIT:
        raise DataError(
            f"it claims {header.width:,} × {header.height:,} = {area:,} pixels in {len(encoded):,} bytes, more than "
            f"the limit of {PIXEL_LIMIT:,}: if it is a photograph, scale it down; if not, delete it",
            where=where,
        )
    if header.kind == "png":
        _check_chunks(encoded, where)
    if header.kind == "jpeg" and bytes(encoded[-2:]) != _END and not _ends(bytes(encoded)):
        raise damaged(encoded, where, "it is cut short, without an end-of-image marker")
    return header


def damaged(encoded: Bytes, where: str | Path, why: str = "") -> DataError:
    """What to raise of bytes that are no whole image."""
    remedy = f"{f'{why}; ' if why else ''}replace it from the original, or delete it"
    return DataError(f"it is damaged or not an image ({several(len(encoded), 'byte')}): {remedy}", where=where)


def _png(encoded: Bytes) -> tuple[int, int, int]:
    length, chunk, width, height, _, colour = struct.unpack_from(">I4sIIBB", encoded, 8)
    if (length, chunk) != (13, b"IHDR"):
        raise ValueError("the first chunk is not IHDR")
    channels = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}.get(colour)
    if channels is None or max(width, height) >= 1 << 31:
        raise ValueError(f"colour type {colour}, {width} × {height}")
    return width, height, channels


def _check_chunks(encoded: Bytes, where: str | Path) -> None:
    """DataError if a chunk of a PNG is longer than what is left of the file."""
    at = 8
    while at + 8 <= len(encoded):
        length, chunk = struct.unpack_from(">I4s", encoded, at)
        if at + 12 + length > len(encoded):
            raise damaged(encoded, where, f"its {chunk!r} chunk at byte {at:,} claims {length:,} bytes")
        if chunk == b"IEND":
            return
        at += 12 + length


_STANDALONE = {0x01, *range(0xD0, 0xD8)}
"""JPEG markers without a length after them: TEM and the restarts."""
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
"""JPEG markers that begin a frame of any coding: SOF0 to SOF15, without DHT, JPG and DAC, which lie among them."""
_END = b"\xff\xd9"
"""JPEG's EOI. Within the coded image a byte FF is followed by 00 or a restart, so it cannot stand there by chance."""


def _segments(encoded: Bytes) -> Iterator[tuple[int, int]]:
    """Each marker of a JPEG up to its first scan, and where the length after it stands."""
    at = 2
    while True:
        if encoded[at] != 0xFF:
            raise ValueError(f"no marker at byte {at:,}")
        while encoded[at] == 0xFF:  # any number of fill bytes
            at += 1
        marker = encoded[at]
        at += 1
        if marker in _STANDALONE:
            continue
        yield marker, at
        (length,) = struct.unpack_from(">H", encoded, at)
        if length < 2:
            raise ValueError(f"a segment of {length} bytes at byte {at:,}")
        at += length


def _ends(encoded: bytes) -> bool:
    """Whether a JPEG's end is anywhere after its first scan begins: the end before may be a thumbnail's."""
    try:
        scan = next(at for marker, at in _segments(encoded) if marker == 0xDA)
    except (struct.error, IndexError, ValueError):
        return False
    return encoded.find(_END, scan) >= 0


def _jpeg(encoded: Bytes) -> tuple[int, int, int]:
    for marker, at in _segments(encoded):
        if marker in (0x00, 0xD8, 0xD9, 0xDA):
            break
        if marker in _FRAMES:
            _, height, width, channels = struct.unpack_from(">BHHB", encoded, at + 2)
            if channels not in (1, 3, 4):
                raise ValueError(f"{channels} channels")
            return width, height, channels
    raise ValueError("no size before the image data")


_SPACE = rb"(?:\s|#[^\n\r]*[\n\r])"
_PNM = re.compile(rb"P([1-6])" + _SPACE + rb"+(\d{1,9})\s" + _SPACE + rb"*(\d{1,9})(?=\s)")
"""Behind a number a comment follows white space: OpenCV takes what is behind `16#` for the next number."""


def _pnm(encoded: Bytes) -> tuple[int, int, int]:
    match = _PNM.match(bytes(encoded[:_HEADER_TEXT]))
    if match is None:
        raise ValueError("no width and height")
    return int(match[2]), int(match[3]), 3 if match[1] in b"36" else 1


def _bmp(encoded: Bytes) -> tuple[int, int, int]:
    (size,) = struct.unpack_from("<I", encoded, 14)
    if size != 12 and size < 36:
        raise ValueError(f"an information header of {size} bytes")
    width, height, _, bits = struct.unpack_from("<HHHH" if size == 12 else "<iiHH", encoded, 18)
    if bits not in (1, 2, 4, 8, 16, 24, 32):
        raise ValueError(f"{bits} bits a pixel")
    return width, abs(height), 4 if bits == 32 else 3  # a negative height: the rows go from top to bottom


def _webp(encoded: Bytes) -> tuple[int, int, int]:
    chunk = bytes(encoded[12:16])
    if chunk == b"VP8 ":
        start, width, height = struct.unpack_from("<3sHH", encoded, 23)
        if start != b"\x9d\x01\x2a":
            raise ValueError("the first frame is not a key frame")
        return width & 0x3FFF, height & 0x3FFF, 3
    if chunk == b"VP8L":
        signature, bits = struct.unpack_from("<BI", encoded, 20)
        if signature != 0x2F:
            raise ValueError("no signature")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 4 if bits >> 28 & 1 else 3
    if chunk == b"VP8X":
        flags, _, *sides = struct.unpack_from("<B3s6B", encoded, 20)
        width, height = (int.from_bytes(sides[i : i + 3], "little") + 1 for i in (0, 3))
        return width, height, 4 if flags & 0x10 else 3
    raise ValueError(f"the first chunk is {chunk!r}")


_READERS: dict[str, Callable[[Bytes], tuple[int, int, int]]] = {
    "jpeg": _jpeg,
    "png": _png,
    "pnm": _pnm,
    "bmp": _bmp,
    "webp": _webp,
}
