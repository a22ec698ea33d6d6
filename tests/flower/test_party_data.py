"""Parties with images of their own, named in no recipe: at nodes, here with `--party-data`, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import yaml
from federations import digests, draw_from_secrets
from flwr.app import RecordDict
from ownparties import PEOPLE, UNSEEN, over_flower, recipe, write_parties, write_recipe
from tinyruns import Silent, Stop, Stops

from coalface.core.errors import CoalfaceError, RecipeError
from coalface.engine.transport import Member, RunFailed
from coalface.experiments import run as experiment
from coalface.experiments import status
from coalface.experiments.plan import preflight
from coalface.experiments.prepare import MAX_SHARE, MAX_UPDATE_NORM, round_policy
from coalface.experiments.recipe import loader, party_file
from coalface.experiments.setup import party_data, sources, splits
from coalface.flower.app import project
from coalface.methods import METHODS


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parties(tmp_path_factory.mktemp("parties"))


# --- the same run here and there --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ci
def test_a_run_whose_nodes_each_see_their_own_folder_leaves_the_bytes_of_a_local_one(
    parties: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COALFACE_DATA", raising=False)
    over_flower_out, local_out = tmp_path / "there", tmp_path / "here"
    path = write_recipe(tmp_path)
    grid = over_flower(path, parties, tmp_path / "homes", over_flower_out)
    local = party_file.fill(
        loader.load(path, ["engine.on_error=exclude", "engine.save_replies=true"]),
        party_file.read_all(parties / "own.yaml"),
    )
    draw_from_secrets(over_flower_out, lambda party: tmp_path / "homes" / party / "own", monkeypatch)
    experiment.run(local, local_out, Silent(), report=False)
    whole = digests(local_out, dict.fromkeys(PEOPLE, local_out))
    assert all(any(name.startswith(f"parties/{party}/") for name in whole) for party in PEOPLE)
    assert digests(over_flower_out, {party: tmp_path / "homes" / party / "own" for party in PEOPLE}) == whole
    summary = json.loads((over_flower_out / "summary.json").read_text())
    counts = {party["name"]: (party["role"], party["images"], party["identities"]) for party in summary["parties"]}
    assert counts["silo-00"] == ("trainer", 12, 3) and counts["silo-01"] == ("trainer", 8, 2)
    assert counts["clinic"][0] == "validator"
    names = [name.encode() for people in PEOPLE.values() for name in people]
    assert not list(over_flower_out.rglob("trained_on*")) and not list(
        local_out.rglob("trained_on*")
    )  # the server knows no names
    files = [path for path in over_flower_out.rglob("*") if path.is_file()]
    assert len(files) > 8 and not [p for p in files if any(name in p.read_bytes() for name in names)]
    assert str(parties).encode() not in b"".join(path.read_bytes() for path in files)
    sent = b"".join(value for reply in grid.answered for value in _bytes(reply.content))
    assert len(sent) > 10_000 and not any(name in sent for name in names)


def _bytes(content: RecordDict) -> list[bytes]:
    """All bytes and texts of a message."""
    arrays = [array.data for record in content.array_records.values() for array in record.values()]
    return arrays + [str(value).encode() for record in content.config_records.values() for value in record.values()]


OVER_OWN = [n for n, m in METHODS.items() if not (m.pools or m.scenario == "domains" or "fv" in n)]


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("method", [*OVER_OWN, "fedfv"])
def test_every_method_that_can_be_over_own_images_is_the_same_here_and_there(
    method: str, parties: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_one_identity = METHODS[method].scenario == "devices"
    for party, names in PEOPLE.items():
        shutil.copytree(parties / party, tmp_path / party)
        for name in names[1:] if has_one_identity else ():
            shutil.rmtree(tmp_path / party / "faces" / name)
        content = yaml.safe_load((tmp_path / party / "party.yaml").read_text())
        (tmp_path / party / "party.yaml").write_text(yaml.safe_dump({**content, "role": "trainer"}))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({party: f"{party}/party.yaml" for party in PEOPLE}))
    path = write_recipe(tmp_path, method=method, data={"parties": list(PEOPLE)})
    tree = yaml.safe_load(path.read_text())
    del tree["validators"]
    if METHODS[method].scenario == "private-public":
        tree["data"]["public"] = UNSEEN | {"first": 500}
        tree["pretrain"] = {"method": "centralized", "rounds": 1}
    if has_one_identity and "sample" in METHODS[method].__dataclass_fields__:
        tree["methods"] = {method: {"sample": 1}}
    path.write_text(yaml.safe_dump(tree))
    over_flower(path, tmp_path, tmp_path / "homes", tmp_path / "there")
    local = party_file.fill(
        loader.load(path, ["engine.on_error=exclude", "engine.save_replies=true"]),
        party_file.read_all(tmp_path / "own.yaml"),
    )
    if has_one_identity and method != "fedface":  # else a run here draws as the federation does
        draw_from_secrets(tmp_path / "there", lambda party: tmp_path / "homes" / party / "own", monkeypatch)
    experiment.run(local, tmp_path / "here", Silent(), report=False)
    assert (tmp_path / "there" / "metrics.jsonl").read_bytes() == (tmp_path / "here" / "metrics.jsonl").read_bytes()
    files = [path for path in (tmp_path / "here" / "parties").rglob("*") if path.is_file()]
    assert files  # of methods that sample, not of all parties
    for file in files:
        at_party = tmp_path / "homes" / file.parent.name / "own" / "parties" / file.parent.name / file.name
        assert at_party.read_bytes() == file.read_bytes()


def test_a_stopped_local_run_goes_on_and_its_folders_may_have_moved(parties: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    local = party_file.fill(recipe(), party_file.read_all(parties / "own.yaml"))
    experiment.run(local, whole, Silent(), report=False)

    with pytest.raises(Stop):
        experiment.run(local, cut, Stops(), report=False)
    shutil.copytree(parties, tmp_path / "moved")
    moved = {party: str(tmp_path / "moved" / party / "faces") for party in PEOPLE}
    changes = [f"data.party_data.{name}.path={moved[name]}" for name in ("silo-00", "silo-01")]
    experiment.resume(cut, Silent(), (*changes, f"validators.clinic.source.path={moved['clinic']}"))
    for name in ("model/backbone.safetensors", "metrics.jsonl"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes()


@pytest.mark.parametrize("kind", ["rec", "pack", "folder"])
def test_a_partys_images_may_be_in_each_of_the_forms(kind: str, parties: Path, tmp_path: Path) -> None:
    from coalface.data.readers.pack import write_pack
    from coalface.data.stores import open_store
    from coalface.data.tools import convert

    federated = recipe(method="fedavg")
    silo = party_file.read(parties / "silo-00" / "party.yaml")
    faces, at = open_store(parties / "silo-00" / "faces"), tmp_path / "held"
    if kind == "pack":
        write_pack(faces, at, size=32, grey=True)
    elif kind == "rec":
        convert.convert(faces, at, "rec")
    else:
        at = parties / "silo-00" / "faces"
    (tmp_path / "party.yaml").write_text(yaml.safe_dump({"data": {"kind": kind, "path": str(at)}}))
    alone = party_data.party_data(federated, "silo-00", tmp_path / "party.yaml")
    files = {"silo-00": party_file.read(tmp_path / "party.yaml"), "silo-01": silo}
    joined = sources.open_own(federated, party_file.fill(federated, files).data.parts)
    assert len(alone.data["silo-00"]) == 12 and len(alone.data["silo-01"]) == 0 and len(joined) == 24
    np.testing.assert_array_equal(joined.take(np.arange(12, 24)), alone.data["silo-00"].take(np.arange(12)))


# --- what holds at each party by itself -------------------------------------------------------------------------------


def test_rules_of_the_recipe_hold_at_each_party_alike_here_and_there(parties: Path, tmp_path: Path) -> None:
    shutil.copytree(parties / "silo-00", tmp_path / "silo-00")
    for number in (2, 3, 4):
        (tmp_path / "silo-00" / "faces" / "Cydonia" / f"Cydonia_{number:04d}.png").unlink()
    rules = {"min_images": 2, "test": {"images": 1}, "exclude": [str(_pairs(tmp_path))]}
    federated = recipe(method="fedavg", data=rules)
    alone = party_data.party_data(federated, "silo-00", tmp_path / "silo-00" / "party.yaml")
    assert alone.members()["silo-00"].images == 3 and alone.data["silo-00"].names == (
        "silo-00/Adalind",
    )  # one is a test
    files = {"silo-00": party_file.read(tmp_path / "silo-00" / "party.yaml")}
    files["silo-01"] = party_file.read(parties / "silo-01" / "party.yaml")
    local = party_file.fill(federated, files)
    train = splits.split(local).train
    of_it = train.only([train.names.index("silo-00/Adalind")])
    np.testing.assert_array_equal(of_it.take(np.arange(3)), alone.data["silo-00"].take(np.arange(3)))
    test = splits.split(local).test
    assert test is not None and len(test) == 2  # of both who are called Adalind


def _pairs(folder: Path) -> Path:
    """A list in LFW's format that names Beatrix and Dorothea."""
    (folder / "pairs.txt").write_text("1\t1\nBeatrix\t1\t2\nBeatrix\t1\tDorothea\t2\n")
    return folder / "pairs.txt"


