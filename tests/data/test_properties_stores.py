"""Whatever lies at a path is opened as one of the forms, or refused by name; and what is opened can be gone through."""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from damage import damaged, fresh_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.data.readers.bin import write_bin
from coalface.data.stores import IDENTITIES, Store, open_store
from coalface.data.tools.convert import Pairs, convert
from coalface.data.tools.inspect import inspect

BOUNDED = settings(deadline=None, derandomize=True, max_examples=30)
PEOPLE = {"Ann_Lee": 3, "Bo": 2, "José": 2}


def picture(value: int) -> bytes:
    """A picture of 4 × 4 pixels, different for every value."""
    return cv2.imencode(".png", np.full((4, 4, 3), value, np.uint8))[1].tobytes()


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same images in every form; a `.bin` is a file, the others are folders."""
    root = tmp_path_factory.mktemp("forms")
    for k, (name, count) in enumerate(PEOPLE.items()):
        (root / "folder" / name).mkdir(parents=True)
        for i in range(count):
            (root / "folder" / name / f"{name}_{i + 1:04}.png").write_bytes(picture(10 * k + i))
    (root / "list.txt").write_text("2\nAnn_Lee 1 2\nBo 1 2\nAnn_Lee 3 Bo 1\nBo 2 José 1\n")
    folder = open_store(root / "folder")
    convert(folder, root / "rec", "rec")
    convert(folder, root / "pack", "pack", size=4)
    (root / "bin").mkdir()
    convert(folder, root / "bin" / "some.bin", "bin", pairs=Pairs(root / "list.txt"))
    return {kind: root / kind for kind in ("folder", "rec", "pack", "bin")}


def place(root: Path) -> Path:
    return root / "some.bin" if (root / "some.bin").exists() else root


def gone_through(store: Store) -> None:
    """Every image has a name and a place, and a look at all of them comes to an end."""
    assert len(store) == len(store.labels) == len(store.files)
    assert all(0 <= label < len(store.names) for label in store.labels.tolist())
    assert len(set(store.names)) == len(store.names)
    assert len(store.fingerprint()) == 64
    report = inspect(store.items(), store.names, store.files.__getitem__, path=str(store.path), kind=store.kind)
    assert report.images >= len(store)
    assert all(said.isprintable() for said in report.damaged)
    if store.pairs is not None:
        assert max(store.pairs.left.max(), store.pairs.right.max()) < len(store)


@pytest.mark.parametrize("kind", ["folder", "rec", "pack", "bin"])
def test_a_sound_store_is_what_was_written(forms: dict[str, Path], kind: str) -> None:
    store = open_store(place(forms[kind]))
    assert store.kind == kind
    gone_through(store)
    if kind != "bin":
        assert store.names == tuple(PEOPLE)
        assert [store.names[label] for label in store.labels] == [n for n, c in PEOPLE.items() for _ in range(c)]


@pytest.mark.parametrize("leave_out", [False, True])
@pytest.mark.parametrize("kind", ["folder", "rec", "pack", "bin"])
@BOUNDED
@given(data=st.data())
def test_any_damage_to_any_file_is_gone_through_or_named(
    forms: dict[str, Path], kind: str, leave_out: bool, data: st.DataObject
) -> None:
    with fresh_folder() as folder:
        root = folder / "set"
        shutil.copytree(forms[kind], root)
        file = data.draw(st.sampled_from(sorted(path for path in root.rglob("*") if path.is_file())), label="file")
        match data.draw(st.sampled_from(["damage", "damage", "damage", "remove", "folder"])):
            case "remove":
                file.unlink()
            case "folder":
                file.unlink()
                file.mkdir()
            case _:
                file.write_bytes(data.draw(damaged(file.read_bytes())))
        path = root / "some.bin" if kind == "bin" else root
        try:
            store = open_store(path, damaged="leave out" if leave_out else "error")
        except (ValueError, FileNotFoundError) as error:
            assert str(root) in str(error) and str(error).isprintable()
        else:
            gone_through(store)


NAMES = st.lists(
    st.sampled_from(["Ann", "Bo", "Bo", "..", "a/b", "", "é", "\x1b[0m", "x" * 300]) | st.text(max_size=4),
    min_size=1,
    max_size=5,
)


@BOUNDED
@given(NAMES, st.sampled_from(["\n", "\r\n", ""]))
def test_any_list_of_names_beside_records_is_used_or_named(forms: dict[str, Path], names: list[str], end: str) -> None:
    with fresh_folder() as folder:
        root = folder / "set"
        shutil.copytree(forms["rec"], root)
        (root / IDENTITIES).write_bytes(("\n".join(names) + end).encode("utf-8", "surrogatepass"))
        try:
            store = open_store(root)
        except ValueError as error:
            assert IDENTITIES in str(error) and str(error).isprintable() and len(str(error)) < 1000
            return
        gone_through(store)
        convert(store, folder / "out", "folder")  # a name that is accepted is one that can be a folder's
        if not any("/" in name for name in names):
            assert len(open_store(folder / "out")) == len(store)


def test_two_identities_of_one_name_beside_records_are_refused(forms: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(forms["rec"], tmp_path / "set")
    (tmp_path / "set" / IDENTITIES).write_text("Ann\nBo\nAnn\n")
    with pytest.raises(ValueError, match=r"identities\.txt names 'Ann' twice"):
        open_store(tmp_path / "set")


@pytest.mark.parametrize("name", ["x" * 240, "é" * 120])
def test_the_longest_names_beside_records(forms: dict[str, Path], tmp_path: Path, name: str) -> None:
    shutil.copytree(forms["rec"], tmp_path / "set")
    (tmp_path / "set" / IDENTITIES).write_text(f"{name}\nBo\nJosé\n", encoding="utf-8")
    convert(open_store(tmp_path / "set"), tmp_path / "out", "folder")
    assert name in open_store(tmp_path / "out").names
    (tmp_path / "set" / IDENTITIES).write_text(f"{name}x\nBo\nJosé\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"identity 1: .* is no plain name.*: it has 24. bytes .* 240 are"):
        open_store(tmp_path / "set")


FILES = st.sampled_from(
    ["train.rec", "train.idx", "property", IDENTITIES, "meta.json", "pixels.u8", "x.bin", "a/1.png", "a.mat", "1.jpg"]
)


@BOUNDED
@given(st.dictionaries(FILES, st.binary(max_size=40) | st.just(picture(1)), max_size=5), FILES | st.just(""))
def test_any_files_are_gone_through_or_named(files: dict[str, bytes], asked: str) -> None:
    with fresh_folder() as folder:
        root = folder / "set"
        root.mkdir()
        for name, content in files.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(content)
        try:
            store = open_store(root / asked, damaged="leave out")
        except (ValueError, FileNotFoundError) as error:
            assert str(root) in str(error) and str(error).isprintable()
        else:
            gone_through(store)


def test_a_matlab_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "30_years.mat").write_bytes(b"MATLAB 5.0 MAT-file")
    with pytest.raises(ValueError, match=r"30_years\.mat is a MATLAB file, which is not read: .*agedb_30\.bin"):
        open_store(tmp_path / "30_years.mat")


def test_a_bin_of_one_pair_can_be_gone_through(tmp_path: Path) -> None:
    write_bin(tmp_path / "x.bin", [picture(1), picture(2)], [True])
    gone_through(open_store(tmp_path / "x.bin"))
