"""What a disk refuses is told with the file, and a run that was stopped by it loses nothing."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import tinyruns
import torch
from federations import NOW, write_federation

from coalface.cli import main
from coalface.core import disk
from coalface.core.method import generator
from coalface.data.readers.bin import write_bin
from coalface.data.readers.pack import write_pack
from coalface.data.readers.records import write_rec
from coalface.data.stores import Kind, open_store
from coalface.data.synthetic.generator import SyntheticFaces, preview
from coalface.data.tools.convert import Pairs, convert
from coalface.engine import checkpoint
from coalface.engine.checkpoint import Checkpoint
from coalface.engine.party import commits
from coalface.experiments import run as experiment
from coalface.experiments.report import page
from coalface.flower.provision import kits
from coalface.models.folder import save
from coalface.privacy import ledger

SMALL = 4096


@contextlib.contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Within, what this process writes beyond so many bytes of a file fails with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def commit(place: Path) -> None:
    commits.write_commit(place / "a.commit", None, ledger.Head(), {"A": b"1" * SMALL}, over=None, flush=False)


def lines(place: Path) -> None:
    ledger.append(place / "a.jsonl", ["1" * SMALL], ledger.Head())


def state(place: Path) -> None:
    checkpoint.save(place / "checkpoints", Checkpoint(1, 0, 1, b"1" * SMALL, {}, {}), keep=1)


def model(place: Path) -> None:
    save({"a": torch.zeros(SMALL)}, place / "a.safetensors")


def pack(place: Path) -> None:
    write_pack(SyntheticFaces(12, 8, 1, size=32), place / "pack", size=32, grey=True)


def rec(place: Path) -> None:
    write_rec([(0, b"1" * SMALL)], place / "rec", size=(32, 32))


def converted(kind: Kind, name: str) -> Callable[[Path], object]:
    """Writes the images of identity folders that are there already in another form."""

    def write(place: Path) -> None:
        pairs = Pairs(draw=10, rng=generator(0)) if kind == "bin" else None
        convert(open_store(place / "faces"), place / name, kind, size=64, pairs=pairs)

    return write


WRITERS: list[tuple[Callable[[Path], object], str]] = [
    (commit, "a.commit"),
    (lines, "a.jsonl"),
    (state, "state.safetensors"),
    (model, "a.safetensors"),
    (pack, "pack/pixels.u8"),
    (rec, "rec/train.rec"),
    (converted("folder", "all"), "all/A/A_0000.pgm"),
    (converted("rec", "of"), "of/train.rec"),
    (converted("bin", "of.bin"), "of.bin"),
    (converted("pack", "packed"), "packed/pixels.u8"),
    (lambda place: kits.make(place / "federation.yaml", place / "kits", NOW), "kits/ca/ca.crt"),
    (lambda place: preview(place / "preview.png", images=1), "preview.png"),
    (lambda place: write_bin(place / "a.bin", [b"1" * SMALL] * 2, [True]), "a.bin"),
    (lambda place: disk.write_json(place / "a.json", "1" * SMALL), "a.json"),
]


@pytest.mark.parametrize(("write", "name"), WRITERS, ids=[name for _, name in WRITERS])
def test_the_error_of_a_write_names_its_file(tmp_path: Path, write: Callable[[Path], object], name: str) -> None:
    write_federation(tmp_path)
    for person in "ABC":
        (tmp_path / "faces" / person).mkdir(parents=True)
        for number in range(4):
            image = b"P5 64 64 255\n" + bytes(range(number, 256)) * 17
            (tmp_path / "faces" / person / f"{person}_000{number}.pgm").write_bytes(image[: 13 + 64 * 64])
    with pytest.raises(OSError) as caught, no_file_larger_than(SMALL // 8):
        write(tmp_path)
    assert caught.value.errno == errno.EFBIG
    relative = Path(caught.value.filename).relative_to(tmp_path)
    assert relative.match(name) and not relative.parts[0].startswith("."), relative


def test_a_folder_that_is_bound_from_the_same_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = tmp_path / "our faces"
    bound.mkdir()
    mounts = [argparse.Namespace(mountpoint=place) for place in ("/", str(bound))]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    (tmp_path / "link").symlink_to(bound)
    for place in (bound, tmp_path / "link"):
        text = disk.explained(OSError(errno.EROFS, "Read-only file system", str(place / "deep" / "x")))
        assert f"its disk ({bound}) can only be read" in text


def test_the_error_of_a_report_names_its_file(fedavg_run: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, no_file_larger_than(SMALL):
        page.build(fedavg_run, to=tmp_path / "page.html")
    assert caught.value.filename == str(tmp_path / "page.html")


@pytest.mark.parametrize("size", [10_000, 300_000])
def test_a_run_that_a_disk_stopped_says_where_and_goes_on_to_the_same_bytes(
    fedavg_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    size: int,
) -> None:
    recipe, out = tinyruns.write(tmp_path / "tiny.yaml", name="tiny-fedavg"), tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["coalface", "run", str(recipe), "--out", str(out), "--quiet"])
    with pytest.raises(SystemExit) as ended, no_file_larger_than(size):
        main.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1 and line.startswith(f"coalface: {out}{os.sep}"), line
    assert "`ulimit -f`" in line and "`coalface resume RUN`" in line and "Errno" not in line
    experiment.resume(out, tinyruns.Silent())
    assert tinyruns.model_bytes(out) == tinyruns.model_bytes(fedavg_run)
    assert (out / "metrics.jsonl").read_bytes() == (fedavg_run / "metrics.jsonl").read_bytes()


def test_a_full_disk_is_told_with_its_room(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, disk.writing(tmp_path / "a"), open("/dev/full", "wb") as file:
        file.write(b"1")
    text = disk.explained(caught.value)
    assert text.startswith(f"{tmp_path / 'a'}: no space is left on its disk (/") and "are free now" in text
    assert "`coalface resume RUN`" in text


def test_what_else_is_told() -> None:
    def told(number: int, name: str | None) -> str:
        return disk.explained(OSError(number, os.strerror(number), name))

    assert told(errno.EEXIST, "/a b/c") == "/a b/c already exists; choose another name, or move it away"
    assert told(errno.EROFS, "/no/such/x").startswith("/no/such/x: its disk (/) can only be read: name a folder on")
    assert (
        told(errno.ENOENT, "x\n\udcff") == "'x\\n\\udcff' does not exist; check the path"
    )  # what could drive a terminal
    assert told(errno.ENOSPC, None).startswith("No space left on device, in the output or a file without a name")
    full = OSError(errno.ENOSPC, "No space left on device", "x")
    assert disk.explained(full, disk.AGAIN).endswith("Make room there; then run the command again")
    assert disk.explained(FileExistsError("x is there already: choose another")) == "x is there already: choose another"
    assert disk.explained(OSError(errno.ECONNREFUSED, "Connection refused")) == "Connection refused"


def test_only_writes_are_named(tmp_path: Path) -> None:
    for error in (ConnectionError(errno.ECONNRESET, "reset"), ValueError("no"), OSError(errno.EFBIG, "large", "mine")):
        with pytest.raises(type(error)) as caught, disk.writing(tmp_path):
            raise error
        assert caught.value is error and getattr(error, "filename", None) in (None, "mine")


def test_a_home_that_nobody_has_stands_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of-mine")
    assert disk.from_home("~/faces") == Path("/home/of-mine/faces")
    for path in ("~nobody-here/faces", "~\0/faces", "a/~"):
        assert disk.from_home(path) == Path(path)
