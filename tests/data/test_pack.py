"""Packs: what is written is read back, reused and checked; damaged and forged ones are refused by name."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from counting_source import Counting

from coalface.core.errors import DataError
from coalface.data.readers.pack import cached_pack, default_cache, read_pack, write_pack


def test_a_pack_gives_back_what_the_source_gave(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    source = Counting()
    for _ in range(2):  # the second finds the first's
        write_pack(source, tmp_path / "pack", size=3, grey=False, progress=lambda *counts: calls.append(counts))
    assert source.decoded == 5 and calls == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    faces = read_pack(tmp_path / "pack")
    assert faces.pixels.shape == (5, 3, 3, 3)
    assert faces.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert faces.rows.tolist() == [0, 1, 2, 3, 4]
    assert faces.labels.tolist() == [0, 0, 0, 1, 1]
    assert faces.names == Counting.names
    assert faces.files == Counting.files
    assert faces.domains is None


@pytest.mark.parametrize(("content", "size", "grey"), [(1, 2, True), (0, 4, True), (0, 2, False)])
def test_a_pack_of_something_else_is_replaced(tmp_path: Path, content: int, size: int, grey: bool) -> None:
    write_pack(Counting(), tmp_path / "pack", size=2, grey=True)
    write_pack(Counting(content), tmp_path / "pack", size=size, grey=grey)
    faces = read_pack(tmp_path / "pack")
    assert faces.shape == (size, size, 1 if grey else 3)
    assert faces.pixels[0, 0, 0, 0] == 10 * content
    assert os.listdir(tmp_path) == ["pack"]


def test_a_kill_leaves_no_half_pack(tmp_path: Path) -> None:
    killed = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from counting_source import Counting
from coalface.data.readers.pack import write_pack
def kill(done, total):
    os.kill(os.getpid(), signal.SIGKILL)
write_pack(Counting(), sys.argv[2], size=2, grey=True, progress=kill)
"""
    code = subprocess.run(
        [sys.executable, "-c", killed, str(Path(__file__).parents[1]), str(tmp_path / "pack")]
    ).returncode
    assert code == -signal.SIGKILL
    assert not (tmp_path / "pack").exists()
    assert [name for name in os.listdir(tmp_path) if not name.endswith(".partial")] == []
    write_pack(Counting(), tmp_path / "pack", size=2, grey=True)
    assert len(read_pack(tmp_path / "pack")) == 5


def test_two_that_write_at_once_end_with_one_pack(tmp_path: Path) -> None:
    """While the first decodes its third image, a second packs the same source to the end."""
    first, second = Counting(), Counting()

    def interleave(done: int, total: int) -> None:
        if done == 3:
            write_pack(second, tmp_path / "pack", size=2, grey=True)

    write_pack(first, tmp_path / "pack", size=2, grey=True, progress=interleave)
    assert (first.decoded, second.decoded) == (5, 5)
    assert os.listdir(tmp_path) == ["pack"]
    assert len(read_pack(tmp_path / "pack")) == 5


