import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from coalface.data.readers.folders import read_folder
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
    write_pack(Counting(), tmp_path / "pack", size=3, grey=False)
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


def test_folder_images_survive_packing(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (4, 8, 8), dtype=np.uint8)
    for number, image in enumerate(images):
        path = tmp_path / "set" / f"person{number // 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), image)
    write_pack(read_folder(tmp_path / "set"), tmp_path / "pack", size=8, grey=True)
    faces = read_pack(tmp_path / "pack")
    assert np.array_equal(faces.pixels[..., 0], images)
    assert faces.files == ("person0/0.png", "person0/1.png", "person1/2.png", "person1/3.png")


def test_progress_counts_every_image(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_pack(
        Counting(), tmp_path / "pack", size=2, grey=True, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_a_pack_that_agrees_is_reused(tmp_path: Path) -> None:
    source = Counting()
    write_pack(source, tmp_path / "pack", size=2, grey=True)
    write_pack(source, tmp_path / "pack", size=2, grey=True)
    assert source.decoded == 5


@pytest.mark.parametrize(("content", "size", "grey"), [(1, 2, True), (0, 4, True), (0, 2, False)])
def test_a_pack_of_something_else_is_replaced(tmp_path: Path, content: int, size: int, grey: bool) -> None:
    write_pack(Counting(), tmp_path / "pack", size=2, grey=True)
    write_pack(Counting(content), tmp_path / "pack", size=size, grey=grey)
    faces = read_pack(tmp_path / "pack", verify=True)
    assert faces.shape == (size, size, 1 if grey else 3)
    assert faces.pixels[0, 0, 0, 0] == 10 * content
    assert os.listdir(tmp_path) == ["pack"]


def test_a_failure_leaves_no_half_pack(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ann/3 is damaged"):
        write_pack(Counting(fail_at=2), tmp_path / "pack", size=2, grey=True)
    assert os.listdir(tmp_path) == []


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


@pytest.mark.parametrize(("give", "said"), [(4, "lists 5 images but gave 4"), (7, "lists 5 images but gave more")])
def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path, give: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        write_pack(Counting(give=give), tmp_path / "pack", size=2, grey=True)
    assert os.listdir(tmp_path) == []


def test_a_source_without_images_is_refused(tmp_path: Path) -> None:
    source = Counting(give=0)
    source.files = ()  # type: ignore[assignment]
    with pytest.raises(ValueError, match="nothing to pack: check where it reads from"):
        write_pack(source, tmp_path / "pack", size=2, grey=True)


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
def test_damage_is_found_and_told(tmp_path: Path, file: str, change: str) -> None:
    pack = damaged_pack(tmp_path, file, change)
    with pytest.raises(ValueError, match=rf"{file} is damaged: .*; delete the folder and pack its source again"):
        read_pack(pack, verify=True)


@pytest.mark.parametrize(("file", "change"), DAMAGE)
def test_a_damaged_pack_is_written_anew_with_a_note(
    tmp_path: Path, file: str, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    pack = damaged_pack(tmp_path, file, change)
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


def test_a_damaged_meta_file_is_told(tmp_path: Path) -> None:
    pack = damaged_pack(tmp_path, "meta.json", "cut")
    (pack / "meta.json").write_text('{"format": "coalface-pack"')
    with pytest.raises(ValueError, match=r"meta.json is damaged \(JSONDecodeError.*pack its source again"):
        read_pack(pack)


@pytest.mark.parametrize("gone", ["shape", "sha256", "version", "format"])
def test_a_meta_file_without_a_field_is_told(tmp_path: Path, gone: str) -> None:
    pack = tmp_path / "pack"
    write_pack(Counting(), pack, size=2, grey=True)
    meta = json.loads((pack / "meta.json").read_text())
    del meta[gone]
    (pack / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match=rf"meta.json is damaged \(KeyError: '{gone}'\)"):
        read_pack(pack)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("version", 2, "is a pack of version 2, and this release reads version 1; delete the folder and pack"),
        ("format", "other", "is not a pack: meta.json says its format is 'other'"),
    ],
)
def test_another_version_is_told(tmp_path: Path, field: str, value: object, said: str) -> None:
    pack = tmp_path / "pack"
    write_pack(Counting(), pack, size=2, grey=True)
    meta = json.loads((pack / "meta.json").read_text())
    (pack / "meta.json").write_text(json.dumps(meta | {field: value}))
    with pytest.raises(ValueError, match=said):
        read_pack(pack)


def test_no_pack_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a pack: it has no meta.json; check the path"):
        read_pack(tmp_path / "absent")


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
