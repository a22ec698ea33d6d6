import itertools
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from coalface.data.faceset import FaceSet
from coalface.data.pairs import (
    DEVTEST_ALL_SHA256,
    PairList,
    all_pairs,
    balanced_pairs,
    devtest_all,
    list_sha256,
    named_identities,
    read_pairs,
)
from coalface.data.readers.folders import read_folder


def faces_of(counts: dict[str, int], first: int = 1) -> FaceSet:
    """Identities with so many images each, named as LFW names them; nothing here looks at a pixel."""
    labels = np.repeat(np.arange(len(counts)), list(counts.values()))
    files = tuple(f"{name}/{name}_{k:04d}.jpg" for name, n in counts.items() for k in range(first, n + first))
    return FaceSet(np.zeros((len(labels), 1, 1, 1), np.uint8), np.arange(len(labels)), labels, tuple(counts), files)


def shuffled(faces: FaceSet, seed: int) -> FaceSet:
    """The same images, with images and identities in another order."""
    rng = np.random.default_rng(seed)
    return faces.select(rng.permutation(len(faces))).only(rng.permutation(len(faces.names)))


def file(faces: FaceSet, image: int) -> str:
    assert faces.files is not None
    return faces.files[faces.rows[image]]


def as_files(pairs: PairList, faces: FaceSet) -> list[tuple[str, str]]:
    return [(file(faces, a), file(faces, b)) for a, b in zip(pairs.left, pairs.right, strict=True)]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


SMALL = {"Ann_Lee": 3, "Bo": 2, "Cy": 1}
VIEW_1 = "2\nAnn_Lee\t1\t3\nBo\t2\t1\nAnn_Lee\t2\tBo\t1\nCy\t1\tAnn_Lee\t3\n"
VIEW_2 = "2\t1\nAnn_Lee\t1\t2\nBo\t1\tCy\t1\nBo\t1\t2\nAnn_Lee\t1\tCy\t1\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pairsDevTest.txt"
    path.write_text(text)
    return path


def test_view_1_is_read_without_folds(tmp_path: Path) -> None:
    faces = faces_of(SMALL)  # images 0, 1, 2 of Ann, 3, 4 of Bo, 5 of Cy
    pairs = read_pairs(written(tmp_path, VIEW_1), faces)
    assert pairs.name == "pairsDevTest"
    assert pairs.left.tolist() == [0, 4, 1, 5]
    assert pairs.right.tolist() == [2, 3, 3, 2]
    assert pairs.same.tolist() == [True, True, False, False]
    assert pairs.fold is None
    assert pairs.headline is None
    assert pairs.skipped == 0
    assert len(pairs) == 4
    assert (pairs.left.dtype, pairs.right.dtype, pairs.same.dtype) == (np.int64, np.int64, np.bool_)


def test_view_2_is_read_with_folds(tmp_path: Path) -> None:
    pairs = read_pairs(written(tmp_path, VIEW_2), faces_of(SMALL))
    assert pairs.left.tolist() == [0, 3, 3, 0]
    assert pairs.right.tolist() == [1, 5, 4, 5]
    assert pairs.same.tolist() == [True, False, True, False]
    assert pairs.fold is not None
    assert pairs.fold.tolist() == [0, 0, 1, 1]


def test_lfws_own_ten_by_three_hundred(tmp_path: Path) -> None:
    names = {f"Person_{i}": 2 for i in range(301)}
    block = [f"Person_{i}\t1\t2" for i in range(300)] + [f"Person_{i}\t1\tPerson_{i + 1}\t2" for i in range(300)]
    pairs = read_pairs(written(tmp_path, "\n".join(["10\t300"] + 10 * block) + "\n"), faces_of(names))
    assert len(pairs) == 6000
    assert pairs.fold is not None
    assert np.bincount(pairs.fold).tolist() == [600] * 10
    for fold in range(10):
        assert pairs.same[pairs.fold == fold].tolist() == [True] * 300 + [False] * 300


