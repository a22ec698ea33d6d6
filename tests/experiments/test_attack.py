"""`coalface attack`: a run is replayed bit by bit under an attacker, and cells are kept beside their defences."""

from __future__ import annotations

import dataclasses
import inspect
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyruns
import torch
from commands import outputs
from safetensors.torch import load_file
from tinyruns import Silent, tiny
from typer.testing import CliRunner

from coalface.cli import main
from coalface.core.checks import UnknownKey
from coalface.core.errors import DataError, RecipeError
from coalface.core.method import Models
from coalface.engine.party.request import StepFailed
from coalface.engine.transport import Reply
from coalface.experiments.attacks import measure
from coalface.experiments.attacks.base import Attack, Exchange, Outcome
from coalface.experiments.attacks.cells import Cell, append_cell, read_cells, table
from coalface.experiments.attacks.linkage import Linkage
from coalface.experiments.attacks.replay import replay
from coalface.models.embedding import embed
from coalface.training.bch_codes import BCH, Codebook

DEVICES: dict[str, Any] = {
    "method": "fedfv",
    "methods": {"fedfv": {"sample": 2, "equivalents": 5}},
    "data": {"scenario": "devices", "test": {"images": 1}},
}


class Looking(Attack):
    """Keeps what it sees."""

    def __init__(self, run: Any, seed: int) -> None:
        super().__init__(run, seed)
        self.seen: list[Exchange] = []

    def watch(self, exchange: Exchange) -> None:
        self.seen.append(exchange)

    def outcomes(self, models: Models) -> list[Outcome]:
        return []


class Silencing(Looking):
    """Takes the first party's reply away."""

    def lie(self, exchanges: Sequence[Exchange]) -> Mapping[str, Reply]:
        return {"silo-00": StepFailed("silenced")}


def test_a_replay_leaves_the_bytes_of_the_run_and_shows_every_message(tmp_path: Path) -> None:
    out = tinyruns.run(tmp_path / "run")
    attack, models = replay(tiny(), Looking, Silent())
    kept = load_file(out / "model" / "backbone.safetensors")
    assert models.shared is not None and all(torch.equal(kept[name], t) for name, t in models.shared.items())
    assert isinstance(attack, Looking)
    assert [(e.request.round, e.request.party) for e in attack.seen] == [
        (number, party) for number in (1, 2) for party in ("silo-00", "silo-01")
    ]
    last = [e for e in attack.seen if e.request.round == 2]
    total = sum(e.reply.images for e in last)
    for name, tensor in models.shared.items():  # the weights that passed are those that were averaged
        if tensor.is_floating_point():
            mean = sum(e.reply.backbone[name].double() * e.reply.images for e in last) / total
            torch.testing.assert_close(tensor.double(), mean, rtol=0, atol=1e-6)
            before = last[0].sent[0].backbone[name]
            assert last[0].update is not None
            torch.testing.assert_close(last[0].update[name], last[0].reply.backbone[name] - before)


def test_what_secure_sums_hide_is_hidden_from_the_attacker() -> None:
    changes = {"privacy": {"secure": {"dropouts": 0, "corrupt": 0}}, "data": {"partition": {"parties": 3}}}
    attack, _ = replay(tiny(**changes), Looking, Silent())
    assert isinstance(attack, Looking) and attack.seen
    assert all(exchange.reply is None and exchange.update is None for exchange in attack.seen)


def test_an_attacker_that_lies_changes_what_the_server_has() -> None:
    view = Silent()
    attack, _ = replay(tiny(engine={"on_error": "exclude"}), Silencing, view)
    assert isinstance(attack, Looking)
    assert all(record["failed"] == {"silo-00": "silenced"} for record in view.rounds)


