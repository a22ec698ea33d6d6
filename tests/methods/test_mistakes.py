"""Mistakes that a writer of a method makes: each is an error that names the place and the fix, before anybody trains.

The method is the one of `docs/writing-a-method.md`; a mistake is a change of its text.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import worlds
from tinyruns import Silent, tiny
from written_method import PAGE, method

from coalface.core.method import DeclarationError, Federation, Models
from coalface.experiments import plan
from coalface.experiments import run as experiment
from coalface.methods import fedface
from coalface.methods.fedavg import FedAvg
from coalface.methods.fedface import FedFace

Mistake = tuple[str, str, type[Exception], str]
"""What stands in the text, what is written instead, and the error: its class and, as a pattern, its words."""


# --- the page ---------------------------------------------------------------------------------------------------------


def examples() -> dict[str, str]:
    """The Python in the docs, by page and number."""
    found = {}
    for page in sorted(PAGE.parent.rglob("*.md")):
        for number, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)):
            found[f"{page.name} {number}"] = text
    return found


@pytest.mark.parametrize("example", examples().values(), ids=examples())
@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_what_the_docs_show_passes_as_a_file_of_the_package(example: str, command: list[str]) -> None:
    """Who copies the method of the page into `coalface/methods/` has `make check` green."""
    ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", "coalface/methods/damped.py", "-"]
    told = subprocess.run(ruff, input=example, capture_output=True, text=True, cwd=PAGE.parents[1])
    assert told.returncode == 0, told.stdout + told.stderr


def test_the_method_of_the_page_runs_as_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method(tmp_path, monkeypatch)
    recipe = tiny(method="damped", methods={"damped": {"way": 0.5}})
    experiment.run(recipe, tmp_path / "run", Silent())
    assert (tmp_path / "run" / "model" / "backbone.safetensors").exists()


def test_the_method_of_the_page_goes_a_part_of_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damped, settings = method(tmp_path, monkeypatch).Damped, {"local": worlds.WORK, "loss": worlds.LOSS, "rounds": 1}
    half = worlds.run(damped(way=0.5, **settings), tmp_path / "half")
    whole = worlds.run(FedAvg(**settings), tmp_path / "whole")  # type: ignore[arg-type]
    assert half.models.shared is not None and whole.models.shared is not None
    for name, first in half.server.initial.items():
        assert torch.allclose(half.models.shared[name], (first + whole.models.shared[name]) / 2, atol=1e-6)
        assert not torch.equal(whole.models.shared[name], first)


# --- when the file is imported ----------------------------------------------------------------------------------------

STEP = '    @step(role="trainer")\n'
FIX = r'write `@step\(role="trainer"\)`'
PLAIN = r"step Damped.train: a step is a plain method, and this is a {0}. Take @{0} off, and let its first .* be `self`"
IMPORTED: dict[str, Mistake] = {
    "step without parentheses": (STEP, "    @step\n", DeclarationError, rf"@step above Damped.train .*{FIX}"),
    "step without a role": (STEP, "    @step()\n", DeclarationError, FIX),
    "step with an empty role": (STEP, '    @step(role="")\n', DeclarationError, FIX),
    **{
        f"step {how} {kind}": (
            STEP,
            f"{STEP}    @{kind}\n" if how == "over" else f"    @{kind}\n{STEP}",
            DeclarationError,
            PLAIN.format(kind),
        )
        for kind in ("staticmethod", "classmethod", "property")
        for how in ("over", "under")
    },
    "step without self": (
        "train(self, party",
        "train(party",
        DeclarationError,
        "step Damped.train: .* its first parameter must be `self`; it is 'party'",
    ),
    "annotation of a step misspelt": (
        "own: Learner | None, common: Down) -> tuple",
        "own: Learner | None, common: Dwn) -> tuple",
        DeclarationError,
        r"step Damped.train: `common: Dwn` names 'Dwn', which is not known in damped. Did you mean 'Down'\? Import it",
    ),
    "return of a step misspelt": (
        "-> tuple[Up, Learner]",
        "-> tuple[Upp, Learner]",
        DeclarationError,
        r"step Damped.train: `return: tuple\[Upp, Learner\]` names 'Upp'.* Did you mean 'Up'\?",
    ),
    "annotation of a message misspelt": (
        '"""From a party."""\n\n    backbone: Tensors',
        '"""From a party."""\n\n    backbone: Tensor',
        DeclarationError,
        r"message Up: `backbone: Tensor` names 'Tensor', which is not known in damped. Did you mean 'Tensors'\?",
    ),
    "annotation of the state misspelt": (
        'holds it."""\n\n    backbone: Tensors',
        'holds it."""\n\n    backbone: Tensrs',
        DeclarationError,
        "state State: `backbone: Tensrs` names 'Tensrs'",
    ),
    "annotation of init misspelt": (
        "fed: Federation) -> State",
        "fed: Federation) -> Stat",
        DeclarationError,
        r"method Damped: init: `return: Stat` names 'Stat', which is not known in damped. Did you mean 'State'\?",
    ),
    "annotation of an attribute that is not there": (
        "common: Down) -> tuple",
        "common: torch.Dwn) -> tuple",
        DeclarationError,
        "step Damped.train: `common: torch.Dwn` names 'torch', which is not known",
    ),
    "annotation that is no class": (
        "common: Down) -> tuple",
        "common: ClassVar.Down) -> tuple",
        DeclarationError,
        "step Damped.train: an annotation cannot be read as a class",
    ),
}


