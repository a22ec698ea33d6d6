from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tinyruns
from commands import invoked
from hypothesis import given
from hypothesis import strategies as st

from coalface.core.errors import RecipeError
from coalface.core.names import LONGEST, check_name, is_plain, made_plain
from coalface.engine.party.context import ExecutorContext
from coalface.engine.party.service import PartyService, answer
from coalface.engine.transport import Member
from coalface.experiments.recipe import loader
from coalface.experiments.sweep import run as sweeping

HOSTILE = ["", ".", "..", "../..", "../../../x", "/x", "a/b", "a\\b", ".x", "a\0b", "a\nb", "\x1b[31m", "x" * 5_000]
HOSTILE += ["é" * 150, "\u202ex", "x" * 201, "-x"]
KEYS = {
    "name": lambda name: {"name": name},
    "evaluation.pairs": lambda name: {"evaluation": {"pairs": {name: {"pairs": 10}}}},
    "validators": lambda name: {"validators": {name: {"identities": 3}}},
    "data.faces.domains": lambda name: {"data": {"faces": {"domains": [name]}}},
    "data.partition.shares": lambda name: {"data": {"partition": {"kind": "shares", "shares": {name: 1.0}}}},
    "model.name": lambda name: {"model": {"name": name}},
    "method": lambda name: {"method": name},
    "data.source": lambda name: {"data": {"scenario": "domains", "source": name, "target": "b"}},
    "validators.v.validates": lambda name: {"validators": {"v": {"validates": name}}},
}
"""Keys of a recipe that are names, or hold names."""


@pytest.mark.parametrize("key", KEYS)
def test_no_key_of_a_recipe_takes_a_name_that_leads_elsewhere(key: str) -> None:
    for name in HOSTILE:
        with pytest.raises(RecipeError) as raised:
            loader.parse(KEYS[key](name))
        text = str(raised.value)
        assert text.startswith(key) and text.isprintable() and len(text) < 1_000, name


@pytest.mark.parametrize("name", ["unseen", "LFW (hard)", "李", "x" * 200, "é" * 100, "a.b-c", "x-"])
def test_a_run_and_its_lists_may_be_called_what_a_file_may_be(name: str) -> None:
    parsed = loader.parse({"name": name, "evaluation": {"pairs": {name: {"pairs": 10}}}})
    assert (parsed.name, *parsed.evaluation.pairs) == (name, name)


@pytest.mark.parametrize(
    ("name", "rule"),
    [(".x", "dot"), ("-x", "`-`"), ("a/b", "`/`"), ("a\nb", r"'\n'"), ("é" * 150, "300 bytes"), ("", "empty")],
)
def test_a_name_that_breaks_a_rule_is_refused_by_it(name: str, rule: str) -> None:
    with pytest.raises(ValueError, match=re.escape(rule)) as caught:
        check_name(name)
    assert str(caught.value).startswith(repr(name[:80])[:-1]) and "é" * 81 not in str(caught.value)


@pytest.mark.parametrize("tree", [{"x" * 5_000: 1}, {"local": {"x" * 5_000: 1}}, {"evaluation": {"x" * 5_000: 1}}])
def test_a_long_key_is_cut_where_it_is_named(tree: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"x{80}…") as caught:
        loader.parse(tree)
    assert "x" * 81 not in str(caught.value)


@pytest.mark.parametrize(
    "change", ["{}=1", "local.{}=1", "{}", "seed.{}=1", "seed={}", "{}=[", "{}=\udcff", "local.lr={}"]
)
def test_a_long_change_on_the_command_line_is_cut(change: str) -> None:
    with pytest.raises(RecipeError) as caught:
        loader.load(None, ["seed=1", change.format("x" * 5_000)])
    assert "x" * 201 not in str(caught.value)


@pytest.mark.parametrize("name", ["../../secret", "-x", ".x", "a\nb", "", "x" * 5_000], ids=ascii)
def test_a_party_on_the_command_line_is_called_as_parties_are(tmp_path: Path, name: str) -> None:
    """Where each party has its own model, a name leads to a file in the run's folder and to none elsewhere."""
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    (model / "model.json").write_text("{}")
    (tmp_path / "secret.safetensors").write_bytes(b"x")
    result = invoked("evaluate", tmp_path / "run", "--on", tmp_path, "--party", name)
    text = result.output + str(result.exception or "")
    assert result.exit_code == 1 and "not a plain name" in text and "x" * 81 not in text
    (tmp_path / "party.yaml").write_text("role: trainer\n")
    result = invoked("party", "check", tmp_path / "party.yaml", "--party", name)
    text = result.output + str(result.exception or "")
    assert result.exit_code == 1 and "cannot be the name of a party" in text and "x" * 81 not in text


@given(st.text() | st.text("./\\é\0", min_size=90))
def test_any_text_can_be_made_a_plain_name(text: str) -> None:
    plain_name = made_plain(text)
    assert is_plain(plain_name) and len(plain_name.encode()) <= LONGEST
    assert plain_name == text or not is_plain(text)


def test_a_cell_of_a_sweep_over_paths_has_a_name_that_it_can_go_on_with(tmp_path: Path) -> None:
    """A cell is called after its values, and values may be paths; its run is a recipe like any other."""
    path = tmp_path / "tiny.yaml"
    tinyruns.write(path, rounds=1)
    changes = ['evaluation.pairs.unseen.path="a/b","../c"']
    sweeping.sweep(path, changes, tmp_path / "sweep", tinyruns.Silent(), keep_runs=True)
    names = {loader.load(each).name for each in (tmp_path / "sweep").glob("runs/*/config.yaml")}
    assert names == {"tiny path=a_b", "tiny path=.._c"}


@pytest.mark.parametrize("field", ["base", "horizon", "accepted"])
def test_a_party_opens_no_commit_outside_of_its_folder(tmp_path: Path, field: str) -> None:
    """A server says which commit a party goes on from."""
    nobody: Any = None  # no step is run
    away = "../../elsewhere/0000001.000-0"
    values: dict[str, Any] = {
        "party": "a",
        "run": "run",
        "base": None,
        "horizon": [0, None],
        "accepted": None,
        **dict.fromkeys(("round", "rounds", "ordinal", "call"), 1),
    }
    values[field] = [0, away] if field == "horizon" else away
    service = PartyService("a", Member("trainer", 1, 1), ExecutorContext(nobody, nobody, tmp_path), "run")
    about = "settle" if field == "accepted" else "step"
    answered, _ = answer(lambda: service, about, values, {})
    assert answered == {"failed": "ValueError"}
