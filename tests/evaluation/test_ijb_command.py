"""`coalface ijb` on made-up lists over drawn faces, against its metrics on features of single images."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from commands import said
from naive import embedding
from tinyruns import centred_model

from coalface.core.errors import DataError, RecipeError
from coalface.data.align import TEMPLATE
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.evaluation import feature_file, finished_model
from coalface.evaluation.ijb import evaluate_ijb
from coalface.evaluation.metrics.open_set import search
from coalface.evaluation.metrics.verification import tar_at_far

SUBJECTS, EACH = 10, 6
GALLERIES = {"G1": range(5), "G2": range(5, 10)}
FARS = (0.01, 0.1)


def matrix(seed: int) -> np.ndarray:
    """Where a face of 64 × 64 goes in a picture of 90 × 80: somewhat larger, turned and moved."""
    rng = np.random.default_rng(seed)
    scale, angle = rng.uniform(0.9, 1.2), rng.uniform(-0.4, 0.4)
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.column_stack([turn, np.array([45, 40]) - turn @ [31.5, 31.5] + rng.uniform(-4, 4, 2)])


def points_of(seed: int) -> np.ndarray:
    """(5, 2) the landmarks in the picture, as the list has them: two decimals."""
    return (TEMPLATE * 64 / 112 @ matrix(seed)[:, :2].T + matrix(seed)[:, 2]).round(2)


def pictures(folder: Path, names: Callable[[int], str]) -> None:
    folder.mkdir()
    faces = SyntheticFaces(SUBJECTS, EACH, 3, size=64, grey=False).generate().pixels
    for i, face in enumerate(faces):
        (folder / names(i)).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(folder / names(i)), cv2.warpAffine(face[:, :, ::-1], matrix(i), (90, 80)))


@pytest.fixture(scope="module")
def model(fedavg_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return centred_model(fedavg_run, tmp_path_factory.mktemp("centred") / "model")


@pytest.fixture(scope="module")
def ijbc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`meta` and `loose_crop`: of each subject a gallery template of a video of two frames and a photograph, and three
    probe templates of an image each."""
    root = tmp_path_factory.mktemp("ijbc")
    pictures(root / "loose_crop", lambda i: f"{i + 1}.png")
    rng = np.random.default_rng(0)
    template, media = [], []
    for subject in range(SUBJECTS):
        template += [100 + subject] * 3 + [200 + 10 * subject + n for n in range(3)]
        media += [7, 7, 8, 1, 1, 1]
    scores = rng.uniform(0.3, 1, len(template)).round(3)
    templates = sorted(set(template))
    pairs = {tuple(sorted(rng.choice(templates, 2, replace=False).tolist())) for _ in range(600)}
    header, meta = "TEMPLATE_ID,SUBJECT_ID,FILENAME", root / "meta"
    meta.mkdir()
    every = list(enumerate(zip(template, media, scores, strict=True), start=1))
    gallery = {n: [f"{100 + s},{s},x.png" for s in some] for n, some in GALLERIES.items()}
    lists = {
        "face_tid_mid.txt": [f"{i}.png {t} {m}" for i, (t, m, _) in every],
        "name_5pts_score.txt": [
            f"{i}.png {' '.join(f'{x:.2f}' for x in points_of(i - 1).ravel())} {score}" for i, (_, _, score) in every
        ],
        "template_pair_label.txt": [f"{a} {b} {int(who(a) == who(b))}" for a, b in sorted(pairs)],
        "1N_gallery_G1.csv": [header, *gallery["G1"]],
        "1N_gallery_G2.csv": [header, *gallery["G2"]],
        "1N_probe_mixed.csv": [header, *(f"{t},{who(t)},x.png" for t in templates if t >= 200)],
    }
    for name, lines in lists.items():
        (meta / f"ijbc_{name}").write_text("\n".join(lines) + "\n")
    return root


def who(template: int) -> int:
    return template - 100 if template < 200 else (template - 200) // 10


def network(run: Path) -> Callable[[np.ndarray], np.ndarray]:
    """What a run's model gives for one grey image (32, 32)."""
    module = finished_model.read_model(run)[0].module
    return lambda image: embedding(module, image).numpy()


def aligned(path: Path, points: np.ndarray) -> np.ndarray:
    """The face at 32 × 32 by the least squares of ten equations for x' = a x − b y + u, y' = b x + a y + v."""
    rows = [row for x, y in points for row in ([x, -y, 1, 0], [y, x, 0, 1])]
    a, b, u, v = np.linalg.lstsq(np.array(rows), (TEMPLATE * 32 / 112).ravel(), rcond=None)[0]
    picture = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    return cv2.warpAffine(picture, np.array([[a, -b, u], [b, a, v]]), (32, 32))


