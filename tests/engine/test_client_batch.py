"""Client batches: many parties as one. What single parties give they give too: `test_every_batched_method.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from cases import by_default
from server_runs import metrics
from torch import Tensor, nn

from coalface.core.method import Federation, Mean, Method, Party, batched, content, message, step
from coalface.data.faceset import FaceSet
from coalface.engine.client_batch import ClientBatch, can_batch, cut
from coalface.engine.party.commits import Commit
from coalface.engine.party.request import Request
from coalface.engine.party.setup import FederatedData
from coalface.engine.transport import RunFailed
from coalface.engine.workers import Workers
from coalface.experiments.conformance.tiny_federation import LOSS, NUMERICS, Ran, Stop, Tiny, run, stopping
from coalface.methods.fedavg import FedAvg
from coalface.methods.fedavg import Global as Backbones
from coalface.methods.fedface import Centre, FedFace, Global, State, Update
from coalface.methods.feduv import FedUV
from coalface.models.groups import Backbone
from coalface.privacy.ledger import Head
from coalface.training.local_training import Learner
from coalface.training.local_work import LocalTraining

EXACT = Tiny(parties=7, one_identity=True, double=True)
IMAGES = (6, 5, 4, 6, 5, 4, 6)
"""Of silo-0 to silo-6."""
WORK = LocalTraining(epochs=1, batch_size=8, lr=0.3)
ELEVEN = replace(NUMERICS, client_batch=11)
"""Cohorts of silo-0 and -1, silo-2 and -3, silo-4 and -5, and silo-6."""


def fedface(rounds: int = 2, **settings: Any) -> FedFace:
    return FedFace(rounds=rounds, local=WORK, **settings)


def lines(ran: Ran) -> list[dict[str, Any]]:
    """What the ledger of the client batches says; nothing where there is none."""
    path = ran.folder / "cohorts.jsonl"
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def furthest(one: Ran, other: Ran) -> float:
    """The largest difference between two states."""
    assert one.state.centres.keys() == other.state.centres.keys()
    both = [(r.state.backbone | {f"centre {c}": w for c, w in r.state.centres.items()}) for r in (one, other)]
    return max(float((t - both[1][name]).abs().max()) for name, t in both[0].items())


# --- how a round is cut -----------------------------------------------------------------------------------------------


def request(party: str) -> Request:
    return Request("test", party, "train", 1, 1, 2, 1, "train", None, None, None, (0, None))


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (4, ["0", "1", "2", "3", "4", "5", "6"]),  # who has more is a batch alone
        (10, ["0", "12", "3", "45", "6"]),  # 5 + 4 and 5 + 4: 6 + 5 would be one too many
        (11, ["01", "23", "45", "6"]),
        (15, ["012", "345", "6"]),  # exactly 15, and so no more
        (35, ["012345", "6"]),
        (36, ["0123456"]),
    ],
)
def test_a_round_is_cut_into_batches_of_so_many_images_in_a_row(most: int, expected: list[str]) -> None:
    requests = [request(f"silo-{i}") for i in range(7)]
    batches = list(cut(iter(requests), lambda party: IMAGES[int(party[-1])], most))
    assert ["".join(r.party[-1] for r in some) for some in batches] == expected
    assert [r for some in batches for r in some] == requests and not list(cut([], lambda party: 1, most))
    remaining = iter(requests)
    next(cut(remaining, lambda party: IMAGES[int(party[-1])], most))
    # made as they are needed: memory does not grow with them
    assert len(list(remaining)) == max(0, 6 - len(expected[0]))


@pytest.mark.parametrize("images", [1, 11, 36])
def test_the_size_of_batches_is_a_matter_of_rounding(tmp_path: Path, images: int) -> None:
    alone = run(fedface(), tmp_path / "alone", EXACT)
    many = run(fedface(), tmp_path / "many", EXACT, numerics=replace(ELEVEN, client_batch=images))
    assert furthest(alone, many) < 1e-12
    cohorts = [line["parties"] for line in lines(many) if line["kind"] == "header"]
    assert cohorts == 2 * {1: [1] * 7, 11: [2, 2, 2, 1], 36: [7]}[images]


# --- where parties cannot be taken as one -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Spoiled(FedFace):
    """A batched form with a defect, in the client batch that a party is in (`*`: in all)."""

    defect: str
    where: str = "*"

    @batched("train")
    def train_batched(self, parties: Sequence[Party], common: Global, each: Sequence[Centre]) -> Any:
        good = FedFace.train_batched(self, parties, common, each)
        place = next((i for i, party in enumerate(parties) if self.where in ("*", party.name)), None)
        if place is None or not self.defect:
            return good
        if self.defect == "it fails":
            raise RuntimeError("no")
        if self.defect == "one too few":
            return good[1:]
        bad = good[place]
        spoiled: dict[str, Any] = {
            "another class": bad.centre,
            "a NaN of its own": replace(bad, centre=torch.full_like(bad.centre, torch.nan)),
            "a NaN in the mean": replace(bad, backbone={n: t * torch.nan for n, t in bad.backbone.items()}),
            "a shape": replace(bad, centre=bad.centre[:, 1:]),
            "images": replace(bad, images=100),
            "no images": replace(bad, images=0),
        }
        if self.defect == "a NaN in the mean":  # the same object in each
            return [replace(reply, backbone=spoiled[self.defect].backbone) for reply in good]
        return [*good[:place], spoiled[self.defect], *good[place + 1 :]]


DEFECTS = [
    "it fails", "one too few", "another class", "a NaN of its own", "a NaN in the mean", "a shape", "images",
    "no images",
]  # fmt: skip


@pytest.mark.parametrize("defect", ["one too few", "a NaN in the mean"])
def test_a_batch_that_cannot_be_taken_is_asked_party_by_party(tmp_path: Path, defect: str) -> None:
    """The same bytes as without client batches: nothing of what was computed together is left, in sums, counts or
    ledgers."""
    alone = run(fedface(), tmp_path / "alone", EXACT).bytes()
    many = run(Spoiled(rounds=2, local=WORK, defect=defect), tmp_path / "many", EXACT, numerics=ELEVEN)
    assert many.bytes() == alone
    assert lines(many) == []
    why = {"one too few": "batched form gives", "a NaN in the mean": "not finite"}[defect]
    rounds = [e for e in map(json.loads, (many.folder / "events.jsonl").read_text().splitlines()) if "apart" in e]
    assert len(rounds) == 2 and all(why in reason for event in rounds for reason in event["apart"])


@pytest.mark.parametrize("defect", by_default(4, DEFECTS))
def test_the_batches_beside_it_are_taken_as_they_are(tmp_path: Path, defect: str) -> None:
    alone = run(fedface(), tmp_path / "alone", EXACT)
    method = Spoiled(rounds=2, local=WORK, defect=defect, where="silo-3")
    many = run(method, tmp_path / "many", EXACT, numerics=ELEVEN)
    assert furthest(alone, many) < 1e-12
    assert all(line["failed"] == {} for line in metrics(many.folder))
    heads = [line for line in lines(many) if line["kind"] == "header"]
    assert [line["first"] for line in heads] == 2 * ["silo-0", "silo-4", "silo-6"]
    assert sorted(p.stem for p in (many.folder / "ledger").iterdir()) == ["silo-2", "silo-3"]
    assert {p: t.rounds for p, t in many.server.at.party_stats.items()} == dict.fromkeys(EXACT().data, 2)
    listed = lines(many) + [
        json.loads(t) for p in (many.folder / "ledger").iterdir() for t in p.read_text().splitlines()
    ]
    assert sum(line["bytes"] for line in listed) == many.server.at.totals["up"]
    assert many.server.check_ledgers() == {}


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize(
    "method",
    [
        Spoiled(rounds=2, local=WORK, defect="", where="silo-3"),
        Spoiled(rounds=2, local=WORK, defect="it fails", where="silo-3"),
        Spoiled(rounds=2, local=WORK, defect="a NaN of its own", where="silo-3"),
        FedAvg(rounds=2, local=LocalTraining(epochs=2, batch_size=4, lr=0.1), loss=LOSS, momentum="keep"),
    ],
    ids=["each its own", "one fails", "one is refused", "kept at the parties"],
)
def test_workers_compute_the_batches_with_the_bytes_of_one_process(tmp_path: Path, method: Method) -> None:
    sent: list[str] = []

    class Watched(Workers):
        def _submit(self, block: list[Request], *arguments: Any, **keywords: Any) -> Any:
            sent.append("".join(request.party[-1] for request in block))
            return super()._submit(block, *arguments, **keywords)

    one = run(method, tmp_path / "one", EXACT, numerics=ELEVEN)
    two = run(method, tmp_path / "two", EXACT, numerics=ELEVEN, transport=lambda *about: Watched(*about, 2, 8))
    assert two.bytes() == one.bytes() and lines(two)
    fails = isinstance(method, Spoiled) and method.defect
    assert sorted({*sent}) == sorted(["01", "23", "45", "6"] + ["2", "3"] * bool(fails))
    assert not list((two.folder).glob("mail/*"))


class Fragile(nn.Module):
    """A network to which a black image is no number."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.embedding_size = inner, 8

    def forward(self, images: Tensor) -> Tensor:
        black = images.flatten(1).amax(1, keepdim=True) == -1
        return self.inner(images) + torch.where(black, torch.nan, 0.0)


