"""Validators in a recipe: who they hold, what is refused before anything is written, and pooled images by silo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tinyruns
import torch
from tinyruns import tiny

from coalface.core.errors import RecipeError
from coalface.data.augment import DRAWS, Augment, to_tensor
from coalface.data.pairs import PairList
from coalface.data.readers.bin import write_bin
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader, schema
from coalface.experiments.setup import splits
from coalface.experiments.setup.parts import Parts

TWO: dict[str, Any] = {
    "data": {"faces": {"identities": 20}},
    "validators": {"v": {"identities": 4, "pairs": 10}, "w": {"identities": 3, "pairs": 10}},
}


def recipe(method: str = "fedavg-fv", **changes: Any) -> schema.Recipe:
    return tiny(**loader.merged(TWO | {"method": method}, changes))


def validating(parsed: schema.Recipe) -> dict[str, tuple[Any, PairList]]:
    return Parts(parsed).validators


def people(faces: Any) -> set[str]:
    return {faces.names[i] for i in faces.labels}


# --- who they hold ----------------------------------------------------------------------------------------------------


def test_validators_are_set_aside_from_training_and_evaluation_whatever_the_method() -> None:
    held_by: dict[str, set[str]] = {name: people(faces) for name, (faces, _) in validating(recipe()).items()}
    assert {name: len(names) for name, names in held_by.items()} == {"v": 4, "w": 3}
    for method in ("fedavg-fv", "pfm-fv", "fedavg", "solo", "centralized"):
        for seed in (0, 1):
            parsed = recipe(method, seed=seed)
            parts = Parts(parsed)
            train = parts.split.train
            (evaluated,) = parts.pairs
            everybody = [set(train.names), people(evaluated.faces), *held_by.values()]
            assert [len(names) for names in everybody] == [9, 4, 4, 3]
            assert set.union(*everybody) == set(SyntheticFaces(20, 4, 0).names)  # so no two share anybody
    assert {name: people(f) for name, (f, _) in validating(recipe(seed=1)).items()} == held_by


def test_a_method_without_validators_trains_on_the_same_people_and_gives_the_same_silos() -> None:
    silos = [
        {n: f.names for n, f in Parts(parsed).trainers.items()} for parsed in (recipe("fedavg-fv"), recipe("fedavg"))
    ]
    assert silos[0] == silos[1]
    built = Parts(recipe("fedavg")).data
    assert sorted(built.data) == ["silo-00", "silo-01"] and not built.pairs and not built.roles
    built = Parts(recipe("fedavg-fv")).data
    assert sorted(built.data) == ["silo-00", "silo-01", "v", "w"]
    assert built.roles == {"v": "validator", "w": "validator"} and set(built.pairs) == {"v", "w"}


def test_a_validator_holds_its_pairs_and_no_other_image() -> None:
    for faces, pairs in validating(recipe()).values():
        assert set(pairs.left.tolist()) | set(pairs.right.tolist()) == set(range(len(faces)))
        assert ((faces.labels[pairs.left] == faces.labels[pairs.right]) == pairs.same).all()
        assert int(pairs.same.sum()) == int((~pairs.same).sum()) == 10


def test_another_validator_beside_it_changes_nothing_for_the_first() -> None:
    alone = tiny(**loader.merged(TWO, {"method": "fedavg-fv"}) | {"validators": {"v": TWO["validators"]["v"]}})
    (alone_faces, pairs), (beside_faces, beside_pairs) = validating(alone)["v"], validating(recipe())["v"]
    assert alone_faces.names == beside_faces.names and np.array_equal(pairs.left, beside_pairs.left)


def test_a_pretraining_trains_on_nobody_whom_a_validator_holds() -> None:
    parsed = recipe(pretrain={"method": "centralized", "rounds": 1})
    before, after = (set(splits.split(r).train.names) for r in (parsed.pretrain.recipe, parsed))
    assert before == after and len(before) == 9
    split = {"fold_split": "first", "validators": {"v": {"validates": "unseen", "identities": None, "pairs": 3000}}}
    halves = [recipe(pretrain={"method": "fedavg"}, **split | {"fold_split": h}) for h in ("first", "second")]
    assert halves[0].pretrain.recipe.digest() == halves[1].pretrain.recipe.digest()  # one model for both halves


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("validator", "where"),
    [
        ({}, "validators.x"),
        ({"identities": 3, "source": {"kind": "synthetic"}}, "validators.x"),
        ({"kind": "lfw", "path": "p", "identities": 3}, "validators.x"),
        ({"identities": 3, "part": "orl"}, "validators.x.part"),
        ({"validates": "unseen"}, "validators.x.validates"),
        ({"own": True, "identities": 3}, "validators.x.identities"),
    ],
)
def test_a_validator_that_is_not_clear_is_refused(validator: dict[str, Any], where: str) -> None:
    with pytest.raises(RecipeError) as error:
        tiny(validators={"x": validator})
    assert error.value.where == where


@pytest.mark.parametrize(
    ("validator", "key"),
    [
        ({"identities": 1}, "identities"),
        ({"identitys": 3}, "identitys"),
        ({"identities": 3, "rank1": "one-query"}, "rank1"),
        ({"kind": "lfw", "path": "p", "part": "orl"}, "part"),
    ],
)
def test_a_key_of_a_validator_that_cannot_be_is_refused(validator: dict[str, Any], key: str) -> None:
    with pytest.raises(RecipeError) as error:
        tiny(validators={"x": validator})
    assert error.value.where == f"validators.x.{key}"


def test_of_a_joined_source_a_file_of_pairs_needs_its_part() -> None:
    parts = {n: {"kind": "synthetic", "identities": 8, "images": 4, "seed": s} for s, n in enumerate(("a", "b"))}
    data = {"faces": {"kind": "joined", "parts": parts}, "size": 32, "partition": {"kind": "by-domain"}}
    with pytest.raises(RecipeError, match="validators.x.part: say which part the pairs are of: a, b"):
        loader.parse({"data": data, "validators": {"x": {"kind": "lfw", "path": "p"}}})


def test_more_people_than_there_are_is_said_by_name() -> None:
    with pytest.raises(RecipeError, match="validators.w.identities: holding out 12 of 12 identities leaves one side"):
        splits.split(recipe(validators={"w": {"identities": 12}}))
    with pytest.raises(RecipeError, match=r"validators.v: .* genuine pairs, not 100"):
        validating(recipe(validators={"v": {"pairs": 100}}))


def own(**source: Any) -> dict[str, Any]:
    return {"validators": {"v": {"identities": None, "source": {"kind": "synthetic", "images": 4, **source}}}}


def test_people_who_are_trained_on_or_evaluated_are_no_validators() -> None:
    with pytest.raises(RecipeError, match=r"validators.v: it would hold .* identities of the trainers \(s0-"):
        validating(recipe(**own(identities=20)))
    lists = {"other": {"kind": "balanced", "pairs": 10, "source": {"identities": 6, "images": 4, "seed": 5}}}
    with pytest.raises(RecipeError, match=r"validators.v: .* of evaluation.pairs.other \(s5-0000002, .*validates"):
        validating(recipe(evaluation={"pairs": lists}, **own(identities=6, seed=5, first=2)))
    apart = recipe(evaluation={"pairs": lists}, **own(identities=6, seed=5, first=6))
    assert not people(validating(apart)["v"][0]) & {f"s5-{i:07d}" for i in range(6)}


def test_people_of_a_part_are_known_again_in_a_validator_with_its_own_source() -> None:
    parts = {n: {"kind": "synthetic", "identities": 8, "images": 4, "seed": s} for s, n in enumerate(("a", "b"))}
    evaluated = {"mine": {"kind": "balanced", "pairs": 10, "source": {"identities": 6, "images": 4, "seed": 7}}}

    def joined(**source: Any) -> schema.Recipe:
        data = {"faces": {"kind": "joined", "parts": parts}, "size": 32, "partition": {"kind": "by-domain"}}
        pairs = {"source": {"kind": "synthetic", "identities": 6, "images": 4, **source}, "pairs": 10}
        tree = {"method": "fedavg-fv", "data": data, "evaluation": {"pairs": evaluated}, "validators": {"v": pairs}}
        return loader.parse(tree)

    with pytest.raises(RecipeError, match=r"validators.v: it would hold 6 identities of the trainers \(b/s1-0000000"):
        validating(joined(seed=1))
    with pytest.raises(
        RecipeError, match=r"validators.v: it would hold 6 identities of evaluation.pairs.mine \(s7-0000000"
    ):
        validating(joined(seed=7))
    assert len(people(validating(joined(seed=8))["v"][0])) > 3


def test_a_pack_of_pairs_that_is_evaluated_is_no_validators(tmp_path: Path) -> None:
    """Of the people in a `.bin` nothing is known but the file."""
    for name, seed in (("one", 0), ("other", 1)):
        rng = np.random.default_rng(seed)
        images = [cv2.imencode(".png", rng.integers(0, 256, (32, 32), dtype=np.uint8))[1].tobytes() for _ in range(80)]
        write_bin(tmp_path / f"{name}.bin", images, [True, False] * 20)
    (tmp_path / "linked.bin").symlink_to(tmp_path / "one.bin")

    def with_bins(mine: str) -> schema.Recipe:
        packs = {name: {"kind": "bin", "path": f"{path}.bin"} for name, path in (("j", "one"), ("v", mine))}
        evaluated = {"pairs": {"j": packs["j"]}}
        return recipe(
            data={"root": str(tmp_path)}, evaluation=evaluated, validators={"v": {**packs["v"], "identities": None}}
        )

    for mine in ("one", "linked"):
        with pytest.raises(RecipeError, match=r"validators.v: .* identities of evaluation.pairs.j .* `validates`"):
            validating(with_bins(mine))
    assert len(validating(with_bins("other"))["v"][1]) == 40


def test_settings_of_the_validation_are_keys_of_the_method() -> None:
    parsed = recipe("pfm-fv", methods={"pfm-fv": {"validation": {"candidates": 4, "norm": "moving", "lag": 0}}})
    method: Any = parsed.build_method()
    assert (method.validation.candidates, method.validation.norm, method.validation.lag) == (4, "moving", 0)
    assert parsed.resolved()["methods"]["pfm-fv"]["validation"]["smoothing"] == 0.01
    assert loader.parse(parsed.resolved()).digest() == parsed.digest() != recipe("pfm-fv").digest()
    assert loader.with_value({}, "methods.pfm-fv.validation.candidates", 4) == {
        "methods": {"pfm-fv": {"validation": {"candidates": 4}}}
    }


def test_a_whole_experiment_with_validators(tmp_path: Path) -> None:
    out = tinyruns.run(tmp_path / "run", **TWO, method="pfm-fv", rounds=2)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert set(records[1]) >= {"weight/silo-00", "weight/silo-01", "score/v", "score/w"}
    assert sorted(p.stem for p in (out / "ledger").iterdir()) == ["silo-00", "silo-01", "v", "w"]
    assert preflight.check(recipe()).keys() >= {"silo-00", "silo-01"}


# --- pooled images, each changed as at the silo that it would be dealt to ---------------------------------------------

AUGMENTS = {"silo-00": {"flip": False, "crop": 3}, "silo-02": {"flip": True, "colour": 0.5}}


@pytest.mark.parametrize(
    "partition",
    [
        {"kind": "equal", "parties": 3},
        {"kind": "dirichlet", "parties": 3, "alpha": 1.0},
        {"kind": "equal", "parties": 3, "seed": 7},
    ],
)
def test_a_pooled_image_is_changed_as_at_its_silo(partition: dict[str, Any]) -> None:
    data = {"partition": partition, "party_augment": AUGMENTS, "augment": {"flip": True}}
    tree = {"data": loader.merged(TWO["data"], data)}
    pooled = Parts(tiny(method="centralized", **tree)).data
    silos = Parts(tiny(method="fedavg", **tree)).data
    pooled_faces = pooled.data["pooled"]
    index, rng = np.random.default_rng(3).permutation(len(pooled_faces)), np.random.default_rng(4)
    draws = np.random.default_rng(4).random((len(pooled_faces), DRAWS))
    batch, labels = pooled.compute.batch(pooled_faces, index, rng)
    usual = Augment(flip=True)
    silo_of = {int(row): name for name, silo in silos.data.items() for row in silo.rows}
    assert set(silo_of) == set(pooled_faces.rows.tolist())
    kinds = set()
    for place, i in enumerate(index.tolist()):
        name = silo_of[int(pooled_faces.rows[i])]
        kinds.add(name)
        augment = Augment(**AUGMENTS[name]) if name in AUGMENTS else usual
        alone = augment.by(draws[place : place + 1], to_tensor(pooled_faces.take(np.array([i]))))
        assert torch.equal(batch[place], alone[0])
        assert silos.augment.get(name, silos.compute.augment) == augment
    assert kinds == set(silos.data) and labels.tolist() == pooled_faces.labels[index].tolist()
    assert rng.random() == np.random.default_rng(4).random(len(pooled_faces) * DRAWS + 1)[-1]  # no draw more


def test_a_pooled_run_knows_the_names_of_its_silos() -> None:
    parsed = tiny(method="centralized", data={"party_augment": {"silo-09": {"flip": False}}})
    with pytest.raises(RecipeError, match="data.party_augment: 'silo-09' is not known; did you mean 'silo-0"):
        _ = Parts(parsed).data


def test_a_pooled_pretraining_changes_images_as_their_silos_do() -> None:
    data = {"partition": {"kind": "shares", "shares": {"a": 0.7, "b": 0.3}}}
    data["party_augment"] = {"b": {"crop": 4}}
    parsed = tiny(method="fedavg", data=data, pretrain={"method": "centralized", "rounds": 1})
    built = Parts(parsed.pretrain.recipe).data
    assert built.compute.by_domain == (Augment(), Augment(flip=True, crop=4))


def test_without_changes_of_ones_own_a_pooled_run_is_what_it_was() -> None:
    built = Parts(tiny(method="centralized")).data
    assert built.compute.by_domain == () and built.augment == {}
