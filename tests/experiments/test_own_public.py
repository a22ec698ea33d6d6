"""Public people beside parties with images of their own: who they are, at whom, and what must agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import naive
import pytest
import torch
import yaml
from federations import digests
from ownparties import PEOPLE, TREE, over_flower, write_parties
from safetensors.torch import load_file
from tinyruns import Silent, picture_folders

from coalface.core.errors import RecipeError
from coalface.engine.transport import RunFailed
from coalface.experiments import run as experiment
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader, party_file
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import party_data, splits
from coalface.experiments.setup.parts import Parts
from coalface.flower.party import preflight as partychecking
from coalface.methods.fedfr_joint import FedFRJoint

PEOPLE_OF_ALL = {"kind": "synthetic", "identities": 5, "images": 4, "first": 500}
TRAINERS = [name for name in PEOPLE if name != "clinic"]
SHARED: dict[str, Any] = {
    **{key: value for key, value in TREE.items() if key != "validators"},
    "method": "fedfr-joint",
    "methods": {"fedfr-joint": {"threshold": 0.3}},
    "pretrain": {"method": "centralized", "rounds": 1, "local": {"batch_size": 16, "lr": 0.05}},
    "data": {**TREE["data"], "public": PEOPLE_OF_ALL},
}


def recipe(**changes: Any) -> Recipe:
    return loader.parse(loader.merged(SHARED, changes))


def written(folder: Path, name: str = "recipe", **changes: Any) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(loader.merged(SHARED, changes)))
    return path


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainers and their files; public people are synthetic, and need no folder."""
    root = write_parties(tmp_path_factory.mktemp("parties"))
    (root / "own.yaml").write_text(yaml.safe_dump({party: f"{party}/party.yaml" for party in TRAINERS}))
    return root


@pytest.fixture(autouse=True)
def own_pretraining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One cache for this file."""
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path_factory.getbasetemp() / "own-public"))
    monkeypatch.delenv("COALFACE_DATA", raising=False)


def pictures(root: Path) -> dict[str, Any]:
    """Public people as folders."""
    picture_folders(root, ["Ada", "Berta", "Clara"], images=4, seed=9)
    return {"kind": "folder", "path": str(root)}


def listing(folder: Path, *names: str) -> str:
    """A list in LFW's format that names some people."""
    (folder / "pairs.txt").write_text("1\t1\n" + f"{names[0]}\t1\t2\n{names[0]}\t1\t{names[-1]}\t2\n")
    return str(folder / "pairs.txt")


