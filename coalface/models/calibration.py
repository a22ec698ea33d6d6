"""Which model made an embedding, and at which cosine it takes two images for one person: `calibration.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coalface.core.checks import build
from coalface.core.disk import write_json
from coalface.core.errors import DataError
from coalface.core.parsing import parse_json
from coalface.core.text import several

CALIBRATION = "calibration.json"
"""Beside `model.json`: a model's fingerprint, and its thresholds."""
FARS = (0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
"""False accept rates that a run's thresholds are chosen for, as far as its pairs carry them."""
COLLAPSED = 0.99
"""A threshold above this cosine that was chosen for a rate tells of a model that has collapsed."""


@dataclass(frozen=True)
class Threshold:
    """A cosine from which on two embeddings count as one person's."""

    cosine: float
    rate: float | None = None
    """The share of impostors that it accepts where it was chosen; None where a person chose it."""
    kind: str = "FAR"
    """FAR: of pairs of two people's images. FPIR: of strangers, by the nearest of a whole gallery."""
    on: str = ""
    """What it was chosen on."""
    count: int = 0
    """Pairs, or strangers, that it was chosen on."""
    impostors: int = 0
    """The impostor pairs among them, of which the rate is a share; 0 where a version before did not keep it."""

    @property
    def basis(self) -> str:
        """What its rate rests on."""
        if self.kind == "FPIR":
            return several(self.count, "stranger")
        return several(self.impostors, "impostor pair") if self.impostors else several(self.count, "pair")

    def __str__(self) -> str:
        if self.rate is None:
            return f"threshold {self.cosine:.6f}"
        source = f", chosen on {self.on} ({self.basis})" if self.on else ""
        return f"threshold {self.cosine:.6f} at {self.kind} {self.rate:g}{source}"

    @property
    def collapsed(self) -> str:
        """Why nobody can be told apart by it; empty where people can."""
        if self.rate is None or self.cosine <= COLLAPSED:
            return ""
        return f"{self}: the model gives all faces nearly one embedding; train it longer, or from another start"


def fingerprint(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of what an embedding depends on: how a network is built, what images it takes, and its tensors.

    A network that holds none has the SHA-256 of its file under `file`; without it every such network would be one.
    """
    if not tensors and "file" not in about:
        raise ValueError(f"a network without tensors ({about.get('backbone')}) needs the SHA-256 of its file")
    keys = ("backbone", "size", "channels", "embedding_size", "input", "file")
    digest = hashlib.sha256(json.dumps({key: about.get(key) for key in keys}, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def read_thresholds(folder: Path) -> dict[str, list[Threshold]]:
    """Fingerprint -> thresholds, of what a model's folder holds; {} where there is no file. DataError if damaged."""
    path = folder / CALIBRATION
    if not path.exists():
        return {}
    try:
        models = parse_json(path.read_bytes())
        return {model: [build(Threshold, kept, str(path)) for kept in chosen] for model, chosen in models.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"it cannot be read ({error}): delete it, and calibrate the model again", where=path) from None


def write_thresholds(folder: Path, thresholds: Mapping[str, Iterable[Threshold]]) -> None:
    """Write what `read_thresholds` reads, in place of what was there."""
    write_json(folder / CALIBRATION, {model: list(map(asdict, chosen)) for model, chosen in thresholds.items()})


def choose(thresholds: Iterable[Threshold], rate: float, kind: str = "FAR", *, where: str, remedy: str) -> Threshold:
    """The threshold for a rate, of those on most pairs. Raises DataError that says which there are, and `remedy`."""
    alike = [threshold for threshold in thresholds if threshold.kind == kind]
    if fitting := [threshold for threshold in alike if threshold.rate == rate]:
        return max(fitting, key=lambda threshold: threshold.count)
    rates = ", ".join(f"{rate:g}" for rate in sorted({threshold.rate or 0 for threshold in alike}, reverse=True))
    option = f" (--{kind.lower()} {rates.rpartition(' ')[2]})"
    known = f"; there are those for {kind} {rates}{option}" if rates else f" or any other {kind}"
    raise DataError(f"no threshold for {kind} {rate:g}{known}: {remedy}", where=where)
