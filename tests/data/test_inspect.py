from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from coalface.data.stores import Store
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.data.tools.inspect import Report, inspect, near_names, report_text


def image(seed: int, width: int = 40, height: int = 40, channels: int = 3, kind: str = ".png") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return bytes(cv2.imencode(kind, pixels)[1])


def looked(items: list[tuple[int, bytes | None]], names: list[str] | None = None, **more: bool) -> Report:
    names = names if names is not None else [f"n{i:05d}" for i in range(1 + max(identity for identity, _ in items))]
    return inspect(held(items, tuple(names)), **more)


def held(items: list[tuple[int, bytes | None]], names: tuple[str, ...], notes: tuple[str, ...] = ()) -> Store:
    """Images in identity folders that are not on the disk; those without bytes are gone."""

    def encoded(i: int) -> bytes:
        if (data := items[i][1]) is None:
            raise OSError("gone")
        return data

    labels, files = np.array([identity for identity, _ in items], np.int64), [f"place {i}" for i in range(len(items))]
    source: Any = None
    return Store("folder", Path("x"), source, names, files, labels, encoded, notes=notes)


def test_what_is_there_is_counted() -> None:
    report = looked([(0, image(1)), (0, image(2, kind=".jpg")), (0, image(3)), (1, image(4, 50, 40)), (2, image(5))])
    assert (report.images, report.identities, report.single) == (5, 3, 2)
    assert report.per_identity == {"least": 1, "median": 1.0, "mean": 5 / 3, "most": 3}
    assert report.sizes == {"40×40": 4, "50×40": 1} and report.different_sizes == 2
    assert (report.channels, report.formats) == ({"3": 5}, {"png": 4, "jpeg": 1})
    assert report.damaged_count == report.doubled_within_count == report.doubled_across_count == 0
    assert report.wrong == ["2 of 3 identities (67 %) have one image only"]


def test_copies_are_told_apart_by_whose_they_are() -> None:
    first, second = image(1), image(2)
    report = looked([(0, first), (0, first), (0, first), (1, second), (2, second), (1, image(3)), (2, image(4))])
    assert report.doubled_within == [["x/place 0", "x/place 1", "x/place 2"]] and report.doubled_within_count == 2
    assert report.doubled_across == [["x/place 3", "x/place 4"]] and report.doubled_across_count == 1
    assert (
        "contradict" in report.wrong[0] and "x/place 3 and x/place 4" in report.wrong[0] and "copies" in report.wrong[1]
    )


