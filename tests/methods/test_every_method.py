"""The conformance table: what every registered method must do. A new method joins by being registered.

Where the settings at the top of `worlds.recipe` do not fit a method, it has a line in `worlds.OWN` or in `GAINS`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from cases import by_default
from torch import Tensor
from worlds import Ran, Stop, Tiny, recipe, run, stopping, workers

from coalface.core import codec
from coalface.core.method import Federation, Mean, Method, Party, Tensors, free, message, step
from coalface.data.augment import to_tensor
from coalface.engine.faults import COUNT_FAULTS, TENSOR_FAULTS, SimulatedFaults
from coalface.engine.local import InProcess
from coalface.engine.party.commits import Commit
from coalface.engine.party.executor import Request
from coalface.engine.run_state import Numerics
from coalface.engine.transport import Reply, RunFailed
from coalface.methods import METHODS, fedfr_joint, feduv
from coalface.methods.fedavg import FedAvg, Global, State
from coalface.training.clustering.pseudo_labels import Labelling
from coalface.training.local_training import Learner, learn
from coalface.training.local_work import LocalTraining

GAINS: dict[str, float] = {"fedfr-uda": 0.1, "finetune-pseudo": 0.1}
"""How much better than the untrained model it must get, where that is not `GAIN`."""

CALM = LocalTraining(epochs=5, batch_size=8, lr=0.05, momentum=0.0)
"""For clients of one identity: with momentum their few images pull too far before the server sets them apart."""

LEARNING: dict[str, dict[str, Any]] = {
    "fedface": {"local": CALM},
    "fedaws": {"local": CALM},
    "fedfv": {"local": CALM},
    "feduv": {"local": LocalTraining(epochs=1, batch_size=8, lr=2.0, momentum=0.0), "rounds": 60, "length": 7},
    "fedfr-uda": {"pretrain": 20, "labelling": Labelling(clusters=2)},
    "finetune-pseudo": {"pretrain": 20, "labelling": Labelling(clusters=2)},
}
"""Settings with which a method has something to learn from, by its name."""

COLLAPSES = {"positive-only": "tests/methods/test_positive_only.py", "random-init": "tests/methods/test_random_init.py"}
"""Baselines that must not learn, and where it is held what becomes of them."""

GAIN = 0.15
"""Of the area under the ROC curve of genuine against impostor pairs; 0.5 is chance, the untrained model has 0.6."""

SLOW = (pytest.mark.slow, pytest.mark.ci)
THREE = ("scaffold", "fedface", "pfm-fv")
"""With state at both sides, with one identity a party, and with validators."""
a_method_of_each_kind = pytest.mark.parametrize(
    "name", [name if name in worlds.ONE_OF_A_KIND else pytest.param(name, marks=SLOW) for name in METHODS]
)
"""For what the engine does alike for all; the other methods are slow."""
three_methods = pytest.mark.parametrize(
    "name", [name if name in THREE else pytest.param(name, marks=SLOW) for name in METHODS]
)
"""For what costs several runs of each."""


def variants(name: str) -> tuple[Method, Tiny]:
    """The method with BatchNorm and, where it can, partly asked.

    BatchNorm is kept at the parties, but not where validators need it, nor where clients keep nothing.
    """
    fields = {f.name for f in METHODS[name].__dataclass_fields__.values()}  # type: ignore[attr-defined]
    method, build = recipe(name, **({"sample": 2} if "sample" in fields else {}))
    stateless = METHODS[name].one_identity or not any(d.keeps for d in METHODS[name].own_steps.values())
    shared = build.validators or stateless
    return method, replace(build, norm=True, policy="average" if shared else "local")


@dataclass
class Heard:
    """Every request and reply of a run, as bytes."""

    requests: list[tuple[Request, bytes, bytes]]
    replies: list[tuple[Request, bytes]]
    changed: list[str]


def listening(heard: Heard) -> type[InProcess]:
    """A transport that keeps what was sent, and notes where a step changed the message that it was given."""

    class Listening(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            def noted() -> Iterator[Request]:
                for request in requests:
                    sent = tuple(bytes(m.data) if m else b"" for m in (request.common, request.each))
                    heard.requests.append((request, *sent))
                    yield request

            for request, reply in super().exchange(noted()):
                _, common, each = heard.requests[-1]
                now = tuple(bytes(m.data) if m else b"" for m in (request.common, request.each))
                if now != (common, each):
                    heard.changed.append(f"{request.party}, step {request.step}, round {request.round}")
                assert not isinstance(reply, Exception), reply
                heard.replies.append((request, bytes(reply.data if isinstance(reply, codec.Encoded) else reply)))
                yield request, reply

    return Listening


def listened(method: Method, folder: Path, build: Tiny) -> tuple[Ran, Heard]:
    heard = Heard([], [], [])
    return run(method, folder, build, transport=listening(heard)), heard


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Ran, Heard]]:
    """The run of a method's variant that nobody disturbs, and what was said in it; made once for all who compare."""

    @functools.cache
    def ran(name: str) -> tuple[Ran, Heard]:
        method, build = variants(name)
        return listened(method, tmp_path_factory.mktemp(name), build)

    return ran


