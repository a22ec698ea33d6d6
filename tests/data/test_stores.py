"""Whatever lies at a path is opened as one of the forms, or refused by name; an inspection goes through all of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import cv2
import numpy as np
import pytest
from damage import damaged, fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from test_convert import content, faces, invoked

from coalface.data.faceset import FaceSet
from coalface.data.pairs import read_pairs
from coalface.data.readers.folders import read_folder
from coalface.data.readers.layouts import read_lists
from coalface.data.readers.records import read_rec
from coalface.data.stores import IDENTITIES, Store, open_store
from coalface.data.tools.convert import Pairs, convert
from coalface.data.tools.inspect import inspect

BOUNDED = settings(deadline=None, derandomize=True, max_examples=30)
PEOPLE = {"Ann_Lee": 3, "Bo": 2, "José": 2}


def picture(value: int) -> bytes:
    """A picture of 4 × 4 pixels, different for every value."""
    return cv2.imencode(".png", np.full((4, 4, 3), value, np.uint8))[1].tobytes()


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same images in every form; a `.bin` is a file, the others are folders."""
    root = tmp_path_factory.mktemp("forms")
    for k, (name, count) in enumerate(PEOPLE.items()):
        (root / "folder" / name).mkdir(parents=True)
        for i in range(count):
            (root / "folder" / name / f"{name}_{i + 1:04}.png").write_bytes(picture(10 * k + i))
    (root / "list.txt").write_text("2\nAnn_Lee 1 2\nBo 1 2\nAnn_Lee 3 Bo 1\nBo 2 José 1\n")
    folder = open_store(root / "folder")
    convert(folder, root / "rec", "rec")
    convert(folder, root / "pack", "pack", size=4)
    (root / "bin").mkdir()
    convert(folder, root / "bin" / "some.bin", "bin", pairs=Pairs(root / "list.txt"))
    return {kind: root / kind for kind in ("folder", "rec", "pack", "bin")}


def place(root: Path) -> Path:
    return root / "some.bin" if (root / "some.bin").exists() else root


def gone_through(store: Store) -> None:
    """Every image has a name and a place, and a look at all of them comes to an end."""
    assert len(store) == len(store.labels) == len(store.files)
    assert all(0 <= label < len(store.names) for label in store.labels.tolist())
    assert len(set(store.names)) == len(store.names)
    assert len(store.fingerprint()) == 64
    report = inspect(store.items(), store.names, store.files.__getitem__, path=str(store.path), kind=store.kind)
    assert report.images >= len(store)
    assert all(said.isprintable() for said in report.damaged)
    if store.pairs is not None:
        assert max(store.pairs.left.max(), store.pairs.right.max()) < len(store)


@pytest.mark.parametrize("kind", ["folder", "rec", "pack", "bin"])
def test_a_sound_store_is_what_was_written(forms: dict[str, Path], kind: str) -> None:
    store = open_store(place(forms[kind]))
    assert store.kind == kind
    gone_through(store)
    if kind != "bin":
        assert store.names == tuple(PEOPLE)
        assert [store.names[label] for label in store.labels] == [n for n, c in PEOPLE.items() for _ in range(c)]


@pytest.mark.parametrize("leave_out", [False, True])
@pytest.mark.parametrize("kind", ["folder", "rec", "pack", "bin"])
@BOUNDED
@given(data=st.data())
def test_any_damage_to_any_file_is_gone_through_or_named(
    forms: dict[str, Path], kind: str, leave_out: bool, data: st.DataObject
) -> None:
    with fresh_folder() as folder:
        root = folder / "set"
        shutil.copytree(forms[kind], root)
        file = data.draw(st.sampled_from(sorted(path for path in root.rglob("*") if path.is_file())), label="file")
        match data.draw(st.sampled_from(["damage", "damage", "damage", "remove", "folder"])):
            case "remove":
                file.unlink()
            case "folder":
                file.unlink()
                file.mkdir()
            case _:
                file.write_bytes(data.draw(damaged(file.read_bytes())))
        path = root / "some.bin" if kind == "bin" else root
        try:
            store = open_store(path, damaged="leave out" if leave_out else "error")
        except (ValueError, FileNotFoundError) as error:
            assert str(root) in str(error) and str(error).isprintable()
        else:
            gone_through(store)