def pooled(of: dict[int, list[tuple[int, np.ndarray, float]]], norm: bool, scored: bool) -> dict[int, np.ndarray]:
    """By template: of media, feature and score of each image the sum over media of the means, at length one."""
    vectors = {}
    for template, images in of.items():
        total: Any = 0
        for media in {m for m, _, _ in images}:
            features = [x / (1 if norm else math.hypot(*x)) * (s if scored else 1) for m, x, s in images if m == media]
            total = total + sum(features) / len(features)
        vectors[template] = total / math.hypot(*total)
    return vectors


@pytest.mark.parametrize(("flip", "norm", "scored"), [(False, True, None), (True, False, False), (True, True, True)])
def test_the_figures_are_those_of_the_definitions(
    model: Path, ijbc: Path, flip: bool, norm: bool, scored: bool | None
) -> None:
    meta = ijbc / "meta"
    result = evaluate_ijb(model, meta, ijbc / "loose_crop", flip=flip, norm=norm, detector=scored, fars=(1e-6, *FARS))
    assert result["set"] == "IJB-C" and result["options"] == f"N{norm:d} D{scored is not False:d} F{flip:d}"
    assert (result["images"], result["templates"]) == (60, 40)

    of: dict[int, list[tuple[int, np.ndarray, float]]] = {}
    embed = network(model)
    points = [line.split() for line in (meta / "ijbc_name_5pts_score.txt").read_text().splitlines()]
    for line, (name, *numbers) in zip((meta / "ijbc_face_tid_mid.txt").read_text().splitlines(), points, strict=True):
        face = aligned(ijbc / "loose_crop" / name, np.array(numbers[:10], float).reshape(5, 2))
        x = embed(face) + embed(face[:, ::-1]) if flip else embed(face)
        _, template, media = line.split()
        of.setdefault(int(template), []).append((int(media), x, float(numbers[10])))
    vectors = pooled(of, norm, scored is not False)

    listed = [
        [int(x) for x in line.split()] for line in (meta / "ijbc_template_pair_label.txt").read_text().splitlines()
    ]
    same = np.array([bool(label) for _, _, label in listed])
    assert (result["pairs"], result["genuine"]) == (len(listed), same.sum())
    tars = tar_at_far(np.array([vectors[a] @ vectors[b] for a, b, _ in listed]), same, FARS)
    for tar in tars:
        assert result[f"tar@far={tar.far:g}"] == pytest.approx(100 * tar.tar)
        assert result[f"threshold@far={tar.far:g}"] == pytest.approx(tar.threshold, abs=1e-5)
    assert "tar@far=1e-06" not in result  # so few impostors do not carry it

    probes = [template for template in vectors if template >= 200]
    for name, subjects in GALLERIES.items():
        sides = [probes, [100 + subject for subject in subjects]]
        rows = [np.stack([vectors[template] for template in side]).astype(np.float32) for side in sides]
        searched = search(*rows, *(np.array(list(map(who, side))) for side in sides))
        assert result["galleries"][name] == pytest.approx(searched.figures())
    for name, value in result["mean"].items():
        assert value == pytest.approx((result["galleries"]["G1"][name] + result["galleries"]["G2"][name]) / 2)


def test_the_command_prints_tables_or_json(model: Path, ijbc: Path) -> None:
    arguments = ["ijb", model, ijbc / "meta", "--images", ijbc / "loose_crop", "--flip"]
    assert json.loads(said(*arguments, "--json")) == evaluate_ijb(model, ijbc / "meta", ijbc / "loose_crop", flip=True)
    expected = evaluate_ijb(model, ijbc / "meta", ijbc / "loose_crop", flip=True, norm=False, detector=False)
    lines = [line.split() for line in said(*arguments, "--no-detector-score", "--no-norm").splitlines()]
    assert ["options", "N0", "D0", "F1"] in lines
    assert ["tar@far=0.1", f"{expected['tar@far=0.1']:.2f}", f"{expected['threshold@far=0.1']:.6f}"] in lines
    for name, figures in {**expected["galleries"], "mean": expected["mean"]}.items():
        assert [name, *(f"{value:.2f}" for value in figures.values())] in lines


# What is wrong with the images


