"""A gallery: whom an image shows, by whose model, at which threshold, and the commands that use one."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from commands import invoked, outputs, refused, said
from onnx_graphs import linear_graph
from typer.testing import CliRunner
from unit_rows import unit

from coalface.cli.evaluation import _calibrated
from coalface.cli.main import app
from coalface.core.errors import DataError, RecipeError
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.gallery.file import Enrolled
from coalface.experiments.gallery.gallery import Gallery
from coalface.models.calibration import Threshold

FACES = SyntheticFaces(5, 4, 5, size=32, grey=True).generate()


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five people of three images each, and one more of each in `new`."""
    root = tmp_path_factory.mktemp("pictures")
    for number, (person, pixels) in enumerate(zip(FACES.labels, FACES.pixels, strict=True)):
        folder = root / ("new" if number % 4 == 3 else "known") / f"Person {person}"
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{number}.png"), pixels)
    return root


@pytest.mark.parametrize("sealed", [False, True])
def test_it_finds_the_nearest_mean_of_a_persons_images(
    sealed: bool, model: FaceModel, faces: Path, key: Path, tmp_path: Path
) -> None:
    gallery = Gallery.create(tmp_path / "g", model, key=key if sealed else None, threshold=0.25)
    enrolment = gallery.enroll(faces / "known")
    assert (enrolment.images, enrolment.refused) == (15, []) and len(enrolment.people) == 5
    opened = Gallery(tmp_path / "g", model, key=key if sealed else None)
    assert opened.people == {f"Person {i}": 3 for i in range(5)}
    first = faces / "known" / "Person 0" / "0.png"
    assert opened.images()[0] == Enrolled("Person 0", str(first), hashlib.sha256(first.read_bytes()).hexdigest())
    embeddings = model.embed(FACES.pixels)
    identified = opened.identify(faces / "new", top=5)
    for person in range(5):
        expected = {}
        for other in range(5):
            mean = sum(embeddings[4 * other + k].astype(np.float64) for k in range(3))
            expected[f"Person {other}"] = float(embeddings[4 * person + 3] @ mean / np.linalg.norm(mean))
        matches = identified.matches[5 * person : 5 * person + 5]
        assert [match.person for match in matches] == sorted(expected, key=lambda name: -expected[name])
        for match in matches:
            assert match.similarity == pytest.approx(expected[match.person], abs=1e-5)
            assert match.accepted == (match.similarity >= 0.25)


