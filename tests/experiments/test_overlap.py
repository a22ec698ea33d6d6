"""People whom several parties hold, or who are trained on and evaluated, are found by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import invoked, refused, said
from ownparties import TREE, write_parties, write_recipe
from tinyruns import picture_folders

from coalface.experiments.recipe import loader
from coalface.experiments.setup.overlap import Overlap, find_overlap


def folder(path: Path) -> dict[str, str]:
    return {"kind": "folder", "path": str(path)}


def overlap(parties: dict[str, Path], **lists: Path) -> Overlap:
    pairs = {name: {"pairs": 10, "source": folder(path)} for name, path in lists.items()}
    data = {**TREE["data"], "parties": list(parties), "party_data": {name: folder(parties[name]) for name in parties}}
    tree: dict[str, Any] = {"method": "fedavg", "data": data, "evaluation": {"pairs": pairs}}
    return find_overlap(loader.parse(tree), "x.yaml")


def test_the_command_names_who_is_at_two_parties(tmp_path: Path) -> None:
    write_parties(tmp_path)
    recipe, own = write_recipe(tmp_path), tmp_path / "own.yaml"
    printed = said("data", "inspect", recipe, "--party-data", own)
    assert "2 parties of 2 to 3 identities" in printed and "Adalind at silo-00, silo-01" in printed
    report = json.loads(invoked("data", "inspect", recipe, "--party-data", own, "--json").stdout)
    assert report["between"] == {"Adalind": ["silo-00", "silo-01"]} and len(report["wrong"]) == 1
    assert report["parties"] == {"silo-00": 3, "silo-01": 2} and report["evaluated"] == {}


def test_who_is_evaluated_is_looked_for_among_the_trained_in_other_folders_and_in_their_own(tmp_path: Path) -> None:
    trained = picture_folders(tmp_path / "trained", ["Ann", "Berta", "Clara"], seed=1)
    others = picture_folders(tmp_path / "others", ["Berta", "Dora", "Edda"], seed=2)
    report = overlap({"north": trained}, others=others, same=trained)
    assert report.evaluated == {"others": ["Berta"]} and report.between == {}
    (sentence,) = report.refused
    assert "evaluation.pairs.same" in sentence and "would also train on 3 identities" in sentence
    assert len(report.wrong) == 2 and "Berta" in str(report)


@pytest.mark.parametrize(("names", "is_told"), [(["s1", "s2"], False), (["n000001", "n000002"], True)])
def test_short_numbers_tell_nobody_but_in_one_folder(tmp_path: Path, names: list[str], is_told: bool) -> None:
    places = [picture_folders(tmp_path / place, names, seed=number) for number, place in enumerate(("a", "b"))]
    report = overlap({"north": places[0], "south": places[1]})
    assert list(report.between) == (names if is_told else [])
    assert list(overlap({"north": places[0], "south": places[0]}).between) == names


def test_options_of_images_do_not_fit_a_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["--headers"], ["--party", "silo-00"], ["--input", "imagenet"]):
        line = refused(capsys, monkeypatch, "data", "inspect", "a.yaml", *words)
        assert line.startswith(f"coalface: {words[0]}: ")
    assert "--party-data" in refused(capsys, monkeypatch, "data", "inspect", tmp_path, "--party-data", "own.yaml")
