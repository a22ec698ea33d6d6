import os
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from coalface.core.text import shown
from coalface.data.readers.folders import SUFFIXES, Folder, doubts, empty_folders, list_images, read_folder
from coalface.data.source import decode, in_order
from coalface.data.stores import open_store


def ramp(height: int, width: int) -> np.ndarray:
    """A smooth colour image, in OpenCV's order blue, green, red."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([255 * x / width, 255 * y / height, 200 + 0 * x], axis=2).astype(np.uint8)


def put(root: Path, file: str, image: np.ndarray) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(root / file), image)


def encoded(image: np.ndarray, suffix: str) -> bytes:
    return cv2.imencode(suffix, image)[1].tobytes()


def test_images_can_be_listed_under_any_identity(tmp_path: Path) -> None:
    for file in ["b_1.png", "a/x/1.png", "a_2.png"]:
        put(tmp_path, file, ramp(4, 4))
    source = list_images(tmp_path, [("bo", "b_1.png"), ("ann", "a/x/1.png"), ("bo", "a_2.png")])
    assert (source.names, source.files) == (("bo", "ann"), ("b_1.png", "a/x/1.png", "a_2.png"))
    assert source.labels.tolist() == [0, 1, 0]
    assert len(list(source.images(size=4, grey=True))) == 3
    assert source.fingerprint() != list_images(tmp_path, [("bo", "b_1.png")]).fingerprint()


def test_identities_and_files_come_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    for file in ["bo/2.png", "bo/10.png", "Zoe/a.png", "Zoe/B.png", "Émile/1.png", "bo-2/1.png"]:
        put(tmp_path, file, ramp(4, 4))
    source = read_folder(tmp_path)
    assert source.names == ("Zoe", "bo", "bo-2", "Émile")
    assert source.files == ("Zoe/B.png", "Zoe/a.png", "bo/10.png", "bo/2.png", "bo-2/1.png", "Émile/1.png")
    assert source.labels.tolist() == [0, 0, 1, 1, 2, 3]


def test_what_is_no_identity_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "ann/1.PNG", ramp(4, 4))
    put(tmp_path, "loose.png", ramp(4, 4))
    put(tmp_path, ".hidden/1.png", ramp(4, 4))
    put(tmp_path, "ann/.1.png", ramp(4, 4))
    (tmp_path / "empty").mkdir()
    (tmp_path / "ann" / "notes.txt").write_text("no image")
    (tmp_path / "ann" / "folder.png").mkdir()
    assert read_folder(tmp_path).files == ("ann/1.PNG",)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_image_type_is_read(tmp_path: Path, suffix: str) -> None:
    value = 255 if suffix == ".pbm" else 90  # of which the former has white and black alone
    image = np.full((6, 6), value, np.uint8) if suffix in (".pgm", ".pbm") else np.full((6, 6, 3), value, np.uint8)
    put(tmp_path, f"ann/1{suffix}", image)
    (pixels,) = read_folder(tmp_path).images(size=6, grey=True)
    assert pixels.shape == (6, 6, 1)
    assert np.abs(pixels.astype(int) - value).max() <= 2


@pytest.mark.parametrize(
    ("ending", "written", "grey"),
    [
        (".pbm", b"P1\n2 2\n1 0\n0 1\n", [[0, 255], [255, 0]]),
        (".pbm", b"P4\n2 2\n\x80\x40", [[0, 255], [255, 0]]),
        (".pgm", b"P2\n2 2\n255\n1 2 3 4\n", [[1, 2], [3, 4]]),
        (".pgm", b"P5\n2 2\n255\n\x01\x02\x03\x04", [[1, 2], [3, 4]]),
        (".ppm", b"P3\n2 1\n255\n9 9 9 7 7 7\n", [[9, 7]]),
        (".pnm", b"P6\n2 1\n255\n\x09\x09\x09\x07\x07\x07", [[9, 7]]),
    ],
)
def test_portable_maps_of_every_kind_are_read(
    tmp_path: Path, ending: str, written: bytes, grey: list[list[int]]
) -> None:
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / f"1{ending}").write_bytes(written)
    (pixels,) = read_folder(tmp_path).images(size=len(grey), grey=True)
    assert pixels[:, :, 0].tolist() == [row[: len(grey)] for row in grey]


def test_a_file_of_any_length_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ann").mkdir()
    with open(tmp_path / "ann" / "1.jpg", "wb") as file:
        file.truncate(20 << 30)  # takes no room on the disk
    monkeypatch.setattr(Path, "read_bytes", lambda at: pytest.fail(f"{at} was read"))
    with pytest.raises(ValueError, match=r"1\.jpg has 21,474,836,480 bytes, and an image may have 536,870,911: if it"):
        list(read_folder(tmp_path).images(size=6, grey=True))
    store = open_store(tmp_path, damaged="leave out")
    (item,) = store.items()
    assert item.encoded is None and str(item.problem).startswith(
        f"{tmp_path / 'ann' / '1.jpg'} has 21,474,836,480 bytes"
    )


def test_colours_come_as_red_green_blue() -> None:
    image = np.zeros((2, 2, 3), np.uint8)
    image[:] = (10, 20, 200)  # blue, green, red
    pixels = decode(encoded(image, ".png"), "x", size=2, grey=False)
    assert pixels.shape == (2, 2, 3)
    assert pixels[0, 0].tolist() == [200, 20, 10]


def test_grey_is_the_weighted_sum_of_the_colours() -> None:
    image = np.full((2, 2, 3), (10, 20, 200), np.uint8)
    grey = decode(encoded(image, ".png"), "x", size=2, grey=True)
    assert abs(int(grey[0, 0, 0]) - (0.299 * 200 + 0.587 * 20 + 0.114 * 10)) <= 1


def test_shrinking_averages_areas() -> None:
    image = np.arange(16, dtype=np.uint8).reshape(4, 4) * 10
    small = decode(encoded(image, ".png"), "x", size=2, grey=True)[:, :, 0]
    by_hand = [
        [(0 + 10 + 40 + 50) / 4, (20 + 30 + 60 + 70) / 4],
        [(80 + 90 + 120 + 130) / 4, (100 + 110 + 140 + 150) / 4],
    ]
    assert small.tolist() == by_hand


def test_growing_keeps_the_range_of_the_pixels() -> None:
    large = decode(encoded(np.array([[0, 100], [0, 100]], np.uint8), ".png"), "x", size=8, grey=True)
    assert large.shape == (8, 8, 1)
    assert (large.min(), large.max()) == (0, 100)
    assert 0 < large[0, 4, 0] < 100


@pytest.mark.parametrize(("height", "width"), [(7, 4), (4, 7)])
def test_an_oblong_image_is_cut_to_its_central_square(height: int, width: int) -> None:
    image = np.arange(28, dtype=np.uint8).reshape(height, width)
    square = decode(encoded(image, ".png"), "x", size=4, grey=True)[:, :, 0]
    assert np.array_equal(square, image[1:5, :] if height > width else image[:, 1:5])


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
@pytest.mark.parametrize("kept", [0.0, 0.6, 0.97])
def test_a_damaged_image_is_named(tmp_path: Path, suffix: str, kept: float, capfd: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "ann/1.png", ramp(40, 40))
    whole = encoded(ramp(40, 40), suffix)
    (tmp_path / "ann" / f"2{suffix}").write_bytes(whole[: int(len(whole) * kept)])
    images = read_folder(tmp_path).images(size=8, grey=False)
    assert next(images).shape == (8, 8, 3)
    with pytest.raises(
        ValueError, match=rf"ann/2{suffix} is damaged .*[:;] replace it from the original, or delete it"
    ):
        next(images)
    capfd.readouterr()  # the decoder also complains on its own


def test_an_empty_folder_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder below it holds an image. Put the images of each person into a f"):
        read_folder(tmp_path)
    put(tmp_path, "photo.jpg", ramp(4, 4))
    with pytest.raises(ValueError, match=r"it has 1 image in no identity's folder.*NAME/photo.jpg"):
        read_folder(tmp_path)


def test_images_that_lie_deeper_are_told_with_the_layout_that_is_read(tmp_path: Path) -> None:
    for file in ("ann/fr/1.png", "bo/2.png/3.png", ".git/4.png"):
        put(tmp_path, file, ramp(4, 4))
    with pytest.raises(ValueError, match=r"2 images lie deeper, .* such as ann/fr/1\.png\. .*NAME/photo\.jpg.* above"):
        read_folder(tmp_path)


def test_a_missing_folder_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent is not a folder: give the folder that holds one folder of im"):
        read_folder(tmp_path / "absent")


def test_the_fingerprint_follows_names_sizes_and_times(tmp_path: Path) -> None:
    first = tmp_path / "ann" / "1.png"
    put(tmp_path, "ann/1.png", ramp(4, 4))
    os.utime(first, ns=(0, 1_000))

    def fingerprint() -> str:
        return read_folder(tmp_path).fingerprint()

    seen = [fingerprint()]
    assert fingerprint() == seen[0]
    os.utime(first, ns=(0, 2_000))
    seen.append(fingerprint())
    first.write_bytes(first.read_bytes() + b"\0")
    os.utime(first, ns=(0, 2_000))
    seen.append(fingerprint())
    first.rename(tmp_path / "ann" / "2.png")
    seen.append(fingerprint())
    assert len(set(seen)) == 4


def test_the_fingerprint_follows_the_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "ann/1.png", ramp(4, 4))
    before = read_folder(tmp_path).fingerprint()
    monkeypatch.setattr("coalface.data.readers.folders.DECODER", -1)
    assert read_folder(tmp_path).fingerprint() != before


def test_the_fingerprint_does_not_depend_on_where_the_folder_lies(tmp_path: Path) -> None:
    put(tmp_path / "a", "ann/1.png", ramp(4, 4))
    before = read_folder(tmp_path / "a").fingerprint()
    (tmp_path / "a").rename(tmp_path / "b")
    assert read_folder(tmp_path / "b").fingerprint() == before


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 8, 9, 100])
def test_threads_keep_the_order(count: int, threads: int) -> None:
    def read(i: int) -> np.ndarray:
        time.sleep(0.001 * (i % 3))  # so that threads overtake each other
        return np.full((1, 1, 1), i, np.uint8)

    assert [int(image[0, 0, 0]) for image in in_order(read, count, threads=threads)] == list(range(count))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bad", [0, 7, 8, 20, 99])
def test_an_error_comes_in_its_images_place(bad: int, threads: int) -> None:
    def read(i: int) -> np.ndarray:
        if i == bad:
            raise ValueError(f"image {i}")
        return np.full((1, 1, 1), i, np.uint8)

    got = []
    with pytest.raises(ValueError, match=f"image {bad}"):
        for image in in_order(read, 100, threads=threads):
            got.append(int(image[0, 0, 0]))
    assert got == list(range(bad))


def test_reading_runs_only_a_little_ahead_and_leaves_no_thread() -> None:
    asked = []

    def read(i: int) -> np.ndarray:
        asked.append(i)
        return np.full((1, 1, 1), 0, np.uint8)

    images = in_order(read, 100_000, threads=2)
    next(images)
    images.close()  # type: ignore[attr-defined]
    assert len(asked) <= 8 * (2 * 2 + 1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_threads_of_a_folder_change_no_pixel(tmp_path: Path) -> None:
    for i in range(30):
        put(tmp_path, f"ann/{i:02}.jpg", np.roll(ramp(20, 20), i, axis=1))
    source = read_folder(tmp_path)
    together = list(source.images(size=8, grey=False))
    for file, image in zip(source.files, together, strict=True):
        assert np.array_equal(image, decode((tmp_path / file).read_bytes(), file, size=8, grey=False))


ODD = [b"tab\there", b"new\nline", b"b\xff", "turned\u202eback".encode(), b"back\\slash"]


@pytest.mark.parametrize("where", ["%s/1.png", "Bo/%s.png"])
@pytest.mark.parametrize("odd", ODD)
def test_a_name_that_no_list_or_file_could_hold_is_refused_and_named(tmp_path: Path, odd: bytes, where: str) -> None:
    put(tmp_path, "ann/1.png", ramp(4, 4))
    file = tmp_path / (where % os.fsdecode(odd))
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(encoded(ramp(4, 4), ".png"))
    named = shown(file.parent if "/1.png" in where else file)
    with pytest.raises(ValueError, match="rename it") as caught:
        open_store(tmp_path)
    assert str(caught.value).startswith(f"{named}: ") and str(caught.value).isprintable()
    store = open_store(tmp_path, damaged="leave out")
    assert len(store) == 2 and [said.startswith(f"{named}: ") for said in store.broken] == [True]


@pytest.mark.parametrize("name", ["Ann Lee", "a\u202fm", "写真\u30001", "علی\u200cرضا", "É", "n" * 251, "-dQw4"])
def test_spaces_of_all_kinds_and_joiners_belong_to_names(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"{name[:99]}/1.png", ramp(4, 4))
    (tmp_path / name[:99] / f"{name}.png").write_bytes(encoded(ramp(4, 4), ".png"))
    assert len(open_store(tmp_path)) == 2


def test_in_a_set_of_several_races_the_folder_is_named(tmp_path: Path) -> None:
    for file in ("African/m.01/1.png", "Asian/m\t.02/1.png", "Asian/m\t.02/2.png"):
        put(tmp_path, file, ramp(4, 4))
    (said,) = open_store(tmp_path, damaged="leave out").broken
    assert said.startswith(f"{tmp_path}/Asian/m\\t.02: ")


def named(root: Path, *files: str) -> Folder:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"")
    return read_folder(root)


WORDS = ("ann", "bo", "cy", "di", "ed", "flo", "gil", "hal", "ida", "jo")


def numbered(*names: str, each: int = 2) -> list[str]:
    return [f"{name}_{k:04}.jpg" for name in names for k in range(1, each + 1)]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            [f"{part}/{file}" for part in ("train", "val") for file in numbered("a", "b")],
            ["parts of a set", "train, val"],
        ),
        ([f"images/{file}" for file in numbered("a")], ["1 identity", "images"]),
        (
            [f"part{k}/{file}" for k in (1, 2) for file in numbered("Ann_Lee", "Bo_van_Dyk", "Cy_Fox")],
            ["2 folders of 2", "part1", "Ann_Lee, Bo_van_Dyk, Cy_Fox"],
        ),
        (
            [f"{'ab'[p // 4]}/person{p:02}_{image}.png" for p in range(8) for image in (1, 2)],
            ["2 folders of 2", "person00, person01, person02"],
        ),
        (
            [f"smile/{k:03}_frontal_{i:02}.jpg" for k in (1, 2, 3, 4) for i in (1, 2)],
            ["1 folder of 1 holds", "001, 002, 003, …"],
        ),
        (
            [f"{how}/subject{k:02}.{how}.png" for how in ("calm", "wink", "tired") for k in range(1, 6)],
            ["the same 5 names", "subject01, subject02, subject03, …"],
        ),
        (
            [
                f"{how}/{who}.{how}{i}.{39 + i}.png"
                for how in ("AN", "DI")
                for who in ("KA", "KL", "YM")
                for i in (1, 2)
            ],
            ["the same 3 names", "KA, KL, YM"],
        ),
        ([f"cam{c}/{k}_{i}.png" for c in (1, 2, 3) for k in range(8) for i in (0, 1)], ["parts", "cam1, cam2, cam3"]),
        (
            [f"{place}/{who}_{i}.jpg" for place in ("indoor", "street") for who in WORDS for i in (1, 2)],
            ["the same 10 names", "ann, bo, cy, …"],
        ),
        (
            [f"{how}_front/{k:03}_{code}.jpg" for how, code in (("calm", "03"), ("glad", "08")) for k in (1, 2, 5, 9)],
            ["the same 4 names", "001, 002, 005, …"],
        ),
        ([f"{how}_front/{k:03}.jpg" for how in ("neutral", "smiling") for k in (1, 2, 5, 9)], ["parts"]),
    ],
    ids=[
        *(
            "splits",
            "images",
            "names of people",
            "persons",
            "numbers of people",
            "yale",
            "jaffe",
            "cameras",
            "first names",
        ),
        *("london by expression", "views"),
    ],
)
def test_folders_that_are_no_people_are_told(tmp_path: Path, files: list[str], said: list[str]) -> None:
    (told,) = doubts(named(tmp_path, *files))
    assert all(words in told for words in said)


FRONTAL = ("neutral_front", "smiling_front")


@pytest.mark.parametrize(
    "files",
    [
        [f"{name}/{file}" for name in ("Ann_Lee", "Bo_Dyk") for file in numbered(name)],  # LFW
        [f"s{p}/subject{p:02}_{image}.png" for p in range(4) for image in (1, 2)],
        [f"s{k}/{i}.pgm" for k in (1, 2) for i in range(1, 6)],  # ORL
        [f"{k:03}/{view}_{k:03}_{i:02}.jpg" for k in (1, 2) for view in FRONTAL for i in (3, 8)],
        [f"n{k:06}/{i:04}_{j:02}.jpg" for k in (2, 3) for i in range(1, 5) for j in (1, 2)],  # VGGFace2
        [f"m.0{k}/{i}-FaceId-0.jpg" for k in (2, 3) for i in range(5)],  # MS-Celeb-1M
        [f"{k:03}/{k:03}_frontal_{i:02}.jpg" for k in (1, 2, 3) for i in (1, 2)],
        ["Brad_Pitt/" + file for file in numbered("Brad_Pitt_Oscars", "Young_Brad_Pitt", "Pitt_Troy", "IMG", "DSC")],
        ["Val/1.jpg", *(f"p{k}/1.jpg" for k in range(6))],
        ["a/²_x_1.jpg", "a/__.jpg"],
        [f"n{k:06}/{i:04}_01.jpg" for k in (2, 3) for i in range(1, 50) if i % (k + 3)],  # VGGFace2, a few people
        [f"{k:07}/{i:03}.jpg" for k in (45, 99) for i in range(1, 20)],  # CASIA-WebFace
        [f"{who}/{i}.png" for who in ("ann", "bo") for i in range(8)],
        [f"{who}/{lead}{i:02}.jpg" for who in ("ann", "bo") for lead in ("img_", "IMG-", "photo") for i in range(8)],
        [f"{who}/{i:02}_{who}.jpg" for who in ("ann", "bo") for i in range(8)],
        [f"face_{k:03}/{i}.jpg" for k in (1, 2, 3) for i in range(3)],
        [f"s{k}/{i}_{k:02}.pgm" for k in (1, 2) for i in range(1, 9)],
        [f"{who}/photo{i}-{who}.jpg" for who in ("ann", "bo") for i in range(8)],
        [f"{who}/{i:06}_{7 * len(who)}.jpg" for who in ("ann", "bo") for i in range(0, 90, len(who))],  # frame, track
        [f"{k:03}/{view}_{i:02}.jpg" for k in (1, 2) for view in ("frontal", "profile") for i in (1, 2)],  # CFP
        [f"{who}/{view}_{who}.jpg" for who in WORDS for view in ("calm", "glad", "sad", "wink")],
        [f"{who}/{i * 2654435761 % 2**32:08x}.jpg" for who in ("ann", "bo") for i in range(60 * len(who))],
        [f"Ann_{last}/{file}" for last in ("Lee", "Fox", "Dyk") for file in numbered(f"Ann_{last}")],
    ],
    ids=[
        *(
            "lfw",
            "subjects",
            "orl",
            "london",
            "vggface2",
            "ms-celeb",
            "own number",
            "web",
            "a person called Val",
            "odd",
        ),
        *("few of vggface2", "casia", "counted", "photographs", "counted and named", "called face"),
        *("counted and numbered", "photos and named", "tracks", "cfp", "expressions of ten people", "hashes"),
        "one first name",
    ],
)
def test_people_are_not_doubted(tmp_path: Path, files: list[str]) -> None:
    assert doubts(named(tmp_path, *files)) == []


def test_empty_folders_are_found_by_the_highest_that_is_empty(tmp_path: Path) -> None:
    named(tmp_path, "a/1.jpg", "b/.hidden", "c/notes.txt", ".trash/x", "a/more/2.jpg")
    (tmp_path / "d" / "e" / "f").mkdir(parents=True)
    (tmp_path / "a" / "none").mkdir()
    (tmp_path / ".trash" / "empty").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    assert empty_folders(tmp_path) == ["a/none", "b", "d"]
