"""insightface's record sets: its conventions by hand, the files that MXNet wrote, and damaged ones."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from coalface.core.errors import DataError
from coalface.data.readers import records
from coalface.data.readers.pack import cached_pack, read_pack, write_pack
from coalface.data.readers.recordio import header, write_record
from coalface.data.readers.records import Rec, read_rec, write_rec
from coalface.data.source import decode
from coalface.data.tools.record_ranges import misfits

GOLDEN = Path(os.environ.get("COALFACE_DATA", "")) / "golden"
needs_golden = pytest.mark.skipif(
    not (os.environ.get("COALFACE_DATA") and GOLDEN.is_dir()), reason="COALFACE_DATA is unset, or has no folder golden"
)
M = bytes([0x0A, 0x23, 0xD7, 0xCE])
HEADERLESS = [(label, b"image %d" % i) for i, label in enumerate([4, 4, 9, 120])]


def face(i: int) -> bytes:
    """An encoded picture, different for every i."""
    y, x = np.mgrid[0:20, 0:20]
    return cv2.imencode(".png", (x * (i + 1) + 3 * y).astype(np.uint8))[1].tobytes()


def faces() -> list[tuple[int, bytes]]:
    return [(label, face(i)) for i, label in enumerate([0, 0, 0, 1, 2, 2])]


def put(
    folder: Path, records: Iterable[bytes], *, about: str | None = None, index: bool = True, first: int = 0
) -> Path:
    """A record file of these records, numbered from `first` on, with an index and a property file if wanted."""
    folder.mkdir(exist_ok=True, parents=True)
    lines = []
    with open(folder / "train.rec", "wb") as out:
        for key, record in enumerate(records, start=first):
            lines.append(f"{key}\t{out.tell()}\n")
            write_record(out, record)
    (folder / "train.idx").unlink(missing_ok=True)
    if index:
        (folder / "train.idx").write_text("".join(lines))
    if about is not None:
        (folder / "property").write_text(about)
    return folder


def conventional(labels: Iterable[float], border: float | None = None, end: float | None = None) -> list[bytes]:
    """Header record, images, and one identity's record."""
    images = [header(label) + b"image" for label in labels]
    last = len(images) + 1
    zero = header([last if border is None else border, last + 1 if end is None else end])
    return [zero, *images, header([1, last])]


def content(source: Rec) -> list[tuple[int, bytes]]:
    return [(label, bytes(source.encoded(i))) for i, label in enumerate(source.labels.tolist())]


def by_hand(folder: Path) -> list[tuple[int, int, float, list[float], bytes, int]]:
    """(key, flag, label, labels, payload, id) of every whole record, read with struct alone."""
    data, records = (folder / "train.rec").read_bytes(), []
    for line in (folder / "train.idx").read_text().splitlines():
        key, offset = line.split("\t")
        at = int(offset)
        magic, word, flag, label, id, _ = struct.unpack_from("<IIIfQQ", data, at)
        assert magic == 0xCED7230A and word < 1 << 29
        labels = list(struct.unpack_from(f"<{flag}f", data, at + 32))
        records.append((int(key), flag, label, labels, data[at + 32 + 4 * flag : at + 8 + word], id))
    return records


@needs_golden
def test_files_that_mxnet_wrote() -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text())
    source = read_rec(GOLDEN)
    assert len(source.files) == len(source.labels) == expected["images"] == 40
    assert len(source.names) == len(source.identities) == expected["identities"] == 20
    assert source.announced == (20, 112, 112)
    for i, (label, image) in enumerate(content(source)):
        record = expected["records"][i]
        assert (source.keys[i], label) == (record["record"], record["label"])
        assert hashlib.sha256(image).hexdigest() == record["jpeg_sha256"]
    flags = source.records.read_many(source.keys).flags
    assert set(flags.tolist()) == {0, 2}, "both label forms are in the file"
    ranges = source.records.read_many(source.identities)
    assert ranges.label.tolist() == [1 + 2 * i for i in range(20)]
    assert ranges.second.tolist() == [3 + 2 * i for i in range(20)]
    shapes = {image.shape for image in source.images(size=112, grey=False)}
    assert shapes == {(112, 112, 3)}


