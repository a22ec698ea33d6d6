from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tinyruns import TINY, Silent

from coalface import config, demo
from coalface.config import RecipeError


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demonstration at a size of seconds, in one process."""
    shrunk: dict[str, Any] = {**demo.RECIPE, "rounds": 1, "local": TINY["local"]}
    shrunk |= {key: TINY[key] for key in ("data", "judge", "engine")}
    monkeypatch.setattr(demo, "RECIPE", shrunk)


def test_it_compares_three_ways_on_one_page(small: None, tmp_path: Path) -> None:
    view, out = Silent(), tmp_path / "demo"
    said = demo.run(out, view)
    assert [name for name, _, _ in view.started] == ["demo-fedavg", "demo-solo", "demo-centralized"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(method in page for method in demo.METHODS)
    assert all((out / method / "report.html").exists() for method in demo.METHODS)
    assert f"the report: {out / 'report.html'}" in said
    assert (
        "centralized (pooled)" in said and "Pooled (all the images in one place, not federated): centralized." in said
    )
    assert max(len(line) for line in said.splitlines()[:8]) <= 120


def test_the_three_are_judged_alike(small: None, tmp_path: Path) -> None:
    demo.run(tmp_path / "demo", Silent())
    lists = {
        json.loads((tmp_path / "demo" / method / "evidence.json").read_text())["unseen"][0]["list"]
        for method in demo.METHODS
    }
    assert len(lists) == 1


def test_a_demonstration_replaces_one_of_its_own(small: None, tmp_path: Path) -> None:
    for left in ("fedavg", "solo"):
        (tmp_path / "demo" / left).mkdir(parents=True)
        (tmp_path / "demo" / left / "old").touch()
    demo.run(tmp_path / "demo", Silent())
    assert not (tmp_path / "demo" / "fedavg" / "old").exists()


def test_nothing_that_is_not_its_own_is_deleted(small: None, tmp_path: Path) -> None:
    for left in ("fedavg", "my-experiment-of-three-weeks"):
        (tmp_path / "runs" / left).mkdir(parents=True)
    (tmp_path / "file").write_text("mine")
    for place in ("runs", "file"):
        with pytest.raises(
            RecipeError, match="holds something that is no demonstration, and is left alone: give another"
        ):
            demo.run(tmp_path / place, Silent())
    assert (tmp_path / "runs" / "my-experiment-of-three-weeks").is_dir()
    assert (tmp_path / "file").read_text() == "mine"


def test_its_recipe_is_that_of_the_silos() -> None:
    shipped = config.load(Path(__file__).parents[1] / "recipes" / "synthetic" / "silos.yaml")
    assert shipped.digest() == demo.recipe("fedavg").digest()