@pytest.fixture
def copied(ijbc: Path, tmp_path: Path) -> Path:
    shutil.copytree(ijbc, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each batch had that was embedded."""
    batches: list[int] = []
    raw = feature_file.raw_features

    def counting(module: Any, images: np.ndarray, **options: Any) -> np.ndarray:
        batches.append(len(images))
        return raw(module, images, **options)

    monkeypatch.setattr(feature_file, "raw_features", counting)
    return batches


def test_images_that_are_missing_are_named_and_counted(model: Path, copied: Path, embedded: list[int]) -> None:
    for name in ("7.png", "31.png"):
        (copied / "loose_crop" / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of 60 images .*: 7\.png, 31\.png"):
        evaluate_ijb(model, copied / "meta", copied / "loose_crop")
    with pytest.raises(FileNotFoundError, match="none is not a folder"):
        evaluate_ijb(model, copied / "meta", copied / "none")
    assert embedded == []


def test_images_that_cannot_be_read_are_named_before_any_is_embedded(
    model: Path, copied: Path, embedded: list[int]
) -> None:
    (copied / "loose_crop" / "58.png").write_bytes(b"no image")
    whole = (copied / "loose_crop" / "60.png").read_bytes()
    (copied / "loose_crop" / "60.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"2 of 60 images .*: 58\.png, 60\.png") as error:
        evaluate_ijb(model, copied / "meta", copied / "loose_crop")
    assert error.value.where == "58.png" and embedded == []


def test_landmarks_of_other_images(model: Path, copied: Path, embedded: list[int]) -> None:
    path = copied / "meta" / "ijbc_name_5pts_score.txt"
    lines = path.read_text().splitlines()

    def far_off(line: str) -> str:
        name, *numbers, score = line.split()
        return " ".join([name, *(f"{float(x) + 500}" for x in numbers), score])

    path.write_text("\n".join([*map(far_off, lines[:7]), *lines[7:]]))
    with pytest.raises(DataError, match="7 of 60 images") as error:
        evaluate_ijb(model, copied / "meta", copied / "loose_crop")
    assert error.value.where == str(copied / "meta") and embedded == []
    path.write_text("\n".join([*map(far_off, lines[:6]), *lines[6:]]))  # a few may, as a detector errs
    evaluate_ijb(model, copied / "meta", copied / "loose_crop")


# A run that is stopped


def test_a_stopped_run_goes_on(
    model: Path, ijbc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedded: list[int]
) -> None:
    monkeypatch.setattr(feature_file, "BATCH", 8)
    monkeypatch.setattr(feature_file, "KEPT", 2)
    meta, images, features = ijbc / "meta", ijbc / "loose_crop", tmp_path / "features"
    expected = evaluate_ijb(model, meta, images)
    embedded.clear()
    counted = feature_file.raw_features

    def stopped(module: Any, faces: np.ndarray, **options: Any) -> np.ndarray:
        if len(embedded) == 5:
            raise KeyboardInterrupt
        return counted(module, faces, **options)

    with monkeypatch.context() as patch:
        patch.setattr(feature_file, "raw_features", stopped)
        with pytest.raises(KeyboardInterrupt):
            evaluate_ijb(model, meta, images, features=features)
    assert embedded == [8] * 5 and json.loads((features / "IJB-C.json").read_text())["done"] == 32
    embedded.clear()
    assert evaluate_ijb(model, meta, images, features=features) == expected
    assert embedded == [8, 8, 8, 4]  # the 28 that were not kept
    embedded.clear()
    assert evaluate_ijb(model, meta, images, features=features) == expected
    # Other options of the pooling need no other features.
    assert evaluate_ijb(model, meta, images, features=features, detector=False)["options"] == "N1 D0 F0"
    assert embedded == []


def test_features_of_other_settings_are_not_taken(model: Path, solo_run: Path, copied: Path, tmp_path: Path) -> None:
    meta, images, features = copied / "meta", copied / "loose_crop", tmp_path / "features"
    rows, about = features / "IJB-C.f32", features / "IJB-C.json"
    evaluate_ijb(model, meta, images, features=features)
    points = meta / "ijbc_name_5pts_score.txt"
    moved_points = points.read_text().replace("1.png ", "1.png 1", 1)
    contents = {path: path.read_bytes() for path in (rows, about, points)}
    for run, options, damaged, content, where, message in (
        (model, {"flip": True}, about, contents[about], rows, "not the same: kind"),
        (solo_run, {"party": "silo-00"}, about, contents[about], rows, "not the same: model"),
        (model, {}, points, moved_points.encode(), rows, "not the same: images"),
        (model, {}, rows, contents[rows][:-4], rows, "60 rows"),
        (model, {}, about, b"{}", about, "damaged"),
    ):
        damaged.write_bytes(content)
        with pytest.raises(DataError, match=message) as error:
            evaluate_ijb(run, meta, images, features=features, **options)  # type: ignore[arg-type]
        assert error.value.where == str(where)
        damaged.write_bytes(contents[damaged])


# IJB-A


@pytest.fixture
def ijba(tmp_path: Path) -> Path:
    """Two splits; templates of three images of one subject, the first two of one media."""
    pictures(tmp_path / "images", lambda i: f"{'img' if i % 3 else 'frame'}/{i}.png")
    rng = np.random.default_rng(1)
    for number in (1, 2):
        folder = tmp_path / "splits" / f"split{number}"
        folder.mkdir(parents=True)
        lines = ["TEMPLATE_ID,SUBJECT_ID,FILE,MEDIA_ID,SIGHTING_ID"]
        for i in range(60):
            template = 1000 * number + i // 3
            lines.append(f"{template},{i // 6},{'img' if i % 3 else 'frame'}/{i}.png,{i % 3 // 2},{i}")
        (folder / f"verify_metadata_{number}.csv").write_text("\n".join(lines))
        pairs = [sorted(rng.choice(20, 2, replace=False)) for _ in range(150)] + [[2 * s, 2 * s + 1] for s in range(10)]
        (folder / f"verify_comparisons_{number}.csv").write_text(
            "\n".join(f"{1000 * number + a},{1000 * number + b}" for a, b in pairs)
        )
    return tmp_path


def test_the_splits_of_ijba(model: Path, ijba: Path) -> None:
    figures = evaluate_ijb(model, ijba / "splits", ijba / "images")
    assert (figures["set"], figures["splits"], figures["images"], figures["options"]) == ("IJB-A", 2, 60, "N1 D0 F0")
    embed, tars_of_splits = network(model), []
    for number in (1, 2):
        of: dict[int, list[tuple[int, np.ndarray, float]]] = {}
        for i in range(60):
            picture = cv2.imread(str(ijba / "images" / f"{'img' if i % 3 else 'frame'}/{i}.png"), cv2.IMREAD_GRAYSCALE)
            face = cv2.resize(picture[:, 5:85], (32, 32), interpolation=cv2.INTER_AREA)  # the middle square
            of.setdefault(1000 * number + i // 3, []).append((i % 3 // 2, embed(face), 1))
        vectors = pooled(of, norm=True, scored=False)
        text = (ijba / "splits" / f"split{number}" / f"verify_comparisons_{number}.csv").read_text()
        listed = [[int(x) for x in line.split(",")] for line in text.splitlines()]
        scores = np.array([vectors[a] @ vectors[b] for a, b in listed])
        same = np.array([(a % 1000) // 2 == (b % 1000) // 2 for a, b in listed])
        tars_of_splits.append([100 * tar.tar for tar in tar_at_far(scores, same, FARS)])
    for k, far in enumerate(FARS):
        values = [tars[k] for tars in tars_of_splits]
        assert [tars[f"tar@far={far:g}"] for tars in figures["each"]] == pytest.approx(values)
        assert figures["mean"][f"tar@far={far:g}"] == pytest.approx(sum(values) / 2)
        assert figures["sd"][f"tar@far={far:g}"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    assert "tar@far=0.001" not in figures["mean"]
    lines = [line.split() for line in said("ijb", model, ijba / "splits", "--images", ijba / "images").splitlines()]
    assert ["tar@far=0.1", f"{figures['mean']['tar@far=0.1']:.2f}", f"{figures['sd']['tar@far=0.1']:.2f}"] in lines


def test_what_is_wrong_with_splits(model: Path, ijba: Path) -> None:
    with pytest.raises(RecipeError) as option:
        evaluate_ijb(model, ijba / "splits", ijba / "images", detector=True)
    assert option.value.where == "--detector-score"
    metadata = ijba / "splits" / "split2" / "verify_metadata_2.csv"
    metadata.write_text(metadata.read_text().replace("2019,9,img/59.png", "2019,9,frame/0.png"))
    with pytest.raises(DataError, match=r"frame/0.png is of subject 0 and of subject 9"):
        evaluate_ijb(model, ijba / "splits", ijba / "images")
