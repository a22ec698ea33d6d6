import hashlib
import io
import json
import os
import pickle
import struct
import tracemalloc
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
NUMPY: Any = np._core.multiarray
FORMS = ("python2_strings", "bytes_protocol4", "arrays_protocol4")


def jpegs(identities: int, each: int, size: int = 16) -> list[bytes]:
    """Synthetic faces, those of an identity one after another."""
    faces = SyntheticFaces(identities, each, seed=1, size=size, grey=False).generate()
    return [cv2.imencode(".jpg", image)[1].tobytes() for image in faces.pixels]


IMAGES = jpegs(3, 2)
"""Two images of each of three people."""
SAME = [True, True, False]
SHOWN = [IMAGES[i] for i in (0, 1, 2, 3, 0, 4)]
"""A genuine pair of each of two people, and an impostor pair of the first and the third."""


def python2(images: list[bytes], same: list[bool]) -> bytes:
    """What Python 2 wrote in protocol 2: 8-bit strings, each noted in the memo. Put together by hand."""
    put = (b"q" + bytes([n]) if n < 256 else b"r" + struct.pack("<I", n) for n in range(10_000))
    out = b"\x80\x02]" + next(put) + b"("
    for image in images:
        out += b"U" + bytes([len(image)]) + image if len(image) < 256 else b"T" + struct.pack("<i", len(image)) + image
        out += next(put)
    out += b"e]" + next(put) + b"(" + b"".join(b"\x88" if value else b"\x89" for value in same) + b"e\x86" + next(put)
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
@pytest.mark.parametrize("truth", [bool, np.bool_])
@pytest.mark.parametrize("held_in", [list, tuple])
def test_every_protocol_is_read(
    tmp_path: Path, protocol: int, image: Callable[[bytes], Any], truth: Callable[[bool], Any], held_in: type
) -> None:
    """The last byte of an image tells those that share a text apart from those that do not."""
    images = [*SHOWN, SHOWN[0][:-1] + b"\xff", SHOWN[1]]
    pack = held_in(map(image, images)), held_in(map(truth, [*SAME, True]))
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
    known = {record["jpeg_sha256"]: record["identity"] for record in expected["records"]}
    people = [known[hashlib.sha256(pack.encoded(i)).hexdigest()] for i in range(len(pack))]
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
    for kept in [*range(1, 40), *(start + 5 for start in starts), len(data) - 20, len(data) - 2, len(data) - 1]:
        with pytest.raises(
            ValueError, match=r"some\.bin, at byte [\d,]+, after \d whole images?: the pack is cut short"
        ):
            read_bin(put(tmp_path, data[:kept]))