@pytest.mark.parametrize(("old", "new", "error", "says"), IMPORTED.values(), ids=IMPORTED)
def test_a_declaration_that_cannot_hold_is_refused_when_it_is_imported(
    old: str, new: str, error: type[Exception], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error, match=says):
        method(tmp_path, monkeypatch, old, new)


# --- before a run begins ----------------------------------------------------------------------------------------------

FROZEN = r"put `@dataclass\(frozen=True, kw_only=True\)` above the class"
FOLDS, COMMON = "aggregate=[mean]", "common=Down(backbone=state.backbone), aggregate"
RETURNED = "return State(backbone={name"
PLANNED: dict[str, Mistake] = {
    "fold of a field misspelt": (
        '"backbone", by=',
        '"bakbone", by=',
        ValueError,
        r"Damped, step train: Mean\('bakbone'\): no tensors of Up; those that can be aggregated: \['backbone'\]",
    ),
    "fold of a number": ('"backbone", by=', '"images", by=', ValueError, r"Mean\('images'\): no tensors of Up"),
    "weight misspelt": ('by="images", of', 'by="imgs", of', ValueError, r"by='imgs'\): no number of Up; it has"),
    "weights of a party that is not there": (
        'by="images", of',
        'by={"silo-xx": 1.0}, of',
        ValueError,
        r"gives weights to \['silo-xx'\], which are not parties",
    ),
    "fold that is no list": (
        FOLDS,
        "aggregate=mean",
        TypeError,
        r"Damped, step train: aggregate is a Mean; give a list: `aggregate=\[Mean\('backbone', …\)\]`",
    ),
    "aggregate that is a text": (
        FOLDS,
        'aggregate="backbone"',
        TypeError,
        r"aggregate is a str; give a list: `aggregate=\[Mean\('back",
    ),
    "fold that is a text": (
        FOLDS,
        'aggregate=["backbone"]',
        TypeError,
        r"aggregate holds 'backbone', which is no Mean: write `aggregate=\[Mean\('backbone'\)\]`",
    ),
    "two means of one name": (FOLDS, "aggregate=[mean, mean]", ValueError, "two means are called 'backbone'.*a `name`"),
    "common forgotten": (
        COMMON,
        "aggregate",
        TypeError,
        r"Damped, step train: the step needs `common`, a Down; give it, or declare it `\| None`",
    ),
    "common that is the state": (
        COMMON,
        "common=state, aggregate",
        TypeError,
        r"`common` is a State, but the step declares .*Down.*: give `common=Down\(…\)`",
    ),
    "each empty": (FOLDS, f"{FOLDS}, each={{}}", ValueError, "`each` is empty, .* leave it out to ask all of them"),
    "to empty": (FOLDS, f"{FOLDS}, to=[]", ValueError, "`to` is empty, .* leave it out to ask all of them"),
    "to that is one name": (FOLDS, f'{FOLDS}, to="silo-0"', TypeError, r"in a list, `to=\['silo-0'\]`"),
    "each for a step without": (
        FOLDS,
        f'{FOLDS}, each={{p: Down(backbone={{}}) for p in fed.parties("trainer")}}',
        TypeError,
        "`each` is a Down, but the step declares None: leave it out, or declare `each` in the step",
    ),
    "each that is no mapping": (FOLDS, f"{FOLDS}, each=[1]", TypeError, "`each` is a list; give a mapping from party"),
    "role misspelt": (STEP, '    @step(role="trianer")\n', ValueError, "no parties with the role 'trianer'"),
    "ask for what stays": (
        "fed.ask(self.train",
        "fed.ask(self.own_model",
        DeclarationError,
        "step own_model: it gives a local result, which only the lab sees",
    ),
    "not frozen": ("frozen=True, ", "", DeclarationError, f"Damped is a dataclass that is not frozen: {FROZEN}"),
    "no rounds": (
        "    rounds: int = 20\n",
        "",
        DeclarationError,
        "method Damped does not say how many rounds it has: give it a field `rounds: int = 20`",
    ),
    "init without return": (
        "        return State(backbone=fed.initial)",
        "        State(backbone=fed.initial)",
        TypeError,
        r"Damped.init: it returned nothing, but stage train .*End init with `return State\(…\)`",
    ),
    "round without return": (
        RETURNED,
        RETURNED.removeprefix("return "),
        TypeError,
        r"Damped.round: it returned nothing, .*End round with `return State\(…\)`",
    ),
    "round returns tensors": (RETURNED, "return dict(backbone={name", TypeError, "Damped.round: it returned a dict"),
}
AFTER_TRAINING: dict[str, Mistake] = {
    "models of tensors": (
        "return Models(shared=state.backbone)",
        "return state.backbone",
        TypeError,
        r"Damped.models: it returned a dict. Write `return Models\(shared=state.backbone\)`",
    ),
    "models without return": (
        "return Models(shared=state.backbone)",
        "return",
        TypeError,
        "Damped.models: it returned nothing. Write",
    ),
    "models of none": (
        "Models(shared=state.backbone)",
        "Models()",
        TypeError,
        "shared",
    ),
    "models of a state": (
        "Models(shared=state.backbone)",
        "Models(shared=state)",
        DeclarationError,
        r"Models\(shared=…\) is a State; give the tensors of the backbone by name",
    ),
    "models without what their step needs": (
        "Models(shared=state.backbone)",
        "Models(shared=None)",
        TypeError,
        "step own_model: the step needs `common`, a Down",
    ),
}
EVERY = PLANNED | AFTER_TRAINING


