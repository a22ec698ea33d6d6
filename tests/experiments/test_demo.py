from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinyruns
from tinyruns import Silent, Stop, tiny

from coalface.core.errors import RecipeError
from coalface.experiments import demo


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """The demonstration at a size of seconds, in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "recipe", lambda method: tiny(rounds=1, name=f"demo-{method}", method=method))
        yield


@pytest.fixture(scope="module")
def finished(small: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Silent, str]:
    """A finished demonstration, which tests only read, what was shown of it and what it said."""
    out, view = tmp_path_factory.mktemp("finished") / "demo", Silent()
    return out, view, demo.run(out, view).text()


@pytest.fixture
def out(finished: tuple[Path, Silent, str], tmp_path: Path) -> Path:
    """A copy of the finished demonstration."""
    return Path(shutil.copytree(finished[0], tmp_path / "demo"))


def test_it_compares_three_ways_on_one_page(finished: tuple[Path, Silent, str]) -> None:
    out, view, said = finished
    assert [name for name, _, _ in view.started] == ["demo-fedavg", "demo-solo", "demo-centralized"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(method in page for method in demo.METHODS)
    assert all((out / method / "report.html").exists() for method in demo.METHODS)
    assert f"the report: {out / 'report.html'}" in said
    assert (
        "centralized (pooled)" in said and "Pooled (all the images in one place, not federated): centralized." in said
    )
    assert max(len(line) for line in said.splitlines()[:8]) <= 120


def marks(out: Path) -> dict[str, int]:
    """When each run's model was written."""
    return {m: next((out / m / "model").rglob("*.safetensors")).stat().st_mtime_ns for m in demo.METHODS}


def test_a_second_call_trains_nothing_and_makes_the_page_anew(out: Path, tmp_path: Path) -> None:
    view = Silent()
    before = marks(out)
    (out / "report.html").unlink()
    said = demo.run(out, view).text()
    assert view.started == [] and marks(out) == before and (out / "report.html").exists()
    assert "It was there already" in said and f"the report: {out / 'report.html'}" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo"]
    demo.run(out, view, fresh=True)
    assert len(view.started) == 3 and all(marks(out)[method] > before[method] for method in demo.METHODS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo"]


def test_one_of_other_recipes_is_replaced(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view, first = Silent(), demo.recipe
    monkeypatch.setattr(demo, "recipe", lambda method: first(method).model_copy(update={"seed": 1}))
    demo.run(out, view)
    assert len(view.started) == 3


def test_one_that_was_stopped_goes_on(tmp_path: Path) -> None:
    class Stops(Silent):
        def start(self, name: str, rounds: int, already: int = 0, sent: Any = (0, 0), before: Any = ()) -> None:
            super().start(name, rounds, already, sent)
            if name == "demo-solo":
                raise Stop

    with pytest.raises(Stop):
        demo.run(tmp_path / "demo", Stops())
    view = Silent()
    assert demo.run(tmp_path / "demo", view).trained
    assert [name for name, _, _ in view.started] == ["demo-solo", "demo-centralized"]
    assert (tmp_path / "demo" / "report.html").exists()


def test_runs_of_a_person_are_left_alone_whatever_they_are_called(out: Path, tmp_path: Path) -> None:
    for method in ("fedavg", "solo"):
        tinyruns.run(tmp_path / "mine" / method, method=method, rounds=1)
    tinyruns.run(out / "own", rounds=1)  # put into a demonstration's folder
    for place in ("mine", "demo"):
        with pytest.raises(RecipeError) as error:
            demo.run(tmp_path / place, Silent(), fresh=True)
        assert error.value.where == str(tmp_path / place)
    assert all((tmp_path / place / "summary.json").exists() for place in ("mine/fedavg", "mine/solo", "demo/own"))