def test_the_command_keeps_its_cells_and_goes_on(tmp_path: Path) -> None:
    recipe, out = tinyruns.write(tmp_path / "recipe.yaml", **DEVICES), tmp_path / "attack"
    command = ["attack", str(recipe), "--kind", "linkage", "--out", str(out), "--seed", "3", "--quiet"]
    outputs(*command)
    cells = (out / measure.CELLS).read_bytes()
    printed, _ = outputs(*command, "--defence", "privacy.templates.noise_multiplier=50")
    assert (out / measure.CELLS).read_bytes().startswith(cells)  # the first cell was not computed anew
    lines = [json.loads(line) for line in (out / measure.CELLS).read_text().splitlines()]
    assert [(line["seed"], line["defence"]) for line in lines] == [
        (3, "none"),
        (3, "privacy.templates.noise_multiplier=50"),
    ]
    other_people = {**DEVICES, "data": DEVICES["data"] | {"faces": {"seed": 3}}}
    attack, models = replay(tiny(seed=3, **other_people), Linkage, Silent())
    open_, noised = ([Outcome(**outcome) for outcome in line["outcomes"]] for line in lines)
    assert open_ == attack.outcomes(models) != noised
    written = (out / measure.TABLE).read_text()
    assert "| others, by the client: parts assigned by other photographs, % (" in written
    assert written.strip() in printed


@pytest.mark.parametrize(("method", "equivalents"), [("fedfv", 60), ("fedfv", 2), ("fedface", None)])
def test_linkage_has_the_people_of_every_round_that_a_loop_has(method: str, equivalents: int | None) -> None:
    """The stage's beginning has an ordinal too, which is no round. Class embeddings come back from many rows alone."""

    class Keeping(Looking, Linkage):
        def watch(self, exchange: Exchange) -> None:
            Looking.watch(self, exchange)
            Linkage.watch(self, exchange)

        outcomes = Linkage.outcomes

    settings = {"sample": 2} | ({"equivalents": equivalents} if equivalents else {})
    changes = DEVICES | {"method": method, "methods": {method: settings}}
    attack, models = replay(tiny(rounds=4, **changes), Keeping, Silent())
    assert isinstance(attack, Keeping)
    run, others, hits = attack.run, attack.run.test_images, []
    assert others is not None and len(others) == 8
    for exchange in attack.seen:
        if (backbone := getattr(exchange.sent[0], "backbone", None)) is not None:
            run.data.backbone.load(backbone)
            cosines = embed(run.data.backbone.module, others) @ exchange.reply.centre[0].numpy()
            (name,) = run.data.data[exchange.request.party].names
            hits.append(others.names[others.labels[cosines.argmax()]] == name)
    if equivalents:  # the class embeddings of those who were never asked tell of nobody, and do not count
        asked = {exchange.request.party for exchange in attack.seen if hasattr(exchange.sent[0], "backbone")}
        assert models.class_embeddings is not None and len(asked) < len(run.data.data)
        kept = {name: row if name in asked else -row for name, row in models.class_embeddings.items()}
        models = dataclasses.replace(models, class_embeddings=kept)
    outcomes, found = attack.outcomes(models), "people found by other photographs, %"
    assert Outcome("centre", "server", found, 100 * np.mean(hits), 12.5, 4 * 2) in outcomes
    assert any(row.target == "backbone" and row.figure == found and row.value > row.chance for row in outcomes)
    of_others = [row for row in outcomes if row.target == "others"]
    assert len(of_others) == (10 if equivalents else 0)
    if equivalents:
        parts, by_one, one_named, one_by_seed, together, _, together_by_seed, by_all, named, all_by_seed = of_others
        assert (parts.trials, by_one.trials, one_by_seed.trials) == (4, 5, 5)
        assert {row.trials for row in (together, together_by_seed, by_all, all_by_seed)} == {1}
        assert parts.chance == pytest.approx(100 * 2 / 6) and by_one.value < 50  # two of the six who were not asked
        assert (parts.value > 40) == (together.value == by_all.value == 100) == (equivalents == 60)
        assert one_by_seed.value >= by_one.value and one_by_seed.value > one_named.value or equivalents == 2
        assert one_named.value <= by_one.value and named.value <= by_all.value and named.chance == 12.5
        assert (named.value > 0) == (equivalents == 60)
        assert together_by_seed.value == all_by_seed.value == 100
        assert all_by_seed.chance < 100


def test_nothing_is_restored_of_class_embeddings_with_noise() -> None:
    """What they were before it never leaves, so that nobody could count."""
    noise = {"privacy": {"templates": {"noise_multiplier": 1.0}}}
    attack, models = replay(tiny(rounds=2, **DEVICES, **noise), Linkage, Silent())
    assert not any("restored" in outcome.figure for outcome in attack.outcomes(models))


