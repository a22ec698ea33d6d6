"""Whole experiments of about a second, for tests of the runner and of the command."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import nn

from coalface.experiments import run as experiment
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.models.folder import write_about

TINY: dict[str, Any] = {
    "name": "tiny",
    "rounds": 2,
    "local": {"batch_size": 16, "lr": 0.05},
    "data": {
        "faces": {"kind": "synthetic", "identities": 12, "images": 4},
        "size": 32,
        "hold_out": 4,
        "partition": {"kind": "equal", "parties": 2},
    },
    "evaluation": {"pairs": {"unseen": {"kind": "balanced", "pairs": 20}}},
    "engine": {"threads": 1},
}


def tiny(**changes: Any) -> Recipe:
    """The tiny recipe with sections merged in."""
    return loader.parse(loader.merged(TINY, changes))


def run(out: Path, *, report: bool = False, **changes: Any) -> Path:
    """Run the tiny recipe, and leave torch's threads as they were; its page is made where it is looked at."""
    threads = torch.get_num_threads()
    experiment.run(tiny(**changes), out, Silent(), report=report)
    torch.set_num_threads(threads)
    return out


def write(path: Path, **changes: Any) -> Path:
    """The tiny recipe as a file."""
    path.write_text(yaml.safe_dump(loader.merged(TINY, changes)), encoding="utf-8")
    return path


def model_bytes(out: Path) -> dict[str, str]:
    """Every file of weights that a run left, by name, as SHA-256."""
    paths = sorted((out / "model").rglob("*.safetensors"))
    return {str(p.relative_to(out / "model")): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def centred_model(run: Path, out: Path) -> Path:
    """A model folder like a tiny run's, whose features are spread about zero and of many lengths.

    After two rounds all cosines are above 0.99, so that figures of them say little of what was done to the images.
    """
    from safetensors.torch import load_file, save_file

    from coalface.data.synthetic.generator import SyntheticFaces
    from coalface.evaluation.finished_model import read_model
    from coalface.models.embedding import raw_features

    backbone, about = read_model(run)
    faces = SyntheticFaces(20, 2, 9, size=about["size"], grey=True).generate().pixels
    shutil.copytree(run / "model", out)
    tensors = load_file(out / "backbone.safetensors")
    tensors["fc.bias"] = tensors["fc.bias"] - torch.from_numpy(raw_features(backbone.module, faces).mean(axis=0))
    save_file(tensors, out / "backbone.safetensors")
    write_about(out, {key: value for key, value in about.items() if key != "sha256"})
    return out


def picture_folders(root: Path, names: list[str], images: int = 4, seed: int = 0) -> Path:
    """Identity folders with grey noise in LFW's naming, for readers that must find files."""
    import cv2

    rng = np.random.default_rng(seed)
    for name in names:
        (root / name).mkdir(parents=True)
        for number in range(1, images + 1):
            cv2.imwrite(str(root / name / f"{name}_{number:04d}.png"), rng.integers(0, 256, (32, 32), dtype=np.uint8))
    return root


PUBLIC: dict[str, Any] = {
    "method": "fedfr-joint",
    "methods": {"fedfr-joint": {"threshold": 0.5}},
    "pretrain": {"method": "centralized", "rounds": 1, "local": {"batch_size": 16, "lr": 0.05}},
    "rounds": 1,
    "local": {"epochs": 1},
    "data": {
        "faces": {"images": 5},
        "hold_out": 2,
        "scenario": "private-public",
        "private": {"identities": 6},
        "partition": {"kind": "equal", "parties": 3},
    },
}


def public_images(**changes: Any) -> Recipe:
    """Six public people of five images, and six private ones at three clients; nobody of theirs is evaluated."""
    tree = loader.merged(loader.merged(TINY, {"data": {"faces": {"identities": 14}}}), PUBLIC)
    return loader.parse(loader.merged(tree, changes))


EVALUATED: dict[str, Any] = {
    "pretrain": None,
    "data": {"test": {"images": 2}},
    "local": {"lr": 0.05},
    "evaluation": {"personalised": {"fars": [0.1, 0.5], "fpirs": [0.25]}},
}
"""Three clients of two people, of each two test images: 2 genuine pairs a client, 32 impostors, 8 not enrolled."""


class Normed(nn.Module):
    """A network with BatchNorm that is quick at 32×32."""

    def __init__(self, size: int, channels: int, embedding_size: int = 8) -> None:
        super().__init__()
        self.embedding_size = embedding_size
        self.conv = nn.Conv2d(channels, 4, 3, stride=4)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 8 * 8, embedding_size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.norm(self.conv(images))).flatten(1))


class Silent(Callback):
    """A view that shows nothing and remembers what it was told."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int, int]] = []
        self.rounds: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.finished: list[Path] = []

    def start(self, name: str, rounds: int, already: int = 0, sent: tuple[int, int] = (0, 0), before: Any = ()) -> None:
        self.started.append((name, rounds, already))

    def round(self, record: dict[str, Any]) -> None:
        self.rounds.append(record)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.notes.append(text)

    def finish(self, figures: dict[str, Any], where: Path) -> None:
        self.finished.append(where)


class Linear(nn.Module):
    """A backbone of a user's own."""

    def __init__(self, size: int, channels: int, embedding_size: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(size * size * channels, embedding_size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images.flatten(1))


class Stop(Exception):
    """The end of a run that is stopped."""


class Stops(Silent):
    """Ends a run after its first round."""

    def round(self, record: dict[str, Any]) -> None:
        raise Stop
