"""Verification packs: every form of the field is read as `pickle` reads it, and what is written comes back."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import KFold

from coalface.core.errors import DataError
from coalface.data.readers.bin import FOLDS, Bin, folds_by_position, linked, read_bin, write_bin
from coalface.data.source import Source
from coalface.data.synthetic.generator import SyntheticFaces

DATA = os.environ.get("COALFACE_DATA")
FORMS = ("python2_strings", "bytes_protocol4", "arrays_protocol4")


def jpegs(identities: int, count: int, size: int = 16) -> list[bytes]:
    """Synthetic faces, those of an identity one after another."""
    faces = SyntheticFaces(identities, count, seed=1, size=size, grey=False).generate()
    return [cv2.imencode(".jpg", image)[1].tobytes() for image in faces.pixels]


IMAGES = jpegs(3, 2)
"""Two images of each of three people."""
SAME = [True, True, False]
SHOWN = [IMAGES[i] for i in (0, 1, 2, 3, 0, 4)]
"""A genuine pair of each of two people, and an impostor pair of the first and the third."""


def python2(images: list[bytes], same: list[bool]) -> bytes:
    """What Python 2 wrote in protocol 2: 8-bit strings, each noted in the memo. Put together by hand."""
    notes = (b"q" + bytes([n]) if n < 256 else b"r" + struct.pack("<I", n) for n in range(10_000))
    out = b"\x80\x02]" + next(notes) + b"("
    for image in images:
        out += b"U" + bytes([len(image)]) + image if len(image) < 256 else b"T" + struct.pack("<i", len(image)) + image
        out += next(notes)
    out += b"e]" + next(notes) + b"(" + b"".join(b"\x88" if value else b"\x89" for value in same)
    out += b"e\x86" + next(notes)
    return out + b"."


def arrays(images: list[bytes], same: list[bool], protocol: int = 4) -> bytes:
    pack = [np.frombuffer(image, np.uint8).copy() for image in images], [np.bool_(value) for value in same]
    return pickle.dumps(pack, protocol)


def read_only(image: bytes) -> Any:
    return np.frombuffer(image, np.uint8)


def writable(image: bytes) -> Any:
    return np.frombuffer(image, np.uint8).copy()


def upright(image: bytes) -> Any:
    """As OpenCV 3 gave encoded images, (n, 1)."""
    return np.frombuffer(image, np.uint8)[:, None]


def python2_arrays(images: list[bytes], same: list[bool]) -> bytes:
    """NumPy arrays as Python 2 wrote them in protocol 2: 8-bit strings for texts, numbers for some truth values."""
    u1 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    out = b"\x80\x02]("
    for image in images:
        out += b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        out += b"(K\x01" + b"\x8a\x04" + struct.pack("<i", len(image)) + b"\x85" + u1 + b"\x89"
        out += b"T" + struct.pack("<i", len(image)) + image + b"tb"
    return out + b"e](" + b"".join(b"I01\n" if value else b"I00\n" for value in same) + b"e\x86."


def before_numpy2(data: bytes) -> bytes:
    """The same pickle with the module's name that NumPy 1 wrote, its one frame cut by that letter."""
    (length,) = struct.unpack_from("<Q", data, 3)
    assert data[2] == 0x95 and length == len(data) - 11
    new, old = b"\x8c\x16numpy._core.multiarray", b"\x8c\x15numpy.core.multiarray"
    assert data.count(new) == 1
    return data[:3] + struct.pack("<Q", length - 1) + data[11:].replace(new, old)


def put(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "some.bin"
    path.write_bytes(data)
    return path


def held(pack: Bin) -> tuple[list[bytes], list[bool]]:
    return [bytes(pack.encoded(i)) for i in range(len(pack))], pack.same.tolist()


@pytest.mark.parametrize(
    "data",
    [
        python2(SHOWN, SAME),
        before_numpy2(arrays(SHOWN, SAME)),
        python2_arrays(SHOWN, SAME),
        pickle.dumps(([b"ab", b"c"], [True]), 4),  # lists of one, and strings of few bytes
        python2([b"ab", b"c"], [True]),
    ],
    ids=["python 2", "arrays of NumPy 1", "arrays of Python 2", "short bytes", "short strings"],
)
def test_the_forms_of_the_field_are_read_as_pickle_reads_them(tmp_path: Path, data: bytes) -> None:
    images, same = pickle.loads(data, encoding="bytes")
    assert held(read_bin(put(tmp_path, data))) == ([bytes(image) for image in images], [bool(value) for value in same])


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "image", [bytes, read_only, writable, upright], ids=["bytes", "arrays", "writable arrays", "columns"]
)
@pytest.mark.parametrize(("truth", "sequence"), [(bool, list), (np.bool_, tuple)])
def test_every_protocol_is_read(
    tmp_path: Path, protocol: int, image: Callable[[bytes], Any], truth: Callable[[bool], Any], sequence: type
) -> None:
    """The last byte of an image tells those that share a text apart from those that do not."""
    images = [*SHOWN, SHOWN[0][:-1] + b"\xff", SHOWN[1]]
    pack = sequence(map(image, images)), sequence(map(truth, [*SAME, True]))
    for whole in (pack, list(pack)):
        assert held(read_bin(put(tmp_path, pickle.dumps(whole, protocol)))) == (images, [*SAME, True])


