from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from coalface.core import registry
from coalface.core.errors import PluginError, RecipeError
from coalface.core.registry import Registry, subclass_of


class Animal:
    """What a registry of these tests holds."""


class Cat(Animal):
    pass


class Dog(Animal):
    pass


@pytest.fixture
def animals(monkeypatch: pytest.MonkeyPatch) -> Registry[type[Animal]]:
    """Cats, and dogs by an entry point of another distribution."""
    point = importlib.metadata.EntryPoint("dog", f"{__name__}:Dog", "animals")
    broken = importlib.metadata.EntryPoint("bird", "no_such_module:Bird", "animals")
    cat = importlib.metadata.EntryPoint("cat", f"{__name__}:Dog", "animals")
    monkeypatch.setattr(registry, "entry_points", lambda group: {"animals": [point, broken, cat]}[group])
    return Registry("animals", {"cat": Cat}, subclass_of(Animal), "a subclass of Animal")


@pytest.fixture(autouse=True)
def nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_held", {})


def test_its_own_names_come_first_then_entry_points_then_any_module(animals: Registry[type[Animal]]) -> None:
    assert list(animals) == ["cat", "dog", "bird"] and len(animals) == 3
    assert animals["cat"] is Cat, "a distribution took a name that the package has"
    assert animals["dog"] is Dog and animals[f"{__name__}:Dog"] is Dog
    assert "dog" in animals and "cow" not in animals


def test_a_name_is_given_back_for_the_object_that_has_it(animals: Registry[type[Animal]]) -> None:
    class Cow(Animal):
        pass

    assert animals.name_of(Cat) == "cat" and animals.name_of(Dog) == "dog"
    name = animals.name_of(Cow)
    assert name.startswith("python:Cow-") and animals[name] is Cow


def test_how_ones_own_is_written_is_told(
    animals: Registry[type[Animal]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big_cow.py").write_text("class BigCow: pass")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("big-cow", "big_cow", "big_cow.BigCow"):
        with pytest.raises(RecipeError, match="as big_cow:BigCow$") as error:
            animals.find(name, "animal")
        assert error.value.where == "animal"
    with pytest.raises(PluginError, match=r"did you mean big_cow:BigCow\?"):
        animals.find("big_cow:bigcow", "animal")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("bird", "no_such_module"),
        ("no_such_module:Cat", "Install the package"),
        (f"{__name__}:Bull", "Bull"),
        (f"{__name__}:nothing_is_held", "a subclass of Animal"),
        ("pathlib:Path", "the class Path"),
        ("python:Cow-0123", "coalface.resume"),
        ("__main__:Cow", "coalface.resume"),
    ],
)
def test_what_cannot_be_had_is_said_at_its_key(animals: Registry[type[Animal]], name: str, what: str) -> None:
    with pytest.raises(PluginError) as error:
        animals.find(name, "pet")
    assert error.value.where == "pet" and what in error.value.text


@pytest.mark.parametrize("name", ["cow", 3, None, ["cat"]])
def test_an_unknown_name_is_a_wrong_recipe(animals: Registry[type[Animal]], name: object) -> None:
    with pytest.raises(RecipeError) as error:
        animals.find(name, "pet")
    assert error.value.where == "pet" and not isinstance(error.value, PluginError)


def test_a_name_that_others_have_is_told_as_it_is_written_here() -> None:
    animals = Registry("animals", {"cat": Cat}, subclass_of(Animal), "a subclass of Animal", {"lion": "cat of size 3"})
    assert "lion" not in animals and list(animals) == ["cat"]
    with pytest.raises(RecipeError, match="cat of size 3") as error:
        animals.find("Lion", "pet")
    assert error.value.where == "pet"


def test_a_module_that_raises_says_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_plugin.py").write_text("raise OSError('the licence server is down')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match="OSError: the licence server is down"):
        registry.load("raising_plugin:Cat")


def test_objects_without_a_name_are_told_apart_by_what_they_are() -> None:
    torch.manual_seed(0)
    linear, other = nn.Linear(2, 3), nn.Linear(2, 3)
    same = nn.Linear(2, 3)
    same.load_state_dict(linear.state_dict())
    assert registry.reference_to(linear) == registry.reference_to(same) != registry.reference_to(other)
    assert registry.load(registry.reference_to(other)) is other


def test_a_worker_is_given_what_only_this_program_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "Cow", type("Cow", (Animal,), {"__module__": "__main__"}), False)
    cow = registry.load("__main__:Cow")
    held = registry.held()
    assert held == {"__main__:Cow": cow}
    monkeypatch.delattr(sys.modules["__main__"], "Cow")
    monkeypatch.setattr(registry, "_held", {})
    registry.hold(held)
    assert registry.load("__main__:Cow") is cow
