"""Pair lists read from files in any form, or refused with file and line."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from damage import damaged, fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from unseen_faces import as_files, faces_of

from coalface.core.errors import DataError
from coalface.data.faceset import FaceSet
from coalface.data.pairs import all_pairs, list_sha256, named_identities, read_pairs

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
        ("left,right\na/1,a/2\n", r"line 1: .* no column for same \(same, "),
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
    expected = [("Ann_Lee/Ann_Lee_0001.jpg", "Ann_Lee/Ann_Lee_0003.jpg"), ("Bo/Bo_0001.jpg", "Cy/Cy_0001.jpg")]
    assert as_files(pairs, faces) == expected and pairs.same.tolist() == [True, False]
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
    message = str(caught.value)
    assert message.startswith(f"{path}, line 2: ") and f"from {tmp_path / 'faces'};" in message
    assert f"write {lfw_path('Bo', 2)} for it" in message and wrong in message


def test_a_set_without_files_is_refused(tmp_path: Path) -> None:
    faces = FaceSet(np.zeros((2, 1, 1, 1), np.uint8), np.arange(2), np.arange(2), ("a", "b"))
    with pytest.raises(
        ValueError, match="does not know its files, so a pair list cannot be resolved in it; read a fol"
    ):
        read_pairs(written(tmp_path, VIEW_1), faces)
    with pytest.raises(ValueError, match="does not know its files"):
        list_sha256(all_pairs(faces, impostors=1, per_identity=1, rng=np.random.default_rng(0)), faces)


BOUNDED = settings(deadline=None, derandomize=True, max_examples=30)

PEOPLE = {"Ann_Lee": 4, "José_Núñez": 3, "Bo": 2, "b\udcffd": 2, "d_0001": 3}
"""Identities and their images; one name is no UTF-8, one ends as a file's name does."""
FACES = faces_of(PEOPLE)
LABELS, FILES = FACES.labels, tuple(FACES.files or ())

images = st.integers(0, len(FILES) - 1)
ORDERED = list(itertools.permutations(range(len(FILES)), 2))
genuine = st.sampled_from([(a, b) for a, b in ORDERED if LABELS[a] == LABELS[b]])
impostors = st.sampled_from([(a, b) for a, b in ORDERED if LABELS[a] != LABELS[b]])


def as_line(pair: tuple[int, int], gap: str = "\t") -> str:
    (left_name, a), (right_name, b) = (FILES[image].partition("/")[2][:-4].rsplit("_", 1) for image in pair)
    return gap.join(
        [left_name, str(int(a)), str(int(b))]
        if left_name == right_name
        else [left_name, str(int(a)), right_name, str(int(b))]
    )


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
def test_any_list_is_read_back(case: tuple[str, list[tuple[int, int]], int | None]) -> None:
    text, pairs, folds = case
    with fresh_folder() as folder:
        path = put(folder, text)
        read_back = read_pairs(path, FACES)
        names = named_identities(path)
    assert list(zip(read_back.left.tolist(), read_back.right.tolist(), strict=True)) == pairs
    assert read_back.same.tolist() == [bool(LABELS[a] == LABELS[b]) for a, b in pairs]
    if folds is None:
        assert read_back.fold is None
    else:
        assert read_back.fold is not None
        assert read_back.fold.tolist() == np.repeat(np.arange(folds), len(pairs) // folds).tolist()
    assert names == {FACES.names[LABELS[image]] for pair in pairs for image in pair}


def read_or_named(path: Path) -> None:
    try:
        pairs = read_pairs(path, FACES)
    except ValueError as error:
        message = str(error)
        assert path.name in message and message.isprintable() and len(message) < 1000
    else:
        assert (pairs.left != pairs.right).all() and len(pairs) > 0
        assert pairs.fold is None or len(pairs.fold) == len(pairs)


WORDS = [*PEOPLE, "1", "2", "3", "0", "-1", "1.0", "１", "²", "9" * 20, "9" * 5000, "\n", "\n", "\t", " ", "\r", "\x00"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("list.mat", b"\0" * 200), ("LIST.MAT", b""), ("list.txt", b"MATLAB 5.0 MAT-file, Platform: GLNXA64")],
)
def test_matlab_files_are_told_apart(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: MATLAB files"):
        read_pairs(tmp_path / name, FACES)


@settings(BOUNDED, max_examples=50)
@given(
    lists().flatmap(lambda made: damaged(made[0].encode("utf-8", "surrogateescape")))
    | st.binary(max_size=60)
    | st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join)
)
def test_any_bytes_are_read_or_named(content: bytes | str) -> None:
    with fresh_folder() as folder:
        read_or_named(put(folder, content))
