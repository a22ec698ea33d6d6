"""Faces aligned by five points: the fit against another way to it, and drawn faces, there and back."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from drawn_photographs import drawn, moved, photographed, placed

from coalface.core.errors import DataError
from coalface.data.align import TEMPLATE, align, aligned_face, similarity
from coalface.data.synthetic.generator import SyntheticFaces


def umeyama(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Equations 40 to 42 of the paper, by the singular values of the covariance."""
    mean, goal = points.mean(0), target.mean(0)
    u, d, vt = np.linalg.svd((target - goal).T @ (points - mean) / len(points))
    s = np.diag([1, np.sign(np.linalg.det(u) * np.linalg.det(vt))])
    turn = u @ s @ vt
    scale = (d * np.diag(s)).sum() / ((points - mean) ** 2).sum(1).mean()
    return np.column_stack([scale * turn, goal - scale * turn @ mean])


@pytest.mark.parametrize("seed", range(20))
def test_the_fit_is_that_of_umeyama(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = moved(placed(seed), TEMPLATE) + rng.normal(0, 6, (5, 2))
    if seed % 3 == 0:
        points[:, 0] *= -1  # a mirrored face: the best rotation, and no reflection
    matrix = similarity(points)
    assert matrix == pytest.approx(umeyama(points, TEMPLATE), abs=1e-9)
    assert np.linalg.det(matrix[:, :2]) > 0


def test_points_that_fit_come_to_the_template_exactly() -> None:
    assert similarity(TEMPLATE) == pytest.approx(np.array([[1, 0, 0], [0, 1, 0]]), abs=1e-12)
    assert similarity(2 * TEMPLATE + [10, 20]) == pytest.approx(np.array([[0.5, 0, -5], [0, 0.5, -10]]))
    quarter = TEMPLATE @ [[0, 1], [-1, 0]]  # (x, y) to (−y, x)
    assert similarity(quarter) == pytest.approx(np.array([[0, 1, 0], [-1, 0, 0]]), abs=1e-12)
    some = TEMPLATE.copy()
    some[[1, 4]] = np.nan  # a profile: the points of one side
    assert similarity(2 * some + [10, 20]) == pytest.approx(np.array([[0.5, 0, -5], [0, 0.5, -10]]))
    for seed in range(5):
        points = moved(placed(seed), TEMPLATE)
        assert moved(similarity(points), points) == pytest.approx(TEMPLATE, abs=1e-9)


def apart(first: np.ndarray, second: np.ndarray) -> float:
    """The mean difference in grey levels, without a border of three pixels."""
    return float(np.abs(first[3:-3, 3:-3].astype(float) - second[3:-3, 3:-3].astype(float)).mean())


@pytest.mark.parametrize("grey", [False, True])
def test_a_face_comes_back_from_where_it_was_put(grey: bool) -> None:
    for seed, face in enumerate(drawn(4, grey=grey)):
        face = face[:, :, 0] if grey else face
        picture, points = photographed(face, placed(seed)), moved(placed(seed), TEMPLATE)
        back = align(picture, points)
        assert align(picture, points + [180, 0])[:, -20:].max() == 0  # black where the image ends
        assert back.shape == face.shape and back.dtype == np.uint8
        off = align(picture, points + [2, 0])  # the measure sees two pixels
        assert apart(back, face) < 3 < apart(off, face)
        larger = align(picture, points, size=224)
        assert apart(cv2.warpAffine(larger, np.array([[0.5, 0, 0], [0, 0.5, 0]]), (112, 112)), face) < 3


def test_an_encoded_image_becomes_a_face_as_a_model_takes_it() -> None:
    face = SyntheticFaces(1, 1, 0, size=112, grey=False).generate().pixels[0]
    matrix = placed(3)
    picture, points = cv2.warpAffine(face, matrix, (240, 240)), moved(matrix, TEMPLATE)
    encoded = bytes(cv2.imencode(".png", picture[:, :, ::-1])[1])
    coloured, inside = aligned_face(encoded, "here", points, size=48, grey=False)
    assert inside and np.array_equal(coloured, align(picture, points, size=48))
    grey, _ = aligned_face(encoded, "here", points, size=48, grey=True)
    brightness = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_GRAYSCALE)
    assert grey.shape == (48, 48, 1) and np.array_equal(grey[:, :, 0], align(brightness, points, size=48))
    assert not aligned_face(encoded, "here", points + 300, size=48, grey=True)[1]
    for broken, where, reason in (
        (encoded[:300], points, "here: it is damaged"),
        (encoded, points * 0, "here: the landmarks"),
    ):
        with pytest.raises(DataError, match=reason):
            aligned_face(broken, "here", where, size=48, grey=True)
