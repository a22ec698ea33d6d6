"""Packs: what is written is read back, reused and checked; damaged and forged ones are refused by name."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from damage import damaged, fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coalface.data.faceset import FaceSet
from coalface.data.readers.pack import cached_pack, default_cache, read_pack, write_pack


class Counting:
    """Five made-up images of two identities, which counts how often they are decoded."""

    names = ("ann", "bö\udcff")  # the second is not valid UTF-8 on disk
    files = ("ann/1", "ann/2", "ann/3", "bö\udcff/1", "bö\udcff/2")
    labels = np.array([0, 0, 0, 1, 1])

    def __init__(self, content: int = 0, fail_at: int | None = None, give: int = 5) -> None:
        self.content, self.fail_at, self.give = content, fail_at, give
        self.decoded = 0

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        for image in range(self.give):
            if image == self.fail_at:
                raise ValueError("ann/3 is damaged")
            self.decoded += 1
            yield np.full((size, size, 1 if grey else 3), 10 * self.content + image, np.uint8)

    def fingerprint(self) -> str:
        return f"{self.content:x}" * 64


def test_a_pack_gives_back_what_the_source_gave(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    source = Counting()
    for _ in range(2):  # the second finds the first's
        write_pack(source, tmp_path / "pack", size=3, grey=False, progress=lambda *done: seen.append(done))
    assert source.decoded == 5 and seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    faces = read_pack(tmp_path / "pack", verify=True)
    assert faces.pixels.shape == (5, 3, 3, 3)
    assert faces.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert faces.rows.tolist() == [0, 1, 2, 3, 4]
    assert faces.labels.tolist() == [0, 0, 0, 1, 1]
    assert faces.names == Counting.names
    assert faces.files == Counting.files
    assert faces.domains is None


def test_the_pixels_are_a_read_only_memory_map(tmp_path: Path) -> None:
    write_pack(Counting(), tmp_path / "pack", size=3, grey=True)
    pixels = read_pack(tmp_path / "pack").pixels
    assert isinstance(pixels, np.memmap)
    assert pixels.mode == "r"
    with pytest.raises(ValueError, match="read-only"):
        pixels[0] = 1


@pytest.mark.parametrize(("content", "size", "grey"), [(1, 2, True), (0, 4, True), (0, 2, False)])
def test_a_pack_of_something_else_is_replaced(tmp_path: Path, content: int, size: int, grey: bool) -> None:
    write_pack(Counting(), tmp_path / "pack", size=2, grey=True)
    write_pack(Counting(content), tmp_path / "pack", size=size, grey=grey)
    faces = read_pack(tmp_path / "pack", verify=True)
    assert faces.shape == (size, size, 1 if grey else 3)
    assert faces.pixels[0, 0, 0, 0] == 10 * content
    assert os.listdir(tmp_path) == ["pack"]


def test_a_failure_leaves_the_older_pack(tmp_path: Path) -> None:
    write_pack(Counting(), tmp_path / "pack", size=2, grey=True)
    with pytest.raises(ValueError, match="ann/3 is damaged"):
        write_pack(Counting(1, fail_at=2), tmp_path / "pack", size=2, grey=True)
    assert read_pack(tmp_path / "pack", verify=True).pixels[1, 0, 0, 0] == 1


def test_a_kill_leaves_no_half_pack(tmp_path: Path) -> None:
    killed = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_pack import Counting, write_pack
def kill(done, total):
    os.kill(os.getpid(), signal.SIGKILL)
write_pack(Counting(), sys.argv[2], size=2, grey=True, progress=kill)
"""
    code = subprocess.run([sys.executable, "-c", killed, str(Path(__file__).parent), str(tmp_path / "pack")]).returncode
    assert code == -signal.SIGKILL
    assert not (tmp_path / "pack").exists()
    assert [name for name in os.listdir(tmp_path) if not name.endswith(".partial")] == []
    write_pack(Counting(), tmp_path / "pack", size=2, grey=True)
    assert len(read_pack(tmp_path / "pack", verify=True)) == 5


def test_two_that_write_at_once_end_with_one_pack(tmp_path: Path) -> None:
    """While the first decodes its third image, a second packs the same source to the end."""
    first, second = Counting(), Counting()

    def interleave(done: int, total: int) -> None:
        if done == 3:
            write_pack(second, tmp_path / "pack", size=2, grey=True)

    write_pack(first, tmp_path / "pack", size=2, grey=True, progress=interleave)
    assert (first.decoded, second.decoded) == (5, 5)
    assert os.listdir(tmp_path) == ["pack"]
    assert len(read_pack(tmp_path / "pack", verify=True)) == 5


