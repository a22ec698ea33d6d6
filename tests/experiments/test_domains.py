"""Who holds which images of two domains, who is told what, and who is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyruns
from tinydomains import METHODS, TREE, domains, two_domains

from coalface.core.errors import RecipeError
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import domains as dealing
from coalface.experiments.setup import shards, sources, splits
from coalface.experiments.setup.parts import Parts
from coalface.methods import METHODS as REGISTERED

every_method = pytest.mark.parametrize("method", METHODS)


def built(recipe: Recipe) -> FederatedData:
    return Parts(recipe).data


def people(faces: FaceSet) -> set[str]:
    """Those of whom there is an image."""
    return {faces.names[label] for label in faces.labels}


def rows(*sets: FaceSet) -> set[int]:
    return {int(row) for faces in sets for row in faces.rows}


def whole(recipe: Recipe) -> dict[int, str]:
    """Who is in each image of the store."""
    faces = sources.open_source(recipe, recipe.data.faces)
    return {int(row): faces.names[label] for row, label in zip(faces.rows, faces.labels, strict=True)}


def evaluated(recipe: Recipe) -> set[str]:
    return set(splits.split(recipe).held.names)


def test_every_method_for_domains_is_looked_at() -> None:
    assert set(METHODS) == {name for name, method in REGISTERED.items() if method.scenario == "domains"}


# --- splits -----------------------------------------------------------------------------------------------------------


def test_splits_evaluate_other_people_as_long_as_there_are_enough() -> None:
    evaluated_people = [evaluated(two_domains(domains(split=split))) for split in range(4)]
    assert all(len(people) == 3 and all(name.startswith("street/") for name in people) for people in evaluated_people)
    assert len(evaluated_people[0] | evaluated_people[1] | evaluated_people[2]) == 9  # all of them, each once
    assert evaluated_people[3] == evaluated_people[0]
    around = [evaluated(two_domains(domains(hold_out=4, split=split))) for split in range(3)]
    assert not around[0] & around[1] and len(around[0] | around[1] | around[2]) == 9


def test_a_split_is_the_seeds_unless_it_is_given() -> None:
    by_seed = [evaluated(two_domains({"seed": seed})) for seed in (0, 1)]
    assert by_seed == [evaluated(two_domains(domains(split=split))) for split in (0, 1)]
    assert evaluated(two_domains({"seed": 7}, domains(split=1))) == by_seed[1]


def test_a_rehearsal_evaluates_the_next_people_and_nobody_held_out() -> None:
    whole_run, rehearsed = (splits.split(two_domains(domains(split=1, rehearsal=r))) for r in (None, 2))
    held, aside = people(whole_run.held), people(rehearsed.held)
    assert len(aside) == 2 and not held & aside and aside < people(whole_run.train)
    assert people(rehearsed.train) == people(whole_run.train) - aside
    with pytest.raises(RecipeError, match="data.rehearsal: 9 of the 9 identities of street leave nobody to train on"):
        splits.split(two_domains(domains(rehearsal=6)))


@pytest.mark.parametrize("split", [0, 1])
@every_method
def test_a_split_evaluates_and_calibrates_on_the_same_people_whatever_the_method(method: str, split: int) -> None:
    for clients in (1, 3):
        recipe = two_domains({"method": method}, domains(split=split, clients=clients))
        assert evaluated(recipe) == evaluated(two_domains(domains(split=split)))
        lists = Parts(recipe).pairs
        assert people(lists[0].faces) == evaluated(recipe)


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("seed", [0, 1])
@every_method
def test_nobody_who_is_evaluated_or_calibrated_by_is_in_anybodys_images(method: str, seed: int, clients: int) -> None:
    recipe = two_domains(
        {"method": method, "seed": seed, "pretrain": {"method": "centralized"}}, domains(clients=clients)
    )
    federated, held, who = built(recipe), evaluated(recipe), whole(recipe)
    trained = {who[row] for row in rows(*federated.data.values())}
    aside = {who[row] for row in rows(*federated.calibration_data.values())}
    before = {who[row] for row in rows(*built(recipe.pretrain.recipe).data.values())}
    assert not held & trained and not held & before and not held & aside
    calibrated = {name for name in who.values() if name.startswith("studio/")} - before
    assert len(calibrated) == 2 and not calibrated & trained
    assert aside == (calibrated if "source" in federated.data else set())
    assert before == {name for name in who.values() if name.startswith("studio/")} - calibrated
    sides = REGISTERED[method].sides
    prefixes = {"source": "studio/", "target": "street/"}
    assert (
        trained
        == {name for name in who.values() if name.startswith(tuple(prefixes[s] for s in sides))} - held - calibrated
    )


def test_without_people_to_calibrate_by_the_source_has_none_aside() -> None:
    recipe = two_domains(domains(calibrate=0))
    assert built(recipe).calibration_data == {}
    assert len(built(recipe).data["source"].names) == 10


# --- who is told what -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedfr-uda", "finetune-pseudo"])
def test_the_source_knows_who_is_in_its_images_and_the_targets_do_not(method: str) -> None:
    recipe = two_domains({"method": method})
    federated, who = built(recipe), whole(recipe)
    assert list(federated.data) == ["source", "target-00", "target-01"] == dealing.parties(recipe)
    assert federated.roles == {"source": "trainer/source", "target-00": "trainer/target", "target-01": "trainer/target"}
    source = federated.data["source"]
    assert [source.names[label] for label in source.labels] == [who[int(row)] for row in source.rows]
    for name in ("target-00", "target-01"):
        faces = federated.data[name]
        assert (faces.labels == -1).all() and len(faces) == 12
        assert (faces.names, faces.files, faces.domains) == ((), None, None)
        assert federated.members()[name].identities == 0
    assert not rows(federated.data["target-00"]) & rows(federated.data["target-01"])
    target_people = [{who[row] for row in rows(federated.data[name])} for name in ("target-00", "target-01")]
    assert not target_people[0] & target_people[1] and [len(people) for people in target_people] == [3, 3]


def neighbours(faces: FaceSet, who: dict[int, str]) -> float:
    """How often two images that stand beside each other are of one person."""
    names = [who[int(row)] for row in faces.rows]
    return float(np.mean([first == second for first, second in zip(names, names[1:], strict=False)]))


@pytest.mark.parametrize("method", ["fedfr-uda", "dan"])
def test_the_order_of_images_does_not_tell_who_is_in_them(method: str) -> None:
    """An adversary who takes neighbours for one person is right as often as by chance: 15 of 159."""
    parts = {"data": {"faces": {"parts": {"street": {"identities": 13, "images": 16}}}}}
    recipe = two_domains({"method": method}, parts, domains(clients=1))
    who, rates = whole(recipe), []
    for seed in range(3):
        faces = list(built(recipe.model_copy(update={"seed": seed})).data.values())[-1]
        target = faces.select(np.flatnonzero(faces.labels < 0))
        rates.append(neighbours(target, who))
        assert len(target) == 160 and neighbours(target.select(np.argsort(target.rows)), who) > 0.9  # unshuffled
    assert np.mean(rates) < 0.15 and len(set(rates)) > 1


def test_files_and_names_of_folders_are_kept_from_the_targets(tmp_path: Path) -> None:
    for part in ("here", "there"):
        tinyruns.picture_folders(tmp_path / part, [f"{part}_{i}" for i in range(4)], images=3)
    tree = {key: value for key, value in TREE.items() if key not in ("data", "evaluation")}
    parts = {part: {"kind": "folder", "path": part} for part in ("here", "there")}
    data = {"root": str(tmp_path), "faces": {"kind": "joined", "parts": parts}, "size": 32}
    recipe = loader.parse(
        {
            **tree,
            "data": {**data, "scenario": "domains", "source_domain": "here", "target_domain": "there", "clients": 2},
        }
    )
    train = splits.split(recipe).train
    assert train.files is not None and train.domains is not None
    here = built(recipe).data
    assert all(here[name].files is None and here[name].names == () for name in ("target-00", "target-01"))
    assert all(here[name].domains is None for name in here)
    assert set(here["source"].names) == {f"here/here_{i}" for i in range(4)} and here["source"].files is None


@every_method
def test_the_truth_lies_in_the_order_of_what_the_parties_hold(method: str) -> None:
    recipe = two_domains({"method": method})
    dealt, truth, who = Parts(recipe).trainers, Parts(recipe).truth, whole(recipe)
    assert list(dealt) == list(truth) == dealing.parties(recipe)
    for name, faces in truth.items():
        assert np.array_equal(faces.rows, dealt[name].rows)
        assert [faces.names[label] for label in faces.labels] == [who[int(row)] for row in faces.rows]
        labelled = dealt[name].labels >= 0
        names = [dealt[name].names[label] for label in dealt[name].labels[labelled]]
        assert names == [who[int(row)] for row in dealt[name].rows[labelled]]


@pytest.mark.parametrize(
    ("method", "parties", "known", "unknown"),
    [
        ("source-only", ["source"], 32, 0),
        ("target-only", ["pooled"], 24, 0),
        ("merge", ["pooled"], 56, 0),
        ("dan", ["pooled"], 32, 24),
        ("dann", ["pooled"], 32, 24),
    ],
)
def test_bounds_hold_what_they_say(method: str, parties: list[str], known: int, unknown: int) -> None:
    recipe = two_domains({"method": method})
    federated = built(recipe)
    assert list(federated.data) == parties == dealing.parties(recipe)
    assert federated.roles == ({"source": "trainer/source"} if method == "source-only" else {})
    (faces,) = federated.data.values()
    assert ((faces.labels >= 0).sum(), (faces.labels < 0).sum()) == (known, unknown)
    assert len(faces.names) == known // 4 and sorted(set(faces.labels)) == sorted(
        {*range(known // 4), *([-1] if unknown else [])}
    )


def test_clients_hold_together_what_is_pooled_whatever_their_number() -> None:
    pooled = rows(*built(two_domains({"method": "merge"})).data.values())
    for clients in (1, 2, 4):
        assert rows(*built(two_domains(domains(clients=clients))).data.values()) == pooled


def test_a_third_part_is_nobodys() -> None:
    third = {"data": {"faces": {"parts": {"night": {"kind": "synthetic", "identities": 5, "images": 4, "first": 300}}}}}
    recipe = two_domains(third)
    assert rows(*built(recipe).data.values()) == rows(*built(two_domains()).data.values())
    assert len(set(whole(recipe).values())) == 24


# --- the pre-training -------------------------------------------------------------------------------------------------

PRETRAIN = {"pretrain": {"method": "centralized", "rounds": 1, "local": {"steps_per_round": 2}}}


def test_one_pre_training_serves_all_methods_and_numbers_of_clients() -> None:
    inner = [
        two_domains(PRETRAIN, {"method": method}, domains(clients=clients)).pretrain.recipe
        for method in METHODS
        for clients in (1, 2, 4)
    ]
    assert len({pretraining.digest() for pretraining in inner}) == 1
    assert len({str(Parts(pretraining).content) for pretraining in (inner[0], inner[1])}) == 1
    changed = [two_domains(PRETRAIN, change).pretrain.recipe for change in ({"seed": 1}, domains(calibrate=3))]
    assert len({inner[0].digest(), *(pretraining.digest() for pretraining in changed)}) == 3


def test_the_pre_training_holds_the_source_alone_and_knows_who_is_in_it() -> None:
    inner = two_domains(PRETRAIN).pretrain.recipe
    (faces,) = built(inner).data.values()
    assert len(faces.names) == 8 and all(name.startswith("studio/") for name in faces.names) and len(faces) == 32


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"data": {"scenario": "silos"}}, "data.scenario"),
        (domains(target_domain="studio"), "data.target_domain"),
        ({"method": "fedavg"}, "method"),
        ({"data": {"side": "source"}}, "data.side"),
        ({"validators": {"v": {"identities": 2}}}, "validators"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(RecipeError) as error:
        two_domains(changes)
    assert error.value.where == where


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (domains(source_domain="studo"), "data.source_domain: 'studo' is not known; did you mean 'studio'?"),
        ({"pretrain": {"method": "source-only"}}, "pretrain.data.side: "),
        ({"data": {"test": {"images": 1}}}, "data.test: .*silos, devices"),
    ],
)
def test_a_refusal_says_what_there_is(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        two_domains(changes)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (domains(hold_out=9), "data.hold_out"),
        (domains(calibrate=10), "data.calibrate"),
        (domains(clients=7), "data.clients"),
    ],
)
def test_more_people_than_there_are_is_refused(change: dict[str, Any], where: str) -> None:
    with pytest.raises(RecipeError) as error:
        built(two_domains(change))
    assert error.value.where == where


@pytest.mark.parametrize("change", [{"source": None}, {"source": None, "part": "street"}])
def test_a_list_that_shows_another_domain_than_it_says_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RecipeError) as error:
        two_domains({"evaluation": {"pairs": {"studio": {"domain": "source", **change}}}})
    assert error.value.where == "evaluation.pairs.studio.domain"


def test_a_list_of_people_who_are_trained_on_is_refused() -> None:
    evaluation = {"evaluation": {"pairs": {"studio": {"source": {"first": 5}}}}}
    recipe = two_domains(evaluation)
    with pytest.raises(RecipeError, match=r"evaluation\.pairs\.studio: the run would also train on"):
        _ = Parts(recipe).pairs


def test_batches_of_two_domains_are_not_split_over_processes() -> None:
    recipe = two_domains({"method": "dan", "engine": {"processes_per_party": {"pooled": 2}}})
    with pytest.raises(RecipeError) as error:
        shards.check_shards(Parts(recipe))
    assert error.value.where == "engine.processes_per_party.pooled"
