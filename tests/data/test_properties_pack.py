"""Packs of any content are read back; damaged and forged ones are read within their files, or refused by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import damaged, fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coalface.data.faceset import FaceSet
from coalface.data.readers.pack import read_pack, write_pack

BOUNDED = settings(deadline=None, derandomize=True, max_examples=60)
LETTERS = st.characters(exclude_categories=["Cs"]) | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)
TEXT = st.text(LETTERS, max_size=6)  # among them what stands for a byte that is no UTF-8 in a file's name


class Given:
    """A source of given pixels."""

    def __init__(self, pixels: NDArray[np.uint8], labels: list[int], names: list[str], files: list[str]) -> None:
        self.pixels, self.labels = pixels, np.array(labels)
        self.names, self.files = tuple(names), tuple(files)

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        return iter(self.pixels)

    def fingerprint(self) -> str:
        return hashlib.sha256(self.pixels.tobytes()).hexdigest()


@st.composite
def sources(draw: st.DrawFn) -> tuple[Given, int, bool]:
    size, grey, count = draw(st.integers(1, 5)), draw(st.booleans()), draw(st.integers(1, 6))
    shape = (count, size, size, 1 if grey else 3)
    pixels = np.frombuffer(draw(st.binary(min_size=(n := int(np.prod(shape))), max_size=n)), np.uint8).reshape(shape)
    names = draw(st.lists(TEXT, min_size=1, max_size=4, unique=True))
    labels = draw(st.lists(st.integers(0, len(names) - 1), min_size=count, max_size=count))
    files = draw(st.lists(TEXT, min_size=count, max_size=count))
    return Given(pixels, labels, names, files), size, grey


@BOUNDED
@given(sources())
def test_any_source_is_read_back(made: tuple[Given, int, bool]) -> None:
    source, size, grey = made
    with fresh_folder() as folder:
        write_pack(source, folder / "pack", size=size, grey=grey)
        faces = read_pack(folder / "pack", verify=True)
        assert np.array_equal(faces.pixels, source.pixels)
        assert np.array_equal(faces.labels, source.labels)
        assert (faces.names, faces.files) == (source.names, source.files)


SOURCE = Given(np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1), [0, 0, 1, 1, 1, 2], list("abc"), list("uvwxyz"))


def usable(faces: FaceSet) -> None:
    """Every image can be taken, and belongs to somebody."""
    assert faces.take(np.arange(len(faces))).shape == faces.pixels.shape
    assert faces.labels.dtype == np.int64 and len(faces.labels) == len(faces) == len(faces.files or ())
    assert faces.counts().sum() == len(faces) and len(faces.counts()) == len(faces.names)
    assert all(isinstance(text, str) for text in (*faces.names, *(faces.files or ())))
    assert faces.shape[2] in (1, 3)


def read_or_named(pack: Path) -> None:
    try:
        faces = read_pack(pack, verify=True)
    except (ValueError, FileNotFoundError) as error:
        assert str(pack) in str(error)
        assert any(word in str(error) for word in ("delete", "check"))
        assert str(error).isprintable() and len(str(error)) < 1000
    else:
        usable(faces)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The four files of a pack."""
    pack = tmp_path_factory.mktemp("sound") / "pack"
    write_pack(SOURCE, pack, size=2, grey=True)
    return {path.name: path.read_bytes() for path in pack.iterdir()}


FILES = ("pixels.u8", "labels.npy", "index.json", "meta.json")


@pytest.mark.parametrize("name", FILES)
@BOUNDED
@given(data=st.data())
def test_any_damage_is_read_or_named(sound: dict[str, bytes], name: str, data: st.DataObject) -> None:
    with fresh_folder() as folder:
        for file, content in sound.items():
            (folder / file).write_bytes(data.draw(damaged(content)) if file == name else content)
        read_or_named(folder)


def forge(folder: Path, files: dict[str, bytes], meta: dict[str, Any]) -> None:
    """Files whose SHA-256 agree, as somebody may have made them who wants to be believed."""
    for file, content in files.items():
        (folder / file).write_bytes(content)
    sums = {file: hashlib.sha256(files[file]).hexdigest() for file in FILES[:3]}
    (folder / "meta.json").write_text(json.dumps({**meta, "sha256": sums}))


@pytest.mark.parametrize("name", FILES[:3])
@BOUNDED
@given(data=st.data())
def test_any_damage_with_sums_that_agree_is_read_or_named(
    sound: dict[str, bytes], name: str, data: st.DataObject
) -> None:
    with fresh_folder() as folder:
        forge(folder, sound | {name: data.draw(damaged(sound[name]))}, json.loads(sound["meta.json"]))
        read_or_named(folder)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-1, 24)
    | st.floats()
    | st.text(max_size=3)
    | st.just("x" * 2000)
    | st.just(10**30),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
