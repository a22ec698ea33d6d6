"""The papers' own settings run from start to end where their data sets are: here tiny ones of synthetic faces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import pytest
from tinyruns import Silent

from coalface import config, experiment
from coalface.core import generator
from coalface.data.convert import Pairs, convert
from coalface.data.stores import open_store
from coalface.data.synthetic import SyntheticFaces

RECIPES = Path(__file__).parents[1] / "recipes"
SMALL = [
    "model.name=cnn-small", "model.embedding_size=16", "data.size=32", "loss.scale=16", "loss.margin=0.1",
    "engine.device=cpu", "engine.threads=1", "engine.shards={}",
    "local.iterations=2", "local.steps=8", "local.decays=[4, 6]", "local.batch=4", "methods.centralized.batch=12",
]  # fmt: skip


def people(root: Path, name: str, first: int, identities: int, images: int = 4) -> Path:
    """Identity folders of synthetic faces."""
    source = SyntheticFaces(identities, images, 0, size=32, grey=False, first=first)
    for i, (label, pixels) in enumerate(zip(source.labels.tolist(), source.images(size=32, grey=False), strict=True)):
        path = root / "made" / name / f"{name}-{label}" / f"{i:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(cv2.imencode(".png", pixels[:, :, ::-1])[1]))
    return root / "made" / name


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the names that the recipes give."""
    root = tmp_path_factory.mktemp("sets")
    for number, name in enumerate(("faces_emore", "faces_glintasia", "faces_vgg_112x112")):
        convert(open_store(people(root, name, 100 * number, 8)), root / name, "rec")
    (root / "lists").mkdir()
    for number, name in enumerate(("lfw", "cplfw", "calfw", "cfp_fp", "agedb_30")):
        pairs = Pairs(draw=20, rng=generator(number))
        folder = people(root, name, 1000 + 100 * number, 6)
        convert(open_store(folder), root / "lists" / f"{name}.bin", "bin", pairs=pairs)
    return root


@pytest.mark.parametrize(
    ("recipe", "method", "parties"),
    [
        ("paper-3-party", "pfm-fv", ["asian", "ms1m", "vgg"]),
        ("paper-3-party", "centralized", ["pooled"]),
        ("paper-12-party", "fedavg-fv", [f"{name}-{part}" for name in ("asian", "ms1m", "vgg") for part in "abcd"]),
    ],
)
def test_the_recipe_of_pfms_paper_runs(
    root: Path, tmp_path: Path, recipe: str, method: str, parties: list[str]
) -> None:
    made = config.load(RECIPES / "pfm" / f"{recipe}.yaml", [*SMALL, f"method={method}", f"data.root={root}"])
    out = experiment.run(made, tmp_path / "run", Silent(), report=False)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == 4
    assert set(summary["figures"]) == {"lfw", "cplfw", "calfw", "cfp", "agedb"}
    trainers = [p for p in summary["parties"] if p["role"] == "trainer"]
    assert [p["name"] for p in trainers] == parties
    validators = [p["name"] for p in summary["parties"] if p["role"] == "validator"]
    assert validators == (["agedb", "calfw", "cfp", "cplfw", "lfw"] if method.endswith("-fv") else [])


@pytest.mark.parametrize("recipe", ["paper-3-party", "paper-12-party"])
def test_every_k_of_the_paper_divides_its_schedule(recipe: str) -> None:
    for k, rounds in ((100, 3328), (400, 832), (1600, 208)):
        made = config.load(RECIPES / "pfm" / f"{recipe}.yaml", [f"local.iterations={k}"])
        assert made.rounds == rounds
        local = made.build_local()
        marks = (0, 128_000, 230_400, 307_200)
        assert [local.lr_at(steps // k + 1, rounds) for steps in marks] == pytest.approx([0.1, 0.01, 0.001, 0.0001])
        assert local.lr_at(128_000 // k, rounds) == 0.1
