"""What lies beside the images and is not read is counted and named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from commands import invoked
from field_layouts import FACE, WRITERS, put, say

from coalface.data.stores import open_store

ASTRAY = "not directly in an identity's folder, as in NAME/photo.jpg"


@pytest.mark.parametrize("layout", WRITERS)
def test_of_a_whole_layout_nothing_is_passed_over_but_an_unused_part(tmp_path: Path, layout: str) -> None:
    WRITERS[layout](tmp_path)
    say(tmp_path, "readme.md", "about it")
    expected = (
        ["1 image of the part test: `--part test`, in a recipe `part: test`, reads it"] if layout == "vggface2" else []
    )
    assert open_store(tmp_path).passed_over() == expected


def test_other_endings_places_and_folders_within_folders_are_named(tmp_path: Path) -> None:
    put(tmp_path, "ann/1.jpg", "bo/1.jpg", "loose.png", "ann/2019/2.jpg", "ann/2019/3.jpg", "ann/2020/x/4.jpg")
    put(tmp_path, *(f"bo/{i}.gif" for i in range(4)), "bo/5.TIF", "bo/none", "bo/.hidden.gif", ".git/x.jpg")
    say(tmp_path, "pairs.txt", "1")
    say(tmp_path, "bo/notes.txt", "x")
    assert open_store(tmp_path).passed_over() == [
        f"4 images {ASTRAY}: loose.png, ann/2019/2.jpg, ann/2019/3.jpg, …",
        "7 files with other endings than images have (.gif 4, .tif 1, none 1 …): bo/0.gif, bo/1.gif, bo/2.gif, …",
    ]


def test_a_folder_one_level_too_high_is_told_which_to_name(tmp_path: Path) -> None:
    put(tmp_path, "north/group.jpg", "north/ann/1.jpg", "north/bo/1.jpg", "east/cy/1.jpg", "east/di/1.jpg")
    (sentence,) = open_store(tmp_path).passed_over()
    assert sentence.startswith(f"4 images {ASTRAY}: ")
    assert f"{tmp_path.name}/east, " in sentence and "`kind: joined`" in sentence


def test_hidden_and_linked_folders_of_an_identity_are_named_and_not_entered(tmp_path: Path) -> None:
    put(tmp_path / "set", "ann/1.jpg", "ann/.old/2.jpg", "ann/.old/.3.jpg", "ann/fr/.x/4.jpg", ".git/x.jpg", "bo/1.jpg")
    say(tmp_path / "set", "ann/.old/list", "x")
    put(tmp_path, "away/5.jpg", "away/6.gif")
    for name in ("ann/more", "bo/even/more", "cy"):
        (tmp_path / "set" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "set" / name).symlink_to(tmp_path / "away")
    store = open_store(tmp_path / "set")
    assert store.names == ("ann", "bo", "cy")
    assert store.passed_over() == [
        f"2 images {ASTRAY}: ann/.old/2.jpg, ann/fr/.x/4.jpg",
        "2 links to folders, which are not followed: ann/more, bo/even/more",
    ]


def test_dead_links_and_pipes_are_called_what_they_are(tmp_path: Path) -> None:
    put(tmp_path, "ann/1.jpg", "loose.png")
    (tmp_path / "gone.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "away.png").symlink_to(tmp_path / "ann" / "1.jpg")
    os.mkfifo(tmp_path / "ann" / "pipe.jpg")
    assert open_store(tmp_path).passed_over() == [
        f"2 images {ASTRAY}: away.png, loose.png",
        "1 link to files that are not there: gone.jpg",
        "1 pipe or device, which are not read: ann/pipe.jpg",
    ]


def test_the_commands_say_it_and_read_the_part_that_is_asked_for(tmp_path: Path) -> None:
    WRITERS["vggface2"](tmp_path / "v")
    part = "1 image of the part test: `--part test`, in a recipe `part: test`, reads it"
    assert f"ignored: {part}\n" in invoked("data", "inspect", tmp_path / "v").output
    assert json.loads(invoked("data", "inspect", tmp_path / "v", "--json").stdout)["passed_over"] == [part]
    assert (
        f"note: ignored: {part}\n" in invoked("data", "convert", tmp_path / "v", tmp_path / "r", "--to", "rec").output
    )
    assert f"note: ignored: {part}\n" in invoked("data", "pack", tmp_path / "v", tmp_path / "p", "--size", 8).output
    for command in (["inspect"], ["convert", tmp_path / "s", "--to", "folder"], ["pack", tmp_path / "q", "--size", 8]):
        result = invoked("data", command[0], tmp_path / "v", *command[1:], "--part", "test")
        assert result.exit_code == 0 and "1 image of 1 identity" in result.output and "ignored" not in result.output
    assert (tmp_path / "s" / "n000001" / "0001_01.jpg").read_bytes() == FACE