def test_the_same_picture_is_found_in_other_bytes_and_probably_when_scaled_or_encoded_again() -> None:
    faces = SyntheticFaces(12, 1, seed=5, size=96, grey=False).generate().pixels
    encoded = [bytes(cv2.imencode(".png", face)[1]) for face in faces]
    repacked = bytes(cv2.imencode(".png", faces[0], [cv2.IMWRITE_PNG_COMPRESSION, 9])[1])
    smaller = cv2.resize(faces[1], (64, 64), interpolation=cv2.INTER_AREA)
    again = bytes(cv2.imencode(".jpg", faces[3], [cv2.IMWRITE_JPEG_QUALITY, 95])[1])
    ramp = np.arange(0, 252, 7)  # two that brighten evenly and late have equal hashes, as have two flat ones
    rows = (np.full(36, 3), np.full(36, 200), ramp, np.where(ramp < 230, ramp // 2, ramp))
    unlike = [bytes(cv2.imencode(".png", np.tile(row, (36, 1)).astype(np.uint8))[1]) for row in rows]
    copies = [(0, repacked), (20, bytes(cv2.imencode(".png", smaller)[1])), (3, again)]
    report = looked([*enumerate([*encoded, *unlike]), *copies], [str(i) for i in range(21)])
    assert repacked != encoded[0] and report.doubled_within == [["x/place 0", "x/place 16"]]
    assert report.alike_across == [["x/place 1", "x/place 17"]] and report.alike_within == [["x/place 3", "x/place 18"]]
    assert not report.doubled_across and "probably" in report.wrong[0]
    headers_alone = looked([*enumerate(encoded), *copies], decode=False)
    assert not headers_alone.doubled_within + headers_alone.alike_within + headers_alone.alike_across


def test_damage_is_named_and_does_not_end_the_look() -> None:
    whole = image(1)
    cut = image(2)[:-200]
    bomb = whole[:16] + (50_000).to_bytes(4, "big") * 2 + whole[24:]
    report = looked([(0, whole), (0, cut), (0, b"text"), (0, b""), (0, None), (0, bomb), (0, image(3))])
    assert report.damaged_count == 5 == len(report.damaged)
    assert all(f"x/place {i}" in damage for i, damage in zip((1, 2, 3, 4, 5), report.damaged, strict=True))
    assert report.images == 7 and "5 images are damaged" in report.wrong[0]
    many = looked([(0, b"x")] * 50)
    assert many.damaged_count == len(many.damaged) == 50 and "30 more" in report_text(many)
    assert inspect(held([], (), ("odd",))).wrong == ["it holds no image", "odd"]


@pytest.mark.parametrize(
    ("items", "fragment"),
    [
        ([(0, image(1)), (0, image(2, channels=1))], "number of channels"),
        ([(0, image(1, 90, 40)), (0, image(2))], "far from square"),
        ([(0, image(1, 20, 20)), (0, image(2))], "less than 32 pixels"),
        ([(1, image(1)), (1, image(2))], "without an image"),
        ([(0, image(i, 40 + 40 * (i % 2))) for i in range(20)], "the commonest, 40×40 (10 of 80×40)"),
        ([(0, image(i, 42, 48)) for i in range(8)] + [(0, image(8, 160, 120))], "the commonest, 42×48 (1 of 160×120)"),
    ],
)
def test_what_looks_wrong_is_said(items: list[tuple[int, bytes | None]], fragment: str) -> None:
    assert any(fragment in sentence for sentence in looked(items).wrong)


@pytest.mark.parametrize(
    ("names", "near"),
    [
        (["Choi_Sung-hong", "Sung_Hong_Choi", "Ann_Lee"], [["Choi_Sung-hong", "Sung_Hong_Choi"]]),
        (["José Núñez", "jose_nunez"], [["José Núñez", "jose_nunez"]]),
        (["David_Kelley", "David_Kelly"], [["David_Kelley", "David_Kelly"]]),
        (["David_Kelly", "Davit_Kelly"], [["David_Kelly", "Davit_Kelly"]]),
        (["Jim_Doe", "Tim_Doe"], []),  # too short: one letter makes another name
        (["n000123", "n000124", "s1", "s2"], []),
        (["David_Kelly", "Daniel_Kelly"], []),
        (["a", "a"], []),
        ([], []),
    ],
)
def test_nearly_the_same_names_are_found(names: list[str], near: list[list[str]]) -> None:
    assert near_names(names) == near


@pytest.mark.parametrize("count", [100, 5000])
def test_names_that_differ_in_one_letter_alone_are_one_group_and_not_all_pairs(count: int) -> None:
    """All pairs of 5,000 names would be 12 million: what is told, and so the work, grows with the names."""
    names = [f"marybell{chr(0x4E00 + i)}" for i in range(count)]
    assert near_names(names) == [names]
    report = looked([(i, image(i)) for i in range(3)], names)
    assert report.near_names == [names]


def test_control_characters_of_names_do_not_reach_a_terminal() -> None:
    report = looked([(0, image(1)), (1, image(1))], ["a", "b"])
    report.wrong = ["x\x1b]0;own\x07", "new\nline", "\u202eabc"]
    printed = report_text(report)
    assert "\x1b" not in printed and "\x07" not in printed and "\u202e" not in printed and "new\\nline" in printed
