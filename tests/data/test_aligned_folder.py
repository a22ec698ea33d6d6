"""Folders of photographs: what is written, what is left out and why, and what a stop or a full disk leaves."""

from __future__ import annotations

import csv
import errno
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from drawn_photographs import KnownFaces, drawn, encoded, moved, photograph, photographed, placed
from field_layouts import say
from typer.testing import CliRunner, Result

import coalface
from coalface.cli import main
from coalface.core.errors import DataError
from coalface.data.align import TEMPLATE, align
from coalface.data.detection import Face
from coalface.data.photographs import LIMITS, Limits, sharpness, square_side
from coalface.data.readers.landmarks import read_landmarks
from coalface.data.readers.layouts import read_lists, recognise
from coalface.data.readers.pack import read_pack, write_pack
from coalface.data.stores import open_store
from coalface.data.tools.aligned_folder import AlignedFolder, write_faces

RACES = ("African", "Indian")


def put(root: Path, file: str, data: bytes) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_bytes(data)


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def left_out(out: Path) -> dict[str, str]:
    """File → reason, as the table has it."""
    rows = csv.DictReader((out / "left-out.csv").read_text().splitlines())
    return {row["file"]: row["reason"] for row in rows}


def album(root: Path, count: int = 6) -> KnownFaces:
    """Photographs of known faces, `Ann/0.png`, `Bo/1.png`, …, of different widths."""
    faces = {}
    for k in range(count):
        picture, face = photograph(k % 4, 240 + k)
        faces[240, 240 + k] = [face]
        put(root, f"{'Bo' if k % 2 else 'Ann'}/{k}.png", encoded(picture))
    return KnownFaces(faces)


def aligned(root: Path, detector: KnownFaces, **options: object) -> AlignedFolder:
    return coalface.align_folder(root / "photos", root / "out", detector=detector, **options)


def test_each_face_comes_out_in_its_place(tmp_path: Path) -> None:
    folder = aligned(tmp_path, album(tmp_path / "photos"), size=96)
    assert (folder.faces, folder.left_out) == (6, [])
    for k, file in enumerate(sorted(folder.photographs, key=lambda one: one.file[-5])):
        picture, face = photograph(k % 4, 240 + k)
        image = cv2.imread(str(tmp_path / "out" / file.file))[:, :, ::-1]
        assert np.array_equal(image, align(picture, face.points, size=96))


def test_links_to_files_are_followed_and_links_to_folders_are_named(tmp_path: Path) -> None:
    detector = album(tmp_path / "elsewhere", 2)
    (tmp_path / "photos" / "Ann").mkdir(parents=True)
    (tmp_path / "photos" / "Ann" / "0.png").symlink_to(tmp_path / "elsewhere" / "Ann" / "0.png")
    (tmp_path / "photos" / "Bo.png").symlink_to(tmp_path / "elsewhere" / "Bo")
    folder = aligned(tmp_path, detector)
    assert [photograph.faces for photograph in folder.photographs] == [("Ann/0.png",), ()]
    assert left_out(tmp_path / "out") == {"Bo.png": "not an image"}
    assert not (tmp_path / "out" / "Ann" / "0.png").is_symlink()


def test_the_table_says_what_to_do_and_holds_no_formula(tmp_path: Path) -> None:
    picture, face = photograph(0)
    (tmp_path / "in").mkdir()
    scale = 39.96 / square_side(face)
    for name in ("=1+1.png", "small.png"):
        (tmp_path / "in" / name).write_bytes(encoded(picture))
    (tmp_path / "in" / "a.gif").write_bytes(b"GIF89a")
    detector = KnownFaces({picture.shape[:2]: [Face((face.points - 120) * scale + 120)]})
    write_faces(tmp_path / "in", tmp_path / "out", detector)
    rows = {
        row["file"]: row["detail"]
        for row in csv.DictReader((tmp_path / "out" / "left-out.csv").read_text().splitlines())
    }
    assert rows.keys() == {"./=1+1.png", "small.png", "a.gif"}
    assert rows["small.png"] == "39.9 pixels" and "make a JPEG" in rows["a.gif"]


