"""A network of an ONNX file, as it is: it embeds, and cannot be trained."""

from __future__ import annotations

from pathlib import Path

import cv2
import torch
from torch import Tensor, nn

from coalface.core.errors import DataError
from coalface.models.pretrained.input import InputConvention, WithInput


class OnnxNetwork(nn.Module):
    """An ONNX graph of one input and one output, which OpenCV runs an image at a time: many graphs fix their batch.

    (n, channels, size, size) → (n, embedding_size). Raises DataError for a file that OpenCV cannot read, or whose graph
    does not take such images.
    """

    def __init__(self, path: Path, size: int, channels: int) -> None:
        super().__init__()
        with open(path, "rb"):  # an OSError says more than OpenCV
            pass
        try:
            self._net = cv2.dnn.readNetFromONNX(str(path))
            self.embedding_size = self(torch.zeros(1, channels, size, size)).shape[1]
        except cv2.error as error:
            reason = " ".join(error.err.split())
            raise DataError(f"OpenCV cannot run it on an image of {size}×{size}: {reason}", where=path) from None

    def forward(self, images: Tensor) -> Tensor:
        rows = []
        for image in images.float().cpu().numpy():
            self._net.setInput(image[None])
            rows.append(torch.from_numpy(self._net.forward().reshape(1, -1).copy()))
        return torch.cat(rows).to(images.device)


def read_onnx(path: Path, *, size: int, images: int, convention: InputConvention | None) -> WithInput:
    """The network of an ONNX file behind its input convention; `images` is the number of channels that images have."""
    convention = convention or InputConvention()
    channels = convention.channels or images
    return WithInput(OnnxNetwork(path, size, channels), convention, images, channels)
