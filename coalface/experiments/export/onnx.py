"""A face model as an ONNX file, and the proof that it gives the same embeddings."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coalface.core.errors import MissingExtra, RunError
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.experiments.api.face_model import FaceModel

INPUT, OUTPUT = "images", "embeddings"
TOLERANCE = 1e-4
"""By how much a number of a unit embedding may differ."""
METADATA = "coalface"
"""Under this key of the file's metadata: size, channels, input and the model's fingerprint, as JSON."""


class _Graph(nn.Module):
    """Images → embeddings of length one; of bytes (n, side, side, channels), or of floats as the network takes them."""

    def __init__(self, network: nn.Module, is_of_bytes: bool) -> None:
        super().__init__()
        self.network, self.is_of_bytes = network, is_of_bytes

    def forward(self, images: Tensor) -> Tensor:
        if self.is_of_bytes:
            images = (images.permute(0, 3, 1, 2).float() - 127.5) / 127.5
        return nn.functional.normalize(self.network(images), dim=1)


def write_onnx(model: FaceModel, path: Path, *, uint8: bool = False) -> None:
    """Write a graph that takes any number of images at once.

    They are float32 (n, channels, side, side), (x − 127.5) / 127.5 of pixels x from 0 to 255; with `uint8` the pixels
    themselves, (n, side, side, channels). Colour is RGB. The embeddings are float32 (n, d), of length one.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtra("an export to ONNX", "onnx") from None
    images = torch.from_numpy(_faces(model, 2, uint8))
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it names operators of packages that are not installed
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # what torch says of its own code
            program = torch.onnx.export(
                _Graph(model.network, uint8).eval(),
                (images,),
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
                dynamo=True,
                verbose=False,
            )
    finally:
        log.setLevel(level)
    assert program is not None  # it is where no file is named
    about = {"size": model.size, "channels": model.about["channels"], "input": "uint8" if uint8 else "float32"}
    program.model.metadata_props[METADATA] = json.dumps({**about, "model": model.fingerprint})
    program.save(path)


def check_parity(model: FaceModel, path: Path, *, uint8: bool = False, faces: int = 100) -> float:
    """The largest difference between what the file and the model make of synthetic faces, one by itself and the rest.

    Raises RunError where it is above `TOLERANCE`.
    """
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("the check of an ONNX file", "onnx") from None
    images = _faces(model, faces, uint8)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    embeddings = np.concatenate([session.run([OUTPUT], {INPUT: part})[0] for part in (images[:1], images[1:])])
    difference = float(np.abs(embeddings - model.embed(_faces(model, faces, True))).max())
    if not difference <= TOLERANCE:
        raise RunError(f"{path.name}: its embeddings differ by up to {difference:.2g} from the model's; use torch")
    return difference


def _faces(model: FaceModel, count: int, uint8: bool) -> NDArray[np.generic]:
    """Synthetic faces as the graph takes them."""
    faces = SyntheticFaces(count, 1, 2048, size=model.size, grey=model.grey).generate().pixels
    if uint8:
        return faces
    return np.ascontiguousarray(((faces.astype(np.float32) - 127.5) / 127.5).transpose(0, 3, 1, 2))
