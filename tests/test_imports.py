"""Imports go one way: cli → flower → experiments → {engine, evaluation, methods} → {training, privacy} → {data, models}
→ core."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import coalface

ROOT = Path(coalface.__file__).parent
DATA = "data data.readers data.synthetic data.tools"
TRAINING = "training training.clustering training.distributed training.domain_adaptation training.joint training.losses"
ENGINE = "engine engine.party engine.robust engine.sums"
BELOW = f"core {DATA} models models.pretrained {TRAINING} privacy privacy.secure_sums evaluation.metrics"
_WITHIN = "api attacks comparison setup callbacks conformance export gallery plan recipe report sweep"
EXPERIMENTS = " ".join(["experiments", *(f"experiments.{name}" for name in _WITHIN.split())])
FLOWER = "flower.app flower.party flower.provision"
RULES = {
    package: set(allowed.split())
    for package, allowed in {
        "core": "",
        "data": f"core {DATA}",
        "data.readers": "core data",
        "data.synthetic": "core data",
        "data.tools": "core data data.readers",
        "models": "core data models.pretrained",
        "models.pretrained": "core models.branched models.folder",
        "evaluation.metrics": "core data",
        "privacy": "core privacy.secure_sums",
        "privacy.secure_sums": "core",
        "training.losses": "core",
        "training.distributed": "core training.losses",
        "training": "core data evaluation.metrics models training.distributed training.losses",
        "training.clustering": "core evaluation.metrics",
        "training.domain_adaptation": "core training training.losses",
        "training.joint": "core data.faceset models.embedding training training.losses",
        "methods": f"core {TRAINING} data.faceset evaluation.metrics models.pretrained.input privacy.local_clustering",
        "engine": f"core {DATA} {TRAINING} privacy privacy.secure_sums engine.party engine.robust engine.sums",
        "engine.robust": "core engine engine.sums",
        "engine.sums": "core privacy privacy.secure_sums engine engine.party",
        "engine.party": f"core {DATA} {TRAINING} privacy privacy.secure_sums engine engine.sums",
        "evaluation": f"{BELOW} {ENGINE}",
        "experiments.recipe": f"{BELOW} {ENGINE} methods",
        "experiments.api": f"{BELOW} methods evaluation {EXPERIMENTS}",
        "experiments.gallery": "core data data.readers data.tools.decode_check data.tools.ignored_files models "
        "evaluation.feature_file experiments.api",
        "experiments.export": f"{BELOW} {ENGINE} evaluation experiments experiments.api "
        "experiments.comparison experiments.gallery experiments.recipe experiments.report.runs experiments.setup",
        "experiments.setup": f"{BELOW} {ENGINE} methods evaluation experiments.recipe",
        "experiments.plan": f"{BELOW} {ENGINE} methods experiments.callbacks experiments.recipe experiments.setup",
        "experiments.conformance": f"{BELOW} {ENGINE} methods evaluation {EXPERIMENTS}",
        "experiments.attacks": f"{BELOW} {ENGINE} methods evaluation {EXPERIMENTS}",
        "experiments.report": "core evaluation.figures evaluation.hardest evaluation.metrics.verification "
        "evaluation.npz",
        "experiments.comparison": "core evaluation evaluation.metrics experiments.report",
        "experiments.callbacks": "core evaluation.figures experiments.recipe experiments.report",
        "experiments": f"{BELOW} {ENGINE} methods evaluation {EXPERIMENTS}",
        "experiments.sweep": f"{BELOW} {ENGINE} methods evaluation {EXPERIMENTS}",
        "flower": "",
        "flower.app": f"{BELOW} {ENGINE} methods evaluation {EXPERIMENTS}",
        "flower.provision": f"{BELOW} methods evaluation {EXPERIMENTS} flower.app",
        "flower.party": f"{BELOW} {ENGINE} methods evaluation {EXPERIMENTS} flower.app flower.provision",
        "flower.poc": f"{BELOW} {ENGINE} evaluation {EXPERIMENTS} {FLOWER}",
        "cli.use": "core data data.tools models models.pretrained.input cli experiments.api experiments.export "
        "experiments.gallery",
        "cli": f"cli.use {BELOW} {ENGINE} methods evaluation {EXPERIMENTS} {FLOWER} flower.poc",
    }.items()
}
"""What the modules of a package may import, beside each other: the modules of these packages, but not of packages
within them, or this one module."""
MOST_ENTRIES, MOST_MODULES = 12, 15

FILES = sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    """A module's name below `coalface`; of `coalface/data/__init__.py` it is `data`, of the root's ''."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}
PACKAGES = {name_of(path) for path in FILES if path.name == "__init__.py"}


