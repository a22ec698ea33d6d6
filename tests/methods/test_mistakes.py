"""Mistakes that a writer of a method makes: each is an error that names the place, before anybody trains.

The method is the one of `docs/writing-a-method.md`; a mistake is a change of its text.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import torch
from commands import refused
from tinyruns import Silent, tiny
from written_method import PAGE, SOURCE, method

from coalface.core.errors import RecipeError
from coalface.core.method import DeclarationError, Models
from coalface.experiments import run as experiment
from coalface.experiments.conformance import tiny_federation
from coalface.experiments.conformance.tiny_federation import LOSS, WORK
from coalface.methods.fedavg import FedAvg
from coalface.methods.fedprox import FedProx

Mistake = tuple[str, str, type[Exception], str]
"""What stands in the text, what is written instead, the class of the error, and what it names, as a pattern."""


# --- the page ---------------------------------------------------------------------------------------------------------


def examples() -> dict[str, str]:
    """The Python in the docs, by page and number."""
    examples = {}
    in_parts = {PAGE.parent / name for name in ("bring-your-own.md", "python.md")}  # they have tests of their own
    pages = {*PAGE.parent.rglob("*.md")} - in_parts
    for page in sorted(pages):
        for number, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)):
            examples[f"{page.name} {number}"] = text
    return examples


@pytest.mark.parametrize("example", examples().values(), ids=examples())
@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_what_the_docs_show_passes_as_a_file_of_the_package(example: str, command: list[str]) -> None:
    """Who copies the method of the page into `coalface/methods/` has `make check` green."""
    ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", "coalface/methods/damped.py", "-"]
    ruff_output = subprocess.run(ruff, input=example, capture_output=True, text=True, cwd=PAGE.parents[1])
    assert ruff_output.returncode == 0, ruff_output.stdout + ruff_output.stderr


def test_the_method_of_the_page_runs_as_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method(tmp_path, monkeypatch)
    recipe = tiny(method="damped", methods={"damped": {"way": 0.5}})
    experiment.run(recipe, tmp_path / "run", Silent())
    assert (tmp_path / "run" / "model" / "backbone.safetensors").exists()


def test_the_method_of_the_page_goes_a_part_of_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damped, settings = (
        method(tmp_path, monkeypatch).Damped,
        {"local": WORK, "loss": LOSS, "rounds": 1},
    )
    half = tiny_federation.run(damped(way=0.5, **settings), tmp_path / "half")
    whole = tiny_federation.run(FedAvg(**settings), tmp_path / "whole")  # type: ignore[arg-type]
    assert half.models.shared is not None and whole.models.shared is not None
    for name, first in half.server.initial.items():
        assert torch.allclose(half.models.shared[name], (first + whole.models.shared[name]) / 2, atol=1e-6)
        assert not torch.equal(whole.models.shared[name], first)


def test_the_pull_of_the_page_is_fedprox(tmp_path: Path) -> None:
    held: dict[str, Any] = {"__name__": __name__}
    exec(PAGE.read_text(encoding="utf-8").split("```python\n")[2].split("```")[0], held)
    settings: Any = {"local": WORK, "loss": LOSS, "rounds": 2, "mu": 0.5}
    runs = [tiny_federation.run(cls(**settings), tmp_path / cls.__name__) for cls in (held["Held"], FedProx)]
    (first, second) = (run.models.shared for run in runs)
    assert first and second and all(torch.equal(first[name], second[name]) for name in second)


# --- when the file is imported ----------------------------------------------------------------------------------------

STEP = '    @step(role="trainer")\n'
IMPORTED: dict[str, Mistake] = {
    "step without parentheses": (STEP, "    @step\n", DeclarationError, "@step above Damped.train "),
    "step with an empty role": (STEP, '    @step(role="")\n', DeclarationError, "@step "),
    "step over a static method": (STEP, f"{STEP}    @staticmethod\n", DeclarationError, "step Damped.train"),
    "step under a property": (STEP, f"    @property\n{STEP}", DeclarationError, "step Damped.train"),
    "step without self": ("train(self, party", "train(party", DeclarationError, "step Damped.train: .*`self"),
    "annotation of a step misspelt": (
        "own: Learner | None, common: Down) -> tuple",
        "own: Learner | None, common: Dwn) -> tuple",
        DeclarationError,
        r"step Damped.train: `common: Dwn`.* damped .*'Down'\?",
    ),
    "annotation of the state misspelt": (
        'holds it."""\n\n    backbone: Tensors',
        'holds it."""\n\n    backbone: Tensrs',
        DeclarationError,
        "state State: `backbone: Tensrs`",
    ),
    "annotation of init misspelt": (
        "fed: Federation) -> State",
        "fed: Federation) -> Stat",
        DeclarationError,
        "method Damped: init: `return: Stat`",
    ),
    "annotation of an attribute that is not there": (
        "common: Down) -> tuple",
        "common: torch.Dwn) -> tuple",
        DeclarationError,
        "step Damped.train: `common: torch.Dwn` names 'torch'",
    ),
    "annotation that is no class": (
        "common: Down) -> tuple",
        "common: ClassVar.Down) -> tuple",
        DeclarationError,
        "step Damped.train: an annotation",
    ),
}


