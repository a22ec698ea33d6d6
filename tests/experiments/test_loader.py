from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tinyruns import TINY, tiny

from coalface.core.errors import RecipeError
from coalface.experiments.recipe import loader, partitions, schema, sections, short_keys
from coalface.experiments.recipe.schema import FREE

JOINED = {"kind": "joined", "parts": {"lfw": {"kind": "folder", "path": "lfw"}, "made": {"kind": "synthetic"}}}


def fault(tree: dict[str, Any]) -> RecipeError:
    with pytest.raises(RecipeError) as raised:
        loader.parse(tree)
    assert str(raised.value).startswith(f"{raised.value.where}: ") and "\n" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("tree", "where", "near"),
    [
        ({"round": 3}, "round", "rounds"),
        (
            {"data": {"faces": {"kind": "joined", "parts": {"a": {"kind": "rec", "pth": "x"}}}}},
            "data.faces.parts.a.pth",
            "data.faces.parts.a.path",
        ),
        ({"local": {"epoch": 3}}, "local.epoch", "local.epochs"),
        ({"loss": {"name": "cosface", "margn": 0.3}}, "loss.margn", "loss.margin"),
        ({"method": "solo", "methods": {"fedprox": {"muu": 3}}}, "methods.fedprox.muu", "methods.fedprox.mu"),
        ({"pretrain": {"methd": "solo"}}, "pretrain.methd", "method"),
        ({"lr": 0.1}, "lr", "local.lr"),
        ({"parties": 3}, "parties", "data.partition.parties or evaluation.parties"),
        ({"fedprox": {"mu": 1}}, "fedprox", "methods.fedprox.mu"),
        ({"mu": 1}, "mu", "methods.fedprox.mu or methods.fednova.mu or methods.moon.mu"),
        ({"learning_rate": 1}, "learning_rate", "local.lr"),
        ({"method": "fedavgg"}, "method", "'fedavg'"),
        ({"loss": {"name": "cosfac"}}, "loss.name", "'cosface'"),
    ],
)
def test_an_unknown_key_or_name_at_every_level_offers_the_nearest(tree: dict[str, Any], where: str, near: str) -> None:
    error = fault(tree)
    assert error.where == where and f"did you mean {near}?" in str(error)


def test_several_values_are_said_to_be_a_sweep() -> None:
    with pytest.raises(RecipeError, match="`coalface sweep RECIPE seed=0,1,2`") as error:
        loader.load(None, ["seed=0,1,2"])
    assert error.value.where == "seed"


def test_a_short_key_of_another_method_is_offered_with_its_method() -> None:
    with pytest.raises(RecipeError, match="methods.fedprox.mu") as error:
        short_keys.full_key("mu", {"method": "fedavg"})
    assert error.value.where == "mu"


def test_what_is_near_nothing_is_offered_nothing() -> None:
    for tree in ({"zzz": 1}, {"method": "zzz"}, {"local": {"zzz": 1}}):
        assert "did you mean" not in str(fault(tree))
    keys = str(fault({"data": {"partition": {"x": 1}}})).partition("Known here: ")[2]
    assert keys == "kind, seed, parties"


@pytest.mark.parametrize("tree", [{"name": "b\udcff"}, {"data": {"exclude": ["x", "b\udcff"]}}])
def test_text_that_no_file_could_hold_is_refused_by_its_key(tree: dict[str, Any]) -> None:
    error = fault(tree)
    assert str(error).isprintable() and "b\\udcff is not UTF-8" in str(error)
    assert error.where == {"name": "name", "data": "data.exclude"}[next(iter(tree))]


def test_a_change_or_a_recipe_called_by_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r\udcff.yaml"
    path.write_text("{}")
    for file, changes in ((None, ["data.root=/b\udcff"]), (path, [])):
        with pytest.raises(RecipeError, match=r"\\udcff is not UTF-8"):
            loader.load(file, changes)