def test_whatever_gives_no_face_is_left_out_with_the_reason(tmp_path: Path) -> None:
    source, detector = tmp_path / "photos", album(tmp_path / "photos", 4)
    picture, face = photograph(0)
    jpeg = encoded(picture, ".jpg")
    nobody = encoded(picture[:200], ".jpg")
    middle = len(nobody) // 2
    files = {
        "a/empty.jpg": (b"", "damaged"),
        "a/text.jpg": (b"no picture", "damaged"),
        "a/notes.txt": (b"no picture", "not an image"),
        "a/film.mov": (b"\0" * 99, "not an image"),
        "a/short.jpg": (jpeg[:-300], "damaged"),
        "a/hole.jpg": (nobody[: middle - 60] + b"\xff\xd0" * 60 + nobody[middle + 60 :], "damaged"),
        "a/huge.pgm": (b"P5 90000 90000 255\n", "damaged"),
        "a/nobody.png": (encoded(np.full((90, 91, 3), 128, np.uint8)), "no face"),
        "b/two.png": (encoded(np.zeros((240, 480, 3), np.uint8)), "two faces"),
        "b/small.png": (encoded(cv2.resize(picture, (60, 60))), "too small"),
        "b/cut.png": (encoded(picture[:, 110:]), "cut off"),
        "b/half.png": (encoded(picture[:, : int(face.points[2, 0]) + 4]), "cut off"),
        "b/blurred.png": (encoded(cv2.GaussianBlur(picture, (0, 0), 9)[:239]), "blurred"),
        "b/enlarged.png": (encoded(cv2.resize(cv2.resize(picture, (24, 24)), (240, 240))[:238]), "blurred"),
        "b/\x1b[31m.png": (jpeg, "damaged"),
    }
    for file, (data, _) in files.items():
        put(source, file, data)
    os.mkfifo(source / "a" / "pipe.jpg")
    (source / "b" / os.fsdecode(b"\xff.jpg")).write_bytes(jpeg)
    (source / "a" / "gone.jpg").symlink_to("nowhere.jpg")
    squeezed = Face(np.column_stack([face.points[:, 0].clip(max=face.points[2, 0] + 2), face.points[:, 1]]))
    detector.faces |= {
        (240, 240): [face],
        (240, 480): [Face(face.points), Face(face.points + [230, 0])],
        (60, 60): [Face(face.points / 4)],
        (240, 130): [Face(face.points - [110, 0])],
        (239, 240): [face],
        (238, 240): [face],
        (240, int(face.points[2, 0]) + 4): [squeezed],
    }
    folder = aligned(tmp_path, detector)
    expected = {file.replace("\x1b", r"\x1b"): reason for file, (_, reason) in files.items()}
    expected |= {"a/pipe.jpg": "not an image", "a/gone.jpg": "damaged", r"b/\udcff.jpg": "damaged"}
    assert left_out(tmp_path / "out") == expected
    assert folder.faces == 4 and sum(folder.reasons.values()) == 18
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 7 and "http" not in page.replace("http-equiv", "")
    assert "Do not pass it on" in page and "\x1b" not in page and str(tmp_path) not in page


def test_rounding_to_grey_levels_is_no_detail() -> None:
    y, x = np.mgrid[:112, :112]
    shade = np.rint(100 + 12 * np.sin(x / 40) * np.cos(y / 40)).astype(np.uint8)
    laplacian = cv2.Laplacian(shade[36:100, 24:88].astype(float), cv2.CV_64F)
    assert laplacian.var() / shade[36:100, 24:88].var() > LIMITS.sharpness > 3 * sharpness(shade)


def test_the_sharpness_is_that_of_a_sum_over_waves() -> None:
    face = np.random.default_rng(0).integers(0, 256, (112, 112), np.uint8)
    y, x = np.mgrid[:80, :80]
    hann = np.outer(*2 * [[(1 - np.cos(2 * np.pi * k / 79)) / 2 for k in range(80)]])
    centre = face[24:104, 16:96] - face[24:104, 16:96].mean()
    detail = everything = 0.0
    for down in range(-40, 40):
        along = (centre * hann * np.exp(-2j * np.pi * down * y / 80)).sum(axis=0)
        for across in range(-40, 40):
            power = abs((along * np.exp(-2j * np.pi * across * x[0] / 80)).sum()) ** 2
            everything += power
            detail += power if 10 <= (down**2 + across**2) ** 0.5 < 20 else 0.0
    assert sharpness(face) == pytest.approx(detail / (everything + 4 * 80 * 80 * (hann**2).sum()), rel=1e-9)
    for cycles, least, most in ((4, 0.0, 1e-4), (16, 0.99, 1.0), (30, 0.0, 1e-4)):
        stripes = np.rint(128 + 100 * np.cos(2 * np.pi * cycles * np.mgrid[:112, :112][1] / 80)).astype(np.uint8)
        assert least <= sharpness(stripes) <= most