# --- 1 and 4: the same bits in other processes, with any number of workers, in any order ------------------------------


@three_methods
@pytest.mark.usefixtures("quick_workers")
def test_worker_processes_give_the_same_bits(name: str, tmp_path: Path, unbroken: Any) -> None:
    method, build = variants(name)
    alone, _ = unbroken(name)
    many = run(method, tmp_path / "many", build, transport=workers(2, window=3))
    assert many.bytes() == alone.bytes()
    assert {p: worlds.raw(m) for p, m in many.own_models().items()} == {
        p: worlds.raw(m) for p, m in alone.own_models().items()
    }


@a_method_of_each_kind
def test_the_order_of_registration_does_not_matter(name: str, tmp_path: Path, unbroken: Any) -> None:
    method, build = variants(name)
    assert run(method, tmp_path, replace(build, reverse=True)).bytes() == unbroken(name)[0].bytes()


@a_method_of_each_kind
def test_another_seed_gives_another_run(name: str, tmp_path: Path, unbroken: Any) -> None:
    method, build = variants(name)
    assert run(method, tmp_path, build, seed=1).bytes()["metrics"] != unbroken(name)[0].bytes()["metrics"]


@a_method_of_each_kind
def test_every_message_round_trips(name: str, unbroken: Any) -> None:
    method, heard = variants(name)[0], unbroken(name)[1]
    assert heard.replies
    for request, common, each in heard.requests:
        declared = method.steps[request.step][1]
        for data, cls in ((common, declared.common), (each, declared.each)):
            if data:
                assert cls is not None
                assert bytes(codec.encode(codec.decode(bytearray(data), cls)).data) == data
    for request, data in heard.replies:
        cls = method.steps[request.step][1].reply
        assert cls is not None
        assert bytes(codec.encode(codec.decode(bytearray(data), cls)).data) == data


@a_method_of_each_kind
def test_a_step_does_not_change_the_message_it_was_given(name: str, unbroken: Any) -> None:
    assert unbroken(name)[1].changed == []


# --- 2: stopped at any round and resumed ------------------------------------------------------------------------------


STOPS = {True: ((0.3, False), (0.6, True))}
"""Where a run is stopped, as a share of the answers, and whether replies were saved; the others are slow."""
STOPS[False] = (*((share, saved) for share in (0.0, 0.99) for saved in (True, False)), (0.3, True), (0.6, False))


@a_method_of_each_kind
@pytest.mark.parametrize("some", [True, pytest.param(False, marks=SLOW)])
def test_stopped_and_resumed_is_never_stopped(name: str, tmp_path: Path, some: bool, unbroken: Any) -> None:
    method, build = variants(name)
    ran, heard = unbroken(name)
    whole, models, count = ran.bytes(), {p: worlds.raw(m) for p, m in ran.own_models().items()}, len(heard.replies)
    for share, save_replies in STOPS[some]:
        case = f"stopped after {share:g} of the answers, {'with' if save_replies else 'without'} saved replies"
        place = tmp_path / case
        with pytest.raises(Stop):
            stops = stopping(int(share * count))
            run(method, place, build, checkpoint_every=2, save_replies=save_replies, transport=stops)
        resumed = run(method, place, build, checkpoint_every=2, save_replies=save_replies)
        assert resumed.bytes() == whole, case
        assert {p: worlds.raw(m) for p, m in resumed.own_models().items()} == models, case