@pytest.mark.parametrize(
    ("tree", "where", "allowed"),
    [
        ({"rounds": "many"}, "rounds", "a whole number"),
        ({"local": {"lr": float("inf")}}, "local.lr", "finite numbers"),
        ({"methods": {"fedprox": {"mu": float("nan")}}}, "methods.fedprox.mu", "finite numbers"),
        ({"data": {"exclude": 3}}, "data.exclude", "a list, or keys with values"),
        ({"engine": {"on_error": "x"}}, "engine.on_error", "'stop' or 'exclude'"),
        ({"engine": {"client_batch": "x"}}, "engine.client_batch", "'auto', or a whole number"),
        ({"engine": {"min_reply_fraction": 2}}, "engine.min_reply_fraction", "1.0 or less"),
        ({"engine": {"flush_denormals": "maybe"}}, "engine.flush_denormals", "true or false"),
        ({"pretrain": {"rounds": 0}}, "pretrain.rounds", "1 or more"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_allowed(tree: dict[str, Any], where: str, allowed: str) -> None:
    error = fault(tree)
    assert error.where == where and str(error).endswith(f" is not allowed; use {allowed}")


@pytest.mark.parametrize(
    ("tree", "where"),
    [
        ({"local": {"lr": -1}}, "local.lr"),
        ({"pretrain": 3}, "pretrain"),
        ({"faults": {"slow": {"silo-00": 1.0}}}, "faults.slow"),  # without a deadline
        ({"evaluation": {"pairs": {"a": None}}}, "evaluation.pairs.a"),
        ({"loss": {"name": ["x"]}}, "loss.name"),
        ({"methods": {"fedavg": {"rounds": 3}}}, "methods.fedavg.rounds"),
        ({"data": {"faces": {"kind": "joined", "parts": {"a/b": {}}}}}, "data.faces.parts"),
    ],
)
def test_what_is_no_value_of_its_key_names_it(tree: dict[str, Any], where: str) -> None:
    assert fault(tree).where == where


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"data": {"faces": {"kind": "joined"}}}, "data.faces.parts: "),
        ({"data": {"faces": {"parts": {"a": {}}}}}, "data.faces.parts: "),
        (
            {"data": {"faces": {"kind": "joined", "parts": {"a": {"kind": "pack", "path": "x"}}}}},
            "data.faces.parts.a.kind: ",
        ),
        ({"data": {"faces": JOINED, "exclude": ["x.txt"]}}, "as `exclude: {lfw: [x.txt]}`"),
        ({"data": {"faces": JOINED, "exclude": {"lwf": []}}}, "data.exclude: 'lwf' is not known; did you mean 'lfw'?"),
        (
            {"data": {"faces": JOINED}, "evaluation": {"pairs": {"a": {"kind": "lfw", "path": "p"}}}},
            "evaluation.pairs.a.part: ",
        ),
        (
            {"data": {"faces": JOINED}, "evaluation": {"pairs": {"a": {"part": "made", "source": {}}}}},
            "evaluation.pairs.a: ",
        ),
        ({"evaluation": {"pairs": {"a": {"source": JOINED}}}}, "evaluation.pairs.a.source.kind: "),
    ],
)
def test_parts_of_a_joined_source_and_what_names_them_must_fit(tree: dict[str, Any], text: str) -> None:
    with pytest.raises(RecipeError) as refused:
        loader.parse(tree)
    assert text in str(refused.value)


