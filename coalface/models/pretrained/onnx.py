"""A network of an ONNX file, as it is: it embeds, and cannot be trained."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from coalface.core.errors import DataError
from coalface.models.pretrained.input import InputConvention, WithInput

SUFFIX = ".onnx"
SIDE = 112
"""Pixels along the side of images where neither the file nor the user says it."""
_PATIENCE = 120
"""Seconds in which a network should embed one image."""


@dataclass(frozen=True)
class GraphInput:
    """What the first input of an ONNX graph takes: images, channels first or last."""

    name: str
    channels: Literal[1, 3]
    size: int | None
    """The side; None where the graph takes any."""
    channels_last: bool = False
    is_of_bytes: bool = False
    """uint8 pixels in place of floats."""


def read_input(content: bytes, where: Path) -> GraphInput:
    """What the graph of an ONNX file takes. Raises DataError where that is not images of one side."""
    try:
        graph = next(value for number, value in _fields(content) if number == 7)
        first = dict(_fields(next(value for number, value in _fields(graph) if number == 11)))
        tensor = dict(_fields(dict(_fields(first[2]))[1]))
        shape = [dict(_fields(dim)).get(1, 0) for number, dim in _fields(tensor[2]) if number == 1]
        name, is_of_bytes = bytes(first[1]).decode(), tensor[1] == 2
    except (IndexError, KeyError, StopIteration, TypeError, ValueError):
        why = "it is not a whole ONNX file whose first input has a type: it may be cut short; copy it anew"
        raise DataError(why, where=where) from None
    places = [at for at in (1, 3) if len(shape) == 4 and shape[at] in (1, 3)]
    sides = shape[2:] if places[:1] == [1] else shape[1:3]
    if not places or sides[0] != sides[1]:
        raise DataError(f"its first input, {name}, of shape {tuple(shape)}, takes no square images", where=where)
    return GraphInput(name, 3 if shape[places[0]] == 3 else 1, sides[0] or None, places[0] == 3, is_of_bytes)


def _fields(message: Any) -> Iterator[tuple[int, Any]]:
    """(number, integer or bytes) of the fields of a protobuf message."""
    message, at = memoryview(message), 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("not a protobuf message")

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        length = {1: 8, 5: 4}.get(kind) or varint()
        if kind not in (1, 2, 5) or at + length > len(message):
            raise ValueError("not a protobuf message")
        yield number, message[at : at + length]
        at += length


class OnnxNetwork(nn.Module):
    """An ONNX graph of one output, which OpenCV runs an image at a time: many graphs fix their batch.

    (n, channels, size, size) → (n, embedding_size). Raises DataError for a graph that OpenCV cannot run so.
    """

    def __init__(self, path: Path, sha256: str, takes: GraphInput, size: int) -> None:
        super().__init__()
        self.sha256, self.takes, self._path = sha256, takes, path
        _check_survives(path, takes, size)
        try:
            self._net = cv2.dnn.readNetFromONNX(str(path))
            if (outputs := len(self._net.getUnconnectedOutLayersNames())) != 1:
                why = f"its graph has {outputs} outputs, as a detector has; give a recogniser, which has one"
                raise DataError(why, where=path)
            self.embedding_size = self(torch.zeros(1, takes.channels, size, size)).shape[1]
        except cv2.error as error:
            reason = " ".join(error.err.split())
            raise DataError(f"OpenCV cannot run it on an image of {size}×{size}: {reason}", where=path) from None

    def extra_repr(self) -> str:
        return f"sha256={self.sha256}"

    def forward(self, images: Tensor) -> Tensor:
        images = images.permute(0, 2, 3, 1) if self.takes.channels_last else images
        blobs = images.float().cpu().contiguous().numpy()
        blobs = np.rint(blobs).astype(np.uint8) if self.takes.is_of_bytes else blobs
        rows = []
        for blob in blobs:
            self._net.setInput(blob[None], self.takes.name)
            if (row := self._net.forward()) is None:
                raise DataError("OpenCV gives no output for it: the graph has none, or is damaged", where=self._path)
            rows.append(torch.from_numpy(row.reshape(1, -1).copy()))
        return torch.cat(rows).to(images.device)


_RUN_ONCE = """
import sys, cv2, numpy
path, name, shape = sys.argv[1:4]
network = cv2.dnn.readNetFromONNX(path)
network.setInput(numpy.zeros(tuple(map(int, shape.split(","))), sys.argv[4]), name)
network.forward()
"""


def _check_survives(path: Path, takes: GraphInput, size: int) -> None:
    """Raise DataError for a graph of which OpenCV dies: a few wrong bytes do that, and would end this process too.

    What it says of others it says again here.
    """
    shape = (1, size, size, takes.channels) if takes.channels_last else (1, takes.channels, size, size)
    numbers, kind = ",".join(map(str, shape)), "uint8" if takes.is_of_bytes else "float32"
    command = [sys.executable, "-c", _RUN_ONCE, str(path), takes.name, numbers, kind]
    try:
        code = subprocess.run(command, capture_output=True, timeout=_PATIENCE).returncode
    except subprocess.TimeoutExpired:
        raise DataError(f"OpenCV has not run it once in {_PATIENCE} s: copy it anew", where=path) from None
    except ValueError:
        raise DataError("the name of its input holds NUL: copy it anew", where=path) from None
    if code < 0:
        raise DataError(f"OpenCV dies of it (signal {-code}), so it is damaged: copy it anew", where=path)


def read_onnx(
    path: Path, *, size: int | None = None, images: int | None = None, convention: InputConvention | None = None
) -> tuple[WithInput, dict[str, Any]]:
    """(the network of an ONNX file behind its input convention, what `model.json` would say of it).

    `size` is the side of images and `images` the number of their channels, the graph's where they are None. Without a
    `convention`, a graph takes (x − 127.5) / 127.5 of pixels x in the order RGB, and one of bytes the pixels.
    """
    content = path.read_bytes()
    takes = read_input(content, path)
    size = size or takes.size or SIDE
    if takes.size not in (None, size):
        raise DataError(f"its graph takes images of {takes.size}×{takes.size}, not of {size}×{size}", where=path)
    convention = convention or (InputConvention(0.0, 1.0) if takes.is_of_bytes else InputConvention())
    convention = replace(convention, channels=takes.channels)
    images = images or takes.channels
    if images > takes.channels:
        raise DataError("its graph takes grey images", where=path)
    sha256 = hashlib.sha256(content).hexdigest()
    network = WithInput(OnnxNetwork(path, sha256, takes, size), convention, images, takes.channels)
    about = {"backbone": "onnx", "size": size, "channels": images, "embedding_size": network.embedding_size}
    return network, about | {"input": asdict(convention), "file": sha256}
