from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from tinyruns import TINY, tiny

from coalface.core.errors import RecipeError
from coalface.core.yaml_text import parse_yaml
from coalface.experiments.recipe import loader, partitions, schema, sections
from coalface.experiments.recipe.schema import FREE

JOINED = {"kind": "joined", "parts": {"lfw": {"kind": "folder", "path": "lfw"}, "made": {"kind": "synthetic"}}}


def fault(tree: dict[str, Any]) -> str:
    with pytest.raises(RecipeError) as raised:
        loader.parse(tree)
    return str(raised.value)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"round": 3}, "round is not a key of a recipe; did you mean rounds?"),
        ({"data": {"hold_ut": 3}}, "data.hold_ut is not a key of a recipe; did you mean data.hold_out?"),
        ({"data": {"faces": {"identites": 3}}}, "did you mean data.faces.identities?"),
        ({"data": {"partition": {"partys": 3}}}, "did you mean data.partition.parties?"),
        ({"data": {"augment": {"flp": 3}}}, "did you mean data.augment.flip?"),
        ({"model": {"nam": "ir18"}}, "did you mean model.name?"),
        ({"engine": {"worker": 3}}, "did you mean engine.workers?"),
        ({"evaluation": {"evry": 3}}, "did you mean evaluation.every?"),
        ({"evaluation": {"pairs": {"a": {"pair": 3}}}}, "did you mean evaluation.pairs.a.pairs?"),
        ({"evaluation": {"pairs": {"a": {"source": {"kind": "rec", "pth": "x"}}}}}, "evaluation.pairs.a.source.path?"),
        ({"data": {"faces": {"kind": "joined", "parts": {"a": {"imges": 2}}}}}, "data.faces.parts.a.images?"),
        ({"data": {"partition": {"alpha": 1}}}, "data.partition.alpha is not a key of kind equal: dirichlet has it"),
        ({"data": {"faces": {"path": "x"}}}, "data.faces.path is not a key of kind synthetic: folder, rec, pack have"),
        ({"local": {"epoch": 3}}, "local.epoch is not a key of a recipe; did you mean local.epochs?"),
        ({"loss": {"name": "cosface", "margn": 0.3}}, "did you mean loss.margin?"),
        ({"methods": {"fedavg": {"smple": 3}}}, "did you mean methods.fedavg.sample?"),
        ({"method": "solo", "methods": {"fedprox": {"muu": 3}}}, "did you mean methods.fedprox.mu?"),
        ({"faults": {"drp": 3}}, "faults.drp is not a key of a recipe; did you mean faults."),
        ({"pretrain": {"methd": "solo"}}, "pretrain.methd is not a key of a recipe; did you mean method?"),
        ({"method": "fedavgg"}, "method: 'fedavgg' is not known; did you mean 'fedavg'?"),
        ({"methods": {"fedavgg": {}}}, "methods: 'fedavgg' is not known; did you mean 'fedavg'?"),
        ({"loss": {"name": "cosfac"}}, "loss.name: 'cosfac' is not known; did you mean 'cosface'?"),
    ],
)
def test_an_unknown_key_or_name_at_every_level_offers_the_nearest(tree: dict[str, Any], said: str) -> None:
    assert said in fault(tree)


@pytest.mark.parametrize("tree", [{"name": "b\udcff"}, {"data": {"exclude": ["x", "b\udcff"]}}, {"b\udcff": 1}])
def test_text_that_no_file_could_hold_is_refused_by_its_key(tree: dict[str, Any]) -> None:
    said = fault(tree)
    assert said.isprintable() and "b\\udcff is not UTF-8" in said
    assert said.startswith({"name": "name: ", "data": "data.exclude: "}.get(next(iter(tree)), "b"))


def test_a_change_or_a_recipe_called_by_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r\udcff.yaml"
    path.write_text("{}")
    for given, changes in ((None, ["data.root=/b\udcff"]), (path, [])):
        with pytest.raises(RecipeError, match=r"\\udcff is not UTF-8.*: rename the file or folder"):
            loader.load(given, changes)


