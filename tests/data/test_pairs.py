"""Pair lists: read from files in any form, drawn by their definitions, refused with file and line."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from damage import damaged, fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.core.errors import DataError
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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("1\nBo 1\nBo 1 Cy 1\n", "line 2: 'Bo 1' .* genuine pair"),
        ("1\nBo 1 01\nBo 1 Cy 1\n", "line 2: .* one image twice"),
        ("1\nBo 1 2\nBo 1 Bo 2\n", "line 3: .* one person twice"),
        ("2\nBo 1 2\nBo 2 1\nBo 1 Cy 1\n", "promises 4 pairs .*, and 3 follow"),
        ("a/1 a/2 1\na/1 b/1 2\n", "line 2: expected two paths"),
        ("left,right\na/1,a/2\n", "line 1: .* a CSV with a header"),
        ("left,right,same\na/1,a/2,1,x\n", "line 2: .* 3 columns"),
        (
            "left,right,same,fold\na/1,a/2,1,0\na/1,b/1,0,0\na/1,a/3,true,4\na/2,a/3,1,4\n",
            "line 4: fold 4 has only genuine",
        ),
        ("name same_person\na_1.jpg 1\na_2.jpg 1\n", "two lines for a pair"),
        ("a/1 a/2 1\na/1 b/1 0\n", "line 1: 2 of 2 pairs .* such as a/1, a/2, b/1"),
        ("9" * 5000, ""),
        ("x" * 100_000, ""),
    ],
)
def test_a_malformed_list_is_told_by_file_and_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DataError, match=rf"pairsDevTest\.txt.*{reason}") as caught:
        read_pairs(written(tmp_path, text), faces_of(SMALL))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("lines", "fold"),
    [
        ("Ann_Lee/Ann_Lee_0001.jpg  Ann_Lee/Ann_Lee_0003.jpg 1|./Bo/Bo_0001 Cy/Cy_0001.jpg 0", None),
        (
            'n;"File_2";"is same";Fold;file 1|a b;Ann_Lee/Ann_Lee_0003.jpg;1;7;Ann_Lee/Ann_Lee_0001.jpg'
            "|c;Cy/Cy_0001.jpg;0; 7;Bo/Bo_0001.jpg",
            [7, 7],
        ),
    ],
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


@pytest.mark.parametrize("above", ["faces", "/elsewhere/faces"])
def test_other_paths_are_told_from_where_they_count_and_what_to_write(tmp_path: Path, above: str) -> None:
    wrong = f"{above}/{lfw_path('Bo', 2)}"
    path = written(tmp_path, f"{lfw_path('Bo', 1)} Bo/Bo_0002 1\n{wrong} Cy/Cy_0001 0")
    with pytest.raises(DataError, match="paths count from") as caught:
        read_pairs(path, faces_of(SMALL), root=tmp_path / "faces")
    said = str(caught.value)
    assert said.startswith(f"{path}, line 2: ") and f"from {tmp_path / 'faces'};" in said
    assert f"write {lfw_path('Bo', 2)} for it" in said and wrong in said


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


def test_what_cannot_be_drawn_is_told() -> None:
    faces = faces_of(MANY)
    with pytest.raises(ValueError, match="make 582 impostor pairs, not 583; ask for fewer"):
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


def test_balanced_pairs_beyond_what_there_is_are_refused() -> None:
    faces = faces_of({f"p{i}": 5 for i in range(6)})
    check_balanced(balanced_pairs(faces, pairs=60, folds=1, rng=rng()), faces, [60])
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


def test_a_set_without_files_is_refused(tmp_path: Path) -> None:
    faces = FaceSet(np.zeros((2, 1, 1, 1), np.uint8), np.arange(2), np.arange(2), ("a", "b"))
    with pytest.raises(
        ValueError, match="does not know its files, so a pair list cannot be resolved in it; read a fol"
    ):
        read_pairs(written(tmp_path, VIEW_1), faces)
    with pytest.raises(ValueError, match="does not know its files"):
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


BOUNDED = settings(deadline=None, derandomize=True, max_examples=60)

PEOPLE = {"Ann_Lee": 4, "José_Núñez": 3, "Bo": 2, "b\udcffd": 2, "d_0001": 3}
"""Identities and their images; one name is no UTF-8, one ends as a file's name does."""
LABELS = np.repeat(np.arange(len(PEOPLE)), list(PEOPLE.values()))
FILES = tuple(f"{name}/{name}_{k:04d}.jpg" for name, n in PEOPLE.items() for k in range(1, n + 1))
FACES = FaceSet(np.zeros((len(FILES), 1, 1, 1), np.uint8), np.arange(len(FILES)), LABELS, tuple(PEOPLE), FILES)

