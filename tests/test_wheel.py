"""What is installed from a built wheel: all that lies in the package, templates too."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.ci
def test_a_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    shutil.copytree(ROOT / "coalface", tmp_path / "coalface", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-m", "pip", "wheel", str(tmp_path), "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path / "wheels")], check=True, timeout=120)
    (wheel,) = (tmp_path / "wheels").iterdir()
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "coalface").rglob("*") if path.is_file()}
    assert {name for name in package if "__pycache__" not in name} <= set(zipfile.ZipFile(wheel).namelist())