def test_an_unknown_key_lists_what_is_known_beside_it() -> None:
    assert fault({"data": {"partition": {"x": 1}}}).endswith("Known here: kind, seed, parties")


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (
            {"rounds": "many"},
            "rounds: Input should be a valid integer, unable to parse string as an integer; got 'many'",
        ),
        ({"rounds": 0}, "rounds: Input should be greater than or equal to 1; got 0"),
        ({"local": {"lr": "fast"}}, "local.lr: Input should be a valid number"),
        ({"local": {"lr": -1}}, "local: local work needs lr > 0"),
        ({"data": None}, "data: a section with keys below it is needed, such as root, size, grey; got None"),
        (
            {"evaluation": {"pairs": {"a": None}}},
            "evaluation.pairs.a: a section with keys below it is needed, such as kind",
        ),
        ({"data": {"exclude": 3}}, "data.exclude: Input should be a valid tuple; got 3"),
        (
            {"evaluation": {"pairs": {"a": {"kind": "x"}}}},
            "evaluation.pairs.a.kind: Input should be 'lfw', 'all-pairs'",
        ),
        ({"loss": {"name": ["x"]}}, "loss.name: ['x'] is not known"),
        ({"methods": {"fedavg": {"rounds": 3}}}, "methods.fedavg.rounds: set it at the top of the recipe"),
        (
            {"engine": {"min_reply_fraction": 2}},
            "engine.min_reply_fraction: Input should be less than or equal to 1; got 2",
        ),
    ],
)
def test_a_value_of_the_wrong_type_names_its_key(tree: dict[str, Any], said: str) -> None:
    assert fault(tree).startswith(said)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"data": {"faces": {"kind": "joined"}}}, "data.faces.parts is missing"),
        ({"data": {"faces": {"parts": {"a": {}}}}}, "data.faces.parts is not a key of kind synthetic: joined has it"),
        (
            {"data": {"partition": {"kind": "dirichet"}}},
            "data.partition: unknown kind 'dirichet'; use one of equal",
        ),
        ({"data": {"partition": 3}}, "data.partition: a section with keys below it is needed"),
        (
            {"data": {"faces": {"kind": "joined", "parts": {"a/b": {}}}}},
            "data.faces.parts: 'a/b' cannot be the name of a party",
        ),
        (
            {"data": {"faces": {"kind": "joined", "parts": {"a": {"kind": "pack", "path": "x"}}}}},
            "data.faces.parts.a: unknown kind 'pack'; use one of synthetic, folder, rec",
        ),
        ({"data": {"faces": JOINED, "exclude": ["x.txt"]}}, "as `exclude: {lfw: [x.txt]}`"),
        ({"data": {"faces": JOINED, "exclude": {"lwf": []}}}, "data.exclude: 'lwf' is not known; did you mean 'lfw'?"),
        ({"data": {"exclude": {"lfw": []}}}, "data.exclude: 'lfw' is not known. Known: none"),
        (
            {"data": {"faces": JOINED}, "evaluation": {"pairs": {"a": {"kind": "lfw", "path": "p"}}}},
            "evaluation.pairs.a.part: say which part the pairs are of: lfw, made",
        ),
        (
            {"data": {"faces": JOINED}, "evaluation": {"pairs": {"a": {"part": "mad"}}}},
            "evaluation.pairs.a.part: 'mad' is not known; did you mean 'made'?",
        ),
        (
            {"data": {"faces": JOINED}, "evaluation": {"pairs": {"a": {"part": "made", "source": {}}}}},
            "evaluation.pairs.a: give either a part of data.faces or a source, not both",
        ),
        (
            {"evaluation": {"pairs": {"a": {"source": JOINED}}}},
            "evaluation.pairs.a.source: unknown kind 'joined'; use one of synthetic, folder",
        ),
    ],
)
def test_parts_of_a_joined_source_and_what_names_them_must_fit(tree: dict[str, Any], said: str) -> None:
    assert said in fault(tree)


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("rounds", "'rounds' is not a change: write key=value"),
        ("local.lr=[1", "'local.lr=[1': the value is not YAML (line "),
        ("rounds.x=3", "rounds.x=3: rounds holds 5"),
        ("local.lr.x=3", "lr.x=3: lr holds 0.1, which has no keys below it"),
    ],
)
def test_a_change_that_is_none_says_so_in_one_line(tmp_path: Path, change: str, said: str) -> None:
    (tmp_path / "r.yaml").write_text("rounds: 5\nlocal: {lr: 0.1}\n")
    with pytest.raises(RecipeError) as raised:
        loader.load(tmp_path / "r.yaml", [change])
    assert str(raised.value).startswith(said) and "\n" not in str(raised.value)


