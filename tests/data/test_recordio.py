"""RecordIO against bytes written by hand from the format's description, and against a plain loop over the bytes."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from damage import fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.core.errors import DataError
from coalface.data.readers import recordio
from coalface.data.readers.recordio import MAGIC, RecordFile, header, open_records, read_index, write_record

M = bytes([0x0A, 0x23, 0xD7, 0xCE])
"""The magic as it lies in a file."""


def part(kind: int, body: bytes) -> bytes:
    """One part, its frame written bit by bit; the length is below 256 or given by its bytes."""
    length = len(body)
    assert length < 1 << 16
    return M + bytes([length % 256, length // 256, 0, kind << 5]) + body + b"\0" * ((4 - length % 4) % 4)


def plain_header(flag: int = 0, label: float = 0.0, id: int = 0, id2: int = 0) -> bytes:
    return struct.pack("<IfQQ", flag, label, id, id2)


def written(record: bytes) -> bytes:
    out = io.BytesIO()
    assert write_record(out, record) == len(out.getvalue())
    return out.getvalue()


def opened(folder: Path, data: bytes, index: str | Sequence[int] | None = (0,)) -> RecordFile:
    """A file of these bytes; the index as text, as the offsets of the records 0, 1, …, or none."""
    (folder / "some.rec").write_bytes(data)
    if index is None:
        return open_records(folder / "some.rec", None)
    text = index if isinstance(index, str) else "".join(f"{key}\t{offset}\n" for key, offset in enumerate(index))
    (folder / "some.idx").write_text(text)
    return open_records(folder / "some.rec", folder / "some.idx")


class Broken(Exception):
    pass


def naive(data: bytes, offset: int) -> tuple[int, float, bytes]:
    """(flag, label, payload) of the record at `offset`, byte by byte, or Broken."""
    whole, kinds, at = b"", [], offset
    while True:
        frame = data[at : at + 8]
        if at % 4 or len(frame) < 8 or frame[:4] != M:
            raise Broken
        word = frame[4] + 256 * frame[5] + 65536 * frame[6] + 16777216 * frame[7]
        kind, length = divmod(word, 2**29)
        kinds.append(kind)
        padded = data[at + 8 : at + 8 + length + (-length % 4)]
        if len(padded) < length + (-length % 4) or (kind in (1, 2) and length % 4):
            raise Broken
        whole += padded[:length]
        at += 8 + len(padded)
        if kind in (0, 3):
            break
        if kind not in (1, 2):
            raise Broken
        whole += M
    if kinds != [0] and not (kinds[0] == 1 and kinds[-1] == 3 and set(kinds[1:-1]) <= {2}):
        raise Broken
    if len(whole) < 24:
        raise Broken
    flag, label = struct.unpack("<If", whole[:8])
    if len(whole) < 24 + 4 * flag:
        raise Broken
    if flag:
        (label,) = struct.unpack("<f", whole[24:28])
    return flag, label, whole[24 + 4 * flag :]


H = plain_header(label=5.0, id=7)

BY_HAND = [
    ("a payload of a multiple of 4", H + b"abcd", [(0, H + b"abcd")]),
    ("a payload that is padded", H + b"abcde", [(0, H + b"abcde")]),
    ("no payload", H, [(0, H)]),
    ("the magic where the payload begins", H + M + b"xy", [(1, H), (3, b"xy")]),
    ("the magic inside", H + b"abcd" + M + b"xyz", [(1, H + b"abcd"), (3, b"xyz")]),
    ("the magic at the end", H + b"abcd" + M, [(1, H + b"abcd"), (3, b"")]),
    ("two that touch", H + M + M + b"x", [(1, H), (2, b""), (3, b"x")]),
    ("two apart", H + b"abcd" + M + b"efgh" + M + b"i", [(1, H + b"abcd"), (2, b"efgh"), (3, b"i")]),
    ("the magic at no multiple of 4", H + b"a" + M + b"bc", [(0, H + b"a" + M + b"bc")]),
    ("one of each", H + b"a" + M + b"bcd" + M, [(1, H + b"a" + M + b"bcd"), (3, b"")]),
    ("the magic in the first id", plain_header(id=MAGIC) + b"x", [(1, H[:4] * 2), (3, b"\0" * 12 + b"x")]),
    ("the magic as the last thing of the header", plain_header(id2=MAGIC << 32), [(1, b"\0" * 20), (3, b"")]),
]


@pytest.mark.parametrize(("record", "parts"), [case[1:] for case in BY_HAND], ids=[case[0] for case in BY_HAND])
def test_records_by_hand_are_read_and_written(tmp_path: Path, record: bytes, parts: list[tuple[int, bytes]]) -> None:
    by_hand = b"".join(part(kind, body) for kind, body in parts)
    assert written(record).hex() == by_hand.hex()
    between = part(0, H + b"before")
    file = opened(tmp_path, between + by_hand + between, [0, len(between), len(between) + len(by_hand)])
    records = file.read_many([1])
    assert (records.flags[0], records.label[0]) == struct.unpack("<If", record[:8])
    assert [bytes(payload) for payload in map(records.payload, range(1))] == [record[24:]]
    assert records.lengths[0] == len(record) - 24
    assert (records.starts[0] == -1) == (len(parts) > 1)
    scanned = opened(tmp_path, between + by_hand + between, None)
    assert scanned.offsets.tolist() == file.offsets.tolist()


def test_labels_that_follow_the_header(tmp_path: Path) -> None:
    raw_records = [
        plain_header(flag=2, label=9.0) + struct.pack("<2f", 3.0, 4.0) + b"two",
        plain_header(flag=1, label=9.0) + struct.pack("<f", 8.0) + b"one",
        plain_header(flag=3, label=9.0) + struct.pack("<3f", 1.0, 2.0, 3.0),
        plain_header(flag=0, label=6.0) + b"none",
        # The magic as the second label: the record is cut inside its labels.
        plain_header(flag=2) + struct.pack("<f", 5.0) + M + b"cut",
    ]
    data, offsets = b"", []
    for record in raw_records:
        offsets.append(len(data))
        data += written(record)
    records = opened(tmp_path, data, offsets).read_many(range(5))
    assert records.flags.tolist() == [2, 1, 3, 0, 2]
    assert records.label.tolist() == [3.0, 8.0, 1.0, 6.0, 5.0]
    assert records.second[[0, 2]].tolist() == [4.0, 2.0]
    assert np.isnan(records.second[[1, 3]]).all()
    assert records.second[4:].tobytes() == M
    assert [bytes(p) for p in map(records.payload, range(5))] == [b"two", b"one", b"", b"none", b"cut"]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_damaged_file_is_read_as_it_stands_or_refused(data: st.DataObject) -> None:
    """Bits are flipped and the end is cut off: what a plain loop reads is read alike, what it refuses is refused."""
    good = [H + b"some payload", header([1, 2]) + b"ab" + M, header(3) + b"abcd" + M + b"efgh" + M, H]
    raw, offsets = b"", []
    for record in good:
        offsets.append(len(raw))
        raw += written(record)
    bad = bytearray(raw)
    for at in data.draw(st.lists(st.integers(0, 8 * len(raw) - 1), max_size=3)):
        bad[at // 8] ^= 1 << at % 8
    bad = bad[: data.draw(st.one_of(st.just(len(raw)), st.integers(8, len(raw))))]
    if data.draw(st.booleans()):
        offsets[data.draw(st.integers(0, 3))] = data.draw(st.integers(0, len(raw) + 9))
    with fresh_folder() as folder:
        file = opened(folder, bytes(bad), offsets)
        for key, offset in enumerate(offsets):
            try:
                flag, label, payload = naive(bytes(bad), offset)
            except Broken:
                with pytest.raises(DataError, match=rf"some\.rec, record {key}: .*; (fetch|or delete)"):
                    file.read_many([key])
                assert list(file.faults(range(4))).count(key) == 1
            else:
                records = file.read_many([key])
                assert (records.flags[0], bytes(records.payload(0))) == (flag, payload)
                assert np.array_equal(records.label, np.float32([label]), equal_nan=True)
        try:
            opened(folder, bytes(bad), None)
        except ValueError as error:
            assert "some.rec, record " in str(error)


def test_an_index_that_lists_a_record_twice(tmp_path: Path) -> None:
    path = tmp_path / "some.idx"
    for keys, twice in (([3, 0, 1, 1], 1), ([9, 9, 2], 9)):
        path.write_text("".join(f"{key}\t0\n" for key in keys))
        with pytest.raises(DataError, match=rf"some\.idx: it lists record {twice} more than once"):
            read_index(path)


def test_a_record_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recordio.LONGEST == 536_870_911
    monkeypatch.setattr(recordio, "LONGEST", 27)
    written(H + b"abc")
    with pytest.raises(
        ValueError, match=r"a record of 28 bytes is too long: the format has 29 bits .* store the image"
    ):
        written(H + b"abcd")


def test_an_index_cannot_make_a_large_record_be_held_many_times(tmp_path: Path) -> None:
    """2,000 lines that lead to one record of 1 MB in two parts: nothing is put together before it is asked for."""
    file = opened(tmp_path, written(H + bytes(1 << 20) + M), [0] * 2000)
    tracemalloc.start()
    try:
        records = file.read_many(range(2000))
        memory = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert memory < 1 << 20, "about 400 bytes a record"
    assert len(records.payload(1999)) == (1 << 20) + 4


WHOLE = written(H + b"some payload, long enough to lie in")
HALVES = written(H + M + b"x")


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        (WHOLE, 9999, "outside the file of 68 bytes; fetch both"),
        (WHOLE, 2, "no record begins at byte 2"),
        (HALVES, 32, "no record begins at byte 32"),
        (WHOLE[:60], 0, "after the end"),
        (HALVES[:-4], 0, "after the end"),
        (part(0, b"x" * 23), 0, "too short"),
        (part(1, b"x" * 12) + part(3, b"x" * 7), 0, "too short"),
        (part(1, H) + part(0, b""), 0, "parts"),
        (part(1, H + b"x") + part(3, b""), 0, "parts"),
    ],
)
def test_each_kind_of_damage_is_told_apart(tmp_path: Path, data: bytes, offset: int, reason: str) -> None:
    with pytest.raises(DataError, match=rf"some\.rec, record 0: .*{reason}"):
        opened(tmp_path, data, [offset]).read_many([0])


def test_records_in_any_order_and_repeated(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = [M, b"\0\0\0\0", b"a", M[:2], M[2:], bytes(range(200))]
    data, lines, offset_of = b"", [], {}
    for key in rng.permutation(200) * 3:  # numbers with gaps, in an order that is not the file's
        body = b"".join(words[i] for i in rng.integers(len(words), size=rng.integers(8)))
        flag = int(rng.integers(4))
        lines.append(f"{key}\t{len(data)}")
        offset_of[int(key)] = len(data)
        data += written(plain_header(flag, float(key)) + rng.integers(1000, size=flag).astype("<f4").tobytes() + body)
    file = opened(tmp_path, data, "\r\n".join(lines))
    keys = rng.permutation(np.repeat(rng.permutation(200) * 3, 2))
    records = file.read_many(keys)
    assert 20 < (records.starts < 0).sum() < 380
    for row, key in enumerate(keys.tolist()):
        assert (records.flags[row], records.label[row], bytes(records.payload(row))) == naive(data, offset_of[key])
    assert len(file.read_many([]).keys) == 0
    for missing in (1, -1, 598, 10**17):
        with pytest.raises(DataError, match=rf"record {missing}: the index .* has no record"):
            file.read_many([3, missing])


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=60) | st.text("0123456789\t\n", max_size=60).map(str.encode))
def test_an_index_of_any_bytes(text: bytes) -> None:
    with fresh_folder() as folder:
        path = folder / "some.idx"
        path.write_bytes(text)
        try:
            keys, offsets = read_index(path)
        except ValueError as error:
            assert "some.idx" in str(error)
        else:
            pairs = [tuple(map(int, line.split(b"\t")[:2])) for line in text.split(b"\n") if line.strip()]
            assert sorted(pairs) == list(zip(keys.tolist(), offsets.tolist(), strict=True))