def test_one_fold_is_still_a_fold(tmp_path: Path) -> None:
    pairs = read_pairs(written(tmp_path, "1 1\nBo 1 2\nBo 1 Cy 1"), faces_of(SMALL))
    assert pairs.fold is not None
    assert pairs.fold.tolist() == [0, 0]


def test_white_space_does_not_matter(tmp_path: Path) -> None:
    loose = VIEW_1.replace("\t", "   ").replace("\n", " \r\n\r\n")
    pairs = read_pairs(written(tmp_path, "\n" + loose), faces_of(SMALL))
    assert pairs.left.tolist() == [0, 4, 1, 5]
    assert pairs.right.tolist() == [2, 3, 3, 2]


def test_indices_are_places_in_the_view(tmp_path: Path) -> None:
    path = written(tmp_path, VIEW_1)
    faces = faces_of(SMALL)
    view = shuffled(faces, 3)
    assert as_files(read_pairs(path, view), view) == as_files(read_pairs(path, faces), faces)
    assert read_pairs(path, view).left.tolist() != read_pairs(path, faces).left.tolist()


def test_missing_images_are_named_or_skipped(tmp_path: Path) -> None:
    path = written(tmp_path, VIEW_2)
    faces = faces_of(SMALL).only([0, 1])
    with pytest.raises(ValueError, match=r"2 of 4 pairs name images .*, such as Cy/Cy_0001: .*missing=\"skip\""):
        read_pairs(path, faces)
    pairs = read_pairs(path, faces, missing="skip")
    assert pairs.left.tolist() == [0, 3]
    assert pairs.fold is not None
    assert pairs.fold.tolist() == [0, 1]
    assert pairs.skipped == 2


def test_only_the_first_few_missing_images_are_named(tmp_path: Path) -> None:
    lines = ["9"] + [f"P{i} 1 2" for i in range(9)] + [f"P{i} 1 Bo 1" for i in range(9)]
    with pytest.raises(ValueError, match=r"18 of 18 pairs .* such as P0/P0_0001, P0/P0_0002, P1/P1_0001: .*check"):
        read_pairs(written(tmp_path, "\n".join(lines)), faces_of(SMALL))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"pairsDevTest.txt is empty: a pair list begins with its number of pairs"),
        ("Bo 1 2\n", r"line 1: .* begins with its number of pairs, as in `500`, or .*`10 300`.*; found 'Bo 1 2'"),
        ("\n-2\n", r"line 2: .*found '-2'"),
        ("1\nBo 1\nBo 1 Cy 1\n", r"line 2: expected a genuine pair, `name a b`.* \(pair 1 of 1 .*; found 'Bo 1'"),
        ("1\nBo 1 x\nBo 1 Cy 1\n", r"line 2: expected a genuine pair, .*found 'Bo 1 x'"),
        ("1\nBo 0 1\nBo 1 Cy 1\n", r"line 2: expected a genuine pair, .*counted from 1"),
        ("1\nBo 1 01\nBo 1 Cy 1\n", r"line 2: a pair compares two images, and this names one twice"),
        ("1\n\nBo 1 2\nBo 1 2\n", r"line 4: expected an impostor pair, `name a name b`, .*found 'Bo 1 2'"),
        ("1\nBo 1 2\nBo 1 Bo 2\n", r"line 3: an impostor pair shows two people, and this names one"),
        ("2 1\nBo 1 2\nBo 1 Cy 1\nBo 1\n", r"line 4: .*\(pair 1 of 1 of this kind in fold 2\)"),
        ("2\nBo 1 2\nBo 2 1\nBo 1 Cy 1\n", r"promises 4 pairs \(2 genuine and 2 impostor\), and 3 follow: .*cut short"),
        ("2 1\nBo 1 2\nBo 1 Cy 1\n", r"promises 4 pairs \(1 genuine and 1 impostor in each of 2 folds\), and 2 follow"),
        ("1\nBo 1 2\nBo 1 Cy 1\nBo 1 2\n", r"promises 2 pairs .*, and 3 follow"),
    ],
)
def test_a_malformed_list_is_told_by_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_pairs(written(tmp_path, text), faces_of(SMALL))