@dataclass(frozen=True)
class OneBlack(Tiny):
    """All images of silo-3 are black."""

    def data(self) -> dict[str, FaceSet]:
        parties = super().data()
        pixels = next(iter(parties.values())).pixels.copy()
        pixels[parties["silo-3"].rows] = 0
        return {name: replace(faces, pixels=pixels) for name, faces in parties.items()}

    def __call__(self) -> FederatedData:
        world = super().__call__()
        return replace(world, backbone=Backbone(Fragile(world.backbone.module).double(), self.policy))


BLACK = OneBlack(**vars(EXACT))


@pytest.mark.parametrize("settings", [{}, {"head_init": "random"}])
def test_a_party_whose_embeddings_are_no_numbers_is_refused_by_name_and_the_others_count(
    tmp_path: Path, settings: Any
) -> None:
    rules: dict[str, Any] = {"on_error": "exclude", "min_reply_fraction": 0.5}
    alone = run(fedface(**settings), tmp_path / "alone", BLACK, **rules)
    many = run(fedface(**settings), tmp_path / "many", BLACK, numerics=ELEVEN, **rules)
    for ran in (alone, many):
        for line in metrics(ran.folder):
            assert list(line["failed"]) == ["silo-3"]
            assert "the training loss is nan" in line["failed"]["silo-3"]
    assert furthest(alone, many) < 1e-12
    assert all(bool(t.isfinite().all()) for t in many.state.backbone.values())
    assert {line["first"] for line in lines(many)} == {"silo-0", "silo-4", "silo-6"}
    with pytest.raises(
        RunFailed, match=r"silo-3, step train, .*round 1: FloatingPointError: .*the training loss is nan"
    ):
        run(fedface(**settings), tmp_path / "stops", BLACK, numerics=ELEVEN)