# --- 3: what stays, stays ---------------------------------------------------------------------------------------------

CANARY = bytes([7, 250, 13, 199, 64, 128, 3, 91, 222, 17, 180, 45, 99, 241, 5, 160])


@dataclass(frozen=True)
class Marked(Tiny):
    """A world in which every image carries a row of sixteen bytes that are found nowhere else."""

    def data(self) -> dict[str, worlds.FaceSet]:
        return {name: replace(faces, pixels=marked(faces.pixels.tobytes())) for name, faces in super().data().items()}


@functools.cache
def marked(pixels: bytes) -> Any:
    images = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 16, 16, 1).copy()
    images[:, 3, :, 0] = np.frombuffer(CANARY, dtype=np.uint8)
    return images


def pieces(tensors: Iterable[Tensor]) -> set[bytes]:
    """Sixteen bytes from the midst of every tensor that has them, unless they are all the same.

    All bytes of one of few values, such as a codeword, whose pieces are found anywhere.
    """
    found = set()
    for tensor in tensors:
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        middle = len(data) // 2 // 16 * 16
        piece = data[middle : middle + 16]
        if len(piece) == 16 and len(set(piece)) > 4:
            found.add(piece)
        elif len(data) >= 256 and len(set(data)) > 1:
            found.add(data)
    return found


