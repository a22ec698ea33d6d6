from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import outputs
from tinyruns import picture_folders

from coalface.core.errors import DataError, RecipeError
from coalface.data.pairs import read_pairs
from coalface.data.readers.folders import read_folder
from coalface.data.readers.pack import write_pack
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.evaluation import finished_model
from coalface.evaluation.finished_model import evaluate_model
from coalface.evaluation.metrics.verification import best_threshold, tar_at_far
from coalface.experiments.setup.parts import Parts
from coalface.models.embedding import embed

PEOPLE = [f"P{i:02d}" for i in range(12)]


def pair_list(path: Path, pairs: int, shift: int = 1, second: int | None = None) -> Path:
    genuine = [f"P{i % 12:02d}\t{1 + i // 12}\t{second or 2 + i // 12}" for i in range(pairs)]
    impostor = [f"P{i % 12:02d}\t1\tP{(i % 12 + shift + i // 12) % 12:02d}\t2" for i in range(pairs)]
    path.write_text("\n".join([str(pairs), *genuine, *impostor]) + "\n")
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return picture_folders(tmp_path_factory.mktemp("pictures") / "faces", PEOPLE)


def scores(run: Path, pictures: Path, pairs: Path, flip: bool = False) -> tuple[Any, Any]:
    """Cosines pair by pair, from embeddings of single images."""
    backbone, about = finished_model.read_model(run)
    faces = finished_model.read_faces(pictures, about)
    listed = read_pairs(pairs, faces)
    embeddings = [embed(backbone.module, faces, np.array([i]), flip=flip)[0].astype(float) for i in range(len(faces))]
    return np.array(
        [embeddings[a] @ embeddings[b] for a, b in zip(listed.left, listed.right, strict=True)]
    ), listed.same


