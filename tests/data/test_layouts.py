from pathlib import Path

import cv2
import numpy as np
import pytest

from coalface.data.faceset import FaceSet
from coalface.data.joined import Joined
from coalface.data.pairs import PairList
from coalface.data.readers.layouts import LAYOUTS, RACES, read_layout, read_lists, recognise
from coalface.data.readers.pack import read_pack, write_pack
from coalface.data.source import Source
from coalface.data.synthetic.generator import SyntheticFaces

FACE = cv2.imencode(".jpg", SyntheticFaces(1, 1, seed=2, size=16, grey=False).generate().pixels[0])[1].tobytes()


def put(root: Path, *files: str) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(FACE)


def say(root: Path, file: str, *lines: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text("".join(f"{line}\n" for line in lines))


def cfp(root: Path) -> None:
    for person in ("001", "002"):
        put(root, *(f"Data/Images/{person}/frontal/{i:02}.jpg" for i in (1, 2)), f"Data/Images/{person}/profile/01.jpg")
    people = [(person, i) for person in ("001", "002") for i in (1, 2)]
    say(
        root,
        "Protocol/Pair_list_F.txt",
        *(f"{k} ../Data/Images/{p}/frontal/{i:02}.jpg" for k, (p, i) in enumerate(people, 1)),
    )
    say(root, "Protocol/Pair_list_P.txt", *(f"{k} ../Data/Images/00{k}/profile/01.jpg" for k in (1, 2)))
    say(root, "Protocol/Split/FP/01/same.txt", "1,1", "2,1")
    say(root, "Protocol/Split/FP/01/diff.txt", "1,2")
    say(root, "Protocol/Split/FP/02/same.txt", "4,2")
    say(root, "Protocol/Split/FP/02/diff.txt", "3,1")
    say(root, "Protocol/Split/FF/01/same.txt", "1,2")
    say(root, "Protocol/Split/FF/01/diff.txt", "2,3")


def calfw(root: Path, name: str = "CALFW", image: str = "{}_{:04}.jpg") -> None:
    files = [image.format(person, i) for person in ("Ann_Lee", "Bo") for i in (1, 2)]
    put(root, *(f"aligned images/{file}" for file in files))
    pairs = [(files[0], files[1], 1), (files[2], files[3], 2), (files[0], files[2], 0), (files[1], files[3], 0)]
    say(root, f"pairs_{name}.txt", *(f"{file} {flag}" for a, b, flag in pairs for file in (a, b)))


def agedb30(root: Path) -> None:
    files = ["0_MariaCallas_35_f.jpg", "1_MariaCallas_65_f.jpg", "2_Mel_Brooks_40_m.jpg"]
    put(root, *files)
    say(root, "agedb_30_pair.txt", f"{files[0]} {files[1]} 1", f"{files[0]} {files[2]} 0")


def cfp_unpacked(root: Path) -> None:
    put(root, *(f"imgs/{i}.jpg" for i in range(6)))
    lines = [f"{k % 2} {2 * (k % 3)}.jpg {2 * (k % 3) + 1}.jpg" for k in (1, 3, 5)] + ["0 imgs/0.jpg imgs/4.jpg"] * 8
    say(root, "cfp_fp_ann.txt", *lines)


def rfw(root: Path) -> None:
    for race in RACES:
        put(root, *(f"data/{race}/m.{p}/m.{p}_{i:04}.jpg" for p in ("01", "0x") for i in (1, 2)))
        say(root, f"txts/{race}/{race}_pairs.txt", *["m.01\t1\t2", "m.0x\t1\tm.01\t2"] * 6)


def bupt(root: Path) -> None:
    put(root, *(f"race_per_7000/{race}/m.{race[0]}{p}/{i}.jpg" for race in RACES for p in (1, 2) for i in (0, 1)))


def vggface2(root: Path) -> None:
    put(root, "train/n000002/0001_01.jpg", "train/n000003/0001_01.jpg", "test/n000001/0001_01.jpg")


def casia(root: Path) -> None:
    put(root, "0000045/001.jpg", "0000045/002.jpg", "0000099/001.jpg")


def agedb(root: Path) -> None:
    put(root, "0_MariaCallas_35_f.jpg", "1_MariaCallas_65_f.jpg", "2_Mel_Brooks_40_m.jpg")


MADE = {
    "cfp": cfp,
    "calfw": calfw,
    "cplfw": lambda root: calfw(root, "CPLFW", "{}_{}.jpg"),
    "agedb-30": agedb30,
    "cfp-fp": cfp_unpacked,
    "rfw": rfw,
    "bupt-balancedface": bupt,
    "vggface2": vggface2,
    "casia-webface": casia,
    "agedb": agedb,
}


def packed(root: Path, source: Source) -> FaceSet:
    write_pack(source, root.parent / "pack", size=8, grey=True)
    return read_pack(root.parent / "pack")


def made(tmp_path: Path, layout: str) -> tuple[Path, Source, FaceSet]:
    root = tmp_path / "set"
    root.mkdir()
    MADE[layout](root)
    source = read_layout(root)
    return root, source, packed(root, source)


def rows(faces: FaceSet, pairs: PairList) -> list[tuple[str, str, bool]]:
    """A list as files."""
    assert faces.files is not None
    files = faces.files
    columns = zip(pairs.left.tolist(), pairs.right.tolist(), pairs.same.tolist(), strict=True)
    return [(files[a], files[b], same) for a, b, same in columns]


def test_every_layout_is_made_here() -> None:
    assert set(MADE) == set(LAYOUTS)


@pytest.mark.parametrize("layout", MADE)
def test_a_layout_is_recognised_read_and_agrees_with_its_lists(tmp_path: Path, layout: str) -> None:
    root, source, faces = made(tmp_path, layout)
    assert recognise(root) == layout
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
    root, source, faces = made(tmp_path, layout)
    assert source.names == ("Ann_Lee", "Bo")
    (pairs,) = read_lists(root, faces).values()
    assert (pairs.name, pairs.fold, pairs.same.tolist()) == (layout, None, [True, True, False, False])
    assert rows(faces, pairs)[0][1] == f"aligned images/{second}"


def test_the_header_of_cplfws_list_is_no_image(tmp_path: Path) -> None:
    root, _, faces = made(tmp_path, "cplfw")
    without = rows(faces, read_lists(root, faces)["cplfw"])
    path = root / "pairs_CPLFW.txt"
    path.write_bytes(b"\xef\xbb\xbfname same_person\r\n" + path.read_bytes())
    assert rows(faces, read_lists(root, faces)["cplfw"]) == without


@pytest.mark.parametrize("layout", ["agedb-30", "agedb"])
def test_agedb_names_its_people(tmp_path: Path, layout: str) -> None:
    root, source, faces = made(tmp_path, layout)
    assert source.names == ("MariaCallas", "Mel_Brooks")
    lists = read_lists(root, faces)
    assert lists == {} or rows(faces, lists["agedb-30"])[1] == (
        "0_MariaCallas_35_f.jpg",
        "2_Mel_Brooks_40_m.jpg",
        False,
    )


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


def test_one_race_can_be_read_with_its_list(tmp_path: Path) -> None:
    rfw(tmp_path / "set")
    source = read_layout(tmp_path / "set", part="Asian")
    assert source.names == ("Asian/m.01", "Asian/m.0x")
    assert list(read_lists(tmp_path / "set", packed(tmp_path / "set", source))) == ["rfw-asian"]


def test_of_two_images_of_one_number_the_first_is_taken(tmp_path: Path) -> None:
    rfw(tmp_path / "set")
    put(tmp_path / "set", "data/Asian/m.01/m.01_0001.png")
    faces = packed(tmp_path / "set", read_layout(tmp_path / "set", part="Asian"))
    assert rows(faces, read_lists(tmp_path / "set", faces)["rfw-asian"])[0][0] == "Asian/m.01/m.01_0001.jpg"


def test_bupt_balancedface(tmp_path: Path) -> None:
    bupt(tmp_path)
    for root in (tmp_path, tmp_path / "race_per_7000"):
        source = read_layout(root)
        assert isinstance(source, Joined)
        assert source.names[:3] == ("African/m.A1", "African/m.A2", "Asian/m.A1")
        assert source.domain_numbers.tolist() == [k for k in range(4) for _ in range(4)]
    with pytest.raises(ValueError, match=r"has no part 'Martian': choose from African, Asian, Caucasian, Indian"):
        read_layout(tmp_path, part="Martian")


def test_vggface2_keeps_its_parts_apart(tmp_path: Path) -> None:
    vggface2(tmp_path)
    assert read_layout(tmp_path).names == read_layout(tmp_path, part="train").names == ("n000002", "n000003")
    assert read_layout(tmp_path, part="test").files == ("n000001/0001_01.jpg",)


def test_what_is_not_known_is_listed(tmp_path: Path) -> None:
    put(tmp_path, "ann/1.jpg")
    with pytest.raises(ValueError, match=r"has no known layout: .* read it as identity folders\. .*casia-webface: 00"):
        read_layout(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent is not a folder"):
        recognise(tmp_path / "absent")
    casia(tmp_path / "x")
    with pytest.raises(ValueError, match="has no part 'train': choose from none, it is one whole"):
        read_layout(tmp_path / "x", part="train")


BROKEN = [
    ("cfp", "Protocol/Split/FP/02/diff.txt", "3 1", r"diff\.txt, line 1: '3 1' is not two numbers with a comma"),
    ("cfp", "Protocol/Split/FP/02/diff.txt", "3,x", r"diff\.txt, line 1: 'x' is where a number belongs"),
    ("cfp", "Protocol/Split/FP/02/diff.txt", "3,9", r"diff\.txt, line 1: Pair_list_P\.txt has no image 9"),
    ("cfp", "Protocol/Pair_list_P.txt", "1", r"Pair_list_P\.txt, line 1: '1' is not a number and a path"),
    (
        "cfp",
        "Protocol/Pair_list_P.txt",
        "1 a.jpg\n2 b.jpg",
        r"same\.txt, line 1: Data/Images/a\.jpg is not in the face",
    ),
    ("cfp", "Protocol/Pair_list_F.txt", "", r"Pair_list_F\.txt is empty: fetch it again"),
    ("calfw", "pairs_CALFW.txt", "Bo_0001.jpg 1", r"pairs_CALFW\.txt, line 1: the last image has no second one"),
    (
        "calfw",
        "pairs_CALFW.txt",
        "Bo_0001.jpg 1\nBo_0002.jpg 0",
        r"line 1: .* is not two lines of an image and the same",
    ),
    (
        "calfw",
        "pairs_CALFW.txt",
        "Bo_0001.jpg 1\nBo_0003.jpg 1",
        r"line 1: aligned images/Bo_0003\.jpg is not in the face",
    ),
    ("calfw", "pairs_CALFW.txt", "Bo_0001.jpg x\nBo_0002.jpg x", r"line 1: 'x' is where a number belongs"),
    ("agedb-30", "agedb_30_pair.txt", "a.jpg b.jpg 2", r"line 1: 'a\.jpg b\.jpg 2' is not two images and"),
    ("agedb-30", "agedb_30_pair.txt", 300 * "a" + " b.jpg 1", r"line 1: a+ is not in the face set"),
    ("agedb-30", "agedb_30_pair.txt", "1 b.jpg 1", r"line 1: .* is not two images and"),
    ("agedb-30", "agedb_30_pair.txt", "../x.jpg b.jpg 1", r"line 1: .* is not two images below the folder"),
    ("agedb-30", "agedb_30_pair.txt", "/etc/x.jpg b.jpg 1", r"line 1: .* is not two images below the folder"),
    ("rfw", "txts/Asian/Asian_pairs.txt", "m.01 1", r"Asian_pairs\.txt, line 1: 'm\.01 1' is not `name a b` of one"),
    (
        "rfw",
        "txts/Asian/Asian_pairs.txt",
        "m.01 1 m.01 2",
        r"line 1: 'm\.01 1 m\.01 2' is not .* `name a name b` of two",
    ),
    ("rfw", "txts/Asian/Asian_pairs.txt", "m.01 1 7", r"line 1: Asian/m\.01/m\.01_0007 is not in the face set"),
    ("rfw", "txts/Asian/Asian_pairs.txt", "\n\nm.01 1 -2", r"line 3: '-2' is where a number belongs"),
]


@pytest.mark.parametrize(("layout", "file", "text", "message"), BROKEN)
def test_a_broken_list_is_named_with_its_line(tmp_path: Path, layout: str, file: str, text: str, message: str) -> None:
    root, _, faces = made(tmp_path, layout)
    say(root, file, *([text] if text else []))
    with pytest.raises(ValueError, match=message):
        read_lists(root, faces)


def test_missing_files_are_named(tmp_path: Path) -> None:
    root, _, faces = made(tmp_path, "rfw")
    (root / "txts/Indian/Indian_pairs.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"Indian_pairs\.txt is missing: fetch the data set's protocol again"):
        read_lists(root, faces)
    agedb30(tmp_path / "a")
    (tmp_path / "a/2_Mel_Brooks_40_m.jpg").unlink()
    with pytest.raises(
        ValueError, match=r"line 2: an image is missing, 0_MariaCallas_35_f\.jpg or 2_Mel_Brooks_40_m\.jpg"
    ):
        read_layout(tmp_path / "a")
    say(tmp_path / "c", "pairs_CPLFW.txt", "a 1")
    with pytest.raises(ValueError, match=r"c holds no images: put them there, or into images"):
        read_layout(tmp_path / "c")
