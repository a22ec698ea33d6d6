"""Every layout of the field's data sets into every form: its images, whose they are, and its own pair lists."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest
from field_layouts import WRITERS, say

from coalface.data.readers.layouts import RACES
from coalface.data.stores import Store, open_store
from coalface.data.tools import convert as converting
from coalface.data.tools.convert import Pairs, convert
from coalface.data.tools.naming import file_names

SIDE = 8


def picture(value: int) -> bytes:
    """A PNG of one colour, its own for every value below 256³."""
    colour = np.array([value % 256, value // 256 % 256, value // 65536], np.uint8)
    return cv2.imencode(".png", np.broadcast_to(colour, (SIDE, SIDE, 3)))[1].tobytes()


def lay(root: Path, layout: str) -> Path:
    """The small set of `test_layouts`, each image another picture."""
    root.mkdir()
    WRITERS[layout](root)
    for value, file in enumerate(sorted(root.rglob("*.jpg")), start=1):
        file.write_bytes(picture(value))
    return root


def colour(encoded: bytes | memoryview) -> tuple[int, ...]:
    return tuple(cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)[0, 0].tolist())


def held(store: Store) -> dict[str, list[tuple[int, ...]]]:
    """Identity → what its images show, in no order; two images of a set never show the same."""
    colours: dict[str, list[tuple[int, ...]]] = {}
    for i, label in enumerate(store.labels.tolist()):
        colours.setdefault(store.names[label], []).append(colour(store.encoded(i)))
    return {name: sorted(colours_of_one) for name, colours_of_one in colours.items()}


def paired(store: Store) -> list[tuple[tuple[int, ...], tuple[int, ...], bool]]:
    assert store.pairs is not None
    sides = zip(store.pairs.left.tolist(), store.pairs.right.tolist(), store.pairs.same.tolist(), strict=True)
    return [(colour(store.encoded(a)), colour(store.encoded(b)), same) for a, b, same in sides]


@pytest.mark.parametrize("kind", ["folder", "rec", "pack"])
@pytest.mark.parametrize("layout", WRITERS)
def test_every_layout_keeps_its_images_and_whose_they_are(tmp_path: Path, layout: str, kind: str) -> None:
    store = open_store(lay(tmp_path / "set", layout))
    assert store.layout == layout and len({c for colours in held(store).values() for c in colours}) == len(store)
    convert(store, tmp_path / "made", kind, size=SIDE)  # type: ignore[arg-type]
    folder = open_store(tmp_path / "made")
    assert folder.kind == kind and held(folder) == held(store)
    convert(folder, tmp_path / "folders", "folder")
    assert held(open_store(tmp_path / "folders")) == held(store)


OWN = {
    "cfp": ("cfp-ff", "cfp-fp"),
    "calfw": ("calfw",),
    "cplfw": ("cplfw",),
    "agedb-30": ("agedb-30",),
    "cfp-fp": ("cfp-fp",),
    "rfw": tuple(f"rfw-{race.lower()}" for race in RACES),
}
"""The layouts that have pair lists of their own."""


@pytest.mark.parametrize(("layout", "name"), [(layout, name) for layout, names in OWN.items() for name in names])
def test_a_layouts_own_list_becomes_a_bin(tmp_path: Path, layout: str, name: str) -> None:
    store = open_store(lay(tmp_path / "set", layout))
    whose = {colour(store.encoded(i)): store.names[label] for i, label in enumerate(store.labels.tolist())}
    convert(store, tmp_path / "x.bin", "bin", pairs=Pairs(name=name))
    pairs = paired(open_store(tmp_path / "x.bin"))
    assert all(same == (whose[a] == whose[b]) for a, b, same in pairs) and {same for _, _, same in pairs} == {
        True,
        False,
    }
    if len(OWN[layout]) == 1:  # then it need not be named
        convert(store, tmp_path / "y.bin", "bin")
        assert (tmp_path / "y.bin").read_bytes() == (tmp_path / "x.bin").read_bytes()
    else:
        with pytest.raises(ValueError, match=f"pair lists: choose one by --list {OWN[layout][0]}, --list "):
            convert(store, tmp_path / "y.bin", "bin")
    with pytest.raises(ValueError, match=r"has no pair list 'lfw': choose one by --list"):
        convert(store, tmp_path / "z.bin", "bin", pairs=Pairs(name="lfw"))


def test_names_that_files_get_in_the_folders_of_their_identities(tmp_path: Path) -> None:
    names = {layout: list(file_names(open_store(lay(tmp_path / layout, layout)))) for layout in WRITERS}
    assert names["cfp"][:3] == ["001/frontal_01.jpg", "001/frontal_02.jpg", "001/profile_01.jpg"]
    assert names["calfw"][1] == "Ann_Lee/Ann_Lee_0002.jpg" and names["cplfw"][3] == "Bo/Bo_2.jpg"
    assert names["agedb-30"][2] == names["agedb"][2] == "Mel_Brooks/2_Mel_Brooks_40_m.jpg"
    assert names["cfp-fp"] == [f"{k // 2:05}/{k}.jpg" for k in range(6)]
    assert names["rfw"][5] == "Asian/m.01/m.01_0002.jpg" and names["casia-webface"][0] == "0000045/001.jpg"


def test_files_of_one_name_keep_apart_in_the_folder_of_their_identity(tmp_path: Path) -> None:
    for side, value in (("l", 1), ("r", 2)):
        (tmp_path / "set" / side).mkdir(parents=True)
        (tmp_path / "set" / side / "a.jpg").write_bytes(picture(value))
    say(tmp_path / "set", "cfp_fp_pair.txt", "l/a.jpg r/a.jpg 1")
    store = open_store(tmp_path / "set")
    assert list(file_names(store)) == ["00000/l_a.jpg", "00000/r_a.jpg"]
    long = [f"{100 * 'l'}/{100 * 'm'}/{100 * 'n'}/{side}/a.jpg" for side in "lr"]
    assert list(file_names(dataclasses.replace(store, files=long))) == ["00000/00000000.jpg", "00000/00000001.jpg"]


def test_a_pack_of_parts_that_are_no_races_becomes_plain_folders(tmp_path: Path) -> None:
    lay(tmp_path / "set", "calfw")
    store = open_store(tmp_path / "set")
    joined = dataclasses.replace(store, names=("orl/s1", "lfw/s1"))
    assert list(file_names(joined))[::2] == ["orl_s1/Ann_Lee_0001.jpg", "lfw_s1/Bo_0001.jpg"]
    convert(joined, tmp_path / "g", "folder")
    assert set(held(open_store(tmp_path / "g"))) == {"orl_s1", "lfw_s1"}
    with pytest.raises(ValueError, match="a/b_c and a_b/c would share the folder a_b_c: rename one"):
        convert(dataclasses.replace(store, names=("a/b_c", "a_b/c")), tmp_path / "h", "folder")


@pytest.mark.parametrize("wrong", ["{}.jpg", "Ann_Lee/deep/{}.jpg", "Ann_Lee/{}.jpg"])
def test_what_would_be_read_otherwise_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    store = open_store(lay(tmp_path / "set", "calfw"))
    monkeypatch.setattr(
        converting, "file_names", lambda store: [wrong.format(i or ".hidden") for i in range(len(store))]
    )
    with pytest.raises(ValueError, match=r"/g: it is not made, since it would not be read again"):
        convert(store, tmp_path / "g", "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]
