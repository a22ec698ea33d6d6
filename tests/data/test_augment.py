import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from coalface.data.augment import DRAWS, Augment, to_tensor


class Fixed(np.random.Generator):
    """A generator whose uniform numbers are written down by the test, one row per image."""

    def __new__(cls, *rows: list[float]) -> "Fixed":
        return super().__new__(cls, np.random.PCG64(0))

    def __init__(self, *rows: list[float]) -> None:
        super().__init__(np.random.PCG64(0))
        self.rows = np.array(rows)

    def random(self, size):  # type: ignore[no-untyped-def, override]
        assert size == self.rows.shape
        return self.rows


FLIP, DOWN, ACROSS, BRIGHTNESS, CONTRAST, SATURATION, BLUR = range(DRAWS)
MIDDLE = [0.5] * DRAWS
"""Draws that leave an image as it is: no flip, no shift, factors of 1."""


def drawing(**changed: float) -> list[float]:
    row = list(MIDDLE)
    for name, value in changed.items():
        row[globals()[name]] = value
    return row


def batch(n: int = 6, channels: int = 3, height: int = 9, width: int = 8, seed: int = 0) -> Tensor:
    pixels = np.random.default_rng(seed).integers(0, 256, (n, height, width, channels), dtype=np.uint8)
    return to_tensor(pixels)


OFF = Augment(flip=False)
ALL = Augment(flip=True, crop=2, colour=0.3, blur=0.5)


def test_pixels_become_numbers_from_minus_one_to_one() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(2, 4, 16, 2)
    pixels.flags.writeable = False
    images = to_tensor(pixels)
    assert images.dtype == torch.float32
    assert images.shape == (2, 2, 4, 16)
    assert images.is_contiguous()
    for n, y, x, c in [(0, 0, 0, 0), (1, 3, 15, 1), (0, 2, 5, 1), (1, 0, 9, 0)]:
        assert images[n, c, y, x].item() == np.float32((float(pixels[n, y, x, c]) - 127.5) / 127.5)
    assert (images.min().item(), images.max().item()) == (-1.0, 1.0)


def test_flip_mirrors_the_drawn_images_left_and_right() -> None:
    images = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]] * 2)
    out = Augment()(images, Fixed(drawing(FLIP=0.499), drawing(FLIP=0.5)))
    assert out[0, 0].tolist() == [[2.0, 1.0], [4.0, 3.0]]
    assert out[1, 0].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_crop_equals_a_loop_over_padded_images() -> None:
    images = batch(40)
    draws = np.random.default_rng(7).random((40, DRAWS))
    out = Augment(flip=False, crop=3)(images, np.random.default_rng(7))
    for n in range(40):
        padded = np.pad(images[n].numpy(), ((0, 0), (3, 3), (3, 3)), mode="reflect")
        down, across = (int(draws[n, k] * 7) - 3 for k in (DOWN, ACROSS))
        assert np.array_equal(out[n].numpy(), padded[:, 3 - down :, 3 - across :][:, :9, :8])
    moved = Augment(flip=False, crop=1)(
        torch.arange(1.0, 10).reshape(1, 1, 3, 3), Fixed(drawing(DOWN=0.999, ACROSS=0.0))
    )
    assert moved[0, 0].tolist() == [[5, 6, 5], [2, 3, 2], [5, 6, 5]]  # by hand: one down, one to the left


def test_brightness_multiplies_from_black() -> None:
    """By hand: the pixel values 0, 100, 200 of 255 times 1.2 are 0, 120, 240."""
    images = to_tensor(np.array([0, 100, 200], np.uint8).reshape(1, 1, 3, 1))
    out = Augment(flip=False, colour=0.2)(images, Fixed(drawing(BRIGHTNESS=1.0)))
    assert torch.allclose(out.flatten() * 127.5 + 127.5, torch.tensor([0.0, 120.0, 240.0]), atol=1e-3)


def test_contrast_multiplies_about_the_mean() -> None:
    """By hand: 0, 100, 200 have the mean 100; at 0.8 they become 20, 100, 180."""
    images = to_tensor(np.array([0, 100, 200], np.uint8).reshape(1, 1, 3, 1))
    out = Augment(flip=False, colour=0.2)(images, Fixed(drawing(CONTRAST=0.0)))
    assert torch.allclose(out.flatten() * 127.5 + 127.5, torch.tensor([20.0, 100.0, 180.0]), atol=1e-3)


def test_saturation_multiplies_about_each_pixels_grey() -> None:
    images = batch(1)
    out = Augment(flip=False, colour=0.2)(images * 0.5, Fixed(drawing(SATURATION=0.0)))
    for y, x in [(0, 0), (4, 5)]:
        red, green, blue = (images[0, :, y, x] * 0.5).tolist()
        grey = 0.299 * red + 0.587 * green + 0.114 * blue
        by_hand = [grey + 0.8 * (value - grey) for value in (red, green, blue)]
        assert out[0, :, y, x].tolist() == pytest.approx(by_hand, abs=1e-6)
    one_channel = images[:, :1]
    out = Augment(flip=False, colour=0.2)(one_channel, Fixed(drawing(SATURATION=0.0)))
    assert torch.allclose(out, one_channel, atol=1e-6)


def test_blur_equals_opencv() -> None:
    images = batch(3)
    out = Augment(flip=False, blur=0.6)(images, Fixed(drawing(BLUR=0.59), drawing(BLUR=0.6), drawing(BLUR=0.0)))
    kernel = np.array([1, 4, 6, 4, 1]) / 16
    for n in (0, 2):
        image = images[n].permute(1, 2, 0).numpy()
        expected = cv2.sepFilter2D(image, -1, kernel, kernel, borderType=cv2.BORDER_REFLECT_101)
        assert np.allclose(out[n].permute(1, 2, 0).numpy(), expected, atol=1e-6)
    assert torch.equal(out[1], images[1])


@pytest.mark.parametrize("augment", [OFF, Augment(), Augment(crop=3), Augment(colour=0.5), Augment(blur=1.0), ALL])
def test_every_image_takes_the_same_number_of_draws(augment: Augment) -> None:
    used, expected = np.random.default_rng(3), np.random.default_rng(3)
    augment(batch(5), used)
    expected.random(5 * DRAWS)
    assert used.bit_generator.state == expected.bit_generator.state


def test_a_batch_equals_its_images_one_by_one() -> None:
    images = batch(8)
    together = ALL(images, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    singly = torch.cat([ALL(images[n : n + 1], rng) for n in range(8)])
    assert torch.allclose(together, singly, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"crop": -1}, {"colour": 1.0}, {"colour": -0.1}, {"blur": 1.1}])
def test_impossible_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"cannot be applied: crop is a number of pixels from 0, colour a fraction"):
        Augment(**wrong)
    with pytest.raises(ValueError, match="a crop of 8 pixels is too large for images of 9 × 8: .* smaller than the im"):
        Augment(crop=8)(batch(), np.random.default_rng(0))


@pytest.mark.gpu
def test_a_gpu_gives_the_same_images() -> None:
    images = batch(20)
    on_cpu = ALL(images, np.random.default_rng(3))
    on_gpu = ALL(images.to("cuda"), np.random.default_rng(3))
    assert on_gpu.device.type == "cuda"
    assert torch.allclose(on_gpu.cpu(), on_cpu, atol=1e-5)