@pytest.mark.skipif(DATA is None, reason="COALFACE_DATA is not set")
def test_a_pack_of_insightfaces_own_tree_is_read() -> None:
    """NumPy arrays in protocol 3."""
    path = Path(str(DATA)) / "real" / "small_lfw.bin"
    with open(path, "rb") as file:
        images, same = pickle.load(file)
    pack = read_bin(path)
    assert held(pack) == ([image.tobytes() for image in images], [bool(value) for value in same])
    assert len(pack) == 20 and sum(1 for _ in pack.images(size=112, grey=False)) == 20


@pytest.mark.skipif(DATA is None, reason="COALFACE_DATA is not set")
@pytest.mark.parametrize("form", FORMS)
def test_packs_of_mxnet_itself_are_read(form: str) -> None:
    golden = Path(str(DATA)) / "golden"
    expected = json.loads((golden / "expected.json").read_text())
    pack = read_bin(golden / f"{form}.bin")
    assert len(pack) == 2 * expected["pairs"]
    assert pack.same.sum() == expected["genuine"]
    identity_of = {record["jpeg_sha256"]: record["identity"] for record in expected["records"]}
    people = [identity_of[hashlib.sha256(pack.encoded(i)).hexdigest()] for i in range(len(pack))]
    assert [a == b for a, b in zip(people[::2], people[1::2], strict=True)] == pack.same.tolist()
    assert len(set(zip(people, pack.labels.tolist(), strict=True))) == len(set(people)) == len(pack.names) == 20
    assert next(pack.images(size=112, grey=False)).shape == (112, 112, 3)


def test_identities_are_known_as_far_as_the_pairs_tell(tmp_path: Path) -> None:
    source: Source = read_bin(put(tmp_path, pickle.dumps((SHOWN, SAME), 4)))
    assert source.labels.tolist() == [0, 0, 1, 1, 0, 2]  # the fifth image is the first again
    assert source.names == ("00000", "00001", "00002")
    assert source.files[3:] == ("00001/00003.jpg", "00000/00004.jpg", "00002/00005.jpg")
    pairs = read_bin(tmp_path / "some.bin").pairs()
    assert (pairs.name, pairs.left.tolist(), pairs.right.tolist()) == ("some", [0, 2, 4], [1, 3, 5])


@given(st.integers(1, 12), st.data())
def test_linked_things_are_one_group(count: int, data: st.DataObject) -> None:
    place = st.integers(0, count - 1)
    links = data.draw(st.lists(st.tuples(place, place), max_size=12))
    groups = [{i} for i in range(count)]
    for a, b in links:
        joined = next(g for g in groups if a in g) | next(g for g in groups if b in g)
        groups = [g for g in groups if not g & joined] + [joined]
    groups.sort(key=min)
    expected = [next(k for k, g in enumerate(groups) if i in g) for i in range(count)]
    assert linked(count, links).tolist() == expected


def test_folds_are_consecutive_parts() -> None:
    assert folds_by_position(9) is None
    assert FOLDS == 10
    by_hand = [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]
    assert folds_by_position(22).tolist() == by_hand  # type: ignore[union-attr]
    for pairs in (10, 22, 6_000, 7_003):
        parts = [test for _, test in KFold(10, shuffle=False).split(np.zeros(pairs))]
        assert [np.flatnonzero(folds_by_position(pairs) == k).tolist() for k in range(10)] == [
            p.tolist() for p in parts
        ]
    six_thousand = folds_by_position(6_000)
    assert six_thousand is not None
    assert all(six_thousand[i] == i // 600 for i in range(6_000))


def test_a_damaged_image_is_named_by_file_and_number(tmp_path: Path) -> None:
    pack = read_bin(put(tmp_path, pickle.dumps(([IMAGES[0], b"no image"], [True]), 4)))
    images = pack.images(size=8, grey=False)
    next(images)
    with pytest.raises(DataError, match=r"some\.bin, image 1: it is damaged or not an image"):
        next(images)


@pytest.mark.parametrize("data", [python2(SHOWN, SAME), pickle.dumps((SHOWN, SAME), 4), arrays(SHOWN, SAME)])
def test_a_truncated_pack_is_named_at_every_length(tmp_path: Path, data: bytes) -> None:
    starts = [data.index(image) for image in dict.fromkeys(SHOWN)]
    for length in [*range(1, 40), *(start + 5 for start in starts), len(data) - 20, len(data) - 2, len(data) - 1]:
        with pytest.raises(DataError, match="the pack is cut short") as error:
            read_bin(put(tmp_path, data[:length]))
        assert re.search(r"some\.bin, at byte [\d,]+, after \d whole images?$", error.value.where)


SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)


@SETTINGS
@given(
    st.lists(
        st.tuples(st.binary(min_size=1, max_size=600), st.binary(min_size=1, max_size=9), st.booleans()), min_size=1
    )
)
def test_what_is_written_is_read_and_loaded_back(tmp_path: Path, pairs: list[tuple[bytes, bytes, bool]]) -> None:
    images, same = [image for a, b, _ in pairs for image in (a, b)], [value for _, _, value in pairs]
    write_bin(tmp_path / "some.bin", iter(images), iter(same))
    assert [entry.name for entry in tmp_path.iterdir()] == ["some.bin"]
    assert held(read_bin(tmp_path / "some.bin")) == (images, same)
    assert pickle.load(io.BytesIO((tmp_path / "some.bin").read_bytes()), encoding="bytes") == (images, same)
    for data in (python2(images, same), arrays(images, same), pickle.dumps((images, same), 4)):
        assert held(read_bin(put(tmp_path, data))) == (images, same)
