"""Small sets in the layouts of the field's data sets, every image the same face, and folders of drawn people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2

from coalface.data.readers.layouts import RACES
from coalface.data.synthetic.generator import SyntheticFaces

FACE = cv2.imencode(".jpg", SyntheticFaces(1, 1, seed=2, size=16, grey=False).generate().pixels[0])[1].tobytes()


def people(folder: Path, names: Sequence[str], images: int, first: int = 0, file: str = "{:04}.png") -> Path:
    """Identity folders of synthetic faces, other people from another `first` on; `file` may have a {name}."""
    source = SyntheticFaces(len(names), images, 0, size=32, grey=False, first=first)
    for i, (label, pixels) in enumerate(zip(source.labels.tolist(), source.images(size=32, grey=False), strict=True)):
        path = folder / names[label] / file.format(1 + i % images, name=names[label])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(cv2.imencode(".png", pixels[:, :, ::-1])[1]))
    return folder


def rfw_lists(root: Path, persons: dict[str, tuple[str, str]]) -> None:
    """RFW's list of each race: ten pairs of two images of the first person, and ten of the first and the second."""
    for race, (first, second) in persons.items():
        say(root, f"txts/{race}/{race}_pairs.txt", *[f"{first}\t1\t2", f"{first}\t1\t{second}\t2"] * 10)


def put(root: Path, *files: str) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(FACE)


def say(root: Path, file: str, *lines: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text("".join(f"{line}\n" for line in lines))


def cfp(root: Path) -> None:
    for person in ("001", "002"):
        put(root, *(f"Data/Images/{person}/frontal/{i:02}.jpg" for i in (1, 2)), f"Data/Images/{person}/profile/01.jpg")
    people = [(person, i) for person in ("001", "002") for i in (1, 2)]
    say(
        root,
        "Protocol/Pair_list_F.txt",
        *(f"{k} ../Data/Images/{p}/frontal/{i:02}.jpg" for k, (p, i) in enumerate(people, 1)),
    )
    say(root, "Protocol/Pair_list_P.txt", *(f"{k} ../Data/Images/00{k}/profile/01.jpg" for k in (1, 2)))
    say(root, "Protocol/Split/FP/01/same.txt", "1,1", "2,1")
    say(root, "Protocol/Split/FP/01/diff.txt", "1,2")
    say(root, "Protocol/Split/FP/02/same.txt", "4,2")
    say(root, "Protocol/Split/FP/02/diff.txt", "3,1")
    say(root, "Protocol/Split/FF/01/same.txt", "1,2")
    say(root, "Protocol/Split/FF/01/diff.txt", "2,3")


def calfw(root: Path, name: str = "CALFW", image: str = "{}_{:04}.jpg") -> None:
    files = [image.format(person, i) for person in ("Ann_Lee", "Bo") for i in (1, 2)]
    put(root, *(f"aligned images/{file}" for file in files))
    pairs = [(files[0], files[1], 1), (files[2], files[3], 2), (files[0], files[2], 0), (files[1], files[3], 0)]
    say(root, f"pairs_{name}.txt", *(f"{file} {flag}" for a, b, flag in pairs for file in (a, b)))


def agedb30(root: Path) -> None:
    files = ["0_MariaCallas_35_f.jpg", "1_MariaCallas_65_f.jpg", "2_Mel_Brooks_40_m.jpg"]
    put(root, *files)
    say(root, "agedb_30_pair.txt", f"{files[0]} {files[1]} 1", f"{files[0]} {files[2]} 0")


def cfp_unpacked(root: Path) -> None:
    put(root, *(f"imgs/{i}.jpg" for i in range(6)))
    lines = [f"{k % 2} {2 * (k % 3)}.jpg {2 * (k % 3) + 1}.jpg" for k in (1, 3, 5)] + ["0 imgs/0.jpg imgs/4.jpg"] * 8
    say(root, "cfp_fp_ann.txt", *lines)


def rfw(root: Path) -> None:
    for race in RACES:
        put(root, *(f"data/{race}/m.{p}/m.{p}_{i:04}.jpg" for p in ("01", "0x") for i in (1, 2)))
        say(root, f"txts/{race}/{race}_pairs.txt", *["m.01\t1\t2", "m.0x\t1\tm.01\t2"] * 6)


def bupt(root: Path) -> None:
    put(root, *(f"race_per_7000/{race}/m.{race[0]}{p}/{i}.jpg" for race in RACES for p in (1, 2) for i in (0, 1)))


def vggface2(root: Path) -> None:
    put(root, "train/n000002/0001_01.jpg", "train/n000003/0001_01.jpg", "test/n000001/0001_01.jpg")


def casia(root: Path) -> None:
    put(root, "0000045/001.jpg", "0000045/002.jpg", "0000099/001.jpg")


def agedb(root: Path) -> None:
    put(root, "0_MariaCallas_35_f.jpg", "1_MariaCallas_65_f.jpg", "2_Mel_Brooks_40_m.jpg")


WRITERS = {
    "cfp": cfp,
    "calfw": calfw,
    "cplfw": lambda root: calfw(root, "CPLFW", "{}_{}.jpg"),
    "agedb-30": agedb30,
    "cfp-fp": cfp_unpacked,
    "rfw": rfw,
    "bupt-balancedface": bupt,
    "vggface2": vggface2,
    "casia-webface": casia,
    "agedb": agedb,
}
"""Layout → a function that lays a small set of it into a folder."""