def test_figures_of_a_pair_list_are_those_of_its_cosines(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    path = pair_list(tmp_path / "pairs.txt", 20)
    figures = evaluate_model(fedavg_run, path, images=pictures)
    assert figures["pairs"] == 40 and figures["on"] == str(path)
    cosines, same = scores(fedavg_run, pictures, path)
    (tar,) = tar_at_far(cosines, same, (0.1,))
    assert figures["tar@far=0.1"] == pytest.approx(100 * tar.tar)
    assert figures["threshold@far=0.1"] == pytest.approx(tar.threshold, abs=1e-6)
    assert "tar@far=0.001" not in figures and "threshold@far=0.001" not in figures  # 20 impostors do not carry it
    accepted = cosines[~same] > figures["threshold@far=0.1"] + 1e-6
    assert accepted.sum() <= 2


def test_the_threshold_of_a_second_list_decides_the_first(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    test, train = pair_list(tmp_path / "test.txt", 20), pair_list(tmp_path / "train.txt", 24, 3, second=4)
    figures = evaluate_model(fedavg_run, test, images=pictures, threshold_from=train)
    threshold = best_threshold(*scores(fedavg_run, pictures, train))
    cosines, same = scores(fedavg_run, pictures, test)
    assert figures["accuracy_two_lists"] == pytest.approx(100 * ((cosines >= threshold) == same).mean(), abs=2.6)
    assert figures["threshold_two_lists"] == pytest.approx(threshold, abs=1e-6)
    assert not [n for n in evaluate_model(fedavg_run, test, images=pictures) if n.endswith("two_lists")]


def test_a_threshold_is_not_chosen_on_evaluated_pairs(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    test, train = pair_list(tmp_path / "test.txt", 20), pair_list(tmp_path / "train.txt", 24, 3, second=4)
    assert evaluate_model(fedavg_run, test, images=pictures, threshold_from=train)["people_in_both_lists"] == 12
    lines = train.read_text().splitlines()
    train.write_text("\n".join([*lines[:3], "P05\t2\t1", *lines[4:]]))  # P05's images 1 and 2, in the other order
    with pytest.raises(DataError, match="1 pair of it, such as P05/P05_0001.png with P05/P05_0002.png") as error:
        evaluate_model(fedavg_run, test, images=pictures, threshold_from=train)
    assert error.value.where == str(train)


def test_flip_changes_the_features(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    path = pair_list(tmp_path / "pairs.txt", 20)
    figures = evaluate_model(fedavg_run, path, images=pictures, flip=True)
    (tar,) = tar_at_far(*scores(fedavg_run, pictures, path, flip=True), (0.1,))
    assert figures["threshold@far=0.1"] == pytest.approx(tar.threshold, abs=1e-6)
    assert figures["threshold@far=0.1"] != evaluate_model(fedavg_run, path, images=pictures)["threshold@far=0.1"]


def test_pairs_are_drawn_from_folders_or_a_pack_alike(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    write_pack(read_folder(pictures), tmp_path / "pack", size=32, grey=True)
    from_folders = evaluate_model(fedavg_run, pictures, pairs=30)
    from_pack = evaluate_model(fedavg_run, tmp_path / "pack", pairs=30)
    assert from_folders["pairs"] == from_pack["pairs"] == 60
    assert {k: v for k, v in from_folders.items() if k != "on"} == {k: v for k, v in from_pack.items() if k != "on"}


def test_a_run_evaluated_again_on_its_own_held_out_people_agrees(fedavg_run: Path, tmp_path: Path) -> None:
    """The figures of `summary.json` come out of the model file as well, on the same pairs."""
    from coalface.evaluation.verification import Verification
    from coalface.experiments.recipe import loader

    recipe = loader.load(fedavg_run / "config.yaml")
    lists = Parts(recipe).pairs
    backbone, _ = finished_model.read_model(fedavg_run / "model")
    figures = Verification(lists, backbone).models([backbone.shared()])
    assert figures == json.loads((fedavg_run / "summary.json").read_text())["figures"]


def test_own_models_need_a_party(fedavg_run: Path, solo_run: Path, pictures: Path, tmp_path: Path) -> None:
    for party in (None, "silo-7"):
        with pytest.raises(FileNotFoundError, match="--party takes silo-00, silo-01"):
            evaluate_model(solo_run, pictures, party=party)
    with pytest.raises(FileNotFoundError, match="holds no model"):
        evaluate_model(tmp_path, pictures)
    figures_of = [evaluate_model(solo_run, pictures, party=f"silo-0{i}", pairs=30) for i in (0, 1)]
    assert figures_of[0]["eer"] != figures_of[1]["eer"] or figures_of[0]["accuracy"] != figures_of[1]["accuracy"]


def test_options_that_do_not_fit_are_refused(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none.txt does not exist"):
        evaluate_model(fedavg_run, tmp_path / "none.txt")
    write_pack(SyntheticFaces(4, 3, 0), tmp_path / "pack", size=40, grey=True)
    with pytest.raises(DataError, match="--size 32 --grey") as size:
        evaluate_model(fedavg_run, tmp_path / "pack")
    assert size.value.where == str(tmp_path / "pack")
    pairs = pair_list(tmp_path / "pairs.txt", 20)
    for on, options, where in (
        (pictures, {"party": "silo-00"}, "--party"),  # there is one global model
        (pictures, {"images": pictures}, "--images"),
        (tmp_path / "pack", {"images": pictures}, "--images"),
        (pairs, {}, "--images"),
        (pairs, {"images": pictures, "pairs": 20}, "--pairs"),
        (pairs, {"images": pictures, "list_name": "rfw-asian"}, "--list"),
        (pictures, {"list_name": "rfw-asian"}, "--list"),
        (pictures, {"list_name": "rfw-asian", "pairs": 20}, "--list"),
    ):
        with pytest.raises(RecipeError) as error:
            evaluate_model(fedavg_run, on, **options)  # type: ignore[arg-type]
        assert error.value.where == where


def test_all_genuine_pairs_are_drawn_where_there_are_fewer_than_usual(fedavg_run: Path, pictures: Path) -> None:
    figures = evaluate_model(fedavg_run, pictures)
    assert (figures["drawn"], figures["pairs"]) == (12 * 6, 2 * 12 * 6)  # of twelve people with four pictures each
    with pytest.raises(ValueError, match="the images make 72 genuine pairs, not 73"):
        evaluate_model(fedavg_run, pictures, pairs=73)
    for arguments, noted in (([], True), (["--pairs", "30"], False)):
        assert ("drew 72 genuine pairs" in outputs("evaluate", fedavg_run, "--on", pictures, *arguments)[1]) == noted


# --- data sets that bring their own lists -----------------------------------------------------------------------------


def rfw(root: Path) -> Path:
    """Two races of four people with four pictures each, and a list of 20 pairs of either."""
    for seed, race in enumerate(("African", "Asian")):
        picture_folders(root / "data" / race, [f"m.{i}" for i in range(4)], seed=seed)
        lines = [
            line
            for i in range(10)
            for line in (f"m.{i % 4}\t1\t{2 + i % 3}", f"m.{i % 4}\t{1 + i % 3}\tm.{(i + 1) % 4}\t{1 + i // 4}")
        ]
        (root / "txts" / race).mkdir(parents=True)
        (root / "txts" / race / f"{race}_pairs.txt").write_text("\n".join(lines) + "\n")
    return root


def test_a_data_set_is_evaluated_on_its_own_lists_as_a_recipe_does(fedavg_run: Path, tmp_path: Path) -> None:
    from coalface.evaluation.verification import Verification
    from coalface.experiments.recipe import loader

    on = rfw(tmp_path / "rfw")
    result = evaluate_model(fedavg_run, on, flip=True)
    assert list(result) == ["model", "on", "lists"] and list(result["lists"]) == ["rfw-african", "rfw-asian"]
    sources = {name: {"kind": "layout", "path": str(on), "list": name} for name in result["lists"]}
    recipe = loader.load(fedavg_run / "config.yaml")
    recipe = loader.parse(loader.merged(recipe.model_dump(), {"evaluation": {"pairs": sources}}))
    backbone, _ = finished_model.read_model(fedavg_run / "model")
    lists = [pairs for pairs in Parts(recipe).pairs if pairs.name in sources]
    figures = Verification(lists, backbone, flip=True, fars=finished_model.FARS).models([backbone.shared()])
    for name, expected in figures.items():
        of_list = result["lists"][name]
        assert of_list["pairs"] == 20 and "tar@far=0.1" in expected
        assert {key: of_list[key] for key in expected} == expected
        assert evaluate_model(fedavg_run, on, flip=True, list_name=name) == result | {"lists": {name: of_list}}
    assert figures["rfw-african"] != figures["rfw-asian"]


def test_pairs_are_drawn_where_a_data_set_has_no_list_or_where_they_are_asked_for(
    fedavg_run: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_model, "PAIRS", 24)
    bupt, on = tmp_path / "bupt", rfw(tmp_path / "rfw")
    (on / "data").rename(bupt)
    assert evaluate_model(fedavg_run, bupt)["pairs"] == 48
    with pytest.raises(ValueError, match="has no pair list of its own"):
        evaluate_model(fedavg_run, bupt, list_name="rfw-asian")
    bupt.rename(on / "data")
    assert evaluate_model(fedavg_run, on, pairs=20)["pairs"] == 40
    with pytest.raises(ValueError, match="has no pair list 'lfw': choose one by --list rfw-african, --list rfw-asian"):
        evaluate_model(fedavg_run, on, list_name="lfw")


def test_the_command_prints_a_block_for_each_list(fedavg_run: Path, tmp_path: Path) -> None:
    on = rfw(tmp_path / "rfw")
    figures = evaluate_model(fedavg_run, on)
    for arguments, names in (([], list(figures["lists"])), (["--list", "rfw-asian"], ["rfw-asian"])):
        printed, _ = outputs("evaluate", fedavg_run, "--on", on, *arguments)
        head, *blocks = printed.split("\n\n")
        assert head.split() == ["model", str(fedavg_run), "on", str(on)]
        assert [block.splitlines()[0] for block in blocks] == names
        for block, name in zip(blocks, names, strict=True):
            lines = [line.split() for line in block.splitlines()]
            assert ["accuracy", f"{figures['lists'][name]['accuracy']:.2f}", "%"] in lines and ["pairs", "20"] in lines