@pytest.mark.parametrize(("old", "new", "error", "names"), IMPORTED.values(), ids=IMPORTED)
def test_a_declaration_that_cannot_hold_is_refused_when_it_is_imported(
    old: str, new: str, error: type[Exception], names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error, match=names):
        method(tmp_path, monkeypatch, old, new)


# --- before a run begins ----------------------------------------------------------------------------------------------

MEANS, COMMON = "aggregate=[mean]", "common=Down(backbone=state.backbone), aggregate"
RETURN, MODELS = "return State(backbone={name", "return Models.by_policy(fed, Down(backbone=state.backbone))"
TRAIN = "Damped, step train: "
PLANNED: dict[str, Mistake] = {
    "mean of a field misspelt": ('"backbone", by=', '"bakbone", by=', ValueError, rf"{TRAIN}Mean\('bakbone'\)"),
    "mean of a number": ('"backbone", by=', '"images", by=', ValueError, rf"{TRAIN}Mean\('images'\)"),
    "weight misspelt": ('by="images", of', 'by="imgs", of', ValueError, "by='imgs'"),
    "weights of an unknown party": ('by="images", of', 'by={"silo-xx": 1.0}, of', ValueError, "silo-xx"),
    "aggregate that is no list": (MEANS, "aggregate=mean", TypeError, f"{TRAIN}aggregate is a Mean"),
    "aggregate that is a text": (MEANS, 'aggregate="backbone"', TypeError, "aggregate is a str"),
    "aggregate of texts": (MEANS, 'aggregate=["backbone"]', TypeError, "aggregate holds 'backbone'"),
    "two means of one name": (MEANS, "aggregate=[mean, mean]", ValueError, r"\['backbone', 'backbone'\]"),
    "common forgotten": (COMMON, "aggregate", TypeError, f"{TRAIN}the step needs `common`, a Down"),
    "common that is the state": (COMMON, "common=state, aggregate", TypeError, r"State.*`common=Down\(…\)`"),
    "each empty": (MEANS, f"{MEANS}, each={{}}", ValueError, "`each` is empty"),
    "to empty": (MEANS, f"{MEANS}, to=[]", ValueError, "`to` is empty"),
    "to that is one name": (MEANS, f'{MEANS}, to="silo-0"', TypeError, r"`to=\['silo-0'\]`"),
    "each for a step without": (
        MEANS,
        f'{MEANS}, each={{p: Down(backbone={{}}) for p in fed.parties("trainer")}}',
        TypeError,
        "`each` is a Down, but the step declares None",
    ),
    "each that is no mapping": (MEANS, f"{MEANS}, each=[1]", TypeError, "`each` is a list"),
    "role misspelt": (STEP, '    @step(role="trianer")\n', ValueError, "'trianer'"),
    "ask for what stays": ("fed.ask(self.train", "fed.ask(self.own_model", DeclarationError, "step own_model"),
    "not frozen": ("frozen=True, ", "", DeclarationError, r"Damped .*`@dataclass\(frozen=True, kw_only=True\)`"),
    "no rounds": ("    rounds: int = 20\n", "", DeclarationError, "Damped .*`rounds: int = 20`"),
    "setting without a default": ("way: float = 0.5", "way: float", RecipeError, r"^methods\.damped\.way: "),
    "init without return": (
        "return State(backbone=fed",
        "State(backbone=fed",
        DeclarationError,
        "Damped.init .*nothing",
    ),
    "round without return": (RETURN, RETURN.removeprefix("return "), DeclarationError, "Damped.round .*nothing"),
    "round returns tensors": (RETURN, "return dict(backbone={name", DeclarationError, "Damped.round .*dict"),
}
FINISHED: dict[str, Mistake] = {
    "models of tensors": (MODELS, "return state.backbone", DeclarationError, "Damped.models .*a dict"),
    "models without return": (MODELS, "return", DeclarationError, "Damped.models .*nothing"),
    "models of a state": (MODELS, "return Models(shared=state)", DeclarationError, "Models.* a State"),
    "models without what their step needs": (
        MODELS,
        "return Models(shared=None)",
        TypeError,
        "step own_model: the step needs `common`, a Down",
    ),
    "models without a step that makes them": (
        f"""@step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Learner | None, common: Down) -> Tensors:
        return whole_backbone(party, common.backbone, own.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        {MODELS}""",
        "def models(self, fed: Federation, state: State) -> Models:\n        return Models(shared=None)",
        DeclarationError,
        "Damped.models: .*local=OWN_MODEL",
    ),
}
EVERY = PLANNED | FINISHED


