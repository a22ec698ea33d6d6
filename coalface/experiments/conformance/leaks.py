"""Whether what must stay at a party, its images and its private state, shows in the bytes that it sends."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coalface.core.method import Method
from coalface.data.augment import to_tensor
from coalface.data.faceset import FaceSet
from coalface.experiments.conformance.differences import private_states
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.experiments.conformance.traffic import Heard, all_tensors, listening

CANARY = bytes([7, 250, 13, 199, 64, 128, 3, 91, 222, 17, 180, 45, 99, 241, 5, 160])


@dataclass(frozen=True)
class Marked(Tiny):
    """A federation in which every image carries a row of sixteen bytes that are found nowhere else."""

    def data(self) -> dict[str, FaceSet]:
        return {name: replace(faces, pixels=_marked(faces.pixels.tobytes())) for name, faces in super().data().items()}


@functools.cache
def _marked(pixels: bytes) -> Any:
    images = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 16, 16, 1).copy()
    images[:, 3, :, 0] = np.frombuffer(CANARY, dtype=np.uint8)
    return images


def leaks(method: Method, folder: Path, build: Tiny, sends: Collection[str] = ()) -> set[str]:
    """What is found in the bytes that left the parties: `the images`, or a `Class.field` of private state.

    `sends` are the fields that leave a party by the method's own words, such as its own last reply.
    """
    row = to_tensor(np.frombuffer(CANARY, dtype=np.uint8).reshape(1, 1, 16, 1).copy())
    images = {CANARY, CANARY[::-1], *_pieces(row), *_pieces(row.flip(3)), *_pieces(row.double())}
    secrets = dict.fromkeys(images, "the images")
    heard = Heard()

    class Spying(listening(heard)):  # type: ignore[misc]
        def finalize(self, accepted: Any, ordinal: int) -> None:
            for (_, name), private in private_states(method, folder).items():
                for field, value in vars(private).items():
                    if f"{name}.{field}" not in sends:
                        for tensor in all_tensors(value):
                            secrets.update(dict.fromkeys(_pieces(tensor), f"{name}.{field}"))
            super().finalize(accepted, ordinal)

    run(method, folder, Marked(**vars(build)), transport=Spying)
    return {what for secret, what in secrets.items() if any(secret in data for _, data in heard.replies)}


def _pieces(tensor: Tensor) -> set[bytes]:
    """Sixteen bytes from the midst of a tensor that has them, unless they are all the same.

    All bytes of one of few values, such as a codeword, whose pieces are found anywhere.
    """
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    middle = len(data) // 2 // 16 * 16
    piece = data[middle : middle + 16]
    if len(piece) == 16 and len(set(piece)) > 4:
        return {piece}
    return {data} if len(data) >= 256 and len(set(data)) > 1 else set()