@pytest.mark.parametrize(
    ("give", "said"), [(0, "gave 0"), (4, "lists 5 images but gave 4"), (7, "lists 5 images but gave more")]
)
def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path, give: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        write_pack(Counting(give=give), tmp_path / "pack", size=2, grey=True)
    assert os.listdir(tmp_path) == []


def test_a_source_that_gives_another_shape_is_refused(tmp_path: Path) -> None:
    class Wrong(Counting):
        def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
            return super().images(size=size + 1, grey=grey)

    with pytest.raises(ValueError, match=r"ann/1: the source gave uint8 \(3, 3, 1\) where a pack of size 2 needs"):
        write_pack(Wrong(), tmp_path / "pack", size=2, grey=True)


@pytest.mark.parametrize("name", ["notes.txt", "meta.json"])
def test_a_folder_of_other_things_is_never_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="is there and is not a pack: choose another path"):
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
    with pytest.raises(ValueError, match=rf"{file} is damaged: .*; delete the folder and pack its source again"):
        read_pack(pack, verify=True)
    write_pack(Counting(), pack, size=2, grey=True)
    assert read_pack(pack, verify=True).pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    (said,) = caplog.messages
    assert f"{pack / file} is damaged" in said and "it is packed again" in said and "delete" not in said


def overwrite(pack: Path) -> None:
    """Other pixels in place, some time after the pack was written."""
    pixels = pack / "pixels.u8"
    written = pixels.stat().st_mtime_ns
    with open(pixels, "r+b") as file:
        file.write(b"\xff\xff\xff\xff")
    os.utime(pixels, ns=(written, written + 1_000_000))


def test_a_damaged_cache_is_made_anew_and_a_sound_one_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = Counting()
    cached_pack(source, tmp_path, size=2, grey=True)
    cached_pack(source, tmp_path, size=2, grey=True)
    assert source.decoded == 5 and not caplog.messages
    overwrite(tmp_path / ("0" * 24 + "-2-grey"))
    assert cached_pack(source, tmp_path, size=2, grey=True).pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert source.decoded == 10 and "is packed again" in caplog.messages[0]


def test_a_pack_that_was_changed_since_it_was_found_sound_is_refused(tmp_path: Path) -> None:
    write_pack(Counting(), tmp_path / "pack", size=2, grey=True)
    read_pack(tmp_path / "pack")
    overwrite(tmp_path / "pack")
    with pytest.raises(ValueError, match=r"pixels\.u8 is damaged: .*; delete the folder and pack its source again"):
        read_pack(tmp_path / "pack")


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
    with pytest.raises(ValueError, match="pixels.u8 is damaged: its SHA-256"):
        read_pack(tmp_path / "pack")


def test_the_cache_keeps_a_pack_per_content_size_and_colour(tmp_path: Path) -> None:
    source = Counting()
    for size, grey in [(2, True), (2, True), (2, False), (4, True), (2, True)]:
        assert cached_pack(source, tmp_path, size=size, grey=grey).shape == (size, size, 1 if grey else 3)
    assert source.decoded == 3 * 5
    assert cached_pack(Counting(1), tmp_path, size=2, grey=True).pixels[0, 0, 0, 0] == 10
    assert len(os.listdir(tmp_path)) == 4


def test_the_cache_lies_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "kept"))
    cached_pack(Counting(), size=2, grey=True)
    assert sorted(os.listdir(tmp_path / "kept")) == ["0" * 24 + "-2-grey", "sound"]
    monkeypatch.delenv("COALFACE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "coalface"


BOUNDED = settings(deadline=None, derandomize=True, max_examples=60)
LETTERS = st.characters(exclude_categories=["Cs"]) | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)
TEXT = st.text(LETTERS, max_size=6)  # among them what stands for a byte that is no UTF-8 in a file's name


class Given:
    """A source of given pixels."""

    def __init__(self, pixels: NDArray[np.uint8], labels: list[int], names: list[str], files: list[str]) -> None:
        self.pixels, self.labels = pixels, np.array(labels)
        self.names, self.files = tuple(names), tuple(files)

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        return iter(self.pixels)

    def fingerprint(self) -> str:
        return hashlib.sha256(self.pixels.tobytes()).hexdigest()


@st.composite
def sources(draw: st.DrawFn) -> tuple[Given, int, bool]:
    size, grey, count = draw(st.integers(1, 5)), draw(st.booleans()), draw(st.integers(1, 6))
    shape = (count, size, size, 1 if grey else 3)
    pixels = np.frombuffer(draw(st.binary(min_size=(n := int(np.prod(shape))), max_size=n)), np.uint8).reshape(shape)
    names = draw(st.lists(TEXT, min_size=1, max_size=4, unique=True))
    labels = draw(st.lists(st.integers(0, len(names) - 1), min_size=count, max_size=count))
    files = draw(st.lists(TEXT, min_size=count, max_size=count))
    return Given(pixels, labels, names, files), size, grey


