"""The page of an alignment: which photographs gave no face, and why, with small pictures; it needs no other file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coalface.core.disk import write_text
from coalface.core.text import several
from coalface.experiments.report.templates import template


@dataclass(frozen=True)
class Thumbnail:
    """A photograph on the page."""

    file: str
    detail: str
    """The figures, or what is wrong with it."""
    jpeg: bytes
    """Empty where nothing can be shown."""

    @property
    def address(self) -> str:
        """The picture itself, as a page refers to it."""
        return f"data:image/jpeg;base64,{base64.b64encode(self.jpeg).decode()}"


@dataclass(frozen=True)
class Group:
    """The photographs that are left out for one reason."""

    reason: str
    meaning: str
    count: int
    thumbnails: Sequence[Thumbnail]


def write_page(
    path: Path,
    *,
    name: str,
    faces: int,
    photographs: int,
    left_out: int,
    limits: Mapping[str, float],
    groups: Sequence[Group],
) -> Path:
    """Write the page; the same bytes for the same arguments. `limits` are by the names of `Limits`."""
    tiles = [
        (f"{faces:,}", "faces" if faces != 1 else "face"),
        (f"{photographs:,}", "files"),
        (f"{left_out:,}", "without a face"),
    ]
    sentences = {
        "side": f"too small: below {limits.get('side', 0):g} pixels along the side of the square around the face",
        "outside": f"cut off: more than {limits.get('outside', 0):.0%} of that square outside the photograph",
        "margin": f"cut off: a landmark nearer to the photograph's edge than {limits.get('margin', 0):.0%} of the side",
        "sharpness": f"blurred: sharpness below {limits.get('sharpness', 0):g} (the share of the grey levels' power "
        "at wavelengths of 4 to 8 pixels of a face of 112×112)",
        "rival": f"two faces: the second at least {limits.get('rival', 0):g} as prominent (side × (1 − distance from "
        "the middle)) as the first",
    }
    page = template("photographs.html").render(
        name=name,
        lead=f"{several(faces, 'face')} from {several(photographs, 'file')}; {left_out:,} gave none.",
        tiles=tiles,
        limits=[sentences[key] for key in limits],
        groups=groups,
    )
    write_text(path, page)
    return path
