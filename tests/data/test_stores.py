"""Whatever lies at a path is opened as one of the forms, or refused by name; an inspection goes through all of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import NoReturn

import cv2
import numpy as np
import pytest
from commands import invoked
from damage import damaged, fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from image_folders import content, faces

from coalface.core.errors import DataError
from coalface.data.pairs import named_identities
from coalface.data.readers.records import read_rec
from coalface.data.stores import IDENTITIES, Store, open_store
from coalface.data.tools.convert import Pairs, convert
from coalface.data.tools.inspect import inspect

BOUNDED = settings(deadline=None, derandomize=True, max_examples=10)
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
    report = inspect(store)
    assert report.images >= len(store)
    assert all(damage.isprintable() for damage in report.damaged)
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


@pytest.mark.parametrize(("names", "reason"), [("Ann\nBo\nAnn\n", "names 'Ann' twice"), ("only\n", "other records")])
def test_a_list_of_names_that_does_not_fit_is_refused(
    forms: dict[str, Path], tmp_path: Path, names: str, reason: str
) -> None:
    shutil.copytree(forms["rec"], tmp_path / "set")
    names_of = open_store(tmp_path / "set").names
    (tmp_path / "set" / IDENTITIES).write_bytes(b"\xef\xbb\xbf" + (tmp_path / "set" / IDENTITIES).read_bytes())
    assert open_store(tmp_path / "set").names == names_of, "a byte order mark is no part of a name"
    (tmp_path / "set" / IDENTITIES).write_text(names)
    with pytest.raises(DataError, match=reason):
        open_store(tmp_path / "set")
    (tmp_path / "set" / IDENTITIES).unlink()
    assert open_store(tmp_path / "set").names == ("0", "1", "2")


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
    with pytest.raises(DataError, match="record 2"):
        open_store(tmp_path / "r")
    store = open_store(tmp_path / "r", damaged="leave out")
    report = inspect(store)
    assert (len(store), report.images, report.damaged_count) == (12, 15, 3)
    assert all(f"record {key}:" in damage for key, damage in zip((2, 7, 4), report.damaged, strict=True))


@pytest.mark.parametrize("name", ["../x", ".", "", "\x1b]0;x\x07", "\u202eabc"])
def test_names_that_would_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    convert(open_store(faces(tmp_path / "f")), tmp_path / "r", "rec")
    (tmp_path / "r" / IDENTITIES).write_text(f"{name}\nb\nc\n")
    with pytest.raises(DataError, match="identity 1: .* is not a plain name"):
        open_store(tmp_path / "r")


def test_an_inspection_goes_on_after_links_that_lead_nowhere(tmp_path: Path) -> None:
    folder = faces(tmp_path / "f")
    (folder / "round").symlink_to("round")
    (folder / "Bo" / "loop.jpg").symlink_to("loop.jpg")
    (folder / "Bo" / "gone.png").symlink_to("nothing.png")
    (folder / "Bo" / "folder.jpg").symlink_to(folder / "Ann_Lee")  # leads somewhere, to no image
    result = invoked("data", "inspect", folder)
    assert result.exit_code == 1 and "15 images of 3 identities" in result.output
    for name in ("round", "Bo/loop.jpg", "Bo/gone.png"):
        assert f"damaged: {folder / name}: it cannot be read (" in result.output
    assert result.output.count("damaged:") == 3 and "- 3 folders or files cannot be used" in result.output
    report = json.loads(invoked("data", "inspect", folder, "--json").stdout)
    assert (report["broken_count"], report["damaged_count"], report["images"]) == (3, 0, 15)
    for command in (["pack", folder, tmp_path / "p"], ["convert", folder, tmp_path / "g", "--to", "folder"]):
        refused = invoked("data", *command)
        assert "leads nowhere: mend it, or delete it" in str(refused.exception) and refused.exit_code == 1


def test_an_inspection_goes_on_after_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = faces(tmp_path / "f")
    scan, read = os.scandir, Path.read_bytes

    def refused(path: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", lambda at=".": refused(at) if str(at).endswith("Ann_Lee") else scan(at))
    monkeypatch.setattr(Path, "read_bytes", lambda at: refused(at) if at.name == "Bo_0002.jpg" else read(at))
    result = invoked("data", "inspect", folder)
    assert result.exit_code == 1 and "11 images of 2 identities" in result.output
    assert (
        f"damaged: {folder / 'Ann_Lee'}: it cannot be read (Permission denied); give yourself access" in result.output
    )
    assert f"damaged: {folder / 'Bo' / 'Bo_0002.jpg'}: permission denied" in result.output
    assert "- 1 folder or file cannot be used" in result.output and "- 1 image is damaged: replace" in result.output


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
    ("path", "hint"),
    [
        ("lfv.bin", r"lfv\.bin does not exist; did you mean .*/lfw\.bin or .*/loop\.bin\?"),
        ("none.rec", r"none\.rec does not exist; check the path$"),
        ("loop.bin", r"loop\.bin is a link that leads nowhere: mend it"),
        ("half", r"half/train\.rec does not exist, but its index train\.idx does"),
    ],
)
def test_what_is_not_there_is_said_plainly_with_what_lies_near(tmp_path: Path, path: str, hint: str) -> None:
    for file in ("lfw.bin", "set/faces.rec", "half/train.idx"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"x")
    (tmp_path / "loop.bin").symlink_to("loop.bin")
    with pytest.raises(FileNotFoundError, match=hint):
        open_store(tmp_path / path)


def test_an_inspection_of_a_pack_reads_its_pixels(tmp_path: Path) -> None:
    """Also those that changed on the disk, with nothing in the folder to tell."""
    assert invoked("data", "pack", faces(tmp_path / "f"), tmp_path / "p", "--size", 8).exit_code == 0
    assert invoked("data", "inspect", tmp_path / "p").exit_code == 0
    pixels = tmp_path / "p" / "pixels.u8"
    before = pixels.stat()
    turned = bytearray(pixels.read_bytes())
    turned[7] ^= 4
    pixels.write_bytes(turned)
    os.utime(pixels, ns=(before.st_atime_ns, before.st_mtime_ns))
    for options in ((), ("--headers",)):
        result = invoked("data", "inspect", tmp_path / "p", *options)
        assert result.exit_code == 1 and "pixels.u8: it is damaged: its SHA-256" in result.output
    (fault,) = json.loads(invoked("data", "inspect", tmp_path / "p", "--json").stdout)["broken"]
    assert "pixels.u8" in fault


def test_an_inspection_tells_of_empty_folders_and_of_names_that_are_no_peoples(tmp_path: Path) -> None:
    shutil.move(faces(tmp_path / "f"), tmp_path / "set" / "train")
    (tmp_path / "set" / "Ann_Lee").mkdir()
    loose = next((tmp_path / "set" / "train").glob("*/*"))
    shutil.copy(loose, tmp_path / "set" / "train" / loose.name)
    result = invoked("data", "inspect", tmp_path / "set")
    assert result.exit_code == 0
    wrong = result.output[result.output.index("what looks wrong:") :]
    assert "1 folder is empty (Ann_Lee)" in wrong and "part of a set" in wrong and "(train)" in wrong


def test_odd_names_stand_escaped_in_complaints(tmp_path: Path) -> None:
    at = tmp_path / "new\nline\x1b[31m\u202e\udcff"
    for file, data in (
        ("f/Bo/1.jpg", b"no image"),
        ("x.bin", b"no pickle"),
        ("cut/train.rec", b"c"),
        ("list.txt", b"1\na"),
    ):
        (at / file).parent.mkdir(parents=True, exist_ok=True)
        (at / file).write_bytes(data)
    for complain in (
        lambda: list(open_store(at / "f").images(size=8, grey=True)),
        lambda: open_store(at / "x.bin"),
        lambda: open_store(at / "cut"),
        lambda: named_identities(at / "list.txt"),
        lambda: open_store(at / "none"),
    ):
        with pytest.raises((OSError, DataError)) as caught:
            complain()
        assert str(caught.value).isprintable() and "\\x1b[31m" in str(caught.value)
