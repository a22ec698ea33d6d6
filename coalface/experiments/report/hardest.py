"""The hardest pairs of a run, as the pictures that its folder keeps."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from coalface.evaluation.hardest import FILE, LISTS, MOST
from coalface.experiments.report.runs import as_dicts, mapping, number

LARGEST = 20_000
"""Letters of a picture in base64; a larger one is left out, as are more pairs or lists than are written."""


@dataclass(frozen=True)
class Picture:
    """A pair of faces."""

    jpeg: str
    """In base64."""
    cosine: float


@dataclass(frozen=True)
class HardestPairs:
    """Pairs of one kind of one list, the hardest first."""

    pairs: str
    kind: str
    """`genuine` or `impostor`."""
    pictures: tuple[Picture, ...]


def read(run: Path) -> list[HardestPairs]:
    """Those that a run's folder keeps, which few do; what is damaged is left out."""
    path = run / FILE
    try:
        kept = mapping(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (ValueError, RecursionError):
        kept = {}
    groups = []
    for name, by_kind in list(kept.items())[:LISTS]:
        for kind in ("genuine", "impostor"):
            pictures = []
            for pair in as_dicts(mapping(by_kind).get(kind))[:MOST]:
                jpeg, cosine = pair.get("jpeg"), number(pair.get("cosine"))
                if cosine is not None and isinstance(jpeg, str) and len(jpeg) <= LARGEST:
                    pictures += [Picture(jpeg, cosine)] if re.fullmatch("[A-Za-z0-9+/]+=*", jpeg) else []
            groups += [HardestPairs(name, kind, tuple(pictures))] if pictures else []
    return groups
