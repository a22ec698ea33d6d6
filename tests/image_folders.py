"""Identity folders of synthetic faces, and the commands `coalface data` on them."""

from __future__ import annotations

from pathlib import Path

import cv2

from coalface.data.stores import Store
from coalface.data.synthetic.generator import SyntheticFaces

NAMES = ("Ann_Lee", "José_Núñez", "Bo")


def faces(folder: Path, images: int = 4, suffix: str = ".jpg") -> Path:
    """Identity folders of synthetic faces, named as LFW's; identity k has `images` + k."""
    source = SyntheticFaces(len(NAMES), images + len(NAMES), 0, size=32, grey=False)
    counts = dict.fromkeys(NAMES, 0)
    for label, pixels in zip(source.labels.tolist(), source.images(size=32, grey=False), strict=True):
        name = NAMES[label]
        if counts[name] == images + label:
            continue
        counts[name] += 1
        path = folder / name / f"{name}_{counts[name]:04d}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(cv2.imencode(suffix, pixels[:, :, ::-1])[1]))
    return folder


def content(store: Store) -> dict[str, list[bytes]]:
    """Identity → the encoded images, in the store's order."""
    images: dict[str, list[bytes]] = {}
    for i, label in enumerate(store.labels.tolist()):
        images.setdefault(store.names[label], []).append(bytes(store.encoded(i)))
    return images
