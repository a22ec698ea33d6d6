"""Pickles of verification packs that would run code, or fill the memory: refused, and nothing of them is run."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coalface.core.errors import DataError
from coalface.data.readers.bin import read_bin

NUMPY: Any = np._core.multiarray
PACK = [b"an image", b"another", b"a third", b"an image"], [True, False]


def put(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "some.bin"
    path.write_bytes(data)
    return path


class Call:
    """Pickled as a call: loading it calls `function(*arguments)`, and then sets a state."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

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
"after a whole pack, popped": pickle.dumps(PACK, 2)[:-1] + op("builtins", "open", opened) + b"0.",
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
"two packs": pickle.dumps(PACK, 4) * 2,
"another coding": b"\x80\x02" + ENCODE + b"X\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
"a text that is encoded again and again": b"\x80\x02]" + ENCODE + b"X\xe8\x03\x00\x00" + 1000 * b"a"
    + LATIN1 + b"\x86q\x00R" + 5 * (ENCODE + b"h\x00R") + b".",
"a buffer of another length": b"\x80\x05" + short("numpy._core.numeric") + short("_frombuffer") + b"\x93(C\x02ab"
    + U1 + b"K\x03\x85" + short("C") + b"tR.",
"protocol 255": b"\x80\xff].",
"an image": b"\xff\xd8\xff\xe0" + bytes(100),
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
    array = ARRAY + b"(K\x01K\x01\x85" + U1 + b"\x89C\x01atb"
    truth = short("numpy.core.multiarray") + short("scalar") + b"\x93" + U1.replace(b"u1", b"b1") + b"C\x01\x01\x86R"
    data = b"\x80\x04](" + 2 * array + b"e]" + truth + b"a\x86."
    pack = read_bin(put(tmp_path, data))
    assert [bytes(pack.encoded(i)) for i in range(len(pack))] == [b"a", b"a"] and pack.same.tolist() == [True]
