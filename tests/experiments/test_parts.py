from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinyruns import picture_folders, tiny

from coalface.core.errors import RecipeError
from coalface.data.readers.folders import read_folder
from coalface.data.readers.pack import write_pack
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.experiments.recipe import loader, schema
from coalface.experiments.setup import splits
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.experiments.setup.splits import Split

PEOPLE = ["Ann", "Bob", "Cyd", "Dan", "Eve", "Fay"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with the set `people` and a pair list that names Ann and Bob."""
    picture_folders(tmp_path / "people", PEOPLE)
    (tmp_path / "pairs.txt").write_text("1\nAnn\t1\t2\nAnn\t1\tBob\t2\n")
    return tmp_path


def on_folder(root: Path, **data: Any) -> schema.Recipe:
    whole = {"root": str(root), "faces": {"kind": "folder", "path": "people"}, "size": 32}
    return loader.parse(loader.merged({"data": whole, "engine": {"threads": 1}}, {"data": data}))


def joined(root: Path, lists: dict[str, Any] | None = None, **data: Any) -> schema.Recipe:
    parts = {
        "people": {"kind": "folder", "path": "people"},
        "made": {"kind": "synthetic", "identities": 8, "images": 4, "seed": 3},
    }
    whole = {"root": str(root), "faces": {"kind": "joined", "parts": parts}, "size": 32}
    whole |= {"partition": {"kind": "by-domain"}, **data}
    return loader.parse({"data": whole, "evaluation": {"pairs": lists or {}}, "engine": {"threads": 1}})


def test_training_and_held_out_identities_are_disjoint_and_together_all() -> None:
    parts = Parts(tiny())
    train, held = parts.split.train, parts.split.held
    assert len(train.names) == 8 and len(held.names) == 4
    assert set(train.names) | set(held.names) == set(SyntheticFaces(12, 4, 0).names)
    assert not set(train.names) & set(held.names)


def test_runs_of_every_seed_are_judged_on_the_same_pairs_of_the_same_people() -> None:
    lists = [chosen for seed in (0, 1) for chosen in Parts(tiny(seed=seed)).pairs]
    assert len({chosen.identities.sha256 for chosen in lists}) == 1 and len(lists) == 2


def test_the_deal_follows_the_seed_unless_the_partition_has_its_own() -> None:
    def dealt(**changes: Any) -> dict[str, tuple[str, ...]]:
        return {name: faces.names for name, faces in Parts(tiny(**changes)).trainers.items()}

    assert dealt() == dealt() != dealt(seed=1)
    fixed = {"partition": {"seed": 5}}
    assert dealt(data=fixed) == dealt(seed=1, data=fixed)


def test_devices_and_pooled_training_have_names_of_their_own() -> None:
    assert list(Parts(tiny(data={"scenario": "devices"})).trainers) == [f"device-{i:02d}" for i in range(8)]
    assert list(Parts(tiny(method="centralized", data={"max_identities": 3})).trainers) == ["pooled"]
    assert len(splits.split(tiny(data={"max_identities": 3})).train.names) == 3


def test_excluded_identities_are_not_trained_on(root: Path) -> None:
    train = splits.split(on_folder(root, exclude=["pairs.txt"])).train
    assert train.names == ("Cyd", "Dan", "Eve", "Fay")


def test_identities_with_few_images_are_left_out(root: Path) -> None:
    for number in (2, 3, 4):
        (root / "people" / "Dan" / f"Dan_{number:04d}.png").unlink()
    assert "Dan" not in splits.split(on_folder(root)).train.names
    assert "Dan" in splits.split(on_folder(root, min_images=1)).train.names


def test_an_identity_counts_as_many_images_as_are_taken(root: Path) -> None:
    all_images, few = (splits.split(on_folder(root, **changes)).train for changes in ({}, {"max_images": 2}))
    assert few.names == all_images.names and set(few.counts()) == {2}
    first = [row for label in range(len(few.names)) for row in all_images.rows[all_images.labels == label][:2]]
    assert sorted(few.rows) == sorted(first)


def test_nothing_left_to_train_on_says_what_to_lower(root: Path) -> None:
    with pytest.raises(RecipeError, match="no image is left to train on; lower data.min_images"):
        splits.split(on_folder(root, min_images=5))


def test_a_pack_serves_at_its_own_size_only(root: Path) -> None:
    write_pack(read_folder(root / "people"), root / "people.pack", size=32, grey=True)
    recipe = on_folder(root, faces={"kind": "pack", "path": "people.pack"})
    assert splits.split(recipe).train.names == tuple(PEOPLE)
    with pytest.raises(RecipeError, match="32×32×1, and the recipe 64×64×1; set data.size"):
        splits.split(on_folder(root, faces={"kind": "pack", "path": "people.pack"}, size=64))


@pytest.mark.parametrize("name", ["b\udcff", "a\tb"])
def test_a_pack_of_odd_names_is_refused_by_name(root: Path, name: str) -> None:
    (root / "people" / "Ann").rename(root / "people" / name)
    write_pack(read_folder(root / "people"), root / "people.pack", size=32, grey=True)
    source = {"kind": "pack", "path": "people.pack"}
    own = {"scenario": "own", "parties": ["a"], "party_data": {"a": source}}
    for data in ({"faces": source}, own):
        with pytest.raises(ValueError, match=r"people\.pack, identity .* is not a plain name"):
            splits.split(on_folder(root, **data))


def test_who_is_evaluated_must_not_be_trained_on(root: Path) -> None:
    tree = on_folder(root).model_dump(mode="json")
    lists = {"few": {"kind": "lfw", "path": "pairs.txt"}}
    recipe = loader.parse(loader.merged(tree, {"evaluation": {"pairs": lists}}))
    parts = Parts(recipe)
    message = (
        r"evaluation.pairs.few: .* 2 identities \(Ann, Bob\).* by data.exclude or "
        r"data.hold_out"
    )
    with pytest.raises(RecipeError, match=message):
        _ = parts.pairs
    recipe = loader.parse(loader.merged(recipe.model_dump(mode="json"), {"data": {"exclude": ["pairs.txt"]}}))
    (chosen,) = Parts(recipe).pairs
    assert chosen.pairs.same.tolist() == [True, False]
    whole = "{0}/Ann/Ann_0001 {0}/Ann/Ann_0002 1\n{0}/Ann/Ann_0002 {0}/Bob/Bob_0001 0\n".format(root / "people")
    (root / "whole.txt").write_text(whole)
    tree = loader.merged(recipe.model_dump(mode="json"), {"evaluation": {"pairs": {"few": {"path": "whole.txt"}}}})
    (absolute,) = Parts(loader.parse(tree)).pairs
    assert absolute.pairs.same.tolist() == [True, False]


def test_a_party_for_each_part_of_a_joined_source(root: Path) -> None:
    recipe = joined(root, exclude={"people": ["pairs.txt"]})
    dealt = Parts(recipe).trainers
    assert list(dealt) == ["made", "people"]
    assert dealt["people"].names == ("people/Cyd", "people/Dan", "people/Eve", "people/Fay")
    assert len(dealt["made"].names) == 8
    image = next(SyntheticFaces(8, 4, 3, domains=("studio",)).images(size=32, grey=True))
    assert np.array_equal(dealt["made"].take(np.array([0]))[0], image)
    built = Parts(recipe).data
    assert sorted(built.members()) == ["made", "people"]


def test_a_list_is_evaluated_on_the_part_that_it_names(root: Path) -> None:
    lists = {"few": {"kind": "lfw", "path": "pairs.txt", "part": "people"}}
    recipe = joined(root, lists, exclude={"people": ["pairs.txt"]})
    (chosen,) = Parts(recipe).pairs
    assert {chosen.faces.names[i] for i in chosen.faces.labels[chosen.pairs.left]} == {"people/Ann"}
    alone = on_folder(root, exclude=["pairs.txt"]).model_dump(mode="json")
    whole = {"few": {"kind": "lfw", "path": "pairs.txt"}}
    apart = loader.parse(loader.merged(alone, {"evaluation": {"pairs": whole}}))
    (evaluated,) = Parts(apart).pairs
    assert (
        chosen.identities.sha256 == evaluated.identities.sha256
    )  # figures compare with those of a run on the part alone


def joined_held(hold_out: int, **sizes: int) -> tuple[list[str], list[str]]:
    parts = {
        name: {"kind": "synthetic", "identities": count, "images": 2, "seed": seed}
        for seed, (name, count) in enumerate(sizes.items())
    }
    data = {"faces": {"kind": "joined", "parts": parts}, "size": 32, "hold_out": hold_out}
    parts = Parts(loader.parse({"data": {**data, "partition": {"kind": "by-domain"}}}))
    train, held = parts.split.train, parts.split.held
    assert not set(train.names) & set(held.names) and len(train.names) + len(held.names) == sum(sizes.values())
    return [name.partition("/")[0] for name in held.names], list(held.names)


def test_of_a_joined_source_each_part_gives_its_share_of_the_held_out_identities() -> None:
    parts, held = joined_held(10, large=30, small=10, tiny=1)
    assert [parts.count(name) for name in ("large", "small", "tiny")] == [7, 3, 0]
    assert held == joined_held(10, large=30, small=10, tiny=1)[1]
    assert len(joined_held(38, large=30, small=10, tiny=1)[0]) == 38  # a party keeps an identity to train on
    assert joined_held(38, large=30, small=10, tiny=1)[0].count("tiny") == 0
    with pytest.raises(ValueError, match="holding out 41 of 41 identities leaves one side empty"):
        joined_held(41, large=30, small=10, tiny=1)


def by_hash(**data: Any) -> Split:
    part = {"kind": "synthetic", "identities": 12, "images": 2}
    faces = {"kind": "joined", "parts": {"one": part, "two": {**part, "seed": 1}}}
    return Parts(loader.parse({"data": {"faces": faces, "size": 32, "partition": {"kind": "by-domain"}, **data}})).split


def test_people_of_a_part_are_held_out_by_the_hash_of_their_names() -> None:
    everybody = by_hash().train.names
    order = sorted((n for n in everybody if n.startswith("two/")), key=lambda n: hashlib.sha256(n.encode()).hexdigest())
    split = by_hash(hold_out={"two": 5})
    assert set(split.held.names) == set(order[:5]) and set(split.train.names) == set(everybody) - set(order[:5])
    fewer = by_hash(hold_out={"two": 5}, exclude_people=[order[0]])  # the others stay as they are
    assert set(fewer.held.names) == set(order[1:6])
    with pytest.raises(RecipeError, match="data.hold_out.two: two has 12 identities to set aside from, not 13"):
        by_hash(hold_out={"two": 13})


def test_a_rehearsal_evaluates_the_next_people_and_nobody_held_out(root: Path) -> None:
    split = by_hash(hold_out={"two": 5})
    rehearsed = by_hash(hold_out={"two": 5}, rehearsal={"two": 4})
    assert not set(rehearsed.held.names) & set(split.held.names)
    assert set(rehearsed.train.names) == set(split.train.names) - set(rehearsed.held.names)
    assert len(rehearsed.held.names) == 4
    lists = {
        "made": {"kind": "balanced", "pairs": 10, "part": "made"},
        "few": {"kind": "lfw", "path": "pairs.txt", "part": "people"},
    }
    data = {"exclude": {"people": ["pairs.txt"]}, "hold_out": {"made": 2}, "rehearsal": {"made": 4}}
    assert [evaluated.name for evaluated in Parts(joined(root, lists, **data)).pairs] == ["made"]
    with pytest.raises(RecipeError, match="data.rehearsal: it sets people aside beside those held out"):
        by_hash(rehearsal={"two": 4})
    with pytest.raises(RecipeError, match="data.hold_out: the images are of one source without parts: give a number"):
        on_folder(root, hold_out={"people": 2})


def test_people_are_left_out_by_name() -> None:
    everybody = by_hash().train.names
    assert by_hash(exclude_people=[everybody[3]]).train.names == everybody[:3] + everybody[4:]
    with pytest.raises(RecipeError, match="data.exclude_people: 'Ann' is no identity of these images, which have"):
        by_hash(exclude_people=["Ann"])


def test_of_a_single_source_the_held_out_identities_are_those_of_ever() -> None:
    parts = Parts(tiny())
    _, held = parts.split.train, parts.split.held
    assert held.names == ("s0-0000000", "s0-0000002", "s0-0000003", "s0-0000008")


def test_held_out_identities_of_one_part(root: Path) -> None:
    lists = {"made": {"kind": "balanced", "pairs": 10, "part": "made"}}
    recipe = joined(root, lists, hold_out=6)
    (chosen,) = Parts(recipe).pairs
    assert {name.partition("/")[0] for name in chosen.faces.names} == {"made"}
    recipe = joined(root, lists)
    with pytest.raises(RecipeError, match="evaluation.pairs.made: no identity of part made is held out"):
        _ = Parts(recipe).pairs


@pytest.mark.parametrize(
    ("source", "shared"),
    [
        ({"kind": "folder", "path": "people"}, True),
        ({"kind": "folder", "path": "same"}, True),  # a link to the same folder
        ({"kind": "folder", "path": "others"}, False),  # another data set may have an Ann of its own
        ({"kind": "synthetic", "identities": 4, "images": 4, "seed": 3}, True),
        ({"kind": "synthetic", "identities": 4, "images": 4, "seed": 4}, False),
    ],
)
def test_people_of_a_part_are_known_again_in_a_list_with_its_own_source(
    root: Path, source: dict[str, Any], shared: bool
) -> None:
    picture_folders(root / "others", PEOPLE, seed=1)
    os.symlink(root / "people", root / "same")
    recipe = joined(root, {"a": {"kind": "balanced", "pairs": 10, "source": source}})
    parts = Parts(recipe)
    if shared:
        with pytest.raises(RecipeError, match="evaluation.pairs.a: the run would also train on"):
            _ = parts.pairs
    else:
        assert len(parts.pairs) == 1


def test_the_content_tells_other_images_and_other_identities_apart(root: Path) -> None:
    first = Parts(on_folder(root)).content
    assert Parts(on_folder(root)).content == first
    assert Parts(on_folder(root, exclude=["pairs.txt"])).content != first
    picture_folders(root / "elsewhere" / "people", PEOPLE, seed=9)
    assert Parts(on_folder(root / "elsewhere")).content != first


def test_the_first_weights_follow_the_seed() -> None:
    first, again, other = (first_backbone(tiny(seed=seed)).shared()["fc.weight"] for seed in (0, 0, 1))
    assert first.equal(again) and not first.equal(other)


def test_the_parties_hold_private_identities_and_a_pretraining_takes_the_others() -> None:
    data = {
        "hold_out": 6,
        "scenario": "private-public",
        "private": {"identities": 4, "min_images": 3},
        "partition": {"kind": "one-identity"},
    }
    recipe = tiny(data=data, pretrain={"method": "centralized"})
    inner = recipe.pretrain.recipe
    parts = Parts(recipe)
    private, held = parts.split.train, parts.split.held
    public, held_too = splits.split(inner).train, splits.split(inner).held
    assert len(private.names) == 4 and private.counts().min() >= 3
    assert len(Parts(recipe).trainers) == 4 and set(held.names) == set(held_too.names)
    everyone = splits.split(tiny(data={"hold_out": 6})).train
    assert set(private.names) | set(public.names) == set(everyone.names) and not set(private.names) & set(public.names)
    reseeded = loader.parse({**recipe.model_dump(mode="json"), "seed": 5})
    assert splits.split(reseeded).train.names == private.names  # the same people whatever the seed
    with pytest.raises(RecipeError, match=r"data.private.identities: 900 identities need 3 images or more"):
        splits.split(tiny(data={**data, "scenario": "private-public", "private": {"identities": 900, "min_images": 3}}))
    with pytest.raises(RecipeError, match=r"data.side: not a key of data.scenario=silos .private-public, "):
        tiny(data={"side": "public"})


def test_fewer_of_the_others_are_public_and_the_rest_is_nobodys() -> None:
    def people(side: str, **private: int) -> set[str]:
        method = "fedavg" if side == "private" else "centralized"
        data = {"scenario": "private-public", "private": {"identities": 3, **private}, "side": side}
        return set(splits.split(tiny(method=method, data=data)).train.names)

    private, public = people("private", public=2), people("public", public=2)
    assert len(private) == 3 and len(public) == 2 and public < people("public")
    assert private == people("private") and people("both", public=2) == private | public
    with pytest.raises(RecipeError) as error:
        people("public", public=6)
    assert error.value.where == "data.private.public"


def test_fewer_of_the_private_people_are_dealt_and_the_rest_is_nobodys() -> None:
    private = {"identities": 4, "min_images": 3}
    data = {"hold_out": 6, "scenario": "private-public", "private": private, "test": {"images": 1}}
    data["partition"] = {"kind": "one-identity"}
    few = {**data, "private": {**private, "assigned": 2}}
    whole, part = (splits.split(tiny(data=of)).train for of in (data, few))
    assert len(part.names) == 2 and set(part.names) < set(whole.names)
    sides = [splits.split(tiny(data={**of, "side": "public", "test": None})).train.names for of in (data, few)]
    assert sides[0] == sides[1] and not set(sides[0]) & set(whole.names)
    for of, names in ((data, whole.names), (few, part.names)):  # pooled: the same clients, though test images are gone
        pooled = tiny(method="centralized", data={**of, "side": "both"})
        train, test = splits.split(pooled).train, splits.split(pooled).test
        assert set(train.names) == set(sides[0]) | set(names) and test is not None
        assert {name for own in Parts(pooled).clients.values() for name in own.names} == set(names)
        assert {test.names[label] for label in test.labels} == set(names)
    with pytest.raises(RecipeError, match=r"data.private.assigned: 5 of 4 identities; give fewer"):
        splits.split(tiny(data={**data, "scenario": "private-public", "private": {**private, "assigned": 5}}))