def test_another_loss_leaves_behind_what_it_has_not_got(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("loss: {name: cosface, scale: 20.0, margin: 0.1}\n")
    resolved = loader.load(tmp_path / "r.yaml", ["loss.name=softmax"]).resolved()
    assert resolved["loss"] == {"name": "softmax", "scale": 20.0}
    assert loader.load(tmp_path / "r.yaml", ["loss.name=arcface"]).resolved()["loss"]["margin"] == 0.1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds: [1\n", "is not YAML: line 2, column 1"),
        ("engine: {workers: 1}\nrounds: 3\nengine: {block: 2}\n", "line 3, column 1: the key engine is given twice"),
        ("- 1\n", "a recipe is a mapping of keys"),
        ("local: {lr: 1, lr: 2}\n", "the key lr is given twice"),
        ("\tlocal: 3\n", "is not YAML: line 1, column 1"),
        ("recipe: a.yaml\ngrids: [{seed: 0}]\n", "is a file of grids, not a recipe: `coalface sweep"),
    ],
)
def test_faults_of_yaml_are_one_line_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as raised:
        loader.load(path)
    assert str(path) in str(raised.value) and said in str(raised.value) and "\n" not in str(raised.value)


def test_a_recipe_that_is_not_there_says_where_some_are(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no such recipe; `ls recipes/\*/`"):
        loader.load(tmp_path / "none.yaml")


def test_an_empty_file_is_the_recipe_of_all_defaults(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("")
    assert loader.load(tmp_path / "r.yaml") == loader.parse({"name": "r"})


REPEATED = "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in itertools.pairwise("abcdefghijkl")
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [1, 1]\n" + REPEATED, "counting those that aliases repeat"),
        ("a: &a [1, 1]\n" + REPEATED + "? *l\n: 1\n", "counting those that aliases repeat"),
        ("a: &a [*a]\n", "line 1, column 8: a value holds itself"),
        ("[" * 200_000, "50 deep"),
        ("[" + "1, " * 200_000 + "1]", "at most 1,000,000 characters and 50,000 values"),
        ("a: " + "x" * 1_000_000, "at most 1,000,000 characters"),
        ("- 1\n" * 60_000, "more than 50,000 values"),
        ("{a: " * 5_000, "50 deep"),
        ("- " * 5_000, "50 deep"),
        ("\n".join(" " * depth + "a:" for depth in range(200)), "50 deep"),
        ("a: " + ":".join(["1"] * 20_000), "a number has more than 200 characters"),
        ("a: !!timestamp x", "none of its kind"),
    ],
    ids=lambda value: value[:12],
)
def test_yaml_that_grows_as_it_is_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_yaml(text)


def test_yaml_anchors_and_merges_still_work() -> None:
    assert parse_yaml("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}") == {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}}


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {path: tree}
    return {k: v for key, below in tree.items() for k, v in leaves(below, f"{path}.{key}".lstrip(".")).items()}


def test_resolved_is_complete_stable_and_resolves_to_itself() -> None:
    recipe = tiny(methods={"fedavg": {"sample": 2}}, faults={}, loss={"name": "arcface"})
    resolved = recipe.resolved()
    assert loader.parse(resolved).resolved() == resolved
    assert loader.parse(yaml.safe_load(yaml.safe_dump(resolved))).resolved() == resolved
    flat = leaves(resolved)
    for key in ("local.momentum", "local.weight_decay", "loss.scale", "loss.margin", "methods.fedavg.momentum"):
        assert key in flat  # a default of a class behind the recipe, not of the recipe itself
    for name in ("data", "model", "engine", "evaluation"):
        assert set(resolved[name]) == set(type(getattr(recipe, name)).model_fields)
    assert set(resolved) == set(schema.Recipe.model_fields)