@functools.cache
def imported(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it, be it for types alone; ours by their names below `coalface`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: write imports from the root of the package"
            for alias in node.names:
                below = f"{node.module}.{alias.name}".partition(".")[2]
                ours = node.module.split(".")[0] == "coalface" and below in MODULES
                names.add(f"coalface.{below}" if ours else node.module)
    return {name if not name.startswith("coalface.") else name.partition(".")[2] for name in names}


@functools.cache
def edges() -> dict[str, set[str]]:
    """Which modules of ours each of ours imports."""
    return {name: (imported(path) & MODULES.keys()) - {name} for name, path in MODULES.items()}


def package_of(module: str) -> str:
    return module if module in PACKAGES else module.rpartition(".")[0]


def may(module: str, imported_module: str) -> bool:
    """Whether a module may import another; every one may ask the root for the version."""
    package, target = package_of(module), package_of(imported_module)
    return package == target or {target, imported_module} & (RULES[package] | {""}) != set()


def breaches() -> set[tuple[str, str]]:
    return {
        (module, target)
        for module, targets in edges().items()
        if module
        for target in targets
        if not may(module, target)
    }


def test_every_package_has_a_rule_and_every_rule_a_package() -> None:
    assert RULES.keys() | {""} == PACKAGES
    assert {name for allowed in RULES.values() for name in allowed} <= MODULES.keys()
    assert all((path.parent / "__init__.py").exists() for path in FILES), "a folder without __init__.py"


def test_imports_go_one_way() -> None:
    bad = sorted(breaches())
    assert not bad, "\n".join(f"{module} imports {target}, which its package may not" for module, target in bad)


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(edges()).prepare()
    except CycleError as error:
        pytest.fail(f"imports in a circle: {' ← '.join(error.args[1])}")


def test_the_floors_stand_on_each_other_in_one_order() -> None:
    """The rules themselves know no circle of floors. The metrics are a floor of their own, below those who choose by
    them."""

    def floor(name: str) -> str:
        return name if name == "evaluation.metrics" else name.split(".")[0]

    floors: dict[str, set[str]] = {}
    for package, allowed in RULES.items():
        floors.setdefault(floor(package), set()).update(floor(name) for name in allowed)
    list(TopologicalSorter({name: below - {name} for name, below in floors.items()}).static_order())


def test_the_root_and_the_folders_stay_small() -> None:
    entries = {path.name for path in ROOT.iterdir()} - {"__pycache__", "py.typed", "recipes"}
    assert len(entries) <= MOST_ENTRIES and {name for name in entries if name.endswith(".py")} == {"__init__.py"}
    for package in PACKAGES - {"methods"}:
        modules = [name for name in MODULES.keys() - PACKAGES if package_of(name) == package]
        assert len(modules) <= MOST_MODULES, (
            f"{package} holds {len(modules)} modules: give a subject a folder of its own"
        )


def test_flower_is_imported_in_one_folder() -> None:
    users = {name for name, path in MODULES.items() if any(m.split(".")[0] == "flwr" for m in imported(path))}
    assert users and {package_of(name) for name in users} == {"flower.app"}


def test_what_a_node_imports_for_every_message_is_light() -> None:
    """Flower starts a process for each message: torch alone would take longer than all else that it does."""
    code = "import sys, coalface.flower.party.client; print(*{'torch', 'pydantic', 'cv2', 'flwr'} & sys.modules.keys())"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["flwr"]


def test_aligning_photographs_does_without_torch() -> None:
    code = "import sys, coalface.experiments.api.align; print('torch' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["False"]


@pytest.mark.slow
@pytest.mark.ci
def test_what_a_run_imports_before_its_first_round_is_what_it_needs() -> None:
    late = (
        "coalface.experiments.report.page jinja2 coalface.data.synthetic coalface.methods.dann mlflow vl_convert "
        "psutil torch._dynamo"
    )
    code = f"""
import sys
from coalface.experiments.recipe import loader
from coalface.experiments import run
from coalface.experiments.callbacks import progress
from coalface.models import BACKBONES, sketch
loader.load(None, ["method=fedavg"]).build_method()
for name in BACKBONES.own:
    assert sketch(name, size=112, channels=3)
print(*{set(late.split())} & sys.modules.keys())"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == []


def test_the_rule_can_be_broken(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from coalface.engine.local import FederatedData\n    import flwr.app\n")
    assert imported(bad) == {"engine.local", "flwr.app"}
    assert not may("core.method", "engine.local") and not may("methods.fedavg", "data.stores")
    assert may("methods.fedavg", "core.method") and may("methods.fedavg", "data.faceset")
