"""Images that a decoder fills in where they are damaged are told from whole ones; nothing raw reaches the terminal."""

from __future__ import annotations

import os

import cv2
import numpy as np
import pytest

from coalface.core.errors import DataError
from coalface.data.source import decode
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.data.tools.decode_check import StderrCapture, all_whole, check_whole

WHOLE = cv2.imencode(".jpg", SyntheticFaces(1, 1, seed=3, size=64, grey=False).generate().pixels[0])[1].tobytes()
MIDDLE = WHOLE.index(b"\xff\xda") + 200


def hurt(*, by: bytes = 20 * b"\xff") -> bytes:
    """A JPEG that begins and ends as it should, with other bytes in its middle."""
    return WHOLE[:MIDDLE] + by + WHOLE[MIDDLE + len(by) :]


def test_a_jpeg_that_is_damaged_in_its_middle_is_named_with_the_decoders_reason(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert decode(hurt(), "x", size=64, grey=False).shape == (64, 64, 3)  # the decoder fills it in
    assert "Corrupt JPEG data" in capfd.readouterr().err
    with StderrCapture() as capture:
        assert check_whole(WHOLE, "place", capture)[0].width == 64
        with pytest.raises(DataError, match=r"place: it is damaged in the middle \(its decoder says: Corrupt"):
            check_whole(hurt(), "place", capture)
        assert check_whole(WHOLE, "place", capture)[0].width == 64  # what was heard is forgotten
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("at", [0, 64, 130])
def test_of_many_images_the_one_that_is_damaged_is_found(at: int, capfd: pytest.CaptureFixture[str]) -> None:
    images = [hurt() if i in (at, at + 1) else WHOLE for i in range(140)]
    whole = []
    with pytest.raises(DataError, match=rf"image {at}: it is damaged in the middle"):
        for data, header in all_whole(lambda i: (images[i], f"image {i}"), len(images)):
            whole.append((data, header.kind))
    assert whole == at * [(WHOLE, "jpeg")] and capfd.readouterr().err == ""


def test_the_first_damage_counts_whichever_way_it_shows() -> None:
    images = [WHOLE, b"no image", hurt(), WHOLE]
    with pytest.raises(DataError, match="image 1: it is damaged or not an image"):
        list(all_whole(lambda i: (images[i], f"image {i}"), 4))
    with pytest.raises(DataError, match="image 1: it is damaged in the middle"):
        list(all_whole(lambda i: (images[[0, 2, 1][i]], f"image {i}"), 3))


def test_what_others_write_meanwhile_is_passed_on_and_what_decoders_say_is_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    message = (
        b"libpng warning: iCCP: known incorrect sRGB profile\na bar\n[ WARN:0@0.1] global x\nCorrupt JPEG data: odd\n"
    )
    with StderrCapture() as capture:
        assert capture.run(lambda: os.write(2, message)) == (len(message), ["Corrupt JPEG data: odd"])
    assert capfd.readouterr().err == "a bar\n"


def test_opencv_keeps_its_own_lines_to_itself(capfd: pytest.CaptureFixture[str]) -> None:
    png = cv2.imencode(".png", np.zeros((40, 40, 3), np.uint8))[1].tobytes()
    claimed = png[:16] + (1 << 21).to_bytes(4, "big") + (1).to_bytes(4, "big") + png[24:]  # beyond OpenCV's own limit
    with pytest.raises(DataError, match="x: it is damaged or not an image"):
        decode(claimed, "x", size=8, grey=True)
    assert "[" not in capfd.readouterr().err