def test_changes_take_dotted_keys_and_yaml_values(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("rounds: 5\nlocal: {lr: 0.1, batch_size: 8}\n")
    changes = ["local.lr=1e-3", "methods.fedavg.sample=4", "data.faces.domains=[studio, night]", "data.grey=false"]
    recipe = loader.load(path, [*changes, "evaluation.pairs.a.pairs=7", "data.max_identities="])
    assert (recipe.name, recipe.rounds) == ("mine", 5)
    assert (recipe.local.lr, recipe.local.batch_size) == (0.001, 8)
    assert recipe.build_method().sample == 4  # type: ignore[attr-defined]
    assert recipe.data.faces.domains == ("studio", "night")
    assert recipe.data.grey is False
    assert recipe.evaluation.pairs["a"].pairs == 7
    assert recipe.data.max_identities is None


def test_settings_of_a_method_hold_only_when_it_is_chosen() -> None:
    tree = {"methods": {"fedprox": {"mu": 0.5}}}
    assert loader.parse({**tree, "method": "fedprox"}).build_method().mu == 0.5  # type: ignore[attr-defined]
    assert loader.parse({**tree, "method": "solo"}).resolved()["methods"] == {"solo": {}}


@pytest.mark.parametrize("change", ["rounds", "local.lr=[1", "rounds.x=3", "local.lr.x=3"])
def test_a_change_that_is_none_says_so_in_one_line(tmp_path: Path, change: str) -> None:
    (tmp_path / "r.yaml").write_text("rounds: 5\nlocal: {lr: 0.1}\n")
    with pytest.raises(RecipeError) as refused:
        loader.load(tmp_path / "r.yaml", [change])
    assert "\n" not in str(refused.value)


def test_a_loss_and_a_model_are_given_by_their_name_alone(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("loss: {name: cosface, scale: 16}\nmodel: ir18\n")
    recipe = loader.load(tmp_path / "r.yaml", ["loss=arcface"])
    assert (recipe.model.name, recipe.resolved()["loss"]["name"], recipe.resolved()["loss"]["scale"]) == (
        "ir18", "arcface", 16.0
    )  # fmt: skip


def test_another_loss_leaves_behind_what_it_has_not_got(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("loss: {name: cosface, scale: 20.0, margin: 0.1}\n")
    resolved = loader.load(tmp_path / "r.yaml", ["loss.name=softmax"]).resolved()
    assert resolved["loss"] == {"name": "softmax", "scale": 20.0}
    assert loader.load(tmp_path / "r.yaml", ["loss.name=arcface"]).resolved()["loss"]["margin"] == 0.1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rounds: [1\n", "line 2, column 1"),
        ("engine: {workers: 1}\nrounds: 3\nengine: {block: 2}\n", "line 3, column 1: the key engine is given twice"),
        ("- 1\n", "a mapping of keys"),
        ("recipe: a.yaml\ngrids: [{seed: 0}]\n", "`coalface sweep"),
    ],
)
def test_faults_of_yaml_are_one_line_with_the_place(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as refused:
        loader.load(path)
    assert refused.value.where == str(path) and fault in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(RecipeError) as refused:
        loader.load(tmp_path / "none.yaml")
    assert refused.value.where == str(tmp_path / "none.yaml")


def test_an_empty_file_is_the_recipe_of_all_defaults(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("")
    assert loader.load(tmp_path / "r.yaml") == loader.parse({"name": "r"})


def test_resolved_is_complete_stable_and_resolves_to_itself() -> None:
    recipe = tiny(methods={"fedavg": {"sample": 2}}, faults={}, loss={"name": "arcface"}, pretrain={"rounds": 2})
    resolved = recipe.resolved()
    assert loader.parse(resolved).resolved() == resolved
    assert loader.parse(yaml.safe_load(yaml.safe_dump(resolved))).resolved() == resolved
    # defaults of the classes behind the recipe, not of the recipe itself
    assert {"momentum", "weight_decay"} <= resolved["local"].keys() and {"scale", "margin"} <= resolved["loss"].keys()
    assert resolved["methods"].keys() == {"fedavg"} and "momentum" in resolved["methods"]["fedavg"]
    for name in ("data", "model", "engine", "evaluation"):
        assert set(resolved[name]) == set(type(getattr(recipe, name)).model_fields)
    assert set(resolved) == set(schema.Recipe.model_fields)
    assert resolved["pretrain"] == {"rounds": 2}


def test_writing_out_a_default_changes_no_digest() -> None:
    assert tiny().digest() == tiny(local={"momentum": 0.9}, data={"min_images": 2}).digest()


def test_the_digest_is_what_it_was() -> None:
    """Cells of sweeps, and pre-trainings in caches, are found by it."""
    pretrain = {"method": "centralized", "rounds": 1, "loss": {"name": "cosface", "scale": 30}}
    assert tiny().digest() == "ac243ed88028cedf"
    assert tiny(pretrain=pretrain, methods={"fedavg": {"sample": 2}}).digest() == "84219d43353b9ee6"


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"method": "solo"},
        {"methods": {"fedavg": {"sample": 1}}},
        {"evaluation": {"pairs": {"unseen": {"pairs": 21}}}},
        {"engine": {"threads": 2}},
        {"engine": {"update_dtype": "int8"}},
        {"engine": {"processes_per_party": {"silo-00": 2}}},
        {"engine": {"aggregator": {"name": "median"}}},
        {"pretrain": {"method": "centralized"}},
    ],
)
def test_the_digest_changes_with_what_the_result_depends_on(changes: dict[str, Any]) -> None:
    assert tiny(**changes).digest() != tiny().digest()


def test_the_digest_does_not_change_with_name_root_or_workers() -> None:
    values = {
        "data.root": "/x",
        "evaluation.pictures": True,
        "engine.workers": 3,
        "engine.max_in_flight": 5,
        "engine.save_replies": False,
    }
    values |= {"engine.checkpoint_every": 4, "engine.keep_checkpoints": 5, "engine.trackers": "mlflow"}
    assert set(values) == set(FREE) - {"model.weights", "model.party"}  # of a file that is read
    tree: dict[str, Any] = {**TINY, "name": "other", "methods": {"solo": {}}}
    for key, value in values.items():
        tree = loader.with_value(tree, key, value)
    assert loader.parse(tree).digest() == tiny().digest()


def test_epochs_and_iterations_are_not_given_both() -> None:
    with pytest.raises(RecipeError) as refused:
        tiny(local={"epochs": 2, "steps_per_round": 3})
    assert refused.value.where == "local.epochs"
    recipe = tiny(local={"steps_per_round": 3})
    again = loader.parse(recipe.resolved())  # config.yaml has the default of the other as well
    assert again.digest() == recipe.digest() and again.resolved() == recipe.resolved()


def test_steps_in_all_say_how_many_rounds_there_are() -> None:
    local = {"steps_per_round": 3, "total_steps": 12}
    recipe = loader.parse({"local": local})
    assert (recipe.rounds, recipe.build_method().rounds) == (4, 4)  # type: ignore[attr-defined]
    assert fault({"local": local, "rounds": 5}).where == "rounds"


def test_pretraining_takes_what_both_must_share_and_is_else_a_recipe_of_its_own() -> None:
    recipe = tiny(pretrain={"method": "centralized", "rounds": 1, "loss": {"name": "softmax"}})
    inner = recipe.pretrain.recipe
    assert (inner.name, inner.method, inner.rounds, inner.pretrain) == ("tiny-pretrain", "centralized", 1, None)
    assert inner.data.model_copy(update={"partition": recipe.data.partition}) == recipe.data
    assert (inner.seed, inner.model, inner.evaluation.pairs) == (recipe.seed, recipe.model, recipe.evaluation.pairs)
    assert inner.resolved()["loss"] == {"name": "softmax", "scale": 64.0}
    assert inner.local == loader.parse({}).local != recipe.local
    changed = tiny(pretrain={"local": {"lr": 0.3}, "data": {"hold_out": 5, "partition": {"parties": 3}}})
    data = changed.pretrain.recipe.data
    assert changed.pretrain.recipe.local.lr == 0.3
    assert (data.hold_out, data.partition.parties, data.size) == (5, 3, 32)
    assert tiny(pretrain={"method": "fedavg"}).pretrain.recipe.data == tiny().data  # it is over the same parties


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"local": {"lr": 0.9}}, True),
        ({"method": "solo"}, True),
        ({"faults": {"dropout": 0.3}}, True),
        ({"evaluation": {"every": 1, "flip": True}}, True),
        ({"engine": {"min_reply_fraction": 0.9, "sum_block": 2, "workers": 2}}, True),
        ({"data": {"partition": {"kind": "dirichlet", "parties": 3}}}, True),
        ({"seed": 1}, False),
        ({"data": {"hold_out": 5}}, False),
        ({"evaluation": {"pairs": {"unseen": {"pairs": 21}}}}, False),
        ({"model": {"embedding_size": 64}}, False),
        ({"engine": {"autocast": "bfloat16"}}, False),
        ({"pretrain": {"rounds": 2}}, False),
    ],
)
def test_a_sweep_over_training_starts_from_one_pretraining(changes: dict[str, Any], same: bool) -> None:
    start = {"pretrain": {"method": "centralized", "rounds": 1}}
    inner = [tiny(**tree).pretrain.recipe for tree in (start, loader.merged(start, changes))]
    assert (inner[0].digest() == inner[1].digest()) is same


