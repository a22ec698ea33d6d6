"""YuNet on drawn faces in larger pictures; on real photographs where they are, by the landmarks that people set."""

from __future__ import annotations

import functools
import os
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from coalface.core.errors import DataError, RecipeError
from coalface.data import detection
from coalface.data.detection import YuNet
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.data.synthetic.photographs import write_photographs

DATA = os.environ.get("COALFACE_DATA")


@functools.cache
def yunet() -> YuNet:
    try:
        return YuNet.find()
    except RecipeError as error:
        pytest.skip(str(error))


def picture(seed: int, *, side: int = 400, face: int = 112) -> NDArray[np.uint8]:
    """A drawn face with its middle at (180, 220) of a picture of even grey."""
    image = np.full((side, side, 3), 128, np.uint8)
    top, left = 220 - face // 2, 180 - face // 2
    image[top : top + face, left : left + face] = SyntheticFaces(seed + 1, 1, 5, size=face, grey=False).take(
        np.array([seed])
    )[0]
    return image


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_drawn_face_is_found_at_every_quarter_turn(seed: int) -> None:
    image = picture(seed)
    (face,) = yunet().detect(image)
    assert face.score > 0.6 and np.hypot(*(face.points.mean(axis=0) - [180, 225])) < 25
    x, y = face.points.T
    for quarters, expected in ((1, (y, 399 - x)), (2, (399 - x, 399 - y)), (3, (399 - y, x))):
        (turned,) = yunet().detect(np.ascontiguousarray(np.rot90(image, quarters)))
        assert np.abs(turned.points - np.stack(expected, axis=1)).max() < 12


def test_of_upright_photographs_none_is_turned() -> None:
    upright, on_its_side = YuNet(yunet().path, upright=True), np.ascontiguousarray(np.rot90(picture(0)))
    assert upright.fingerprint() != yunet().fingerprint()
    (right,), wrong = yunet().detect(on_its_side), upright.detect(on_its_side)
    assert not wrong or np.abs(wrong[0].points - right.points).max() > 20
    assert np.array_equal(upright.detect(picture(0))[0].points, yunet().detect(picture(0))[0].points)


def test_a_photograph_of_a_made_up_person_shows_the_face_where_it_says(tmp_path: Path) -> None:
    places = write_photographs(tmp_path, identities=4, images=2, seed=3)
    assert len(places) == 8 and places.keys() == {f.relative_to(tmp_path).as_posix() for f in tmp_path.rglob("*.jpg")}
    upright = YuNet(yunet().path, upright=True)
    for file, place in places.items():
        (face,) = upright.detect(cv2.imread(str(tmp_path / file))[:, :, ::-1])
        in_face = (face.points - place[:, 2]) @ np.linalg.inv(place[:, :2]).T
        assert np.hypot(*(in_face.mean(axis=0) - [81, 91])) < 0.2 * 160


def test_two_faces_are_two_and_none_is_none() -> None:
    assert len(yunet().detect(np.hstack([picture(0), picture(1)]))) == 2
    assert yunet().detect(np.full((50, 3000, 3), 128, np.uint8)) == []


def test_what_is_no_detector_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.onnx").write_bytes(b"no network")
    with pytest.raises(DataError) as error:
        YuNet(tmp_path / "x.onnx")
    assert error.value.where == str(tmp_path / "x.onnx")

    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(detection, "files", absent)
    with pytest.raises(RecipeError, match=r"coalface\[photos\]") as missing:
        YuNet.find()
    assert missing.value.where == "--detector"


# Real photographs: the pupils and the corners of the mouth of `london`, in a third of its coordinates.

LONDON = [0, 1, 87, 93]
"""Of the 189 points of a template."""


def london() -> list[tuple[NDArray[np.uint8], NDArray[np.float64]]]:
    """Every tenth photograph and its four points (4, 2)."""
    if not DATA:
        pytest.skip("COALFACE_DATA is not set")
    photographs = []
    for path in sorted(Path(DATA, "london", "images").glob("*/neutral*.jpg"))[::10]:
        count, *lines = (path.parents[2] / "templates" / path.parent.name / f"{path.stem}.tem").read_text().splitlines()
        points = np.array([line.split()[:2] for line in lines[: int(count)]], float)[LONDON]
        photographs.append((cv2.imread(str(path))[:, :, ::-1], (points + 0.5) / 3 - 0.5))
    return photographs


def share(image: NDArray[np.uint8], points: NDArray[np.float64]) -> float:
    """The mean distance of the landmarks found, as a share of the eye distance."""
    (face,) = yunet().detect(np.ascontiguousarray(image))
    distances = np.hypot(*(face.points[[0, 1, 3, 4]] - points).T)
    return float(distances.mean() / np.hypot(*(points[1] - points[0])))


def test_landmarks_of_real_photographs_are_near_those_that_people_set() -> None:
    """As they are, grey, a fifth as large (13 pixels between the eyes), upside down, and at 45°."""
    errors = []
    for image, points in london():
        grey = np.repeat(image.mean(axis=2, keepdims=True).astype(np.uint8), 3, axis=2)
        tiny = cv2.resize(image, None, fx=0.2, fy=0.2, interpolation=cv2.INTER_AREA)
        matrix = cv2.getRotationMatrix2D((225, 225), 45, 0.7)
        tilted = cv2.warpAffine(image, matrix, (450, 450), borderMode=cv2.BORDER_REPLICATE)
        errors.append(
            [
                share(image, points),
                share(grey, points),
                share(tiny, (points + 0.5) / 5 - 0.5),
                share(image[::-1, ::-1], 449 - points),
                share(tilted, points @ matrix[:, :2].T + matrix[:, 2]),
            ]
        )
    assert len(errors) == 11 and np.max(errors) < 0.2
    assert (np.mean(errors, axis=0) < [0.07, 0.07, 0.09, 0.07, 0.11]).all()