def test_writing_out_a_default_changes_no_digest() -> None:
    assert tiny().digest() == tiny(local={"momentum": 0.9}, data={"min_images": 2}).digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"rounds": 3},
        {"method": "solo"},
        {"local": {"lr": 0.06}},
        {"loss": {"margin": 0.1}},
        {"methods": {"fedavg": {"sample": 1}}},
        {"data": {"hold_out": 5}},
        {"data": {"faces": {"seed": 1}}},
        {"data": {"partition": {"parties": 3}}},
        {"data": {"augment": {"flip": False}}},
        {"model": {"embedding_size": 64}},
        {"evaluation": {"pairs": {"unseen": {"pairs": 21}}}},
        {"engine": {"threads": 2}},
        {"engine": {"sum_block": 2}},
        {"engine": {"min_reply_fraction": 0.9}},
        {"pretrain": {"method": "centralized"}},
    ],
)
def test_the_digest_changes_with_what_the_result_depends_on(changes: dict[str, Any]) -> None:
    assert tiny(**changes).digest() != tiny().digest()


def test_the_digest_does_not_change_with_name_root_or_workers() -> None:
    values = {"data.root": "/x", "engine.workers": 3, "engine.max_in_flight": 5, "engine.save_replies": False}
    values |= {"engine.checkpoint_every": 4, "engine.keep_checkpoints": 5, "engine.tensorboard": True}
    assert set(values) == set(FREE)
    tree: dict[str, Any] = {**TINY, "name": "other", "methods": {"solo": {}}}
    for key, value in values.items():
        tree = loader.with_value(tree, key, value)
    assert loader.parse(tree).digest() == tiny().digest()


def test_epochs_and_iterations_are_not_given_both() -> None:
    with pytest.raises(RecipeError, match="local.epochs is 2 and local.steps_per_round 3.*leave one of them out"):
        tiny(local={"epochs": 2, "steps_per_round": 3})
    recipe = tiny(local={"steps_per_round": 3})
    again = loader.parse(recipe.resolved())  # config.yaml has the default of the other as well
    assert again.digest() == recipe.digest() and again.resolved() == recipe.resolved()


def test_pretraining_takes_what_both_must_share_and_is_else_a_recipe_of_its_own() -> None:
    recipe = tiny(pretrain={"method": "centralized", "rounds": 1, "loss": {"name": "softmax"}})
    inner = loader.pretraining(recipe)
    assert (inner.name, inner.method, inner.rounds, inner.pretrain) == ("tiny-pretrain", "centralized", 1, None)
    assert inner.data.model_copy(update={"partition": recipe.data.partition}) == recipe.data
    assert (inner.seed, inner.model, inner.evaluation.pairs) == (recipe.seed, recipe.model, recipe.evaluation.pairs)
    assert inner.resolved()["loss"] == {"name": "softmax", "scale": 64.0}
    assert inner.local == loader.parse({}).local != recipe.local
    own = loader.pretraining(
        tiny(pretrain={"local": {"lr": 0.3}, "data": {"hold_out": 5, "partition": {"parties": 3}}})
    )
    assert (own.local.lr, own.data.hold_out, own.data.partition.parties, own.data.size) == (0.3, 5, 3, 32)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"local": {"lr": 0.9}}, True),
        ({"loss": {"name": "arcface"}}, True),
        ({"rounds": 7}, True),
        ({"method": "solo"}, True),
        ({"methods": {"fedavg": {"sample": 1}}}, True),
        ({"faults": {"dropout": 0.3}}, True),
        ({"evaluation": {"every": 1, "flip": True}}, True),
        ({"engine": {"min_reply_fraction": 0.9, "sum_block": 2, "workers": 2}}, True),
        ({"data": {"partition": {"kind": "dirichlet", "parties": 3}}}, True),
        ({"seed": 1}, False),
        ({"data": {"hold_out": 5}}, False),
        ({"model": {"embedding_size": 64}}, False),
        ({"evaluation": {"pairs": {"unseen": {"pairs": 21}}}}, False),
        ({"engine": {"autocast": "bfloat16"}}, False),
        ({"pretrain": {"rounds": 2}}, False),
    ],
)
def test_a_sweep_over_training_starts_from_one_pretraining(changes: dict[str, Any], same: bool) -> None:
    start = {"pretrain": {"method": "centralized", "rounds": 1}}
    inner = [loader.pretraining(tiny(**tree)) for tree in (start, loader.merged(start, changes))]
    assert (inner[0].digest() == inner[1].digest()) is same


