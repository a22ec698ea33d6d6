"""Who a model was trained on: what a run keeps of it, and what an evaluation makes of it."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import tinyruns
from commands import outputs

from coalface.data.faceset import FaceSet
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.evaluation import finished_model, membership
from coalface.experiments.recipe import loader
from coalface.experiments.setup import splits

STRANGERS = SyntheticFaces(6, 4, 7, size=32, grey=True).generate()


def digest(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little")


def trained(run: Path) -> FaceSet:
    return splits.split(loader.load(run / "config.yaml")).train


def put(root: Path, faces: FaceSet, called: dict[str, str]) -> Path:
    """Identity folders of some people of a set, under other names, in LFW's naming."""
    for name, folder_name in called.items():
        (root / folder_name).mkdir(parents=True)
        places = np.flatnonzero(faces.labels == faces.names.index(name))
        for number, pixels in enumerate(faces.take(places), start=1):
            cv2.imwrite(str(root / folder_name / f"{folder_name}_{number:04d}.png"), pixels)
    return root


def pair_list(path: Path, people: list[str], pairs: int = 12) -> Path:
    """As many genuine as impostor pairs, of each person about as many."""
    two = list(itertools.combinations(range(1, 5), 2))
    genuine = [f"{people[i % len(people)]} {two[i // len(people)][0]} {two[i // len(people)][1]}" for i in range(pairs)]
    impostor = [f"{people[i % len(people)]} 1 {people[(i + 1) % len(people)]} {1 + i % 4}" for i in range(pairs)]
    path.write_text("\n".join([str(pairs), *genuine, *impostor]))
    return path


def names_in(line: str) -> set[str]:
    fields = line.split()
    return {fields[0], fields[-2] if len(fields) == 4 else fields[0]}


