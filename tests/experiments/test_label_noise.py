"""Images under a wrong name are found by embeddings, and a model that tells nobody apart is believed nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from commands import invoked, refused
from numpy.typing import NDArray

from coalface.data.synthetic.generator import SyntheticFaces
from coalface.experiments.gallery.label_noise import LEAST, MARGIN, LabelNoise, Suspect, suspects


def unit(rows: NDArray[np.float64]) -> NDArray[np.float32]:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def pixels(people: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    faces = SyntheticFaces(people, 8, seed=seed, size=32, grey=False).generate()
    small = [cv2.resize(face, (12, 12), interpolation=cv2.INTER_AREA).ravel() for face in faces.pixels]
    return np.array(small, dtype=np.float64), faces.labels


@pytest.fixture(scope="module")
def embedded() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Thirty people by linear discriminants that were fitted to 120 others."""
    others, labels = pixels(120, seed=6)
    means = np.array([others[labels == person].mean(axis=0) for person in range(120)])
    within = others - means[labels]
    values, vectors = np.linalg.eigh(within.T @ within / len(within) + np.eye(others.shape[1]))
    whitened = vectors / np.sqrt(values)
    main = np.linalg.svd((means - others.mean(axis=0)) @ whitened, full_matrices=False)[2][:48]
    faces, labels = pixels(30, seed=5)
    return unit((faces - others.mean(axis=0)) @ whitened @ main.T), labels


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_of_synthetic_faces_under_wrong_names_most_are_found_and_few_others(
    embedded: tuple[NDArray[np.float32], NDArray[np.int64]], share: float
) -> None:
    embeddings, people = embedded
    rng, labels = np.random.default_rng(0), people.copy()
    wrong = rng.choice(len(people), round(share * len(people)), replace=False)
    labels[wrong] = (labels[wrong] + rng.integers(1, 30, len(wrong))) % 30
    rows = suspects(embeddings, labels)
    right = {row for row, *_ in rows} & set(wrong.tolist())
    assert len(right) >= 0.75 * len(wrong) and len(right) >= 0.9 * len(rows)
    assert sum(nearer == people[row] for row, _, nearer, _ in rows if row in right) >= 0.9 * len(right)
    assert [own - other for _, own, _, other in rows] == sorted(own - other for _, own, _, other in rows)


def test_it_is_a_naive_loop_over_centres_that_leave_the_image_itself_out() -> None:
    rng = np.random.default_rng(1)
    embeddings, labels = unit(rng.normal(size=(120, 4))), rng.integers(0, 20, 120)
    labels[:5] = 20  # of one identity there are few
    labels[2:5] = 21

    def cosine(i: int, identity: int) -> float:
        centre = embeddings[[j for j in range(120) if labels[j] == identity and j != i]].sum(axis=0)
        return float(embeddings[i] @ centre / np.linalg.norm(centre))

    identities = [identity for identity in set(labels.tolist()) if (labels == identity).sum() >= LEAST]
    of = {k: sorted(cosine(i, k) for i in np.flatnonzero(labels == k).tolist()) for k in identities}
    expected = {}
    for i in np.flatnonzero(np.isin(labels, identities)).tolist():
        own = cosine(i, labels[i])
        other, nearest = max((cosine(i, k), k) for k in identities if k != labels[i])
        if other >= own + MARGIN and other >= of[nearest][(len(of[nearest]) - 1) // 10]:
            expected[i] = (own, nearest, other)
    rows = {i: (own, nearest, other) for i, own, nearest, other in suspects(embeddings, labels)}
    assert expected and rows.keys() == expected.keys()
    assert all(rows[i] == pytest.approx(expected[i], abs=1e-5) for i in rows)


def test_identities_of_two_images_are_passed_over_and_ties_do_not_count() -> None:
    left, right = [1.0, 0.0], [0.0, 1.0]
    embeddings = np.array([left, left, left, right, right, right, left], dtype=np.float32)
    assert [row[0] for row in suspects(embeddings, np.array([0, 0, 0, 1, 1, 1, 1]))] == [6]
    assert suspects(embeddings, np.array([0, 0, 0, 1, 1, 2, 2])) == []
    assert (
        suspects(np.ones((6, 1), np.float32), np.array([0, 1, 0, 1, 0, 1]))
        == []
        == suspects(embeddings[:0], np.zeros(0, int))
    )


def test_a_model_that_tells_nobody_apart_is_not_believed() -> None:
    suspect = Suspect("a/1.png", "a", 0.1, "b", 0.9)
    assert "a/1.png" in str(LabelNoise([suspect], 10)) and "0.90 with b" in str(LabelNoise([suspect], 10))
    assert "does not tell these people apart" in str(LabelNoise([suspect], 4)) and str(LabelNoise([], 4)) == ""


def test_the_command_lists_them_by_a_runs_model(
    fedavg_run: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    faces = SyntheticFaces(4, 4, 5, size=32, grey=True).generate()
    for number, (person, pixels) in enumerate(zip(faces.labels, faces.pixels, strict=True)):
        (tmp_path / f"p{person}").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / f"p{person}" / f"{number}.png"), pixels)
    for option, value in (("--party", "silo-00"), ("--input", "imagenet")):
        line = refused(capsys, monkeypatch, "data", "inspect", tmp_path, "--model", fedavg_run, option, value)
        assert line.startswith(f"coalface: {option}: ")
        assert "--model" in refused(capsys, monkeypatch, "data", "inspect", tmp_path, option, value)
    (tmp_path / "p0" / "broken.png").write_bytes(b"")
    result = invoked("data", "inspect", tmp_path, "--model", fedavg_run, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1 and report["damaged_count"] == 1
    assert all(row["nearer_cosine"] >= row["cosine"] + MARGIN for row in report["wrong_labels"])
    assert bool(report["wrong_labels"]) == any("nearer" in s or "labelled" in s for s in report["wrong"])
