"""Every way between folders, records, `.bin` and packs: what was there is there again."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from coalface.cli.main import app
from coalface.core.method import generator
from coalface.data.faceset import FaceSet
from coalface.data.pairs import read_pairs
from coalface.data.readers.bin import write_bin
from coalface.data.readers.folders import read_folder
from coalface.data.readers.layouts import read_lists
from coalface.data.readers.pack import read_pack
from coalface.data.readers.records import read_rec, write_rec
from coalface.data.stores import IDENTITIES, Store, open_store
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.data.tools.convert import PAIRS, Pairs, convert, kind_of

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
    found: dict[str, list[bytes]] = {}
    for i, label in enumerate(store.labels.tolist()):
        found.setdefault(store.names[label], []).append(bytes(store.encoded(i)))
    return found


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


def test_records_without_names_become_folders_of_their_numbers(tmp_path: Path) -> None:
    convert(open_store(faces(tmp_path / "f")), tmp_path / "r", "rec")
    (tmp_path / "r" / IDENTITIES).unlink()
    convert(open_store(tmp_path / "r"), tmp_path / "g", "folder")
    assert sorted(p.name for p in (tmp_path / "g").iterdir()) == ["0", "1", "2"]
    assert (tmp_path / "g" / "0" / "0_0001.jpg").exists()


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    convert(open_store(faces(tmp_path / "f")), tmp_path / "r", "rec")
    names = open_store(tmp_path / "r").names
    (tmp_path / "r" / IDENTITIES).write_bytes(b"\xef\xbb\xbf" + (tmp_path / "r" / IDENTITIES).read_bytes())
    assert open_store(tmp_path / "r").names == names


def test_a_list_of_names_of_other_records_is_refused(tmp_path: Path) -> None:
    convert(open_store(faces(tmp_path / "f")), tmp_path / "r", "rec")
    (tmp_path / "r" / IDENTITIES).write_text("only\n")
    with pytest.raises(ValueError, match="belongs to other records"):
        open_store(tmp_path / "r")


def test_packs_give_back_their_pixels(tmp_path: Path) -> None:
    folder = open_store(faces(tmp_path / "f", suffix=".png"))
    convert(folder, tmp_path / "p", "pack", size=32)
    pack = read_pack(tmp_path / "p", verify=True)
    for way in ("folder", "rec"):
        convert(open_store(tmp_path / "p"), tmp_path / way, way)  # type: ignore[arg-type]
        convert(open_store(tmp_path / way), tmp_path / f"{way}-p", "pack", size=32)
        again = read_pack(tmp_path / f"{way}-p")
        assert np.array_equal(again.pixels, pack.pixels) and np.array_equal(again.labels, pack.labels)
        assert again.names == pack.names


def test_a_grey_pack_becomes_grey_images(tmp_path: Path) -> None:
    convert(open_store(faces(tmp_path / "f")), tmp_path / "p", "pack", size=16, grey=True)
    convert(open_store(tmp_path / "p"), tmp_path / "g", "folder")
    image = cv2.imread(str(next((tmp_path / "g").rglob("*.png"))), cv2.IMREAD_UNCHANGED)
    assert image.shape == (16, 16)


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
    made = open_store(tmp_path / "x.bin")
    want = [
        (tmp_path / "f" / a / f"{a}_000{i}.jpg", tmp_path / "f" / b / f"{b}_000{j}.jpg", same)
        for a, i, b, j, same in [
            ("Ann_Lee", 1, "Ann_Lee", 2, True),
            ("Bo", 3, "Bo", 1, True),
            ("Ann_Lee", 1, "Bo", 2, False),
            ("José_Núñez", 2, "Ann_Lee", 4, False),
        ]
    ]
    assert paired(made) == [(a.read_bytes(), b.read_bytes(), same) for a, b, same in want] * max(folds, 1)
    with open(tmp_path / "x.bin", "rb") as file:  # as insightface reads it
        images, same = pickle.load(file, encoding="bytes")  # our own file
    assert len(images) == 2 * len(same) and same == made.pairs.same.tolist()  # type: ignore[union-attr]

    assert convert(made, tmp_path / "g", "folder") == []
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
    for ours, theirs in ((pairs.left, store.pairs.left), (pairs.same, store.pairs.same)):
        assert np.array_equal(ours, theirs)
    assert pairs.fold is not None and np.array_equal(pairs.fold, np.repeat(np.arange(10), 4))


def test_a_mixed_order_of_pairs_becomes_view_1_with_a_remark(tmp_path: Path) -> None:
    images = [path.read_bytes() for path in sorted(faces(tmp_path / "f").rglob("Ann_Lee*.jpg"))]
    others = [path.read_bytes() for path in sorted((tmp_path / "f").rglob("Bo*.jpg"))]
    write_bin(
        tmp_path / "x.bin", [images[0], others[0], images[1], images[2], others[1], others[2]], [False, True, True]
    )
    remarks = convert(open_store(tmp_path / "x.bin"), tmp_path / "g", "folder")
    assert [said.split(":")[0] for said in remarks] == [
        "1 pair is left out",
        "the pairs are in another order than in the .bin, without folds",
    ]
    assert (tmp_path / "g" / PAIRS).read_text().startswith("1\n")


def test_a_bin_that_contradicts_itself_is_not_made_into_a_list(tmp_path: Path) -> None:
    a, b = (path.read_bytes() for path in sorted(faces(tmp_path / "f").rglob("Ann_Lee*.jpg"))[:2])
    write_bin(tmp_path / "x.bin", [a, b, a, b], [True, False])
    with pytest.raises(ValueError, match="contradicts itself"):
        convert(open_store(tmp_path / "x.bin"), tmp_path / "g", "folder")
    assert not (tmp_path / "g").exists() and not list(tmp_path.glob(".*partial"))


def test_drawn_pairs_follow_from_the_generator(tmp_path: Path) -> None:
    folder = open_store(faces(tmp_path / "f"))
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        convert(folder, tmp_path / f"{name}.bin", "bin", pairs=Pairs(draw=10, rng=generator(seed, "x")))
    a, b, c = ((tmp_path / f"{name}.bin").read_bytes() for name in "abc")
    assert a == b != c
    assert sum(same for _, _, same in paired(open_store(tmp_path / "a.bin"))) == 10


def test_a_bin_needs_pairs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--pairs FILE"):
        convert(open_store(faces(tmp_path / "f")), tmp_path / "x.bin", "bin")


def test_records_of_a_bin_leave_its_pairs_out_and_say_so(tmp_path: Path) -> None:
    folder, path = listed(tmp_path, 10)
    convert(folder, tmp_path / "x.bin", "bin", pairs=Pairs(path))
    assert "no pairs" in convert(open_store(tmp_path / "x.bin"), tmp_path / "r", "rec")[-1]
    assert len(open_store(tmp_path / "r")) == 80


def test_nothing_is_written_over(tmp_path: Path) -> None:
    store = open_store(faces(tmp_path / "f"))
    before = {path: path.read_bytes() for path in (tmp_path / "f").rglob("*.jpg")}
    for kind in ("folder", "rec", "pack", "bin"):
        with pytest.raises(FileExistsError, match="move it away"):
            convert(store, tmp_path / "f", kind, pairs=Pairs(draw=2, rng=generator(0)))  # type: ignore[arg-type]
    assert {path: path.read_bytes() for path in (tmp_path / "f").rglob("*.jpg")} == before


def damaged(way: str, image: bytes) -> bytes:
    """No image; a header and nothing behind it; an image cut off; one whose header alone is whole."""
    png = bytes(cv2.imencode(".png", cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR))[1])
    scan = image.index(b"\xff\xda")
    hollow = png[:60] + bytes(len(png) - 80) + png[-20:]
    return {"text": b"no image", "header": image[:scan], "cut": image[:-60], "hollow": hollow}[way]


@pytest.mark.parametrize("way", ["text", "header", "cut", "hollow"])
@pytest.mark.parametrize("kind", ["folder", "rec", "bin", "pack"])
def test_a_damaged_image_is_not_handed_on_and_leaves_nothing_half_written(tmp_path: Path, kind: str, way: str) -> None:
    image = faces(tmp_path / "f") / "Bo" / "Bo_0002.jpg"
    image.write_bytes(damaged(way, image.read_bytes()))
    pairs = Pairs(draw=30, rng=generator(0))
    with pytest.raises(ValueError, match=r"Bo_0002\.jpg is damaged.*replace it from the original, or delete it"):
        convert(open_store(tmp_path / "f"), tmp_path / "out", kind, size=32, pairs=pairs)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


@pytest.mark.parametrize("form", ["rec", "bin"])
def test_damage_in_records_and_pairs_is_not_handed_on_either(tmp_path: Path, form: str) -> None:
    image = next((faces(tmp_path / "f") / "Bo").iterdir()).read_bytes()
    bad = damaged("header", image)
    if form == "rec":
        write_rec([(0, image), (0, bad)], tmp_path / "x.rec")
    else:
        write_bin(tmp_path / "x.rec", [image, bad], [True])
        (tmp_path / "x.rec").rename(tmp_path / "x.bin")
    store = open_store(tmp_path / ("x.rec" if form == "rec" else "x.bin"))
    with pytest.raises(ValueError, match=r"(record 2|image 1) is damaged.*`coalface data inspect` lists all"):
        convert(store, tmp_path / "out", "folder")


@pytest.mark.parametrize("draw", [-1, 0, 9, 10_000])
def test_a_number_of_pairs_that_cannot_be_drawn_is_told_the_range(tmp_path: Path, draw: int) -> None:
    told = invoked("convert", faces(tmp_path / "f"), tmp_path / "x.bin", "--draw", draw)
    wanted = "31 genuine pairs, and 10,000 are wanted" if draw > 31 else "ask for 10 to 31 of each kind"
    assert str(told.exception).startswith(f"--draw {draw}: ") and wanted in str(told.exception)


def test_too_few_images_for_drawn_pairs_are_told_so(tmp_path: Path) -> None:
    made = convert(open_store(faces(tmp_path / "f", images=2)), tmp_path / "g", "folder")
    assert made == []
    shutil.rmtree(tmp_path / "g" / "Bo")
    told = invoked("convert", tmp_path / "g", tmp_path / "x.bin", "--draw", 3)
    assert str(told.exception).endswith(
        "of these images cannot be dealt to 10 folds, of which each needs one of each kind: they make no more than 4"
    )


def test_the_form_is_known_from_the_name_or_is_asked_for() -> None:
    assert kind_of(Path("x.bin"), None) == "bin" and kind_of(Path("x"), "rec") == "rec"
    with pytest.raises(ValueError, match="say what to make"):
        kind_of(Path("x"), None)
    with pytest.raises(ValueError, match="no such form"):
        kind_of(Path("x.bin"), "zip")


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("folder", ["--size", 64], "--size is for a pack, and this makes a folder: leave it out, or say --to pack"),
        ("rec", ["--grey"], "--grey is for a pack, and this makes a rec"),
        ("bin", ["--size", 112, "--draw", 10], "--size is for a pack"),
        ("pack", ["--pairs", "list.txt"], "--pairs is for a bin, and this makes a pack"),
        ("rec", ["--draw", 10], "--draw is for a bin"),
        ("folder", ["--list", "cfp-fp"], "--list is for a bin"),
        ("bin", ["--pairs", "list.txt", "--draw", 10], "--pairs and --draw: pairs come from one place; keep one"),
        ("bin", ["--list", "x", "--draw", 10], "--list and --draw: pairs come from one place"),
        ("bin", ["--seed", 0, "--pairs", "list.txt"], "--seed is for drawn pairs"),
        ("bin", ["--list", "x"], "--list x: .* has no pair lists of its own with names"),
        ("rec", ["--part", "train"], "has no known layout"),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path: Path, kind: str, options: list[object], said: str) -> None:
    told = invoked("convert", faces(tmp_path / "f"), tmp_path / "out", "--to", kind, *options)
    assert told.exit_code == 1 and re.search(said, str(told.exception))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


def test_of_what_has_no_parts_none_can_be_asked_for(tmp_path: Path) -> None:
    convert(open_store(faces(tmp_path / "f")), tmp_path / "r", "rec")
    with pytest.raises(ValueError, match="has no part 'train': only the layouts of the field's folders have parts"):
        open_store(tmp_path / "r", part="train")


def test_pairs_from_two_places_are_refused(tmp_path: Path) -> None:
    folder, path = listed(tmp_path, 0)
    with pytest.raises(ValueError, match="give one of --pairs, --list and --draw"):
        convert(folder, tmp_path / "x.bin", "bin", pairs=Pairs(path, draw=10, rng=generator(0)))


def test_what_is_no_set_of_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(ValueError, match="no set of images"):
        open_store(tmp_path / "x.txt")
    with pytest.raises(FileNotFoundError):
        open_store(tmp_path / "missing")


def test_the_command_converts_and_inspects(tmp_path: Path) -> None:
    faces(tmp_path / "f")
    run = CliRunner().invoke
    made = run(app, ["data", "convert", str(tmp_path / "f"), str(tmp_path / "r"), "--to", "rec"])
    assert made.exit_code == 0 and "15 images of 3 identities" in made.output and "note: " in made.output
    looked = run(app, ["data", "inspect", str(tmp_path / "r"), "--json"])
    report = json.loads(looked.output)
    assert (report["kind"], report["images"], report["damaged_count"]) == ("rec", 15, 0)
    told = run(app, ["data", "inspect", str(tmp_path / "r"), "--headers"])
    assert "15 images of 3 identities" in told.output and "nothing looks wrong" in told.output
    assert len(read_folder(tmp_path / "f").files) == 15


def test_an_inspection_counts_every_damaged_record(tmp_path: Path) -> None:
    from coalface.data.tools.inspect import inspect

    convert(open_store(faces(tmp_path / "f")), tmp_path / "r", "rec")
    rec = read_rec(tmp_path / "r")
    data = bytearray((tmp_path / "r" / "train.rec").read_bytes())
    for key in (2, 7):
        offset = int(rec.records.offsets[key])
        data[offset : offset + 4] = b"XXXX"  # the magic number
    offset = int(rec.records.offsets[4])
    data[offset + 12 : offset + 16] = np.float32(-1).tobytes()  # the label
    (tmp_path / "r" / "train.rec").write_bytes(data)
    (tmp_path / "r" / IDENTITIES).unlink()
    with pytest.raises(ValueError, match="record 2"):
        open_store(tmp_path / "r")
    store = open_store(tmp_path / "r", damaged="leave out")
    report = inspect(store.items(), store.names, store.files.__getitem__, path="r", kind=store.kind)
    assert (len(store), report.images, report.damaged_count) == (12, 15, 3)
    assert all(f"record {key}:" in said for key, said in zip((2, 7, 4), report.damaged, strict=True))


def test_a_data_set_in_a_layout_of_the_field_is_opened_whole_or_in_part(tmp_path: Path) -> None:
    image = next(iter(content(open_store(faces(tmp_path / "f"))).values()))[0]
    for file in ("train/n000002/0001_01.jpg", "train/n000003/0001_01.jpg", "test/n000001/0001_01.jpg"):
        (tmp_path / "v" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "v" / file).write_bytes(image)
    assert open_store(tmp_path / "v").names == ("n000002", "n000003")
    assert content(open_store(tmp_path / "v", part="test")) == {"n000001": [image]}
    with pytest.raises(ValueError, match="no part"):
        open_store(tmp_path / "v", part="val")
    with pytest.raises(ValueError, match="no known layout"):
        open_store(tmp_path / "f", part="val")


@pytest.mark.parametrize("name", ["/tmp/x", "../x", "a/../../x", ".", "", "a\tb", "\x1b]0;x\x07", "a\\b", "\u202eabc"])
def test_names_that_would_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    convert(open_store(faces(tmp_path / "f")), tmp_path / "r", "rec")
    (tmp_path / "r" / IDENTITIES).write_text(f"{name}\nb\nc\n")
    with pytest.raises(ValueError, match="identity 1: .* is no plain name"):
        open_store(tmp_path / "r")


def test_files_of_a_pack_that_would_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    store = open_store(faces(tmp_path / "f"))
    forged = dataclasses.replace(store, kind="pack", files=["../x.jpg", *list(store.files)[1:]])
    with pytest.raises(ValueError, match="no plain name"):
        convert(forged, tmp_path / "g", "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


def test_names_that_cannot_stand_in_a_line_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (faces(tmp_path / "f") / "Bo").rename(tmp_path / "f" / "new\nline")
    with pytest.raises(ValueError, match="no plain name"):
        convert(open_store(tmp_path / "f"), tmp_path / "r", "rec")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


def test_names_with_a_dot_keep_the_ending_of_their_images(tmp_path: Path) -> None:
    (faces(tmp_path / "f") / "Bo").rename(tmp_path / "f" / "m.0abc")
    convert(open_store(tmp_path / "f"), tmp_path / "r", "rec")
    convert(open_store(tmp_path / "r"), tmp_path / "g", "folder")
    assert (tmp_path / "g" / "m.0abc" / "m.0abc_0001.jpg").exists()
    assert content(open_store(tmp_path / "g")) == content(open_store(tmp_path / "f"))


def test_images_of_one_stem_in_a_pack_keep_apart(tmp_path: Path) -> None:
    place = faces(tmp_path / "f") / "Bo"
    (place / "Bo_0001.jpeg").write_bytes((place / "Bo_0002.jpg").read_bytes())
    convert(open_store(tmp_path / "f"), tmp_path / "p", "pack", size=32)
    convert(open_store(tmp_path / "p"), tmp_path / "g", "folder")
    assert {"Bo_0001.jpg.png", "Bo_0001.jpeg.png", "Bo_0002.png"} <= {p.name for p in (tmp_path / "g" / "Bo").iterdir()}


@pytest.mark.parametrize("size", [0, -3, 5000])
def test_a_size_that_cannot_be_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 4096"):
        convert(open_store(faces(tmp_path / "f")), tmp_path / "p", "pack", size=size)


def test_nothing_is_written_into_what_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outside"):
        convert(open_store(faces(tmp_path / "f")), tmp_path / "f" / "sub", "rec")


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def test_an_inspection_goes_on_after_links_that_lead_nowhere(tmp_path: Path) -> None:
    folder = faces(tmp_path / "f")
    (folder / "round").symlink_to("round")
    (folder / "Bo" / "loop.jpg").symlink_to("loop.jpg")
    (folder / "Bo" / "gone.png").symlink_to("nothing.png")
    (folder / "Bo" / "folder.jpg").symlink_to(folder / "Ann_Lee")  # leads somewhere, to no image
    told = invoked("inspect", folder)
    assert told.exit_code == 1 and "15 images of 3 identities" in told.output
    for name in ("round", "Bo/loop.jpg", "Bo/gone.png"):
        assert f"damaged: {folder / name} cannot be read (" in told.output
    assert told.output.count("damaged:") == 3 and "- 3 folders or files cannot be used" in told.output
    report = json.loads(invoked("inspect", folder, "--json").stdout)
    assert (report["broken_count"], report["damaged_count"], report["images"]) == (3, 0, 15)
    for command in (["pack", folder, tmp_path / "p"], ["convert", folder, tmp_path / "g", "--to", "folder"]):
        refused = invoked(*command)
        assert "leads nowhere: mend it, or delete it" in str(refused.exception) and refused.exit_code == 1


def test_an_inspection_goes_on_after_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = faces(tmp_path / "f")
    scan, read = os.scandir, Path.read_bytes

    def refused(path: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", lambda at=".": refused(at) if str(at).endswith("Ann_Lee") else scan(at))
    monkeypatch.setattr(Path, "read_bytes", lambda at: refused(at) if at.name == "Bo_0002.jpg" else read(at))
    told = invoked("inspect", folder)
    assert told.exit_code == 1 and "11 images of 2 identities" in told.output
    assert f"damaged: {folder / 'Ann_Lee'} cannot be read (Permission denied); give yourself access" in told.output
    assert f"damaged: {folder / 'Bo' / 'Bo_0002.jpg'}: [Errno 13] Permission denied" in told.output
    assert "- 1 folder or file cannot be used" in told.output and "- 1 image is damaged: replace" in told.output


@pytest.mark.parametrize("race", ["African", "Asian"])
def test_parts_and_flat_images_that_cannot_be_read_are_noted_too(tmp_path: Path, race: str) -> None:
    image = next(iter(content(open_store(faces(tmp_path / "f"))).values()))[0]
    for file in ("African/a/1.jpg", "Asian/b/1.jpg"):
        (tmp_path / "b" / file).parent.mkdir(parents=True)
        (tmp_path / "b" / file).write_bytes(image)
    (tmp_path / "b" / race / "loop").symlink_to("loop")
    (tmp_path / "l").mkdir()
    (tmp_path / "l" / "one.jpg").write_bytes(image)
    (tmp_path / "l" / "two.jpg").symlink_to("two.jpg")
    (tmp_path / "l" / "agedb_30_pair.txt").write_text("one.jpg two.jpg 1\n")
    for folder, images, name in (("b", 2, f"{race}/loop"), ("l", 1, "two.jpg")):
        store = open_store(tmp_path / folder, damaged="leave out")
        assert len(store) == images and len(store.broken) == 1 and str(tmp_path / folder / name) in store.broken[0]
        with pytest.raises(ValueError, match=name):
            open_store(tmp_path / folder)


def test_an_inspection_of_records_finds_ranges_that_do_not_fit(tmp_path: Path) -> None:
    convert(open_store(faces(tmp_path / "f")), tmp_path / "r", "rec")
    assert invoked("inspect", tmp_path / "r").exit_code == 0
    rec = read_rec(tmp_path / "r")
    data = bytearray((tmp_path / "r" / "train.rec").read_bytes())
    first, second = (int(rec.records.offsets[key]) + 32 for key in rec.identities[:2])  # the labels of a whole record
    data[first : first + 8], data[second : second + 8] = data[second : second + 8], data[first : first + 8]
    (tmp_path / "r" / "train.rec").write_bytes(data)
    told = invoked("inspect", tmp_path / "r")
    assert told.exit_code == 1 and "15 images of 3 identities" in told.output
    assert "damaged: " in told.output and "and its images have the label" in told.output
    assert "beside the images do not fit them: write the set anew" in told.output
    looked = invoked("inspect", tmp_path / "r", "--json")
    report = json.loads(looked.stdout)
    assert looked.exit_code == 1 and report["damaged_count"] == 0
    assert len(report["broken"]) == report["broken_count"] > 0


def test_a_damaged_list_of_names_does_not_end_an_inspection(tmp_path: Path) -> None:
    convert(open_store(faces(tmp_path / "f")), tmp_path / "r", "rec")
    (tmp_path / "r" / IDENTITIES).write_text("only\n")
    told = invoked("inspect", tmp_path / "r")
    assert told.exit_code == 1 and "belongs to other records" in told.output and "15 images of 3" in told.output


def test_names_stay_with_their_identities_where_all_images_of_one_are_damaged(tmp_path: Path) -> None:
    convert(open_store(faces(tmp_path / "f")), tmp_path / "r", "rec")
    rec = read_rec(tmp_path / "r")
    data = bytearray((tmp_path / "r" / "train.rec").read_bytes())
    for key in rec.keys[rec.labels == 1].tolist():
        offset = int(rec.records.offsets[key])
        data[offset : offset + 4] = b"XXXX"
    (tmp_path / "r" / "train.rec").write_bytes(data)
    store = open_store(tmp_path / "r", damaged="leave out")
    assert store.names == ("Ann_Lee", "José_Núñez") and len(store.faults) == int(np.sum(rec.labels == 1))
    assert content(store)["José_Núñez"] == content(open_store(tmp_path / "f"))["José_Núñez"]


def test_a_sound_set_ends_an_inspection_with_0(tmp_path: Path) -> None:
    told = invoked("inspect", faces(tmp_path / "f"))
    assert told.exit_code == 0 and "damaged" not in told.output
    assert "exit code 1" in " ".join(invoked("inspect", "--help").output.split())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("lfv.bin", r"lfv\.bin does not exist; did you mean .*/lfw\.bin or .*/loop\.bin\?"),
        ("set/train.rec", r"set/train\.rec does not exist; did you mean .*/set/faces\.rec\?"),
        ("none.rec", r"none\.rec does not exist; check the path$"),
        ("sett", r"sett is not a folder or a file: nothing lies there; did you mean .*/set\?"),
        ("no/such.bin", r"such\.bin is not a folder or a file, and .*/no is none either"),
        ("loop.bin", r"loop\.bin is a link that leads nowhere: mend it"),
        ("half", r"half/train\.rec does not exist, and train\.idx, its index, does"),
    ],
)
def test_what_is_not_there_is_said_plainly_with_what_lies_near(tmp_path: Path, asked: str, said: str) -> None:
    for file in ("lfw.bin", "set/faces.rec", "half/train.idx"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"x")
    (tmp_path / "loop.bin").symlink_to("loop.bin")
    with pytest.raises(FileNotFoundError, match=said):
        open_store(tmp_path / asked)


ODD = "new\nline\x1b[31m\u202e\udcff"
"""A line break, an escape sequence, a change of direction, and a byte that is no text."""


def forms(root: Path, image: bytes) -> dict[str, Callable[[], object]]:
    """A complaint of every reader about something in a folder with an odd name, or with an odd name itself."""
    for file, data in (
        ("f/Bo/1.jpg", b"no image"),
        (f"g/{ODD}/1.jpg", b"no image"),
        ("loose/1.jpg", image),
        ("cut/train.rec", b"cut"),
        ("empty/train.rec", b""),
        ("x.bin", b"no pickle"),
        ("pack/meta.json", b"{}"),
        ("list.txt", b"1\na\n"),
        ("names/a/a_0001.jpg", image),
        ("v/train/n000002/1.jpg", image),
        ("c/pairs_CALFW.txt", b"x\n"),
        ("c/a_1.jpg", image),
        ("l/agedb_30_pair.txt", b"a\x1b[31m.jpg b.jpg 1\n"),
    ):
        path = root / ODD / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    at = root / ODD
    few = FaceSet(np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64), ("a",), ("a/1.jpg",))
    named = at / "named.txt"
    named.write_text("1\na\x1b[31m 1 2\na 1 b 1\n")
    return {
        "a damaged file": lambda: list(open_store(at / "f").images(size=8, grey=True)),
        "a damaged file of an odd identity": lambda: list(open_store(at / "g").images(size=8, grey=True)),
        "no identity folders": lambda: read_folder(at / "loose"),
        "a damaged record file": lambda: open_store(at / "cut"),
        "an empty record file": lambda: open_store(at / "empty"),
        "a damaged .bin": lambda: open_store(at / "x.bin"),
        "a damaged pack": lambda: open_store(at / "pack"),
        "a damaged list": lambda: read_pairs(at / "list.txt", few),
        "a list of other images": lambda: read_pairs(named, few),
        "an unknown part": lambda: open_store(at / "v", part="x"),
        "a damaged list of a layout": lambda: read_lists(at / "c", few),
        "images missing from a layout": lambda: open_store(at / "l"),
        "no set of images": lambda: open_store(at / "list.txt"),
        "nothing there": lambda: open_store(at / "none.bin"),
        "an occupied place": lambda: convert(open_store(at / "names"), at / "f", "folder"),
        "a name that cannot be written": lambda: convert(open_store(at / "g"), root / "h", "folder"),
        "a damaged image to convert": lambda: convert(open_store(at / "f"), root / "h", "rec"),
    }


def test_names_stand_escaped_in_every_complaint(tmp_path: Path) -> None:
    image = bytes(cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1])
    for what, complaint in forms(tmp_path, image).items():
        with pytest.raises((OSError, ValueError)) as caught:
            complaint()
        assert str(caught.value).isprintable(), what
        assert "\\x1b[31m" in str(caught.value), what


def test_an_inspection_of_a_pack_reads_its_pixels(tmp_path: Path) -> None:
    """Also those that changed on the disk, with nothing in the folder to tell."""
    assert invoked("pack", faces(tmp_path / "f"), tmp_path / "p", "--size", 8).exit_code == 0
    assert invoked("inspect", tmp_path / "p").exit_code == 0
    pixels = tmp_path / "p" / "pixels.u8"
    before = pixels.stat()
    turned = bytearray(pixels.read_bytes())
    turned[7] ^= 4
    pixels.write_bytes(turned)
    os.utime(pixels, ns=(before.st_atime_ns, before.st_mtime_ns))
    for options in ((), ("--headers",)):
        told = invoked("inspect", tmp_path / "p", *options)
        assert told.exit_code == 1 and "pixels.u8 is damaged: its SHA-256" in told.output
    (said,) = json.loads(invoked("inspect", tmp_path / "p", "--json").stdout)["broken"]
    assert "pixels.u8" in said


def test_an_inspection_tells_of_empty_folders_and_of_names_that_are_no_peoples(tmp_path: Path) -> None:
    shutil.move(faces(tmp_path / "f"), tmp_path / "set" / "train")
    (tmp_path / "set" / "Ann_Lee").mkdir()
    loose = next((tmp_path / "set" / "train").glob("*/*"))
    shutil.copy(loose, tmp_path / "set" / "train" / loose.name)
    told = invoked("inspect", tmp_path / "set")
    assert told.exit_code == 0
    wrong = told.output[told.output.index("what looks wrong:") :]
    assert "1 folder is empty (Ann_Lee)" in wrong and "part of a set" in wrong and "(train)" in wrong