@BOUNDED
@given(sources())
def test_any_source_is_read_back(made: tuple[Given, int, bool]) -> None:
    source, size, grey = made
    with fresh_folder() as folder:
        write_pack(source, folder / "pack", size=size, grey=grey)
        faces = read_pack(folder / "pack", verify=True)
        assert np.array_equal(faces.pixels, source.pixels)
        assert np.array_equal(faces.labels, source.labels)
        assert (faces.names, faces.files) == (source.names, source.files)


SOURCE = Given(np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1), [0, 0, 1, 1, 1, 2], list("abc"), list("uvwxyz"))


def usable(faces: FaceSet) -> None:
    """Every image can be taken, and belongs to somebody."""
    assert faces.take(np.arange(len(faces))).shape == faces.pixels.shape
    assert faces.labels.dtype == np.int64 and len(faces.labels) == len(faces) == len(faces.files or ())
    assert faces.counts().sum() == len(faces) and len(faces.counts()) == len(faces.names)
    assert all(isinstance(text, str) for text in (*faces.names, *(faces.files or ())))
    assert faces.shape[2] in (1, 3)


def read_or_named(pack: Path) -> None:
    try:
        faces = read_pack(pack, verify=True)
    except (ValueError, FileNotFoundError) as error:
        assert str(pack) in str(error)
        assert any(word in str(error) for word in ("delete", "check"))
        assert str(error).isprintable() and len(str(error)) < 1000
    else:
        usable(faces)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The four files of a pack."""
    pack = tmp_path_factory.mktemp("sound") / "pack"
    write_pack(SOURCE, pack, size=2, grey=True)
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


@pytest.mark.parametrize("agree", [False, True])
@pytest.mark.parametrize("name", FILES)
@BOUNDED
@given(data=st.data())
def test_any_damage_is_read_or_named(sound: dict[str, bytes], name: str, agree: bool, data: st.DataObject) -> None:
    """Also where the sums agree, as somebody may have made them who wants to be believed."""
    with fresh_folder() as folder:
        files = sound | {name: data.draw(damaged(sound[name]))}
        if agree and name != "meta.json":
            forge(folder, files)
        else:
            for file, content in files.items():
                (folder / file).write_bytes(content)
        read_or_named(folder)


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        *(
            (
                "labels.npy",
                lambda raw, labels=labels: raw[:-48] + np.array(labels, "<i8").tobytes(),
                "6 labels from 0 to 2",
            )
            for labels in ([0, 0, 1, 1, 2, 3], [0, 0, 1, 1, 1, -1], [2**63 - 1] * 6)
        ),
        (
            "labels.npy",
            lambda raw: raw.replace(b"(6,)", b"(1099511627776,)").replace(b" " * 13 + b"\n", b" \n"),
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
        ("index.json", lambda raw: raw.replace(b'"u"', b"1"), "does not name"),
        ("index.json", lambda raw: raw.replace(b'"u", ', b""), "does not name"),
        *(("meta.json", lambda raw, key=key: raw.replace(key, b'"x"'), "damaged|not a pack") for key in META_KEYS),
        ("meta.json", lambda raw: raw.replace(b'"version": 1', b'"version": 2'), "version 2"),
    ],
)
def test_a_forged_pack_is_refused(
    sound: dict[str, bytes], tmp_path: Path, file: str, change: Callable[[bytes], bytes], reason: str
) -> None:
    assert change(sound[file]) != sound[file]
    forge(tmp_path, sound | {file: change(sound[file])})
    with pytest.raises(ValueError, match=rf"({file} is damaged.*|is (not )?a pack.*){reason}|{reason}"):
        read_pack(tmp_path)


@pytest.mark.parametrize(
    "shape", [[-6, -2, 2, 1], [6, 2, 2], [3, 2, 2, 2], [6, 2.0, 2, 1], [0, 0, 0, 3], "6221", [2**64] * 4]
)
def test_shapes_that_no_images_have_are_named(sound: dict[str, bytes], tmp_path: Path, shape: object) -> None:
    forge(tmp_path, sound | {"meta.json": json.dumps(json.loads(sound["meta.json"]) | {"shape": shape}).encode()})
    with pytest.raises(ValueError, match="damaged"):
        read_pack(tmp_path)


def test_no_pack_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a pack"):
        read_pack(tmp_path / "absent")