def test_linkage_reads_codewords_that_clients_keep_over_rounds() -> None:
    changes = DEVICES | {"method": "feduv", "methods": {"feduv": {"sample": 3, "length": 127}}}
    attack, models = replay(tiny(rounds=4, **changes), Linkage, Silent())
    bits = next(outcome for outcome in attack.outcomes(models) if outcome.target == "codeword")
    known = Codebook(BCH(127, 64), 8).user_bits
    assert bits.trials == 4 * 3 and bits.value > 99
    assert bits.chance == pytest.approx(100 * (known + (127 - known) / 2) / 127)


def test_an_update_of_nothing_tells_no_codeword() -> None:
    changes = DEVICES | {"method": "feduv", "methods": {"feduv": {"sample": 3, "length": 127}}}
    attack, models = replay(tiny(rounds=2, local={"lr": 1e-30}, **changes), Linkage, Silent())
    assert next(outcome for outcome in attack.outcomes(models) if outcome.target == "codeword").value < 80


@pytest.mark.parametrize("noise", [None, 50.0])
@pytest.mark.parametrize(("method", "data"), [("fedface", {"scenario": "devices"}), ("fedface-multi", {})])
def test_templates_find_their_people_by_the_photographs_they_were_made_of_and_none_with_much_noise(
    method: str, data: dict[str, Any], noise: float | None
) -> None:
    """One person a client, and two silos of four."""
    changes: dict[str, Any] = {"method": method, "data": data}
    privacy = {"privacy": {"templates": {"noise_multiplier": noise}}} if noise else {}
    attack, models = replay(tiny(rounds=1, **changes, **privacy), Linkage, Silent())
    by_template = next(outcome for outcome in attack.outcomes(models) if outcome.target == "centre")
    assert by_template.trials == 8 and by_template.chance == pytest.approx(100 / 8)
    assert by_template.value < 50 if noise else by_template.value > 85


def test_a_table_has_means_ranges_and_chance_and_why_a_cell_is_missing() -> None:
    def cell(seed: int, value: float, chance: float = 10.0, defence: str = "none") -> Cell:
        outcome = Outcome("centre", "server", "found, %", value, chance, 5)
        return Cell("a", f"{defence}{seed}", "linkage", '{"k": 2}', defence, seed, (outcome,))

    refused = Cell("a", "r", "linkage", '{"k": 2}', "secure", 0, refused="no templates leave")
    cells = [cell(0, 40.0), cell(1, 60.0), refused, cell(0, 12.0, 20.0, "noise")]
    refusal = "\nsecure: no templates leave"
    assert list(table(cells)) == [
        "`coalface attack a --kind linkage --option k=2`, seeds 0, 1; chance in brackets:",
        "",
        "|  | centre, by the server: found, % (5 trials) |",
        "|---|---:|",
        "| none | 50.0 (40.0 to 60.0) [10.0] |",
        "| secure | – |",
        "| noise | 12.0 [20.0], seed 0 |",
        refusal,
        "",
    ]
    by_seed = [cell(seed, 50.0, chance) for seed, chance in enumerate([10.0, 10.0, 13.0])]
    assert (
        list(table(by_seed))[-2]
        == "| centre, by the server: found, % (5 trials) | 50.0 (50.0 to 50.0) [11.0 (10.0 to 13.0)] |"
    )
    more = Outcome("codes", "client", "bits, %", 70.0, 53.0, 9)
    wide = dataclasses.replace(cells[0], outcomes=(*cells[0].outcomes, more, dataclasses.replace(more, target="rows")))
    fewer = dataclasses.replace(cells[1], outcomes=(dataclasses.replace(more, trials=4, value=80.0),))
    assert list(table([wide, fewer]))[2:] == [
        "|  | none |",
        "|---|---:|",
        "| centre, by the server: found, % (5 trials) | 40.0 [10.0], seed 0 |",
        "| codes, by the client: bits, % (4 to 9 trials) | 75.0 (70.0 to 80.0) [53.0] |",
        "| rows, by the client: bits, % (9 trials) | 70.0 [53.0], seed 0 |",
        "",
    ]


def test_a_cell_that_a_kill_cut_off_is_computed_again_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path, cell = tmp_path / "cells.jsonl", Cell("a", "b", "linkage", "{}", "none", 0)
    append_cell(path, cell)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert list(read_cells(path)) == [cell] and path.read_bytes() == whole
    for damaged in (b"[]", b"{}", b'{"title": 1}', b"nothing", whole.strip().replace(b"{}", b"[]")):
        path.write_bytes(whole + damaged + b"\n" + whole)
        with pytest.raises(DataError, match="line 2"):
            list(read_cells(path))


