"""Faces aligned by five points: the fit against another way to it, and folders of drawn faces, there and back."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from commands import invoked
from field_layouts import put, say
from typer.testing import Result

from coalface.core.errors import DataError
from coalface.data.align import TEMPLATE, align, aligned_face, similarity
from coalface.data.readers.landmarks import read_landmarks
from coalface.data.readers.layouts import read_lists, recognise
from coalface.data.readers.pack import read_pack, write_pack
from coalface.data.stores import open_store
from coalface.data.synthetic.generator import SyntheticFaces

RACES = ("African", "Indian")


def placed(seed: int, side: int = 240) -> np.ndarray:
    """A matrix (2, 3) that brings a face of 112×112 somewhere into a picture of the side."""
    rng = np.random.default_rng(seed)
    scale, angle = rng.uniform(1.1, 1.5), rng.uniform(-0.5, 0.5)
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.column_stack([turn, side / 2 - turn @ [55.5, 55.5] + rng.uniform(-8, 8, 2)])


def moved(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points @ matrix[:, :2].T + matrix[:, 2]


def umeyama(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Equations 40 to 42 of the paper, by the singular values of the covariance."""
    mean, goal = points.mean(0), target.mean(0)
    u, d, vt = np.linalg.svd((target - goal).T @ (points - mean) / len(points))
    s = np.diag([1, np.sign(np.linalg.det(u) * np.linalg.det(vt))])
    turn = u @ s @ vt
    scale = (d * np.diag(s)).sum() / ((points - mean) ** 2).sum(1).mean()
    return np.column_stack([scale * turn, goal - scale * turn @ mean])


