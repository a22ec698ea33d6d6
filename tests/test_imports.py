"""Imports go one way: cli → report, engines → methods, evaluate, privacy → learn, models, data → core."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import coalface

ROOT = Path(coalface.__file__).parent
LEVELS = [
    {"annotations", "disk", "jsontext", "names", "yamltext"},
    {"declarations"},
    {"means"},
    {"core"},
    {"calls"},  # whether what a method says can be carried out
    {"wire"},  # the codec of what the core declares; the ledger and the folds are written in its terms
    {"learn", "models", "data"},
    {"methods", "evaluate", "privacy"},
    {"engines", "report"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
"""What is not named here stands above all: the command line, the recipes and what carries them out."""
FORBIDDEN_IN_METHODS = {"coalface.engines", "coalface.data", "coalface.report", "coalface.evaluate", "flwr"}
ALLOWED_IN_METHODS = {
    "coalface.data.faces",
    "coalface.evaluate.clusterings",
    "coalface.evaluate.features",
    "coalface.evaluate.verification",
}
"""The form of a face set is no reader of one; a validator scores by the judge's formulas, and so does a client that
chooses a threshold on its own images."""
FILES = sorted(p for p in ROOT.rglob("*.py") if p.name != "__init__.py" or p.parent != ROOT)


def imported(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports from the root of the package"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def level(module: str) -> int:
    return LEVEL.get(part(module), len(LEVELS))


def name_of(path: Path) -> str:
    return ".".join(["coalface", *path.relative_to(ROOT).with_suffix("").parts])


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    here = level(name_of(path))
    upward = {m for m in imported(path) if m.startswith("coalface.") and level(m) > here}
    assert not upward, f"{name_of(path)} imports {sorted(upward)}, which stand above it"


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "methods"], ids=name_of)
def test_a_method_knows_no_engine_and_no_reader(path: Path) -> None:
    for module in imported(path):
        if not any(module == name or module.startswith(f"{name}.") for name in ALLOWED_IN_METHODS):
            bad = [name for name in FORBIDDEN_IN_METHODS if module == name or module.startswith(f"{name}.")]
            assert not bad, f"{name_of(path)} imports {module}"


def test_flower_is_imported_in_one_folder_at_most() -> None:
    users = [name_of(p) for p in FILES if any(m == "flwr" or m.startswith("flwr.") for m in imported(p))]
    assert users and all(name.startswith("coalface.engines.flower.") for name in users)


def test_what_a_node_imports_for_every_message_is_light() -> None:
    """Flower starts a process for each message: torch alone would take longer than all else that it does."""
    code = "import sys, coalface.flowerclient; print(*{'torch', 'pydantic', 'cv2', 'flwr'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["flwr"]


def test_the_rule_can_be_broken(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from coalface.engines.local import World\n    import flwr.app\n")
    assert {"coalface.engines.local", "flwr.app"} <= imported(bad)
    assert level("coalface.engines.local") > level("coalface.methods.fedavg") > level("coalface.core")
