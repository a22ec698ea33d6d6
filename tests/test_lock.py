"""What is installed is what is locked, the lock is of what is asked for, and the licences are of both."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
TORCH = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
LOCK = (ROOT / "requirements.lock").read_text()
LOCKED = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", LOCK, re.MULTILINE))
tool = runpy.run_path(str(ROOT / "tools" / "lock.py"))
ASKED: list[Requirement] = [requirement for part in tool["read_requirements"]().values() for requirement in part]
made_by_make = pytest.mark.skipif(
    Path(sys.prefix) != ROOT / ".venv" or not (ROOT / ".venv" / "installed").exists(),
    reason="this environment is not the one that `make` installs",
)


@made_by_make
def test_what_is_installed_is_what_is_locked() -> None:
    installed = dict(pin.split("==") for pin in tool["list_pins"]())
    differing = {
        name: (version, LOCKED.get(name)) for name, version in installed.items() if LOCKED.get(name) != version
    }
    assert not differing, f"installed and locked (run `make`, or `make lock` after an upgrade): {differing}"
    assert tool["version_of"]("torch") == TORCH, "constraints.txt names another torch: run `make`"


def test_the_lock_is_versions_with_hashes_and_nothing_else() -> None:
    entry = r"[a-z0-9-]+==[^\s/;@]+ \\\n(?:    --hash=sha256:[0-9a-f]{64} \\\n)*    --hash=sha256:[0-9a-f]{64}\n"
    assert re.fullmatch(f"(?:# .*\n)+(?:{entry})+", LOCK), "no address, no path, no package without a hash"
    assert "torch" not in LOCKED


def test_the_lock_has_a_version_that_fits_for_all_that_is_asked_for() -> None:
    versions = {**LOCKED, "torch": TORCH}
    assert not [
        str(requirement)
        for requirement in ASKED
        if versions.get(canonicalize_name(requirement.name), "") not in requirement.specifier
    ]


@pytest.mark.parametrize(
    "name, holed",
    [
        ("opencv-python-headless", "4.11.0.86"),  # CVE-2025-53644: a crafted JPEG 2000 writes through a wild pointer
        ("jinja2", "3.1.5"),  # CVE-2025-27516: a way out of the sandbox
        ("mkdocs-material", "9.7.6"),  # a DOM-based XSS in search suggestions
        ("torch", "2.9.1"),  # CVE-2025-32434, CVE-2026-24747: torch.load runs what a file of weights says
        ("pillow", "12.2.0"),  # CVE-2026-55798, CVE-2026-59197 to 59200
        ("protobuf", "6.33.4"),  # CVE-2026-0994: nesting past the limit
        ("pytest", "9.0.2"),  # CVE-2025-71176: other users' folders in /tmp
        ("setuptools", "78.1.0"),  # CVE-2025-47273: a path out of the folder
    ],
)
def test_a_version_with_a_known_hole_is_not_taken(name: str, holed: str) -> None:
    assert not [
        str(requirement) for requirement in ASKED if requirement.name == name and holed in requirement.specifier
    ]
    assert [requirement for requirement in ASKED if requirement.name == name], f"nothing asks for {name}"


def test_the_licences_are_of_the_versions_that_are_locked() -> None:
    page = (ROOT / "docs" / "licences.md").read_text()
    rows = re.findall(r"^\| ([a-z0-9-]+) \| (\S+) \| ([^|]*[^| ]) \| ([^|]*[^| ]) \|$", page, re.MULTILINE)
    versions = {name: version for name, version, _, _ in rows if name != "package"}
    assert versions == {**LOCKED, "torch": TORCH}