def test_runs_in_which_fewer_have_people_start_from_one_pretraining_and_all_is_none_named() -> None:
    data = {"side": "private", "scenario": "private-public", "private": {"identities": 12}}
    unnamed, everyone, fewer = (
        tiny(pretrain={"method": "centralized"}, data=loader.merged(data, {"private": {"assigned": assigned}}))
        for assigned in (None, 12, 4)
    )
    assert unnamed == everyone and unnamed.digest() == everyone.digest() != fewer.digest()
    assert len({recipe.pretrain.recipe.digest() for recipe in (unnamed, everyone, fewer)}) == 1


def test_the_data_root_comes_from_the_recipe_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_DATA", "/environment")
    assert loader.parse({"data": {"root": "/recipe"}}).root() == Path("/recipe")
    assert loader.parse({}).root() == Path("/environment")
    monkeypatch.delenv("COALFACE_DATA")
    with pytest.raises(RecipeError) as refused:
        loader.parse({}).root()
    assert refused.value.where == "data.root"


@pytest.mark.parametrize(
    ("changes", "where", "text"),
    [
        (["data.scenario=device"], "data.scenario", "did you mean 'devices'"),
        (["data.scenario=devices", "data.partition.parties=3"], "data.partition", "not a key of data.scenario=devices"),
        (["data.private={identities: 3}"], "data.private", "private-public has it"),
        (["data.scenario=private-public"], "data.private", "data.scenario=private-public needs it"),
        (["data.test={}"], "data.test.images", "missing"),
    ],
)
def test_a_scenario_has_keys_of_its_own(changes: list[str], where: str, text: str) -> None:
    with pytest.raises(RecipeError) as refused:
        loader.load(None, changes)
    assert refused.value.where == where and text in str(refused.value)