@pytest.fixture(scope="module")
def mixed(fedavg_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of four who were trained on, two of them under other names, and of six who were not."""
    root, people = tmp_path_factory.mktemp("mixed") / "faces", trained(fedavg_run)
    first, second, third, fourth = people.names[:4]
    put(root, people, {first: first, second: second, third: "Ann", fourth: "007"})
    return put(root, STRANGERS, {name: name for name in STRANGERS.names})


def test_a_run_keeps_digests_of_the_people_and_of_the_images_that_it_was_trained_on(fedavg_run: Path) -> None:
    faces, members = trained(fedavg_run), membership.read(fedavg_run)
    assert members is not None
    assert members.names.tolist() == sorted(digest(name.encode()) for name in faces.names)
    assert members.images.tolist() == sorted(digest(faces.pixels[row].tobytes()) for row in faces.rows)
    content = (fedavg_run / membership.FILE).read_bytes()
    assert len(faces.names) == 8 and not any(name.encode() in content for name in faces.names)


def test_people_are_known_by_their_images_or_by_their_names(fedavg_run: Path) -> None:
    faces, members = trained(fedavg_run), membership.read(fedavg_run)
    assert members is not None
    names = (faces.names[0], "Ann", faces.names[2], "s9-0000001")
    gallery = FaceSet(
        np.concatenate([faces.take(np.flatnonzero(faces.labels < 2)), STRANGERS.pixels[:8]]),
        np.arange(16),
        np.repeat(np.arange(4), 4),
        names,
    )
    everybody = np.arange(4)
    by = [membership.BY_IMAGE, membership.BY_IMAGE, membership.BY_NAME, membership.STRANGER]
    assert members.among(gallery, everybody).tolist() == by
    assert members.among(gallery, np.array([1])).tolist() == [0, membership.BY_IMAGE, 0, 0]


def test_numbers_name_nobody() -> None:
    faces = FaceSet(STRANGERS.pixels, np.arange(4), np.arange(4), ("0001", "part/17", "m.17", "x"))
    strangers = FaceSet(STRANGERS.pixels, np.arange(4, 8), np.arange(4), ("0001", "part/17", "m.17", "y"))
    members = membership.of_faces([faces])
    assert members.among(strangers, np.arange(4)).tolist() == [0, 0, membership.BY_NAME, 0]


def test_people_of_a_joined_source_are_called_as_in_their_part() -> None:
    names = ("orl/s1", "African/m.1", "s2", "nobody")
    members = membership.of_faces([FaceSet(STRANGERS.pixels, np.arange(3), np.arange(3), names)], ("orl", "cfp"))
    assert members.names.tolist() == sorted(digest(name) for name in (b"s1", b"African/m.1", b"s2"))


def test_pairs_of_people_who_were_trained_on_are_counted_and_the_others_evaluated_by_themselves(
    fedavg_run: Path, mixed: Path, tmp_path: Path
) -> None:
    member_names, strangers = [*trained(fedavg_run).names[:2], "Ann", "007"], list(STRANGERS.names)
    path = pair_list(tmp_path / "mixed.txt", [*strangers, *member_names], 30)
    figures = finished_model.evaluate_model(fedavg_run, path, images=mixed)
    lines = path.read_text().splitlines()[1:]
    touched = [bool(names_in(line) & set(member_names)) for line in lines]
    assert figures["trained_on"] == {"people": 4, "of": 10, "by_name_alone": 0, "pairs": sum(touched)}
    remaining = [line for line, with_member in zip(lines, touched, strict=True) if not with_member]
    alone = finished_model.evaluate_model(fedavg_run, of_paths(tmp_path / "rest.txt", remaining), images=mixed)
    assert alone["trained_on"] == {"people": 0, "of": 6, "by_name_alone": 0, "pairs": 0} and "others" not in alone
    assert figures["others"] == {key: alone[key] for key in figures["others"]} and figures["others"]["pairs"] == len(
        remaining
    )
    assert {"eer", "accuracy", "tar@far=0.1", "threshold@far=0.1"} <= figures["others"].keys()
    assert figures["others"]["accuracy"] != figures["accuracy"]


def of_paths(path: Path, lines: list[str]) -> Path:
    """A list of two paths a line, of lines in LFW's format."""
    in_order = sorted(lines, key=lambda line: len(line.split()))  # genuine pairs first
    columns = [f"{a}/{a}_{int(i):04d} {b}/{b}_{int(j):04d}" for a, i, b, j in map(ends, in_order)]
    labels = ["1" if len(line.split()) == 3 else "0" for line in in_order]
    path.write_text("\n".join(f"{a} {b}" for a, b in zip(columns, labels, strict=True)))
    return path


def ends(line: str) -> tuple[str, str, str, str]:
    fields = line.split()
    return (fields[0], fields[1], fields[-2] if len(fields) == 4 else fields[0], fields[-1])


def test_the_list_of_a_threshold_is_looked_at_too(fedavg_run: Path, mixed: Path, tmp_path: Path) -> None:
    member_names, strangers = list(trained(fedavg_run).names[:2]), list(STRANGERS.names)
    path = pair_list(tmp_path / "evaluated.txt", strangers[:3])
    of_both = pair_list(tmp_path / "both.txt", [*member_names, *strangers[3:]], 15)
    of_strangers = pair_list(tmp_path / "strangers.txt", strangers[3:])
    figures = finished_model.evaluate_model(fedavg_run, path, images=mixed, threshold_from=of_both)
    assert figures["trained_on"]["people"] == 0 and figures["people_in_both_lists"] == 0
    lines = of_both.read_text().splitlines()[1:]
    touched = sum(bool(names_in(line) & set(member_names)) for line in lines)
    remaining = of_paths(tmp_path / "rest.txt", [line for line in lines if not names_in(line) & set(member_names)])
    by_rest = finished_model.evaluate_model(fedavg_run, path, images=mixed, threshold_from=remaining)
    assert figures["others"]["threshold_two_lists"] == by_rest["threshold_two_lists"] != figures["threshold_two_lists"]
    assert figures["threshold_trained_on"] == {"people": 2, "of": 5, "by_name_alone": 0, "pairs": touched}
    assert figures["others"]["pairs"] == figures["pairs"] == 24 and figures["others"]["eer"] == figures["eer"]
    assert figures["others"].keys() >= {"accuracy_two_lists", "threshold_two_lists"}
    of_members = pair_list(tmp_path / "members.txt", member_names, 6)
    alone = finished_model.evaluate_model(fedavg_run, path, images=mixed, threshold_from=of_members)
    assert "accuracy_two_lists" in alone and "accuracy_two_lists" not in alone["others"]
    assert "others" not in finished_model.evaluate_model(fedavg_run, path, images=mixed, threshold_from=of_strangers)


def test_the_command_warns_and_puts_the_figures_on_the_others_beside(
    fedavg_run: Path, mixed: Path, tmp_path: Path
) -> None:
    path = pair_list(tmp_path / "mixed.txt", [*STRANGERS.names, *trained(fedavg_run).names[:2]], 30)
    figures = finished_model.evaluate_model(fedavg_run, path, images=mixed)
    printed, warned = outputs("evaluate", fedavg_run, "--on", path, "--images", mixed)
    lines = [line.split() for line in printed.splitlines()]
    assert ["eer", f"{figures['eer']:.2f}", "%", f"{figures['others']['eer']:.2f}", "%"] in lines
    assert ["trained_on", "2", "of", "8", "people,", str(figures["trained_on"]["pairs"]), "pairs"] in lines
    assert "2 of the 8 people in the pairs were trained on" in warned
    as_json, warned = outputs("evaluate", fedavg_run, "--on", path, "--images", mixed, "--json")
    assert json.loads(as_json) == figures and "were trained on" in warned
    assert figures["roc"]["far"][-1] == 1 and "roc" not in printed
    of_members = pair_list(tmp_path / "members.txt", list(trained(fedavg_run).names[:2]))
    assert "too few others are left" in outputs("evaluate", fedavg_run, "--on", of_members, "--images", mixed)[1]


def test_a_model_that_does_not_say_whom_it_knows_is_evaluated_with_a_note(
    fedavg_run: Path, mixed: Path, tmp_path: Path
) -> None:
    path = pair_list(tmp_path / "pairs.txt", list(trained(fedavg_run).names[:2]))
    shutil.copytree(fedavg_run / "model", tmp_path / "model")
    figures = finished_model.evaluate_model(tmp_path / "model", path, images=mixed)
    assert figures["trained_on"] is None and "others" not in figures
    other_run = tinyruns.run(tmp_path / "other", seed=5, rounds=1)
    shutil.copytree(fedavg_run / "model", other_run / "copied")  # in the folder of a run, and not of that run
    assert finished_model.evaluate_model(other_run / "copied", path, images=mixed)["trained_on"] is None
    linked = tmp_path / "linked"
    linked.symlink_to(fedavg_run / "model")
    assert finished_model.evaluate_model(linked, path, images=mixed)["trained_on"]["people"] == 2
    printed, noted = outputs("evaluate", tmp_path / "model", "--on", path, "--images", mixed)
    assert "nothing says who the model was trained on" in noted and ["trained_on", "not", "known"] in [
        line.split() for line in printed.splitlines()
    ]


def test_the_people_of_a_pre_training_count_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    before = {"kind": "synthetic", "identities": 7, "images": 4, "first": 500}
    start = {"method": "centralized", "rounds": 1, "data": {"faces": before}}
    out = tinyruns.run(tmp_path / "run", pretrain=start, rounds=1)
    earlier = splits.split(loader.load(out / "config.yaml").pretrain.recipe).train.names
    assert len(earlier) == 3 and all(name >= "s0-0000500" for name in earlier)
    members = membership.read(out)
    assert members is not None
    expected = sorted(digest(name.encode()) for name in [*earlier, *trained(out).names])
    assert members.names.tolist() == expected and len(expected) == 11 and len(members.images) == 44
    # One of a version that kept none is evaluated anew, and keeps them.
    (file,) = (tmp_path / "cache" / "pretrained").glob(f"*/{membership.FILE}")
    file.unlink()
    again = membership.read(tinyruns.run(tmp_path / "again", pretrain=start, rounds=1))
    assert file.exists() and again is not None and again.names.tolist() == expected
