"""The cache is its owner's alone, says what it holds, and is cleared of what nobody uses."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import invoked
from counting_source import Counting
from tinyruns import Silent, picture_folders, tiny, write

from coalface.cli import main
from coalface.data.cache import PRETRAINED, clear, entries
from coalface.data.readers.pack import cached_pack, read_pack, write_pack
from coalface.experiments import run as experiment

DAY = 86400


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pack(cache: Path, number: int = 0) -> Path:
    """A pack in the cache that nobody uses any more."""
    cached_pack(Counting(number), size=2, grey=True)
    return cache / f"{str(number) * 24}-2-grey"


def unused_for(path: Path, days: float) -> None:
    os.utime(path, (time.time() - days * DAY,) * 2)


def modes(root: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*")) if path.is_dir()}


def file_modes(root: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*") if path.is_file()}


def output(*arguments: object) -> str:
    result = invoked("cache", *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_what_is_kept_is_its_owners_alone_from_the_first_byte(cache: Path, tmp_path: Path) -> None:
    during = []

    class Watched(Counting):
        def images(self, *, size: int, grey: bool) -> Iterator:
            during.append((modes(cache), len(list(cache.glob("*/pixels.u8")))))
            yield from super().images(size=size, grey=grey)

    cached_pack(Watched(), size=2, grey=True)
    assert during == [({0o700}, 1)] and modes(cache) == {0o700} and file_modes(cache) == {0o600}
    write_pack(Counting(), tmp_path / "pack", size=2, grey=True)  # elsewhere the umask says it
    assert modes(tmp_path / "pack") == {0o755} and file_modes(tmp_path / "pack") == {0o644}


def test_a_file_in_the_place_of_the_cache_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.write_text("")
    (tmp_path / "file").write_text("")
    picture_folders(tmp_path / "faces", ["A", "B"])
    recipe = write(tmp_path / "tiny.yaml", data={"faces": {"kind": "folder", "path": str(tmp_path / "faces")}})
    run = ["run", str(recipe), "--out", str(tmp_path / "out")]
    deep = tmp_path / "file" / "deep" / "cache"
    for command, place in ((["cache"], cache), (["cache", "clear"], cache), (run, cache), (run, deep)):
        monkeypatch.setenv("COALFACE_CACHE", str(place))
        monkeypatch.setattr(sys, "argv", ["coalface", *command])
        with pytest.raises(SystemExit):
            main.main()
        assert str(place) in (message := capsys.readouterr().err) and "COALFACE_CACHE" in message


def test_what_is_mapped_or_being_packed_is_left_and_what_is_not_is_removed(cache: Path) -> None:
    free = pack(cache, 1)
    faces = cached_pack(Counting(2), size=2, grey=True)
    cleared = []

    class Clearing(Counting):
        def images(self, *, size: int, grey: bool) -> Iterator:
            cleared.extend(clear(cache))
            yield from super().images(size=size, grey=grey)

    view = cached_pack(Clearing(3), size=2, grey=True).select([0])  # whoever has a part of the images has all
    (removed, in_use) = cleared
    assert [entry.path for entry in removed] == [free]
    assert [entry.kind for entry in in_use] == ["packs", "unfinished"]
    assert len(clear(cache)[1]) == 2 and faces.pixels[4, 0, 0, 0] == 24 and view.pixels[0, 0, 0, 0] == 30
    del faces, view
    assert [entry.kind for entry in clear(cache)[0]] == ["packs", "packs"] and os.listdir(cache) == []


def test_only_what_the_cache_made_is_removed(cache: Path, tmp_path: Path) -> None:
    write_pack(Counting(), tmp_path / "mine", size=2, grey=True)
    (cache / PRETRAINED / "notes").mkdir(parents=True)
    (cache / f"{'1' * 24}-2-grey").symlink_to(tmp_path / "mine")
    for name in ("photos-3-rgb", ".git", "1" * 24):
        (cache / name).mkdir()
    before = sorted(cache.rglob("*"))
    assert clear(cache) == ([], []) and sorted(cache.rglob("*")) == before
    assert len(read_pack(tmp_path / "mine")) == 5


def test_the_time_since_the_last_use_counts(cache: Path) -> None:
    old, used, new = pack(cache, 1), pack(cache, 2), pack(cache, 3)
    unused_for(old, 40)
    unused_for(used, 40)
    pack(cache, 2)
    assert [entry.path for entry in entries(cache)][0] == old
    assert [entry.path for entry in clear(cache, older_than=30)[0]] == [old]
    assert used.exists() and new.exists()


def test_a_pre_training_under_way_is_left(cache: Path, tmp_path: Path) -> None:
    class Clearing(Silent):
        def round(self, record: object) -> None:
            names.append({entry.kind for entry in clear(cache)[1]})

    names: list[set[str]] = []
    recipe = tiny(pretrain={"method": "centralized", "rounds": 1}, rounds=1)
    experiment.run(recipe, tmp_path / "run", Clearing())
    assert names == [{"packs", PRETRAINED}, {"packs"}]  # the model has been read when the run itself trains
    assert modes(cache / PRETRAINED) >= {0o700} and stat.S_IMODE((cache / PRETRAINED).stat().st_mode) == 0o700


def test_the_command_says_what_there_is_and_frees_it(cache: Path) -> None:
    assert str(cache) in output() and "is empty" in output() and "removed nothing" in output("clear")
    unused_for(pack(cache, 1), 3)
    pack(cache, 2)
    (cache / f".{'3' * 24}-2-grey.0123abcd.partial").mkdir()
    table, listed = output(), json.loads(output("--json"))
    assert str(cache) in table and "COALFACE_CACHE" in table and "3 days ago" in table and "unfinished" in table
    assert [entry["kind"] for entry in listed["entries"]] == ["packs", "packs", "unfinished"]
    assert listed["entries"][0]["bytes"] == sum(
        file.stat().st_size for file in (cache / f"{'1' * 24}-2-grey").iterdir()
    )
    assert "removed 1 pack: " in output("clear", "packs", "--older-than", 2)
    faces = cached_pack(Counting(2), size=2, grey=True)
    table = output("clear")
    assert (
        "removed 1 unfinished folder: 0 B freed" in table
        and "left 1 pack: a process uses it\n" in table
        and len(faces) == 5
    )
    wrong = invoked("cache", "clear", "pack")
    assert wrong.exit_code != 0 and "did you mean 'packs'" in str(wrong.exception)
