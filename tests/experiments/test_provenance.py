"""A run goes on with the recipe and the code that it was begun with, or says what has been changed."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import written_method
import yaml
from commands import invoked
from tinyruns import Silent, Stop, Stops, model_bytes, tiny

from coalface.core.errors import RecipeError
from coalface.engine.transport import RunFailed
from coalface.experiments import provenance
from coalface.experiments import run as experiment
from coalface.experiments.export.client import export_client
from coalface.methods import METHODS


class NeverBegins(Silent):
    def start(self, *about: Any) -> None:
        raise Stop


def stopped(out: Path, view: Silent | None = None, **changes: Any) -> Path:
    with pytest.raises(Stop):
        experiment.run(tiny(**changes), out, view or Stops())
    return out


def every_byte(out: Path) -> dict[str, str]:
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its first checkpoint; tests copy it."""
    return stopped(tmp_path_factory.mktemp("runs") / "half", name="tiny-fedavg")


@pytest.fixture(scope="module")
def unbegun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped before its first checkpoint; tests copy it."""
    return stopped(tmp_path_factory.mktemp("runs") / "unbegun", NeverBegins(), name="tiny-fedavg")


@pytest.fixture(params=["half", "unbegun", "fedavg_run"])
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run that has a checkpoint, one that has none yet, and one that is finished."""
    return Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / "run"))


# --- the recipe -------------------------------------------------------------------------------------------------------


def edited(text: str) -> str:
    assert "lr: 0.05" in text
    return text.replace("lr: 0.05", "lr: 0.5")


def truncated(text: str) -> str:
    """Still YAML, without the sections at its end."""
    return text[: text.index("data:")]


def broken(text: str) -> str:
    return text[: text.index("local:")] + "local: {"


EDITS: dict[Callable[[str], str], str] = {
    edited: r"local.lr was 0.05 and is now 0.5\. ",
    truncated: "data.hold_out was 4 and is now 0; .*; and \\d+ more",
    broken: "cannot be read",
}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_a_changed_recipe_is_refused_with_what_differs_and_nothing_is_touched(
    edit: Callable[[str], str], copy: Path
) -> None:
    path = copy / "config.yaml"
    path.write_text(edit(path.read_text()))
    before = every_byte(copy)
    with pytest.raises(RecipeError, match=EDITS[edit]) as error:
        experiment.resume(copy, Silent())
    assert error.value.where == str(path)
    assert every_byte(copy) == before


def test_a_recipe_that_was_taken_away_is_written_as_it_was(copy: Path, fedavg_run: Path) -> None:
    before = (copy / "config.yaml").read_bytes()
    (copy / "config.yaml").unlink()
    experiment.resume(copy, Silent())
    assert (copy / "config.yaml").read_bytes() == before
    assert model_bytes(copy) == model_bytes(fedavg_run)