@pytest.mark.parametrize(
    ("give", "reason"), [(0, "gave 0"), (4, "lists 5 images but gave 4"), (7, "lists 5 images but gave more")]
)
def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path, give: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        write_pack(Counting(give=give), tmp_path / "pack", size=2, grey=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["notes.txt", "meta.json"])
def test_a_folder_of_other_things_is_never_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="exists and is not a pack; choose another path"):
        write_pack(Counting(), tmp_path, size=2, grey=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def damaged_pack(tmp_path: Path, file: str, change: str) -> Path:
    """A pack, one file of which was cut short, had a bit turned, or is gone."""
    pack = tmp_path / "pack"
    write_pack(Counting(), pack, size=2, grey=True)
    content = bytearray((pack / file).read_bytes())
    if change == "cut":
        del content[-1]
    content[len(content) // 2] ^= 4 if change == "turned" else 0
    (pack / file).unlink()
    if change != "gone":
        (pack / file).write_bytes(content)
    return pack


DAMAGE = [(file, change) for file in ("pixels.u8", "labels.npy", "index.json") for change in ("cut", "turned", "gone")]


@pytest.mark.parametrize(("file", "change"), DAMAGE)
def test_a_damaged_pack_is_written_anew_with_a_note(
    tmp_path: Path, file: str, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    pack = damaged_pack(tmp_path, file, change)
    with pytest.raises(DataError, match=rf"{file}: it is damaged: .*; delete the folder"):
        read_pack(pack)
    write_pack(Counting(), pack, size=2, grey=True)
    assert read_pack(pack).pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    (message,) = caplog.messages
    assert f"{pack / file}: it is damaged" in message and "it is packed again" in message and "delete" not in message


def test_pixels_are_hashed_once_and_not_by_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note that a pack is sound lies where a worker finds it, also beside a pack that nobody may write to."""
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    write_pack(Counting(), tmp_path / "pack", size=2, grey=True)
    (tmp_path / "pack").chmod(0o500)
    count = """
import sys
from pathlib import Path
from coalface.data.readers import pack
hashed = []
check = pack.check_pixels
pack.check_pixels = lambda path: (hashed.append(path), check(path))
pack.read_pack(Path(sys.argv[1]))
print(len(hashed))
"""
    command = [sys.executable, "-c", count, str(tmp_path / "pack")]
    assert [int(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(3)] == [1, 0, 0]
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


def test_pixels_of_the_same_size_and_time_are_read_again_where_the_file_was_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    write_pack(Counting(), tmp_path / "pack", size=2, grey=True)
    read_pack(tmp_path / "pack")
    pixels = tmp_path / "pack" / "pixels.u8"
    before = pixels.stat()
    while pixels.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of some file systems ticks every few ms
        with open(pixels, "r+b") as file:
            file.write(b"\xff")
        os.utime(pixels, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = pixels.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    with pytest.raises(DataError, match="pixels.u8: it is damaged: its SHA-256"):
        read_pack(tmp_path / "pack")


def test_the_cache_lies_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "kept"))
    cached_pack(Counting(), size=2, grey=True)
    assert sorted(os.listdir(tmp_path / "kept")) == ["0" * 24 + "-2-grey", "sound"]
    monkeypatch.delenv("COALFACE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "coalface"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The four files of a pack."""
    pack = tmp_path_factory.mktemp("sound") / "pack"
    write_pack(Counting(), pack, size=2, grey=True)
    return {path.name: path.read_bytes() for path in pack.iterdir()}


FILES = ("pixels.u8", "labels.npy", "index.json", "meta.json")


META_KEYS = (b'"shape"', b'"sha256"', b'"version"', b'"format"')


def forge(folder: Path, files: dict[str, bytes]) -> None:
    """Files whose SHA-256 agree, where the meta file can be read."""
    for file, content in files.items():
        (folder / file).write_bytes(content)
    sums = {file: hashlib.sha256(files[file]).hexdigest().encode() for file in FILES[:3]}
    meta = files["meta.json"]
    for file, digest in sums.items():
        meta = re.sub(b'"%s": "[0-9a-f]{64}"' % file.encode(), b'"%s": "%s"' % (file.encode(), digest), meta)
    (folder / "meta.json").write_bytes(meta)


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        *(
            ("labels.npy", lambda raw, labels=labels: raw[:-40] + np.array(labels, "<i8").tobytes(), "from 0 to 1")
            for labels in ([0, 0, 1, 1, 2], [0, 0, 1, 1, -1], [2**63 - 1] * 5)
        ),
        (
            "labels.npy",
            lambda raw: raw.replace(b"(5,)", b"(1099511627776,)").replace(b" " * 13 + b"\n", b" \n"),
            "damaged",
        ),
        *(
            ("labels.npy", lambda raw, kind=kind: raw.replace(b"<i8", kind), "damaged")
            for kind in (b"<u8", b">i8", b"<f8")
        ),
        *(
            (file, lambda raw, text=text: text, "damaged")
            for file in ("meta.json", "index.json")
            for text in (b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b"", b"\xed\xa0\x80", b"null", b"[]")
        ),
        ("index.json", lambda raw: raw.replace(b'"ann/1"', b"1"), "does not name"),
        *(("meta.json", lambda raw, key=key: raw.replace(key, b'"x"'), "damaged|not a pack") for key in META_KEYS),
        ("meta.json", lambda raw: raw.replace(b'"version": 1', b'"version": 2'), "version is 2"),
    ],
)
def test_a_forged_pack_is_refused(
    sound: dict[str, bytes], tmp_path: Path, file: str, change: Callable[[bytes], bytes], reason: str
) -> None:
    assert change(sound[file]) != sound[file]
    forge(tmp_path, sound | {file: change(sound[file])})
    with pytest.raises(DataError, match=reason):
        read_pack(tmp_path)