@pytest.mark.parametrize(("old", "new", "error", "says"), EVERY.values(), ids=EVERY)
def test_a_mistake_ends_an_experiment_before_anything_is_written(
    old: str, new: str, error: type[Exception], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method(tmp_path, monkeypatch, old, new)
    with pytest.raises(error, match=says):
        experiment.run(tiny(method="damped"), tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("old", "new", "error", "says"), PLANNED.values(), ids=PLANNED)
def test_an_engine_without_a_plan_says_the_same(
    old: str, new: str, error: type[Exception], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"local": worlds.WORK, "loss": worlds.LOSS}
    made = method(tmp_path, monkeypatch, old, new).Damped(**settings)
    with pytest.raises(error, match=says):
        worlds.run(made, tmp_path)
    trained = list((tmp_path / "parties").rglob("*.commit"))
    assert bool(trained) == ("Damped.round" in says)  # whose result is not known before
    assert not (tmp_path / "checkpoints").exists()


DECORATED = "@dataclass(frozen=True, kw_only=True)\n"


def test_a_method_that_is_no_dataclass_is_refused_at_its_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = method(tmp_path, monkeypatch, DECORATED, "").Damped()
    with pytest.raises(DeclarationError, match=FROZEN):
        type(made).check_frozen()
    with pytest.raises(
        DeclarationError, match=f"Damped is not declared a dataclass.*rounds, way, local, loss.*{FROZEN}"
    ):
        made.steps  # noqa: B018
    with pytest.raises(DeclarationError, match=FROZEN):
        plan.plan(made, {"trainer": ["silo-0"]}, worlds.Tiny()().backbone)
    with pytest.raises(DeclarationError, match=FROZEN):
        worlds.run(made, tmp_path)
    with pytest.raises(DeclarationError, match=FROZEN):
        tiny(method="damped")


def test_new_fields_need_a_decorator_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damped: Any = method(tmp_path, monkeypatch).Damped
    plain: Any = type("Plain", (damped,), {})
    assert "train" in plain().steps
    child: Any = type("Child", (damped,), {"__annotations__": {"more": "int"}, "more": 3})
    with pytest.raises(DeclarationError, match=rf"Child is not declared a dataclass, so that more would be .*{FROZEN}"):
        child().steps  # noqa: B018


class Nowhere(FedFace):
    """Leaves no model, neither for everybody nor at the parties."""

    def models(self, fed: Federation, state: fedface.State) -> Models:
        return Models(shared=None)


def test_a_method_leaves_a_model() -> None:
    with pytest.raises(DeclarationError, match="leaves no model.* local=OWN_MODEL"):
        plan.plan(Nowhere(), {"trainer": ["a", "b"]}, worlds.Tiny(one_identity=True)().backbone)


def test_models_hold_tensors() -> None:
    assert Models(shared={"w": torch.zeros(1)}).common is None
    with pytest.raises(DeclarationError, match="is a dict; give the tensors of the backbone by name"):
        Models(shared={"w": 1.0})  # type: ignore[dict-item]
