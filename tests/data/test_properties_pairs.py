"""Pair lists of either view, of any pairs, are read back; anything else is refused with file and line."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from damage import damaged, fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.data.faceset import FaceSet
from coalface.data.pairs import named_identities, read_pairs
from coalface.data.readers.bin import write_bin
from coalface.data.stores import Store, open_store
from coalface.data.tools.convert import PAIRS, convert

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


@BOUNDED
@given(lists(), st.sets(images, max_size=6))
def test_pairs_whose_images_are_missing_are_refused_or_counted(
    made: tuple[str, list[tuple[int, int]], int | None], gone: set[int]
) -> None:
    text, pairs, _ = made
    left = FACES.select(np.array([image for image in range(len(FACES)) if image not in gone], np.int64))
    kept = [pair for pair in pairs if not gone & set(pair)]
    with fresh_folder() as folder:
        path = put(folder, text)
        found = read_pairs(path, left, missing="skip")
        if len(kept) < len(pairs):
            with pytest.raises(ValueError, match=r"list\.txt, line [0-9]+: .* that are not in the face set"):
                read_pairs(path, left)
    rows = [(int(left.rows[a]), int(left.rows[b])) for a, b in zip(found.left, found.right, strict=True)]
    assert (rows, found.skipped) == (kept, len(pairs) - len(kept))


def read_or_named(path: Path) -> None:
    for missing in ("error", "skip"):
        try:
            found = read_pairs(path, FACES, missing=missing)  # type: ignore[arg-type]
        except ValueError as error:
            said = str(error)
            assert path.name in said and said.isprintable() and len(said) < 1000
        else:
            assert np.array_equal(LABELS[found.left] == LABELS[found.right], found.same)
            assert (found.left != found.right).all() and len(found) + found.skipped > 0
            assert found.fold is None or len(found.fold) == len(found)


@BOUNDED
@given(data=st.data())
def test_any_damage_is_read_or_named(data: st.DataObject) -> None:
    text, _, _ = data.draw(lists())
    with fresh_folder() as folder:
        read_or_named(put(folder, data.draw(damaged(text.encode("utf-8", "surrogateescape")))))


@BOUNDED
@given(data=st.data(), csv=st.booleans())
def test_damaged_lists_of_paths_are_read_or_named(data: st.DataObject, csv: bool) -> None:
    pairs = data.draw(st.lists(genuine | impostors, min_size=1, max_size=4))
    gap = "," if csv else " "
    lines = [gap.join([FILES[a], FILES[b], str(int(LABELS[a] == LABELS[b]))]) for a, b in pairs]
    text = "\n".join([*(["left,right,same"] if csv else []), *lines])
    with fresh_folder() as folder:
        found = read_pairs(put(folder, text), FACES)
        assert list(zip(found.left.tolist(), found.right.tolist(), strict=True)) == pairs
        path = put(folder, data.draw(damaged(text.encode("utf-8", "surrogateescape"))))
        for missing in ("error", "skip"):
            try:
                read_pairs(path, FACES, missing=missing)  # type: ignore[arg-type]
            except ValueError as error:
                said = str(error)
                assert path.name in said and said.isprintable() and len(said) < 1000


WORDS = [*PEOPLE, "1", "2", "3", "0", "-1", "1.0", "１", "²", "9" * 20, "9" * 5000, "\n", "\n", "\t", " ", "\r", "\x00"]


@BOUNDED
@given(st.binary(max_size=60) | st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join) | st.text(max_size=30))
def test_any_text_is_read_or_named(content: bytes | str) -> None:
    with fresh_folder() as folder:
        read_or_named(put(folder, content))


@pytest.mark.parametrize(
    "text",
    ["", "\n" * 9, "9" * 5000, "1\nBo " + "9" * 5000 + " 1\n", "1 " + "9" * 5000, "x" * 100_000, "1\n" + "y" * 100_000],
)
def test_long_words_are_named_in_short(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"list\.txt") as caught:
        read_pairs(put(tmp_path, text), FACES)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("name", "content"),
    [("list.mat", b"\0" * 200), ("LIST.MAT", b""), ("list.txt", b"MATLAB 5.0 MAT-file, Platform: GLNXA64")],
)
def test_matlab_files_are_told_apart(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is a MATLAB file, which is not read: export .* agedb_30\.bin"):
        read_pairs(tmp_path / name, FACES)


def grey(value: int) -> bytes:
    """A picture of one pixel, different for every value."""
    return b"P5 1 1 255\n" + bytes([value])


def shown_pairs(store: Store) -> list[tuple[bytes, bytes, bool]]:
    pairs = store.pairs
    assert pairs is not None
    columns = zip(pairs.left.tolist(), pairs.right.tolist(), pairs.same.tolist(), strict=True)
    return [(bytes(store.encoded(a)), bytes(store.encoded(b)), same) for a, b, same in columns]


@BOUNDED
@given(
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)).filter(lambda p: p[0] != p[1]), min_size=1, max_size=40)
)
def test_the_list_beside_folders_made_of_a_bin_is_read_back(pairs: list[tuple[int, int]]) -> None:
    """Images of one remainder by 3 are one person's: genuine pairs must link all that a `.bin` takes for one."""
    same = [a % 3 == b % 3 for a, b in pairs]
    with fresh_folder() as folder:
        write_bin(folder / "x.bin", [grey(image) for pair in pairs for image in pair], same)
        store = open_store(folder / "x.bin")
        remarks = convert(store, folder / "f", "folder")
        made = open_store(folder / "f")
        count = min(sum(same), len(same) - sum(same))
        if count == 0:
            assert not (folder / "f" / PAIRS).exists()
            assert any("there is no pairs.txt" in said for said in remarks)
            return
        faces = FaceSet(
            np.zeros((len(made), 1, 1, 1), np.uint8), np.arange(len(made)), made.labels, made.names, made.files
        )
        found = read_pairs(folder / "f" / PAIRS, faces)
        back = [
            (bytes(made.encoded(a)), bytes(made.encoded(b)), bool(s))
            for a, b, s in zip(found.left.tolist(), found.right.tolist(), found.same.tolist(), strict=True)
        ]
        wanted = shown_pairs(store)
        if not remarks:
            assert back == wanted
        assert len(back) == 2 * count and Counter(back) <= Counter(wanted)