images = st.integers(0, len(FILES) - 1)
ORDERED = list(itertools.permutations(range(len(FILES)), 2))
genuine = st.sampled_from([(a, b) for a, b in ORDERED if LABELS[a] == LABELS[b]])
impostors = st.sampled_from([(a, b) for a, b in ORDERED if LABELS[a] != LABELS[b]])


def as_line(pair: tuple[int, int], gap: str = "\t") -> str:
    (one, a), (two, b) = (FILES[image].partition("/")[2][:-4].rsplit("_", 1) for image in pair)
    return gap.join([one, str(int(a)), str(int(b))] if one == two else [one, str(int(a)), two, str(int(b))])


@st.composite
def lists(draw: st.DrawFn) -> tuple[str, list[tuple[int, int]], int | None]:
    """A list as text, its pairs, and its folds (None for View 1)."""
    folds, size = draw(st.none() | st.integers(1, 3)), draw(st.integers(1, 4))
    pairs = []
    for _ in range(folds or 1):
        for kind in (genuine, impostors):
            pairs += draw(st.lists(kind, min_size=size, max_size=size))
    gap, end = draw(st.sampled_from(["\t", " ", " \t "])), draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n", " \n"]))
    lines = [str(size) if folds is None else f"{folds}{gap}{size}", *(as_line(pair, gap) for pair in pairs)]
    return end.join(lines) + draw(st.sampled_from(["", end])), pairs, folds


def put(folder: Path, content: bytes | str) -> Path:
    path = folder / "list.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
    return path


@BOUNDED
@given(lists())
def test_any_list_is_read_back(made: tuple[str, list[tuple[int, int]], int | None]) -> None:
    text, pairs, folds = made
    with fresh_folder() as folder:
        path = put(folder, text)
        found = read_pairs(path, FACES)
        named = named_identities(path)
    assert list(zip(found.left.tolist(), found.right.tolist(), strict=True)) == pairs
    assert found.same.tolist() == [bool(LABELS[a] == LABELS[b]) for a, b in pairs]
    if folds is None:
        assert found.fold is None
    else:
        assert found.fold is not None
        assert found.fold.tolist() == np.repeat(np.arange(folds), len(pairs) // folds).tolist()
    assert named == {FACES.names[LABELS[image]] for pair in pairs for image in pair}


def read_or_named(path: Path) -> None:
    for missing in ("error", "skip"):
        try:
            found = read_pairs(path, FACES, missing=missing)  # type: ignore[arg-type]
        except ValueError as error:
            said = str(error)
            assert path.name in said and said.isprintable() and len(said) < 1000
        else:
            assert (found.left != found.right).all() and len(found) + found.skipped > 0
            assert found.fold is None or len(found.fold) == len(found)


WORDS = [*PEOPLE, "1", "2", "3", "0", "-1", "1.0", "１", "²", "9" * 20, "9" * 5000, "\n", "\n", "\t", " ", "\r", "\x00"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("list.mat", b"\0" * 200), ("LIST.MAT", b""), ("list.txt", b"MATLAB 5.0 MAT-file, Platform: GLNXA64")],
)
def test_matlab_files_are_told_apart(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: MATLAB files"):
        read_pairs(tmp_path / name, FACES)


@settings(BOUNDED, max_examples=150)
@given(
    lists().flatmap(lambda made: damaged(made[0].encode("utf-8", "surrogateescape")))
    | st.binary(max_size=60)
    | st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join)
)
def test_any_bytes_are_read_or_named(content: bytes | str) -> None:
    with fresh_folder() as folder:
        read_or_named(put(folder, content))