def test_the_search_is_exact(model: FaceModel, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gallery = Gallery.create(tmp_path / "g", model, threshold=0.0)
    people, rows = [f"P{i % 70:02}" for i in range(200)], unit(rng.standard_normal((200, 128)))
    gallery.add([Enrolled(person) for person in people], rows)
    probes = unit(rng.standard_normal((4, 128)))
    for probe, nearest in zip(probes, gallery.search(probes, top=3), strict=True):
        scores = {}
        for name in set(people):
            of_person = [row for row, person in zip(rows, people, strict=True) if person == name]
            scores[name] = float(probe @ unit(np.sum(of_person, axis=0)))
        assert [name for name, _ in nearest] == sorted(scores, key=lambda name: -scores[name])[:3]
        np.testing.assert_allclose([cosine for _, cosine in nearest], sorted(scores.values())[:-4:-1], atol=1e-6)


def test_another_models_gallery_is_refused_with_both_fingerprints(
    model: FaceModel, solo_run: Path, faces: Path, tmp_path: Path
) -> None:
    Gallery.create(tmp_path / "g", model, threshold=0.0)
    other = FaceModel.from_run(solo_run, party="silo-01")
    with pytest.raises(DataError) as error:
        Gallery(tmp_path / "g", other)
    assert error.value.where == str(tmp_path / "g")
    assert model.fingerprint[:16] in error.value.text and other.fingerprint[:16] in error.value.text
    copy = FaceModel(model.folder)
    assert copy.fingerprint == model.fingerprint
    with torch.no_grad():
        next(copy.parameters()).view(-1)[0] += 1
    with pytest.raises(DataError):
        Gallery(tmp_path / "g", copy)


def test_bad_images_are_refused_and_the_rest_is_enrolled(
    model: FaceModel, faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(faces / "known", tmp_path / "known"))
    (folder / "Person 1" / "broken.jpg").write_bytes(b"\xff\xd8\xff not an image")
    (folder / "Person 2" / "empty.png").write_bytes(b"")
    shutil.copy(folder / "Person 0" / "0.png", folder / "Person 3" / "again.png")
    gallery = Gallery.create(tmp_path / "g", model, threshold=0.0)
    enrolment = gallery.enroll(folder)
    refusals = {Path(refusal.file).name: refusal.reason for refusal in enrolment.refused}
    assert enrolment.images == 15 and refusals.keys() == {"broken.jpg", "empty.png", "again.png"}
    assert "Person 0" in refusals["again.png"]
    again = gallery.enroll(folder)
    assert (again.images, again.already, len(again.refused)) == (0, 15, 3)
    broken = np.full((1, 128), np.nan, np.float32)
    monkeypatch.setattr(model, "embed", lambda images: np.repeat(broken, len(images), axis=0))
    assert len(gallery.enroll(faces / "new").refused) == 5
    shutil.copytree(faces / "known" / "Person 0", tmp_path / "albums" / "Cid" / "2020")
    shutil.copytree(faces / "known" / "Person 1", tmp_path / "albums" / "Dan" / "2020")
    with pytest.raises(DataError, match="2020"):
        gallery.enroll(tmp_path / "albums")
    for rows in (broken, np.ones((1, 128), np.float32), np.ones((1, 64), np.float32), np.zeros((1, 128), np.float32)):
        with pytest.raises(ValueError):
            gallery.add([Enrolled("Ann")], rows)
    assert sum(gallery.people.values()) == 15


def test_thresholds_come_from_the_models_calibration(
    model: FaceModel, fedavg_run: Path, faces: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(fedavg_run, tmp_path / "run"))
    (run / "model" / "calibration.json").unlink()
    with pytest.raises(DataError, match="--calibrate"):
        Gallery.create(tmp_path / "g", FaceModel(run))
    notes = outputs("evaluate", run, "--on", faces / "known", "--pairs", "15", "--calibrate")[1]
    assert "0.1, rests on 15 impostor pairs of known; with 1 person enrolled it takes a tenth" in notes
    calibrated = FaceModel(run)
    figures = calibrated.evaluate(faces / "known", pairs=15)
    figures = figures.get("others", figures)
    threshold = calibrated.threshold(0.1)
    assert threshold.cosine == figures["threshold@far=0.1"] and threshold.on == "known"
    assert (threshold.count, threshold.impostors) == (30, 15) and str(threshold).endswith("known (15 impostor pairs)")
    gallery = Gallery.create(tmp_path / "g", calibrated, far=0.1)
    assert gallery.threshold() == gallery.threshold(far=0.1) == threshold
    with pytest.raises(DataError):
        gallery.threshold(far=1e-6)
    calibrated.save_pretrained(tmp_path / "saved")
    assert FaceModel(tmp_path / "saved").thresholds == calibrated.thresholds


def test_a_run_leaves_the_thresholds_of_its_models(fedavg_run: Path, solo_run: Path) -> None:
    by_run = FaceModel.from_run(fedavg_run).thresholds
    assert {threshold.rate for threshold in by_run} == {0.1} and by_run[0].on == "unseen" and by_run[0].impostors == 20
    ones = [FaceModel.from_run(solo_run, party).threshold(0.1).cosine for party in ("silo-00", "silo-01")]
    assert ones[0] != ones[1]


def test_two_images_are_verified(model: FaceModel, faces: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    first, second = (next((faces / "known" / f"Person {i}").iterdir()) for i in (0, 1))
    similarity = model.similarity(first, second)
    for threshold, status in ((similarity - 1e-3, 0), (similarity + 1e-3, 1)):
        words = ["verify", first, second, "--model", model.folder, "--threshold", threshold, "--json"]
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == status and json.loads(result.stdout)["same"] == (status == 0)
        assert json.loads(result.stdout)["similarity"] == pytest.approx(similarity, abs=1e-6)
    (tmp_path / "broken.png").write_bytes(b"no image")
    words = ["--model", model.folder, "--far"]
    line = refused(capsys, monkeypatch, "verify", first, faces, *words, "0.1", status=2)
    assert line.startswith(f"coalface: {faces}: ")
    line = refused(capsys, monkeypatch, "verify", first, second, *words, "0.1", "--threshold", "0.5", status=2)
    assert line.startswith("coalface: --threshold: ")
    line = refused(capsys, monkeypatch, "verify", first, tmp_path / "broken.png", *words, "0.1", status=2)
    assert str(tmp_path / "broken.png") in line
    assert "--calibrate" in refused(capsys, monkeypatch, "verify", first, second, *words, "1e-9", status=2)


def test_images_are_embedded_into_a_file(model: FaceModel, faces: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(faces / "new", tmp_path / "new"))
    (folder / "broken.png").write_bytes(b"no image")
    text, notes = outputs("embed", folder, "--model", model.folder, "--out", tmp_path / "e.npz")
    assert "5 embeddings of 128" in text and "broken.png" in notes
    with np.load(tmp_path / "e.npz") as stored:
        assert str(stored["model"]) == model.fingerprint
        np.testing.assert_allclose(stored["embeddings"], model.embed(FACES.pixels[3::4]), atol=1e-5)
        assert [Path(file).name for file in stored["files"]] == [f"{i}.png" for i in range(3, 20, 4)]


def test_images_of_which_none_can_be_embedded_leave_no_file(
    model: FaceModel, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    words = (tmp_path / "broken.png", "--model", model.folder, "--out", tmp_path / "e.npz")
    assert "broken.png" in refused(capsys, monkeypatch, "embed", *words, status=1)
    assert not (tmp_path / "e.npz").exists()


def test_commands_of_which_every_image_is_refused_exit_with_1(model: FaceModel, faces: Path, tmp_path: Path) -> None:
    said("gallery", "create", tmp_path / "g", "--model", model.folder, "--threshold", "-1")
    (tmp_path / "broken.png").write_bytes(b"no image")
    for images, status in ((tmp_path / "broken.png", 1), (faces / "known", 0), (faces / "known", 0)):
        assert invoked("gallery", "enroll", tmp_path / "g", images).exit_code == status
    for words, status in (((tmp_path / "broken.png",), 1), ((tmp_path / "broken.png", faces / "new"), 0)):
        assert invoked("gallery", "identify", tmp_path / "g", *words).exit_code == status
        assert invoked("gallery", "identify", tmp_path / "g", *words, "--json").exit_code == status
    error = invoked("gallery", "enroll", tmp_path / "g", faces / "known", "--name", "").exception
    assert isinstance(error, RecipeError) and error.where == "--name"


def test_what_is_no_image_and_who_has_no_folder_is_noted(model: FaceModel, faces: Path, tmp_path: Path) -> None:
    said("gallery", "create", tmp_path / "g", "--model", model.folder, "--threshold", "-1")
    folder = Path(shutil.copytree(faces / "known", tmp_path / "people"))
    for name in ("Person 1/a.heic", "Person 1/list.txt", "b.gif"):
        (folder / name).write_bytes(b"")
    shutil.copy(faces / "new" / "Person 0" / "3.png", folder)
    enrolled = outputs("gallery", "enroll", tmp_path / "g", folder)[1]
    assert all(word in enrolled for word in ("3 files", "a.heic", "list.txt", "b.gif", "1 image in no person's folder"))
    identified = outputs("gallery", "identify", tmp_path / "g", folder)[1]
    assert "3 files" in identified and "no person's folder" not in identified
    assert "3 files" in outputs("embed", folder, "--model", model.folder, "--out", tmp_path / "e.npz")[1]
    assert outputs("gallery", "enroll", tmp_path / "g", folder / "Person 2")[1] == ""


def test_the_commands_enroll_identify_and_remove(model: FaceModel, faces: Path, tmp_path: Path) -> None:
    place, other = tmp_path / "g", tmp_path / "o"
    said("gallery", "create", place, "--model", model.folder, "--threshold", "-1")
    said("gallery", "enroll", place, faces / "known" / "Person 0", "--name", "Ann")
    said("gallery", "enroll", place, faces / "known" / "Person 1")  # its model lies where the gallery says
    people = json.loads(said("gallery", "list", place, "--json"))["people"]
    assert people == [{"person": "Ann", "images": 3}, {"person": "Person 1", "images": 3}]
    identified = json.loads(said("gallery", "identify", place, faces / "new", "--json"))
    assert len(identified["matches"]) == 5 and all(match["accepted"] for match in identified["matches"])
    text = said("gallery", "identify", place, faces / "new", "--threshold", "0.5", "--top", "2")
    assert text.count("Ann") == 5 and "threshold 0.500000" in text
    assert "3 images" in said("gallery", "remove", place, "Ann")
    assert "Person 1" in said("gallery", "list", place, "--files")
    said("gallery", "create", other, "--model", model.folder, "--far", "0.1")
    said("gallery", "enroll", other, faces / "known")
    assert "among 5 people, about 50 % of strangers" in said("gallery", "identify", other, faces / "new")


def test_a_gallery_of_a_saved_model_takes_the_run_with_the_partys_name(
    solo_run: Path, faces: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    FaceModel.from_run(solo_run, party="silo-01").save_pretrained(tmp_path / "saved")
    Gallery.create(tmp_path / "g", FaceModel(tmp_path / "saved"), threshold=-1.0)
    for command, images in (("enroll", faces / "known"), ("identify", faces / "new")):
        words = ("gallery", command, tmp_path / "g", images, "--model", solo_run)
        assert "--party takes silo-00, silo-01" in refused(capsys, monkeypatch, *words)
        assert "was made by the model" in refused(capsys, monkeypatch, *words, "--party", "silo-00")
        said(*words, "--party", "silo-01")


@pytest.mark.slow
@pytest.mark.ci
def test_a_gallery_remembers_what_its_onnx_file_expects(
    fedavg_run: Path, faces: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    matrix = np.random.default_rng(0).normal(size=(3 * 32 * 32, 8)).astype(np.float32)
    path, place = tmp_path / "a.onnx", tmp_path / "g"
    path.write_bytes(linear_graph(matrix, 32))
    model = ("--model", path, "--input", "{mean: 100, std: [1, 2, 4], order: bgr}")
    line = refused(capsys, monkeypatch, "gallery", "create", place, *model)
    (command,) = re.findall("`coalface (.*)`", line)
    calibrate = [{"PAIRS": str(faces / "known")}.get(word, word) for word in shlex.split(command)]
    printed = said(*calibrate, "--pairs", "15")
    assert "\nfile " in printed and " BGR, (x − 100) / (1, 2, 4)\n" in printed
    said("gallery", "create", place, *model, "--far", "0.1")
    said("gallery", "enroll", place, faces / "known")
    matches = json.loads(said("gallery", "identify", place, faces / "new", "--json"))["matches"]
    expected = FaceModel(path, input={"mean": 100, "std": [1, 2, 4], "order": "bgr"})
    templates = expected.embed(faces / "known").reshape(5, 3, -1).sum(axis=1)
    cosines = expected.embed(faces / "new") @ unit(templates).T
    np.testing.assert_allclose([match["similarity"] for match in matches], cosines.max(axis=1), atol=1e-5)
    line = refused(capsys, monkeypatch, "gallery", "identify", place, faces / "new", "--model", fedavg_run)
    assert all(one.fingerprint[:16] in line for one in (expected, FaceModel.from_run(fedavg_run)))
    wrong = ("{mean: x}", "{", "{mean: [1, 2]}", "{std: 0}", "{stdd: 1}", "bgr")
    for words in (*(("--input", text) for text in wrong), ("--party", "silo-00")):
        for command in (
            ("embed", faces, "--model", path),
            ("evaluate", path, "--on", faces),
            ("gallery", "create", tmp_path / "h", "--model", path),
        ):
            line = refused(capsys, monkeypatch, *command, *words)
            assert line.startswith(f"coalface: {words[0]}: ") and "recipe" not in line


def test_a_rate_of_strangers_needs_the_gallery_of_a_client(model: FaceModel, tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", model, far=0.1)
    with pytest.raises(DataError, match="or any other FPIR: .*export-client"):
        gallery.threshold(fpir=0.1)
    for rules in (functools.partial(Gallery.create, tmp_path / "h", model), gallery.threshold):
        with pytest.raises(RecipeError) as error:
            rules(far=0.1, threshold=0.5)
        assert error.value.where == "--threshold"


def test_faiss_finds_whom_the_product_finds(faces: Path, model: FaceModel, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    ours = Gallery.create(tmp_path / "g", model, threshold=0.0)
    indexed = Gallery(tmp_path / "g", model, faiss=True)
    rng = np.random.default_rng(0)
    for number in range(2):  # what is enrolled later is found too
        rows = unit(rng.normal(size=(300, 128)))
        ours.add([Enrolled(f"{number} {i}") for i in range(300)], rows)
        probes = np.concatenate([rows[:5], unit(rng.normal(size=(40, 128)))])
        for top in (1, 3, 1000):
            for expected, found in zip(ours.search(probes, top), indexed.search(probes, top), strict=True):
                assert [person for person, _ in found] == [person for person, _ in expected]
                np.testing.assert_allclose([c for _, c in found], [c for _, c in expected], atol=1e-6)
    ours.enroll(faces / "known")
    expected, by_faiss = (
        said("gallery", "identify", tmp_path / "g", faces / "new", *words) for words in ([], ["--faiss"])
    )
    assert by_faiss == expected


def test_who_enrolls_many_or_what_the_threshold_never_saw_is_warned(tmp_path: Path, model: FaceModel) -> None:
    rng = np.random.default_rng(0)
    apart = unit(np.eye(8, 128) + 0.01 * rng.normal(size=(8, 128)))  # cosines below 0.1
    alike = unit(1 + 0.1 * rng.normal(size=(8, 128)))  # cosines above 0.9
    chosen = [Threshold(0.5, 0.001, on="a", count=2000, impostors=1000), Threshold(0.5, 0.1, on="a", count=20)]
    warnings = {}
    for name, rows in (("apart", apart), ("alike", alike)):
        gallery = Gallery.with_thresholds(tmp_path / name, model, chosen)
        assert gallery.warnings(chosen[0]) == []  # nobody is enrolled
        gallery.add([Enrolled(f"P{k}") for k in range(8)], rows)
        warnings[name] = [gallery.warnings(threshold) for threshold in (*chosen, Threshold(0.5))]
    assert warnings["apart"][0] == warnings["apart"][2] == warnings["alike"][2] == []
    (crowd,) = warnings["apart"][1]
    (unlike,) = warnings["alike"][0]
    assert "8 people: about 80 % of strangers" in crowd and "28 of 28 pairs" in unlike and "about 0.028 " in unlike
    assert len(warnings["alike"][1]) == 2


def test_a_model_that_has_collapsed_is_named(tmp_path: Path, model: FaceModel) -> None:
    collapsed = Threshold(0.999999, 0.001, on="a", count=2000, impostors=1000)
    gallery = Gallery.with_thresholds(tmp_path / "g", model, [collapsed])
    assert gallery.warnings(collapsed) == [collapsed.collapsed] and str(collapsed).startswith("threshold 0.999999 ")
    assert not Threshold(0.98, 0.001).collapsed and not Threshold(0.999999).collapsed  # one that a person chose
    assert _calibrated([collapsed]).startswith("warning: threshold 0.999999")


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("faiss", "faiss", "gallery identify g faces --faiss --threshold 0 --quiet"),
        ("cryptography.hazmat.primitives", "privacy", "gallery create sealed --model run --threshold 0 --key key"),
        ("onnxscript", "onnx", "export run --to onnx --out exported"),
    ],
)
def test_a_package_that_is_missing_is_named_by_its_extra(
    package: str,
    extra: str,
    words: str,
    fedavg_run: Path,
    faces: Path,
    model: FaceModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Gallery.create(tmp_path / "g", model, threshold=0.0).add([Enrolled("Ann")], unit(np.eye(1, 128)))
    (tmp_path / "run").symlink_to(fedavg_run)
    (tmp_path / "faces").symlink_to(faces / "new")
    (tmp_path / "key").write_bytes(bytes(range(32)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    line = refused(capsys, monkeypatch, *words.split())
    assert line.endswith(f": pip install 'coalface[{extra}]'\n") and "defect" not in line


def test_an_error_names_the_option_of_the_command(
    fedavg_run: Path, solo_run: Path, faces: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    for command in (("embed", faces), ("verify", faces, faces), ("gallery", "create", tmp_path / "g")):
        for words in (("--input", "imagenet"), ("--party", "silo-00")):
            line = refused(
                capsys, monkeypatch, *command, "--model", fedavg_run, *words, status=2 if command[0] == "verify" else 1
            )
            assert line.startswith(f"coalface: {words[0]}: ")
    for command in (
        ("embed", faces, "--model", solo_run),
        ("export", solo_run, "--to", "torch", "--out", tmp_path / "out"),
    ):
        assert "--party takes silo-00" in refused(capsys, monkeypatch, *command)
