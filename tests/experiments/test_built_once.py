"""What follows from a recipe is built once a run, and once a worker."""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinyruns

from coalface.experiments import run as running
from coalface.experiments.prepare import prepare
from coalface.experiments.recipe.objects import ByName
from coalface.experiments.setup import parts, splits
from coalface.training.local_work import LocalTraining


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """How often each of these was called since the recipe was read."""
    counter: collections.Counter[str] = collections.Counter()
    built = {"method": (ByName, "build"), "local work": (LocalTraining, "__post_init__")}
    built |= {"split": (splits, "split"), "backbone": (parts, "build")}
    for name, (place, attribute) in built.items():
        monkeypatch.setattr(place, attribute, counted(counter, name, getattr(place, attribute)))
    return counter


def counted(counter: collections.Counter[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*given: Any, **named: Any) -> Any:
        counter[name] += 1
        return call(*given, **named)

    return noted


def test_a_recipe_makes_its_method_and_local_work_once(counts: collections.Counter[str]) -> None:
    tinyruns.tiny()
    assert counts == {"method": 1, "local work": 1}


def test_a_run_splits_the_identities_and_builds_the_backbone_once(
    tmp_path: Path, counts: collections.Counter[str]
) -> None:
    recipe = tinyruns.tiny()
    counts.clear()
    running.run(recipe, tmp_path / "run", tinyruns.Silent())
    assert counts == {"split": 1, "backbone": 1}


def test_a_worker_makes_its_data_of_the_recipe_as_it_was_read(counts: collections.Counter[str]) -> None:
    built = prepare(tinyruns.tiny(), tinyruns.Silent(), running.run, elsewhere=False)
    counts.clear()
    data = pickle.loads(pickle.dumps(built.make_data))()
    assert counts == {"split": 1, "backbone": 1} and data.members() == built.data.members()