def test_runs_in_which_fewer_have_people_start_from_one_pretraining() -> None:
    start = {
        "pretrain": {"method": "centralized"},
        "data": {"side": "private", "scenario": "private-public", "private": {"identities": 12}},
    }
    digests = {
        loader.pretraining(
            tiny(**loader.merged(start, {"data": {"scenario": "private-public", "private": {"assigned": dealt}}}))
        ).digest()
        for dealt in (None, 12, 4)
    }
    assert len(digests) == 1


def test_all_identities_dealt_is_the_same_recipe_as_none_named() -> None:
    data = {"side": "private", "scenario": "private-public", "private": {"identities": 12}}
    one, other, fewer = (
        tiny(
            pretrain={"method": "centralized"},
            data=loader.merged(data, {"scenario": "private-public", "private": {"assigned": dealt}}),
        )
        for dealt in (None, 12, 4)
    )
    assert one == other and one.digest() == other.digest() != fewer.digest()


def test_a_pretraining_over_parties_is_dealt_as_the_run_is() -> None:
    start = {"pretrain": {"method": "fedavg"}}
    assert loader.pretraining(tiny(**start)).data == tiny(**start).data
    with pytest.raises(RecipeError, match="pretrain.method: "):
        tiny(pretrain={"method": ["fedavg"]})


def test_threads_do_not_depend_on_the_workers_or_the_machine() -> None:
    assert {loader.parse({"engine": {"workers": n}}).engine.threads for n in (1, 3, 16)} == {1}


def test_the_data_root_comes_from_the_recipe_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_DATA", "/environment")
    assert loader.parse({"data": {"root": "/recipe"}}).root() == Path("/recipe")
    assert loader.parse({}).root() == Path("/environment")
    monkeypatch.delenv("COALFACE_DATA")
    with pytest.raises(RecipeError, match="set the environment variable COALFACE_DATA .* or add data.root=FOLDER"):
        loader.parse({}).root()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data.scenario=device"], "did you mean 'devices'"),
        (["data.scenario=devices", "data.partition.parties=3"], "data.partition is not a key of data.scenario=devices"),
        (["data.private={identities: 3}"], "private-public has it"),
        (["data.parties=[a]"], "own has it"),
        (["data.scenario=private-public"], "data.private is missing: data.scenario=private-public needs it"),
        (["data.test={}"], "data.test.images is missing"),
    ],
)
def test_a_scenario_has_keys_of_its_own(changes: list[str], said: str) -> None:
    with pytest.raises(RecipeError) as refused:
        loader.load(None, changes)
    assert said in str(refused.value)


def test_another_scenario_keeps_the_keys_that_it_has_too() -> None:
    recipe = loader.load(None, ["data.size=32", "data.partition.parties=3", "data.scenario=devices"])
    assert (recipe.data.size, recipe.partition) == (32, partitions.OneIdentity())


def test_another_kind_keeps_the_keys_that_it_has_too() -> None:
    changes = [
        "data.partition.parties=3",
        "data.partition.kind=dirichlet",
        "data.partition.alpha=2",
        "data.faces.seed=7",
    ]
    assert loader.load(None, changes).data.partition == partitions.Dirichlet(parties=3, alpha=2)
    recipe = loader.load(None, [*changes, "data.partition.kind=equal", "data.faces.path=x", "data.faces.kind=rec"])
    assert (recipe.data.partition, recipe.data.faces) == (partitions.Equal(parties=3), sections.Records(path="x"))
    before = {"pretrain": {"data": {"partition": {"kind": "shares", "shares": {"a": 1}}}}}
    inner = loader.pretraining(loader.parse(loader.merged(recipe.model_dump(mode="json"), before)))
    assert inner.data.partition == partitions.Shares(shares={"a": 1})