def test_a_quorum_edited_by_hand_is_noted_as_one_that_a_resume_is_given(half: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    tree = yaml.safe_load((out / "config.yaml").read_text())
    tree["engine"]["min_reply_fraction"] = 0.25
    (out / "config.yaml").write_text(yaml.safe_dump(tree))
    experiment.resume(out, Silent(), ("engine.max_abandoned_rounds=9",))
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    (noted,) = [event for event in events if event["event"] == "adjusted"]
    assert noted["engine.min_reply_fraction"] == {"from": 0.5, "to": 0.25} and noted["engine.max_abandoned_rounds"] == {
        "from": 5,
        "to": 9,
    }
    experiment.resume(out, Silent())  # the new values are the run's from now on
    lines = (out / "events.jsonl").read_text().splitlines()
    assert len([line for line in lines if '"adjusted"' in line]) == 1


def test_a_run_is_refused_without_what_it_was_begun_with_and_nothing_is_touched(copy: Path) -> None:
    (copy / provenance.BEGUN).unlink()
    path = copy / "config.yaml"
    path.write_text(edited(path.read_text()))
    before = every_byte(copy)
    with pytest.raises(RecipeError) as error:
        experiment.resume(copy, Silent())
    assert error.value.where == str(copy / provenance.BEGUN)
    assert every_byte(copy) == before


@pytest.mark.parametrize("pattern", ["checkpoints", "checkpoints/[0-9]*"])
def test_a_finished_run_without_checkpoints_is_not_trained_over_its_results(
    pattern: str, fedavg_run: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(fedavg_run, tmp_path / "run"))
    for folder in list(out.glob(pattern)):
        shutil.rmtree(folder)
    before = every_byte(out)
    with pytest.raises(RecipeError, match="begun.json: missing|checkpoints are gone"):
        experiment.resume(out, Silent())
    assert every_byte(out) == before


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: "",
        lambda text: "[]",
        lambda text: '{"recipe": {"lr": 1}, "code": {}}',
        lambda text: text.replace('"lr": 0.05', '"lr": 0.5'),
        lambda text: re.sub(r',\s*"sha256": "\w+"', "", text),
    ],
    ids=["emptied", "a list", "no recipe", "edited", "without its digest"],
)
def test_a_record_that_cannot_be_read_is_named(edit: Callable[[str], str], half: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    path = out / provenance.BEGUN
    before = path.read_text()
    path.write_text(edit(before))
    assert path.read_text() != before
    with pytest.raises(RecipeError) as error:
        experiment.resume(out, Silent())
    assert error.value.where == str(path)


BEGINNING = 7
"""What a run writes before its lock: two folders, two files, each of them written and then renamed, and the lock's
folder."""


@pytest.mark.parametrize("point", range(BEGINNING + 1))
def test_a_run_that_was_killed_as_it_began_begins_again(
    point: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, recipe, writes = tmp_path / "run", tiny(), itertools.count()

    def until_killed(call: Callable[..., Any], path: Path, *about: Any, **options: Any) -> Any:
        if path.is_relative_to(out) and next(writes) == point:
            if call.__name__ == "write_text":
                call(path, about[0][: len(about[0]) // 2], **options)
            raise Stop
        return call(path, *about, **options)

    with monkeypatch.context() as patch:
        for call in (Path.mkdir, Path.rename, Path.write_text):
            patch.setattr(Path, call.__name__, functools.partialmethod(functools.partial(until_killed, call)))
        stopped(out, NeverBegins())
    assert (out / "run.lock").exists() == (point == BEGINNING)
    with pytest.raises(Stop):
        if (out / "config.yaml").exists():
            experiment.resume(out, NeverBegins())
        else:
            experiment.run(recipe, out, NeverBegins())
    assert provenance.recipe_of(out).digest() == recipe.digest()


def test_what_reads_a_run_beside_a_resume_refuses_a_changed_recipe_too(fedavg_run: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(fedavg_run, tmp_path / "run"))
    (out / "config.yaml").write_text(edited((out / "config.yaml").read_text()))
    with pytest.raises(RecipeError, match="local.lr was 0.05"):
        export_client(out, "silo-00", tmp_path / "own")


# --- the code of the method -------------------------------------------------------------------------------------------


@pytest.fixture
def damped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a method of one's own, of which a run was stopped after a checkpoint."""
    written_method.method(tmp_path, monkeypatch)
    stopped(tmp_path / "run", method="damped")
    return tmp_path / "damped.py"


def test_a_method_that_was_changed_does_not_go_on_unasked(damped: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    damped.write_text(damped.read_text() + "\n# changed\n")
    before = every_byte(out)
    with pytest.raises(RecipeError, match=r" damped \(.*--changed-code"):
        experiment.resume(out, Silent())
    assert every_byte(out) == before
    refused = invoked("resume", out, "rounds=99", "--changed-code", "--quiet")
    assert refused.exit_code == 1 and every_byte(out) == before  # nothing is taken of a resume that is refused
    resumed = invoked("resume", out, "--changed-code", "--quiet")
    assert resumed.exit_code == 0, resumed.exception
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    (noted,) = [event for event in events if event["event"] == "adjusted"]
    assert list(noted["code"]) == ["damped"]
    assert noted["code"]["damped"]["to"] == hashlib.sha256(damped.read_bytes()).hexdigest()
    experiment.resume(out, Silent())  # it is the run's code from now on


def test_a_run_without_a_finished_round_takes_the_mended_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, train = tmp_path / "run", "loss, learner = learn("
    written_method.method(tmp_path, monkeypatch, train, f"common.backbne\n        {train}")
    with pytest.raises(RunFailed):
        experiment.run(tiny(method="damped"), out, Silent())
    written_method.method(tmp_path, monkeypatch)
    experiment.resume(out, Silent())
    assert (out / "summary.json").exists()


def test_a_method_whose_source_is_not_there_goes_on_unchecked(damped: Path, tmp_path: Path) -> None:
    damped.unlink()
    experiment.resume(tmp_path / "run", Silent())


def test_another_class_under_the_methods_name_is_told(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = provenance.code_of(written_method.method(tmp_path, monkeypatch).Damped())
    assert "coalface.methods.fedavg" in provenance.changed_code(provenance.begun_with(half).code, current)


def test_what_it_imports_from_beside_its_file_is_a_methods_own_code_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for path, text in {
        "rate_of_mine.py": "RATE = 0.5\n",  # a number knows no module
        "late_of_mine.py": "import json\nfrom parts_of_mine.deep import inner\n",
        "parts_of_mine/__init__.py": "raise RuntimeError('nobody imports this to find its source')\n",
        "parts_of_mine/deep/__init__.py": "from . import inner\nfrom ..other import LIST\n",
        "parts_of_mine/deep/inner.py": "",
        "parts_of_mine/other.py": "LIST = [1]\n",
        "parts_of_mine/unused.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    module = written_method.method(
        tmp_path,
        monkeypatch,
        "from typing import ClassVar\n",
        "from typing import ClassVar\n\nfrom rate_of_mine import RATE\n\n\ndef late():\n    import late_of_mine\n",
    )
    code = provenance.code_of(module.Damped())
    of_method = {name for name in code if not name.startswith("coalface.")}
    deep = {"parts_of_mine.deep", "parts_of_mine.deep.inner", "parts_of_mine.other"}
    assert of_method == {"damped", "rate_of_mine", "late_of_mine", *deep} and "coalface.training.local_training" in code
    assert not [name for name in code if name.startswith(("coalface.core.method", "coalface.engine"))]
    assert not {"late_of_mine", "parts_of_mine"} & sys.modules.keys()
    (tmp_path / "rate_of_mine.py").write_text("RATE = 0.25\n")
    assert provenance.changed_code(code, provenance.code_of(module.Damped())) == ["rate_of_mine"]
    (tmp_path / "late_of_mine.py").write_text("def broken(:\n")
    assert "late_of_mine" in provenance.changed_code(code, provenance.code_of(module.Damped()))


@pytest.mark.parametrize("name", METHODS)
def test_all_that_a_method_uses_of_the_methods_and_their_training_is_its_code(name: str) -> None:
    """Followed by what the modules hold, where the product follows the imports in their sources."""
    code = provenance.code_of(METHODS[name]())
    used, pending = set(), [METHODS[name].__module__]
    while pending:
        module = pending.pop()
        if module in used or not module.startswith(provenance.SHARED):
            continue
        if hasattr(sys.modules[module], "__path__"):
            continue  # a folder, which holds no code
        used.add(module)
        pending += [str(getattr(value, "__module__", "")) for value in vars(sys.modules[module]).values()]
    assert used <= code.keys() and len(code) < 25


def test_the_loss_that_a_recipe_names_is_part_of_its_methods_code() -> None:
    plain, adaface = (provenance.code_of(tiny(loss={"name": name}).build_method()) for name in ("cosface", "adaface"))
    assert adaface.keys() - plain.keys() == {"coalface.training.losses.adaface"}


# --- the code of a pre-training ---------------------------------------------------------------------------------------


class StopsIn(Silent):
    """Ends the run of a name after its first round."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def round(self, record: Any) -> None:
        if self.started[-1][0] == self.name:
            raise Stop


def test_a_pretraining_is_used_by_the_code_alone_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    written_method.method(tmp_path, monkeypatch)
    source, start = tmp_path / "damped.py", {"pretrain": {"method": "damped", "rounds": 1}}
    stopped(tmp_path / "half", StopsIn("tiny"), **start)
    view = Silent()
    experiment.run(tiny(**start, name="kept"), tmp_path / "kept", view)
    assert [name for name, _, _ in view.started] == ["kept"]

    source.write_text(source.read_text() + "\n# changed\n")
    with pytest.raises(RecipeError, match=r" damped \("):
        experiment.resume(tmp_path / "half", Silent())  # it began from the model of the other code
    stopped(tmp_path / "anew", StopsIn("tiny-pretrain"), **start)
    source.write_text(source.read_text() + "\n# changed again\n")
    again = Silent()
    experiment.run(tiny(**start), tmp_path / "again", again)  # what the code between has begun is left alone
    assert again.started == [("tiny-pretrain", 1, 0), ("tiny", 2, 0)]


def test_a_pretraining_that_cannot_go_on_says_how_it_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    start = {"pretrain": {"method": "centralized", "rounds": 1}}
    stopped(tmp_path / "half", StopsIn("tiny-pretrain"), **start)
    (record,) = (tmp_path / "cache").glob(f"pretrained/*/{provenance.BEGUN}")
    record.unlink()
    with pytest.raises(RecipeError, match=r"begun\.json: missing.* `coalface cache clear pretrained`"):
        experiment.run(tiny(**start), tmp_path / "run", Silent())
    cleared = invoked("cache", "clear", "pretrained")
    assert cleared.exit_code == 0 and "removed 1 pre-trained model" in cleared.output
    experiment.run(tiny(**start), tmp_path / "run", Silent())