NAMES = st.lists(
    st.sampled_from(["Ann", "Bo", "Bo", "..", "a/b", "", "é", "\x1b[0m", "x" * 300]) | st.text(max_size=4),
    min_size=1,
    max_size=5,
)


@BOUNDED
@given(NAMES, st.sampled_from(["\n", "\r\n", ""]))
def test_any_list_of_names_beside_records_is_used_or_named(forms: dict[str, Path], names: list[str], end: str) -> None:
    with fresh_folder() as folder:
        root = folder / "set"
        shutil.copytree(forms["rec"], root)
        (root / IDENTITIES).write_bytes(("\n".join(names) + end).encode("utf-8", "surrogatepass"))
        try:
            store = open_store(root)
        except ValueError as error:
            assert IDENTITIES in str(error) and str(error).isprintable() and len(str(error)) < 1000
            return
        gone_through(store)
        convert(store, folder / "out", "folder")  # a name that is accepted is one that can be a folder's
        if not any("/" in name for name in names):
            assert len(open_store(folder / "out")) == len(store)


@pytest.mark.parametrize(("names", "reason"), [("Ann\nBo\nAnn\n", "names 'Ann' twice"), ("only\n", "other records")])
def test_a_list_of_names_that_does_not_fit_is_refused(
    forms: dict[str, Path], tmp_path: Path, names: str, reason: str
) -> None:
    shutil.copytree(forms["rec"], tmp_path / "set")
    names_of = open_store(tmp_path / "set").names
    (tmp_path / "set" / IDENTITIES).write_bytes(b"\xef\xbb\xbf" + (tmp_path / "set" / IDENTITIES).read_bytes())
    assert open_store(tmp_path / "set").names == names_of, "a byte order mark is no part of a name"
    (tmp_path / "set" / IDENTITIES).write_text(names)
    with pytest.raises(ValueError, match=reason):
        open_store(tmp_path / "set")
    (tmp_path / "set" / IDENTITIES).unlink()
    assert open_store(tmp_path / "set").names == ("0", "1", "2")


def test_what_is_no_set_of_images_is_refused(forms: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no part 'train'"):
        open_store(forms["rec"], part="train")
    for name, data, reason in (("x.txt", b"x", "no set of images"), ("x.mat", b"MATLAB 5.0", "is a MATLAB file")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=reason):
            open_store(tmp_path / name)


@pytest.mark.parametrize("name", ["x" * 240, "é" * 120])
def test_the_longest_names_beside_records(forms: dict[str, Path], tmp_path: Path, name: str) -> None:
    shutil.copytree(forms["rec"], tmp_path / "set")
    (tmp_path / "set" / IDENTITIES).write_text(f"{name}\nBo\nJosé\n", encoding="utf-8")
    convert(open_store(tmp_path / "set"), tmp_path / "out", "folder")
    assert name in open_store(tmp_path / "out").names
    (tmp_path / "set" / IDENTITIES).write_text(f"{name}x\nBo\nJosé\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"identity 1: .* is no plain name.*: it has 24. bytes .* 240 are"):
        open_store(tmp_path / "set")


def test_an_inspection_counts_every_damaged_record(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["/tmp/x", "../x", "a/../../x", ".", "", "a\tb", "\x1b]0;x\x07", "a\\b", "\u202eabc"])
def test_names_that_would_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    convert(open_store(faces(tmp_path / "f")), tmp_path / "r", "rec")
    (tmp_path / "r" / IDENTITIES).write_text(f"{name}\nb\nc\n")
    with pytest.raises(ValueError, match="identity 1: .* is no plain name"):
        open_store(tmp_path / "r")


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


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("lfv.bin", r"lfv\.bin does not exist; did you mean .*/lfw\.bin or .*/loop\.bin\?"),
        ("set/train.rec", r"set/train\.rec does not exist; did you mean .*/set/faces\.rec\?"),
        ("none.rec", r"none\.rec does not exist; check the path$"),
        ("sett", r"sett does not exist; did you mean .*/set\?"),
        ("no/such.bin", r"such\.bin does not exist; check the path"),
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


def complaints(root: Path, image: bytes) -> dict[str, Callable[[], object]]:
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
    for what, complaint in complaints(tmp_path, image).items():
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