@pytest.mark.skipif("COALFACE_DATA" not in os.environ, reason="COALFACE_DATA is not set")
def test_records_of_others_without_a_header_are_read() -> None:
    """As im2rec writes them from a shuffled list, and AdaFace takes them: images alone, from number 0 on."""
    folder = Path(os.environ["COALFACE_DATA"], "real")
    source = read_rec(folder)
    lines = [line.split("\t") for line in (folder / "train.lst").read_text().splitlines()]
    label_of = {int(key): int(label) for key, label, _ in lines}
    assert {int(key): int(label) for key, label in zip(source.keys, source.labels, strict=True)} == label_of
    assert len(source.names) == 2 and {image.shape for image in source.images(size=112, grey=False)} == {(112, 112, 3)}


@needs_golden
def test_what_is_written_has_the_bytes_that_mxnet_wrote(tmp_path: Path) -> None:
    """All but the headers of images with flag 2, of which MXNet's file has both forms."""
    source, folder = read_rec(GOLDEN), tmp_path / "set"
    write_rec(content(source), folder)
    again = read_rec(folder)
    assert content(again) == content(source) and again.announced == source.announced
    assert (folder / "property").read_bytes() == (GOLDEN / "property").read_bytes()
    data, original = (folder / "train.rec").read_bytes(), (GOLDEN / "train.rec").read_bytes()
    assert data[:40] == original[:40]
    assert data[-20 * 40 :] == original[-20 * 40 :]
    for key in source.keys[source.records.read_many(source.keys).flags == 0]:
        (start, stop), (begin, end) = (of.records.offsets[[key, key + 1]] for of in (again, source))
        assert data[start:stop] == original[begin:end]


def test_conventions_by_hand(tmp_path: Path) -> None:
    write_rec(faces(), tmp_path / "set", size=(20, 24))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set"]
    assert sorted(p.name for p in (tmp_path / "set").iterdir()) == ["property", "train.idx", "train.rec"]
    assert (tmp_path / "set" / "property").read_text() == "3,20,24\n"
    assert content(read_rec(tmp_path / "set")) == content(read_rec(tmp_path / "set" / "train.rec")) == faces()
    records = by_hand(tmp_path / "set")
    assert [record[0] for record in records] == list(range(10))
    assert records[0] == (0, 2, 0.0, [7.0, 10.0], b"", 0)
    for i, (label, image) in enumerate(faces()):
        assert records[i + 1] == (i + 1, 0, label, [], image, i + 1)
    assert [record[1:] for record in records[7:]] == [
        (2, 0.0, [1.0, 4.0], b"", 7),
        (2, 0.0, [4.0, 5.0], b"", 8),
        (2, 0.0, [5.0, 7.0], b"", 9),
    ]


def test_a_record_set_is_a_source(tmp_path: Path) -> None:
    write_rec(faces(), tmp_path / "set")
    source = read_rec(tmp_path / "set")
    assert list(source.files) == [f"{label}/{i + 1:08d}" for i, (label, _) in enumerate(faces())]
    assert list(source.files[2:4]) == ["0/00000003", "1/00000004"] and source.files[-1] == "2/00000006"
    pixels = np.stack([decode(image, "a face", size=16, grey=True) for _, image in faces()])
    assert np.array_equal(np.stack(list(source.images(size=16, grey=True))), pixels)
    write_pack(source, tmp_path / "pack", size=16, grey=True)
    for pack in (read_pack(tmp_path / "pack"), cached_pack(source, size=16, grey=True)):
        assert np.array_equal(pack.pixels, pixels)
        assert pack.labels.tolist() == source.labels.tolist() == [0, 0, 0, 1, 2, 2]
        assert pack.files == tuple(source.files) and pack.names == source.names


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("flag", [0, 2])
def test_a_file_without_a_header_record(tmp_path: Path, first: int, flag: int) -> None:
    records = [header([label, 0] if flag else label) + image for label, image in HEADERLESS]
    source = read_rec(put(tmp_path, records, first=first))
    assert source.keys.tolist() == list(range(first, first + 4))
    assert [image for _, image in content(source)] == [image for _, image in HEADERLESS]
    assert source.names == ("004", "009", "120") and len(source.identities) == 0
    assert source.announced is None


def test_a_damaged_image_names_its_record(tmp_path: Path) -> None:
    source = read_rec(put(tmp_path, [header(0) + face(0), header(0) + face(1)[:40]], first=3))
    images = source.images(size=20, grey=True)
    next(images)
    with pytest.raises(DataError, match=r"train\.rec, record 4: it is damaged or not an image"):
        next(images)


