"""Limits of insightface's records that property tests cannot reach, and the whole way to folders and back."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from coalface.data import stores
from coalface.data.readers import records
from coalface.data.readers.recordio import header, write_record
from coalface.data.readers.records import check_room, read_rec, write_rec
from coalface.data.stores import open_store
from coalface.data.tools.convert import convert

GOLDEN = Path(os.environ.get("COALFACE_DATA", "")) / "golden"
needs_golden = pytest.mark.skipif(
    not (os.environ.get("COALFACE_DATA") and GOLDEN.is_dir()),
    reason="COALFACE_DATA is unset, or has no folder golden",
)
PICTURE = b"P5 1 1 255\n"


def labelled(*counts: int) -> list[tuple[int, bytes]]:
    """So many images of each identity, all different."""
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    return [(label, PICTURE + bytes([i])) for i, label in enumerate(labels)]


def test_the_most_that_float32_numbers_can_name() -> None:
    """Record 0 names one past the last record: 1 + images + identities, at most 2²⁴ = 16,777,216."""
    check_room(16_777_214, 1)
    check_room(10_000_000, 6_777_215)
    for images, identities in ((16_777_215, 1), (10_000_000, 6_777_216), (16_777_216, 16_777_216)):
        with pytest.raises(ValueError, match=rf"{images:,} images of .* are too many for one file: .* split the set"):
            check_room(images, identities)
    assert np.float32(16_777_216) == 16_777_216 and np.float32(16_777_217) == 16_777_216


def test_a_set_that_is_too_large_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "EXACT", 10)
    with pytest.raises(ValueError, match="9 images of 1 identity are too many for one file"):
        write_rec(labelled(9), tmp_path / "deep" / "set")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="are too many for one file"):  # of the identities, only the labels tell
        write_rec(labelled(1, 1, 1, 1, 1), tmp_path / "set")
    assert list(tmp_path.iterdir()) == []
    write_rec(labelled(1, 1, 1, 1), tmp_path / "set")
    assert read_rec(tmp_path / "set").names == tuple("0123")


def test_images_that_come_one_by_one_are_refused_at_the_first_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "EXACT", 10)
    asked = []

    def endless() -> Iterator[tuple[int, bytes]]:
        while True:
            asked.append(0)
            yield 0, PICTURE

    with pytest.raises(ValueError, match="9 images of 1 identity are too many for one file"):
        write_rec(endless(), tmp_path / "set")
    assert len(asked) == 9 and list(tmp_path.iterdir()) == []


def test_a_conversion_that_is_too_large_reads_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rec(labelled(2, 3), tmp_path / "set")

    def unread(i: int) -> NoReturn:
        raise AssertionError("an image was read")

    store = dataclasses.replace(open_store(tmp_path / "set"), encoded=unread)
    monkeypatch.setattr(records, "EXACT", 7)
    with pytest.raises(ValueError, match="5 images of 2 identities are too many for one file"):
        convert(store, tmp_path / "other", "rec")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    monkeypatch.setattr(records, "EXACT", 8)
    with pytest.raises(AssertionError, match="an image was read"):
        convert(store, tmp_path / "other", "rec")


@pytest.mark.parametrize(("label", "noted"), [(2**24 - 1, False), (2**24, True), (2**24 + 1, True), (2**30, True)])
def test_labels_that_float32_may_have_rounded_are_noted(tmp_path: Path, label: int, noted: bool) -> None:
    with open(tmp_path / "train.rec", "wb") as out:
        for one in (0, label):
            write_record(out, header(one) + PICTURE + b"x")
    store = open_store(tmp_path)
    assert [said.split(":")[0].split(",")[0] for said in store.notes if "float32" in said] == (
        [f"labels go up to {int(np.float32(label)):,}".split(",")[0]] if noted else []
    )
    assert stores.EXACT == 2**24


@needs_golden
def test_what_mxnet_wrote_comes_back_from_folders_but_for_the_form_of_some_labels(tmp_path: Path) -> None:
    """Its file has, on purpose, both forms of labels; a folder does not hold which image had which.

    Where the form of each image is put back (flag 2 and the labels [label, 0] for flag 0 and the label), the record
    file and its index are MXNet's byte for byte: header record, ids, images, ranges, padding and order are the same.
    """
    original = read_rec(GOLDEN)
    convert(open_store(GOLDEN), tmp_path / "folders", "folder")
    convert(open_store(tmp_path / "folders"), tmp_path / "set", "rec")
    again = read_rec(tmp_path / "set")
    assert (tmp_path / "set" / "property").read_bytes() == (GOLDEN / "property").read_bytes()
    assert again.records.keys.tolist() == original.records.keys.tolist()

    theirs, ours = (found.records.read_many(found.records.keys) for found in (original, again))
    images = np.isin(theirs.keys, original.keys)
    assert set(theirs.flags[images].tolist()) == {0, 2} and set(ours.flags[images].tolist()) == {0}
    assert np.array_equal(theirs.flags[~images], ours.flags[~images])
    assert np.array_equal(theirs.label, ours.label) and np.array_equal(theirs.ids, ours.ids)
    assert list(map(bytes, theirs.payloads())) == list(map(bytes, ours.payloads()))

    lines = []
    with open(tmp_path / "train.rec", "wb") as out:
        for i, key in enumerate(ours.keys.tolist()):
            label, second = float(ours.label[i]), float(ours.second[i])
            form = [label, 0.0 if images[i] else second] if theirs.flags[i] else label
            lines.append(f"{key}\t{out.tell()}\n")
            write_record(out, header(form, id=int(ours.ids[i, 0])) + bytes(ours.payload(i)))
    assert (tmp_path / "train.rec").read_bytes() == (GOLDEN / "train.rec").read_bytes()
    assert "".join(lines).encode() == (GOLDEN / "train.idx").read_bytes()