def test_a_party_of_whom_nothing_is_left_says_so(parties: Path) -> None:
    with pytest.raises(RecipeError, match="data.min_images"):
        party_data.party_data(recipe(data={"min_images": 9}), "silo-00", parties / "silo-00" / "party.yaml")


def test_a_validator_may_hold_a_list_of_its_own(parties: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text(
        "1\t2\nEvelina\t1\t2\nFayette\t2\t3\nEvelina\t1\tFayette\t1\nEvelina\t2\tFayette\t4\n"
    )
    content = {"data": {"kind": "folder", "path": str(parties / "clinic" / "faces")}}
    content["pairs"] = {"kind": "lfw", "path": "pairs.txt"}
    (tmp_path / "party.yaml").write_text(yaml.safe_dump(content))
    clinic = party_data.party_data(recipe(), "clinic", tmp_path / "party.yaml")
    assert len(clinic.pairs["clinic"]) == 4 and clinic.members()["clinic"].identities == 2
    assert not clinic.pairs.keys() - {"clinic"} and not len(clinic.data["silo-00"])


def test_who_is_evaluated_is_not_trained_on_where_both_lie_in_one_folder(parties: Path) -> None:
    folder = {"kind": "folder", "path": str(parties / "silo-00" / "faces")}
    federated = recipe(
        method="fedavg", validators={"clinic": {}}, evaluation={"pairs": {"unseen": {"source": folder, "pairs": 10}}}
    )
    local = party_file.fill(federated, party_file.read_all(parties / "own.yaml"))
    with pytest.raises(RecipeError, match=r"evaluation.pairs.unseen: .* 3 identities \(silo-00/Adalind"):
        preflight.check(local)


def test_a_pre_training_is_on_people_that_the_recipe_names(parties: Path, tmp_path: Path) -> None:
    before = {"method": "centralized", "rounds": 1, "data": {"faces": {**UNSEEN, "first": 500}}}
    path = write_recipe(tmp_path, method="fedavg", pretrain=before, rounds=1)
    inner = loader.load(path).pretrain.recipe
    assert (inner.data.size, inner.own, inner.validators) == (32, None, {})
    over_flower(path, parties, tmp_path / "homes", tmp_path / "there")
    local = party_file.fill(
        loader.load(path, ["engine.on_error=exclude", "engine.save_replies=true"]),
        party_file.read_all(parties / "own.yaml"),
    )
    experiment.run(local, tmp_path / "here", Silent(), report=False)
    model = "model/backbone.safetensors"
    assert (tmp_path / "there" / model).read_bytes() == (tmp_path / "here" / model).read_bytes()
    solo = write_recipe(tmp_path, method="solo", pretrain=before)
    with pytest.raises(RecipeError) as error:
        over_flower(solo, parties, tmp_path / "homes", tmp_path / "solo")
    assert error.value.where == "pretrain"


# --- who is left alone, and why ---------------------------------------------------------------------------------------


def test_a_node_of_another_role_is_left_alone_and_the_servers_log_says_why(
    parties: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "party.yaml").write_text("{role: validator, data: {kind: folder, path: nowhere}}")
    with pytest.raises(RunFailed, match="silo-00 did not join"):
        over_flower(
            write_recipe(tmp_path),
            parties,
            tmp_path / "homes",
            tmp_path / "run",
            **{"silo-00": tmp_path / "party.yaml"},
        )
    assert "says that it is silo-00, a validator, who is a trainer by the recipe: it is left alone" in caplog.text


@pytest.mark.parametrize(
    ("party", "text"),
    [
        ("silo-00", None),
        ("silo-00", "{role: trainer}"),
        ("silo-00", "{name: silo-01}"),
        ("silo-00", "{dta: {}}"),
        ("silo-00", "{data: {kind: joined}}"),
        ("silo-00", "{data: {kind: folder}}"),
        ("silo-00", "{role: trainer, pairs: {kind: bin, path: x}}"),
        ("silo-00", "[]"),
        ("silo-00", "{data: {kind: folder, path: nowhere}}"),
        ("clinic", "{pairs: {kind: lfw, path: x}}"),
        ("silo-09", "{data: {kind: synthetic}}"),
    ],
)
def test_a_wrong_file_is_refused_at_the_party(party: str, text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "party.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises((CoalfaceError, FileNotFoundError), match=f"{file}|{party}|nowhere"):
        party_data.party_data(recipe(), party, None if text is None else file)


def test_a_party_with_own_images_is_not_trained_on_others_that_a_recipe_names(tmp_path: Path) -> None:
    (tmp_path / "party.yaml").write_text("data: {kind: synthetic}")
    dealt = loader.parse({"data": {"size": 32, "partition": {"parties": 2}}})
    with pytest.raises(RecipeError, match="silo-00"):
        party_data.party_data(dealt, "silo-00", tmp_path / "party.yaml")


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"data": {"parties": []}}, "data.parties"),
        ({"data": {"parties": ["a", "A"]}}, "data.parties"),
        ({"data": {"parties": ["../a"]}}, "data.parties.0"),
        ({"data": {"parties": ["clinic", "b"]}}, "validators.clinic"),
        ({"data": {"hold_out": 4}}, "data.hold_out"),
        ({"data": {"exclude": {"silo-9": ["x"]}}}, "data.exclude"),
        ({"method": "centralized"}, "method"),
        ({"method": "fedfr-joint"}, "data.public"),
        ({"evaluation": {"pairs": {"unseen": {"source": None}}}}, "evaluation.pairs.unseen.source"),
        ({"validators": {"clinic": {"own": None, "identities": 4}}}, "validators.clinic"),
        ({"pretrain": {"method": "centralized"}}, "pretrain.data.faces"),
    ],
)
def test_what_cannot_be_over_images_of_the_parties_own_is_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(RecipeError, match=f"^{where}"):
        recipe(**changes)