def test_a_writer_that_fails_leaves_nothing_and_overwrites_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[int, bytes]]:
        yield 0, b"a"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rec(broken(), tmp_path / "set")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    write_rec(faces(), tmp_path / "empty")
    before = (tmp_path / "empty" / "train.rec").read_bytes()
    with pytest.raises(FileExistsError, match="empty already exists"):
        write_rec([(0, b"a")], tmp_path / "empty")
    assert (tmp_path / "empty" / "train.rec").read_bytes() == before
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="file already exists"):
        write_rec(faces(), tmp_path / "file")


NAN = float("nan")


@pytest.mark.parametrize(
    ("records", "about", "reason"),
    [
        *((conventional([0, 1, label, 2]), None, "record 3: its label") for label in (NAN, -1.0, 0.5, 2.0**31)),
        *(
            (conventional([0, 0, 1], *ends), None, "record 0: it should give")
            for ends in ((NAN, 5), (4, float("inf")), (0, 5), (5, 4), (3.5, 5), (1, 3e38))
        ),
        (conventional([0, 0, 1], 4, 9), None, "record 0: it announces .* 4 of these records are missing"),
        (conventional([0, 0, 1], 5), None, "record 4: it has no image"),  # as if an identity's record were an image
        ([header(0) + b"x", header(0)], None, "record 1: it has no image"),
        ([header([1, 1])], None, "has no images"),
        *(
            (conventional([0, 1]), about, "property: it says")
            for about in ("", "20;112;112", "-1,112,112", "9" * 50 + ",1,1")
        ),
    ],
)
def test_what_is_no_record_set_is_refused(tmp_path: Path, records: list[bytes], about: str | None, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_rec(put(tmp_path, records, about=about))


def test_records_that_are_left_out_are_told_by_number(tmp_path: Path) -> None:
    source = read_rec(put(tmp_path, [header(0) + face(0), header(0), header(-1) + face(1)]), damaged="leave out")
    assert source.keys.tolist() == [0] and content(source) == [(0, face(0))]
    assert "no image" in str(source.faults[1]) and "its label" in str(source.faults[2])


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        ([(0, b"a"), (2, b"b")], "image 1 has label 2 where 0 or 1"),
        ([(1, b"a")], "image 0 has label 1 where 0 "),
        ([(0, b"a"), (0, b"")], "image 1 .* no bytes"),
        ([(0, b"a"), (0, b"x" * 100)], "image 1 .* too long"),
        ([], "no image"),
        ([(0, b"x")] * 9, "9 images of 1 identity are too many"),
    ],
)
def test_what_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: list[tuple[int, bytes]], reason: str
) -> None:
    monkeypatch.setattr(records, "EXACT", 10)
    monkeypatch.setattr("coalface.data.readers.recordio.LONGEST", 100)
    with pytest.raises(ValueError, match=reason):
        write_rec(images, tmp_path / "set")
    assert list(tmp_path.iterdir()) == []


def ranged(labels: list[float], ranges: list[Sequence[float]], *, border: float | None = None) -> list[bytes]:
    """Header record, an image to a label, and a record to a range."""
    last = len(labels) + 1
    images = [header(label) + face(i) for i, label in enumerate(labels)]
    zero = header([last if border is None else border, last + len(ranges)])
    return [zero, *images, *(header(list(bounds)) for bounds in ranges)]


