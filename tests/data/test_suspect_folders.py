"""Folders that are parts, views or conditions are told from people, by what they and their files are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from coalface.data.readers.folders import Folder, read_folder
from coalface.data.tools.suspect_folders import doubts, empty_folders


def named(root: Path, *files: str) -> Folder:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"")
    return read_folder(root)


WORDS = ("ann", "bo", "cy", "di", "ed", "flo", "gil", "hal", "ida", "jo")
EACH = (1, 2)


def numbered(*names: str, count: int = 2) -> list[str]:
    return [f"{name}_{k:04}.jpg" for name in names for k in range(1, count + 1)]


@pytest.mark.parametrize(
    ("files", "fragments"),
    [
        (
            [f"{part}/{file}" for part in ("train", "val") for file in numbered("a", "b")],
            ["part of a set", "train, val"],
        ),
        ([f"images/{file}" for file in numbered("a")], ["1 identity", "images"]),
        (
            [f"part{k}/{file}" for k in (1, 2) for file in numbered("Ann_Lee", "Bo_van_Dyk", "Cy_Fox")],
            ["2 folders of 2", "part1", "Ann_Lee, Bo_van_Dyk, Cy_Fox"],
        ),
        (
            [f"{'ab'[p // 4]}/person{p:02}_{image}.png" for p in range(8) for image in (1, 2)],
            ["2 folders of 2", "person00, person01, person02"],
        ),
        (  # a hundred images of each of two cameras
            [f"{c}/frame_{i:04}_ID{i % 9:02}.jpg" for c in ("front door", "till") for i in range(100)],
            ["2 folders of 2", "ID00, ID01, ID02"],
        ),
        (  # one person before both
            [f"{c}/frame_{i:04}_ID07.jpg" for c in ("front door", "till") for i in range(100)],
            ["2 folders", "ID07", "front door, till"],
        ),
        (
            [f"{name}/{i}_id{k}.jpg" for name, k in (("a", 1), ("b", 2), ("c", 1), ("d", 2), ("e", 3)) for i in EACH],
            ["every file of 2 folders", "id1 (a, c), and so for 1 more"],
        ),
        (
            [f"smile/{k:03}_frontal_{i:02}.jpg" for k in (1, 2, 3, 4) for i in (1, 2)],
            ["1 folder of 1 holds", "001, 002, 003, …"],
        ),
        ([f"{how}_front/{k:03}.jpg" for how in ("neutral", "smiling") for k in (1, 2, 5, 9)], ["2 identities"]),
        (
            [f"{how}/subject{k:02}.{how}.png" for how in ("calm", "wink", "tired") for k in range(1, 6)],
            ["the same 5 names", "subject01, subject02, subject03, …"],
        ),
        (
            [f"{place}/{name}_{i}.jpg" for place in ("indoor", "street") for name in WORDS for i in EACH],
            ["the same 10 names", "ann, bo, cy, …"],
        ),
        ([f"2024-05-{day:02}/{k:04}.jpg" for day in (1, 2) for k in range(9)], ["2 identities", "2024-05-01"]),
        ([f"202405{day:02}/IMG_{k}.jpg" for day in (1, 2) for k in range(9)], ["2 identities", "20240501"]),
        ([f"{name}/{k}.jpg" for name in ("cam-2", "Visit 3", "100CANON") for k in (1, 2)], ["3 identities", "cam-2"]),
    ],
)
def test_folders_that_are_no_people_are_told(tmp_path: Path, files: list[str], fragments: list[str]) -> None:
    (doubt,) = doubts(named(tmp_path, *files))
    assert all(words in doubt for words in fragments)


def test_cameras_and_days_whose_files_name_people_are_told_by_both(tmp_path: Path) -> None:
    files = [f"{place}/ID{k % 9:02}_{k:03}.jpg" for place in ("cam1", "2024-05-01") for k in range(100)]
    by_files, by_names = doubts(named(tmp_path, *files))
    assert "2 folders of 2" in by_files and "ID00" in by_files and "2024-05-01, cam1" in by_names


TWO = ("ann", "bo")
FRONTAL = ("neutral_front", "smiling_front")


@pytest.mark.parametrize(
    "files",
    [
        [f"{name}/{file}" for name in ("Ann_Lee", "Bo_Dyk") for file in numbered(name)],
        [f"s{p}/subject{p:02}_{image}.png" for p in range(4) for image in (1, 2)],
        [f"{k:03}/{view}_{k:03}_{i:02}.jpg" for k in (1, 2) for view in FRONTAL for i in (3, 8)],
        [f"n{k:06}/{i:04}_{j:02}.jpg" for k in (2, 3) for i in range(1, 5) for j in (1, 2)],
        [f"m.0{k}/{i}-FaceId-0.jpg" for k in (2, 3) for i in range(5)],
        [f"{k:03}/{k:03}_frontal_{i:02}.jpg" for k in (1, 2, 3) for i in (1, 2)],
        ["Brad_Pitt/" + file for file in numbered("Brad_Pitt_Oscars", "Young_Brad_Pitt", "Pitt_Troy", "IMG", "DSC")],
        [f"ID{k:02}/cam1_ID{k:02}_{i}.jpg" for k in range(3) for i in range(5)],
        [f"{name}/ID01_{k}.jpg" for name in WORDS for k in range(3)],  # a word of all files
        [f"{name}/person_{k}.jpg" for name in WORDS for k in range(30)],
        [f"{name}/id1.jpg" for name in WORDS],
        ["Val/1.jpg", *(f"p{k}/1.jpg" for k in range(6))],
        ["a/²_x_1.jpg", "a/__.jpg"],
        [f"{number}/{k}.jpg" for number in (20010203, 20011599, 20020417) for k in (1, 2)],
        [f"{name}/video_id_{t}_{k}.jpg" for name in WORDS for t in range(4) for k in range(9)],  # tracks, counted anew
        [f"{name}/{k}.jpg" for name in ("Doris_Day", "April_May", "Cameron_Dean", "Ann_Light") for k in (1, 2)],
        [f"{k:07}/{i:03}.jpg" for k in (45, 99) for i in range(1, 20)],
        [f"{k:03}/{view}_{i:02}.jpg" for k in (1, 2) for view in ("frontal", "profile") for i in (1, 2)],
        [f"s{k}/{i}.pgm" for k in (1, 2) for i in range(1, 6)],  # ORL
        [f"n{k:06}/{i:04}_01.jpg" for k in (2, 3) for i in range(1, 50) if i % (k + 3)],  # VGGFace2, a few people
        [f"{name}/{i:02}_{name}.jpg" for name in TWO for i in range(8)],
        [f"{name}/{i:06}_{7 * len(name)}.jpg" for name in TWO for i in range(0, 90, len(name))],  # frame, track
        [f"{name}/{view}_{name}.jpg" for name in WORDS for view in ("calm", "glad", "sad", "wink")],
        [f"{name}/{i * 2654435761 % 2**32:08x}.jpg" for name in TWO for i in range(60 * len(name))],
        [f"Ann_{last}/{file}" for last in ("Lee", "Fox", "Dyk") for file in numbered(f"Ann_{last}")],
    ],
)
def test_people_are_not_doubted(tmp_path: Path, files: list[str]) -> None:
    assert doubts(named(tmp_path, *files)) == []


def test_empty_folders_are_found_by_the_highest_that_is_empty(tmp_path: Path) -> None:
    named(tmp_path, "a/1.jpg", "b/.hidden", "c/notes.txt", ".trash/x", "a/more/2.jpg")
    (tmp_path / "d" / "e" / "f").mkdir(parents=True)
    (tmp_path / "a" / "none").mkdir()
    (tmp_path / ".trash" / "empty").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    assert empty_folders(tmp_path) == ["a/none", "b", "d"]