SHAPES = st.lists(st.integers(-24, 24) | st.sampled_from([2**31, 2**63, 2**64, 6, 2, 1]), min_size=3, max_size=5)


@BOUNDED
@given(field=st.sampled_from(["shape", "version", "format", "size", "sha256"]), value=JSON | SHAPES)
def test_any_value_in_the_meta_file_is_read_or_named(sound: dict[str, bytes], field: str, value: object) -> None:
    with fresh_folder() as folder:
        for file, content in sound.items():
            (folder / file).write_bytes(content)
        meta = json.loads(sound["meta.json"])
        (folder / "meta.json").write_text(json.dumps(meta | {field: value}))
        read_or_named(folder)


@BOUNDED
@given(whole=JSON, names=JSON | st.lists(st.text(max_size=2), max_size=4), files=JSON)
def test_any_index_is_read_or_named(sound: dict[str, bytes], whole: object, names: object, files: object) -> None:
    for index in (whole, {"names": names, "files": files}, {"names": names, "files": list("uvwxyz")}):
        with fresh_folder() as folder:
            forge(folder, sound | {"index.json": json.dumps(index).encode()}, json.loads(sound["meta.json"]))
            read_or_named(folder)


@BOUNDED
@given(
    dtype=st.sampled_from(["i8", "<i4", ">i8", "u8", "f8", "?", "c16", "U3", "M8[s]", "i8,i8"]),
    shape=st.sampled_from([(), (6,), (5,), (7,), (6, 1), (1, 6), (0,)]),
    values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 3), min_size=7, max_size=7),
)
def test_any_labels_are_read_or_named(
    sound: dict[str, bytes], dtype: str, shape: tuple[int, ...], values: list[int]
) -> None:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.array(values * 4, np.int64).tobytes()[:size]
    with fresh_folder() as folder:
        np.save(folder / "labels.npy", np.frombuffer(raw, dtype, int(np.prod(shape))).reshape(shape))
        labels = (folder / "labels.npy").read_bytes()
        forge(folder, sound | {"labels.npy": labels}, json.loads(sound["meta.json"]))
        read_or_named(folder)


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 3], [0, 0, 1, 1, 1, -1], [2**63 - 1] * 6, [-(2**63)] * 6])
def test_labels_of_nobody_are_named(sound: dict[str, bytes], tmp_path: Path, labels: list[int]) -> None:
    raw = sound["labels.npy"][: -8 * 6] + np.array(labels, "<i8").tobytes()
    forge(tmp_path, sound | {"labels.npy": raw}, json.loads(sound["meta.json"]))
    with pytest.raises(ValueError, match=r"labels\.npy is damaged: it does not hold 6 labels from 0 to 2; delete"):
        read_pack(tmp_path)


@pytest.mark.parametrize(
    "shape", [[-6, -2, 2, 1], [6, 2, 2], [6, 2, 2, 1, 1], [3, 2, 2, 2], [6, 2.0, 2, 1], [0, 0, 0, 3], "6221"]
)
def test_shapes_that_no_images_have_are_named(sound: dict[str, bytes], tmp_path: Path, shape: object) -> None:
    forge(tmp_path, sound, json.loads(sound["meta.json"]) | {"shape": shape})
    with pytest.raises(ValueError, match=r"meta\.json is damaged \(ValueError: its shape is not that of images\)"):
        read_pack(tmp_path)


@pytest.mark.parametrize("name", ["meta.json", "index.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, "", "\ud800", "null", "NaN", "[]"])
def test_texts_that_parsers_fail_on_are_named(sound: dict[str, bytes], tmp_path: Path, name: str, text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    forge(
        tmp_path,
        sound | {"index.json": raw if name == "index.json" else sound["index.json"]},
        json.loads(sound["meta.json"]),
    )
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(ValueError, match=rf"{name} is damaged.*delete the folder and pack its source again"):
        read_pack(tmp_path)


def test_labels_that_claim_more_than_their_file_holds_are_refused(sound: dict[str, bytes], tmp_path: Path) -> None:
    labels = sound["labels.npy"].replace(b"(6,)", b"(1099511627776,)").replace(b" " * 13 + b"\n", b" " + b"\n")
    assert len(labels) <= len(sound["labels.npy"]) + 12
    forge(tmp_path, sound | {"labels.npy": labels}, json.loads(sound["meta.json"]))
    with pytest.raises(ValueError, match=r"labels\.npy is damaged"):
        read_pack(tmp_path)
