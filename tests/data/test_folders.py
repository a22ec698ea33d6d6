"""Identity folders: listed, read and decoded; any names, any tree and any damage are read or refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from damage import fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.core.errors import DataError
from coalface.core.text import shown
from coalface.data.readers.folders import SUFFIXES, read_folder
from coalface.data.source import decode
from coalface.data.stores import open_store
from coalface.data.tools.convert import convert
from coalface.data.tools.inspect import inspect


def ramp(height: int, width: int) -> np.ndarray:
    """A smooth colour image, in OpenCV's order blue, green, red."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([255 * x / width, 255 * y / height, 200 + 0 * x], axis=2).astype(np.uint8)


def put(root: Path, file: str, image: np.ndarray) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(root / file), image)


def encoded(image: np.ndarray, suffix: str) -> bytes:
    return cv2.imencode(suffix, image)[1].tobytes()


def test_a_file_of_any_length_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ann").mkdir()
    with open(tmp_path / "ann" / "1.jpg", "wb") as file:
        file.truncate(20 << 30)  # takes no room on the disk
    monkeypatch.setattr(Path, "read_bytes", lambda at: pytest.fail(f"{at} was read"))
    with pytest.raises(DataError, match=r"1\.jpg: it has 21,474,836,480 bytes, and an image may have 536,870,911"):
        list(read_folder(tmp_path).images(size=6, grey=True))
    store = open_store(tmp_path, damaged="leave out")
    (damage,) = inspect(store).damaged
    assert damage.startswith(f"{tmp_path / 'ann' / '1.jpg'}: it has 21,474,836,480 bytes")


def test_an_empty_folder_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder below it holds an image. Put the images of each person into a f"):
        read_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"absent is not a folder"):
        read_folder(tmp_path / "absent")
    for file in ("ann/fr/1.png", "bo/2.png/3.png", ".git/4.png"):
        put(tmp_path, file, ramp(4, 4))
    with pytest.raises(DataError, match=r"2 images lie deeper, .* such as ann/fr/1\.png; .*NAME/photo\.jpg"):
        read_folder(tmp_path)
    put(tmp_path, "photo.jpg", ramp(4, 4))
    with pytest.raises(DataError, match=r"it has 1 image in no identity's folder.*NAME/photo.jpg"):
        read_folder(tmp_path)


def test_the_fingerprint_follows_names_sizes_times_and_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tmp_path / "ann" / "1.png"
    put(tmp_path, "ann/1.png", ramp(4, 4))
    os.utime(first, ns=(0, 1_000))

    def fingerprint() -> str:
        return read_folder(tmp_path).fingerprint()

    fingerprints = [fingerprint()]
    assert fingerprint() == fingerprints[0]
    os.utime(first, ns=(0, 2_000))
    fingerprints.append(fingerprint())
    first.write_bytes(first.read_bytes() + b"\0")
    os.utime(first, ns=(0, 2_000))
    fingerprints.append(fingerprint())
    first.rename(tmp_path / "ann" / "2.png")
    fingerprints.append(fingerprint())
    monkeypatch.setattr("coalface.data.readers.folders.DECODER", -1)
    fingerprints.append(fingerprint())
    assert len(set(fingerprints)) == 5
    (tmp_path / "moved").mkdir()
    (tmp_path / "ann").rename(tmp_path / "moved" / "ann")
    assert read_folder(tmp_path / "moved").fingerprint() == fingerprints[-1], "where the folder lies plays no part"


ODD = [b"tab\there", b"new\nline", b"b\xff", "turned\u202eback".encode(), b"back\\slash"]


@pytest.mark.parametrize("where", ["%s/1.png", "Bo/%s.png"])
@pytest.mark.parametrize("odd", ODD)
def test_a_name_that_no_list_or_file_could_hold_is_refused_and_named(tmp_path: Path, odd: bytes, where: str) -> None:
    put(tmp_path, "ann/1.png", ramp(4, 4))
    file = tmp_path / (where % os.fsdecode(odd))
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(encoded(ramp(4, 4), ".png"))
    (file.parent / "2.png").write_bytes(encoded(ramp(4, 4), ".png"))  # the folder is named once
    place = shown(file.parent if "/1.png" in where else file)
    with pytest.raises(DataError, match="rename it") as caught:
        open_store(tmp_path)
    assert str(caught.value).startswith(f"{place}: ") and str(caught.value).isprintable()
    store = open_store(tmp_path, damaged="leave out")
    assert len(store) == 3 and [fault.startswith(f"{place}: ") for fault in store.broken] == [True]


@pytest.mark.parametrize("name", ["Ann Lee", "a\u202fm", "写真\u30001", "علی\u200cرضا", "É", "n" * 251, "-dQw4"])
def test_spaces_of_all_kinds_and_joiners_belong_to_names(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"{name[:99]}/1.png", ramp(4, 4))
    (tmp_path / name[:99] / f"{name}.png").write_bytes(encoded(ramp(4, 4), ".png"))
    assert len(open_store(tmp_path)) == 2


BOUNDED = settings(deadline=None, derandomize=True, max_examples=20)

names = (
    st.binary(min_size=1, max_size=12)
    .map(lambda raw: raw.replace(b"\0", b"0").replace(b"/", b"_"))
    .filter(lambda raw: not raw.startswith(b"."))
    .map(os.fsdecode)
)
"""What a file of a POSIX system may be called, bytes that are no UTF-8 among it, less the names that are hidden."""
plain = st.text(
    st.characters(categories=["L", "N", "P", "S"], exclude_characters="/\\"), min_size=1, max_size=8
).filter(lambda name: name not in (".", "..") and not name.startswith(".") and name.isprintable())
"""Names that also a list of names can hold."""


