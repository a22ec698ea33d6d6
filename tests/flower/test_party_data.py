"""Parties with images of their own, named in no recipe: at nodes, here with `--party-data`, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from federations import NOW, left
from flwr.app import RecordDict
from ownparties import PEOPLE, UNSEEN, over_flower, recipe, write_parties, written
from tinyruns import Silent, picture_folders
from typer.testing import CliRunner

from coalface.cli.main import app
from coalface.core.errors import RecipeError
from coalface.engine.transport import Member, RunFailed
from coalface.experiments import preflight, status
from coalface.experiments import run as experiment
from coalface.experiments.experiment import MAX_SHARE, MAX_UPDATE_NORM, round_policy
from coalface.experiments.recipe import loader, party_file
from coalface.experiments.setup import party_data, sources, splits
from coalface.flower.app import project
from coalface.flower.party import preflight as partychecking
from coalface.flower.party import process
from coalface.flower.provision import kits as provisioning
from coalface.flower.provision import verify
from coalface.methods import METHODS


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parties(tmp_path_factory.mktemp("parties"))


# --- the same run here and there --------------------------------------------------------------------------------------


def test_a_run_whose_nodes_each_see_their_own_folder_leaves_the_bytes_of_a_local_one(
    parties: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COALFACE_DATA", raising=False)
    there, here = tmp_path / "there", tmp_path / "here"
    path = written(tmp_path)
    grid = over_flower(path, parties, tmp_path / "homes", there)
    local = party_file.filled(loader.load(path, ["engine.on_error=exclude"]), party_file.read_all(parties / "own.yaml"))
    experiment.run(local, here, Silent(), report=False)
    whole = left(here, dict.fromkeys(PEOPLE, here))
    assert all(any(name.startswith(f"parties/{party}/") for name in whole) for party in PEOPLE)
    assert left(there, {party: tmp_path / "homes" / party / "own" for party in PEOPLE}) == whole
    summary = json.loads((there / "summary.json").read_text())
    told = {one["name"]: (one["role"], one["images"], one["identities"]) for one in summary["parties"]}
    assert told["silo-00"] == ("trainer", 12, 3) and told["silo-01"] == ("trainer", 8, 2)
    assert told["clinic"][0] == "validator"
    names = [name.encode() for each in PEOPLE.values() for name in each]
    assert not list(there.rglob("trained_on*")) and not list(here.rglob("trained_on*"))  # the server knows no names
    files = [path for path in there.rglob("*") if path.is_file()]
    assert len(files) > 8 and not [p for p in files if any(name in p.read_bytes() for name in names)]
    assert str(parties).encode() not in b"".join(path.read_bytes() for path in files)
    sent = b"".join(value for reply in grid.said for value in _bytes(reply))
    assert len(sent) > 10_000 and not any(name in sent for name in names)


def _bytes(content: RecordDict) -> list[bytes]:
    """All bytes and texts of a message."""
    arrays = [array.data for record in content.array_records.values() for array in record.values()]
    return arrays + [str(value).encode() for record in content.config_records.values() for value in record.values()]


OVER_OWN = [n for n, m in METHODS.items() if not (m.pooled or m.domains or "fv" in n)]


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("method", [*OVER_OWN, "fedfv"])
def test_every_method_that_can_be_over_own_images_is_the_same_here_and_there(
    method: str, parties: Path, tmp_path: Path
) -> None:
    one = METHODS[method].one_identity
    for party, names in PEOPLE.items():
        shutil.copytree(parties / party, tmp_path / party)
        for name in names[1:] if one else ():
            shutil.rmtree(tmp_path / party / "faces" / name)
        said = yaml.safe_load((tmp_path / party / "party.yaml").read_text())
        (tmp_path / party / "party.yaml").write_text(yaml.safe_dump({**said, "role": "trainer"}))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({party: f"{party}/party.yaml" for party in PEOPLE}))
    path = written(tmp_path, method=method, data={"parties": list(PEOPLE)})
    tree = yaml.safe_load(path.read_text())
    del tree["validators"]
    if METHODS[method].shares_public:
        tree["data"]["public"] = UNSEEN | {"first": 500}
        tree["pretrain"] = {"method": "centralized", "rounds": 1}
    if one and "sample" in METHODS[method].__dataclass_fields__:
        tree["methods"] = {method: {"sample": 1}}
    path.write_text(yaml.safe_dump(tree))
    over_flower(path, tmp_path, tmp_path / "homes", tmp_path / "there")
    local = party_file.filled(
        loader.load(path, ["engine.on_error=exclude"]), party_file.read_all(tmp_path / "own.yaml")
    )
    experiment.run(local, tmp_path / "here", Silent(), report=False)
    assert (tmp_path / "there" / "metrics.jsonl").read_bytes() == (tmp_path / "here" / "metrics.jsonl").read_bytes()
    files = [path for path in (tmp_path / "here" / "parties").rglob("*") if path.is_file()]
    assert files  # of methods that sample, not of all parties
    for file in files:
        mine = tmp_path / "homes" / file.parent.name / "own" / "parties" / file.parent.name / file.name
        assert mine.read_bytes() == file.read_bytes()


def test_a_stopped_local_run_goes_on_and_its_folders_may_have_moved(parties: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    local = party_file.filled(recipe(), party_file.read_all(parties / "own.yaml"))
    experiment.run(local, whole, Silent(), report=False)

    class Stopped(Silent):
        def round(self, record: dict[str, Any]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run(local, cut, Stopped(), report=False)
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

    made = recipe(method="fedavg")
    one = party_file.read(parties / "silo-00" / "party.yaml")
    faces, at = open_store(parties / "silo-00" / "faces"), tmp_path / "held"
    if kind == "pack":
        write_pack(faces, at, size=32, grey=True)
    elif kind == "rec":
        convert.convert(faces, at, "rec")
    else:
        at = parties / "silo-00" / "faces"
    (tmp_path / "party.yaml").write_text(yaml.safe_dump({"data": {"kind": kind, "path": str(at)}}))
    alone = party_data.party_data(made, "silo-00", tmp_path / "party.yaml")
    others = {"silo-00": party_file.read(tmp_path / "party.yaml"), "silo-01": one}
    both = sources.open_own(made, party_file.filled(made, others).data.parts)
    assert len(alone.data["silo-00"]) == 12 and len(alone.data["silo-01"]) == 0 and len(both) == 24
    np.testing.assert_array_equal(both.take(np.arange(12, 24)), alone.data["silo-00"].take(np.arange(12)))


# --- what holds at each party by itself -------------------------------------------------------------------------------


def test_rules_of_the_recipe_hold_at_each_party_alike_here_and_there(parties: Path, tmp_path: Path) -> None:
    shutil.copytree(parties / "silo-00", tmp_path / "silo-00")
    for number in (2, 3, 4):
        (tmp_path / "silo-00" / "faces" / "Cydonia" / f"Cydonia_{number:04d}.png").unlink()
    rules = {"min_images": 2, "test": {"images": 1}, "exclude": [str(_pairs(tmp_path))]}
    made = recipe(method="fedavg", data=rules)
    alone = party_data.party_data(made, "silo-00", tmp_path / "silo-00" / "party.yaml")
    assert alone.members()["silo-00"].images == 3 and alone.data["silo-00"].names == (
        "silo-00/Adalind",
    )  # one is a test
    files = {"silo-00": party_file.read(tmp_path / "silo-00" / "party.yaml")}
    files["silo-01"] = party_file.read(parties / "silo-01" / "party.yaml")
    local = party_file.filled(made, files)
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
    with pytest.raises(RecipeError, match=r"no image is left|silo-00: none of its people has data.min_images=9"):
        party_data.party_data(recipe(data={"min_images": 9}), "silo-00", parties / "silo-00" / "party.yaml")
    local = party_file.filled(recipe(), party_file.read_all(parties / "own.yaml"))
    few = picture_folders(parties / "few", ["Solo"], images=1)
    local = loader.parse(
        loader.merged(local.model_dump(mode="json"), {"data": {"party_data": {"silo-00": {"path": str(few)}}}})
    )
    with pytest.raises(RecipeError, match="silo-00: none of its people has data.min_images=2 images or more"):
        preflight.check(local)


def test_a_validator_may_hold_a_list_of_its_own(parties: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text(
        "1\t2\nEvelina\t1\t2\nFayette\t2\t3\nEvelina\t1\tFayette\t1\nEvelina\t2\tFayette\t4\n"
    )
    own = {"data": {"kind": "folder", "path": str(parties / "clinic" / "faces")}}
    own["pairs"] = {"kind": "lfw", "path": "pairs.txt"}
    (tmp_path / "party.yaml").write_text(yaml.safe_dump(own))
    here = party_data.party_data(recipe(), "clinic", tmp_path / "party.yaml")
    assert len(here.pairs["clinic"]) == 4 and here.members()["clinic"].identities == 2
    assert not here.pairs.keys() - {"clinic"} and not len(here.data["silo-00"])


def test_who_is_judged_is_not_trained_on_where_both_lie_in_one_folder(parties: Path) -> None:
    same = {"kind": "folder", "path": str(parties / "silo-00" / "faces")}
    made = recipe(
        method="fedavg", validators={"clinic": {}}, evaluation={"pairs": {"unseen": {"source": same, "pairs": 10}}}
    )
    local = party_file.filled(made, party_file.read_all(parties / "own.yaml"))
    with pytest.raises(RecipeError, match=r"evaluation.pairs.unseen: 3 identities \(silo-00/Adalind"):
        preflight.check(local)


def test_a_pre_training_is_on_people_that_the_recipe_names(parties: Path, tmp_path: Path) -> None:
    before = {"method": "centralized", "rounds": 1, "data": {"faces": {**UNSEEN, "first": 500}}}
    path = written(tmp_path, method="fedavg", pretrain=before, rounds=1)
    inner = loader.pretraining(loader.load(path))
    assert (inner.data.size, inner.own, inner.validators) == (32, None, {})
    over_flower(path, parties, tmp_path / "homes", tmp_path / "there")
    local = party_file.filled(loader.load(path, ["engine.on_error=exclude"]), party_file.read_all(parties / "own.yaml"))
    experiment.run(local, tmp_path / "here", Silent(), report=False)
    model = "model/backbone.safetensors"
    assert (tmp_path / "there" / model).read_bytes() == (tmp_path / "here" / model).read_bytes()
    solo = written(tmp_path, method="solo", pretrain=before)
    with pytest.raises(RecipeError, match="pretrain: the parties of solo are sent no model to begin from"):
        over_flower(solo, parties, tmp_path / "homes", tmp_path / "solo")


# --- who is left alone, and why ---------------------------------------------------------------------------------------


def test_a_node_of_another_role_is_left_alone_and_the_servers_log_says_why(
    parties: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "party.yaml").write_text("{role: validator, data: {kind: folder, path: nowhere}}")
    with pytest.raises(RunFailed, match="silo-00 did not join"):
        over_flower(
            written(tmp_path), parties, tmp_path / "homes", tmp_path / "run", **{"silo-00": tmp_path / "party.yaml"}
        )
    assert "says that it is silo-00, a validator, who is a trainer by the recipe: it is left alone" in caplog.text


@pytest.mark.parametrize(
    ("party", "text", "said"),
    [
        ("silo-00", None, "silo-00 brings images of its own, and its node does not say where they lie: name its party"),
        ("silo-00", "{role: trainer}", "silo-00: its file does not say where its images lie; write data"),
        ("silo-00", "{name: silo-01}", "is that of silo-01, and this node plays silo-00"),
        ("silo-00", "{dta: {}}", "dta is not a key of a party's file; did you mean data"),
        ("silo-00", "{data: {kind: folder, paht: x}}", "data.paht is not a key of a party's file; did you mean path"),
        ("silo-00", "{data: {kind: joined}}", "data.kind: a party's images are of kind folder, rec"),
        ("silo-00", "{data: {kind: folder}}", "data.path: say where its images lie"),
        ("silo-00", "{role: trainer, pairs: {kind: bin, path: x}}", "a trainer has none"),
        ("silo-00", "[]", "a mapping of keys is needed"),
        ("silo-00", "{data: {kind: folder, path: nowhere}}", "nowhere"),
        ("clinic", "{pairs: {kind: lfw, path: x}}", "pairs of kind lfw name images; say where they lie"),
        ("silo-09", "{data: {kind: synthetic}}", "party 'silo-09' is none of this run|names images of silo-09's own"),
    ],
)
def test_a_wrong_file_is_told_at_the_party(party: str, text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "party.yaml").write_text(text)
    with pytest.raises((RecipeError, FileNotFoundError), match=said):
        party_data.party_data(recipe(), party, None if text is None else tmp_path / "party.yaml")


def test_a_party_with_own_images_is_not_trained_on_others_that_a_recipe_names(tmp_path: Path) -> None:
    (tmp_path / "party.yaml").write_text("data: {kind: synthetic}")
    dealt = loader.parse({"data": {"size": 32, "partition": {"parties": 2}}})
    with pytest.raises(RecipeError, match="names images of silo-00's own, and this recipe would have others used"):
        party_data.party_data(dealt, "silo-00", tmp_path / "party.yaml")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"parties": []}}, "data.parties: each party brings images of its own"),
        ({"data": {"parties": ["a", "A"]}}, "two of them have one name"),
        ({"data": {"parties": ["../a"]}}, "data.parties.0: '../a' cannot be the name"),
        ({"data": {"parties": ["clinic", "b"]}}, "validators.clinic: a trainer already has"),
        ({"data": {"party_data": {"silo-9": {}}}}, "'silo-9' is not known; did you mean 'silo-0"),
        ({"data": {"hold_out": 4}}, "data.hold_out is not a key of data.scenario=own"),
        ({"data": {"private": {"identities": 2}}}, "data.private is not a key of data.scenario=own"),
        ({"data": {"max_identities": 2}}, "data.max_identities is not a key of data.scenario=own: silos, devices, "),
        ({"data": {"partition": {"kind": "dirichlet"}}}, "data.partition is not a key of data.scenario=own"),
        ({"data": {"exclude": {"silo-9": ["x"]}}}, "data.exclude: 'silo-9' is not known"),
        ({"method": "centralized"}, "method: centralized cannot be over .* take solo"),
        ({"method": "fedfr-uda"}, "method: fedfr-uda cannot be over parties with images of their own"),
        (
            {"method": "fedfr-joint"},
            "data.public: in fedfr-joint the server and all parties hold images",
        ),
        (
            {"evaluation": {"pairs": {"unseen": {"source": None}}}},
            "evaluation.pairs.unseen.source: the server has none of the",
        ),
        ({"validators": {"clinic": {"own": None, "identities": 4}}}, "validators.clinic: nobody can set people"),
        (
            {"validators": {"clinic": {"validates": "unseen"}}},
            "validators.clinic.validates: it brings images and pairs",
        ),
        ({"pretrain": {"method": "centralized"}}, "pretrain.data.faces: the server has none of the parties' images"),
        ({"data": {"faces": {"kind": "synthetic"}}}, "data.faces is not a key of data.scenario=own"),
    ],
)
def test_what_cannot_be_over_images_of_the_parties_own_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe(**changes)


def test_where_images_lie_is_no_part_of_a_recipe(parties: Path, tmp_path: Path) -> None:
    plain, filled = recipe(), party_file.filled(recipe(), party_file.read_all(parties / "own.yaml"))
    assert filled.digest() == plain.digest() and filled.data.parts.keys() == {"silo-00", "silo-01"}
    path = tmp_path / "told.yaml"
    path.write_text(yaml.safe_dump(filled.model_dump(mode="json")))
    with pytest.raises(RecipeError, match="the recipe says where images lie that are the party's own"):
        project.new(tmp_path / "project", path)
    with pytest.raises(RecipeError, match="the recipe says where images lie that are the party's own"):
        party_data.party_data(filled, "silo-00", parties / "silo-00" / "party.yaml")


# --- the command line -------------------------------------------------------------------------------------------------


def test_a_plain_run_says_what_is_missing_and_a_dry_one_what_is_not_known(parties: Path, tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(RecipeError, match=r"silo-01, silo-00, clinic: .* `coalface run … --party-data FILE`"):
        experiment.run(loader.load(path), tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()
    unknown = CliRunner().invoke(app, ["run", str(path), "method=fedavg", "--dry-run"])
    assert unknown.exit_code == 0, unknown.output
    assert "2 trainers with images of their own, whose number they say when they join" in unknown.output
    assert "class embeddings, as many as a party has identities" in unknown.output
    known = CliRunner().invoke(
        app, ["run", str(path), "method=fedavg", "--dry-run", "--party-data", str(parties / "own.yaml")]
    )
    assert known.exit_code == 0 and "20 training images, 8 to 12 a party" in known.output, known.output
    assert CliRunner().invoke(app, ["run", str(path), "--dry-run"]).output.count("1 validator") == 1
    wired = CliRunner().invoke(app, ["messages", "fedavg", "--recipe", str(path)])
    assert wired.exit_code == 0 and "backbone" in wired.output


def told(file: Path, *more: str) -> tuple[int, str]:
    """Exit status and lines of `coalface party check`."""
    found = CliRunner().invoke(app, ["party", "check", str(file), *more])
    return found.exit_code, found.output


def test_a_party_is_told_what_is_found_before_it_starts(parties: Path, tmp_path: Path) -> None:
    path = written(tmp_path, data={"size": 48, "min_images": 3})
    shutil.copytree(parties / "silo-00", tmp_path / "silo-00")
    faces, file = tmp_path / "silo-00" / "faces", tmp_path / "silo-00" / "party.yaml"
    for number in (2, 3):
        (faces / "Cydonia" / f"Cydonia_{number:04d}.png").unlink()
    status, lines = told(file, "--recipe", str(path))
    assert status == 0 and "10 images of 3 identities" in lines
    assert "1 identity of fewer images than data.min_images=3 left out: Cydonia" in lines
    assert "shorter sides of 32 to 32 pixels, of 10 images looked at" in lines
    assert "10 of those are smaller than the recipe's 48 pixels" in lines
    assert "the server is told: silo-00, trainer, 8 images, 2 identities; no name and no image" in lines
    assert party_data.party_data(loader.load(path), "silo-00", file).members()["silo-00"].images == 8
    (faces / "Adalind" / "Adalind_0001.png").write_bytes(b"no image")
    status, lines = told(file)
    assert status == 1 and "Adalind_0001.png" in lines and "the server is told" not in lines


def test_a_party_is_told_what_of_its_folder_is_not_read(
    parties: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(parties / "silo-00", tmp_path / "silo-00")
    (tmp_path / "silo-00" / "faces" / "Adalind" / "1.heic").write_bytes(b"x")
    file, unread = tmp_path / "silo-00" / "party.yaml", "(.heic 1): Adalind/1.heic"
    status, lines = told(file)
    assert status == 0 and unread in lines
    process.take(written(tmp_path), {"party": "silo-00", "home": str(tmp_path / "home"), "data": str(file)}, {})
    assert [unread in record.getMessage() for record in caplog.records] == [True]


def test_what_keeps_a_party_from_taking_part_is_told_to_it(parties: Path, tmp_path: Path) -> None:
    path, file = written(tmp_path), tmp_path / "party.yaml"
    status, lines = told(parties / "clinic" / "party.yaml", "--recipe", str(path))
    assert status == 0 and "20 pairs of 16 images" in lines, lines
    for text, said in (
        ("{data: {kind: folder, path: nowhere}}", "nowhere is not there: mend its path in"),
        ("{name: silo-00, role: validator}", "silo-00 is a validator by .* and a trainer by the recipe"),
        ("{name: silo-00, role: trainer}", "silo-00: its file does not say where its images lie"),
        ("{name: silo-09}", "party 'silo-09' is none of this run: silo-01, silo-00, clinic"),
    ):
        file.write_text(text)
        status, lines = told(file, "--recipe", str(path))
        assert status == 1 and re.search(said, lines), lines
    file.write_text("{role: trainer}")
    unnamed = CliRunner().invoke(app, ["party", "check", str(file), "--recipe", str(path)])
    assert isinstance(unnamed.exception, RecipeError) and "does not say which party it is of" in str(unnamed.exception)


def test_images_that_everybody_on_the_machine_can_read_are_told(parties: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faces = parties / "silo-01" / "faces"
    monkeypatch.setattr(partychecking, "_reached", lambda path: True)  # the folders of tests are their owner's alone
    faces.chmod(0o755)
    status, lines = told(parties / "silo-01" / "party.yaml")
    assert status == 1 and f"{faces} can be read by everybody on this machine: chmod o-rwx {faces}" in lines
    faces.chmod(0o750)
    assert told(parties / "silo-01" / "party.yaml")[0] == 0


# --- kits -------------------------------------------------------------------------------------------------------------


def federation(folder: Path, **changes: Any) -> Path:
    """A federation's file with a recipe of parties that bring their own images beside it."""
    written(folder)
    parties: dict[str, Any] = {
        "silo-00": {"role": "trainer", "faces": "/srv/hospital's faces"},
        "silo-01": {"role": "trainer"},
        "clinic": {"role": "validator", "pairs": {"kind": "bin", "path": "/srv/pairs.bin"}},
    }
    link = {"hosts": "127.0.0.1"}
    tree = {"name": "own", "superlink": link, "recipe": "recipe.yaml", "parties": loader.merged(parties, changes)}
    (folder / "federation.yaml").write_text(yaml.safe_dump(tree))
    return folder / "federation.yaml"


