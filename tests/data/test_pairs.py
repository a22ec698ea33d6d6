"""Pair lists drawn by their definitions, with the hash that names them; LFW's lists."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from unseen_faces import as_files, faces_of, listed

from coalface.data.faceset import FaceSet
from coalface.data.pairs import (
    PairList,
    _available,
    across_pairs,
    all_pairs,
    balanced_pairs,
    devtest_all,
    list_sha256,
    named_identities,
    read_pairs,
)
from coalface.data.readers.folders import read_folder

SMALL = {"Ann_Lee": 3, "Bo": 2, "Cy": 1}


def shuffled(faces: FaceSet, seed: int) -> FaceSet:
    """The same images, with images and identities in another order."""
    rng = np.random.default_rng(seed)
    return faces.select(rng.permutation(len(faces))).only(rng.permutation(len(faces.names)))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def naive_all_pairs(
    faces: FaceSet, impostors: int, per_identity: int, generator: np.random.Generator
) -> list[tuple[str, str, bool, bool]]:
    """The definition, word by word: one draw at a time, in plain Python."""
    files = faces.files or ()
    images = sorted(
        (faces.names[label].encode(), files[faces.rows[i]].encode()) for i, label in enumerate(faces.labels)
    )
    genuine = {}
    for name, group in itertools.groupby(images, key=lambda image: image[0]):
        genuine[name] = [(a[1], b[1]) for a, b in itertools.combinations(group, 2)]
    drawn: list[tuple[bytes, bytes]] = []
    drawn_before: set[frozenset[bytes]] = set()
    while len(drawn) < impostors:
        left, right = generator.integers(len(images), size=2)
        (name_a, a), (name_b, b) = images[left], images[right]
        if name_a != name_b and frozenset((a, b)) not in drawn_before:
            drawn_before.add(frozenset((a, b)))
            drawn.append((a, b))
    result = []
    for pairs in genuine.values():
        counted = set(range(len(pairs)))
        if len(pairs) > per_identity:
            counted = set(generator.choice(len(pairs), per_identity, replace=False).tolist())
        result += [(a.decode(), b.decode(), True, k in counted) for k, (a, b) in enumerate(pairs)]
    return result + [(a.decode(), b.decode(), False, True) for a, b in drawn]


MANY = {"b": 7, "a": 1, "B-x": 4, "é": 5, "B": 12, "c_c": 6, "d": 3}
"""38 images, 121 genuine and 582 impostor pairs; not in the order of bytes, which is B, B-x, a, b, c_c, d, é."""


@pytest.mark.parametrize("seed", range(5))
def test_all_pairs_equals_the_definition_drawn_one_by_one(seed: int) -> None:
    faces = shuffled(faces_of(MANY), seed)
    used, naive = rng(seed), rng(seed)
    pairs = all_pairs(faces, impostors=280, per_identity=6, rng=used)
    assert pairs.headline is not None
    drawn = [(*f, s, h) for f, s, h in zip(as_files(pairs, faces), pairs.same, pairs.headline, strict=True)]
    assert drawn == naive_all_pairs(faces, 280, 6, naive)
    assert used.bit_generator.state == naive.bit_generator.state


def test_more_than_half_of_the_impostor_pairs_are_a_choice() -> None:
    """400 of 582: all different, of two people each, and by the generator."""
    faces = faces_of(MANY)
    pairs = all_pairs(faces, impostors=400, per_identity=6, rng=rng(1))
    drawn = as_files(pairs, faces)[121:]
    assert len({frozenset(pair) for pair in drawn}) == 400
    assert all(a.split("/")[0] != b.split("/")[0] for a, b in drawn)
    again = all_pairs(faces, impostors=400, per_identity=6, rng=rng(1))
    by_another_seed = all_pairs(faces, impostors=400, per_identity=6, rng=rng(2))
    assert as_files(again, faces)[121:] == drawn != as_files(by_another_seed, faces)[121:]


def test_what_cannot_be_drawn_is_told() -> None:
    faces = faces_of(MANY)
    with pytest.raises(ValueError, match="make 582 impostor pairs, not 583; set `pairs` to 582 or fewer"):
        all_pairs(faces, impostors=583, per_identity=6, rng=rng())
    with pytest.raises(ValueError, match="1 of the 2 named identities are not in the face set, such as nobody: check"):
        all_pairs(faces, impostors=1, per_identity=6, rng=rng(), names={"B", "nobody"})
    with pytest.raises(ValueError, match="no images to make pairs of"):
        all_pairs(faces, impostors=1, per_identity=6, rng=rng(), names=set())


def check_balanced(pairs: PairList, faces: FaceSet, sizes: list[int]) -> None:
    """As many genuine as impostor pairs in each fold, genuine first, none twice, each what it says."""
    assert pairs.fold is not None
    assert pairs.fold.tolist() == np.repeat(np.arange(len(sizes)), 2 * np.array(sizes)).tolist()
    for fold, size in enumerate(sizes):
        assert pairs.same[pairs.fold == fold].tolist() == [True] * size + [False] * size
    assert np.array_equal(faces.labels[pairs.left] == faces.labels[pairs.right], pairs.same)
    assert (pairs.left != pairs.right).all()
    assert len({frozenset(pair) for pair in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)}) == len(pairs)


def identities_by_fold(pairs: PairList, faces: FaceSet) -> list[set[int]]:
    assert pairs.fold is not None
    labels = faces.labels[np.stack([pairs.left, pairs.right])]
    return [set(labels[:, pairs.fold == fold].ravel().tolist()) for fold in range(pairs.fold.max() + 1)]


def test_balanced_pairs_keep_identities_to_one_fold() -> None:
    faces = shuffled(faces_of({f"p{i}": 4 + i % 7 for i in range(60)}), 5)
    pairs = balanced_pairs(faces, pairs=505, rng=rng())
    check_balanced(pairs, faces, [51] * 5 + [50] * 5)
    folds = identities_by_fold(pairs, faces)
    assert sum(map(len, folds)) == len(set.union(*folds)) > 50


def test_balanced_pairs_share_identities_where_they_must() -> None:
    """Six identities cannot be twenty in ten folds, and can make 60 pairs of either kind all the same."""
    faces = faces_of({f"p{i}": 5 for i in range(6)})
    pairs = balanced_pairs(faces, pairs=60, rng=rng())
    check_balanced(pairs, faces, [6] * 10)
    folds = identities_by_fold(pairs, faces)
    assert sum(map(len, folds)) > len(set.union(*folds)) == 6


def test_balanced_pairs_beyond_what_there_is_are_refused() -> None:
    faces = faces_of({f"p{i}": 5 for i in range(6)})
    check_balanced(balanced_pairs(faces, pairs=60, folds=1, rng=rng()), faces, [60])
    with pytest.raises(ValueError, match="has one image"):
        _available(np.arange(5), "genuine", 10)
    with pytest.raises(ValueError, match="make 60 genuine pairs, not 61"):
        balanced_pairs(faces, pairs=61, folds=1, rng=rng())
    with pytest.raises(ValueError, match=r"^5 genuine .* over 10 folds, .*: ask for 10 to 60 of each kind$"):
        balanced_pairs(faces, pairs=5, rng=rng())


def test_the_hash_is_that_of_the_text() -> None:
    """The text by hand; its SHA-256 by the command sha256sum."""
    faces = faces_of(SMALL)
    plain = PairList("x", np.array([0, 3]), np.array([2, 5]), np.array([True, False]))
    # printf 'Ann_Lee/Ann_Lee_0001.jpg\tAnn_Lee/Ann_Lee_0003.jpg\t1\t-\t-\nBo/Bo_0001.jpg\tCy/Cy_0001.jpg\t0\t-\t-\n'
    assert list_sha256(plain, faces) == "dd93fcf0025a75d87853f98778364d8095349e62ae5bbb624a46e290be66f010"
    full = PairList("x", plain.left, plain.right, plain.same, fold=np.array([0, 1]), headline=np.array([False, True]))
    # printf 'Ann_Lee/Ann_Lee_0001.jpg\tAnn_Lee/Ann_Lee_0003.jpg\t1\t0\t0\nBo/Bo_0001.jpg\tCy/Cy_0001.jpg\t0\t1\t1\n'
    assert list_sha256(full, faces) == "a3a6d1a4269b570ffe11f706a14495b03bd019313a49f5edaef49044a3dc8d1b"


needs_lfw = pytest.mark.skipif(
    "COALFACE_DATA" not in os.environ, reason="COALFACE_DATA is unset: it names the folder that holds lfw/"
)


@pytest.fixture(scope="module")
def lfw() -> FaceSet:
    """The images of LFW, listed and not decoded."""
    return listed(read_folder(Path(os.environ["COALFACE_DATA"]) / "lfw" / "images"))


def lfw_list(name: str) -> Path:
    return Path(os.environ["COALFACE_DATA"]) / "lfw" / name


@needs_lfw
@pytest.mark.parametrize(("name", "count"), [("pairsDevTest.txt", 500), ("pairsDevTrain.txt", 967)])
def test_lfws_lists_are_read(lfw: FaceSet, name: str, count: int) -> None:
    pairs = read_pairs(lfw_list(name), lfw)
    assert pairs.same.tolist() == [True] * count + [False] * count
    assert np.array_equal(lfw.labels[pairs.left] == lfw.labels[pairs.right], pairs.same)


@needs_lfw
def test_devtest_all_is_the_committed_list(lfw: FaceSet) -> None:
    names = named_identities(lfw_list("pairsDevTest.txt"))
    assert len(names) == 963
    pairs = devtest_all(lfw, names)
    assert pairs.name == "devtest-all"
    assert (int(pairs.same.sum()), int((~pairs.same).sum())) == (23_524, 200_000)
    assert list_sha256(pairs, lfw) == "6653e83c3d32815f79336c90a43e1ac311d018fd3c2ee6e837278a11b00933e7"


def posed(people: int, frontal: int = 4, profile: int = 2) -> FaceSet:
    """So many people with images in two folders each."""
    names = [f"{number:03d}" for number in range(people)]
    files = {
        name: [
            f"{name}/{folder}/{k}.jpg" for folder, n in (("frontal", frontal), ("profile", profile)) for k in range(n)
        ]
        for name in names
    }
    return posed_set(names, files)


def posed_set(names: list[str], files: dict[str, list[str]]) -> FaceSet:
    flat = tuple(file for name in names for file in files[name])
    labels = np.repeat(np.arange(len(names)), [len(files[name]) for name in names])
    return FaceSet(np.zeros((len(flat), 2, 2, 1), np.uint8), np.arange(len(flat)), labels, tuple(names), files=flat)


@pytest.mark.parametrize("second", ["profile", "frontal"])
def test_pairs_across_two_folders_are_as_many_of_each_person_and_stay_in_its_fold(second: str) -> None:
    faces = posed(20)
    pairs = across_pairs(faces, folders=("frontal", second), each=3, rng=rng(), folds=5, title="poses")
    assert faces.files is not None and pairs.fold is not None
    left, right = faces.labels[pairs.left], faces.labels[pairs.right]
    assert {faces.files[i].split("/")[1] for i in pairs.left} == {"frontal"}
    assert {faces.files[i].split("/")[1] for i in pairs.right} == {second}
    assert np.array_equal(left == right, pairs.same)
    assert np.bincount(left[pairs.same]).tolist() == np.bincount(left[~pairs.same]).tolist() == [3] * 20
    fold_of = {person: set(pairs.fold[(left == person) | (right == person)].tolist()) for person in range(20)}
    assert all(len(folds) == 1 for folds in fold_of.values())
    assert np.bincount([min(folds) for folds in fold_of.values()]).tolist() == [4] * 5
    assert not (pairs.left == pairs.right).any()
    assert len({frozenset(pair) for pair in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)}) == len(pairs)
    first_of_fold = [pairs.same[pairs.fold == number] for number in range(5)]
    assert all(same.tolist() == [True] * 12 + [False] * 12 for same in first_of_fold)


def test_pairs_across_folders_do_not_depend_on_the_order_of_the_images_and_follow_the_generator() -> None:
    def text(faces: FaceSet, seed: int) -> list[tuple[str, str]]:
        pairs = across_pairs(faces, folders=("frontal", "profile"), each=3, rng=rng(seed), folds=2, title="poses")
        assert faces.files is not None
        return [
            (faces.files[faces.rows[a]], faces.files[faces.rows[b]])
            for a, b in zip(pairs.left, pairs.right, strict=True)
        ]

    faces = posed(6)
    order = rng(5).permutation(len(faces))
    assert sorted(text(faces.select(order), 0)) == sorted(text(faces, 0))
    assert text(faces, 1) != text(faces, 0)


def test_a_person_with_few_pairs_across_folders_has_all_of_them() -> None:
    pairs = across_pairs(posed(4, 2, 1), folders=("frontal", "profile"), each=6, rng=rng(), folds=1, title="poses")
    assert (pairs.same.sum(), (~pairs.same).sum()) == (4 * 2, 4 * 6)


def test_folders_without_images_and_folds_without_strangers_are_told() -> None:
    with pytest.raises(ValueError, match="no image lies in a folder 'side'; they lie in frontal, profile"):
        across_pairs(posed(4), folders=("frontal", "side"), each=1, rng=rng(), folds=2, title="poses")
    with pytest.raises(ValueError, match="1 identities, which cannot make 1 impostor pairs"):
        across_pairs(posed(4), folders=("frontal", "profile"), each=1, rng=rng(), folds=4, title="poses")
