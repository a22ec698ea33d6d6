"""The source distribution and the wheel: what they hold, and that they work where there is no checkout."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import coalface

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDERS = ("benchmarks", "coalface", "docs", "tests", "tools")
NEEDS_MORE = ("lfw/", "faces/", "new/", "IJBC", "pairs.txt", "coalface up", "kits")
"""In README's commands: images or files of the reader's own, or a federation."""
SHORTER = {"run": ["rounds=1"], "sweep": ["--dry-run"]}
"""Command -> what makes it one of seconds."""
pytestmark = [pytest.mark.slow, pytest.mark.ci]


def execute(*command: str | Path, cwd: Path) -> str:
    """What a command prints, run outside the checkout."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "COALFACE_DATA")}
    environment |= {"COALFACE_CACHE": str(cwd / "cache"), "PYTHONWARNINGS": "error::SyntaxWarning"}
    process = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, f"{command}\n{process.stdout}\n{process.stderr}"
    return process.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution."""
    checkout, to = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("sdist")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    for file in (path for path in ROOT.iterdir() if path.is_file()):
        shutil.copy(file, checkout)
    build = "import sys, setuptools.build_meta as backend; backend.build_sdist(sys.argv[1])"
    execute(sys.executable, "-c", build, to, cwd=checkout)
    (archive,) = to.iterdir()
    with tarfile.open(archive) as tar:
        tar.extractall(to, filter="data")
    archive.unlink()
    return next(to.iterdir())


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution."""
    to = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", source, "--no-deps", "--no-build-isolation", "--quiet"]
    execute(*command, "--wheel-dir", to, cwd=to)
    return next(to.iterdir())


@pytest.fixture(scope="module")
def bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with the wheel and, from this one, what it depends on."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False, symlinks=True)
    (site_packages,) = place.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text("\n".join(p for p in sys.path if p.endswith("site-packages")))
    python = place / "bin" / "python"
    execute(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--quiet", wheel, cwd=place)
    return place / "bin"


def test_a_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "coalface").rglob("*") if path.is_file()}
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in package if "__pycache__" not in name} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"coalface", f"coalface-{coalface.__version__}.dist-info"}


def test_tests_of_the_source_distribution_run(source: Path) -> None:
    chosen = ("test_docs.py", "test_lock.py", "test_imports.py", "experiments/test_included_recipes.py")
    execute(sys.executable, "-m", "pytest", "-x", *(f"tests/{name}" for name in chosen), cwd=source)


def test_readmes_commands_run_from_the_wheel(bin: Path, tmp_path: Path) -> None:
    where = execute(bin / "python", "-c", "import coalface; print(coalface.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(bin.parent)
    commands = re.findall(r"^coalface (.+?)(?:  +#.*)?$", README, re.MULTILINE)
    commands = [command for command in commands if not any(needed in f"coalface {command}" for needed in NEEDS_MORE)]
    assert len(commands) >= 8
    for command in commands:
        words = shlex.split(command)
        assert execute(bin / "coalface", *words, *SHORTER.get(words[0], []), cwd=tmp_path)
    for code in re.findall(r"^```python\n(.+?)^```", README, re.MULTILINE | re.DOTALL):
        execute(bin / "python", "-c", code, cwd=tmp_path)
        summary = json.loads((tmp_path / "runs" / "python" / "summary.json").read_text())
        assert summary["figures"]["unseen"]["accuracy"] > summary["untrained"]["unseen"]["accuracy"] + 5


def test_a_federation_that_comes_along_is_provisioned_from_the_wheel(bin: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    execute(bin / "coalface", "provision", "synthetic/three-silos/federation", "--out", "kits", cwd=tmp_path)
    assert (tmp_path / "kits" / "operator" / "project" / "recipe.yaml").is_file()
