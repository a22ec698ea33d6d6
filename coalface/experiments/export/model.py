"""A model in the formats of others, with a card: ONNX, torch, safetensors, insightface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file

from coalface.core.disk import beside, check_free, put_in_place, write_text
from coalface.core.errors import RecipeError
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.export import onnx
from coalface.experiments.export.card import write_card
from coalface.experiments.export.client import write_own_model
from coalface.models.calibration import write_thresholds
from coalface.models.iresnet import IResNet
from coalface.models.pretrained.input import InputConvention

Format = Literal["onnx", "torch", "safetensors", "insightface"]


@dataclass(frozen=True)
class Exported:
    """What was written."""

    out: Path
    file: str
    """The file of the model, in `out`."""
    model: str
    """The fingerprint."""
    parity: float | None
    """ONNX: the largest difference of a number of 100 unit embeddings by onnxruntime."""


def export_model(
    place: Path,
    to: Format,
    out: Path,
    *,
    party: str | None = None,
    uint8: bool = False,
    licence: str | None = None,
    backbone: str | None = None,
    size: int = 112,
    convention: InputConvention | None = None,
    note: Callable[[str], None] = print,
) -> Exported:
    """Write a model into a new folder: its file, thresholds and a card, README.md.

    `place` is a run or a model's folder. `party` is whose own model, where each party has one: of `model/parties`, or
    the personalised one that the party's private state holds. With `uint8` an ONNX graph takes pixels. `place` may be a
    file with the weights of a `backbone`, which takes images of this size and, where it is given, `convention`; `note`
    is told how each tensor was matched.

    Raises RecipeError where there is no such model, or the format cannot hold it.
    """
    if uint8 and to != "onnx":
        raise RecipeError("only an ONNX graph takes pixels: leave it out", where="--uint8")
    if backbone is None and convention is not None:
        raise RecipeError("it is for a file of weights: add --backbone, or leave it out", where="--input")
    check_free(out)
    with beside(out) as partial:
        if backbone is None:
            model = _find_model(place, party, partial / "own")
        else:
            model = _import(place, backbone, size, convention, note)
        model.save_pretrained(partial / "saved")
        saved, file, parity = partial / "saved", FILES[to], None
        if to == "onnx":
            onnx.write_onnx(model, saved / file, uint8=uint8)
            parity = onnx.check_parity(model, saved / file, uint8=uint8)
            same = (model.fingerprint, FaceModel(saved / file).fingerprint)
            write_thresholds(saved, dict.fromkeys(same, model.thresholds))
        elif to == "torch":
            torch.save(load_file(saved / "backbone.safetensors"), saved / file)
        elif to == "insightface":
            _write_insightface(model, saved / file)
        if to == "onnx":  # `evaluate` and `FaceModel` read that itself; a file of tensors by a folder around it
            (saved / "backbone.safetensors").unlink()
            (saved / "model.json").unlink()
        write_text(saved / "README.md", write_card(model, place, party, to, file, uint8=uint8, licence=licence))
        put_in_place(saved, out)
    return Exported(out, file, model.fingerprint, parity)


FILES: dict[Format, str] = {
    "onnx": "model.onnx",
    "torch": "model.pt",
    "safetensors": "backbone.safetensors",
    "insightface": "backbone.pth",
}


def _find_model(place: Path, party: str | None, folder: Path) -> FaceModel:
    """The model of a run or of a folder; a personalised one is written to `folder` first."""
    has_global = any((place / name).exists() for name in ("model/backbone.safetensors", "backbone.safetensors"))
    if party is None or not has_global:
        return FaceModel.opened(place, party)
    write_own_model(place, party, folder)
    return FaceModel(folder)


def _import(
    place: Path, backbone: str, size: int, convention: InputConvention | None, note: Callable[[str], None]
) -> FaceModel:
    if not place.is_file():
        raise RecipeError(f"{place} is no file of weights: leave it out", where="--backbone")
    input = None if convention is None else asdict(convention)
    grey = convention is not None and convention.channels == 1
    return FaceModel.from_weights(place, backbone, size=size, grey=grey, input=input, note=note)


def _write_insightface(model: FaceModel, path: Path) -> None:
    """What `iresnet18()` to `iresnet100()` of insightface's arcface_torch load strictly."""
    shape = (model.size, model.about["channels"], model.embedding_size)
    if not isinstance(model.network, IResNet) or shape != (112, 3, 512):
        raise RecipeError(
            f"insightface's networks are ir18 to ir100 on RGB 112×112 with 512 numbers; this is {model.form}: use "
            "onnx, torch or safetensors",
            where="--to",
        )
    torch.save(model.network.state_dict(), path)