def test_where_images_lie_is_no_part_of_a_recipe(parties: Path, tmp_path: Path) -> None:
    plain, filled = recipe(), party_file.fill(recipe(), party_file.read_all(parties / "own.yaml"))
    assert filled.digest() == plain.digest() and filled.data.parts.keys() == {"silo-00", "silo-01"}
    path = tmp_path / "told.yaml"
    path.write_text(yaml.safe_dump(filled.model_dump(mode="json")))
    with pytest.raises(RecipeError, match="the recipe says where this party's own images lie"):
        project.new(tmp_path / "project", path)
    with pytest.raises(RecipeError, match="the recipe says where this party's own images lie"):
        party_data.party_data(filled, "silo-00", parties / "silo-00" / "party.yaml")


# --- the command line -------------------------------------------------------------------------------------------------


def test_a_plain_run_needs_the_parties_files_and_a_dry_one_does_not(parties: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, method="fedavg")
    with pytest.raises(RecipeError, match="--party-data"):
        experiment.run(loader.load(path), tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()
    assert "2 trainers with images of their own" in commands.said("run", path, "--dry-run")
    printed = commands.said("run", path, "--dry-run", "--party-data", parties / "own.yaml")
    assert "20 training images, 8 to 12 a party" in printed
    assert "backbone" in commands.said("messages", "fedavg", "--recipe", path)


def test_what_a_party_says_it_has_counts_up_to_a_bound(parties: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    local = party_file.fill(loader.load(path), party_file.read_all(parties / "own.yaml"))
    assert round_policy(local).max_share == MAX_SHARE
    assert round_policy(local).max_update_norm == MAX_UPDATE_NORM == 5
    assert round_policy(loader.parse({})).max_share is None
    assert round_policy(loader.parse({})).max_update_norm == 30
    assert round_policy(loader.parse({"engine": {"max_share": 0.3}})).max_share == 0.3
    counts = {name: Member("trainer", images, 1) for name, images in {"a": 1, "b": 1, "c": 98}.items()}
    *_, largest, warning = status.image_counts(counts, 0.5)
    assert "98 % of all" in largest and "engine.max_share" in warning
