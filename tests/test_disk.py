"""What a disk refuses is told with the file, and a run that was stopped by it loses nothing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tinyruns
import torch

from coalface import cli, disk, experiment, judging, modelfolder
from coalface.data.bins import write_bin
from coalface.data.pack import write_pack
from coalface.data.rec import write_rec
from coalface.data.synthetic import SyntheticFaces
from coalface.engines import checkpoint, commits
from coalface.engines.checkpoint import Checkpoint
from coalface.privacy import ledger
from coalface.report import page

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
    modelfolder.save({"a": torch.zeros(SMALL)}, place / "a.safetensors")


def pack(place: Path) -> None:
    write_pack(SyntheticFaces(12, 8, 1, size=32), place / "pack", size=32, grey=True)


def rec(place: Path) -> None:
    write_rec([(0, b"1" * SMALL)], place / "rec", size=(32, 32))


WRITERS: list[tuple[Callable[[Path], object], str]] = [
    (commit, "a.commit"),
    (lines, "a.jsonl"),
    (state, "state.safetensors"),
    (model, "a.safetensors"),
    (pack, "pixels.u8"),
    (rec, "train.rec"),
    (lambda place: write_bin(place / "a.bin", [b"1" * SMALL] * 2, [True]), "a.bin"),
    (lambda place: judging.write_json(place / "a.json", "1" * SMALL), "a.json"),
]


@pytest.mark.parametrize(("write", "name"), WRITERS, ids=[name for _, name in WRITERS])
def test_the_error_of_a_write_names_its_file(tmp_path: Path, write: Callable[[Path], object], name: str) -> None:
    with pytest.raises(OSError) as caught, no_file_larger_than(SMALL // 2):
        write(tmp_path)
    assert caught.value.errno == errno.EFBIG
    assert Path(caught.value.filename).name == name and str(tmp_path) in str(caught.value)


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
        cli.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1 and line.startswith(f"coalface: {out}{os.sep}"), line
    assert "`ulimit -f`" in line and "`coalface resume RUN`" in line and "Errno" not in line
    experiment.resume(out, tinyruns.Silent())
    assert tinyruns.model_bytes(out) == tinyruns.model_bytes(fedavg_run)
    assert (out / "metrics.jsonl").read_bytes() == (fedavg_run / "metrics.jsonl").read_bytes()


def test_a_full_disk_is_told_with_its_room(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, disk.writing(tmp_path / "a"), open("/dev/full", "wb") as file:
        file.write(b"1")
    said = disk.explained(caught.value)
    assert said.startswith(f"{tmp_path / 'a'}: no space is left on its disk (/") and "are free now" in said
    assert "`coalface resume RUN`" in said


def test_what_else_is_told() -> None:
    def told(number: int, name: str | None) -> str:
        return disk.explained(OSError(number, os.strerror(number), name))

    assert told(errno.EEXIST, "/a b/c") == "/a b/c is there already: name another place, or move it away"
    assert told(errno.EROFS, "/no/such/x").startswith("/no/such/x: its disk (/) can only be read: name a folder on")
    assert told(errno.ENOENT, "x\n\udcff") == "'x\\n\\udcff': No such file or directory"  # what could drive a terminal
    assert told(errno.ENOSPC, None).startswith("No space left on device, in the output or a file without a name")
    full = OSError(errno.ENOSPC, "No space left on device", "x")
    assert disk.explained(full, disk.AGAIN).endswith("Make room there; then run the command again")
    assert disk.explained(FileExistsError("x is there already: choose another")) == "x is there already: choose another"
    assert disk.explained(OSError(errno.ECONNREFUSED, "Connection refused")).endswith("Connection refused")


def test_only_writes_are_named(tmp_path: Path) -> None:
    for error in (ConnectionError(errno.ECONNRESET, "reset"), ValueError("no"), OSError(errno.EFBIG, "large", "mine")):
        with pytest.raises(type(error)) as caught, disk.writing(tmp_path):
            raise error
        assert caught.value is error and getattr(error, "filename", None) in (None, "mine")


def test_a_line_of_the_events_that_was_cut_off_is_no_matter(tmp_path: Path) -> None:
    out = tinyruns.run(tmp_path / "run")
    whole = (out / "events.jsonl").read_text()
    with open(out / "events.jsonl", "a", encoding="utf-8") as file:
        file.write('{"event": "asks", "st')
    for more in (1, 2):
        experiment.resume(out, tinyruns.Silent())
        found = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        assert [event["event"] for event in found[-more:]] == ["begins"] * more
        assert len(found) == len(whole.splitlines()) + more