def test_another_scenario_keeps_the_keys_that_it_has_too() -> None:
    tree = {"data": {"size": 32, "partition": {"parties": 3}}}
    recipe = loader.parse(loader.with_value(tree, "data.scenario", "devices"))
    assert (recipe.data.size, recipe.partition) == (32, partitions.OneIdentity())


def test_another_kind_keeps_the_keys_that_it_has_too() -> None:
    changes = ["data.partition.parties=3", "data.partition.kind=dirichlet", "data.partition.alpha=2"]
    assert loader.load(None, changes).data.partition == partitions.Dirichlet(parties=3, alpha=2)
    tree: dict[str, Any] = {
        "data": {"partition": {"kind": "dirichlet", "parties": 3, "alpha": 2}, "faces": {"seed": 7}}
    }
    for key, value in (("partition.kind", "equal"), ("faces.path", "x"), ("faces.kind", "rec")):
        tree = loader.with_value(tree, f"data.{key}", value)
    recipe = loader.parse(tree)
    assert (recipe.data.partition, recipe.data.faces) == (partitions.Equal(parties=3), sections.Records(path="x"))
    before = {"pretrain": {"data": {"partition": {"kind": "shares", "shares": {"a": 1}}}}}
    inner = loader.parse(loader.merged(recipe.model_dump(mode="json"), before)).pretrain.recipe
    assert inner.data.partition == partitions.Shares(shares={"a": 1})


def test_a_change_that_a_later_one_drops_is_refused() -> None:
    with pytest.raises(RecipeError) as error:
        loader.load(None, ["data.partition.parties=3", "data.partition.kind=one-identity"])
    assert error.value.where == "data.partition.parties"


def test_an_unknown_kind_offers_the_nearest() -> None:
    error = fault({"data": {"partition": {"kind": "dirichlt"}}})
    assert error.where == "data.partition.kind" and "'dirichlet'" in str(error)