def all_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from all_tensors(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from all_tensors(item)
    elif hasattr(value, "__coalface_kind__"):
        yield from all_tensors(vars(value))


SENT = {(fedfr_joint.Own, "model")}
"""What a party keeps of its own last reply: this left it, by the method's own words."""


def private_pieces(method: Method, folder: Path) -> set[bytes]:
    """Pieces of all the private state that lies at the parties."""
    classes = {c.__name__: c for _, d in method.steps.values() for c in (d.own, d.keeps) if c is not None}
    found: set[bytes] = set()
    for path in (folder / "parties").rglob("*.commit"):
        for name, stored in Commit.open(path).states().items():
            kept = vars(codec.unpack(stored, classes[name]))
            found |= pieces(all_tensors({field: v for field, v in kept.items() if (classes[name], field) not in SENT}))
    return found


def leaks(method: Method, folder: Path, build: Tiny) -> set[bytes]:
    """Which canaries, of the images or of private state, are found in the bytes that left the parties."""
    secrets: set[bytes] = set()
    row = np.frombuffer(CANARY, dtype=np.uint8)
    floats = to_tensor(row.reshape(1, 1, 16, 1).copy())
    secrets |= {CANARY, CANARY[::-1], *pieces([floats, floats.flip(3), floats.double()])}

    heard = Heard([], [], [])

    class Spying(listening(heard)):  # type: ignore[misc]
        def finalize(self, accepted: Any, ordinal: int) -> None:
            secrets.update(private_pieces(method, folder))
            super().finalize(accepted, ordinal)

    run(method, folder, Marked(**vars(build)), transport=Spying)
    keeps = any(declared.keeps is not None for _, declared in method.steps.values())
    assert len(secrets) > 5 or not keeps
    sent = [data for _, data in heard.replies]
    return {secret for secret in secrets if any(secret in data for data in sent)}


@a_method_of_each_kind
def test_images_and_private_state_never_show_in_what_is_sent(name: str, tmp_path: Path) -> None:
    method, build = variants(name)
    assert leaks(method, tmp_path, build) == set()


@message
class LeakingUpdate:
    backbone: Tensors
    images: int
    loss: float
    extra: Tensor = free()


@dataclass(frozen=True, kw_only=True)
class Leaking(FedAvg):
    """Sends what it should keep."""

    what: str = "head"

    def round(self, fed: Federation, state: State) -> State:
        aggregate = [Mean("backbone", by="images")]
        answer = fed.ask(self.train, common=Global(backbone=state.backbone), aggregate=aggregate)
        return State(backbone=answer.aggregated["backbone"])

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[LeakingUpdate, Learner]:
        loss, kept = learn(party, common.backbone, own, self.local, self.loss, momentum="reset")
        shared, images = party.backbone.shared(), len(party.data)
        extra = kept.head if self.what == "head" else torch.from_numpy(party.data.take(np.arange(2)))
        return LeakingUpdate(backbone=shared, images=images, loss=loss, extra=extra), kept


@pytest.mark.parametrize("what", ["head", "images"])
def test_a_method_that_leaks_is_found_out(what: str, tmp_path: Path) -> None:
    assert leaks(Leaking(rounds=2, local=worlds.WORK, loss=worlds.LOSS, what=what), tmp_path, Tiny())


@a_method_of_each_kind
def test_the_ledger_holds_every_byte_that_was_sent_and_no_other(name: str, unbroken: Any) -> None:
    method, (ran, heard) = variants(name)[0], unbroken(name)
    lines = [json.loads(t) for p in sorted((ran.folder / "ledger").iterdir()) for t in p.read_text().splitlines()]
    assert sum(entry["bytes"] for entry in lines) == sum(len(data) for _, data in heard.replies)
    assert ran.server.at.totals["up"] <= sum(entry["bytes"] for entry in lines)  # a stage may begin with an ask
    expected = []
    for request, data in sorted(heard.replies, key=lambda pair: pair[0].party):
        cls = method.steps[request.step][1].reply
        assert cls is not None
        sent = codec.encode(codec.decode(bytearray(data), cls))
        pieces = zip(sent.entries, sent.sums, strict=True)
        expected += [(request.step, request.round, entry.name, digest) for entry, digest in pieces]
    assert [(e["step"], e["round"], e["name"], e["sha256"]) for e in lines] == expected


# --- client batches: many parties as one batch ------------------------------------------------------------------------

BATCHED = [name for name, cls in METHODS.items() if any(d.batched for d in cls.own_steps.values())]
"""The methods that have a batched form of some step."""

batched_methods = pytest.mark.parametrize("name", BATCHED)


def cohorts(name: str, images: int, **changes: Any) -> tuple[Method, Tiny, Numerics]:
    """A method whose parties take one step each, a world in float64, and client batches of so many images."""
    work = LocalTraining(
        epochs=1, batch_size=8, lr=0.5
    )  # momentum and weight decay as by default: one step has no use for them
    method, build = recipe(name, local=work, **changes)
    return method, replace(build, double=True), replace(worlds.NUMERICS, cohorts=images)


def test_every_method_of_one_identity_a_party_has_a_batched_form() -> None:
    assert sorted(BATCHED) == sorted(name for name, cls in METHODS.items() if cls.one_identity)


@batched_methods
def test_client_batches_give_what_single_parties_give(name: str, tmp_path: Path) -> None:
    """State, class embeddings and losses to rounding; every tensor's bytes; the ledgers together hold what was sent."""
    method, build, numerics = cohorts(name, 16)
    alone = run(method, tmp_path / "alone", build)
    many = run(method, tmp_path / "many", build, numerics=numerics)
    moved = [t for n, t in alone.state.backbone.items() if not torch.equal(t, build().backbone.shared()[n])]
    assert len(moved) == len(alone.state.backbone)
    for one, other in zip(all_tensors(alone.state), all_tensors(many.state), strict=True):
        assert one.dtype == other.dtype
        assert (one - other).abs().max() < 1e-10

    def lines(ran: Ran) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (ran.folder / "metrics.jsonl").read_text().splitlines()]

    for ours, theirs in zip(lines(many), lines(alone), strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            if key == "bytes_up":  # a number with another digit may make a header 8 bytes longer or shorter
                assert abs(ours[key] - value) <= 8 * theirs["asked"]
            else:
                close = isinstance(value, float | dict) and key != "failed"
                assert ours[key] == (pytest.approx(value, abs=1e-10) if close else value), key
    down = {party: stats.bytes_down for party, stats in alone.server.at.party_stats.items()}
    assert {party: stats.bytes_down for party, stats in many.server.at.party_stats.items()} == down
    rounds = {party: stats.rounds for party, stats in alone.server.at.party_stats.items()}
    assert {party: stats.rounds for party, stats in many.server.at.party_stats.items()} == rounds

    files = [many.folder / "cohorts.jsonl", *sorted((many.folder / "ledger").glob("*.jsonl"))]
    listed = [json.loads(text) for path in files for text in path.read_text().splitlines()]
    assert sum(line["bytes"] for line in listed) == many.server.at.totals["up"]
    single = [json.loads(t) for p in (alone.folder / "ledger").iterdir() for t in p.read_text().splitlines()]
    assert tensor_bytes(listed) == tensor_bytes(single)
    assert all(line.get("parties", 1) > 0 for line in listed)
    assert {line["step"] for line in listed if "parties" in line} == {"train"}
    assert not any(line["step"] == "train" for line in listed if "parties" not in line)
    assert many.server.check_ledgers() == {}


def tensor_bytes(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int, str], int]:
    """The bytes of every tensor by step, round and name."""
    found: dict[tuple[str, int, str], int] = {}
    for line in lines:
        if line["kind"] == "tensor":
            key = line["step"], line["round"], line["name"]
            found[key] = found.get(key, 0) + line["bytes"]
    return found


