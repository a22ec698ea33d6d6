"""Images decoded to a square of a size, by several threads in their order."""

from __future__ import annotations

import os
import threading

import cv2
import numpy as np
import pytest

from coalface.data.source import decode, in_order
from coalface.data.synthetic.generator import SyntheticFaces


def encoded(image: np.ndarray, suffix: str) -> bytes:
    return cv2.imencode(suffix, image)[1].tobytes()


def test_colours_come_as_red_green_blue() -> None:
    image = np.zeros((2, 2, 3), np.uint8)
    image[:] = (10, 20, 200)  # blue, green, red
    pixels = decode(encoded(image, ".png"), "x", size=2, grey=False)
    assert pixels.shape == (2, 2, 3)
    assert pixels[0, 0].tolist() == [200, 20, 10]
    grey = decode(encoded(image, ".png"), "x", size=4, grey=True)
    assert grey.shape == (4, 4, 1) and abs(int(grey[0, 0, 0]) - (0.299 * 200 + 0.587 * 20 + 0.114 * 10)) <= 1


def test_shrinking_averages_areas() -> None:
    image = np.arange(16, dtype=np.uint8).reshape(4, 4) * 10
    small = decode(encoded(image, ".png"), "x", size=2, grey=True)[:, :, 0]
    by_hand = [
        [(0 + 10 + 40 + 50) / 4, (20 + 30 + 60 + 70) / 4],
        [(80 + 90 + 120 + 130) / 4, (100 + 110 + 140 + 150) / 4],
    ]
    assert small.tolist() == by_hand


@pytest.mark.parametrize(("height", "width"), [(7, 4), (4, 7)])
def test_an_oblong_image_is_cut_to_its_central_square(height: int, width: int) -> None:
    image = np.arange(28, dtype=np.uint8).reshape(height, width)
    square = decode(encoded(image, ".png"), "x", size=4, grey=True)[:, :, 0]
    assert np.array_equal(square, image[1:5, :] if height > width else image[:, 1:5])


def use_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(count), raising=False)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 8, 9, 100])
def test_threads_keep_the_order(monkeypatch: pytest.MonkeyPatch, count: int, threads: int) -> None:
    use_cores(monkeypatch, threads)
    overtaken = threading.Event()

    def read(i: int) -> int:
        if i == 9:
            overtaken.set()
        if i == 0 and threads > 1 and count > 9:
            assert overtaken.wait(10)  # another thread has read image 9 by then
        return i

    assert list(in_order(read, count)) == list(range(count))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bad", [0, 7, 8, 20, 99])
def test_an_error_comes_in_its_images_place(monkeypatch: pytest.MonkeyPatch, bad: int, threads: int) -> None:
    use_cores(monkeypatch, threads)

    def read(i: int) -> np.ndarray:
        if i == bad:
            raise ValueError(f"image {i}")
        return np.full((1, 1, 1), i, np.uint8)

    numbers = []
    with pytest.raises(ValueError, match=f"image {bad}"):
        for image in in_order(read, 100):
            numbers.append(int(image[0, 0, 0]))
    assert numbers == list(range(bad))


def test_reading_runs_only_a_little_ahead_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    use_cores(monkeypatch, 2)
    indices = []

    def read(i: int) -> np.ndarray:
        indices.append(i)
        return np.full((1, 1, 1), 0, np.uint8)

    images = in_order(read, 100_000)
    next(images)
    images.close()  # type: ignore[attr-defined]
    assert len(indices) <= 8 * (2 * 2 + 1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def large_face(side: int, width: int | None = None) -> bytes:
    image = SyntheticFaces(1, 1, seed=0, size=128, grey=False).generate().pixels[0]
    return cv2.imencode(".jpg", cv2.resize(image, (width or side, side), interpolation=cv2.INTER_CUBIC))[1].tobytes()


def plainly(data: bytes, size: int, flag: int) -> np.ndarray:
    """Decoded whole, then averaged over areas."""
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    shrunk = cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA)
    return shrunk[:, :, None] if flag == cv2.IMREAD_GRAYSCALE else shrunk[:, :, ::-1]


@pytest.mark.parametrize("side", [224, 250, 300, 448, 600])
@pytest.mark.parametrize("grey", [False, True])
def test_decoding_at_half_the_size_is_faithful(side: int, grey: bool) -> None:
    data = large_face(side)
    expected = plainly(data, 112, cv2.IMREAD_GRAYSCALE if grey else cv2.IMREAD_COLOR)
    difference = np.abs(decode(data, "x", size=112, grey=grey).astype(int) - expected)
    assert difference.mean() < 0.7
    assert difference.max() < 40
    plain = plainly(data, 112, cv2.IMREAD_GRAYSCALE if grey else cv2.IMREAD_COLOR).astype(int)
    shifted = np.abs(np.roll(plain, 1, axis=1) - plain)
    assert shifted.mean() > 3 * difference.mean()  # the figure is small for these images, too


@pytest.mark.parametrize(("height", "width"), [(225, 225), (223, 300), (224, 225), (222, 222), (111, 111)])
def test_an_image_that_cannot_be_halved_is_decoded_whole(height: int, width: int) -> None:
    data = large_face(height, width)
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)
    left = (width - height) // 2
    square = image[:, left : left + height]
    by = cv2.INTER_AREA if height > 112 else cv2.INTER_LINEAR
    expected = cv2.resize(square, (112, 112), interpolation=by)
    assert np.array_equal(decode(data, "x", size=112, grey=True)[:, :, 0], expected)