def test_the_largest_central_face_is_taken_and_all_have_numbers(tmp_path: Path) -> None:
    picture, face = photograph(0)
    wide = np.hstack([picture, np.full((240, 300, 3), 128, np.uint8), cv2.resize(picture, (120, 240))[:, :119]])
    put(tmp_path / "photos", "x/two.png", encoded(wide))
    detector = KnownFaces({wide.shape[:2]: [Face(face.points * 0.5 + [540, 60]), face, Face(face.points * 0.1)]})
    assert aligned(tmp_path, detector).photographs[0].faces == ("x/two.png",)
    everyone = coalface.align_folder(tmp_path / "photos", tmp_path / "all", detector=detector, all_faces=True)
    assert everyone.photographs[0].faces == ("x/two_1.png", "x/two_2.png")
    assert left_out(tmp_path / "all") == {"x/two.png": "too small"}
    one, two = (cv2.imread(str(tmp_path / "all" / "x" / f"two_{k}.png")) for k in (1, 2))
    assert np.array_equal(one, cv2.imread(str(tmp_path / "out" / "x" / "two.png"))) and not np.array_equal(one, two)


def test_after_a_stop_it_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coalface.data.tools.aligned_folder._BATCH", 2)
    detector = album(tmp_path / "photos")
    coalface.align_folder(tmp_path / "photos", tmp_path / "whole", detector=detector)

    class Stopped(KnownFaces):
        def detect(self, image: np.ndarray) -> list[Face]:
            if len(self.asked) == 5:
                raise KeyboardInterrupt
            return super().detect(image)

    with pytest.raises(KeyboardInterrupt):
        aligned(tmp_path, Stopped(detector.faces))
    with open(tmp_path / "out" / ".align.jsonl", "a") as journal:
        journal.write('{"file": "Bo/1.p')  # a line that a kill cut short
    again = KnownFaces(detector.faces)
    assert aligned(tmp_path, again).fresh == len(again.asked) == 2
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert aligned(tmp_path, again).fresh == 0


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detector, write_bytes, written = album(tmp_path / "photos"), Path.write_bytes, []

    def write_until_full(path: Path, data: bytes) -> int:
        written.append(path)
        if len(written) > 4:
            write_bytes(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, data)

    with monkeypatch.context() as patch, pytest.raises(OSError) as error:
        patch.setattr(Path, "write_bytes", write_until_full)
        aligned(tmp_path, detector)
    assert error.value.filename == str(tmp_path / "out" / "Bo" / "1.png")
    names = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {".align.jsonl", "0.png", "2.png", "4.png"}
    assert all(cv2.imread(str(path)) is not None for path in (tmp_path / "out").rglob("*.png"))
    assert aligned(tmp_path, detector).faces == 6


def test_it_follows_photographs_that_change_and_keeps_to_its_settings(tmp_path: Path) -> None:
    detector = album(tmp_path / "photos", 3)
    put(tmp_path / "out", "other.txt", b"x")
    with pytest.raises(FileExistsError):
        aligned(tmp_path, detector)
    (tmp_path / "out" / "other.txt").unlink()
    aligned(tmp_path, detector)
    put(tmp_path / "photos", "Ann/0.png", encoded(np.full((90, 91, 3), 128, np.uint8)))
    (tmp_path / "photos" / "Ann" / "2.png").unlink()
    folder = aligned(tmp_path, detector)
    assert (folder.fresh, folder.faces, folder.removed) == (1, 1, ("Ann/2.png",))
    assert {path.name for path in (tmp_path / "out").rglob("*.png")} == {"1.png", "2.png"}
    for options in ({"size": 64}, {"all_faces": True}, {"limits": Limits(side=50)}):
        with pytest.raises(DataError, match=f"other settings .{next(iter(options))}") as error:
            aligned(tmp_path, detector, **options)
        assert error.value.where == str(tmp_path / "out")
    with pytest.raises(DataError, match="--upright"):
        aligned(tmp_path, KnownFaces(detector.faces, name="another"))
    (tmp_path / "out" / ".align.jsonl").write_text("")
    with pytest.raises(DataError, match="damaged"):
        aligned(tmp_path, detector)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main.app, ["data", "align", *map(str, arguments)])


def rfw(root: Path) -> None:
    """A folder in the layout of RFW: photographs, their landmarks, and a pair list for each race."""
    faces = iter(drawn(8))
    for k, race in enumerate(RACES):
        lines = []
        for i in range(4):
            file, seed = f"data/{race}/m.0{i // 2}/m.0{i // 2}_000{i % 2 + 1}.jpg", 4 * k + i
            put(root, file, encoded(photographed(next(faces), placed(seed)), ".jpg"))
            points = " ".join(f"{x:.2f}" for x in moved(placed(seed), TEMPLATE).reshape(-1))
            lines.append(f"/{file} 0 {points}")
        say(root, f"txts/{race}/{race}_lmk.txt", *lines)
        say(root, f"txts/{race}/{race}_pairs.txt", *["m.00\t1\t2", "m.00\t1\tm.01\t2"] * 5)