# --- the same run here and there --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ci
def test_public_people_are_at_the_server_and_at_every_party_and_the_bytes_are_those_of_a_local_run(
    parties: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    states = naive.watched(FedFRJoint, monkeypatch, "init")
    path, over_network, alone = written(tmp_path), tmp_path / "there", tmp_path / "here"
    over_flower(path, parties, tmp_path / "homes", over_network, clinic=parties / "silo-00" / "party.yaml")
    local = party_file.fill(
        loader.load(path, ["engine.on_error=exclude", "engine.save_replies=true"]),
        party_file.read_all(parties / "own.yaml"),
    )
    experiment.run(local, alone, Silent(), report=False)
    homes = {party: tmp_path / "homes" / party / "own" for party in TRAINERS}
    assert digests(over_network, homes) == digests(alone, dict.fromkeys(TRAINERS, alone))
    used = [json.loads((folder / "summary.json").read_text()).get("public_images") for folder in (over_network, alone)]
    assert used[0] is None and used[1]["held"] == 20  # which are near a client's people stays with it
    assert sum(map(sum, used[1]["used"].values())) > 0, "no client trained on a public image, so this shows nothing"
    (path,) = (tmp_path_factory.getbasetemp() / "own-public").glob("pretrained/*/classifier.safetensors")
    embeddings = load_file(path)["class_embeddings"]
    assert embeddings.shape == (5, 128) and torch.equal(states[-1].classifier, embeddings)


def test_other_methods_begin_from_them_and_hold_none(parties: Path) -> None:
    parsed = recipe(method="fedavg")
    assert parsed.pretrain.recipe.data.faces.first == 500
    node = party_data.party_data(parsed, "silo-00", parties / "silo-00" / "party.yaml")
    assert node.public is None and len(node.data["silo-00"]) == 12


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("method", ["adafedfr", "ss-fedfr"])
def test_with_public_images_at_the_server_or_half_of_the_own_unknown_the_bytes_are_those_of_a_local_run(
    method: str, parties: Path, tmp_path: Path
) -> None:
    half = {"unlabelled": 0.5 if method == "ss-fedfr" else 0.0}
    path, over_network, alone = written(tmp_path, method=method, data=half), tmp_path / "there", tmp_path / "here"
    over_flower(path, parties, tmp_path / "homes", over_network)
    local = party_file.fill(
        loader.load(path, ["engine.on_error=exclude", "engine.save_replies=true"]),
        party_file.read_all(parties / "own.yaml"),
    )
    experiment.run(local, alone, Silent(), report=False)
    homes = {party: tmp_path / "homes" / party / "own" for party in TRAINERS}
    assert digests(over_network, homes) == digests(alone, dict.fromkeys(TRAINERS, alone))


def test_a_node_opens_no_public_images_where_they_stay_at_the_server(parties: Path, tmp_path: Path) -> None:
    """They need not even lie there."""
    nowhere = {"kind": "folder", "path": str(tmp_path / "nowhere")}
    parsed, file = recipe(method="adafedfr", data={"public": nowhere}), parties / "silo-00" / "party.yaml"
    node = party_data.party_data(parsed, "silo-00", file)
    assert node.public is None and node.at_server is None and len(node.data["silo-00"]) == 12
    assert not partychecking.check(file, parsed).faults
    shared = recipe(data={"public": nowhere})
    with pytest.raises(RecipeError, match="data.public"):
        party_data.party_data(shared, "silo-00", file)
    server = Parts(recipe(method="adafedfr"), played=()).data
    assert server.public is None and server.at_server is not None and len(server.at_server) == 20


def test_a_node_with_other_public_images_is_left_alone_and_the_servers_log_says_why(
    parties: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other_recipe = written(tmp_path, "other", data={"public": {"identities": 6}})
    message = (
        r"silo-01 did not join .*wait longer\. Left alone: node 1001 says that it is silo-01 and has not the server's"
    )
    with pytest.raises(RunFailed, match=message):
        over_flower(
            written(tmp_path),
            parties,
            tmp_path / "homes",
            tmp_path / "run",
            recipes={"silo-01": other_recipe},
        )
    assert "says that it is silo-01 and has not the server's public images, of the same people" in caplog.text
    assert "says that it is silo-00 and" not in caplog.text


def test_a_digest_tells_people_and_their_numbers_apart_and_not_which_image_is_which() -> None:
    faces = Parts(recipe()).public
    assert faces is not None
    assert faces.who == faces.select(range(len(faces))[::-1]).who  # type: ignore[arg-type]
    changed = [faces.only([1, 0, 2, 3, 4]), faces.only([0, 1, 2, 3]), faces.select(range(1, len(faces)))]  # type: ignore[arg-type]
    assert len({faces_of.who for faces_of in (faces, *changed)}) == 4


# --- who is public ----------------------------------------------------------------------------------------------------


def test_they_are_those_that_the_pretraining_trains_on_in_its_order(tmp_path: Path) -> None:
    exclude, source = listing(tmp_path, "Berta", "Dagny"), pictures(tmp_path / "public")
    for exclude_lists in ([exclude], {"public": [exclude]}, {"silo-00": [exclude]}, []):
        parsed = recipe(data={"public": source, "exclude": exclude_lists})
        public, inner = Parts(parsed).public, splits.split(parsed.pretrain.recipe).train
        assert public is not None and public.names == inner.names and public.labels.tolist() == inner.labels.tolist()
        left_out = exclude_lists and exclude_lists != {"silo-00": [exclude]}
        assert public.names == (("Ada", "Clara") if left_out else ("Ada", "Berta", "Clara"))


def test_who_is_evaluated_is_none_of_them_where_both_lie_in_one_folder(parties: Path, tmp_path: Path) -> None:
    public = pictures(tmp_path / "public")
    same = recipe(
        data={"public": public}, evaluation={"pairs": {"unseen": {"source": public, "pairs": 10}}}, pretrain=None
    )
    with pytest.raises(RecipeError, match=r"evaluation.pairs.unseen: .* 3 identities \(Ada"):
        preflight.check(party_file.fill(same, party_file.read_all(parties / "own.yaml")))
    picture_folders(tmp_path / "others", ["Ada", "Berta", "Clara"], images=4, seed=10)
    others = {"unseen": {"source": {**public, "path": str(tmp_path / "others")}, "pairs": 10}}
    apart = recipe(data={"public": public}, evaluation={"pairs": others}, pretrain=None)
    preflight.check(
        party_file.fill(apart, party_file.read_all(parties / "own.yaml"))
    )  # of another folder they are other people


def test_they_are_none_of_a_partys_own_where_both_lie_in_one_folder(parties: Path, tmp_path: Path) -> None:
    folder = {"kind": "folder", "path": str(parties / "silo-00" / "faces")}
    parsed = recipe(data={"public": folder}, pretrain=None)
    said = r"data.public: 3 of its people are silo-00's own \(Adalind, Beatrix, Cydonia\)"
    with pytest.raises(RecipeError, match=said):
        preflight.check(party_file.fill(parsed, party_file.read_all(parties / "own.yaml")))
    assert partychecking.check(parties / "silo-00" / "party.yaml", parsed).faults[0].startswith("data.public: 3 of its")
    assert not partychecking.check(parties / "silo-01" / "party.yaml", parsed).faults  # of another folder: other people
    apart = recipe(
        data={"public": folder, "exclude": {"public": [listing(tmp_path, *PEOPLE["silo-00"])]}}, pretrain=None
    )
    assert len(PEOPLE["silo-00"]) == 3
    with pytest.raises(RecipeError, match=r"data.public: 1 of its people are silo-00's own \(Beatrix\)"):
        preflight.check(party_file.fill(apart, party_file.read_all(parties / "own.yaml")))


def test_they_are_few_by_the_recipes_rules_and_it_is_said_of_whom(tmp_path: Path) -> None:
    source = pictures(tmp_path / "public")
    (tmp_path / "public" / "Berta" / "Berta_0001.png").unlink()
    parsed = recipe(data={"public": source, "min_images": 4})
    public = Parts(parsed).public
    assert public is not None and public.names == ("Ada", "Clara")
    for changes, said in (
        ({"min_images": 5}, "no image is left to train on"),
        ({"public": {**source, "path": str(tmp_path / "nowhere")}}, "data.public: .*nowhere"),
        ({"exclude": [str(tmp_path / "none.txt")]}, "data.exclude: .*none.txt does not exist"),
    ):
        changed = loader.parse(loader.merged(parsed.model_dump(mode="json"), {"data": changes}))
        with pytest.raises(RecipeError, match=said):
            _ = Parts(changed).public
        with pytest.raises((ValueError, OSError)):
            splits.split(changed.pretrain.recipe)


def test_a_pre_training_with_a_source_of_its_own_takes_nothing_of_theirs(tmp_path: Path) -> None:
    data_before = {"faces": {**PEOPLE_OF_ALL, "first": 600}}
    parsed = recipe(
        method="fedavg", data={"exclude": [listing(tmp_path, "Berta", "Dagny")]}, pretrain={"data": data_before}
    )
    assert parsed.pretrain.recipe.data.faces.first == 600
    assert parsed.pretrain.recipe.data.exclude == ()


def test_a_party_is_told_what_it_holds_beside_its_own(parties: Path) -> None:
    report = partychecking.check(parties / "silo-00" / "party.yaml", recipe())
    assert not report.faults and "public people: 20 images of 5 identities" in report.lines[-1]
    assert Parts(recipe(), played=()).data.public is not None


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"data": {"public": None}}, "data.public"),
        ({"data": {"public": None}, "method": "fedavg"}, "pretrain.data.faces"),
        ({"data": {"parties": ["public", "b"]}}, "data.parties"),
        ({"data": {"parties": ["A", "a"]}}, "data.parties"),
        ({"method": "centralized"}, "method"),
        ({"evaluation": {"pairs": {"x": {}}}}, "evaluation.pairs.x.source"),
        ({"validators": {"v": {"identities": 3}}}, "validators.v"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(RecipeError) as error:
        recipe(**changes)
    assert error.value.where == where


def test_a_pre_training_on_others_is_refused(parties: Path, tmp_path: Path) -> None:
    parsed = recipe(pretrain={"data": {"faces": {**PEOPLE_OF_ALL, "first": 600}}})
    with pytest.raises(RecipeError, match="pretrain: fedfr-joint starts from the class embeddings of all public ident"):
        experiment.run(party_file.fill(parsed, party_file.read_all(parties / "own.yaml")), tmp_path / "run", Silent())
