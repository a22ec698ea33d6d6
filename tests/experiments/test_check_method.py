"""`coalface new method` and `coalface check-method`, on the method that the first writes and on bad ones made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from written_method import SOURCE

from coalface.core.errors import RecipeError
from coalface.experiments.conformance.checks import CHECKS
from coalface.experiments.conformance.differences import ANOTHER_ORDER
from coalface.experiments.conformance.new_method import class_of, write_method
from coalface.experiments.conformance.subject import Failure
from coalface.experiments.conformance.suite import find_subject

TRAINED = "        return Up(backbone=party.backbone.shared()"
NOISY = "        return Up(backbone={name: t + noise for name, t in party.backbone.shared().items()}"
BAD: dict[str, tuple[list[tuple[str, str]], str, str]] = {
    "order": (
        [
            ("\n\n@message\nclass Down", "\n\nTRAINED: list[str] = []\n\n\n@message\nclass Down"),
            (TRAINED, f"        TRAINED.append(party.name)\n        noise = len(TRAINED) / 100\n{NOISY}"),
        ],
        "order of the parties",
        "State.backbone",
    ),
    "self": (
        [
            ("import dataclass\n", "import dataclass, field\n"),
            ("    way: float", "    counts: dict[str, int] = field(default_factory=dict)\n    way: float"),
            (
                TRAINED,
                "        self.counts[party.name] = self.counts.get(party.name, 0) + 1\n"
                f"        noise = self.counts[party.name] / 100\n{NOISY}",
            ),
        ],
        "own fields",
        ".counts changes",
    ),
    "torch": (
        [
            ("from coalface.core.local_results", "import torch\n\nfrom coalface.core.local_results"),
            (TRAINED, f"        noise = torch.rand(()) / 100\n{NOISY}"),
        ],
        "chance",
        "torch's global generator",
    ),
    "set": (
        [
            ('checkpoint holds it."""\n', 'checkpoint holds it."""\n\n    sums: Tensors'),
            ("=fed.initial)", "=fed.initial, sums={name: fed.zeros()[name] for name in fed.parameters})"),
            ("return State(backbone={name", "return State(sums=state.sums, backbone={name"),
        ],
        "kill and resume",
        f"State.sums: {ANOTHER_ORDER}",
    ),
}
"""What is changed in the method, the check that finds it, and what that names."""


def write(folder: Path, module: str, bad: str) -> str:
    """`new method` in a folder, made bad; returns what `check-method` is to be given."""
    file, _ = write_method(module, folder)
    text = file.read_text(encoding="utf-8")
    for old, new in BAD[bad][0]:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")
    return f"{module}:{class_of(module)}"


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    coalface = str(Path(sys.executable).with_name("coalface"))
    surroundings = os.environ | {"PYTHONHASHSEED": "1"}  # which `kill and resume` tries first, and must pass over
    return subprocess.run([coalface, *arguments], cwd=folder, capture_output=True, text=True, env=surroundings)


@pytest.mark.parametrize("bad", ["order", "self", "torch"])
def test_a_bad_method_is_found_out_by_its_check(bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    subject = find_subject(write(tmp_path, f"bad_{bad}", bad), (), tmp_path / "runs")
    with pytest.raises(Failure, match=BAD[bad][2]):
        CHECKS[BAD[bad][1]](subject)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("bad", BAD)
def test_the_command_says_what_is_wrong_and_how_to_mend_it(bad: str, tmp_path: Path) -> None:
    ended = command(tmp_path, "check-method", write(tmp_path, "bad", bad), "--json")
    assert ended.returncode == 1, ended.stderr
    wrong = {result["check"]: result for result in json.loads(ended.stdout) if not result["ok"]}
    _, check, named = BAD[bad]
    assert named in wrong[check]["wrong"] and wrong[check]["mend"]


@pytest.mark.slow
@pytest.mark.ci
def test_a_new_method_passes_its_test_and_every_check(tmp_path: Path) -> None:
    assert command(tmp_path, "new", "method", "my-own").returncode == 0
    tested = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_my_own.py"], cwd=tmp_path, capture_output=True)
    assert tested.returncode == 0, tested.stdout
    checked = command(tmp_path, "check-method", "my_own:MyOwn", "way=0.8")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert [line.split()[0] for line in checked.stdout.splitlines()] == ["ok"] * len(CHECKS)


def test_a_new_method_is_the_one_of_the_page(tmp_path: Path) -> None:
    file, test = write_method("damped", tmp_path)
    assert file.read_text(encoding="utf-8") == SOURCE
    ruff = [sys.executable, "-m", "ruff", "format", "--check", "--line-length", "120", str(test)]
    assert subprocess.run(ruff, capture_output=True).returncode == 0


@pytest.mark.parametrize("name", ["torch", "My Method", "class", "3d", "taken", "fedavg"])
def test_a_name_that_cannot_be_a_new_module_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "test_taken.py").touch()
    with pytest.raises(RecipeError):
        write_method(name, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"test_taken.py"}


def test_settings_of_a_checked_method_are_changes_of_a_recipe(tmp_path: Path) -> None:
    subject = find_subject("fedprox", ["mu=0.5", "rounds=4", "local.lr=0.01"], tmp_path)
    method, _ = subject.build()
    assert (method.mu, method.rounds, method.local.lr, method.local.batch_size) == (0.5, 4, 0.01, 4)  # type: ignore[attr-defined]
    with pytest.raises(RecipeError, match="sample, momentum, head_momentum, mu") as error:
        find_subject("fedprox", ["way=3"], tmp_path)
    assert error.value.where == "way"