@pytest.mark.parametrize(
    ("labels", "ranges", "patterns"),
    [
        ([0, 0, 1, 2], [(1, 3), (3, 4), (4, 5)], []),
        ([4, 4, 9, 120], [(1, 3), (3, 4), (4, 5)], []),
        ([2, 0, 0, 1], [(2, 4), (4, 5), (1, 2)], []),
        ([0, 0, 1, 2], [(3, 1), (3, 4), (4, 5)], ["record 5: its range, 3 to 1, is empty"]),
        ([0, 0, 1, 2], [(1, 3), (3, 4), (4, float("nan"))], ["record 7: its range, 4 to nan, is empty"]),
        ([0, 0, 1, 2], [(1, 3), (3, 4), (4, float("inf"))], ["record 7: its range, 4 to inf, is empty"]),
        ([0, 0, 1, 2], [(0, 3), (3, 4), (4, 5)], ["record 5: its range, 0 to 2, reaches beyond the images, rec"]),
        (
            [0, 0, 1, 2],
            [(1, 4), (3, 4), (4, 5)],
            [
                "record 6: its range, 3 to 3, overlaps that of record 5",
                "record 5: .* several labels: record 1 has 0 and record 3 has 1",
            ],
        ),
        ([0, 0, 1, 2], [(1, 2), (3, 4), (4, 5)], ["record 2: no identity's range holds it .so for 1 image of 4"]),
        ([0, 0, 1, 2], [(3, 4), (1, 3), (4, 5)], ["identity 1, and its images have the label 0"]),
        ([0, 0, 3, 2], [(1, 3), (3, 4), (4, 5)], ["record 6: it is identity 1, and its images have the label 3"]),
        (
            [0, 0, 1, 2],
            [(1, 3), (3, 4), (4, 5, 6)],
            ["record 7: it should be an identity's range, two labels without an image, and is something else"],
        ),
    ],
)
def test_ranges_of_identities_fit_the_images_that_they_name(
    tmp_path: Path, labels: list[float], ranges: list[Sequence[float]], patterns: list[str]
) -> None:
    faults = list(misfits(read_rec(put(tmp_path, ranged(labels, ranges)))))
    assert len(faults) >= len(patterns) and bool(faults) == bool(patterns)
    for pattern in patterns:
        assert any(re.search(pattern, fault) for fault in faults), faults
    assert all(fault.startswith(f"{tmp_path}/train.rec, record ") for fault in faults)


@pytest.mark.parametrize("zero", [header([float("nan"), 9]), header([5, 50]), header([9, 4]), None])
def test_a_damaged_header_does_not_end_an_inspection(tmp_path: Path, zero: bytes | None) -> None:
    records = ranged([0, 0, 1, 2], [(1, 3), (3, 4), (4, 5)])
    put(tmp_path, [zero or records[0], *records[1:]], about="nonsense")
    if zero is None:
        data = bytearray((tmp_path / "train.rec").read_bytes())
        data[:4] = b"XXXX"
        (tmp_path / "train.rec").write_bytes(data)
    with pytest.raises(DataError, match="record 0"):
        read_rec(tmp_path)
    rec = read_rec(tmp_path, damaged="leave out")
    assert rec.keys.tolist() == [1, 2, 3, 4] and rec.identities.tolist() == [5, 6, 7] and not rec.faults
    assert len(rec.broken) == 2 and "record 0" in rec.broken[0] and "property: it says" in rec.broken[1]
    assert list(misfits(rec)) == []


def cut_short(folder: Path, *, index: bool) -> Path:
    """A set of six images whose file ends within the fifth."""
    write_rec(faces(), folder)
    records = read_rec(folder).records
    os.truncate(folder / "train.rec", int(records.offsets[5]) + 40)
    if not index:
        (folder / "train.idx").unlink()
    return folder


def test_of_a_cut_file_without_an_index_the_records_before_the_cut_are_kept(tmp_path: Path) -> None:
    folder = cut_short(tmp_path / "set", index=False)
    with pytest.raises(DataError, match=r"record 5, at byte [\d,]+: it is cut short"):
        read_rec(folder)
    rec = read_rec(folder, damaged="leave out")
    assert content(rec) == faces()[:4]
    assert re.search(
        r"record 5, at byte [\d,]+: it is cut short, and 40 bytes from there on are left out", rec.broken[0]
    )
    assert any("announces images up to record 6" in fault for fault in rec.broken)
    (folder / "train.rec").write_bytes((folder / "train.rec").read_bytes()[:20])
    with pytest.raises(DataError, match="record 0, at byte 0: it is cut short"):
        read_rec(folder, damaged="leave out")


def test_of_a_cut_file_with_an_index_nobody_is_told_to_delete_the_index(tmp_path: Path) -> None:
    folder = cut_short(tmp_path / "set", index=True)
    with pytest.raises(DataError, match=r"record 5: .* goes on after the end of the file \([\d,]+ bytes\); fetch the"):
        read_rec(folder)
    rec = read_rec(folder, damaged="leave out")
    assert content(rec) == faces()[:4]
    faults = [*map(str, rec.faults.values()), *rec.broken, *misfits(rec)]
    assert len(faults) >= 2 and not any("delete" in fault for fault in faults)
    assert "goes on after the end" in str(rec.faults[5]) and "fetch both files again" in str(rec.faults[6])
