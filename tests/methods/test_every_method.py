"""The conformance table: what every registered method must do. A new method joins by being registered.

Where the settings of `worlds.recipe` do not fit a method, it has a line in `worlds.OWN`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from conformance import SLOW, Heard, all_tensors, listened, listening, variants
from torch import Tensor
from worlds import Ran, Stop, Tiny, recipe, run, stopping, workers

from coalface.core import codec
from coalface.core.method import Federation, Mean, Method, Party, Tensors, free, message, step
from coalface.data.augment import to_tensor
from coalface.engine.faults import COUNT_FAULTS, TENSOR_FAULTS, SimulatedFaults
from coalface.engine.party.commits import Commit
from coalface.engine.transport import RunFailed
from coalface.methods import METHODS, fedfr_joint
from coalface.methods.fedavg import FedAvg, Global, State
from coalface.training.local_training import Learner, learn
from coalface.training.local_work import LocalTraining

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
    leaks = set()
    for tensor in tensors:
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        middle = len(data) // 2 // 16 * 16
        piece = data[middle : middle + 16]
        if len(piece) == 16 and len(set(piece)) > 4:
            leaks.add(piece)
        elif len(data) >= 256 and len(set(data)) > 1:
            leaks.add(data)
    return leaks


SENT = {(fedfr_joint.Own, "model")}
"""What a party keeps of its own last reply: this left it, by the method's own words."""


def private_pieces(method: Method, folder: Path) -> set[bytes]:
    """Pieces of all the private state that lies at the parties."""
    classes = {c.__name__: c for _, d in method.steps.values() for c in (d.own, d.keeps) if c is not None}
    private_pieces: set[bytes] = set()
    for path in (folder / "parties").rglob("*.commit"):
        for name, stored in Commit.open(path).states().items():
            private = vars(codec.decode(stored, classes[name]))
            private_pieces |= pieces(
                all_tensors({field: v for field, v in private.items() if (classes[name], field) not in SENT})
            )
    return private_pieces


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