@pytest.mark.parametrize(("old", "new", "error", "names"), EVERY.values(), ids=EVERY)
def test_a_mistake_ends_an_experiment_before_anything_is_written(
    old: str, new: str, error: type[Exception], names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method(tmp_path, monkeypatch, old, new)
    with pytest.raises(error, match=names):
        experiment.run(tiny(method="damped"), tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("answer.aggregated", "answer.agregated", "AttributeError: "),
        (MEANS, 'aggregate="backbone"', "TypeError: "),
        ("frozen=True, ", "", "Damped is not a frozen dataclass: "),
    ],
)
def test_a_mistake_is_told_with_its_line_and_is_no_defect_of_coalface(
    old: str, new: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    method(tmp_path, monkeypatch, old, new)
    text = refused(capsys, monkeypatch, "run", tinyruns.write(tmp_path / "tiny.yaml"), "method=damped", "--dry-run")
    assert text.startswith(f"coalface: {told}") and "defect" not in text
    line = next(number for number, line in enumerate(SOURCE.replace(old, new).splitlines(), 1) if new in line)
    assert (f"(damped.py, line {line}, in round)" in text) == ("Error" in told)


@pytest.mark.parametrize(
    "mistake", ["mean of a field misspelt", "common forgotten", "not frozen", "init without return"]
)
def test_an_engine_without_a_plan_says_the_same(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, error, names = PLANNED[mistake]
    settings: dict[str, Any] = {"local": WORK, "loss": LOSS}
    damped = method(tmp_path, monkeypatch, old, new).Damped(**settings)
    with pytest.raises(error, match=names):
        tiny_federation.run(damped, tmp_path)
    assert not list((tmp_path / "parties").rglob("*.commit")) and not (tmp_path / "checkpoints").exists()


def test_a_child_that_leaves_out_the_annotation_is_told_the_state_of_its_parent() -> None:
    with pytest.raises(DeclarationError, match="Child: init .*from coalface.methods.fedavg import State"):
        type("Child", (FedAvg,), {"init": lambda self, fed: None})


def test_new_fields_need_a_decorator_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damped: Any = method(tmp_path, monkeypatch).Damped
    plain: Any = type("Plain", (damped,), {})
    assert "train" in plain().steps
    child: Any = type("Child", (damped,), {"__annotations__": {"more": "int"}, "more": 3})
    with pytest.raises(DeclarationError, match="Child .*more would be no setting"):
        child().steps  # noqa: B018


def test_models_hold_tensors() -> None:
    assert Models(shared={"w": torch.zeros(1)}).common is None
    with pytest.raises(DeclarationError, match="a dict"):
        Models(shared={"w": 1.0})  # type: ignore[dict-item]
