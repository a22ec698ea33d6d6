"""Identity folders of any names and images are read back; any tree and any damage is read or refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from damage import damaged, fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.data.readers.folders import SUFFIXES, read_folder
from coalface.data.source import decode
from coalface.data.stores import open_store
from coalface.data.tools.convert import convert

BOUNDED = settings(deadline=None, derandomize=True, max_examples=60)
FAST = settings(deadline=None, derandomize=True, max_examples=30)

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


def put(root: Path, made: dict[str, dict[str, int]], suffix: str = ".png") -> dict[str, bytes]:
    """Write the pictures; their bytes by path, in the order in which they should be read."""
    written = {}
    for name in sorted(made, key=os.fsencode):
        (root / name).mkdir(parents=True)
        for stem in sorted(made[name], key=lambda stem: os.fsencode(stem + suffix)):
            written[f"{name}/{stem}{suffix}"] = picture(made[name][stem])
            (root / name / (stem + suffix)).write_bytes(picture(made[name][stem]))
    return written


@BOUNDED
@given(tree(names, names), st.sampled_from(SUFFIXES))
def test_any_folders_are_read_back(made: dict[str, dict[str, int]], suffix: str) -> None:
    """Whatever an image's ending says, its bytes say what it is."""
    with fresh_folder() as folder:
        written = put(folder / "set", made, suffix)
        source = read_folder(folder / "set")
        assert list(source.files) == list(written)
        assert source.names == tuple(sorted(made, key=os.fsencode))
        assert [source.names[label] for label in source.labels] == [file.partition("/")[0] for file in written]
        for image, encoded in zip(source.images(size=8, grey=False), written.values(), strict=True):
            assert np.array_equal(image, decode(encoded, "a picture", size=8, grey=False))
        store = open_store(folder / "set", damaged="leave out")
        assert [bytes(store.encoded(i)) for i in range(len(store))] == list(written.values())
        if any("\\" in name or not name.isprintable() for file in written for name in file.split("/")):
            assert store.broken and all(said.isprintable() and "rename it" in said for said in store.broken)
            with pytest.raises(ValueError, match="rename it"):
                open_store(folder / "set")
        assert source.fingerprint() == read_folder(folder / "set").fingerprint()


@FAST
@given(tree(plain, plain))
def test_any_folders_go_through_records_and_back(made: dict[str, dict[str, int]]) -> None:
    with fresh_folder() as folder:
        written = put(folder / "set", made)
        convert(open_store(folder / "set"), folder / "rec", "rec")
        convert(open_store(folder / "rec"), folder / "back", "folder")
        convert(open_store(folder / "back"), folder / "again", "rec")
        assert open_store(folder / "rec").names == tuple(sorted(made, key=os.fsencode))
        back = open_store(folder / "back")
        assert [bytes(back.encoded(i)) for i in range(len(back))] == list(written.values())
        for file in ("train.rec", "train.idx", "property", "identities.txt"):
            assert (folder / "again" / file).read_bytes() == (folder / "rec" / file).read_bytes()
        convert(open_store(folder / "set"), folder / "copy", "folder")
        copied = [path.relative_to(folder / "copy") for path in (folder / "copy").rglob("*.png")]
        assert {str(path): (folder / "copy" / path).read_bytes() for path in copied} == written


@FAST
@given(tree(plain, plain))
def test_any_folders_go_through_a_pack_and_back(made: dict[str, dict[str, int]]) -> None:
    with fresh_folder() as folder:
        put(folder / "set", made)
        convert(open_store(folder / "set"), folder / "pack", "pack", size=10)
        convert(open_store(folder / "pack"), folder / "back", "folder")
        first, back = read_folder(folder / "set"), read_folder(folder / "back")
        assert (back.names, back.files) == (first.names, first.files)
        for one, other in zip(first.images(size=10, grey=False), back.images(size=10, grey=False), strict=True):
            assert np.array_equal(one, other)


WHOLE = {suffix: picture(3, suffix) for suffix in (".jpg", ".png", ".pgm", ".bmp", ".webp")}


@pytest.mark.parametrize("suffix", sorted(WHOLE))
@BOUNDED
@given(data=st.data())
def test_any_damage_of_an_image_is_decoded_or_named(suffix: str, data: st.DataObject) -> None:
    with fresh_folder() as folder:
        path = folder / "set" / "ann" / f"1{suffix}"
        path.parent.mkdir(parents=True)
        path.write_bytes(data.draw(damaged(WHOLE[suffix])))
        grey = data.draw(st.booleans())
        source = read_folder(folder / "set")
        try:
            (image,) = source.images(size=7, grey=grey)
        except ValueError as error:
            assert str(path) in str(error) and str(error).isprintable()
            assert any(word in str(error) for word in ("replace", "delete"))
        else:
            assert image.shape == (7, 7, 1 if grey else 3) and image.dtype == np.uint8


def test_a_side_beyond_the_decoders_own_limit_is_named(tmp_path: Path) -> None:
    bmp = bytearray(WHOLE[".bmp"])
    bmp[18:26] = np.array([1, (1 << 20) + 1], "<i4").tobytes()
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "1.bmp").write_bytes(bmp)
    with pytest.raises(ValueError, match=r"ann/1\.bmp is damaged or not an image .*: replace it from the original"):
        list(read_folder(tmp_path).images(size=7, grey=True))


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Up to 12 paths of what may lie around, and what each is."""
    part = st.sampled_from(["a", "b.jpg", "c.PNG", ".d", ".e.jpg", "f.txt", "new\nline", "1.jpg", "train", "data", "é"])
    path = st.lists(part, min_size=1, max_size=3).map("/".join)
    kind = st.sampled_from(["image", "image", "folder", "empty", "text", "dangling", "loop", "up", "image link"])
    return draw(st.lists(st.tuples(path, kind), max_size=12))


@BOUNDED
@given(trees())
def test_any_tree_is_read_or_named(found: list[tuple[str, str]]) -> None:
    with fresh_folder() as folder:
        root = folder / "set"
        root.mkdir()
        for name, kind in found:
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
