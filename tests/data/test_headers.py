import struct
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.core.errors import DataError
from coalface.data.readers import headers
from coalface.data.readers.headers import Header, check_header, read_header
from coalface.data.source import decode


def encoded(height: int, width: int, channels: int, suffix: str, *options: int) -> bytes:
    image = np.random.default_rng(0).integers(256, size=(height, width, channels), dtype=np.uint8)
    _, data = cv2.imencode(suffix, image, list(options))
    return data.tobytes()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_bomb(width: int, height: int) -> bytes:
    """A whole and valid PNG, all black: about 50 KB for 49 million pixels, 147 MB when it is decoded."""
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(b"\0" * (1 + 3 * width)) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


WHOLE = {
    "jpeg": encoded(13, 21, 3, ".jpg"),
    "png": encoded(13, 21, 3, ".png"),
    "pnm": encoded(13, 21, 1, ".pgm"),
    "bmp": encoded(13, 21, 3, ".bmp"),
    "webp": encoded(13, 21, 3, ".webp"),
}


@pytest.mark.parametrize(("height", "width"), [(1, 1), (13, 21), (300, 2), (255, 257)])
@pytest.mark.parametrize(
    ("suffix", "channels", "options", "kind"),
    [
        (".jpg", 3, (), "jpeg"),
        (".jpg", 1, (), "jpeg"),
        (".jpg", 3, (cv2.IMWRITE_JPEG_RST_INTERVAL, 2), "jpeg"),
        (".png", 1, (), "png"),
        (".png", 4, (), "png"),
        (".pgm", 1, (), "pnm"),
        (".ppm", 3, (), "pnm"),
        (".bmp", 3, (), "bmp"),
        (".bmp", 4, (), "bmp"),
        (".webp", 3, (cv2.IMWRITE_WEBP_QUALITY, 80), "webp"),
        (".webp", 4, (cv2.IMWRITE_WEBP_QUALITY, 80), "webp"),
        (".webp", 4, (cv2.IMWRITE_WEBP_QUALITY, 101), "webp"),
    ],
)
def test_the_header_says_what_the_decoder_finds(
    height: int, width: int, suffix: str, channels: int, options: tuple[int, ...], kind: str
) -> None:
    data = encoded(height, width, channels, suffix, *options)
    assert read_header(data, "x") == Header(kind, width, height, channels)
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    assert image.shape[:2] == (height, width)


HANDMADE = {
    "pgm with comments": (b"P5\n# a comment 7 7\n 30 # another\n\t20\n255\n", Header("pnm", 30, 20, 1)),
    "ppm with a comment at once behind its kind": (b"P6#c\n16 20\n255\n", Header("pnm", 16, 20, 3)),
    "plain pbm": (b"P1 3 2\n101010", Header("pnm", 3, 2, 1)),
    "jpeg, fill bytes and an APP0 before a CMYK frame": (
        b"\xff\xd8\xff\xff\xff\xe0\x00\x04ab\xff\xc2\x00\x14\x08\x01\x02\x03\x04\x04" + 12 * b"\0",
        Header("jpeg", 0x0304, 0x0102, 4),
    ),
    "jpeg, huffman tables are no frame": (
        b"\xff\xd8\xff\xc4\x00\x0a\x08\x09\x09\x09\x09\x01\x00\x00\xff\xc0\x00\x0b\x08\x00\x05\x00\x06\x01\x00\x00\x00",
        Header("jpeg", 6, 5, 1),
    ),
    "png with a palette": (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 8, 8, 3, 0, 0, 0)),
        Header("png", 9, 8, 3),
    ),
    "png, grey and alpha": (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 8, 8, 4, 0, 0, 0)),
        Header("png", 9, 8, 2),
    ),
    "bmp of OS/2": (b"BM" + 12 * b"\0" + struct.pack("<IHHHH", 12, 11, 10, 1, 24), Header("bmp", 11, 10, 3)),
    "bmp from top to bottom": (
        b"BM" + 12 * b"\0" + struct.pack("<IiiHH", 40, 11, -10, 1, 32),
        Header("bmp", 11, 10, 4),
    ),
    "webp with a canvas of 24-bit sides": (
        b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0\xff\xff\x01\x0f\0\0",
        Header("webp", 0x20000, 16, 4),
    ),
}


@pytest.mark.parametrize("name", HANDMADE)
def test_headers_written_by_hand(name: str) -> None:
    data, expected = HANDMADE[name]
    assert read_header(data, "x") == expected
    assert read_header(memoryview(data), "x") == expected