@pytest.mark.parametrize("name", by_default(2, BATCHED))
def test_client_batches_stopped_and_resumed_are_never_stopped(name: str, tmp_path: Path) -> None:
    method, build, numerics = cohorts(name, 11)
    rules: dict[str, Any] = {"numerics": numerics, "checkpoint_every": 2}
    unbroken = run(method, tmp_path / "unbroken", build, **rules).bytes()
    assert unbroken["cohorts"]
    enrolled = 7 if name == "feduv" else 0  # who answer singly first
    for after in (0, 1, 4):
        broken = tmp_path / f"stopped after {after}"
        with pytest.raises(Stop):
            run(method, broken, build, transport=stopping(after + enrolled), **rules)
        assert run(method, broken, build, **rules).bytes() == unbroken, after


@pytest.mark.parametrize("name", by_default(1, BATCHED))
@pytest.mark.usefixtures("quick_workers")
def test_client_batches_are_the_same_with_workers(name: str, tmp_path: Path) -> None:
    method, build, numerics = cohorts(name, 11)
    alone = run(method, tmp_path / "alone", build, numerics=numerics).bytes()
    assert run(method, tmp_path / "two", build, numerics=numerics, transport=workers(2)).bytes() == alone


# --- 5: trouble -------------------------------------------------------------------------------------------------------


def can_be(reply: type | None, what: str) -> bool:
    """Whether a reply has a field that this trouble can spoil."""
    kinds: set[Any] = {int} if what in COUNT_FAULTS else {Tensors} if what == "name" else {Tensor, Tensors}
    return reply is not None and any(annotation in kinds for annotation in codec.hints(reply).values())


def finite(state: Any) -> bool:
    return all(bool(t.isfinite().all()) for t in all_tensors(state) if t.is_floating_point())


NONSENSE = [
    what if what in ("nan", "absurd") else pytest.param(what, marks=SLOW) for what in (*TENSOR_FAULTS, *COUNT_FAULTS)
]
"""What a party may send; one of a kind is tried by default."""


@three_methods
@pytest.mark.parametrize("what", NONSENSE)
def test_a_party_that_sends_nonsense_is_refused_by_name_and_the_rest_goes_on(
    name: str, what: str, tmp_path: Path
) -> None:
    method, build = recipe(name, **({"sample": 5, "rounds": 6} if name == "fedfv" else {}))  # till it is asked
    if getattr(method, "sample", None):  # until it is drawn
        method = replace(method, rounds=6)  # type: ignore[type-var]
    bad = sorted(build().data)[-1]
    faults = SimulatedFaults(corrupt={bad: what}, dropout=0.15)  # it also drops out, after replies that were refused
    heard = Heard([], [], [])
    rules: dict[str, Any] = {"faults": faults, "max_abandoned_rounds": 99, "min_reply_fraction": 0.3}
    ran = run(method, tmp_path, build, transport=listening(heard), **rules)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert finite(ran.state)
    assert all(finite(model) for model in ran.own_models().values())
    spoiled = {
        (request.stage, request.round)
        for request, _ in heard.replies
        if request.party == bad and can_be(method.steps[request.step][1].reply, what)
    }
    can = any(can_be(declared.reply, what) for _, declared in method.steps.values())
    assert bool(spoiled) is can
    counted = 0
    for record in records:
        reason = record["failed"].get(bad)
        if (record["stage"], record["round"]) in spoiled:
            assert reason not in (None, "dropped out")
        elif reason is None:
            counted += 1
    assert ran.server.at.party_stats[bad].rounds <= counted
    if len(build().data) == 1 and can:  # nobody else is there: every round is abandoned
        assert all(r["abandoned"] for r in records)
        assert worlds.raw(ran.models.shared or {}) == worlds.raw(build().backbone.shared())
    else:
        assert any(not r["abandoned"] for r in records)