def test_a_kit_says_what_its_party_is_and_where_its_images_lie(tmp_path: Path) -> None:
    kits = provisioning.make(federation(tmp_path), tmp_path / "kits", NOW)
    files = {name: party_file.read(kits / "parties" / name / "party.yaml") for name in PEOPLE}
    first = files["silo-00"].data
    assert first is not None and (first.kind, first.path) == ("folder", "/srv/hospital's faces")
    assert (files["silo-01"].role, files["silo-01"].data) == ("trainer", None)
    clinic = files["clinic"]
    assert clinic.role == "validator" and clinic.pairs is not None and clinic.pairs.path == "/srv/pairs.bin"
    assert "# data: {kind: folder" in (kits / "parties" / "silo-01" / "party.yaml").read_text()
    assert not [path for path in (kits / "operator").rglob("*") if path.is_file() and b"/srv" in path.read_bytes()]
    assert verify.check(kits, NOW) == []
    place = kits / "parties" / "silo-00" / "party.yaml"
    shutil.copy(kits / "parties" / "clinic" / "party.yaml", place)
    assert verify.check(kits, NOW) == [
        "parties/silo-00/party.yaml is that of clinic: make new kits and hand them out",
        "parties/silo-00/party.yaml says validator, and federation.yaml trainer: mend one of them",
    ]
    place.write_text("{rol: trainer}")
    (fault,) = verify.check(kits, NOW)
    assert "parties/silo-00/party.yaml cannot be read" in fault and "did you mean role" in fault


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"silo-02": {"role": "trainer"}}, "parties.silo-02 is a trainer, but the recipe's data.parties has no"),
        ({"silo-01": {"faces": {"kind": "folder", "paht": "x"}}}, "parties.silo-01.faces.paht is not .* path"),
        ({"silo-01": {"faces": {"kind": "joined"}}}, "parties.silo-01: data.kind: a party's images are of kind"),
        ({"silo-01": {"pairs": {"kind": "bin", "path": "x"}}}, "parties.silo-01: pairs: a trainer has none"),
    ],
)
def test_a_federation_that_does_not_fit_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=said):
        provisioning.make(federation(tmp_path, **changes), tmp_path / "kits", NOW)
    assert not (tmp_path / "kits").exists()


def test_what_a_party_says_it_has_is_shown_and_counts_up_to_a_bound(parties: Path, tmp_path: Path) -> None:
    path = written(tmp_path)
    local = party_file.filled(loader.load(path), party_file.read_all(parties / "own.yaml"))
    assert round_policy(local).max_share == MAX_SHARE
    assert round_policy(local).max_update_norm == MAX_UPDATE_NORM == 5
    assert round_policy(loader.parse({})).max_share is None
    assert round_policy(loader.parse({})).max_update_norm == 30
    assert round_policy(loader.parse({"engine": {"max_share": 0.3}})).max_share == 0.3
    said = status.image_counts({n: Member("trainer", i, 2) for n, i in {"a": 1, "b": 1, "c": 98}.items()}, 0.5)
    assert said[2] == "c trainer 98 images of 2 identities, 98 % of all"
    assert len(said) == 4 and "c has 98 % of all" in said[3] and "engine.max_share" in said[3]
    assert len(status.image_counts({n: Member("trainer", 5, 2) for n in "abc"}, 0.5)) == 3