@pytest.mark.parametrize(
    ("lines", "fold"),
    [
        ("Ann_Lee/Ann_Lee_0001.jpg  Ann_Lee/Ann_Lee_0003.jpg 1|./Bo/Bo_0001 Cy/Cy_0001.jpg 0", None),
        ("Ann_Lee/Ann_Lee_0001.jpg\tAnn_Lee/Ann_Lee_0003.jpg\t+1|Bo/Bo_0001.jpg\tCy/Cy_0001\t-1", None),
        ("left,right,same|Ann_Lee/Ann_Lee_0001.jpg,Ann_Lee/Ann_Lee_0003.jpg,True|Bo/Bo_0001,Cy/Cy_0001,False", None),
        (
            'n;"File_2";"is same";Fold;file 1|a b;Ann_Lee/Ann_Lee_0003.jpg;1;7;Ann_Lee/Ann_Lee_0001.jpg'
            "|c;Cy/Cy_0001.jpg;0; 7;Bo/Bo_0001.jpg",
            [7, 7],
        ),
    ],
    ids=["spaces", "tabs", "comma", "semicolon"],
)
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_lists_of_paths_are_read(tmp_path: Path, lines: str, fold: list[int] | None, bom: str) -> None:
    faces = faces_of(SMALL)
    path = written(tmp_path, bom + lines.replace("|", "\r\n"))
    pairs = read_pairs(path, faces)
    wanted = [("Ann_Lee/Ann_Lee_0001.jpg", "Ann_Lee/Ann_Lee_0003.jpg"), ("Bo/Bo_0001.jpg", "Cy/Cy_0001.jpg")]
    assert as_files(pairs, faces) == wanted and pairs.same.tolist() == [True, False]
    assert (None if pairs.fold is None else pairs.fold.tolist()) == fold
    assert named_identities(path) == {"Ann_Lee", "Bo", "Cy"}


def test_a_csv_may_have_spaces_and_the_separator_in_a_name(tmp_path: Path) -> None:
    faces = faces_of({"Lee, Ann": 2, "Bo": 1})
    files = [f'"{name}"' for name in (faces.files or ())]
    pairs = read_pairs(written(tmp_path, f"img1,img2,label\n{files[0]},{files[1]},1\n{files[0]},{files[2]},0"), faces)
    assert (pairs.left.tolist(), pairs.right.tolist(), pairs.same.tolist()) == ([0, 0], [1, 2], [True, False])


def test_a_byte_order_mark_is_no_part_of_an_lfw_list(tmp_path: Path) -> None:
    assert read_pairs(written(tmp_path, "\ufeff" + VIEW_1), faces_of(SMALL)).right.tolist() == [2, 3, 3, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a/1 a/2 1\na/1 b/1\n", r"line 2: expected two paths and 1 .* or 0 .*; found 'a/1 b/1'"),
        ("a/1 a/2 1\na/1 b/1 2\n", r"line 2: expected two paths and 1"),
        ("a/1 ./a/1 1\n", r"line 1: a pair compares two images, and this names one twice"),
        ("left,right\na/1,a/2\n", r"line 1: .* a CSV with a header such as `left,right,same`; found 'left,right'"),
        ("a/1,a/2,1\n", r"line 1: .* a CSV with a header"),
        ("left,right,same\n", r"has a header and no pair after it"),
        ("left,right,same\na/1,a/2,1,x\n", r"line 2: the header names 3 columns, and here are 4"),
        ("left,right,same,fold\na/1,a/2,1,one\n", r"line 2: 'one' is where the number of a fold belongs"),
        (
            "left,right,same,fold\na/1,a/2,1,0\na/1,b/1,0,0\na/1,a/3,true,4\na/2,a/3,1,4\n",
            r"line 4: fold 4 has only genuine pairs.* 1 of 2 folds",
        ),
        ("left,right,same,fold\na/1,b/2,0,3\n", r"line 2: fold 3 has only impostor pairs"),
        ("name same_person\na_1.jpg 1\na_2.jpg 1\n", r"two lines for a pair, as CALFW's and CPLFW's lists"),
        ("a/1 a/2 1\na/1 b/1 0\n", r"2 of 2 pairs name images that are not in the face set, such as a/1, a/2, b/1"),
    ],
)
def test_a_malformed_list_of_paths_is_told_by_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=rf"pairsDevTest\.txt.*{said}"):
        read_pairs(written(tmp_path, text), faces_of(SMALL))