@pytest.mark.parametrize("seed", range(20))
def test_the_fit_is_that_of_umeyama(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = moved(placed(seed), TEMPLATE) + rng.normal(0, 6, (5, 2))
    if seed % 3 == 0:
        points[:, 0] *= -1  # a mirrored face: the best rotation, and no reflection
    matrix = similarity(points)
    assert matrix == pytest.approx(umeyama(points, TEMPLATE), abs=1e-9)
    assert np.linalg.det(matrix[:, :2]) > 0


def test_points_that_fit_come_to_the_template_exactly() -> None:
    assert similarity(TEMPLATE) == pytest.approx(np.array([[1, 0, 0], [0, 1, 0]]), abs=1e-12)
    assert similarity(2 * TEMPLATE + [10, 20]) == pytest.approx(np.array([[0.5, 0, -5], [0, 0.5, -10]]))
    quarter = TEMPLATE @ [[0, 1], [-1, 0]]  # (x, y) to (−y, x)
    assert similarity(quarter) == pytest.approx(np.array([[0, 1, 0], [-1, 0, 0]]), abs=1e-12)
    for seed in range(5):
        points = moved(placed(seed), TEMPLATE)
        assert moved(similarity(points), points) == pytest.approx(TEMPLATE, abs=1e-9)


def drawn(count: int, *, grey: bool = False) -> np.ndarray:
    return SyntheticFaces(count, 1, seed=3, size=112, grey=grey).generate().pixels


def photographed(face: np.ndarray, matrix: np.ndarray, side: int = 240) -> np.ndarray:
    return cv2.warpAffine(face, matrix, (side, side), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)


def apart(first: np.ndarray, second: np.ndarray) -> float:
    """The mean difference in grey levels, without a border of three pixels."""
    return float(np.abs(first[3:-3, 3:-3].astype(float) - second[3:-3, 3:-3].astype(float)).mean())


@pytest.mark.parametrize("grey", [False, True])
def test_a_face_comes_back_from_where_it_was_put(grey: bool) -> None:
    for seed, face in enumerate(drawn(4, grey=grey)):
        face = face[:, :, 0] if grey else face
        picture, points = photographed(face, placed(seed)), moved(placed(seed), TEMPLATE)
        back = align(picture, points)
        assert align(picture, points + [180, 0])[:, -20:].max() == 0  # black where the image ends
        assert back.shape == face.shape and back.dtype == np.uint8
        off = align(picture, points + [2, 0])  # the measure sees two pixels
        assert apart(back, face) < 3 < apart(off, face)
        larger = align(picture, points, size=224)
        assert apart(cv2.warpAffine(larger, np.array([[0.5, 0, 0], [0, 0.5, 0]]), (112, 112)), face) < 3


# A folder in the layout of RFW: photographs of drawn faces, their landmarks, and a pair list for each race.


def rfw(root: Path) -> dict[str, np.ndarray]:
    """File → the face that it shows."""
    pictures = {}
    faces = iter(drawn(8))
    for k, race in enumerate(RACES):
        lines = []
        for i in range(4):
            stem, seed = f"m.0{i // 2}/m.0{i // 2}_000{i % 2 + 1}", 4 * k + i
            file = f"data/{race}/{stem}.jpg"
            put(root, file)
            pictures[f"{race}/{stem}.jpg"] = face = next(faces)
            cv2.imwrite(str(root / file), photographed(face, placed(seed))[:, :, ::-1])
            points = " ".join(f"{x:.2f}" for x in moved(placed(seed), TEMPLATE).reshape(-1))
            lines.append(f"/{file} 0 {points}")
        say(root, f"txts/{race}/{race}_lmk.txt", *lines)
        say(root, f"txts/{race}/{race}_pairs.txt", *["m.00\t1\t2", "m.00\t1\tm.01\t2"] * 5)
    return pictures


def run(*arguments: object) -> Result:
    return invoked("data", "align", *arguments)


def test_rfw_is_aligned_and_read_as_rfw_again(tmp_path: Path) -> None:
    pictures, out = rfw(tmp_path / "rfw"), tmp_path / "deep" / "aligned"
    result = run(tmp_path / "rfw", tmp_path / "rfw" / "txts", "--out", out)
    assert (result.exit_code, result.output) == (0, f"{out}: 8 images of 4 identities, 112×112\n")
    assert recognise(out) == "rfw" and not list(out.rglob("*_lmk.txt"))
    assert [path.name for path in out.parent.iterdir()] == ["aligned"]
    before, after = open_store(tmp_path / "rfw"), open_store(out)
    assert (after.files, after.names, after.labels.tolist()) == (before.files, before.names, before.labels.tolist())
    for file, image in zip(after.files, after.images(size=112, grey=False), strict=True):
        assert apart(image, pictures[file]) < 5  # through two JPEGs
    write_pack(after, tmp_path / "pack", size=32, grey=False)
    lists = read_lists(out, read_pack(tmp_path / "pack"))
    assert {name: len(pairs) for name, pairs in lists.items()} == {"rfw-african": 10, "rfw-indian": 10}


KINDS = ("a.jpg", "b.JPEG", "c.png", "d.bmp", "e.webp", "f.pgm", "g.pnm", "h.ppm")


def folder(root: Path, *, unknown: int = 0) -> Path:
    """One image of every kind, of two identities, and `points.lst`, which leaves out the last `unknown`."""
    files = [f"{'Ann Lee' if k % 2 else 'Bo'}/{name}" for k, name in enumerate(KINDS)]
    for k, (file, face) in enumerate(zip(files, drawn(len(KINDS)), strict=True)):
        put(root, file)
        picture = photographed(face, placed(k))[:, :, ::-1]
        grey = file.endswith(".pgm")
        kind = ".ppm" if file.endswith(".pnm") else Path(file).suffix.lower()
        wide = cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY) if grey else picture
        (root / file).write_bytes(
            cv2.imencode(kind, wide, [cv2.IMWRITE_WEBP_QUALITY, 101] if "webp" in kind else [])[1]
        )
    rows = (moved(placed(k), TEMPLATE).reshape(-1).tolist() for k in range(len(files)))
    lines = [" ".join([file, *map(repr, row)]) for file, row in zip(files, rows, strict=True)]
    say(root, "points.lst", *lines[: len(lines) - unknown])
    return root


