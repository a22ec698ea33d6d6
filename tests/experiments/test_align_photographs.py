"""`align` of one photograph, in whatever form it comes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from drawn_photographs import KnownFaces, encoded, photograph
from PIL import Image

import coalface
from coalface.core.errors import DataError
from coalface.data.align import align
from coalface.data.detection import Face

PICTURE, FACE = photograph(0, 300)
KNOWN = KnownFaces({(240, 300): [FACE]})
EXPECTED = align(PICTURE, FACE.points)


def saved(picture: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def turned(orientation: int) -> bytes:
    """The photograph as a camera keeps it that was held on its side or upside down, with the tag that says so."""
    transpose = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    sideways = Image.fromarray(PICTURE).transpose(transpose[orientation])
    exif = sideways.getexif()
    exif[0x0112] = orientation
    return saved(sideways, "JPEG", exif=exif, quality=100, subsampling=0)


@pytest.mark.parametrize(
    ("form", "tolerance"),
    [
        (PICTURE, 0),
        (encoded(PICTURE), 0),
        (PICTURE.astype(np.uint16) * 257, 0),
        (encoded(PICTURE.astype(np.uint16) * 257), 0),
        (np.dstack([PICTURE, np.full((240, 300), 9, np.uint8)]), 0),
        (saved(Image.fromarray(PICTURE).convert("RGBA"), "PNG"), 0),
        (saved(Image.fromarray(PICTURE).convert("CMYK"), "JPEG", quality=100, subsampling=0), 2),
        *((turned(orientation), 2) for orientation in (3, 6, 8)),
    ],
    ids="array png array16 png16 array-alpha png-alpha cmyk exif3 exif6 exif8".split(),
)
def test_every_form_of_a_photograph_gives_its_face(form: bytes | np.ndarray, tolerance: float) -> None:
    aligned = coalface.align(form, detector=KNOWN)
    assert aligned.face.shape == (112, 112, 3) and aligned.left_out == ()
    assert np.abs(aligned.face.astype(int) - EXPECTED).mean() <= tolerance
    assert np.array_equal(aligned.points[0], FACE.points)


def test_a_large_face_is_averaged_and_lies_in_the_same_place() -> None:
    rng = np.random.default_rng(0)
    large = np.repeat(np.repeat(PICTURE, 6, axis=0), 6, axis=1)
    noisy = np.clip(large + rng.normal(0, 40, large.shape), 0, 255).astype(np.uint8)
    face = Face((FACE.points + 0.5) * 6 - 0.5)
    detector = KnownFaces({noisy.shape[:2]: [face]})
    cut = coalface.align(noisy, detector=detector).face[4:-4, 4:-4].astype(float)
    errors = [np.abs(cut - EXPECTED[4 + y : 108 + y, 4 + x : 108 + x]).mean() for y, x in ((0, 0), (0, 1), (1, 0))]
    assert errors[0] < min(errors[1:]) and errors[0] < 0.4 * np.abs(align(noisy, face.points)[4:-4, 4:-4] - cut).mean()


def test_grey_stays_grey_and_a_list_gives_a_list(tmp_path: Path) -> None:
    grey = PICTURE[:, :, 1]
    (tmp_path / "grey.pgm").write_bytes(encoded(grey, ".pgm"))
    nobody = np.zeros((9, 9, 3), np.uint8)
    three = coalface.align([tmp_path / "grey.pgm", grey, nobody], detector=KNOWN, size=64)
    assert [aligned.faces.shape for aligned in three] == [(1, 64, 64, 1), (1, 64, 64, 1), (0, 64, 64, 3)]
    assert np.array_equal(three[0].face, three[1].face)
    with pytest.raises(DataError, match="no face"):
        _ = three[2].face


@pytest.mark.parametrize("form", [np.zeros((9, 9, 2), np.uint8), np.zeros((9, 9), np.float32), b"GIF89a", np.zeros(3)])
def test_what_is_no_photograph_is_refused(form: bytes | np.ndarray) -> None:
    with pytest.raises(DataError) as error:
        coalface.align([PICTURE, form], detector=KNOWN)
    assert error.value.where == "photograph 1"


def test_a_detector_may_be_wrong(tmp_path: Path) -> None:
    points = np.full((5, 2), 7.0)
    assert coalface.align(PICTURE, detector=KnownFaces({(240, 300): [Face(points), Face(points * np.nan)]})).left_out