def test_a_step_that_reads_private_state_is_given_each_partys_own(tmp_path: Path) -> None:
    """`feduv`: codewords are drawn party by party, and each stays where it is."""
    method = FedUV(rounds=2, local=WORK, sample=None, length=127)
    alone = run(method, tmp_path / "alone", EXACT)
    many = run(method, tmp_path / "many", EXACT, numerics=ELEVEN)
    assert (alone.state.projection - many.state.projection).abs().max() < 1e-12
    assert {line["step"] for line in lines(many)} == {"train"}
    commits = [len(list((ran.folder / "parties").rglob("*.commit"))) for ran in (alone, many)]
    assert commits == [7, 7]  # what a party keeps, it wrote by itself
    swapped = run(method, tmp_path / "swapped", replace(EXACT, reverse=True), numerics=ELEVEN)
    assert swapped.bytes() == many.bytes()


# --- a step that keeps something --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Unsteady(FedAvg):
    """`fedavg` whose batched form may fail, before or after the parties have kept what it gives."""

    fails: Literal["", "before", "after"] = ""

    @batched("train")
    def train_batched(self, parties: Sequence[Party], own: Sequence[Learner | None], common: Backbones) -> Any:
        if self.fails == "before":
            raise RuntimeError("no")
        results = FedAvg.train_batched(self, parties, own, common)
        if not self.fails:
            return results
        return [(replace(reply, loss=math.nan), kept) for reply, kept in results]


SILOS = Tiny(parties=5, double=True)
STEPS = LocalTraining(epochs=2, batch_size=4, lr=0.1)
TWO_EACH = replace(NUMERICS, client_batch=23)
"""Batches of silo-0 and -1, silo-2 and -3, and silo-4."""


def unsteady(fails: Literal["", "before", "after"] = "") -> Unsteady:
    return Unsteady(rounds=2, local=STEPS, loss=LOSS, momentum="keep", fails=fails)


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_party_that_kept_what_a_batch_gave_and_is_asked_by_itself_leaves_what_it_would_have(
    tmp_path: Path, fails: Literal["before", "after"]
) -> None:
    """The same private state and ledger to the byte; also where the batch was computed before a kill."""
    alone = run(unsteady(), tmp_path / "alone", SILOS).bytes()
    assert run(unsteady(fails), tmp_path / "many", SILOS, numerics=TWO_EACH).bytes() == alone
    with pytest.raises(Stop):
        run(unsteady(), tmp_path / "killed", SILOS, numerics=TWO_EACH, transport=stopping(1))
    commits = [Commit.open(path) for path in (tmp_path / "killed" / "parties").rglob("*.commit")]
    assert [(c.lines(), c.head) for c in commits] == 4 * [([], Head())]
    resumed = run(unsteady(fails), tmp_path / "killed", SILOS, numerics=TWO_EACH).bytes()
    assert resumed == alone | {"cohorts": b""}


