"""The page of an alignment: which photographs gave no face, and why, with small pictures; it needs no other file."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Any

import cv2
import numpy as np

from coalface.core.disk import write_text
from coalface.core.errors import DataError
from coalface.core.text import several, shown
from coalface.data.photographs import ANY, REASONS, UNREADABLE, decode_photograph
from coalface.data.readers.folders import read_file
from coalface.data.tools.aligned_folder import AlignedFolder, Photograph
from coalface.experiments.report.templates import template

FILE = "report.html"
"""The page, in the folder of aligned faces."""
LIMITS = {
    "side": "too small: below {:g} pixels along the side of the square around the face",
    "outside": "cut off: more than {:.0%} of that square outside the photograph",
    "margin": "cut off: a landmark nearer to the photograph's edge than {:.0%} of the side",
    "sharpness": "blurred: sharpness below {:g} (the share of the grey levels' power at wavelengths of 4 to 8 pixels "
    "of a face of 112×112)",
    "rival": "two faces: the second at least {:g} as prominent (side × (1 − distance from the middle)) as the first",
}
"""What the limits leave out, in words."""
PICTURES = 24
"""Pictures on the page for each reason."""
LONGER_SIDE = 160
"""Pixels of the longer side of each."""


def write_page(folder: AlignedFolder) -> None:
    """Write the page into the folder of aligned faces; the same bytes for the same photographs."""
    by_reason: dict[str, list[Photograph]] = {reason: [] for reason in REASONS}
    for photograph in folder.photographs:
        for reason in dict.fromkeys(left_out.reason for left_out in photograph.left_out):
            by_reason[reason].append(photograph)
    groups = [
        {
            "reason": reason,
            "meaning": REASONS[reason],
            "count": len(photographs),
            "thumbnails": [_thumbnail(folder, photograph, reason) for photograph in photographs[:PICTURES]],
        }
        for reason, photographs in by_reason.items()
        if photographs
    ]
    limits = {} if folder.limits == ANY else asdict(folder.limits)
    files = len(folder.photographs)
    page = template("photographs.html").render(
        name=shown(folder.source.resolve().name),
        lead=f"{several(folder.faces, 'face')} from {several(files, 'file')}; {len(folder.left_out):,} gave none.",
        tiles=[
            (f"{folder.faces:,}", "faces" if folder.faces != 1 else "face"),
            (f"{files:,}", "files"),
            (f"{len(folder.left_out):,}", "without a face"),
        ],
        limits=[LIMITS[key].format(limit) for key, limit in limits.items()],
        groups=groups,
    )
    write_text(folder.out / FILE, page)


def _thumbnail(folder: AlignedFolder, photograph: Photograph, reason: str) -> dict[str, str]:
    """The photograph, small, with a frame around the square that would have become the face."""
    left_out = next(one for one in photograph.left_out if one.reason == reason)
    about = {"file": shown(photograph.file), "detail": left_out.detail, "address": ""}
    if reason in UNREADABLE:
        return about
    path = folder.source / photograph.file
    try:
        image = decode_photograph(read_file(path), path)
    except (OSError, DataError):  # it changed in this very moment
        return about
    factor = min(1.0, LONGER_SIDE / max(image.shape[:2]))
    width, height = (max(1, round(side * factor)) for side in image.shape[1::-1])
    small: Any = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    small = cv2.cvtColor(small, cv2.COLOR_GRAY2BGR if small.ndim == 2 else cv2.COLOR_RGB2BGR)
    if left_out.corners:
        frame = np.rint((np.array(left_out.corners) + 0.5) * factor - 0.5).astype(np.int32)
        cv2.polylines(small, [frame], True, (40, 90, 255), 1, cv2.LINE_AA)
    jpeg = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, 80])[1].tobytes()
    return about | {"address": f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"}