def test_every_kind_of_image_keeps_its_name_its_kind_and_its_channels(tmp_path: Path) -> None:
    source = folder(tmp_path / "set")
    say(source, "pairs.txt", "1")
    assert run(source, source / "points.lst", "--out", tmp_path / "out").exit_code == 0
    before, after = open_store(source), open_store(tmp_path / "out")
    assert after.files == before.files and (tmp_path / "out" / "pairs.txt").read_text() == "1\n"
    assert not (tmp_path / "out" / "points.lst").exists()  # its points fit no longer
    points = read_landmarks([source / "points.lst"], before.files).points
    for k, file in enumerate(after.files):
        flags = cv2.IMREAD_GRAYSCALE if file.endswith(".pgm") else cv2.IMREAD_COLOR
        image = cv2.imread(str(tmp_path / "out" / file), cv2.IMREAD_UNCHANGED)
        expected = align(cv2.imread(str(source / file), flags), points[k])
        assert image.shape == expected.shape
        lost = np.abs(image.astype(int) - expected.astype(int))
        assert lost.max() == 0 if not file.lower().endswith(("jpg", "jpeg")) else 0 < lost.max() <= 4
        assert (tmp_path / "out" / file).read_bytes()[:2] == (source / file).read_bytes()[:2]


def test_images_without_landmarks_are_left_out_and_named(tmp_path: Path) -> None:
    source = folder(tmp_path / "set", unknown=5)
    (tmp_path / "out").mkdir()  # an empty folder may be the place
    result = run(source, source / "points.lst", "--out", tmp_path / "out")
    assert result.output.splitlines() == [
        "note: 5 images have no landmarks and are left out: Ann Lee/d.bmp, Ann Lee/f.pgm, Ann Lee/h.ppm, …",
        f"{tmp_path / 'out'}: 3 images of 2 identities, 112×112",
    ]
    assert open_store(tmp_path / "out").files == ("Ann Lee/b.JPEG", "Bo/a.jpg", "Bo/c.png")


def refused(root: Path, *arguments: object) -> str:
    """What a refusal says; nothing must be left of the attempt."""
    before = sorted(root.rglob("*"))
    result = run(*arguments)
    assert result.exit_code == 1 and isinstance(result.exception, (OSError, ValueError))
    assert sorted(root.rglob("*")) == before
    return str(result.exception)


def test_what_cannot_be_aligned_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "set"), tmp_path / "out"
    points = source / "points.lst"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    assert "full already exists" in refused(tmp_path, source, points, "--out", tmp_path / "full")
    assert "lies in the images to align" in refused(tmp_path, source, points, "--out", source / "out")
    write_pack(open_store(source), tmp_path / "full" / "pack", size=16, grey=True)
    assert "is a pack" in refused(tmp_path, tmp_path / "full" / "pack", points, "--out", out)
    assert "points.txt does not exist" in refused(tmp_path, source, tmp_path / "points.txt", "--out", out)
    assert "give 1 or more pixels" in refused(tmp_path, source, points, "--out", out, "--size", 0)
    text = points.read_text()
    points.write_text("\n".join(line if "c.png" not in line else _shifted(line) for line in text.splitlines()))
    assert "c.png: it has 240 × 240 pixels, and its landmarks" in refused(tmp_path, source, points, "--out", out)
    points.write_text(text)
    (source / "Bo/c.png").write_bytes((source / "Bo/c.png").read_bytes()[:-40])
    assert "c.png: it is damaged" in refused(tmp_path, source, points, "--out", out)


def _shifted(line: str) -> str:
    path, *numbers = line.split()
    return " ".join([path, *(str(float(number) + 300) for number in numbers)])


def test_an_encoded_image_becomes_a_face_as_a_model_takes_it() -> None:
    face = SyntheticFaces(1, 1, 0, size=112, grey=False).generate().pixels[0]
    matrix = placed(3)
    picture, points = cv2.warpAffine(face, matrix, (240, 240)), moved(matrix, TEMPLATE)
    encoded = bytes(cv2.imencode(".png", picture[:, :, ::-1])[1])
    coloured, inside = aligned_face(encoded, "here", points, size=48, grey=False)
    assert inside and np.array_equal(coloured, align(picture, points, size=48))
    grey, _ = aligned_face(encoded, "here", points, size=48, grey=True)
    brightness = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_GRAYSCALE)
    assert grey.shape == (48, 48, 1) and np.array_equal(grey[:, :, 0], align(brightness, points, size=48))
    assert not aligned_face(encoded, "here", points + 300, size=48, grey=True)[1]
    for broken, where, reason in (
        (encoded[:300], points, "here: it is damaged"),
        (encoded, points * 0, "here: the landmarks"),
    ):
        with pytest.raises(DataError, match=reason):
            aligned_face(broken, "here", where, size=48, grey=True)
