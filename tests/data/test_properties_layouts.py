"""The layouts of the field's data sets: any damage to any of their lists, and any file missing, is read or named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from damage import damaged, fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from test_layouts import MADE

from coalface.data.faceset import FaceSet
from coalface.data.readers.layouts import LAYOUTS, read_layout, read_lists, recognise
from coalface.data.source import Source

BOUNDED = settings(deadline=None, derandomize=True, max_examples=20)


@pytest.fixture(scope="module", params=sorted(MADE))
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A layout's name and a small data set in it."""
    root = tmp_path_factory.mktemp(request.param) / "set"
    root.mkdir()
    MADE[request.param](root)
    return request.param, root


def listed(source: Source) -> FaceSet:
    """The images of a source as a face set; nothing here looks at a pixel."""
    n = len(source.files)
    return FaceSet(np.zeros((n, 1, 1, 1), np.uint8), np.arange(n), source.labels, source.names, source.files)


def files_of(root: Path, *, images: bool) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file() and (p.suffix in (".jpg", ".png")) == images)


def read_or_named(root: Path, faces: FaceSet | None, layout: str) -> None:
    """Read all of it; the lists over `faces`, or over the images that are there."""
    try:
        source = read_layout(root, layout=layout)
        over = faces or listed(source)
        lists = read_lists(root, over, layout=layout)
    except (ValueError, FileNotFoundError) as error:
        said = str(error)
        assert str(root) in said and said.isprintable() and len(said) < 2000
        return
    assert len(source.files) == len(source.labels) > 0
    assert set(source.labels.tolist()) == set(range(len(source.names)))
    for pairs in lists.values():
        assert len(pairs.left) == len(pairs.right) == len(pairs.same) > 0
        assert min(pairs.left.min(), pairs.right.min()) >= 0
        assert max(pairs.left.max(), pairs.right.max()) < len(over)
        assert pairs.fold is None or len(pairs.fold) == len(pairs)


@BOUNDED
@given(data=st.data())
def test_any_damage_to_any_list_is_read_or_named(sound: tuple[str, Path], data: st.DataObject) -> None:
    layout, whole = sound
    texts = files_of(whole, images=False)
    if not texts:
        return
    with fresh_folder() as folder:
        root = folder / "set"
        shutil.copytree(whole, root)
        path = root / data.draw(st.sampled_from(texts)).relative_to(whole)
        path.write_bytes(data.draw(damaged(path.read_bytes())))
        read_or_named(root, listed(read_layout(whole)), layout)
        read_or_named(root, None, layout)


@BOUNDED
@given(data=st.data())
def test_any_file_that_is_missing_or_a_folder_is_named_or_does_not_matter(
    sound: tuple[str, Path], data: st.DataObject
) -> None:
    layout, whole = sound
    with fresh_folder() as folder:
        root = folder / "set"
        shutil.copytree(whole, root)
        paths = sorted(path for path in root.rglob("*"))
        for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3, unique=True)):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()
            if data.draw(st.booleans()) and path.parent.is_dir():
                path.mkdir()
        try:
            found = recognise(root)
        except ValueError as error:
            assert str(root) in str(error)
            return
        read_or_named(root, None, found)
        if found == layout:
            read_or_named(root, listed(read_layout(whole)), layout)


def words(root: Path) -> Iterator[str]:
    for path in files_of(root, images=False):
        yield from path.read_text().split()