@three_methods
def test_a_party_that_comes_and_goes_ends_where_its_accepted_replies_left_it(name: str, tmp_path: Path) -> None:
    """Lost replies, stopped and resumed: the same as lost replies alone."""
    method, build = recipe(name, rounds=5)
    rules: dict[str, Any] = {
        "faults": SimulatedFaults(lost=0.3, dropout=0.2),
        "max_abandoned_rounds": 99,
        "min_reply_fraction": 0.3,
    }
    unbroken = run(method, tmp_path / "unbroken", build, **rules).bytes()
    with pytest.raises(Stop):
        run(method, tmp_path / "broken", build, transport=stopping(2), **rules)
    assert run(method, tmp_path / "broken", build, **rules).bytes() == unbroken


@a_method_of_each_kind
def test_a_failing_party_ends_the_run_by_name(name: str, tmp_path: Path) -> None:
    method, build = recipe(name, local=LocalTraining(epochs=2, batch_size=4, lr=1e30))
    with pytest.raises(RunFailed, match=r"(silo-\d+|all), step .*, .* round \d: FloatingPointError: .*lower local.lr"):
        run(method, tmp_path, build)


# --- 6: it learns -----------------------------------------------------------------------------------------------------


def auc(model: Tensors, build: Tiny, faces: worlds.FaceSet) -> float:
    """The share of (genuine, impostor) pairs of images in which the genuine one has the larger cosine."""
    cosines, labels = worlds.cosines(model, build, faces)
    pairs = torch.triu_indices(len(labels), len(labels), 1)
    values, same = cosines[pairs[0], pairs[1]], labels[pairs[0]] == labels[pairs[1]]
    genuine, impostor = values[same], values[~same]
    return float((genuine[:, None] > impostor[None, :]).double().mean())


def figure(models: Mapping[str, Tensors], shared: Tensors, build: Tiny) -> float:
    """The mean over parties of the figure of the model that each is left with, on its own images.

    Parties of one identity have no impostors: there it is that of the shared model on the images of all.
    """
    if build.one_identity:
        return auc(shared, build, build.trained())
    data = replace(build, uses_target_labels=True)().data
    if build.pooled and build.domains and not build.uses_target_labels:  # of the identities that it is told
        data = {party: faces.only([0, 1]) for party, faces in data.items()}
    return sum(auc(models.get(party, shared), build, faces) for party, faces in data.items()) / len(data)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name in METHODS if name not in COLLAPSES])
def test_it_learns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From images of its parties, whose figure is then `GAIN` above that of the untrained model.

    Codewords keep embeddings apart where there are many more of them than twice their bits (below, one point is on the
    right side of all of them, and all images go there): 16 clients with codewords of 7 bits, which `feduv` does not
    offer.
    """
    monkeypatch.setitem(feduv.SIZES, 7, 4)
    local = LocalTraining(epochs=5, batch_size=8, lr=0.05)
    method, build = recipe(name, **{"rounds": 20, "local": local} | worlds.OWN.get(name, {}) | LEARNING.get(name, {}))
    if name == "feduv":
        build = replace(build, parties=16)
    before = figure({}, build().backbone.shared(), build)
    ran = run(method, tmp_path, build)
    after = figure(ran.own_models(), ran.models.shared or {}, build)
    assert math.isfinite(after)
    assert after >= before + GAINS.get(name, GAIN), f"{name}: {before:.3f} untrained, {after:.3f} trained"
