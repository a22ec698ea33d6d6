"""Recipes with differential privacy by party: what is refused, what a run and its dry run say, and what it leaves."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tinyruns
from commands import said
from markupsafe import escape
from tinyruns import Silent

from coalface.core.errors import RecipeError, RunError
from coalface.experiments import execution
from coalface.experiments import run as experiment
from coalface.experiments.export import card
from coalface.experiments.plan import preflight, text
from coalface.experiments.prepare import prepare, round_policy
from coalface.experiments.recipe import loader
from coalface.privacy import noise
from coalface.privacy.accountant import Drawn, Mechanism, epsilon
from coalface.privacy.dp import AdaptiveClip, PartyPrivacy
from coalface.privacy.templates import TemplateNoise

DP = {"noise_multiplier": 2.0}


def private(dp: Any = DP, **changes: Any) -> Any:
    return tinyruns.tiny(privacy={"dp": dp}, **changes)


def test_a_recipe_says_how_parties_are_protected() -> None:
    assert tinyruns.tiny().dp is None and tinyruns.tiny(privacy={}).dp is None
    assert private().dp == PartyPrivacy(noise_multiplier=2.0)
    assert private({"clip": {"quantile": 0.3}}).dp == PartyPrivacy(clip=AdaptiveClip(quantile=0.3))
    for recipe in (private(), private({"clip": {"quantile": 0.3}})):
        assert loader.parse(recipe.resolved()) == recipe


def test_without_it_the_digest_is_as_it_was() -> None:
    assert loader.parse({"method": "fedavg"}).digest() == "34fc69168906b6ce"  # before there was a section `privacy`
    assert tinyruns.tiny(privacy={"dp": None}).digest() == tinyruns.tiny().digest() != private().digest()


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"privacy": {"dp": {"noise": 1.0}}}, "privacy.dp.noise"),
        ({"privacy": {"dp": {"clip": {"quantil": 0.5}}}}, "privacy.dp.clip.quantil"),
        ({"privacy": {"dp": {"clip": {"quantile": 2.0}}}}, "privacy.dp.clip.quantile"),
        ({"privacy": {"dp": {"clip": "much"}}}, "privacy.dp.clip"),
        ({"privacy": {"dp": {"delta": 2.0}}}, "privacy.dp.delta"),
        ({"pretrain": {"method": "centralized", "rounds": 1}}, "pretrain"),
    ],
)
def test_what_cannot_be_promised_is_refused(changes: Any, where: str) -> None:
    with pytest.raises(RecipeError) as caught:
        tinyruns.tiny(**loader.merged({"privacy": {"dp": DP}}, changes))
    assert caught.value.where == where


def test_a_pre_training_on_public_people_is_accepted() -> None:
    assert tinyruns.public_images(privacy={"dp": DP}).pretrain is not None


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"method": "solo"}, "privacy.dp"),
        ({"method": "centralized"}, "privacy.dp"),
        ({"model": {"name": "mobilefacenet"}}, "privacy.dp"),
        ({"privacy": {"dp": {"noise_multiplier": 0.1, "target_epsilon": 1.0}}}, "privacy.dp.target_epsilon"),
        ({"engine": {"client_batch": "auto"}}, "engine.client_batch"),
        ({"engine": {"client_batch": 64}}, "engine.client_batch"),
        ({"privacy": {"countersign": True}}, "privacy.countersign"),
        ({"engine": {"max_update_norm": 5.0}}, "engine.max_update_norm"),
        (
            {"methods": {"fedavg": {"sample": 1}}, "engine": {"min_reply_fraction": 0.9}},
            "engine.min_reply_fraction",
        ),
        ({"engine": {"max_share": 0.5}}, "engine.max_share"),
        ({"engine": {"oversized": "clip"}}, "engine.oversized"),
        ({"method": "solo", "engine": {"client_batch": 64, "max_share": 0.5}}, "privacy.dp"),
    ],
)
def test_a_run_is_refused_before_it_begins(changes: Any, where: str) -> None:
    recipe = tinyruns.tiny(**loader.merged({"privacy": {"dp": DP}}, changes))
    for begin in (preflight.check, lambda r: prepare(r, Silent(), experiment.run, elsewhere=False)):
        with pytest.raises(RecipeError) as caught:
            begin(recipe)
        assert caught.value.where == where


@pytest.mark.parametrize("package", ["dp_accounting", "cryptography.hazmat.primitives.ciphers"])
def test_what_is_not_installed_is_told_before_a_run(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RecipeError, match=r"pip install 'coalface\[privacy\]'"):
        preflight.describe(private({"noise_multiplier": 2.345}))


def test_a_dry_run_tells_epsilon_and_how_many_rounds_fit() -> None:
    target = epsilon({Mechanism(2.0): 5}, 1e-5) + 1e-6
    recipe = private(DP | {"target_epsilon": target}, rounds=9)
    planned = preflight.as_dict(recipe)["privacy"]
    assert planned == {"epsilon": epsilon({Mechanism(2.0): 5}, 1e-5), "delta": 1e-5, "rounds": 5}
    assert "after 5 rounds, where target_epsilon=" in preflight.describe(recipe)
    assert "not protected from the server" in preflight.describe(recipe)


def one_each(templates: Any, **changes: Any) -> Any:
    """Four devices of a person each."""
    base = {"method": "fedface", "rounds": 3, "data": {"scenario": "devices"}, "privacy": {"templates": templates}}
    return tinyruns.tiny(**loader.merged(base, changes))


def test_templates_are_checked_before_a_run_and_a_dry_run_tells_what_they_cost() -> None:
    noise = TemplateNoise(noise_multiplier=3.0)
    told = preflight.describe(one_each({"noise_multiplier": 3.0}))
    assert f"ε = {noise.epsilon(1):.4g}" in told and f"{noise.epsilon(3):.4g} for a party" in told
    for recipe, where in (
        (tinyruns.tiny(privacy={"templates": {}}), "privacy.templates"),
        (one_each({"target_epsilon": 0.1}), "privacy.templates.target_epsilon"),
    ):
        with pytest.raises(RecipeError) as caught:
            preflight.check(recipe)
        assert caught.value.where == where
    with pytest.raises(RecipeError) as caught:
        one_each({"noise": 1.0})
    assert caught.value.where == "privacy.templates.noise"


def test_a_run_tells_what_its_templates_have_spent(tmp_path: Path) -> None:
    experiment.run(one_each({"noise_multiplier": 3.0}), tmp_path / "run", Silent())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["templates"]
    assert (summary["releases"], summary["epsilon"]) == (3, TemplateNoise(noise_multiplier=3.0).epsilon(3))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "ε, each template" in page and f"{summary['epsilon']:.2f}" in page
    assert f"privacy.templates: ε = {summary['epsilon']:.4g} at δ = 1e-05 after 3" in said("ledger", tmp_path / "run")


def test_a_card_and_the_console_name_the_noise_on_templates(tmp_path: Path) -> None:
    target = TemplateNoise(noise_multiplier=3.0).epsilon(2) + 1e-6
    recipe = one_each({"noise_multiplier": 3.0, "target_epsilon": target}, rounds=4)
    warning = "close to its person's mean feature but for its noise (z = 3, privacy.templates)"
    planned = preflight.plan(recipe)
    assert warning in text.messages_text(recipe, planned)
    plain = text.messages_text(one_each(None), planned)
    assert "mean feature" in plain and "but for its noise" not in plain
    experiment.run(recipe, tmp_path / "run", Silent())
    lines = (tmp_path / "run" / "model" / "README.md").read_text().splitlines()
    said_of_noise = (
        f"- privacy: ε by template = {target - 1e-6:.4g} at δ = 1e-05 after 2 releases, noise multiplier z = 3"
    )
    assert any(line.startswith(said_of_noise) for line in lines) and any(warning in line for line in lines)
    assert f"- method: fedface, 2 of 4 rounds, seed {recipe.seed}" in lines


@pytest.mark.parametrize("secure", [False, True])
def test_clipping_without_noise_is_nowhere_called_a_protection(secure: bool, tmp_path: Path) -> None:
    data = {"partition": {"parties": 3}}
    recipe = tinyruns.tiny(privacy={"dp": {"noise_multiplier": 0.0}, "secure": secure}, data=data, rounds=1)
    out = tmp_path / "run"
    experiment.run(recipe, out, Silent())
    card_text, page = (out / "model" / "README.md").read_text(), (out / "report.html").read_text()
    for told in (preflight.describe(recipe), said("ledger", out), card_text, page):
        assert "clipping alone protects nobody" in told
        for promise in ("is protected", "the server too", "is trusted", "ε by party", "not towards the server"):
            assert promise not in told


def sampled(sampling: str) -> dict[str, Any]:
    return {"noise_multiplier": 2.0, "sampling": sampling, "delta": 1e-2}


def test_a_dry_run_counts_draws_as_the_recipe_makes_them() -> None:
    settings = {"method": "fedavg", "methods": {"fedavg": {"sample": 1}}, "rounds": 4}
    for sampling in ("fixed", "poisson"):
        planned = preflight.as_dict(private(sampled(sampling), **settings))
        expected = epsilon({Mechanism(2.0, Drawn(sampling, 1, 2)): 4}, 1e-2)  # type: ignore[arg-type]
        assert planned["privacy"]["epsilon"] == expected > 0


def test_more_parties_a_round_than_there_are_are_told_with_their_key() -> None:
    changes: dict[str, Any] = {"data": {"scenario": "devices"}, "methods": {"feduv": {"sample": 10}}}
    with pytest.raises(RecipeError) as caught:
        preflight.describe(tinyruns.tiny(method="feduv", **changes))
    assert caught.value.where == "methods.feduv.sample"


def test_parties_with_their_own_images_are_bounded_by_the_clip_alone() -> None:
    policy = round_policy(private())
    assert policy.max_share is None


def test_a_run_tells_what_it_spent_in_its_summary_and_on_its_page(tmp_path: Path) -> None:
    target = epsilon({Mechanism(2.0): 2}, 1e-5) + 1e-6
    out = tmp_path / "run"
    experiment.run(private(DP | {"target_epsilon": target}, rounds=4), out, Silent())
    summary = json.loads((out / "summary.json").read_text())["privacy"]
    assert summary["epsilon"] == epsilon({Mechanism(2.0): 2}, 1e-5) and summary["noise"] == "seed"
    assert summary["ended"].startswith("after round 2 of 4")
    assert json.loads((out / "summary.json").read_text())["rounds"] == 2
    assert f"{summary['epsilon']:.2f}" in (out / "report.html").read_text() and not (out / noise.FILE).exists()
    page = (out / "report.html").read_text()
    assert "ε, each party" in page and "not towards the server" in page
    assert page.index(f"The run ended {escape(summary['ended'])}.") < page.index("Over the rounds")
    assert f"privacy.dp: ε = {summary['epsilon']:.4g} at δ = 1e-05 after 2 rounds" in said("ledger", out)
    said_on_card = (
        f"- privacy: ε by party = {summary['epsilon']:.4g} at δ = 1e-05, noise multiplier z = 2; it was simulated"
    )
    assert "- method: fedavg, 2 of 4 rounds, seed" in (out / "model" / "README.md").read_text()
    for lines in ((out / "model" / "README.md").read_text().splitlines(), card._of_run(out, None)):
        assert [line.startswith(said_on_card) for line in lines if "privacy" in line] == [True]
    spent = {"epsilon": summary["epsilon"], "delta": 1e-5, "rounds": 2}
    assert json.loads(said("ledger", out, "--json"))["privacy"] == {"dp": spent}


def test_a_federation_draws_its_noise_from_a_secret_that_the_seed_does_not_tell(tmp_path: Path) -> None:
    prepared = prepare(private(), Silent(), experiment.run, elsewhere=False)

    def server(out: Path) -> Any:
        out.mkdir(exist_ok=True)
        with execution.open_transport(prepared, out, None) as transport:
            return execution.make_server(prepared, out, transport, Silent(), simulated=False)

    first, second = server(tmp_path / "a"), server(tmp_path / "b")
    assert first.private.summary()["noise"] == "secret" and first.private.secret != second.private.secret
    assert server(tmp_path / "a").private.secret == first.private.secret == (tmp_path / "a" / noise.FILE).read_bytes()
    assert first.stream("any").random() != second.stream("any").random()  # nor who is drawn
    first.run()
    (tmp_path / "a" / noise.FILE).unlink()
    with pytest.raises(RunError, match="is gone"):
        server(tmp_path / "a")
