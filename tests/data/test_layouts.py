"""The layouts of the field's data sets: recognised, read with their lists; any damage is read or named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from damage import damaged, fresh_folder
from field_layouts import WRITERS, agedb30, bupt, casia, put, rfw, say, vggface2
from hypothesis import given, settings
from hypothesis import strategies as st
from unseen_faces import listed

from coalface.core.errors import DataError
from coalface.data.faceset import FaceSet
from coalface.data.joined import Joined
from coalface.data.pairs import PairList
from coalface.data.readers.layouts import LAYOUTS, RACES, read_layout, read_lists, recognise
from coalface.data.readers.pack import read_pack, write_pack
from coalface.data.source import Source


def packed(root: Path, source: Source) -> FaceSet:
    write_pack(source, root.parent / "pack", size=8, grey=True)
    return read_pack(root.parent / "pack")


def made(tmp_path: Path, layout: str) -> tuple[Path, Source, FaceSet]:
    root = tmp_path / "set"
    root.mkdir()
    WRITERS[layout](root)
    source = read_layout(root)
    return root, source, packed(root, source)


def rows(faces: FaceSet, pairs: PairList) -> list[tuple[str, str, bool]]:
    """A list as files."""
    assert faces.files is not None
    files = faces.files
    columns = zip(pairs.left.tolist(), pairs.right.tolist(), pairs.same.tolist(), strict=True)
    return [(files[a], files[b], same) for a, b, same in columns]


@pytest.mark.parametrize("layout", WRITERS)
def test_a_layout_is_recognised_read_and_agrees_with_its_lists(tmp_path: Path, layout: str) -> None:
    root, source, faces = made(tmp_path, layout)
    assert recognise(root) == layout
    fitting = [name for name in LAYOUTS if LAYOUTS[name].fits(root)]
    assert fitting == ([layout, "agedb"] if layout == "agedb-30" else [layout])  # whose images are called as AgeDB's
    assert len(source.files) == len(source.labels) == len(faces) > 0
    assert set(source.labels.tolist()) == set(range(len(source.names)))
    for pairs in read_lists(root, faces).values():
        assert np.array_equal(faces.labels[pairs.left] == faces.labels[pairs.right], pairs.same)
        assert pairs.fold is None or len(pairs.fold) == len(pairs)


def test_cfp(tmp_path: Path) -> None:
    root, source, faces = made(tmp_path, "cfp")
    assert source.names == ("001", "002")
    assert source.files[:3] == tuple(f"Data/Images/001/{x}.jpg" for x in ("frontal/01", "frontal/02", "profile/01"))
    lists = read_lists(root, faces)
    at = "Data/Images/00"
    assert rows(faces, lists["cfp-fp"]) == [
        (f"{at}1/frontal/01.jpg", f"{at}1/profile/01.jpg", True),
        (f"{at}1/frontal/02.jpg", f"{at}1/profile/01.jpg", True),
        (f"{at}1/frontal/01.jpg", f"{at}2/profile/01.jpg", False),
        (f"{at}2/frontal/02.jpg", f"{at}2/profile/01.jpg", True),
        (f"{at}2/frontal/01.jpg", f"{at}1/profile/01.jpg", False),
    ]
    assert lists["cfp-fp"].fold.tolist() == [0, 0, 0, 1, 1]  # type: ignore[union-attr]
    assert rows(faces, lists["cfp-ff"])[1] == (f"{at}1/frontal/02.jpg", f"{at}2/frontal/01.jpg", False)


@pytest.mark.parametrize(("layout", "second"), [("calfw", "Ann_Lee_0002.jpg"), ("cplfw", "Ann_Lee_2.jpg")])
def test_calfw_and_cplfw(tmp_path: Path, layout: str, second: str) -> None:
    pairs_file = f"pairs_{layout.upper()}.txt"
    root, source, faces = made(tmp_path, layout)
    assert source.names == ("Ann_Lee", "Bo")
    (pairs,) = read_lists(root, faces).values()
    assert (pairs.name, pairs.fold, pairs.same.tolist()) == (layout, None, [True, True, False, False])
    assert rows(faces, pairs)[0][1] == f"aligned images/{second}"
    path = root / pairs_file
    path.write_bytes(b"\xef\xbb\xbfname same_person\r\n" + path.read_bytes())  # CPLFW's has a header
    assert rows(faces, read_lists(root, faces)[layout]) == rows(faces, pairs)


def test_a_pose_of_cfp(tmp_path: Path) -> None:
    root, source, _ = made(tmp_path, "cfp")
    poses = {pose: read_layout(root, part=pose).files for pose in ("frontal", "profile")}
    assert all(f"/{pose}/" in file for pose, files in poses.items() for file in files)
    assert sorted(file for files in poses.values() for file in files) == sorted(source.files)


@pytest.mark.skipif("COALFACE_DATA" not in os.environ, reason="COALFACE_DATA is not set")
def test_cplfws_own_list_is_read(tmp_path: Path) -> None:
    """Its images are not here: each is the same face under its name."""
    shutil.copyfile(Path(os.environ["COALFACE_DATA"], "lists", "pairs_CPLFW.txt"), tmp_path / "pairs_CPLFW.txt")
    files = {line.split()[0] for line in (tmp_path / "pairs_CPLFW.txt").read_text().splitlines()[1:]}
    put(tmp_path, *(f"aligned images/{file}" for file in files))
    source = read_layout(tmp_path)
    (pairs,) = read_lists(tmp_path, listed(source)).values()
    assert (len(source.files), len(source.names), len(pairs), int(pairs.same.sum())) == (5984, 2296, 6000, 3000)
    assert np.array_equal(source.labels[pairs.left] == source.labels[pairs.right], pairs.same)


@pytest.mark.skipif("COALFACE_DATA" not in os.environ, reason="COALFACE_DATA is not set")
def test_cfp_as_it_ships_is_read() -> None:
    root = Path(os.environ["COALFACE_DATA"], "cfp")
    source = read_layout(root)
    assert (len(source.files), len(source.names)) == (7000, 500)
    lists = read_lists(root, listed(source))
    assert sorted(lists) == ["cfp-ff", "cfp-fp"]
    for name, pairs in lists.items():
        assert np.array_equal(source.labels[pairs.left] == source.labels[pairs.right], pairs.same)
        assert pairs.fold is not None and np.bincount(pairs.fold).tolist() == [700] * 10
        assert {"/profile/" in source.files[i] for i in pairs.right.tolist()} == {name == "cfp-fp"}


def test_an_unpacked_bin_knows_identities_from_its_genuine_pairs(tmp_path: Path) -> None:
    root, source, faces = made(tmp_path, "cfp-fp")
    assert source.files == tuple(f"imgs/{i}.jpg" for i in range(6))
    assert source.labels.tolist() == [0, 0, 1, 1, 2, 2]
    pairs = read_lists(root, faces)["cfp-fp"]
    assert rows(faces, pairs)[2:4] == [("imgs/4.jpg", "imgs/5.jpg", True), ("imgs/0.jpg", "imgs/4.jpg", False)]
    assert pairs.fold.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]  # type: ignore[union-attr]


def test_rfw_has_a_domain_and_a_list_for_each_race(tmp_path: Path) -> None:
    root, source, faces = made(tmp_path, "rfw")
    assert isinstance(source, Joined)
    assert tuple(source.parts) == RACES
    assert source.domain_numbers.tolist() == [k for k in range(4) for _ in range(4)]
    lists = read_lists(root, faces)
    assert list(lists) == ["rfw-african", "rfw-asian", "rfw-caucasian", "rfw-indian"]
    assert rows(faces, lists["rfw-indian"])[:2] == [
        ("Indian/m.01/m.01_0001.jpg", "Indian/m.01/m.01_0002.jpg", True),
        ("Indian/m.0x/m.0x_0001.jpg", "Indian/m.01/m.01_0002.jpg", False),
    ]
    assert lists["rfw-asian"].fold.tolist() == [0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9]  # type: ignore[union-attr]


def test_bupt_balancedface(tmp_path: Path) -> None:
    bupt(tmp_path)
    for root in (tmp_path, tmp_path / "race_per_7000"):
        source = read_layout(root)
        assert isinstance(source, Joined)
        assert source.names[:3] == ("African/m.A1", "African/m.A2", "Asian/m.A1")
        assert source.domain_numbers.tolist() == [k for k in range(4) for _ in range(4)]
    with pytest.raises(DataError, match=r"has no part 'Martian': choose from African, Asian, Caucasian, Indian"):
        read_layout(tmp_path, part="Martian")


def test_what_is_not_known_is_listed(tmp_path: Path) -> None:
    put(tmp_path, "ann/1.jpg")
    with pytest.raises(DataError, match=r"unknown layout; .* read it as identity folders"):
        read_layout(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent is not a folder"):
        recognise(tmp_path / "absent")
    casia(tmp_path / "x")
    with pytest.raises(DataError, match="has no part 'train': choose from none, it is one whole"):
        read_layout(tmp_path / "x", part="train")


def test_parts_are_read_alone(tmp_path: Path) -> None:
    vggface2(tmp_path / "v")
    assert (
        read_layout(tmp_path / "v").names == read_layout(tmp_path / "v", part="train").names == ("n000002", "n000003")
    )
    assert read_layout(tmp_path / "v", part="test").files == ("n000001/0001_01.jpg",)
    rfw(tmp_path / "set")
    source = read_layout(tmp_path / "set", part="Asian")
    assert source.names == ("Asian/m.01", "Asian/m.0x")
    assert list(read_lists(tmp_path / "set", packed(tmp_path / "set", source))) == ["rfw-asian"]
    shutil.rmtree(tmp_path / "set" / "data" / "Indian")
    assert len(read_layout(tmp_path / "set").files) == 12
    with pytest.raises(DataError, match=r"data/Indian: it has no identity folders"):
        read_layout(tmp_path / "set", part="Indian")


@pytest.mark.parametrize(
    ("layout", "file", "text", "reason"),
    [
        ("cfp", "Protocol/Split/FP/02/diff.txt", "3 1", "two numbers with a comma"),
        ("cfp", "Protocol/Split/FP/02/diff.txt", "3,9", "no image 9"),
        ("cfp", "Protocol/Pair_list_F.txt", "", "is empty"),
        ("calfw", "pairs_CALFW.txt", "Bo_0001.jpg 1", "no second one"),
        ("calfw", "pairs_CALFW.txt", "Bo_0001.jpg 1\nBo_0002.jpg 0", "the same number"),
        ("agedb-30", "agedb_30_pair.txt", "a.jpg b.jpg 2", "two images and"),
        ("agedb-30", "agedb_30_pair.txt", 300 * "a" + " b.jpg 1", "missing from the face set"),
        ("agedb-30", "agedb_30_pair.txt", "../x.jpg b.jpg 1", "below the folder"),
        ("rfw", "txts/Asian/Asian_pairs.txt", "m.01 1", "`name a name b`"),
        ("rfw", "txts/Asian/Asian_pairs.txt", "m.01 1 7", "Asian/m.01/m.01_0007"),
    ],
)
def test_a_broken_list_is_named_with_its_line(tmp_path: Path, layout: str, file: str, text: str, reason: str) -> None:
    root, _, faces = made(tmp_path, layout)
    say(root, file, *([text] if text else []))
    with pytest.raises(DataError, match=r"\.txt(, line \d|: it is empty)") as caught:
        read_lists(root, faces)
    assert reason in str(caught.value)


def test_missing_files_are_named(tmp_path: Path) -> None:
    root, _, faces = made(tmp_path, "rfw")
    (root / "txts/Indian/Indian_pairs.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"Indian_pairs\.txt does not exist; fetch the data set's protocol"):
        read_lists(root, faces)
    agedb30(tmp_path / "a")
    (tmp_path / "a/2_Mel_Brooks_40_m.jpg").unlink()
    with pytest.raises(
        ValueError, match=r"line 2: an image is missing, 0_MariaCallas_35_f\.jpg or 2_Mel_Brooks_40_m\.jpg"
    ):
        read_layout(tmp_path / "a")
    say(tmp_path / "c", "pairs_CPLFW.txt", "a 1")
    with pytest.raises(DataError, match=r"c: it has no images"):
        read_layout(tmp_path / "c")


BOUNDED = settings(deadline=None, derandomize=True, max_examples=8)


@pytest.fixture(scope="module", params=sorted(WRITERS))
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set in a layout."""
    root = tmp_path_factory.mktemp(request.param) / "set"
    root.mkdir()
    WRITERS[request.param](root)
    return root


