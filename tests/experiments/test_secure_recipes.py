"""Recipes with secure sums: what is refused, what a dry run says, and what a run leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tinyruns
from commands import said
from tinyruns import Silent

from coalface.core.errors import RecipeError
from coalface.experiments import run as experiment
from coalface.experiments import summary
from coalface.experiments.plan import preflight
from coalface.experiments.prepare import round_policy
from coalface.experiments.recipe import loader
from coalface.experiments.report import page, runs
from coalface.privacy.secure import SecureSettings

THREE = {"data": {"partition": {"parties": 3}}}


def secure(value: Any = True, **changes: Any) -> Any:
    return tinyruns.tiny(**loader.merged({"privacy": {"secure": value}, **THREE}, changes))


def test_a_recipe_switches_it_on_or_says_how() -> None:
    assert tinyruns.tiny().secure is None and secure(False).secure is None
    assert secure().secure == SecureSettings()
    assert secure({"clip": {"*": 2.0}}).secure == SecureSettings(clip={"*": 2.0})
    for recipe in (secure(), secure({"most_images": 7})):
        assert loader.parse(recipe.resolved()) == recipe
    assert tinyruns.tiny(privacy={"secure": None}).digest() == tinyruns.tiny().digest() != secure().digest()


def test_a_key_below_says_more_of_what_is_switched_on(tmp_path: Path) -> None:
    recipe = tinyruns.write(tmp_path / "recipe.yaml", **THREE)
    loaded = loader.load(recipe, ["privacy.secure=true", "privacy.secure.dropouts=0.34"])
    assert loaded.secure == SecureSettings(dropouts=0.34)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"privacy": {"secure": {"drop": 0.1}}}, "privacy.secure.drop"),
        ({"privacy": {"secure": {"dropouts": 2}}}, "privacy.secure.dropouts"),
        ({"privacy": {"secure": "yes"}}, "privacy.secure"),
        ({"privacy": {"dp": {"clip": {"quantile": 0.5}}}}, "privacy.dp.clip"),
        ({"privacy": {"dp": {"sampling": "poisson"}}}, "privacy.dp.sampling"),
        ({"privacy": {"dp": {"sampling": "cyclic", "bands": 2}}}, "privacy.dp.bands"),
        ({"privacy": {"dp": {}, "secure": {"clip": 2.0}}}, "privacy.secure.clip"),
        ({"privacy": {"dp": {}, "secure": {"fraction_bits": 9}}}, "privacy.secure.fraction_bits"),
        ({"engine": {"aggregator": {"name": "median"}}}, "engine.aggregator"),
        ({"engine": {"client_batch": "auto"}}, "engine.client_batch"),
        ({"engine": {"max_update_norm": 5.0}}, "engine.max_update_norm"),
        ({"engine": {"max_share": 0.5}}, "engine.max_share"),
        ({"engine": {"oversized": "clip"}}, "engine.oversized"),
        ({"engine": {"update_dtype": "int8"}}, "engine.update_dtype"),
        ({"faults": {"corrupt": {"silo-00": "nan"}}}, "faults.corrupt"),
        ({"pretrain": {"method": "centralized", "rounds": 1}}, "pretrain"),
    ],
)
def test_what_needs_single_replies_is_refused_by_its_key(changes: Any, where: str) -> None:
    with pytest.raises(RecipeError) as caught:
        preflight.describe(secure({}, **changes))
    assert caught.value.where == where


@pytest.mark.parametrize("changes", [{"engine": {"max_update_norm": 5.0}}, {"engine": {"client_batch": "auto"}}])
def test_of_a_method_without_secure_sums_no_setting_is_what_to_mend(changes: Any) -> None:
    with pytest.raises(RecipeError) as caught:
        preflight.describe(secure(method="centralized", **changes))
    assert caught.value.where == "privacy.secure"


def test_stages_that_fail_are_those_of_secure_sums() -> None:
    assert secure(faults={"stages": {"mask": 0.2}}).faults.stages == {"mask": 0.2}
    for wrong in ({"masks": 0.2}, {"mask": 2.0}):
        with pytest.raises(ValueError, match="faults.stages.mask"):
            secure(faults={"stages": wrong})
    with pytest.raises(RecipeError) as caught:
        tinyruns.tiny(faults={"stages": {"mask": 0.2}})
    assert caught.value.where == "faults.stages"


def test_no_bound_compares_replies_also_where_parties_bring_their_images() -> None:
    policy = round_policy(secure())
    assert policy.max_share is None and policy.aggregator is None


@pytest.mark.parametrize(
    ("changes", "where"),
    [({"data": {"partition": {"parties": 2}}}, "privacy.secure"), ({"method": "centralized"}, "privacy.secure")],
)
def test_what_shows_in_the_plan_is_refused_before_a_run(changes: Any, where: str) -> None:
    with pytest.raises(RecipeError) as caught:
        preflight.describe(secure(**changes))
    assert caught.value.where == where


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return experiment.run(secure(), tmp_path_factory.mktemp("secure") / "run", Silent())


def test_a_dry_run_says_neighbours_threshold_error_and_the_bytes_that_a_run_then_has(ran: Path) -> None:
    recipe = secure()
    text, plain = preflight.describe(recipe), preflight.as_dict(recipe)
    about = plain["secure"]["train"]
    assert (about["asked"], about["dropouts"], about["corrupt"]) == (3, 0, 1)
    assert (about["neighbours"], about["threshold"], about["bits"]) == (2, 3, 32)
    (line,) = [line for line in text.splitlines() if line.startswith("secure sums: of 3 parties asked")]
    assert "2 neighbours" in line and "32 bits" in line and f"{about['error']:.2g}" in line
    assert {record["sum_error"] for record in runs.read_metrics(ran)} == {about["error"]}
    about_run = json.loads((ran / "summary.json").read_text())
    assert about_run["bytes"] == plain["bytes"]


def test_a_dry_run_says_where_signatures_do_not_keep_the_server_from_telling_two_sets() -> None:
    (planned,) = preflight.plan(secure()).sums.values()
    assert "signatures" not in planned.sentence()
    assert "not all are neighbours" in replace(planned, asked=200).sentence()


def test_a_run_leaves_no_count_and_no_loss_of_a_party_at_the_server(ran: Path) -> None:
    about, records = json.loads((ran / "summary.json").read_text()), runs.read_metrics(ran)
    assert {(p["images"], p["identities"], p["last_loss"]) for p in about["parties"]} == {(None, None, None)}
    assert all(record["losses"] == {} and record["loss"] > 0 and record["sum_error"] > 0 for record in records)
    events, _ = runs.read_events(ran)
    assert not any("counts" in event for event in events)
    assert summary.trained(secure().build_method(), about, records) is None
    page.build(ran)
    report, card = (ran / "report.html").read_text(), (ran / "model" / "README.md").read_text()
    assert "- privacy: secure sums, so the server learned sums" in card and "a sum tells of the images" in card
    assert "a sum tells of the images" in report and "an update tells" not in report + card
    assert "<h2>Secure sums</h2>" in report and "What the method logged" not in report


def test_the_ledger_says_what_the_vector_is_a_sum_of(ran: Path) -> None:
    from coalface.experiments import ledger_summary, receipt_comparison

    read = ledger_summary.read_ledgers(ledger_summary.ledger_files(ran), contents=ledger_summary.contents_of(ran))
    rows = {row.name: row for row in read.rows}
    assert rows["vector"].content == "sum of weight, count, score" and rows["vector"].protection == "secure sum"
    assert rows["keys"].content == rows["header"].content == rows["vector"].rows == ""
    assert read.bytes == json.loads((ran / "summary.json").read_text())["bytes"]["up"]
    assert not receipt_comparison.compare_receipts(ran).faults


@pytest.mark.parametrize("z", [0.0, 2.0])
def test_a_clipped_vector_is_no_sum_of_counts_and_losses(tmp_path: Path, z: float) -> None:
    from coalface.experiments import ledger_summary

    experiment.run(secure({}, privacy={"dp": {"noise_multiplier": z}}, rounds=1), out := tmp_path / "run", Silent())
    read = ledger_summary.read_ledgers(ledger_summary.ledger_files(out), contents=ledger_summary.contents_of(out))
    assert {row.content for row in read.rows if row.name == "vector"} == {"sum of weight"}


def test_with_noise_in_shares_a_run_and_its_dry_run_promise_the_same_from_the_server_too(tmp_path: Path) -> None:
    dp = {"noise_multiplier": 2.0, "clip": 1.0, "target_epsilon": 4.0}
    recipe = secure({}, privacy={"dp": dp}, rounds=4)
    planned, told = preflight.as_dict(recipe)["privacy"], preflight.describe(recipe)
    assert "from the server too" in told and "2 shares of it are counted on" in told and "loss" not in sums_line(told)
    out = tmp_path / "run"
    experiment.run(recipe, out, Silent())
    summary = json.loads((out / "summary.json").read_text())["privacy"]
    assert summary["epsilon"] == pytest.approx(planned["epsilon"], rel=1e-9) and summary["noise"] == "seed"
    assert planned["rounds"] == summary["sums"] == 2 and summary["ended"].startswith("after round 2 of 4")
    assert "at δ = 1e-05, from the server too, noise multiplier z = 2" in (out / "model" / "README.md").read_text()
    assert "towards the server too" in (out / "report.html").read_text()
    ledger = said("ledger", out)
    assert f"privacy.dp: ε = {summary['epsilon']:.4g}" in ledger and "from the server too" in ledger
    assert "secure sum with noise" in ledger


def sums_line(told: str) -> str:
    (line,) = [line for line in told.splitlines() if "vector" in line and "under masks" in line]
    return line