def test_rfw_is_aligned_by_its_lists_and_read_as_rfw_again(tmp_path: Path) -> None:
    rfw(tmp_path / "rfw")
    out = tmp_path / "deep" / "aligned"
    result = run(tmp_path / "rfw", out, "--landmarks", tmp_path / "rfw" / "txts")
    assert (result.exit_code, result.output) == (0, f"{out}: 8 faces of 8 files, 112×112\n")
    assert recognise(out) == "rfw" and not list(out.rglob("*_lmk.txt"))
    before, after = open_store(tmp_path / "rfw"), open_store(out)
    assert (after.files, after.names, after.labels.tolist()) == (before.files, before.names, before.labels.tolist())
    for image, face in zip(after.images(size=112, grey=False), drawn(8), strict=True):
        assert np.abs(image[3:-3, 3:-3].astype(float) - face[3:-3, 3:-3]).mean() < 5  # through two JPEGs
    write_pack(after, tmp_path / "pack", size=32, grey=False)
    lists = read_lists(out, read_pack(tmp_path / "pack"))
    assert {name: len(pairs) for name, pairs in lists.items()} == {"rfw-african": 10, "rfw-indian": 10}


KINDS = ("a.jpg", "b.JPEG", "c.png", "d.bmp", "e.webp", "f.pgm", "g.pnm", "h.ppm")


def test_every_kind_of_image_keeps_its_name_its_kind_and_its_channels(tmp_path: Path) -> None:
    source, lines = tmp_path / "set", []
    for k, (name, face) in enumerate(zip(KINDS, drawn(len(KINDS)), strict=True)):
        picture, points = photographed(face, placed(k)), moved(placed(k), TEMPLATE)
        picture = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY) if name == "f.pgm" else picture
        put(source, f"Ann Lee/{name}", encoded(picture, ".ppm" if name == "g.pnm" else Path(name).suffix.lower()))
        lines.append(f"Ann Lee/{name} " + " ".join(map(repr, points.reshape(-1).tolist())))
    put(source, "Ann Lee/unknown.png", encoded(picture))
    lines.append("Ann Lee/beside.png " + " ".join(map(repr, (points + 300).reshape(-1).tolist())))
    put(source, "Ann Lee/beside.png", encoded(picture))
    say(source, "points.lst", *lines)
    say(source, "pairs.txt", "1")
    out = tmp_path / "out"
    result = run(source, out, "--landmarks", source / "points.lst")
    assert result.output == f"{out}: 8 faces of 10 files, 112×112; 2 gave none (2 no landmarks): {out}/report.html\n"
    assert (out / "pairs.txt").read_text() == "1\n" and not (out / "points.lst").exists()  # its points fit no longer
    files = [f"Ann Lee/{name}" for name in KINDS]
    landmarks = read_landmarks([source / "points.lst"], files)
    for file, points in zip(files, landmarks.points, strict=True):
        flags = cv2.IMREAD_GRAYSCALE if file.endswith(".pgm") else cv2.IMREAD_COLOR
        image = cv2.imread(str(out / file), cv2.IMREAD_UNCHANGED)
        expected = align(cv2.imread(str(source / file), flags), points)
        assert image.shape == expected.shape
        lost = np.abs(image.astype(int) - expected.astype(int))
        assert lost.max() == 0 if not file.lower().endswith(("jpg", "jpeg")) else 0 < lost.max() <= 4
        assert (out / file).read_bytes()[:2] == (source / file).read_bytes()[:2]


def test_what_cannot_be_aligned_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    rfw(tmp_path / "set")
    (tmp_path / "set" / "none").mkdir()
    before = sorted(tmp_path.rglob("*"))
    lists, out = ["--landmarks", tmp_path / "set" / "txts"], tmp_path / "out"
    for arguments, where in (
        ([tmp_path / "set", tmp_path / "set" / "out", *lists], tmp_path / "set" / "out"),
        ([tmp_path / "set" / "none", out, "--detector", tmp_path / "none.onnx"], None),
        ([tmp_path / "set" / "data", out, "--landmarks", tmp_path / "points.txt"], None),
        ([tmp_path / "set", out, *lists, "--size", 0], None),
        ([tmp_path / "set", out, *lists, "--size", 10**30], None),
    ):
        result = run(*arguments)
        assert result.exit_code == 1 and isinstance(result.exception, (OSError, ValueError))
        assert where is None or result.exception.where == str(where)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_journal_from_elsewhere_removes_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    detector, journal = album(tmp_path / "photos", 1), tmp_path / "out" / ".align.jsonl"
    aligned(tmp_path, detector)
    put(tmp_path, "kept.png", b"x")
    put(tmp_path / "photos", "Ann/0.png", encoded(photograph(1, 240)[0]))  # so what it had before is removed
    journal.write_text(journal.read_text().replace('"faces": ["Ann/0.png"]', '"faces": ["../kept.png"]'))
    assert "../kept.png" in journal.read_text()
    assert aligned(tmp_path, detector).fresh == 1
    assert (tmp_path / "kept.png").read_bytes() == b"x"
