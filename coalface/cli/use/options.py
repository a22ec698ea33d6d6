"""Options that commands which use a model share: whose model, what it expects, and how faces are found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from coalface.data.detection import YuNet
    from coalface.experiments.api.face_model import FaceModel
    from coalface.models.pretrained.input import InputConvention

MODEL = "A run folder, its model folder, or an ONNX file."
Party = Annotated[str | None, typer.Option(help="The party whose model to use, where each has its own.")]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="CONVENTION",
        help="What an ONNX file or weights expect of pixels, as `model.input`: '{mean: 127, std: 128, order: bgr}', or "
        "imagenet.",
    ),
]
Photographs = Annotated[
    bool, typer.Option("--photographs", help="The images are photographs: find and align the face of each first.")
]
DetectorPath = Annotated[
    Path | None, typer.Option("--detector", help="The ONNX file of a YuNet; by default that of the extra `photos`.")
]
Upright = Annotated[
    bool, typer.Option("--upright", help="No photograph lies on its side: turn none to look for faces.")
]


def read_input(text: str | None) -> InputConvention | None:
    """The input convention that `--input` names. Raises RecipeError, which says what the option takes."""
    from coalface.core.checks import UnknownKey, build
    from coalface.core.errors import RecipeError
    from coalface.core.parsing import parse_yaml
    from coalface.models.pretrained.input import IMAGENET, InputConvention

    if text is None:
        return None
    takes = "give imagenet, or keys of mean, std, order and channels, such as '{mean: 127, std: 128, order: bgr}'"
    try:
        named = parse_yaml(text)
        if named == "imagenet":
            return IMAGENET
        if not isinstance(named, Mapping):
            raise RecipeError(f"{text!r} is none; {takes}")
        return build(InputConvention, named, "")
    except UnknownKey as error:
        raise RecipeError(f"unknown key {error.where.removeprefix('.')}; {takes}", where="--input") from None
    except ValueError as error:
        raise RecipeError(str(error).removeprefix("."), where="--input") from None


def open_model(place: Path, party: str | None, convention: str | None) -> FaceModel:
    """The model that a command is given, by `--party` and `--input`."""
    from coalface.experiments.api.face_model import FaceModel

    return FaceModel.opened(place, party, read_input(convention))


def open_detector(path: Path | None, upright: bool) -> YuNet:
    """The detector of `--detector` and `--upright`."""
    from coalface.data.detection import YuNet

    return YuNet.find(upright=upright) if path is None else YuNet(path, upright=upright)


def detector_of(photographs: bool, path: Path | None, upright: bool) -> YuNet | None:
    """The detector, or None where images are aligned faces. Raises RecipeError for options that need photographs."""
    from coalface.core.errors import RecipeError

    if photographs:
        return open_detector(path, upright)
    for option, is_given in (("--detector", path is not None), ("--upright", upright)):
        if is_given:
            raise RecipeError("faces are looked for in photographs alone: add --photographs", where=option)
    return None