BROKEN = {
    "jpeg, the image data before any frame": b"\xff\xd8\xff\xda\x00\x08",
    "jpeg, a segment of one byte": b"\xff\xd8\xff\xe0\x00\x01" + 40 * b"\xff\xc0",
    "jpeg, fill bytes to the end": b"\xff\xd8" + 100 * b"\xff",
    "png, IHDR is not first": b"\x89PNG\r\n\x1a\n" + chunk(b"tEXt", 13 * b"\0") + chunk(b"IHDR", 13 * b"\1"),
    "pgm, a number without end": b"P5 3 " + 5000 * b"9" + b" 255\n",
    "pgm, a comment without end": b"P5 #" + 100_000 * b"#",
    "ppm, a comment at once behind a number": b"P6\n16# 20\n255\n" + 960 * b"\0",
    "bmp, negative columns": b"BM" + 12 * b"\0" + struct.pack("<IiiHH", 40, -5, 10, 1, 32),
    "webp, no key frame": b"RIFF\x16\0\0\0WEBPVP8 \x0a\0\0\0" + 20 * b"\0",
    "webp, a sound": b"RIFF\x16\0\0\0WEBPWAVE\x0a\0\0\0" + 20 * b"\0",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_header_that_cannot_be_is_named_with_a_remedy(name: str) -> None:
    with pytest.raises(DataError, match="it is damaged or not an image") as error:
        read_header(BROKEN[name], "a\n1.jpg")
    assert error.value.where == r"a\n1.jpg"


@pytest.mark.parametrize(
    "begin, reason",
    [
        (b"", "it is empty"),
        (b"GIF89a\x01\0\x01\0", "it is a GIF, which is not read"),
        (b"II*\0\x08\0\0\0", "it is a TIFF"),
        (b"MM\0*\0\0\0\x08", "it is a TIFF"),
        (b"\0\0\0\n ftypheic", "it is damaged or not an image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1", "it is a HEIC"),
        (b"\0\0\0\nftypavif", "it is an AVIF"),
    ],
)
def test_an_empty_image_and_those_of_other_kinds_are_told_apart(begin: bytes, reason: str) -> None:
    for form in (begin, memoryview(begin)):
        with pytest.raises(DataError, match=f"x: {reason}"):
            read_header(form, "x")


def test_a_small_file_that_would_fill_the_memory_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = png_bomb(7_000, 7_000)
    assert len(bomb) < 150_000

    def never(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(cv2, "imdecode", never)
    with pytest.raises(DataError, match=r"bomb\.png: it claims 7,000 × 7,000 = 49,000,000 pixels"):
        decode(bomb, "bomb.png", size=8, grey=True)
    assert headers.PIXEL_LIMIT == 40_000_000
    monkeypatch.setattr(headers, "PIXEL_LIMIT", 49_000_000)
    with pytest.raises(AssertionError, match="decoded"):  # the bytes themselves are a sound image
        decode(bomb, "bomb.png", size=8, grey=True)


def test_a_chunk_that_is_longer_than_the_file_is_refused() -> None:
    whole = WHOLE["png"]
    at = whole.index(b"IDAT")
    broken = whole[: at - 4] + struct.pack(">I", 1 << 30) + whole[at:]
    with pytest.raises(DataError, match=rf"x: it is damaged .* its b'IDAT' chunk at byte {at - 4} claims 1,073"):
        check_header(broken, "x")
    assert check_header(whole, "x") == read_header(broken, "x")


@pytest.mark.parametrize("progressive", [0, 1])
def test_a_jpeg_that_is_cut_short_is_damaged(progressive: int) -> None:
    """OpenCV 4 fills what is missing with grey, and says nothing."""
    whole = encoded(40, 40, 3, ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    thumbnail = WHOLE["jpeg"]
    with_one = whole[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(thumbnail)) + thumbnail + whole[2:]
    filled = whole[:2] + b"\xff" * 3 + whole[2:]
    for sound in (whole, whole + b"\0\0", whole + b"after", with_one, filled):
        assert check_header(sound, "x").width == 40
        for length in (len(sound) * 2 // 3, sound.rindex(b"\xff\xd9") + 1):
            with pytest.raises(DataError, match=r"^x: it is damaged .* cut short"):
                check_header(sound[:length], "x")


@settings(deadline=None)  # a busy machine is no defect
@given(st.sampled_from(sorted(WHOLE)), st.integers(0, 60), st.integers(0, 255), st.just(0) | st.integers(1, 400))
def test_what_decodes_after_damage_has_the_size_that_was_claimed(kind: str, place: int, flip: int, cut: int) -> None:
    broken = bytearray(WHOLE[kind])
    broken[place % len(broken)] ^= flip
    del broken[len(broken) - cut :]
    try:
        header = check_header(bytes(broken), "the file")
    except ValueError as error:
        assert "the file" in str(error)
        return
    if header.width * header.height > 1_000_000:
        return  # decoding it would take long
    image = cv2.imdecode(np.frombuffer(broken, np.uint8), cv2.IMREAD_UNCHANGED)
    assert image is None or image.shape[:2] == (header.height, header.width)