class Call:
    """Pickled as a call: loading it calls `what(*arguments)`, and then sets a state."""

    def __init__(self, what: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.reduced = (what, arguments) if state is None else (what, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced


class Victim:
    """An object whose state setter runs code."""

    def __setstate__(self, state: str) -> None:
        Path(state).touch()


def op(module: str, name: str, arguments: bytes) -> bytes:
    """A call in the protocol-0 instructions GLOBAL and REDUCE."""
    return f"c{module}\n{name}\n".encode() + arguments + b"R"


def short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def live(canary: Path) -> dict[str, bytes]:
    """Pickles that create the file `canary` when `pickle` loads them."""
    touch = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    shell = f"touch '{canary}'"
    opened = b"(" + short(str(canary)) + short("w") + b"t"
    inside = [b"a", Call(eval, touch)]
    return {
"os.system": pickle.dumps(Call(os.system, shell), 4),
"eval": pickle.dumps(Call(eval, touch), 4),
"open by GLOBAL": b"\x80\x02" + op("builtins", "open", opened) + b".",
"open by the Python 2 name": b"\x80\x02" + op("__builtin__", "open", opened) + b".",
"STACK_GLOBAL with names from the memo": b"\x80\x04" + short("open") + b"\x94" + short("io") + b"h\x00\x93"
        + opened + b"R.",
"inside the list of images": pickle.dumps((inside, [True]), 4),
"after a whole pack, popped": pickle.dumps((SHOWN, SAME), 2)[:-1] + op("builtins", "open", opened) + b"0.",
"BUILD with __setstate__": pickle.dumps(Call(Victim, state=str(canary)), 4),
"INST": b"(" + f"S{str(canary)!r}\nS'w'\n".encode() + b"iio\nopen\n.",
"OBJ": b"(" + b"cio\nopen\n" + f"S{str(canary)!r}\nS'w'\n".encode() + b"o.",
"NEWOBJ": f"\x80\x02c{Victim.__module__}\nVictim\n)\x81".encode("latin1") + short(str(canary)) + b"b.",
"an object array of NumPy": pickle.dumps(np.array([Call(eval, touch)], dtype=object), 4),
"a NumPy scalar with a call for its value": pickle.dumps(
            Call(NUMPY.scalar, np.dtype("b1"), Call(eval, f"({touch}, b'a')[1]")), 4
        ),
}  # fmt: skip


NAMES = sorted(live(Path("canary")))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_pickle_runs_no_code(tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    data = live(canary)[name]
    path = put(tmp_path, data)
    with pytest.raises(DataError) as error:
        read_bin(path)
    assert error.value.where.startswith(f"{path}, at byte") and not canary.exists()
    try:  # the canary sings where the pickle is loaded: the test can fail
        pickle.loads(data)
    except Exception:  # some stop after the harm is done
        pass
    assert canary.exists()


def frame(length: int) -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", length)


NP = short("numpy.core.multiarray") + short("_reconstruct") + b"\x93" + short("numpy") + short("ndarray") + b"\x93"
DTYPE = short("numpy") + short("dtype") + b"\x93"
STATE = b"(K\x03" + short("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
U1 = DTYPE + short("u1") + b"\x89\x88\x87R" + STATE
ARRAY = NP + b"K\x00\x85C\x01b\x87R"
ENCODE = b"c_codecs\nencode\n"
LATIN1 = b"X\x06\x00\x00\x00latin1"
QUIET = {
"a persistent id": b"\x80\x02U\x03abcQ.",
"a huge frame": frame((1 << 64) - 1) + b"].",
"huge bytes, 8 bytes": b"\x80\x04]\x8e" + struct.pack("<Q", 1 << 62) + b"a",
"a huge number": b"\x80\x02\x8b" + struct.pack("<i", (1 << 31) - 1) + b"\x01",
"a huge place in the memo": b"\x80\x02]r\xff\xff\xff\xff(j\xff\xff\xff\xfee.",
"nested marks": b"\x80\x02" + b"(" * 100_000 + b".",
"tuples that double": b"\x80\x04K\x02K\x01\x94h\x00\x86"
    + b"".join(b"\x94h" + bytes([i]) + b"\x86" for i in range(1, 99)) + b"b.",
"lists in lists": b"\x80\x04]\x94" + b"]" * 100_000 + b".",
"a full stack": b"\x80\x02]" + b"(" + b"\x88" * 150_000 + b"e.",
"append to a tuple": b"\x80\x02K\x01\x85\x88a.",
"a name that is a number": b"\x80\x04K\x01K\x01\x93.",
"an attribute of an attribute": b"\x80\x04" + short("numpy") + short("ndarray.tofile") + b"\x93.",
"numpy.load": b"\x80\x04" + short("numpy") + short("load") + b"\x93.",
"an array of objects": b"\x80\x04](" + ARRAY + b"(K\x01K\x01\x85" + U1.replace(b"u1", b"O8") + b"\x89C\x01atbe.",
"an array larger than its bytes": b"\x80\x04](" + ARRAY + b"(K\x01J\xff\xff\xff\x7f\x85" + U1 + b"\x89C\x01atbe.",
"an array built twice": b"\x80\x04](" + ARRAY + 2 * (b"(K\x01K\x01\x85" + U1 + b"\x89C\x01atb") + b"e.",
"an array reserved by its first call": b"\x80\x04]" + NP + b"J\xff\xff\xff\x7f\x85C\x01b\x87Ra.",
"a scalar that is no truth value": b"\x80\x04" + short("numpy.core.multiarray") + short("scalar") + b"\x93"
    + U1.replace(b"u1", b"b1") + b"C\x01\x02\x86R.",
"two packs": pickle.dumps((SHOWN, SAME), 4) * 2,
"another coding": b"\x80\x02" + ENCODE + b"X\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
"a text that is encoded again and again": b"\x80\x02]" + ENCODE + b"X\xe8\x03\x00\x00" + 1000 * b"a"
    + LATIN1 + b"\x86q\x00R" + 5 * (ENCODE + b"h\x00R") + b".",
"a buffer of another length": b"\x80\x05" + short("numpy._core.numeric") + short("_frombuffer") + b"\x93(C\x02ab"
    + U1 + b"K\x03\x85" + short("C") + b"tR.",
"protocol 255": b"\x80\xff].",
"an image": IMAGES[0],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(QUIET))
def test_a_crooked_pickle_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"some\.bin, at byte [\d,]+, after \d+ whole images?: .*(fetch it|delete it)"):
        read_bin(put(tmp_path, QUIET[name]))


BYTES = b"C\x01x"
HOSTILE = {
"notes of one value": b"\x80\x04\x88" + 400_000 * b"\x94",
"notes in numbered places": b"\x80\x04]" + b"".join(BYTES + b"r" + struct.pack("<I", i) for i in range(50_000)),
"a place far off": b"\x80\x04]" + 100_000 * BYTES + b"r" + struct.pack("<I", 3_000_000),
"a long list": b"\x80\x04]" + 200 * (b"(" + 1000 * BYTES + b"e"),
"truth values that wait": b"\x80\x04](" + 400_000 * b"\x88",
"nested tuples": b"\x80\x04K\x01" + 1_000_000 * b"\x85",
"one text as bytes, often": b"\x80\x02]" + ENCODE + b"X\xe8\x03\x00\x00" + 1000 * b"a" + LATIN1
    + b"\x86q\x00R" + 5_000 * (ENCODE + b"h\x00R"),
"arrays": b"\x80\x04](" + NP + b"\x94" + 20_000 * b"h\x00K\x00\x85C\x01b\x87R",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_what_a_pack_makes_in_memory_is_bounded_by_its_length(tmp_path: Path, name: str) -> None:
    data = HOSTILE[name] + b"."
    path = put(tmp_path, data)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"some\.bin.*(fetch it again|delete it)"):
            read_bin(path)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    finally:
        tracemalloc.stop()


def test_the_hand_made_parts_are_a_pack_when_they_are_put_right(tmp_path: Path) -> None:
    one = ARRAY + b"(K\x01K\x01\x85" + U1 + b"\x89C\x01atb"
    truth = short("numpy.core.multiarray") + short("scalar") + b"\x93" + U1.replace(b"u1", b"b1") + b"C\x01\x01\x86R"
    data = b"\x80\x04](" + 2 * one + b"e]" + truth + b"a\x86."
    assert held(read_bin(put(tmp_path, data))) == ([b"a", b"a"], [True])


WHOLE = {
    "python 2": python2(SHOWN, SAME),
    "text": pickle.dumps((SHOWN, SAME), 0),
    "bytes": pickle.dumps((SHOWN, SAME), 4),
    "arrays": arrays(SHOWN, SAME),
    "buffers": arrays(SHOWN, SAME, protocol=5),
}


def read_or_error(path: Path, data: bytes) -> None:
    """Either a pack that lies within its data, or a ValueError that names it."""
    path.write_bytes(data)
    try:
        pack = read_bin(path)
    except DataError as error:
        assert error.where.startswith(str(path))
        return
    assert len(pack) == 2 * len(pack.same) > 0
    assert (
        (pack.starts >= 0).all() and (pack.lengths > 0).all() and (pack.starts + pack.lengths <= len(pack.data)).all()
    )
    assert len(pack.files) == len(pack)


SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)


@SETTINGS
@given(kind=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_any_change_of_a_pack_is_read_or_named(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    broken = bytearray(WHOLE[kind])
    edges = [*range(200), *range(len(broken) - 400, len(broken))]
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.sampled_from(edges))] = data.draw(st.integers(0, 255))
    read_or_error(tmp_path / "some.bin", bytes(broken[: data.draw(st.integers(1, len(broken)))]))
    read_or_error(tmp_path / "some.bin", bytes(broken))


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
