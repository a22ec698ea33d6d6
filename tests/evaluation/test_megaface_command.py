"""`coalface megaface` on made-up lists over drawn faces, against its metrics on features of single images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from commands import said
from naive import embedding
from tinyruns import centred_model

from coalface.core.errors import DataError, RecipeError
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.evaluation import finished_model
from coalface.evaluation.megaface import evaluate_megaface
from coalface.evaluation.metrics.megaface import evaluate_probes

NOISY = ("Ann Lee/Ann Lee_2.png", "1/12@N00/3_0.jpg")
"""A probe and a distractor that insightface's lists have, in the kit's words."""


def drawn(seed: int, identities: int, images: int) -> np.ndarray:
    return SyntheticFaces(identities, images, seed, size=32, grey=True).generate().pixels[:, :, :, 0]


@pytest.fixture(scope="module")
def model(fedavg_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return centred_model(fedavg_run, tmp_path_factory.mktemp("centred") / "model")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists as the kit has them, with spaces in names, and images as insightface has them, with underscores."""
    root = tmp_path_factory.mktemp("megaface")
    (root / "lists").mkdir()
    people, probes = ("Ann Lee", "Bo", "Cid Dee"), drawn(5, 3, 4)
    files = [f"{name}/{name}_{n}.png" for name in people for n in range(4)]
    ids = [name for name in people for _ in range(4)]
    for file, face in zip(files, probes, strict=True):
        path = root / "facescrub" / file.replace(" ", "_")
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), face)
    (root / "lists" / "facescrub_features_list.json").write_text(json.dumps({"path": files, "id": ids}))
    crowd = [f"{n % 4}/1{n % 3}@N00/{n}_0.jpg" for n in range(50)]
    crowd[7] = NOISY[1]
    for file, face in zip(crowd, drawn(6, 25, 2), strict=True):
        path = (root / "megaface" / file).with_suffix(".png" if file.startswith("2") else ".jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), face)
    for size, number in ((50, 1), (20, 1), (30, 2)):
        (root / "lists" / f"megaface_features_list.json_{size}_{number}").write_text(json.dumps({"path": crowd[:size]}))
    (root / "facescrub_noises.txt").write_text("# of insightface\nAnn_Lee_2.png\n")
    (root / "megaface_noises.txt").write_text(f"{NOISY[1]}\n9/9@N00/9.jpg\n")
    return root


def evaluated(run: Path, kit: Path, **options: Any) -> dict[str, Any]:
    options = {"size": 50, "fars": (1e-6, 0.01, 0.1), **options}
    return evaluate_megaface(run, kit / "lists", kit / "facescrub", kit / "megaface", **options)


def naive(run: Path, kit: Path, size: int, flip: bool, noises: bool) -> dict[str, float]:
    """The figures of `evaluate_probes` on embeddings of single images."""
    module = finished_model.read_model(run)[0].module

    def unit(file: Path) -> np.ndarray:
        face = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)
        total = embedding(module, face) + (embedding(module, face[:, ::-1]) if flip else 0)
        return (total / total.norm()).numpy()

    listed = json.loads((kit / "lists" / "facescrub_features_list.json").read_text())
    crowd = json.loads((kit / "lists" / f"megaface_features_list.json_{size}_1").read_text())["path"]
    probes = [p for p in zip(listed["path"], listed["id"], strict=True) if not (noises and p[0] in NOISY)]
    probe_features = [unit(kit / "facescrub" / file.replace(" ", "_")) for file, _ in probes]
    distractor_features = []
    for file in crowd:
        if not (noises and file in NOISY):
            place = kit / "megaface" / file
            distractor_features.append(unit(place if place.exists() else place.with_suffix(".png")))
    rows, crowd_rows = (np.stack(features).astype(np.float32) for features in (probe_features, distractor_features))
    people = np.unique([name for _, name in probes], return_inverse=True)[1]
    result = evaluate_probes(rows, people, crowd_rows, fars=(0.01, 0.1))
    figures = {**result.figures(), "pairs": result.pairs, "distractors": result.distractors}
    return figures


@pytest.mark.parametrize(("size", "flip", "noises"), [(50, False, False), (50, True, True), (20, False, True)])
def test_the_figures_are_those_of_the_definitions(model: Path, kit: Path, size: int, flip: bool, noises: bool) -> None:
    lists = {"facescrub_noises": kit / "facescrub_noises.txt", "megaface_noises": kit / "megaface_noises.txt"}
    figures = evaluated(model, kit, size=size, flip=flip, **(lists if noises else {}))
    expected = naive(model, kit, size, flip, noises)
    assert expected["distractors"] == size - noises and expected["pairs"] == 36 - 6 * noises
    for name, value in expected.items():
        assert figures[name] == pytest.approx(value), name
    assert (figures["probes"], figures["identities"], figures["set"]) == (12 - noises, 3, 1)
    assert "tar@far=1e-06" not in figures and -1 <= figures["threshold@far=0.1"] <= figures["threshold@far=0.01"] <= 1


def test_the_command_prints_the_figures_or_json(model: Path, kit: Path) -> None:
    noises = {f"{name}_noises": kit / f"{name}_noises.txt" for name in ("facescrub", "megaface")}
    expected = evaluate_megaface(
        model, kit / "lists", kit / "facescrub", kit / "megaface", size=30, number=2, flip=True, **noises
    )
    arguments = ["megaface", model, kit / "lists", "--probes", kit / "facescrub", "--distractors", kit / "megaface"]
    arguments += ["--size", 30, "--set", 2, "--flip", "--facescrub-noises", kit / "facescrub_noises.txt"]
    arguments += ["--megaface-noises", kit / "megaface_noises.txt"]
    assert json.loads(said(*arguments, "--json")) == expected
    lines = [line.split() for line in said(*arguments).splitlines()]
    assert ["rank-1", f"{expected['rank-1']:.2f}", "%"] in lines and ["distractors", "29"] in lines


def test_what_is_wrong_with_the_lists(model: Path, kit: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="it has 20, 50") as size:
        evaluated(model, kit, size=1_000_000)
    assert size.value.where == "--size"
    with pytest.raises(FileNotFoundError, match="json_SIZE_3"):
        evaluated(model, kit, number=3)
    noises = tmp_path / "noises.txt"
    noises.write_text("\n".join(f"{name}_{n}.png" for name in ("Ann_Lee", "Bo", "Cid_Dee") for n in range(3)))
    with pytest.raises(DataError, match="no identity with two probes"):
        evaluated(model, kit, facescrub_noises=noises)