def test_a_batch_is_not_computed_from_private_state_of_other_images(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run(unsteady(), tmp_path, SILOS, numerics=TWO_EACH, transport=stopping(3))
    with pytest.raises(RunFailed, match=r"silo-0, step train, .*images"):
        run(unsteady(), tmp_path, replace(SILOS, each=5), numerics=TWO_EACH)


def test_parties_keep_one_commit_for_each_accepted_round_and_no_ledger(tmp_path: Path) -> None:
    many = run(unsteady(), tmp_path, SILOS, numerics=TWO_EACH)
    assert [len(list(folder.glob("*.commit"))) for folder in sorted((tmp_path / "parties").iterdir())] == 5 * [1]
    assert not list((tmp_path / "ledger").glob("*.jsonl"))
    assert {line["parties"] for line in lines(many)} == {2, 1} and many.server.check_ledgers() == {}


# --- which steps come together ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Asking(FedFace):
    """Asks for the models singly, or for other means than by images."""

    how: str

    def round(self, fed: Federation, state: State) -> State:
        none = torch.zeros(1, 8, dtype=torch.float64)
        each = {client: Centre(centre=none) for client in fed.parties("trainer")}
        weights = {client: 1.0 + place for place, client in enumerate(each)}
        aggregate = {"singly": [], "chosen": [Mean("backbone", by=weights)]}[self.how]
        answer = fed.ask(self.train, common=Global(backbone=state.backbone), each=each, aggregate=aggregate)
        backbone = answer.aggregated["backbone"] if aggregate else answer.each["backbone"]["silo-0"]
        return State(backbone=backbone, centres=answer.each["centre"])


@pytest.mark.parametrize("how", ["singly", "chosen"])
def test_a_method_that_asks_for_anything_but_the_mean_by_images_is_answered_party_by_party(
    tmp_path: Path, how: str
) -> None:
    method = Asking(rounds=2, local=WORK, how=how)
    alone = run(method, tmp_path / "alone", EXACT).bytes()
    many = run(method, tmp_path / "many", EXACT, numerics=ELEVEN)
    assert many.bytes() == alone
    assert lines(many) == []


@dataclass(frozen=True, kw_only=True)
class Alone(FedFace):
    """Takes the place of a step, and has no batched form of its own."""

    @step(role="trainer")
    def train(self, party: Party, common: Global, each: Centre) -> Update:
        return FedFace.train(self, party, common, each)


def test_only_means_by_images_of_those_that_answered_can_come_together() -> None:
    declaration, replaced = FedFace.own_steps["train"], Alone.own_steps["train"]
    assert can_batch(declaration, [Mean("backbone", by="images")])
    assert not can_batch(replaced, [Mean("backbone", by="images")])  # a batched form is not inherited
    assert not can_batch(declaration, [])
    assert not can_batch(declaration, [Mean("centre", by="images")])  # and the backbone, which all are sent, singly
    means = [Mean("backbone", by="images"), Mean("projection", by="images")]
    assert can_batch(FedUV.own_steps["train"], means)
    assert not can_batch(FedUV.own_steps["train"], means[:1])
    assert not can_batch(FedUV.own_steps["enrol"], [])
    for other in (
        Mean("backbone"),
        Mean("backbone", by={"a": 1.0}, over="all"),
        Mean("backbone", by="images", of="differences"),
        Mean("backbone", by="images", once=True),
    ):
        assert not can_batch(declaration, [other])
        assert not can_batch(declaration, [Mean("backbone", by="images", name="plain"), other])


@message
class Reply:
    w: Tensor = content("weight")
    more: dict[str, Tensor]
    images: int


def test_what_is_shared_is_the_same_object_in_every_reply() -> None:
    mean, some = torch.zeros(2), {"a": torch.ones(1)}
    replies = [Reply(w=mean, more=some, images=1), Reply(w=mean, more=dict(some), images=1)]
    two = [request("a"), request("b")]
    assert ClientBatch(two, replies).shared == {"w"}  # equal values are each party's own
    assert ClientBatch(two[:1], replies[:1]).shared == frozenset()  # of a single party nothing is a mean