def lfw_path(name: str, k: int) -> str:
    return f"{name}/{name}_{k:04}.jpg"


def test_absolute_paths_below_the_folder_of_the_images_are_taken(tmp_path: Path) -> None:
    faces, root = faces_of(SMALL), tmp_path / "faces"
    root.mkdir()
    (tmp_path / "linked").symlink_to(root)
    path = written(tmp_path, f"{root}/{lfw_path('Bo', 1)} {root}/../faces/Bo/Bo_0002 1\n{root}/Bo/Bo_0002 Cy/Cy_0001 0")
    for way in (root, tmp_path / "linked", root / ".." / "faces"):
        pairs = read_pairs(path, faces, root=way)
        assert (pairs.left.tolist(), pairs.right.tolist()) == ([3, 4], [4, 5])


@pytest.mark.parametrize("above", ["faces", "some/faces", "/elsewhere/faces", "../faces"])
def test_other_paths_are_told_from_where_they_count_and_what_to_write(tmp_path: Path, above: str) -> None:
    wrong = f"{above}/{lfw_path('Bo', 2)}"
    path = written(tmp_path, f"{lfw_path('Bo', 1)} Bo/Bo_0002 1\n{wrong} Cy/Cy_0001 0")
    with pytest.raises(ValueError, match="paths count from") as caught:
        read_pairs(path, faces_of(SMALL), root=tmp_path / "faces")
    said = str(caught.value)
    assert said.startswith(f"{path}, line 2: ") and f"from {tmp_path / 'faces'};" in said
    assert said.endswith(f"write {lfw_path('Bo', 2)} for {wrong}")


def test_an_absolute_path_names_nobody(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"txt, line 2: b/1 or /x/a/1 is an absolute path.* IDENTITY/file"):
        named_identities(written(tmp_path, "a/1 a/2 1\nb/1 /x/a/1 0\n"))


