"""How near YuNet's landmarks are to those that people set, and photographs per second of one core.

    COALFACE_DATA=… python benchmarks/photographs.py [--detector YUNET.onnx] [--every 1]
    COALFACE_DATA=… python benchmarks/photographs.py --spoilt 1    # what is left out of enlarged, smoothed and cut ones

Landmarks: pupils and corners of the mouth of the London set's 102 neutral photographs (66 pixels between the eyes);
eye, nose tip and corner of the mouth of the CFP originals. A profile's eye distance is that of the template, scaled
by the distance from eye to mouth. Times are of the processor, so that others on the machine do not count.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.data.align import TEMPLATE
from coalface.data.detection import Face, YuNet
from coalface.data.photographs import cut_faces, decode_photograph, find_faces, prominence
from coalface.data.readers.landmarks import landmark_lists, read_landmarks

Sample = tuple[NDArray[np.uint8], NDArray[np.float64]]
"""A photograph and its five points, NaN where nobody set one."""
EYES = float(np.hypot(*(TEMPLATE[1] - TEMPLATE[0])))
EYE_TO_MOUTH = float(np.hypot(*(TEMPLATE[3] - TEMPLATE[0])))


def read_london(root: Path, every: int) -> list[Sample]:
    samples = []
    for path in sorted((root / "images").glob("*/neutral*.jpg"))[::every]:
        count, *lines = (root / "templates" / path.parent.name / f"{path.stem}.tem").read_text().splitlines()
        points = np.full((5, 2), np.nan)
        template = np.array([line.split()[:2] for line in lines[: int(count)]], float)
        points[[0, 1, 3, 4]] = (template[[0, 1, 87, 93]] + 0.5) / 3 - 0.5
        samples.append((decode_photograph(path.read_bytes(), path), points))
    return samples


def read_cfp(root: Path, side: str) -> list[Sample]:
    paths = sorted((root / "Images").glob(f"*/{side}/*.jpg"))
    files = [path.relative_to(root / "Images").as_posix() for path in paths]
    landmarks = read_landmarks(landmark_lists(root / "Fiducials"), files)
    return [
        (decode_photograph(path.read_bytes(), path), points)
        for path, points in zip(paths, landmarks.points, strict=True)
    ]


def scaled(factor: float) -> Callable[[Sample], Sample]:
    way = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
    return lambda sample: (
        np.asarray(cv2.resize(sample[0], None, fx=factor, fy=factor, interpolation=way), np.uint8),
        (sample[1] + 0.5) * factor - 0.5,
    )


def rotated(angle: float) -> Callable[[Sample], Sample]:
    def rotate(sample: Sample) -> Sample:
        height, width = sample[0].shape[:2]
        matrix = cv2.getRotationMatrix2D((width / 2, height / 2), angle, 0.7)
        image = cv2.warpAffine(sample[0], matrix, (width, height), borderMode=cv2.BORDER_REPLICATE)
        return np.asarray(image, np.uint8), sample[1] @ matrix[:, :2].T + matrix[:, 2]

    return rotate


def grey(sample: Sample) -> Sample:
    return np.repeat(cv2.cvtColor(sample[0], cv2.COLOR_RGB2GRAY)[:, :, None], 3, axis=2), sample[1]


def in_large(sample: Sample) -> Sample:
    canvas = np.full((3000, 4000, 3), 128, np.uint8)
    height, width = sample[0].shape[:2]
    canvas[1200 : 1200 + height, 700 : 700 + width] = sample[0]
    return canvas, sample[1] + [700, 1200]


def eye_distance(points: NDArray[np.float64]) -> float:
    if np.isfinite(points[:2]).all():
        return float(np.hypot(*(points[1] - points[0])))
    eye, mouth = (points[[0, 3]] if np.isfinite(points[0, 0]) else points[[1, 4]]).astype(float)
    return float(np.hypot(*(mouth - eye))) * EYES / EYE_TO_MOUTH


def measure(name: str, samples: list[Sample], detector: YuNet, change: Callable[[Sample], Sample]) -> str:
    pixels, shares, seconds = [], [], 0.0
    for image, points in map(change, samples):
        start = time.process_time()
        faces = detector.detect(image)
        cut_faces(image, faces)
        seconds += time.process_time() - start
        if faces:
            distance = np.nanmean(np.hypot(*(faces[0].points - points).T))
            pixels.append(distance)
            shares.append(distance / eye_distance(points))
    eyes = np.mean([eye_distance(change(sample)[1]) for sample in samples[:20]])
    figures = f"{np.mean(pixels):.1f} | {np.mean(shares):.1%} | {np.max(shares):.1%}" if pixels else "– | – | –"
    return f"| {name} | {eyes:.0f} | {len(pixels)} of {len(samples)} | {figures} | {len(samples) / seconds:.0f} |"


def spoilt(image: NDArray[np.uint8], face: Face) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Copies of a photograph with one face by which nobody should be recognised, and some that are good."""
    ways = (cv2.INTER_CUBIC, cv2.INTER_LINEAR, cv2.INTER_LANCZOS4, cv2.INTER_NEAREST)
    for pixels in (30, 40, 50, 60, 80, 100, 120, 160, 200):
        small = cv2.resize(image, (pixels, pixels), interpolation=cv2.INTER_AREA)
        for way in ways if pixels in (30, 60, 100) else ways[:1]:
            yield f"shrunk to {pixels}, enlarged", cv2.resize(small, image.shape[1::-1], interpolation=way)
        if pixels >= 120:
            yield f"shrunk to {pixels}", small
    for sigma in (5, 7, 10):
        yield f"smoothed by {sigma}", cv2.GaussianBlur(image, (0, 0), sigma)
    yield "JPEG of quality 30", cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 30])[1], 1)
    (_, eye_y), (right_x, _), (nose_x, nose_y), (_, mouth_y), _ = np.rint(face.points).astype(int)
    for beside in (-10, -5, 0, 5, 10):
        yield "cut through the nose", image[:, : nose_x + beside]
        yield "cut through the nose", image[:, nose_x + beside :]
    yield "cut between nose and mouth", image[: (nose_y + mouth_y) // 2]
    yield "cut at the eyes", image[eye_y:]
    yield "cut through an eye", image[:, :right_x]


def print_left_out(root: Path, detector: YuNet, half: int) -> None:
    """For each kind of copy, the reasons by which it is left out, of every second person; 0 or 1 says which half."""
    reasons: dict[str, Counter[str]] = {}
    for person in sorted((root / "images").iterdir())[half::2]:
        for path in sorted(person.glob("*.jpg")):
            image = decode_photograph(path.read_bytes(), path)
            (face, *_) = sorted(detector.detect(image), key=lambda face: -prominence(face, image.shape))
            copies = spoilt(image, face) if path.stem.startswith("neutral") else []
            for kind, copy in [("as it is", image), *copies]:
                copy = np.ascontiguousarray(copy)
                aligned = cut_faces(copy, find_faces(copy, detector))
                reason = aligned.left_out[0].reason if aligned.left_out else "taken"
                reasons.setdefault(kind, Counter())[reason] += 1
    for kind, counts in reasons.items():
        print(f"{kind}: {', '.join(f'{reason} {count}' for reason, count in counts.most_common())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detector", type=Path, help="the ONNX file of a YuNet; by default that of the extra photos")
    parser.add_argument("--every", type=int, default=1, help="take every so many-th photograph of the London set")
    parser.add_argument("--spoilt", type=int, choices=(0, 1), help="spoil the photographs of one half of the people")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    detector = YuNet(arguments.detector) if arguments.detector else YuNet.find()
    root = Path(os.environ["COALFACE_DATA"])
    if arguments.spoilt is not None:
        print_left_out(root / "london", detector, arguments.spoilt)
        return
    london = read_london(root / "london", arguments.every)
    print("| photographs | eye distance, pixels | found | error, pixels | of the eye distance | worst | a second |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    changes: dict[str, Callable[[Sample], Sample]] = {
        "as they are, 450×450": lambda sample: sample,
        "grey": grey,
        "half as large": scaled(0.5),
        "a fifth as large": scaled(0.2),
        "an eighth as large": scaled(0.125),
        "a twelfth as large": scaled(1 / 12),
        "three times as large": scaled(3),
        "within 4000×3000": in_large,
        "turned by 20°": rotated(20),
        "turned by 45°": rotated(45),
        "turned by 90°": rotated(90),
        "turned by 180°": rotated(180),
    }
    for name, change in changes.items():
        print(measure(f"London, {name}", london, detector, change), flush=True)
    for side in ("frontal", "profile"):
        samples = read_cfp(root / "cfp" / "originals", side)
        print(measure(f"CFP, {side}", samples, detector, lambda sample: sample), flush=True)


if __name__ == "__main__":
    main()
