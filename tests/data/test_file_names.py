"""The files of an index are those that JSON reads, and what is told of all at once is told of each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from coalface.core.errors import DataError
from coalface.data.readers.file_names import read_names
from coalface.data.stores import check_names

ODD = ["a/b c.jpg", "a/x,y.jpg", "a/é.png", "a/back\\slash", "]}", "☃/1", "a/[1]{2}.jpg", "a/\udc80.jpg"]
HARD = ['a/"quoted".jpg', 'x", "y']


def written(folder: Path, names: list[str], files: list[str]) -> Path:
    file = folder / "index.json"
    file.write_bytes(json.dumps({"names": names, "files": files}).encode())
    return file


def test_the_names_are_those_that_json_reads(tmp_path: Path) -> None:
    names = ['], "files": [', 'quoted"', *ODD]
    many = [f"person {i}/{i % 7}.jpg" for i in range(70_000)]  # more than a block
    for files in (["one/1.jpg"], ODD, many, [*many, *ODD]):
        read = read_names(written(tmp_path, names, files), len(files))
        assert read is not None and read[0] == tuple(names)
        assert len(read[1]) == len(files) and list(read[1]) == files and read[1] == tuple(files)
        assert [read[1][i] for i in (0, -1, len(files) // 2)] == [files[i] for i in (0, -1, len(files) // 2)]
        assert read[1][1:4] == tuple(files[1:4]) and read[1] != [*files[:-1], "x"] and read[1] != files[:-1]
        with pytest.raises(IndexError):
            read[1][len(files)]


def test_a_text_of_another_form_is_left_to_json(tmp_path: Path) -> None:
    file = written(tmp_path, ["a"], ["a/1", "a/2", "a/3"])
    assert read_names(file, 3) is not None and read_names(file, 2) is None and read_names(file, 4) is None
    for files in HARD:
        assert read_names(written(tmp_path, ["a"], ["a/1", files, "a/2"]), 3) is None
    text = written(tmp_path, ["a"], ["a/1", "a/2", "a/3"]).read_bytes()
    for before, after in (
        (b", ", b","),
        (b'"a/2"', b"2"),
        (b'"files"', b'"file"'),
        (b"]}", b"]} "),
        (b'"a"', b"1"),
        (b'"names"', b'"other"'),
        (b'{"names', b'{"more": 1, "names'),
    ):
        file.write_bytes(text.replace(before, after))
        assert read_names(file, 3) is None, after


@pytest.mark.parametrize("odd", [*ODD, "", ".hidden", "a//b", "a/.b", "/a", "a/", "..", "x" * 241, "a/\x00", "a/\x7f"])
def test_what_is_surely_plain_is_plain_by_each_name(tmp_path: Path, odd: str) -> None:
    rng = np.random.default_rng(0)
    files = [f"person-{i}/{i:04d}.jpg" for i in range(int(rng.integers(1, 10_000)))]
    files.insert(int(rng.integers(len(files))), odd)
    read = read_names(written(tmp_path, ["a"], files), len(files))
    assert read is not None
    try:
        check_names(files, "here")
        plain = True
    except DataError:
        plain = False
    assert plain or not read[1].surely_plain(240)
    if plain and odd.isascii() and "\\" not in odd:
        assert read[1].surely_plain(240)
    if not plain:
        with pytest.raises(DataError, match=f"identity {files.index(odd) + 1}"):
            check_names(read[1], "here")
