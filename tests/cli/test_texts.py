"""The texts that a person meets first, whole: the help of some commands, and the errors of a beginner.

`texts.txt` holds commands, each with what it prints. To write it anew after a change, or after adding a command to it:
`REWRITE_TEXTS=1 .venv/bin/python -m pytest tests/cli/test_texts.py`
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import typer
from commands import said
from federations import NOW, write_federation

from coalface.cli import main
from coalface.flower.provision import kits

TEXTS = Path(__file__).with_name("texts.txt")
SNAPSHOTS = {
    command: text
    for entry in TEXTS.read_text("utf-8").split("\n$ ")[1:]
    for command, _, text in [entry.partition("\n")]
}


@pytest.fixture(scope="module")
def desk(fedavg_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, a finished run, a folder of kits, images, and files that are none of these."""
    folder = tmp_path_factory.mktemp("desk")
    tinyruns.write(folder / "tiny.yaml")
    shutil.copytree(fedavg_run, folder / "run")
    kits.make(write_federation(folder / "federation"), folder / "kits", NOW)
    tinyruns.picture_folders(folder / "faces", ["Ann", "Bob"])
    (folder / "party.yaml").write_text("{name: silo-00, dta: {}}")
    (folder / "notes.txt").write_text("no recipe")
    return folder


def output(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command prints; where it fails, on stderr alone, and its exit status."""
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    status = 0
    try:
        main.main()
    except SystemExit as ended:
        status = int(ended.code or 0)
    captured = capsys.readouterr()
    text = (captured.err if status else captured.out).replace(str(Path.cwd()), "DESK").rstrip("\n")
    text = "\n".join(line.rstrip() for line in text.splitlines())
    return f"{text}\n[exit status {status}]\n" if status else f"{text}\n"


@pytest.mark.parametrize("command", SNAPSHOTS)
def test_a_command_prints_its_text(
    command: str, desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", False)  # True where a CI system says so
    monkeypatch.delenv("COALFACE_DATA", raising=False)
    text = output(command, capsys, monkeypatch)
    if os.environ.get("REWRITE_TEXTS"):
        SNAPSHOTS[command] = text
        TEXTS.write_text("".join(f"\n$ {name}\n{held}" for name, held in SNAPSHOTS.items()), "utf-8")
    assert text == SNAPSHOTS[command]


def test_every_command_and_all_that_it_takes_has_its_help_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(group: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
        yield words, group
        for name, command in getattr(group, "commands", {}).items():
            if not command.hidden:
                yield from walk(command, [*words, name])

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", False)
    commands = list(walk(typer.main.get_command(main.app), []))
    assert len(commands) > 40
    for words, command in commands:
        assert command.help and max(map(len, said(*words, "--help").splitlines())) <= 80, words
        assert all(parameter.help for parameter in command.params if "completion" not in parameter.name), words
