"""How fast JPEGs are decoded here, as a ratio to Pillow's rate in the same run.

    python benchmarks/decoding.py [--turns 41] [--images 8] [--json]

The JPEGs are synthetic faces at quality 95, in memory; both sides give a square array of the same size and colour. Ours
is `coalface.data.source.decode`, the check of the header included. Pillow's is `open`, `convert`, `resize` by BOX (its
averaging of areas) where the size differs, and `asarray`: what a reader of the field does. With `draft`, Pillow may
decode a JPEG at a half, a quarter or an eighth, as ours does at a half; it has to be asked, so that stands apart. The
sides take turns, so that whatever else the machine does falls on all alike; a ratio is the median over the turns, and
every side runs on one thread. Pillow is no dependency of the project: without it, only our rate is given.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import cv2
import numpy as np

from coalface.data.source import decode
from coalface.data.synthetic import SyntheticFaces

try:
    import PIL
    from PIL import Image
except ModuleNotFoundError:
    PIL = None  # type: ignore[assignment]

CASES = [
    (112, 112, False),
    (112, 112, True),
    (112, 64, False),
    (112, 64, True),
    (250, 112, False),
    (250, 112, True),
    (250, 64, False),
    (250, 64, True),
    (250, 250, False),
    (250, 250, True),
]
"""Side of the JPEG, side wanted, grey."""


@dataclass(frozen=True)
class Timing:
    side: int
    size: int
    grey: bool
    images_per_second: float
    to_pillow: float | None
    """Above 1 is faster than Pillow."""
    to_draft: float | None
    """Above 1 is faster than Pillow with `draft`."""


def jpegs(side: int, count: int) -> list[bytes]:
    faces = SyntheticFaces(count, 1, seed=0, size=side, grey=False).generate()
    quality = [cv2.IMWRITE_JPEG_QUALITY, 95]
    return [cv2.imencode(".jpg", image[:, :, ::-1].copy(), quality)[1].tobytes() for image in faces.pixels]


def pillow(data: bytes, size: int, grey: bool, draft: bool) -> np.ndarray:
    mode = "L" if grey else "RGB"
    image = Image.open(io.BytesIO(data))
    if draft:
        image.draft(mode, (size, size))
    image = image.convert(mode)
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BOX)
    return np.asarray(image)


def seconds(read: Callable[[bytes], object], images: list[bytes]) -> float:
    start = time.perf_counter()
    for data in images:
        read(data)
    return time.perf_counter() - start


def measure(side: int, size: int, grey: bool, turns: int, count: int) -> Timing:
    images = jpegs(side, count)
    sides: list[Callable[[bytes], object]] = [lambda data: decode(data, "x", size=size, grey=grey)]
    if PIL is not None:
        sides += [lambda data, draft=draft: pillow(data, size, grey, draft) for draft in (False, True)]  # type: ignore[misc]
    taken = [[seconds(read, images) for read in sides] for _ in range(turns + 2)][2:]  # two turns to warm up
    ratios = [statistics.median(turn[i] / turn[0] for turn in taken) for i in range(1, len(sides))]
    rate = count / statistics.median(turn[0] for turn in taken)
    return Timing(side, size, grey, rate, *(ratios or [None, None]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--images", type=int, default=8, help="images a turn")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    timings = [measure(*case, arguments.turns, arguments.images) for case in CASES]
    if arguments.json:
        print(json.dumps([asdict(timing) for timing in timings], indent=1))
        return
    with_pillow = "without Pillow" if PIL is None else f"Pillow {PIL.__version__}"
    print(f"{platform.processor() or platform.machine()}, OpenCV {cv2.__version__}, {with_pillow}")
    print("JPEG  wanted  colour  images/s  to Pillow  to Pillow with draft")
    for t in timings:
        ratios = ["-" if ratio is None else f"{ratio:.2f}" for ratio in (t.to_pillow, t.to_draft)]
        colour = "grey" if t.grey else "RGB"
        print(f"{t.side:4}  {t.size:6}  {colour:6}  {t.images_per_second:8,.0f}  {ratios[0]:>9}  {ratios[1]:>20}")


if __name__ == "__main__":
    main()