@BOUNDED
@given(data=st.data())
def test_any_words_of_a_layouts_own_are_read_or_named(sound: tuple[str, Path], data: st.DataObject) -> None:
    """Lines of the right words in wrong places, which damage to single bytes seldom makes."""
    layout, whole = sound
    texts = files_of(whole, images=False)
    if not texts:
        return
    known = sorted(
        {*words(whole), "0", "1", "2", "-1", "99999999999", "1,1", ",", "..", "/", "x" * 5000, "\x00", "\u2028"}
    )
    lines = data.draw(st.lists(st.lists(st.sampled_from(known), max_size=5).map(" ".join), max_size=6))
    with fresh_folder() as folder:
        root = folder / "set"
        shutil.copytree(whole, root)
        path = root / data.draw(st.sampled_from(texts)).relative_to(whole)
        path.write_text("\n".join(lines), encoding="utf-8")
        read_or_named(root, listed(read_layout(whole)), layout)
        read_or_named(root, None, layout)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_no_layout_takes_another_for_its_own(tmp_path: Path, layout: str) -> None:
    (tmp_path / "set").mkdir()
    MADE[layout](tmp_path / "set")
    assert recognise(tmp_path / "set") == layout
    read_or_named(tmp_path / "set", None, layout)
    for other in LAYOUTS:
        if other != layout and layout != "agedb-30":  # whose images are called as AgeDB's
            with pytest.raises(ValueError, match=rf"has not the layout {other}: .*; give the folder that holds"):
                read_layout(tmp_path / "set", layout=other)


def test_a_layout_that_is_none(tmp_path: Path) -> None:
    for read in (lambda: read_layout(tmp_path, layout="lwf"), lambda: read_lists(tmp_path, listed_one(), layout="lwf")):
        with pytest.raises(ValueError, match="there is no layout 'lwf'; known: cfp, calfw, "):
            read()


def listed_one() -> FaceSet:
    return FaceSet(np.zeros((1, 1, 1, 1), np.uint8), np.arange(1), np.zeros(1, np.int64), ("a",), ("a/1.jpg",))


def test_a_layout_without_images_is_named(tmp_path: Path) -> None:
    MADE["cfp"](tmp_path)
    shutil.rmtree(tmp_path / "Data" / "Images")
    (tmp_path / "Data" / "Images").mkdir()
    assert recognise(tmp_path) == "cfp"
    with pytest.raises(ValueError, match=rf"{tmp_path.name} holds no image where one is expected: Data/Images/001"):
        read_layout(tmp_path)


def test_a_race_that_is_not_there_is_named(tmp_path: Path) -> None:
    MADE["rfw"](tmp_path)
    shutil.rmtree(tmp_path / "data" / "Indian")
    assert len(read_layout(tmp_path).files) == 12
    with pytest.raises(ValueError, match=r"data/Indian holds no folder of an identity"):
        read_layout(tmp_path, part="Indian")


def test_agedbs_own_protocols_are_told_apart(tmp_path: Path) -> None:
    MADE["agedb"](tmp_path)
    assert read_lists(tmp_path, listed(read_layout(tmp_path))) == {}
    (tmp_path / "protocol_30.mat").write_bytes(b"MATLAB 5.0 MAT-file")
    faces = listed(read_layout(tmp_path))  # the images are read all the same
    with pytest.raises(ValueError, match=r"protocol_30\.mat is a MATLAB file, which is not read: .*agedb_30\.bin"):
        read_lists(tmp_path, faces)


MEMBERS = sorted(
    {"a.jpg", "0_MariaCallas_35_f.jpg", "pairs_CALFW.txt", "agedb_30_pair.txt", "cfp_fp_ann.txt", "txts/x"}
    | {
        f"{folder}/{file}"
        for folder in ("data/Asian/m.01", "African", "Asian/m.1", "train/n000001", "0000045", "Data/Images/001/frontal")
        for file in ("m.01_0001.jpg", "1.jpg")
    }
    | {"Protocol/Pair_list_F.txt", "Protocol/Pair_list_P.txt", "Protocol/Split/FP/01/same.txt"}
)


@BOUNDED
@given(
    st.dictionaries(
        st.sampled_from(MEMBERS), st.sampled_from([b"", b"1 a.jpg\n", b"a.jpg 1\na.jpg 1\n", b"1,1\n"]), max_size=8
    )
)
def test_any_mixture_of_layouts_is_read_or_named(files: dict[str, bytes]) -> None:
    with fresh_folder() as folder:
        root = folder / "set"
        root.mkdir()
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        for layout in LAYOUTS:
            read_or_named(root, None, layout)
        try:
            recognise(root)
        except ValueError as error:
            assert str(root) in str(error)
