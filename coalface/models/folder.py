"""A folder with a model: tensors, and how to build the network that they are of."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save_file

from coalface.core import disk
from coalface.core.errors import DataError
from coalface.core.method import Tensors
from coalface.core.parsing import parse_json

ABOUT = "model.json"
"""How the network is built, and in `sha256` the digests of the files of tensors, and of what it says itself."""
_LONGEST = 1 << 26
"""Bytes of `model.json`; one that names a file for each of very many parties is long."""


def locate(place: Path) -> Path:
    """The model folder of a run, or the folder itself."""
    return place / "model" if (place / "model" / ABOUT).exists() else place


def read_about(folder: Path) -> dict[str, Any]:
    """What `model.json` says. Raises DataError where it is damaged, or holds no digests."""
    path = folder / ABOUT
    try:
        about = parse_json(path.read_bytes(), longest=_LONGEST, any_number=True)
        if not isinstance(about, dict) or not isinstance(about.get("sha256", {}), dict):
            raise ValueError("it holds no keys and values")
        if lacking := [key for key in ("backbone", "size", "channels", "embedding_size") if key not in about]:
            raise ValueError(f"{lacking[0]} is missing")
    except ValueError as error:
        raise DataError(f"it cannot be read ({error}): {remedy(folder)}", where=path) from None
    sha256 = about.get("sha256", {})
    digests = {name: digest for name, digest in sha256.items() if name != ABOUT}
    if sha256.get(ABOUT) != about_digest({**about, "sha256": digests}):
        raise DataError(f"it is not as it was written: {remedy(folder)}", where=path)
    return about


def read_tensors(folder: Path, name: str, about: Mapping[str, Any]) -> Tensors:
    """The tensors of a file, whose digest `about` has. Raises DataError where they are not those that were written."""
    path = folder / name
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != about["sha256"].get(name):
        raise DataError(f"it is not as it was written, its SHA-256 differs: {remedy(folder)}", where=path)
    try:
        return load(data)
    except SafetensorError as error:
        raise DataError(f"it cannot be read ({error}): {remedy(folder)}", where=path) from None


def save(tensors: Tensors, path: Path) -> None:
    """Tensors as a safetensors file."""
    with disk.writing(path):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def write_about(folder: Path, about: Mapping[str, Any], beside: Sequence[str] = ()) -> None:
    """Write `model.json` into a folder whose tensors are written; `beside` names files of tensors outside of it."""
    inside = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.safetensors"))
    sha256 = {}
    for name in (*inside, *beside):
        with open(folder / name, "rb") as file:
            sha256[name] = hashlib.file_digest(file, "sha256").hexdigest()
    digest = about_digest({**about, "sha256": sha256})
    disk.write_json(folder / ABOUT, {**about, "sha256": {**sha256, ABOUT: digest}})


def about_digest(about: Mapping[str, Any]) -> str:
    """Of what `model.json` says, but for this digest."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def remedy(folder: Path) -> str:
    """How a damaged model is had again."""
    run = folder.parent
    if folder.name == "model" and (run / "config.yaml").exists():
        return f"`coalface resume {shlex.quote(str(run))}` writes it anew"
    return "copy the model again from its run, or export it again"
