"""Every way between folders, records, `.bin` and packs: what was there is there again."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from commands import invoked
from image_folders import content, faces

from coalface.core.errors import DataError
from coalface.core.method import generator
from coalface.data.pairs import read_pairs
from coalface.data.readers.bin import write_bin
from coalface.data.readers.folders import read_folder
from coalface.data.readers.pack import read_pack
from coalface.data.readers.records import read_rec
from coalface.data.stores import Store, open_store
from coalface.data.tools.convert import PAIRS, Pairs, convert


def paired(store: Store) -> list[tuple[bytes, bytes, bool]]:
    assert store.pairs is not None
    sides = zip(store.pairs.left.tolist(), store.pairs.right.tolist(), store.pairs.same.tolist(), strict=True)
    return [(bytes(store.encoded(a)), bytes(store.encoded(b)), same) for a, b, same in sides]


def test_folders_and_records_hold_the_same_bytes_both_ways(tmp_path: Path) -> None:
    folder = open_store(faces(tmp_path / "f"))
    assert convert(folder, tmp_path / "r", "rec") == [
        "the images are 32×32: insightface's loader wants all of them to be 112×112"
    ]
    rec = open_store(tmp_path / "r")
    assert (rec.kind, len(rec)) == ("rec", len(folder)) and content(rec) == content(folder)
    assert (tmp_path / "r" / "property").read_text() == "3,32,32\n"
    assert read_rec(tmp_path / "r").names == ("0", "1", "2")  # without our list, identities are their numbers
    assert convert(rec, tmp_path / "g", "folder") == []
    assert content(open_store(tmp_path / "g")) == content(folder)
    assert [p.relative_to(tmp_path / "g") for p in sorted((tmp_path / "g").rglob("*.jpg"))] == [
        p.relative_to(tmp_path / "f") for p in sorted((tmp_path / "f").rglob("*.jpg"))
    ]


def test_packs_give_back_their_pixels(tmp_path: Path) -> None:
    folder = open_store(faces(tmp_path / "f", suffix=".png"))
    convert(folder, tmp_path / "p", "pack", size=32)
    pack = read_pack(tmp_path / "p")
    convert(folder, tmp_path / "grey", "pack", size=16, grey=True)
    convert(open_store(tmp_path / "grey"), tmp_path / "images", "folder")
    image = cv2.imread(str(next((tmp_path / "images").rglob("*.png"))), cv2.IMREAD_UNCHANGED)
    assert image.shape == (16, 16)
    with pytest.raises(ValueError, match="from 1 to 4096"):
        convert(folder, tmp_path / "q", "pack", size=5000)
    for way in ("folder", "rec"):
        convert(open_store(tmp_path / "p"), tmp_path / way, way)  # type: ignore[arg-type]
        convert(open_store(tmp_path / way), tmp_path / f"{way}-p", "pack", size=32)
        again = read_pack(tmp_path / f"{way}-p")
        assert np.array_equal(again.pixels, pack.pixels) and np.array_equal(again.labels, pack.labels)
        assert again.names == pack.names


def listed(tmp_path: Path, folds: int) -> tuple[Store, Path]:
    """Folders and a list of View 2 (or View 1, with no folds) over them."""
    folder = open_store(faces(tmp_path / "f"))
    block = ["Ann_Lee\t1\t2", "Bo\t3\t1", "Ann_Lee\t1\tBo\t2", "José_Núñez\t2\tAnn_Lee\t4"]
    text = "\n".join([f"{folds}\t2" if folds else "2", *block * max(folds, 1)]) + "\n"
    (tmp_path / "list.txt").write_text(text, encoding="utf-8")
    return folder, tmp_path / "list.txt"


@pytest.mark.parametrize("folds", [0, 10])
def test_a_bin_holds_the_pairs_of_a_list_and_gives_them_back(tmp_path: Path, folds: int) -> None:
    folder, path = listed(tmp_path, folds)
    remarks = convert(folder, tmp_path / "x.bin", "bin", pairs=Pairs(path))
    assert remarks == ["8 images are in no pair, so a .bin has no place for them"]
    store = open_store(tmp_path / "x.bin")
    want = [
        (tmp_path / "f" / a / f"{a}_000{i}.jpg", tmp_path / "f" / b / f"{b}_000{j}.jpg", same)
        for a, i, b, j, same in [
            ("Ann_Lee", 1, "Ann_Lee", 2, True),
            ("Bo", 3, "Bo", 1, True),
            ("Ann_Lee", 1, "Bo", 2, False),
            ("José_Núñez", 2, "Ann_Lee", 4, False),
        ]
    ]
    assert paired(store) == [(a.read_bytes(), b.read_bytes(), same) for a, b, same in want] * max(folds, 1)
    with open(tmp_path / "x.bin", "rb") as file:  # as insightface reads it
        images, same = pickle.load(file, encoding="bytes")  # our own file
    assert len(images) == 2 * len(same) and same == store.pairs.same.tolist()  # type: ignore[union-attr]

    assert convert(store, tmp_path / "g", "folder") == []
    back = open_store(tmp_path / "g")
    assert (tmp_path / "g" / PAIRS).read_text().splitlines()[0] == (f"{folds} 2" if folds else "2")
    convert(back, tmp_path / "y.bin", "bin", pairs=Pairs(tmp_path / "g" / PAIRS))
    assert (tmp_path / "y.bin").read_bytes() == (tmp_path / "x.bin").read_bytes()


def test_a_bin_becomes_a_pack_with_its_pairs_beside_it(tmp_path: Path) -> None:
    folder, path = listed(tmp_path, 10)
    convert(folder, tmp_path / "x.bin", "bin", pairs=Pairs(path))
    store = open_store(tmp_path / "x.bin")
    remarks = convert(store, tmp_path / "p", "pack", size=32)
    assert remarks == [f"its pairs are in {tmp_path / 'p'}.{PAIRS}"]
    pack = read_pack(tmp_path / "p")
    pairs = read_pairs(tmp_path / f"p.{PAIRS}", pack)
    assert store.pairs is not None
    for ours, original in ((pairs.left, store.pairs.left), (pairs.same, store.pairs.same)):
        assert np.array_equal(ours, original)
    assert pairs.fold is not None and np.array_equal(pairs.fold, np.repeat(np.arange(10), 4))


def test_a_bin_that_contradicts_itself_is_not_made_into_a_list(tmp_path: Path) -> None:
    a, b = (path.read_bytes() for path in sorted(faces(tmp_path / "f").rglob("Ann_Lee*.jpg"))[:2])
    write_bin(tmp_path / "x.bin", [a, b, a, b], [True, False])
    with pytest.raises(DataError, match="contradicts itself"):
        convert(open_store(tmp_path / "x.bin"), tmp_path / "g", "folder")
    assert not (tmp_path / "g").exists() and not list(tmp_path.glob(".*partial"))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    store = open_store(faces(tmp_path / "f"))
    before = {path: path.read_bytes() for path in (tmp_path / "f").rglob("*.jpg")}
    for kind in ("folder", "rec", "pack", "bin"):
        with pytest.raises(FileExistsError, match="move it away"):
            convert(store, tmp_path / "f", kind, pairs=Pairs(draw=2, rng=generator(0)))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="outside"):
        convert(store, tmp_path / "f" / "sub", "rec")
    assert {path: path.read_bytes() for path in (tmp_path / "f").rglob("*.jpg")} == before


def damaged(way: str, image: bytes) -> bytes:
    """A header and nothing behind it; one whose header alone is whole; one that the decoder fills in."""
    png = bytes(cv2.imencode(".png", cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR))[1])
    scan = image.index(b"\xff\xda")
    hollow = png[:60] + bytes(len(png) - 80) + png[-20:]
    filled = image[: scan + 200] + 20 * b"\xff" + image[scan + 220 :]
    return {"header": image[:scan], "hollow": hollow, "filled": filled}[way]


@pytest.mark.parametrize(
    ("kind", "way"),
    [(kind, way) for kind in ("folder", "rec", "bin") for way in ("header", "hollow", "filled")]
    + [("pack", "header"), ("pack", "hollow")],  # which takes an image as the decoder fills it
)
def test_a_damaged_image_is_not_handed_on_and_leaves_nothing_half_written(tmp_path: Path, kind: str, way: str) -> None:
    image = faces(tmp_path / "f") / "Bo" / "Bo_0002.jpg"
    image.write_bytes(damaged(way, image.read_bytes()))
    pairs = Pairs(draw=30, rng=generator(0))
    with pytest.raises(DataError, match=r"Bo_0002\.jpg: it is damaged"):
        convert(open_store(tmp_path / "f"), tmp_path / "out", kind, size=32, pairs=pairs)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


@pytest.mark.parametrize("draw", [0, 10_000])
def test_a_number_of_pairs_that_cannot_be_drawn_is_told_the_range(tmp_path: Path, draw: int) -> None:
    result = invoked("data", "convert", faces(tmp_path / "f"), tmp_path / "x.bin", "--draw", draw)
    reason = "31 genuine pairs, not 10,000" if draw > 31 else "ask for 10 to 31 of each kind"
    assert str(result.exception).startswith(f"--draw {draw}: ") and reason in str(result.exception)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("zip", [], "--to: 'zip' is not a format; choose folder"),
        ("folder", ["--size", 64], "--size: it is for a pack, and this makes a folder"),
        ("pack", ["--pairs", "list.txt"], "--pairs: it is for a bin, and this makes a pack"),
        ("bin", ["--pairs", "list.txt", "--draw", 10], "--pairs and --draw: pairs come from one place; keep one"),
        ("bin", ["--seed", 0, "--pairs", "list.txt"], "--seed: it is for drawn pairs"),
        ("bin", ["--list", "x"], "--list x: .* has no pair lists of its own with names"),
        ("rec", ["--part", "train"], "unknown layout"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    tmp_path: Path, kind: str, options: list[object], reason: str
) -> None:
    result = invoked("data", "convert", faces(tmp_path / "f"), tmp_path / "out", "--to", kind, *options)
    assert result.exit_code == 1 and re.search(reason, str(result.exception))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


def test_the_command_converts_and_inspects(tmp_path: Path) -> None:
    faces(tmp_path / "f")
    converted = invoked("data", "convert", tmp_path / "f", tmp_path / "r", "--to", "rec")
    assert converted.exit_code == 0 and "15 images of 3 identities" in converted.output and "note: " in converted.output
    looked = invoked("data", "inspect", tmp_path / "r", "--json")
    report = json.loads(looked.output)
    assert (report["kind"], report["images"], report["damaged_count"]) == ("rec", 15, 0)
    inspected = invoked("data", "inspect", tmp_path / "r", "--headers")
    assert "15 images of 3 identities" in inspected.output and "nothing looks wrong" in inspected.output
    assert len(read_folder(tmp_path / "f").files) == 15


def test_files_of_a_pack_that_would_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    store = open_store(faces(tmp_path / "f"))
    forged = dataclasses.replace(store, kind="pack", files=["../x.jpg", *list(store.files)[1:]])
    with pytest.raises(DataError, match="not a plain name"):
        convert(forged, tmp_path / "g", "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]