def test_paths_without_a_folder_name_nobody(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.jpg or b/2\.jpg lies in no folder"):
        named_identities(written(tmp_path, "a.jpg b/2.jpg 0\n"))


def test_named_identities_are_those_of_either_kind_of_line(tmp_path: Path) -> None:
    assert named_identities(written(tmp_path, VIEW_1)) == {"Ann_Lee", "Bo", "Cy"}
    assert named_identities(written(tmp_path, "1\nBo 1 2\nDi 1 Ed 7")) == {"Bo", "Di", "Ed"}


def naive_all_pairs(
    faces: FaceSet, impostors: int, per_identity: int, generator: np.random.Generator
) -> list[tuple[str, str, bool, bool]]:
    """The definition, word by word: one draw at a time, in plain Python."""
    images = sorted((faces.names[label].encode(), file(faces, i).encode()) for i, label in enumerate(faces.labels))
    genuine = {}
    for name, group in itertools.groupby(images, key=lambda image: image[0]):
        genuine[name] = [(a[1], b[1]) for a, b in itertools.combinations(group, 2)]
    drawn: list[tuple[bytes, bytes]] = []
    seen: set[frozenset[bytes]] = set()
    while len(drawn) < impostors:
        left, right = generator.integers(len(images), size=2)
        (name_a, a), (name_b, b) = images[left], images[right]
        if name_a != name_b and frozenset((a, b)) not in seen:
            seen.add(frozenset((a, b)))
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
    found = [(*f, s, h) for f, s, h in zip(as_files(pairs, faces), pairs.same, pairs.headline, strict=True)]
    assert found == naive_all_pairs(faces, 280, 6, naive)
    assert used.bit_generator.state == naive.bit_generator.state


def test_all_pairs_counts() -> None:
    pairs = all_pairs(faces_of(MANY), impostors=200, per_identity=6, rng=rng())
    assert pairs.headline is not None
    assert (len(pairs), int(pairs.same.sum())) == (321, 121)
    assert int((pairs.same & pairs.headline).sum()) == 6 + 6 + 6 + 6 + 6 + 3
    assert pairs.headline[~pairs.same].all()
    assert pairs.fold is None


def test_all_pairs_draws_from_the_named_only() -> None:
    faces = shuffled(faces_of(MANY), 1)
    some = {"B", "c_c", "é"}
    pairs = all_pairs(faces, impostors=60, per_identity=6, rng=rng(), names=some)
    alone = shuffled(faces_of({name: n for name, n in MANY.items() if name in some}), 2)
    expected = all_pairs(alone, impostors=60, per_identity=6, rng=rng())
    assert as_files(pairs, faces) == as_files(expected, alone)
    assert {faces.names[label] for label in faces.labels[pairs.left]} == some


def test_all_pairs_without_files_goes_by_identity_and_place() -> None:
    labels = np.array([1, 0, 1, 0, 2])
    faces = FaceSet(np.zeros((5, 1, 1, 1), np.uint8), np.arange(5), labels, ("z", "a", "m"))
    pairs = all_pairs(faces, impostors=8, per_identity=1, rng=rng())
    assert list(zip(pairs.left[:2], pairs.right[:2], strict=True)) == [(0, 2), (1, 3)]  # a, then z
    drawn = {frozenset(pair) for pair in zip(pairs.left[2:].tolist(), pairs.right[2:].tolist(), strict=True)}
    assert drawn == {frozenset(p) for p in itertools.combinations(range(5), 2)} - {frozenset((0, 2)), frozenset((1, 3))}


def test_more_than_half_of_the_impostor_pairs_are_a_choice() -> None:
    """400 of 582: all different, of two people each, and by the generator."""
    faces = faces_of(MANY)
    pairs = all_pairs(faces, impostors=400, per_identity=6, rng=rng(1))
    drawn = as_files(pairs, faces)[121:]
    assert len({frozenset(pair) for pair in drawn}) == 400
    assert all(a.split("/")[0] != b.split("/")[0] for a, b in drawn)
    again = all_pairs(faces, impostors=400, per_identity=6, rng=rng(1))
    other = all_pairs(faces, impostors=400, per_identity=6, rng=rng(2))
    assert as_files(again, faces)[121:] == drawn != as_files(other, faces)[121:]


def test_impostor_pairs_are_uniform() -> None:
    faces = faces_of({"a": 1, "b": 2, "c": 3})  # 11 impostor pairs, 22 ordered
    seen = Counter()
    for seed in range(3300):
        pairs = all_pairs(faces, impostors=2, per_identity=9, rng=rng(seed))
        seen.update(as_files(pairs, faces)[4:])
    assert len(seen) == 22
    assert max(abs(count - 300) for count in seen.values()) < 75


def test_what_cannot_be_drawn_is_told() -> None:
    faces = faces_of(MANY)
    with pytest.raises(ValueError, match="make 582 impostor pairs, and 583 are wanted: ask for no more"):
        all_pairs(faces, impostors=583, per_identity=6, rng=rng())
    with pytest.raises(ValueError, match="1 of the 2 named identities are not in the face set, such as nobody: check"):
        all_pairs(faces, impostors=1, per_identity=6, rng=rng(), names={"B", "nobody"})
    with pytest.raises(ValueError, match="no image to make pairs of"):
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
    both = faces.labels[np.stack([pairs.left, pairs.right])]
    return [set(both[:, pairs.fold == fold].ravel().tolist()) for fold in range(pairs.fold.max() + 1)]


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


def test_balanced_pairs_follow_the_generator() -> None:
    faces = faces_of({f"p{i}": 6 for i in range(30)})

    def files(seed: int) -> list[tuple[str, str]]:
        return as_files(balanced_pairs(faces, pairs=100, rng=rng(seed)), faces)

    assert files(1) == files(1) != files(2)


def test_balanced_pairs_beyond_what_there_is_are_refused() -> None:
    faces = faces_of({f"p{i}": 5 for i in range(6)})
    check_balanced(balanced_pairs(faces, pairs=60, folds=1, rng=rng()), faces, [60])
    with pytest.raises(ValueError, match="make 60 genuine pairs, and 61 are wanted"):
        balanced_pairs(faces, pairs=61, folds=1, rng=rng())
    with pytest.raises(ValueError, match=r"^5 genuine .* to 10 folds, .*: ask for 10 to 60 of each kind$"):
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


def test_the_hash_does_not_depend_on_the_order_of_the_face_set() -> None:
    faces, view = faces_of(MANY), shuffled(faces_of(MANY), 4)
    hashes = {list_sha256(all_pairs(f, impostors=99, per_identity=6, rng=rng()), f) for f in (faces, view)}
    assert len(hashes) == 1


def test_a_set_without_files_is_refused(tmp_path: Path) -> None:
    faces = FaceSet(np.zeros((2, 1, 1, 1), np.uint8), np.arange(2), np.arange(2), ("a", "b"))
    with pytest.raises(ValueError, match="does not know its files, so no pair list can be looked up in it: read a fol"):
        read_pairs(written(tmp_path, VIEW_1), faces)
    with pytest.raises(ValueError, match="does not know its files, so a pair list over it has no text form"):
        list_sha256(all_pairs(faces, impostors=1, per_identity=1, rng=rng()), faces)


needs_lfw = pytest.mark.skipif(
    "COALFACE_DATA" not in os.environ, reason="COALFACE_DATA is unset: it names the folder that holds lfw/"
)


@pytest.fixture(scope="module")
def lfw() -> FaceSet:
    """The images of LFW, listed and not decoded."""
    source = read_folder(Path(os.environ["COALFACE_DATA"]) / "lfw" / "images")
    n = len(source.files)
    return FaceSet(np.zeros((n, 1, 1, 1), np.uint8), np.arange(n), source.labels, source.names, source.files)


def lfw_list(name: str) -> Path:
    return Path(os.environ["COALFACE_DATA"]) / "lfw" / name


@needs_lfw
@pytest.mark.parametrize(("name", "each"), [("pairsDevTest.txt", 500), ("pairsDevTrain.txt", 967)])
def test_lfws_lists_are_read(lfw: FaceSet, name: str, each: int) -> None:
    pairs = read_pairs(lfw_list(name), lfw)
    assert pairs.same.tolist() == [True] * each + [False] * each
    assert np.array_equal(lfw.labels[pairs.left] == lfw.labels[pairs.right], pairs.same)


@needs_lfw
def test_devtest_all_is_the_committed_list(lfw: FaceSet) -> None:
    names = named_identities(lfw_list("pairsDevTest.txt"))
    assert len(names) == 963
    pairs = devtest_all(lfw, names)
    assert pairs.name == "devtest-all"
    assert (int(pairs.same.sum()), int((~pairs.same).sum())) == (23_524, 200_000)
    assert list_sha256(pairs, lfw) == DEVTEST_ALL_SHA256


@needs_lfw
@pytest.mark.slow
def test_devtest_all_equals_the_definition_drawn_one_by_one(lfw: FaceSet) -> None:
    names = named_identities(lfw_list("pairsDevTest.txt"))
    pairs = devtest_all(lfw, names)
    chosen = lfw.only([number for number, name in enumerate(lfw.names) if name in names])
    assert pairs.headline is not None
    found = [(*f, s, h) for f, s, h in zip(as_files(pairs, lfw), pairs.same, pairs.headline, strict=True)]
    assert found == naive_all_pairs(chosen, 200_000, 20, np.random.default_rng(2048))
