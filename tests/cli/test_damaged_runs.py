"""Of a run's folder in which a file is damaged or missing, a command says what is wrong, or does without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click
import pytest
from commands import invoked

from coalface.core.errors import RunError

DAMAGES = {"empty": b"", "bytes": b"\xff\x00", "list": b"[]\n", "deep": b"[" * 50_000, "missing": None}
COMMANDS = {
    "status": ("status",),
    "report": ("report",),
    "compare": ("compare",),
    "export": ("export", "--to", "safetensors"),
    "ledger": ("ledger",),
    "verify": ("ledger", "verify"),
    "resume": ("resume",),
}


def is_explained(error: BaseException | None) -> bool:
    """Whether it is none, or one that a person can do something with: Python's own of a text names no file."""
    if isinstance(error, UnicodeError | json.JSONDecodeError):
        return False
    return error is None or isinstance(error, OSError | ValueError | RunError | click.ClickException | SystemExit)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_file_ends_a_command_by_an_error_for_a_person(
    command: str, fedavg_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [file.relative_to(fedavg_run) for file in sorted(fedavg_run.rglob("*")) if file.is_file()]
    assert {"summary.json", "config.yaml", "digests.json"} <= set(map(str, files))
    unexplained = []
    for file in files:
        for kind, content in DAMAGES.items():
            for place in ("run", "exported-model"):
                shutil.rmtree(tmp_path / place, ignore_errors=True)
            shutil.copytree(fedavg_run, tmp_path / "run")
            if content is None:
                (tmp_path / "run" / file).unlink()
            else:
                (tmp_path / "run" / file).write_bytes(content)
            words = [*COMMANDS[command], tmp_path / "run", *([fedavg_run] if command == "compare" else [])]
            if not is_explained(error := invoked(*words).exception):
                unexplained.append(f"{file} {kind}: {type(error).__name__}: {str(error)[:100]}")
    assert not unexplained, "\n".join(unexplained)
