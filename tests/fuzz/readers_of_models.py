"""Readers of models, and of what is kept beside them: weights, networks, thresholds, galleries, features."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import torch
from reader import PLACE, Reader, anew, archive, joined, of_file, parsed, parts, put, whole_or_within
from safetensors.torch import save
from torch import nn

from coalface.core.errors import DataError, RecipeError
from coalface.evaluation import feature_file
from coalface.experiments.gallery.file import Checksum, Enrolled, GalleryFile
from coalface.models import calibration, folder
from coalface.models.pretrained.onnx import read_onnx
from coalface.models.pretrained.weights import fit_weights, read_weights


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def torch_file(tensors: Any) -> bytes:
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


def given(prefix: str = "", parts: tuple[str, ...] = ("0", "1")) -> dict[str, torch.Tensor]:
    """`STATE` by other names, as other programs write them."""
    named = (name.split(".") for name in STATE)
    return {f"{prefix}{parts[int(layer)]}.{last}": STATE[f"{layer}.{last}"] for layer, last in named}


def read_pickled(data: bytes) -> None:
    """The pickle of a torch file in an archive whose checksums are right."""
    weights("weights.pt")(archive(TORCH_MEMBERS | {PICKLE: data}))


def weights(name: str) -> Callable[[bytes], object]:
    return of_file(name, lambda path: fit_weights(read_weights(path), network()))


def read_about(data: bytes) -> None:
    """`model.json`, with the digests that it must have."""
    place = put("model/backbone.safetensors", SAFETENSORS).parent
    about = parsed(data)
    about["sha256"] = {"backbone.safetensors": hashlib.sha256(SAFETENSORS).hexdigest()}
    about["sha256"] |= {"model.json": folder.about_digest(about)}
    put("model/model.json", json.dumps(about).encode())
    folder.read_tensors(place, "backbone.safetensors", folder.read_about(place))


ONNX = base64.b64decode(
    "CAkSB3B5dG9yY2gaBjIuMTMuMDqCAQo0Cg9vbm54OjpGbGF0dGVuXzASATEaCC9GbGF0dGVuIgdGbGF0dGVuKgsKBGF4aXMYAaABAhIKbWFpbl9n"
    "cmFwaFopCg9vbm54OjpGbGF0dGVuXzASFgoUCAESEAoCCAEKAggDCgIIBAoCCARiEwoBMRIOCgwIARIICgIIAQoCCDBCAhAU"
)
"""`torch.nn.Flatten` of an image (1, 3, 4, 4)."""


ENROLLED = Enrolled("Ann", "a.jpg", "0" * 64)


def gallery_file() -> bytes:
    path = anew("galleries") / "people.gallery"
    gallery = GalleryFile.create(path, {"embedding_size": 2})
    gallery.add([ENROLLED], np.ones((1, 2), np.float32))
    return path.read_bytes()


def read_rows(data: bytes) -> None:
    """What a gallery says of itself, and a row, with the checksums that they must have."""
    text, about, embedding = parts(data, 3)
    seal = Checksum().seal
    sealed = seal(about, b"about")
    path = put("galleries/rows.gallery", GALLERY)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous=OFF")
        database.execute("UPDATE gallery SET about=?, mark=?", (text, seal(b"", text)))
        database.execute("UPDATE images SET about=?, embedding=?", (sealed, seal(embedding, sealed)))
        database.commit()
    GalleryFile(path).read()


def read_features(data: bytes) -> None:
    put("features/images.f32", bytes(24))
    put("features/images.json", data)
    images = feature_file.Listed(("a", "b", "c"), lambda i: np.zeros((4, 4, 3), np.uint8), "stamp")
    feature_file.Stream(PLACE / "features", "images", LINEAR, images, "raw").rows()


LINEAR = network().eval()
STATE = {name: torch.ones_like(tensor) for name, tensor in LINEAR.state_dict().items()}
SAFETENSORS = save(STATE)
GALLERY = gallery_file()
TORCH_FILE = torch_file({"state_dict": STATE})
with zipfile.ZipFile(io.BytesIO(TORCH_FILE)) as archived:
    TORCH_MEMBERS = {name: archived.read(name) for name in archived.namelist()}
NAMED_ANEW = (given("module."), given(parts=("conv", "norm")), dict(reversed(given(parts=("b", "a")).items())))
PICKLE = next(name for name in TORCH_MEMBERS if name.endswith("/data.pkl"))
FEATURES = {"model": feature_file.model_stamp(LINEAR), "images": "stamp", "count": 3, "kind": "raw", "width": 2}
ABOUT = {"backbone": "cnn-small", "size": 32, "channels": 3, "embedding_size": 64}

MODELS = {
    "features": Reader(read_features, (json.dumps(FEATURES | {"done": 3}).encode(),)),
    "gallery": Reader(
        whole_or_within(of_file("galleries/fuzzed.gallery", lambda path: GalleryFile(path).read()), read_rows),
        (GALLERY, b"\0" + joined(b'{"embedding_size": 2}', ENROLLED.encode(), bytes(8))),
        (DataError, RecipeError),
    ),
    "model": Reader(read_about, (json.dumps(ABOUT).encode(),)),
    "thresholds": Reader(
        lambda data: calibration.read_thresholds(put("model/calibration.json", data).parent),
        (b'{"00": [{"cosine": 0.3, "rate": 0.01}]}',),
    ),
    "weights-safetensors": Reader(weights("weights.safetensors"), (SAFETENSORS, *map(save, NAMED_ANEW))),
    "weights-torch": Reader(
        whole_or_within(weights("weights.pt"), read_pickled), (TORCH_FILE, b"\0" + TORCH_MEMBERS[PICKLE])
    ),
    "onnx": Reader(of_file("network.onnx", read_onnx), (ONNX,)),
}
