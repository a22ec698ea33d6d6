"""The input convention of a network, against its formula."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from coalface.models import build
from coalface.models.groups import Backbone
from coalface.models.pretrained.input import IMAGENET, InputConvention, WithInput


class Seen(nn.Module):
    """Gives what it is given."""

    embedding_size = 1

    def forward(self, images: Tensor) -> Tensor:
        return images


def test_a_network_sees_what_its_convention_says() -> None:
    pixels = np.arange(0, 255, 2, dtype=np.float64)[:27].reshape(1, 3, 3, 3)
    images = torch.from_numpy((pixels - 127.5) / 127.5).float()
    bgr = WithInput(Seen(), InputConvention(mean=(10, 20, 30), std=(2, 4, 8), order="bgr"), 3, 3)(images)
    for place, (channel, mean, std) in enumerate([(2, 10, 2), (1, 20, 4), (0, 30, 8)]):
        np.testing.assert_allclose(bgr[0, place], (pixels[0, channel] - mean) / std, atol=1e-4)
    grey = WithInput(Seen(), IMAGENET, 1, 3)(images[:, :1])
    for channel, (mean, std) in enumerate([(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]):
        np.testing.assert_allclose(grey[0, channel], (pixels[0, 0] / 255 - mean) / std, atol=1e-5)


def test_a_person_reads_colours_and_a_formula() -> None:
    assert str(InputConvention(127, 128.0, "bgr")) == "BGR, (x − 127) / 128"
    levels = "(x − (123.675, 116.28, 103.53)) / (58.395, 57.12, 57.375)"
    assert str(IMAGENET) == f"RGB, {levels}"
    assert str(InputConvention(channels=1)) == "grey, (x − 127.5) / 127.5"


def test_a_convention_adds_nothing_to_a_message_and_draws_nothing() -> None:
    plain, behind = (
        build("cnn-small", size=32, channels=3, convention=convention, generator=np.random.default_rng(0))
        for convention in (None, InputConvention())
    )
    tensors = Backbone(plain).shared()
    assert Backbone(behind).shared().keys() == {f"network.{name}" for name in tensors}
    images = torch.rand(2, 3, 32, 32) * 2 - 1
    torch.testing.assert_close(behind(images), plain(images))  # the usual convention is the one of every backbone