def read_or_named(root: Path, faces: FaceSet | None) -> None:
    """Read all of it; the lists over `faces`, or over the images that are there."""
    try:
        source = read_layout(root)
        over = faces or listed(source)
        lists = read_lists(root, over)
    except (ValueError, FileNotFoundError) as error:
        message = str(error)
        assert str(root) in message and message.isprintable() and len(message) < 2000
        return
    assert len(source.files) == len(source.labels) > 0
    assert set(source.labels.tolist()) == set(range(len(source.names)))
    for pairs in lists.values():
        assert len(pairs.left) == len(pairs.right) == len(pairs.same) > 0
        assert min(pairs.left.min(), pairs.right.min()) >= 0
        assert max(pairs.left.max(), pairs.right.max()) < len(over)
        assert pairs.fold is None or len(pairs.fold) == len(pairs)


def test_agedbs_own_protocols_are_told_apart(tmp_path: Path) -> None:
    WRITERS["agedb"](tmp_path)
    assert read_lists(tmp_path, listed(read_layout(tmp_path))) == {}
    (tmp_path / "protocol_30.mat").write_bytes(b"MATLAB 5.0 MAT-file")
    faces = listed(read_layout(tmp_path))  # the images are read all the same
    with pytest.raises(DataError, match=r"protocol_30\.mat: MATLAB files"):
        read_lists(tmp_path, faces)


@BOUNDED
@given(data=st.data())
def test_any_damage_to_any_list_is_read_or_named(sound: Path, data: st.DataObject) -> None:
    """Bytes changed, and lines of the right words in wrong places, which damage to single bytes seldom makes."""
    texts = sorted(path for path in sound.rglob("*") if path.is_file() and path.suffix != ".jpg")
    if not texts:
        return
    list_words = {word for path in texts for word in path.read_text().split()}
    all_words = sorted(
        list_words | {"0", "1", "2", "-1", "99999999999", "1,1", ",", "..", "/", "x" * 5000, "\x00", "\u2028"}
    )
    lines = st.lists(st.lists(st.sampled_from(all_words), max_size=5).map(" ".join), max_size=6).map("\n".join)
    with fresh_folder() as folder:
        root = folder / "set"
        shutil.copytree(sound, root)
        path = root / data.draw(st.sampled_from(texts)).relative_to(sound)
        path.write_bytes(data.draw(damaged(path.read_bytes()) | lines.map(str.encode)))
        read_or_named(root, listed(read_layout(sound)))
        read_or_named(root, None)