def test_cells_of_an_earlier_version_of_an_attack_are_computed_anew(tmp_path: Path) -> None:
    recipe = tinyruns.write(tmp_path / "recipe.yaml", **DEVICES)
    command, path = ["attack", recipe, "--out", tmp_path / "a", "--quiet"], tmp_path / "a" / measure.CELLS
    printed, _ = outputs(*command)
    (line,) = path.read_text().splitlines()
    path.write_text(json.dumps(json.loads(line) | {"version": 0, "outcomes": []}) + "\n")
    assert outputs(*command)[0] == printed and len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("poisoning", "share=abc"),
        ("poisoning", "factor=big"),
        ("update-inversion", "iterations=-1"),
        ("membership", "parties=0"),
        ("membership", "party=1"),
        ("update-inversion", "judge=nowhere.onnx"),
        ("template-inversion", "judge=nowhere.onnx"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(kind: str, option: str, tmp_path: Path) -> None:
    recipe = tinyruns.write(tmp_path / "recipe.yaml", data={"test": {"images": 1}})
    command = ["attack", str(recipe), "--kind", kind, "--option", option, "--out", str(tmp_path / "a"), "--quiet"]
    error = CliRunner().invoke(main.app, command).exception
    assert isinstance(error, RecipeError) and error.where.startswith("--option")


def test_a_defence_that_is_no_recipe_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    recipe, out = tinyruns.write(tmp_path / "recipe.yaml", **DEVICES), tmp_path / "a"
    command = ["attack", str(recipe), "--defence", "privacy.secur=true", "--out", str(out), "--quiet"]
    assert isinstance(CliRunner().invoke(main.app, command).exception, UnknownKey) and not out.exists()


def test_a_table_without_a_figure_ends_with_status_1_and_says_why(tmp_path: Path) -> None:
    recipe = tinyruns.write(tmp_path / "recipe.yaml")
    command = ["attack", str(recipe), "--kind", "membership", "--out", str(tmp_path / "a"), "--quiet"]
    ended = CliRunner().invoke(main.app, command)
    assert ended.exit_code == 1 and "data.test.images" in ended.stdout


def test_the_help_names_every_kind_and_every_option() -> None:
    said = " ".join(CliRunner().invoke(main.app, ["attack", "--help"]).stdout.split())
    for kind in measure.KINDS:
        options = inspect.signature(measure.attack_of(kind)).parameters.keys() - {"run", "seed"}
        assert kind in said and all(option in said for option in options)


def test_a_run_that_is_not_finished_is_said_to_lack_the_model_that_is_attacked(tmp_path: Path) -> None:
    out = tinyruns.run(tmp_path / "run", **DEVICES)
    shutil.rmtree(out / "model")
    assert "not finished" in outputs("attack", out, "--quiet")[1]


def test_a_run_is_attacked_with_its_own_recipe_and_a_changed_model_is_told(tmp_path: Path) -> None:
    out = tinyruns.run(tmp_path / "run", **DEVICES)
    assert "another model" not in outputs("attack", out, "--quiet")[1]
    assert (out / "attacks" / "linkage" / measure.TABLE).exists()
    shutil.rmtree(out / "attacks")
    shutil.rmtree(out / "model")
    shutil.copytree(tinyruns.run(tmp_path / "other", seed=1, **DEVICES) / "model", out / "model")
    assert "another model" in outputs("attack", out, "--quiet")[1]


def test_a_defence_that_the_method_cannot_have_is_said_in_the_table(tmp_path: Path) -> None:
    recipe = tinyruns.write(tmp_path / "recipe.yaml", **DEVICES)
    printed, _ = outputs("attack", recipe, "--out", tmp_path / "a", "--defence", "privacy.secure.dropouts=0", "--quiet")
    why = printed.strip().splitlines()[-1]
    assert why.startswith("privacy.secure.dropouts=0: ")


@pytest.mark.parametrize("text", ["rounds", "=3", "deep=3"])
def test_a_setting_that_is_none_of_the_attack_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(RecipeError):
        options = measure.read_options([text])
        measure.measure(lambda _: tiny(**DEVICES), "tiny", "linkage", tmp_path, Silent(), options=options)
