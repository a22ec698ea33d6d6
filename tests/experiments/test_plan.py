from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import toys
from tinydomains import two_domains
from tinyruns import Silent, picture_folders, run, tiny
from torch import nn

from coalface.core.errors import DataError
from coalface.core.method import Federation, Method, Models, Party, Tensors, free, message, state, step
from coalface.experiments import run as experiment
from coalface.experiments.plan import messages, on_paper, preflight
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.methods import METHODS
from coalface.models import Backbone


class Nothing(nn.Identity):
    """A network without tensors."""

    embedding_size = 8


def plan(**changes: object) -> messages.Plan:
    recipe = tiny(**changes)
    names = [f"silo-{i:02d}" for i in range(1 if METHODS[recipe.method].pools else 2)]
    network = first_backbone(recipe)
    return on_paper.plan(recipe.build_method(), {"trainer": names}, network)


@pytest.mark.parametrize("method", ["fedavg", "solo", "scaffold", "mimelite", "centralized"])
def test_the_plan_says_the_bytes_that_a_run_sends(method: str, tmp_path: Path) -> None:
    folder, planned = run(tmp_path / "run", method=method, rounds=1), plan(method=method)
    (metrics,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    asked = metrics["asked"]
    assert planned.parties == {"train": asked}
    assert planned.bytes("down", planned.stages[0]) == metrics["bytes_down"]
    # Of images and loss the digits are not known; headers are padded to 8 bytes.
    assert abs(metrics["bytes_up"] - planned.bytes("up", planned.stages[0])) <= 8 * asked
    assert planned.about("up") and not planned.about("down")


def test_a_message_without_plain_numbers_is_planned_to_the_byte() -> None:
    planned = on_paper.plan(toys.Moves(note=True), {"trainer": ["silo-0", "silo-1"]}, Backbone(Nothing()))
    headers = {(s.step, s.direction): s for s in planned.sent if s.field == "header"}
    assert not headers["remember", "down"].about and all(not s.about for s in planned.sent if s.field != "header")


@message
class Start:
    """Down; the velocity is None in the first round."""

    values: Tensors
    velocity: Tensors | None


@message
class Step:
    """Up."""

    values: Tensors
    velocity: Tensors = free("weight")


@message
class Checked:
    """Up, where the velocity must look like the one that was sent."""

    values: Tensors
    velocity: Tensors


@state
class Kept:
    """At the server."""

    values: Tensors
    velocity: Tensors | None


@dataclass(frozen=True, kw_only=True)
class Momentum(Method):
    """A server whose velocity comes after the first round."""

    title: ClassVar[str] = "has a velocity from the second round on"
    paper: ClassVar[str] = "none"
    setting: ClassVar[str] = "any"

    rounds: int = 3
    is_free: bool = True

    def init(self, fed: Federation) -> Kept:
        return Kept(values={"a": torch.zeros(3)}, velocity=None)

    def round(self, fed: Federation, state: Kept) -> Kept:
        begin = Start(values=state.values, velocity=state.velocity)
        fed.ask(self.free_step if self.is_free else self.checked_step, common=begin)
        return Kept(values=state.values, velocity=state.values)

    @step(role="trainer")
    def free_step(self, party: Party, common: Start) -> Step:
        return Step(values=common.values, velocity=common.values)

    @step(role="trainer")
    def checked_step(self, party: Party, common: Start) -> Checked:
        return Checked(values=common.values, velocity=common.values)

    def models(self, fed: Federation, state: Kept) -> Models:
        return Models(shared=state.values)


def test_a_field_that_is_none_at_first_is_planned_with_its_tensors() -> None:
    planned = on_paper.plan(Momentum(), {"trainer": ["silo-0"]}, Backbone(Nothing()))
    (velocity,) = [sent for sent in planned.sent if (sent.direction, sent.field) == ("down", "velocity")]
    assert velocity.bytes == 12 and "none in round 1" in velocity.kind
    once = on_paper.plan(Momentum(rounds=1), {"trainer": ["silo-0"]}, Backbone(Nothing()))
    assert [sent.bytes for sent in once.sent if (sent.direction, sent.field) == ("down", "velocity")] == [0]


def test_a_reply_that_must_look_like_none_is_refused_before_the_run() -> None:
    with pytest.raises(ValueError, match=r"Checked.velocity .*None in round 1.*free\(…\)"):
        on_paper.plan(Momentum(is_free=False), {"trainer": ["silo-0"]}, Backbone(Nothing()))


def test_the_plan_says_what_the_ledgers_say(fedavg_run: Path) -> None:
    lines = [json.loads(line) for line in (fedavg_run / "ledger" / "silo-00.jsonl").read_text().splitlines()]
    first = [line for line in lines if line["round"] == 1]
    up = {s.field: s for s in plan().sent if s.direction == "up"}
    tensors = [line for line in first if line["name"].startswith("backbone/")]
    assert up["backbone"].bytes == sum(line["bytes"] for line in tensors)
    assert up["backbone"].tensors == len(tensors)
    assert {line["name"].partition("/")[0] for line in first} <= set(up)  # nothing leaves that the plan does not name


def test_what_is_aggregated_and_who_it_is_for_is_told() -> None:
    sent = {(s.direction, s.field): s for s in plan().sent}
    assert sent["up", "backbone"].kind == "tensors, aggregated"
    assert (sent["down", "backbone"].to, sent["up", "backbone"].to) == ("all alike", "the server")
    assert sent["up", "loss"].kind == "float" and sent["up", "images"].kind == "int"
    assert [s.field for s in plan(method="solo").sent] == ["images", "loss", "header"]


def test_every_private_field_stays_and_none_is_sent() -> None:
    stays, sent = plan().stays, {s.field for s in plan().sent}
    assert {"Learner.head", "Learner.velocity"} <= set(stays)
    assert not {field.rpartition(".")[2] for field in stays} & sent


def test_posts_components_and_own_messages_are_followed() -> None:
    members = {"trainer": ["silo-0", "silo-1"], "validator": ["judge-0"]}
    planned = on_paper.plan(toys.Lagged(), members, Backbone(Nothing()))
    steps = {s.step: s.role for s in planned.sent}
    assert steps["validation.score"] == "validator"
    assert planned.parties["validation.score"] == 1
    toys_moves = on_paper.plan(toys.Moves(note=True), {"trainer": ["silo-0", "silo-1"]}, Backbone(Nothing()))
    notes = {(s.direction, s.field): s for s in toys_moves.sent if s.step == "remember"}
    assert notes["down", "amount"].to == "each its own"
    assert notes["up", "drawn"].bytes is None  # of a shape that only the method knows


def test_a_sample_counts_the_parties_of_a_round() -> None:
    recipe = tiny(data={"scenario": "devices"}, methods={"fedavg": {"sample": 3}})
    assert len(preflight.check(recipe)) == 8
    assert preflight.plan(recipe).parties == {"train": 3}
    text = preflight.describe(recipe)
    assert "fedavg over 8 parties (3 a round), 2 rounds, seed 0" in text


def test_the_dry_run_reads_well() -> None:
    text = preflight.describe(tiny(engine={"workers": 2, "checkpoint_every": 5}))
    assert text.startswith("tiny: fedavg over 2 parties, 2 rounds, seed 0\n\nfedavg with cnn-small at 32×32, per party")
    for line in (
        "stays at the party: Learner.head",
        "the server asks for means only of: backbone",
        "bytes a round: down 2.1 MB, up about 2.1 MB; in all: down 4.19 MB, up about 4.19 MB",
        "2 replies in flight (2.1 MB)",  # not eight: there are two parties
        "32 training images, 16 a party, 1 list",
    ):
        assert line in text


def test_two_means_of_one_field_are_both_named() -> None:
    text = preflight.describe(tiny(method="scaffold"))
    assert "the server asks for means only of: backbone, backbone (as drift)" in text


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with identity folders and a pair list; what would be packed goes below the test's own folder."""
    picture_folders(tmp_path / "data" / "faces", [f"p{i}" for i in range(9)])
    (tmp_path / "data" / "pairs.txt").write_text("1\np0\t1\t2\np0\t1\tp1\t1\n")
    monkeypatch.setenv("COALFACE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    return tmp_path


FOLDER = {"kind": "folder", "path": "faces"}
OF_FOLDER = {"data": {"faces": FOLDER, "hold_out": 4}}


def test_a_dry_run_wants_the_data_root_and_decodes_nothing(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folders / "data" / "faces" / "p0" / "p0_0001.png").write_bytes(b"no image")
    text = preflight.describe(tiny(**OF_FOLDER))
    assert "20 training images, 8 to 12 a party" in text and not (folders / "cache").exists()
    with pytest.raises(DataError, match="`coalface data inspect ") as error:
        _ = Parts(tiny(**OF_FOLDER)).data
    assert error.value.where.endswith("p0_0001.png")
    monkeypatch.delenv("COALFACE_DATA")
    with pytest.raises(ValueError, match="COALFACE_DATA"):
        preflight.describe(tiny(**OF_FOLDER))


@pytest.mark.parametrize("method", ["fedavg", "solo"])
def test_a_dry_run_deals_and_evaluates_as_a_run_does(method: str, folders: Path) -> None:
    recipe = tiny(method=method, **OF_FOLDER)
    dryly = preflight.check(recipe)
    really = Parts(recipe).data.data
    assert {n: (f.names, len(f)) for n, f in dryly.items()} == {n: (f.names, len(f)) for n, f in really.items()}


@pytest.mark.parametrize(("checkpoint", "keep"), [(1, 1), (2, 1), (9, 2)])
def test_the_versions_on_disk_are_as_many_as_a_party_comes_to_keep(checkpoint: int, keep: int, tmp_path: Path) -> None:
    class Counts(Silent):
        most = 0

        def round(self, record: dict[str, object]) -> None:
            party = tmp_path / "run" / "parties" / "silo-00"
            self.most = max(self.most, len(list(party.glob("*.commit"))))

    recipe, view = (
        tiny(rounds=4, evaluation={"pairs": {}}, engine={"checkpoint_every": checkpoint, "keep_checkpoints": keep}),
        Counts(),
    )
    experiment.run(recipe, tmp_path / "run", view)
    assert f"up to {view.most} versions a party" in preflight.describe(recipe)


def test_a_plan_of_stages_says_the_bytes_of_a_whole_run(tmp_path: Path) -> None:
    recipe = two_domains({"rounds": 3, "methods": {"fedfr-uda": {"pretrain": 2}}})
    experiment.run(recipe, tmp_path / "run", Silent(), report=False)
    sent = json.loads((tmp_path / "run" / "summary.json").read_text())["bytes"]
    planned = preflight.plan(recipe)
    assert [(stage.name, stage.rounds) for stage in planned.stages] == [("pretrain", 2), ("label", 1), ("train", 3)]
    assert planned.rounds == 6
    for way in ("down", "up"):  # headers are padded to 8 bytes, and say numbers of some digits more or less
        assert abs(planned.in_all(way) - sent[way]) <= 8 * (2 * 1 + 1 * 3 + 3 * 3)
    text = preflight.describe(recipe)
    assert "fedfr-uda over 3 parties, 6 rounds (pretrain 2, label 1, train 3), seed 0" in text
    assert "one trainer/source, one round of pretrain, both ways" in text


def test_a_step_is_told_to_be_of_those_whom_it_asks() -> None:
    roles = {method: {s.role for s in preflight.plan(two_domains({"method": method})).sent if s.step == "train"}
             for method in ("fedfr-uda", "finetune-pseudo")}  # fmt: skip
    assert roles == {"fedfr-uda": {"trainer"}, "finetune-pseudo": {"trainer/target"}}


def test_labels_by_a_model_that_nobody_trained_are_warned_of(tmp_path: Path) -> None:
    notes: list[str] = []
    view = Silent()
    view.note = notes.append  # type: ignore[method-assign]
    experiment.run(two_domains(), tmp_path / "run", view, report=False)
    warned = "the targets cluster their images by a model that nobody has trained"
    assert sum(warned in line for line in notes) == 1
    assert warned in preflight.describe(two_domains())
    trained = two_domains({"methods": {"fedfr-uda": {"pretrain": 1}}})
    assert warned not in preflight.describe(trained)
    assert warned not in preflight.describe(two_domains({"pretrain": {"method": "centralized", "rounds": 1}}))
