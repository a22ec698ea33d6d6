"""What commands say of paths that are something else than they take."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import NoReturn

import pytest
import tinyruns
from commands import refused


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("run PATH --dry-run", "folder"),
        ("run PATH --dry-run", "binary"),
        ("provision PATH --out new", "empty"),
        ("flower new new --recipe PATH", "binary"),
        ("party check PATH", "folder"),
        ("party check PATH", "binary"),
        ("import-config PATH", "binary"),
        ("ledger PATH", "binary"),
        ("resume PATH", "empty"),
        ("data pack PATH new", "missing"),
        ("data preview PATH", "folder"),
        ("data align faces new --landmarks PATH", "binary"),
        ("data align faces new --detector PATH", "binary"),
    ],
)
def test_what_a_path_is_instead_is_said_in_one_line(
    words: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tinyruns.picture_folders(tmp_path / "faces", ["Ann", "Bob"])
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    text = refused(capsys, monkeypatch, *words.replace("PATH", path).split())
    assert text.startswith(f"coalface: {path}") and not re.search(r"Errno|codec|pydantic|defect", text)


def test_a_part_of_a_path_that_may_not_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def closed(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", "closed")

    monkeypatch.setattr(os.path, "realpath", closed)
    monkeypatch.setattr("coalface.data.stores.open_store", closed)
    assert refused(capsys, monkeypatch, "data", "pack", "x", "y").startswith("coalface: closed: permission denied")
