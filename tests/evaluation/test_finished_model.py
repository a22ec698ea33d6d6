from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinyruns import picture_folders
from typer.testing import CliRunner

from coalface.cli import main
from coalface.data.pairs import read_pairs
from coalface.data.readers.folders import read_folder
from coalface.data.readers.pack import write_pack
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.evaluation import finished_model
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
    one = [embed(backbone.module, faces, np.array([i]), flip=flip)[0].astype(float) for i in range(len(faces))]
    return np.array([one[a] @ one[b] for a, b in zip(listed.left, listed.right, strict=True)]), listed.same


def test_figures_of_a_pair_list_are_those_of_its_cosines(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    path = pair_list(tmp_path / "pairs.txt", 20)
    found = finished_model.judge_model(fedavg_run, path, images=pictures)
    assert found["pairs"] == 40 and found["on"] == str(path)
    cosines, same = scores(fedavg_run, pictures, path)
    (tar,) = tar_at_far(cosines, same, (0.1,))
    assert found["tar@far=0.1"] == pytest.approx(100 * tar.tar)
    assert found["threshold@far=0.1"] == pytest.approx(tar.threshold, abs=1e-6)
    assert "tar@far=0.001" not in found and "threshold@far=0.001" not in found  # 20 impostors do not carry it
    accepted = cosines[~same] > found["threshold@far=0.1"] + 1e-6
    assert accepted.sum() <= 2


def test_each_image_is_embedded_once(
    fedavg_run: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def counting(module: Any, faces: Any, index: Any, **more: Any) -> Any:
        seen.extend(index.tolist())
        return embed(module, faces, index, **more)

    monkeypatch.setattr(finished_model, "embed", counting)
    finished_model.judge_model(fedavg_run, pair_list(tmp_path / "pairs.txt", 20), images=pictures)
    assert len(seen) == len(set(seen)) > 0


def test_the_threshold_of_a_second_list_decides_the_first(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    test, train = pair_list(tmp_path / "test.txt", 20), pair_list(tmp_path / "train.txt", 24, 3, second=4)
    found = finished_model.judge_model(fedavg_run, test, images=pictures, threshold_from=train)
    threshold = best_threshold(*scores(fedavg_run, pictures, train))
    cosines, same = scores(fedavg_run, pictures, test)
    assert found["accuracy_two_lists"] == pytest.approx(100 * ((cosines >= threshold) == same).mean(), abs=2.6)
    assert found["threshold_two_lists"] == pytest.approx(threshold, abs=1e-6)
    assert not [n for n in finished_model.judge_model(fedavg_run, test, images=pictures) if n.endswith("two_lists")]


def test_a_threshold_is_not_chosen_on_pairs_that_are_judged(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    test, train = pair_list(tmp_path / "test.txt", 20), pair_list(tmp_path / "train.txt", 24, 3, second=4)
    assert (
        finished_model.judge_model(fedavg_run, test, images=pictures, threshold_from=train)["people_in_both_lists"]
        == 12
    )
    lines = train.read_text().splitlines()
    train.write_text("\n".join([*lines[:3], "P05\t2\t1", *lines[4:]]))  # P05's images 1 and 2, in the other order
    with pytest.raises(
        ValueError, match=r"train.txt and .*test.txt share 1 pair, such as P05/P05_0001.png with P05/P05_0002.png"
    ):
        finished_model.judge_model(fedavg_run, test, images=pictures, threshold_from=train)


def test_lists_of_other_people_share_none(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 6)):
        people = [f"P{first + i:02d}" for i in range(6)]
        genuine = [f"{who}\t1\t{k}" for who in people for k in (2, 3)]
        impostor = [f"{who}\t1\t{people[i - 1]}\t{k}" for i, who in enumerate(people) for k in (1, 2)]
        (tmp_path / name).write_text("\n".join(["12", *genuine, *impostor]))
    found = finished_model.judge_model(fedavg_run, tmp_path / "a", images=pictures, threshold_from=tmp_path / "b")
    assert found["people_in_both_lists"] == 0


def test_points_of_the_curve_come_along(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    path = pair_list(tmp_path / "pairs.txt", 20)
    curve = finished_model.judge_model(fedavg_run, path, images=pictures)["roc"]
    cosines, same = scores(fedavg_run, pictures, path)
    assert curve["far"][0] == 1 / 20 and curve["far"][-1] == curve["tar"][-1] == 1
    for far, tar in zip(curve["far"], curve["tar"], strict=True):
        (expected,) = tar_at_far(cosines, same, (far,))
        assert tar == pytest.approx(expected.tar)


def test_a_global_model_is_no_partys_own(fedavg_run: Path, pictures: Path) -> None:
    with pytest.raises(ValueError, match=r"this run left one global model, and none of silo-00's own: leave --party"):
        finished_model.judge_model(fedavg_run, pictures, party="silo-00")


def test_flip_changes_the_features(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    path = pair_list(tmp_path / "pairs.txt", 20)
    found = finished_model.judge_model(fedavg_run, path, images=pictures, flip=True)
    (tar,) = tar_at_far(*scores(fedavg_run, pictures, path, flip=True), (0.1,))
    assert found["threshold@far=0.1"] == pytest.approx(tar.threshold, abs=1e-6)
    assert (
        found["threshold@far=0.1"] != finished_model.judge_model(fedavg_run, path, images=pictures)["threshold@far=0.1"]
    )


def test_pairs_are_drawn_from_folders_or_a_pack_alike(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    write_pack(read_folder(pictures), tmp_path / "pack", size=32, grey=True)
    from_folders = finished_model.judge_model(fedavg_run, pictures, pairs=30)
    from_pack = finished_model.judge_model(fedavg_run, tmp_path / "pack", pairs=30)
    assert from_folders["pairs"] == from_pack["pairs"] == 60
    assert {k: v for k, v in from_folders.items() if k != "on"} == {k: v for k, v in from_pack.items() if k != "on"}


def test_a_run_judged_again_on_its_own_held_out_people_agrees(fedavg_run: Path, tmp_path: Path) -> None:
    """The figures of `summary.json` come out of the model file as well, on the same pairs."""
    from coalface.evaluation.verification import Verification
    from coalface.experiments.recipe import loader

    recipe = loader.load(fedavg_run / "config.yaml")
    lists = Parts(recipe).pairs
    backbone, _ = finished_model.read_model(fedavg_run / "model")
    figures = Verification(lists, backbone).models([backbone.shared()])
    assert figures == json.loads((fedavg_run / "summary.json").read_text())["figures"]


def test_own_models_need_a_party(solo_run: Path, pictures: Path) -> None:
    with pytest.raises(FileNotFoundError, match="each party has its own: add --party with one of silo-00, silo-01"):
        finished_model.judge_model(solo_run, pictures)
    with pytest.raises(FileNotFoundError, match="add --party with one of silo-00, silo-01"):
        finished_model.judge_model(solo_run, pictures, party="silo-7")
    each = [finished_model.judge_model(solo_run, pictures, party=f"silo-0{i}", pairs=30) for i in (0, 1)]
    assert each[0]["eer"] != each[1]["eer"] or each[0]["accuracy"] != each[1]["accuracy"]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("none", "none holds no model: give a run folder"),
        ("", "holds no model: give a run folder, or the folder `model`"),
    ],
)
def test_there_must_be_a_model(tmp_path: Path, pictures: Path, place: str, said: str) -> None:
    with pytest.raises(FileNotFoundError, match=said):
        finished_model.judge_model(tmp_path / place, pictures)


def test_there_must_be_pairs_and_their_images(fedavg_run: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none.txt is not there: give a pair list, a .bin"):
        finished_model.judge_model(fedavg_run, tmp_path / "none.txt")
    with pytest.raises(ValueError, match="say where these lie with --images FOLDER"):
        finished_model.judge_model(fedavg_run, pair_list(tmp_path / "pairs.txt", 20))


def test_a_pack_of_another_size_says_how_to_make_one_that_fits(fedavg_run: Path, tmp_path: Path) -> None:
    write_pack(SyntheticFaces(4, 3, 0), tmp_path / "pack", size=40, grey=True)
    with pytest.raises(ValueError, match="`coalface data pack FOLDER PACK --size 32 --grey` makes a pack that fits"):
        finished_model.judge_model(fedavg_run, tmp_path / "pack")


def test_what_would_not_be_looked_at_is_refused(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    write_pack(read_folder(pictures), tmp_path / "pack", size=32, grey=True)
    for on in (pictures, tmp_path / "pack"):
        with pytest.raises(ValueError, match=rf"{on.name} holds images, and those are judged: leave --images out"):
            finished_model.judge_model(fedavg_run, on, images=pictures, pairs=20)
    with pytest.raises(ValueError, match=r"pairs\.txt says which pairs are judged, so none are drawn: leave --pairs"):
        finished_model.judge_model(fedavg_run, pair_list(tmp_path / "pairs.txt", 20), images=pictures, pairs=20)


def test_all_genuine_pairs_are_drawn_where_there_are_fewer_than_usual(fedavg_run: Path, pictures: Path) -> None:
    found = finished_model.judge_model(fedavg_run, pictures)
    assert (found["drawn"], found["pairs"]) == (12 * 6, 2 * 12 * 6)  # of twelve people with four pictures each
    with pytest.raises(ValueError, match="the images make 72 genuine pairs, and 73 are wanted"):
        finished_model.judge_model(fedavg_run, pictures, pairs=73)
    for arguments, noted in (([], True), (["--pairs", "30"], False)):
        assert ("drew 72 genuine pairs" in command(fedavg_run, "--on", pictures, *arguments)[1]) == noted


def test_lists_of_paths_are_judged_as_lists_of_names(fedavg_run: Path, pictures: Path, tmp_path: Path) -> None:
    names = pair_list(tmp_path / "names.txt", 20)
    lines = ["left,right,same"]
    for fields in (line.split() for line in names.read_text().splitlines()[1:]):
        (one, other), same = (fields[0], fields[-2] if len(fields) == 4 else fields[0]), len(fields) == 3
        lines.append(
            f"{pictures}/{one}/{one}_{int(fields[1]):04d}.png,{other}/{other}_{int(fields[-1]):04d}.png,{same}"
        )
    (tmp_path / "paths.csv").write_text("\n".join(lines))
    found = [finished_model.judge_model(fedavg_run, path, images=pictures) for path in (names, tmp_path / "paths.csv")]
    assert found[0] | {"on": ""} == found[1] | {"on": ""}


def command(*arguments: object) -> tuple[str, str]:
    """What `coalface evaluate` prints and says beside it."""
    done = CliRunner().invoke(main.app, ["evaluate", *map(str, arguments)], catch_exceptions=False)
    return done.stdout, done.stderr


def test_progress_is_shown_to_people_alone(fedavg_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = picture_folders(tmp_path / "unseen", PEOPLE, seed=5)  # in no cache yet
    done: dict[str, list[int]] = {}

    @contextlib.contextmanager
    def show(what: str, total: int) -> Iterator[Callable[[int], None]]:
        done[what] = [total]
        yield done[what].append

    finished_model.judge_model(fedavg_run, pictures, pairs=72, show=show)
    assert done["decoding"] == [48, *range(1, 49)] and done["embedding"][-1] == done["embedding"][0] == 48
    assert "embedding" not in command(fedavg_run, "--on", pictures)[1]
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, to what draws the bar
    assert "embedding" in command(fedavg_run, "--on", pictures)[1]
    for option in ("--quiet", "--json"):
        assert "embedding" not in command(fedavg_run, "--on", pictures, option)[1]


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


def test_a_data_set_is_judged_on_its_own_lists_as_a_recipe_does(fedavg_run: Path, tmp_path: Path) -> None:
    from coalface.evaluation.verification import Verification
    from coalface.experiments.recipe import loader

    on = rfw(tmp_path / "rfw")
    found = finished_model.judge_model(fedavg_run, on, flip=True)
    assert list(found) == ["model", "on", "lists"] and list(found["lists"]) == ["rfw-african", "rfw-asian"]
    wanted = {name: {"kind": "layout", "path": str(on), "list": name} for name in found["lists"]}
    recipe = loader.load(fedavg_run / "config.yaml")
    recipe = loader.parse(loader.merged(recipe.model_dump(), {"evaluation": {"pairs": wanted}}))
    backbone, _ = finished_model.read_model(fedavg_run / "model")
    lists = [one for one in Parts(recipe).pairs if one.name in wanted]
    figures = Verification(lists, backbone, flip=True, fars=finished_model.FARS).models([backbone.shared()])
    for name, expected in figures.items():
        mine = found["lists"][name]
        assert mine["pairs"] == 20 and "tar@far=0.1" in expected
        assert {key: mine[key] for key in expected} == expected
        assert finished_model.judge_model(fedavg_run, on, flip=True, own=name) == found | {"lists": {name: mine}}
    assert figures["rfw-african"] != figures["rfw-asian"]


def test_pairs_are_drawn_where_a_data_set_has_no_list_or_where_they_are_asked_for(
    fedavg_run: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_model, "PAIRS", 24)
    bupt, on = tmp_path / "bupt", rfw(tmp_path / "rfw")
    (on / "data").rename(bupt)
    assert finished_model.judge_model(fedavg_run, bupt)["pairs"] == 48
    with pytest.raises(ValueError, match="has no pair list of its own"):
        finished_model.judge_model(fedavg_run, bupt, own="rfw-asian")
    bupt.rename(on / "data")
    assert finished_model.judge_model(fedavg_run, on, pairs=20)["pairs"] == 40
    with pytest.raises(ValueError, match="has no pair list 'lfw': choose one by --list rfw-african, --list rfw-asian"):
        finished_model.judge_model(fedavg_run, on, own="lfw")
    with pytest.raises(ValueError, match="--pairs draws pairs: leave one of them out"):
        finished_model.judge_model(fedavg_run, on, own="rfw-asian", pairs=20)
    with pytest.raises(ValueError, match="is no data set with pair lists of its own: leave --list out"):
        finished_model.judge_model(fedavg_run, pictures, own="rfw-asian")
    with pytest.raises(ValueError, match=r"pairs\.txt is no data set with pair lists of its own"):
        finished_model.judge_model(fedavg_run, pair_list(tmp_path / "pairs.txt", 20), images=pictures, own="rfw-asian")


def test_the_command_prints_a_block_for_each_list(fedavg_run: Path, tmp_path: Path) -> None:
    on = rfw(tmp_path / "rfw")
    found = finished_model.judge_model(fedavg_run, on)
    for arguments, names in (([], list(found["lists"])), (["--list", "rfw-asian"], ["rfw-asian"])):
        printed, _ = command(fedavg_run, "--on", on, *arguments)
        head, *blocks = printed.split("\n\n")
        assert head.split() == ["model", str(fedavg_run), "on", str(on)]
        assert [block.splitlines()[0] for block in blocks] == names
        for block, name in zip(blocks, names, strict=True):
            lines = [line.split() for line in block.splitlines()]
            assert ["accuracy", f"{found['lists'][name]['accuracy']:.2f}", "%"] in lines and ["pairs", "20"] in lines
