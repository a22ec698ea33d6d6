"""How fast JPEGs are decoded here, as a ratio to Pillow's rate in the same run.

    python benchmarks/decoding.py [--turns 15] [--images 256]

The JPEGs are synthetic faces at quality 95, in memory; both sides give a square array of the same size and colour. Ours
is `coalface.data.source.decode`, the check of the header included. Pillow's is `open`, `convert`, `resize` by BOX (its
averaging of areas) where the size differs, and `asarray`: what a reader of the field does. With `draft`, Pillow may
decode a JPEG at a half, a quarter or an eighth, as ours does at a half; it has to be asked, so that stands apart. The
sides take turns, so that whatever else the machine does falls on all alike; a ratio is the median over the turns.
Pillow runs on one thread, as in the plain loop that it is compared with; ours once on one thread, and once as a
`Source` decodes, by a thread a core (four at most). Pillow is no dependency of the project: without it, only our rate
is given.
"""

from __future__ import annotations

import argparse
import io
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from measuring import seconds
from numpy.typing import NDArray

from coalface.data.source import decode, in_order
from coalface.data.synthetic.generator import SyntheticFaces

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
    one_thread: float
    """Images/s of `decode`."""
    source: float
    """Images/s by threads."""
    one_to_pillow: float | None = None
    """Above 1 is faster than Pillow; and so below."""
    source_to_pillow: float | None = None
    one_to_draft: float | None = None
    source_to_draft: float | None = None


def jpegs(side: int, count: int) -> list[bytes]:
    faces = SyntheticFaces(min(count, 16), 1, seed=0, size=side, grey=False).generate()
    quality = [cv2.IMWRITE_JPEG_QUALITY, 95]
    encoded = [cv2.imencode(".jpg", image[:, :, ::-1].copy(), quality)[1].tobytes() for image in faces.pixels]
    return [encoded[i % len(encoded)] for i in range(count)]


def pillow(data: bytes, size: int, grey: bool, draft: bool) -> np.ndarray:
    mode = "L" if grey else "RGB"
    image = Image.open(io.BytesIO(data))
    if draft:
        image.draft(mode, (size, size))
    image = image.convert(mode)
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BOX)
    return np.asarray(image)


def measure(side: int, size: int, grey: bool, turns: int, count: int) -> Timing:
    images = jpegs(side, count)

    def ours(i: int) -> NDArray[np.uint8]:
        return decode(images[i], "x", size=size, grey=grey)

    sides: list[Callable[[], object]] = [
        lambda: [ours(i) for i in range(count)],
        lambda: list(in_order(ours, count)),
    ]
    if PIL is not None:
        sides += [
            lambda: [pillow(data, size, grey, False) for data in images],
            lambda: [pillow(data, size, grey, True) for data in images],
        ]
    timed = [[seconds(run) for run in sides] for _ in range(turns + 2)][2:]  # two turns to warm up
    rates = [count / statistics.median(turn[i] for turn in timed) for i in (0, 1)]
    ratios = [statistics.median(turn[i] / turn[j] for turn in timed) for i in range(2, len(sides)) for j in (0, 1)]
    return Timing(side, size, grey, *rates, *ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--images", type=int, default=256, help="images a turn")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    timings = [measure(*case, arguments.turns, arguments.images) for case in CASES]
    with_pillow = "without Pillow" if PIL is None else f"Pillow {PIL.__version__}"
    print(f"{platform.processor() or platform.machine()}, OpenCV {cv2.__version__}, {with_pillow}")
    print("JPEG  wanted  colour   images/s: a thread, a source   to Pillow: a thread, a source   to its draft")
    for t in timings:
        ratios = (t.one_to_pillow, t.source_to_pillow, t.one_to_draft, t.source_to_draft)
        cells = "  ".join("   -" if ratio is None else f"{ratio:4.2f}" for ratio in ratios)
        colour = "grey" if t.grey else "RGB"
        print(f"{t.side:4}  {t.size:6}  {colour:6}  {t.one_thread:8,.0f}  {t.source:8,.0f}  {cells}")


if __name__ == "__main__":
    main()