def picture(value: int, suffix: str = ".png") -> bytes:
    """A picture of 12 × 10 pixels, different for every value."""
    y, x = np.mgrid[0:12, 0:10]
    image = np.stack([x * 20 + value, y * 20, 0 * x + value * 7], axis=2).astype(np.uint8)
    return cv2.imencode(suffix, image[:, :, 0] if suffix == ".pgm" else image)[1].tobytes()


def tree(folder_names: st.SearchStrategy[str], file_names: st.SearchStrategy[str]) -> st.SearchStrategy[dict]:
    """Identity → stem → which picture."""
    images = st.dictionaries(file_names, st.integers(0, 30), min_size=1, max_size=4)
    return st.dictionaries(folder_names, images, min_size=1, max_size=4)


def put_tree(root: Path, pictures: dict[str, dict[str, int]], suffix: str = ".png") -> dict[str, bytes]:
    """Write the pictures; their bytes by path, in the order in which they should be read."""
    content = {}
    for name in sorted(pictures, key=os.fsencode):
        (root / name).mkdir(parents=True)
        for stem in sorted(pictures[name], key=lambda stem: os.fsencode(stem + suffix)):
            content[f"{name}/{stem}{suffix}"] = picture(pictures[name][stem])
            (root / name / (stem + suffix)).write_bytes(picture(pictures[name][stem]))
    return content


@BOUNDED
@given(tree(names, names), st.sampled_from(SUFFIXES))
def test_any_folders_are_read_back(pictures: dict[str, dict[str, int]], suffix: str) -> None:
    """Whatever an image's ending says, its bytes say what it is."""
    with fresh_folder() as folder:
        content = put_tree(folder / "set", pictures, suffix)
        source = read_folder(folder / "set")
        assert list(source.files) == list(content)
        assert source.names == tuple(sorted(pictures, key=os.fsencode))
        assert [source.names[label] for label in source.labels] == [file.partition("/")[0] for file in content]
        for image, encoded in zip(source.images(size=8, grey=False), content.values(), strict=True):
            assert np.array_equal(image, decode(encoded, "a picture", size=8, grey=False))
        store = open_store(folder / "set", damaged="leave out")
        assert [bytes(store.encoded(i)) for i in range(len(store))] == list(content.values())
        if any("\\" in name or not name.isprintable() for file in content for name in file.split("/")):
            assert store.broken and all(fault.isprintable() and "rename it" in fault for fault in store.broken)
            with pytest.raises(DataError, match="rename it"):
                open_store(folder / "set")
        assert source.fingerprint() == read_folder(folder / "set").fingerprint()


@settings(BOUNDED, max_examples=10)
@given(tree(plain, plain))
def test_any_folders_go_through_records_and_packs_and_back(pictures: dict[str, dict[str, int]]) -> None:
    with fresh_folder() as folder:
        content = put_tree(folder / "set", pictures)
        convert(open_store(folder / "set"), folder / "rec", "rec")
        convert(open_store(folder / "rec"), folder / "back", "folder")
        convert(open_store(folder / "back"), folder / "again", "rec")
        assert open_store(folder / "rec").names == tuple(sorted(pictures, key=os.fsencode))
        back = open_store(folder / "back")
        assert [bytes(back.encoded(i)) for i in range(len(back))] == list(content.values())
        for file in ("train.rec", "train.idx", "property", "identities.txt"):
            assert (folder / "again" / file).read_bytes() == (folder / "rec" / file).read_bytes()
        convert(open_store(folder / "set"), folder / "pack", "pack", size=10)
        convert(open_store(folder / "pack"), folder / "pixels", "folder")
        first, last = read_folder(folder / "set"), read_folder(folder / "pixels")
        assert (last.names, last.files) == (first.names, first.files)
        for first_image, last_image in zip(
            first.images(size=10, grey=False), last.images(size=10, grey=False), strict=True
        ):
            assert np.array_equal(first_image, last_image)


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Up to 12 paths of what may lie around, and what each is."""
    part = st.sampled_from(["a", "b.jpg", "c.PNG", ".d", ".e.jpg", "f.txt", "new\nline", "1.jpg", "train", "data", "é"])
    path = st.lists(part, min_size=1, max_size=3).map("/".join)
    kind = st.sampled_from(["image", "image", "folder", "empty", "text", "dangling", "loop", "up", "image link"])
    return draw(st.lists(st.tuples(path, kind), max_size=12))


@BOUNDED
@given(trees())
def test_any_tree_is_read_or_named(paths: list[tuple[str, str]]) -> None:
    with fresh_folder() as folder:
        root = folder / "set"
        root.mkdir()
        for name, kind in paths:
            path = root / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                match kind:
                    case "folder":
                        path.mkdir()
                    case "dangling":
                        path.symlink_to("nowhere")
                    case "loop":
                        path.symlink_to(path.name)
                    case "up":
                        path.symlink_to("..")
                    case "image link":
                        (folder / "other.png").write_bytes(picture(1))
                        path.symlink_to(folder / "other.png")
                    case _:
                        path.write_bytes({"image": picture(0), "empty": b"", "text": b"text"}[kind])
            except OSError:  # something else of this name is there already
                continue
        for read in (read_folder, open_store):
            try:
                source = read(root)
            except (ValueError, FileNotFoundError) as error:
                assert str(root) in str(error) and str(error).isprintable()
                continue
            assert len(source.files) == len(source.labels) > 0
            assert set(source.labels.tolist()) == set(range(len(source.names)))
            assert not any(part.startswith(".") for file in source.files for part in file.split("/"))
            assert all((root / file).is_file() for file in source.files)
