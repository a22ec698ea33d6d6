"""FedFR with shared data: whole rounds against `jointly`, its parts and presets one by one, what leaves a client."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import naive
import pytest
import torch
from cases import by_default
from naive_clients import heard_run, metrics
from naive_fedfr import EXACT, WORK, followed, joint, own_model, same_as_kept

from coalface.core import codec
from coalface.core.local_results import PERSONAL_MODEL
from coalface.experiments.conformance import tiny_federation
from coalface.experiments.conformance.tiny_federation import LOSS, Ran, Tiny, raw, run
from coalface.methods.fedavg import FedAvg
from coalface.methods.fedfr_joint import PRESETS, FedFRJoint, Own, Update
from coalface.training.joint.fedfr import Binary
from coalface.training.local_training import Learner
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import ArcFace, CosFace
from coalface.training.losses.sphereface2 import SphereFace2

OFF: dict[str, Any] = {"public": "none", "contrastive": 0.0, "branch": "none"}


# --- whole rounds -----------------------------------------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "all public": {"public": "all", "branch": "softmax", "phi_update": "none", "schedule": "cosine"},
    "partly asked": {"sample": 2, "rounds": 4, "previous": "random", "weights": "trained"},
    "official": {"preset": "official", "epochs": (3, 2), "decay_after": (1, 2), "rounds": 3},
    "own BatchNorm": {"norm": True, "policy": "local", "sample": 2, "rounds": 4, "temperature": 0.1},
    "no public": {"public": "none", "previous": "random", "weights": "trained"},
    "not through": {"through": False, "bias": "each", "branch_init": "classes", "schedule": "step"},
    "own statistics": {"norm": True, "policy": "parameters-only", "sample": 1, "previous": "random"},
    "no contrast": {"contrastive": 0.0, "branch": "softmax", "epochs": (1, 3), "decay_after": (1, 1), "norm": True},
}


@pytest.mark.parametrize("name", by_default(3, VARIANTS))
def test_the_rounds_are_those_of_the_loop(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dict(VARIANTS[name])
    build = replace(EXACT, norm=settings.pop("norm", False), policy=settings.pop("policy", "average"))
    local = replace(WORK, schedule=settings.pop("schedule", "constant"))
    ran, members, theta, phi = followed(joint(local=local, **settings), tmp_path, monkeypatch, build)
    assert naive.furthest(theta, build().backbone.shared()) > 1e-3
    personal, generic = dict(ran.server.local_results(PERSONAL_MODEL, ran.models)), ran.own_models()
    assert set(generic) == (set(members) if build.policy != "average" else set())
    for party, client in members.items():
        if generic:  # everybody's model, with the BatchNorm that has stayed here
            assert naive.furthest(generic[party], {**theta, **client.kept}) < 1e-10
        assert personal[party].keys() == own_model(client).keys()
        if client.classes is None:
            assert naive.kept(tmp_path, party, Own) is None
            continue
        same_as_kept(client, naive.kept(tmp_path, party, Own))
        assert naive.furthest(personal[party], own_model(client)) < 1e-10
        near = {len(client.party.extra_data.faces)} if name == "all public" else set(client.near)
        assert settings.get("public") == "none" or near == set(client.near)
    if settings.get("public") is None:  # hard negatives were some, and not the same in all rounds
        counts = [count for client in members.values() for count in client.near]
        assert 0 < min(counts) < 18 and len(set(counts)) > 1
    if name == "partly asked":  # somebody sat out a round between two of hers
        came = [[line["round"] for line in metrics(tmp_path) if party in line["losses"]] for party in members]
        assert any(rounds and set(range(rounds[0], rounds[-1])) - set(rounds) for rounds in came), came


# --- switches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [Tiny(public=3, norm=True), Tiny(public=3, norm=True, policy="local")])
def test_without_its_parts_it_is_fedavg_bit_for_bit(build: Tiny, tmp_path: Path) -> None:
    settings = {"rounds": 3, "local": tiny_federation.WORK, "loss": LOSS, "sample": 2}
    joint_run = run(FedFRJoint(**settings, **OFF), tmp_path / "joint", build)  # type: ignore[arg-type]
    plain = run(FedAvg(**settings), tmp_path / "fedavg", build)  # type: ignore[arg-type]
    assert raw(joint_run.state.backbone) == raw(plain.state.backbone) and joint_run.state.classifier.shape == (0, 8)
    for joint_line, fedavg_line in zip(metrics(tmp_path / "joint"), metrics(tmp_path / "fedavg"), strict=True):
        assert {**joint_line, "bytes_down": 0, "bytes_up": 0} == {**fedavg_line, "bytes_down": 0, "bytes_up": 0}
    for party in build().data:
        joint_state, learner = (naive.kept(tmp_path / f, party, c) for f, c in (("joint", Own), ("fedavg", Learner)))
        assert joint_state.classes.equal(learner.head) and raw(joint_state.kept) == raw(learner.kept)
        assert vars(joint_state.cursor) == vars(learner.cursor)


def once(folder: Path, **changes: Any) -> tuple[Ran, dict[str, Own], float]:
    """One round in float64: the run, what its clients keep, and its loss."""
    name = "-".join(f"{key}={str(value)[:20]}" for key, value in changes.items()).replace("/", "") or "plain"
    ran = run(joint(**{"rounds": 1, **changes}), folder / name, EXACT)
    return ran, {p: naive.kept(folder / name, p, Own) for p in EXACT().data}, metrics(folder / name)[-1]["loss"]


def apart(left: Ran, right: Ran) -> tuple[float, float]:
    """How far two runs' Θ_g and Φ_g lie apart."""
    return naive.furthest(left.state.backbone, right.state.backbone), naive.furthest(
        {"Φ": left.state.classifier}, {"Φ": right.state.classifier}
    )


def test_the_contrastive_term_has_no_gradient_in_the_first_round(tmp_path: Path) -> None:
    (on, _, loss), (off, _, alone) = once(tmp_path), once(tmp_path, contrastive=0.0)
    assert max(apart(on, off)) < 1e-12 and loss - alone == pytest.approx(5 * math.log(2))
    random, _, random_other = once(tmp_path, previous="random")
    assert min(apart(random, off)) > 1e-5 and abs(random_other - loss) > 1e-3
    assert min(apart(once(tmp_path, rounds=2)[0], once(tmp_path, rounds=2, contrastive=0.0)[0])) > 1e-5
    warm, cold = (once(tmp_path, previous="random", temperature=t)[0] for t in (0.5, 0.1))
    assert min(apart(warm, cold)) > 1e-5


def test_a_branch_that_does_not_go_through_leaves_the_rest_as_it_is(tmp_path: Path) -> None:
    none, without_branch, alone = once(tmp_path, branch="none", rounds=2)
    for branch in ("binary", "softmax"):
        ran, states, loss = once(tmp_path, branch=branch, through=False, rounds=2)
        assert max(apart(ran, none)) < 1e-14 and loss > alone + 0.1
        for party, state in states.items():
            assert naive.furthest({"W": state.classes}, {"W": without_branch[party].classes}) < 1e-14
            assert naive.furthest(state.model, without_branch[party].model) < 1e-14
            turn = state.branch["turn"] - torch.eye(8, dtype=torch.float64)
            assert turn.abs().max() > 1e-4 and state.branch["shift"].any() and not without_branch[party].branch
            assert ("bias" in state.branch) == (branch == "binary")
        assert min(apart(once(tmp_path, branch=branch, rounds=2)[0], none)) > 1e-5


def test_which_public_images_are_trained_on(tmp_path: Path) -> None:
    every, _, _ = once(tmp_path, public="all")
    # All cosines are above −1: every public image is near.
    assert apart(once(tmp_path, threshold=-1.0)[0], every) == (0, 0)
    near, far, none = once(tmp_path)[0], once(tmp_path, threshold=1.0)[0], once(tmp_path, public="none")[0]
    assert min(apart(near, every)) > 1e-5 and min(apart(far, near)) > 1e-5
    # Without a near one Φ is among the negatives all the same: balanced CosFace on the client's own images.
    assert far.state.classifier.shape == (3, 8) and none.state.classifier.shape == (0, 8)
    assert naive.furthest(far.state.backbone, none.state.backbone) > 1e-5


def test_the_epochs_and_full_batches_of_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """9 images in batches of 4: 4 and 5, or with `drop_last` 4 and 4; a client with 3 trains on them."""
    from coalface.methods import fedfr_joint

    calls: list[tuple[int, float, list[int]]] = []
    plain = fedfr_joint.train

    def noted(party: Any, classifier: Any, batches: Any, sgd: Any, **options: Any) -> Any:
        calls.append((party.round, sgd.lr, [len(batch) for batch in batches]))
        return plain(party, classifier, batches, sgd, **options)

    monkeypatch.setattr(fedfr_joint, "train", noted)

    def told(images: int, **changes: Any) -> list[tuple[int, float, list[int]]]:
        calls.clear()
        world = Tiny(parties=1, public=3)()
        world = replace(world, data={"one": world.data["silo-0"].select(range(images))})  # type: ignore[arg-type]
        local = LocalTraining(epochs=1, batch_size=4, lr=0.02)
        method = joint(**{"public": "none", "local": local, **changes})
        run(method, tmp_path / str(len(list(tmp_path.iterdir()))), lambda: world)
        return list(calls)

    assert told(9) == [(1, 0.02, [4, 5]), (2, 0.02, [4, 5])]
    assert told(9, drop_last=True, rounds=1) == [(1, 0.02, [4, 4])]
    assert told(11, drop_last=True, rounds=1) == [(1, 0.02, [4, 4])]
    assert told(12, drop_last=True, rounds=1) == [(1, 0.02, [4, 4, 4])]
    assert told(3, drop_last=True, rounds=1) == [(1, 0.02, [3])]
    by_steps = LocalTraining(steps_per_round=3, batch_size=4, lr=0.02)
    assert told(9, drop_last=True, rounds=1, local=by_steps) == [(1, 0.02, [4, 4, 4])]
    tenth = pytest.approx(0.002)
    noted_calls = told(8, epochs=(3, 2), decay_after=(1, 2), rounds=3)
    assert noted_calls == [(1, 0.02, [4, 4]), (1, tenth, [4] * 4), (2, 0.02, [4] * 4), (3, 0.02, [4] * 4)]
    its = {"preset": "official", "local": LocalTraining(epochs=4, batch_size=4, lr=0.02)}
    assert [(r, len(b)) for r, _, b in told(4, **its, rounds=5)] == [
        (1, 8), (1, 2), (2, 6), (2, 2), (3, 4), (3, 2), (4, 3), (4, 1), (5, 3), (5, 1),
    ]  # fmt: skip


# --- presets ----------------------------------------------------------------------------------------------------------


def test_the_presets_differ_in_all_that_the_specification_names() -> None:
    paper, official = FedFRJoint(), FedFRJoint(preset="official")
    expected = {
        "phi_update": ("average", "none"),
        "weights": ("images", "trained"),
        "previous": ("global", "random"),
        "branch_init": ("random", "classes"),
        "bias": ("one", "each"),
        "epochs": ((), (10, 8, 6, 4)),
        "decay_after": ((), (8, 6, 4, 3)),
        "drop_last": (False, True),
    }
    assert {n: (paper.detail(n), official.detail(n)) for n in expected} == expected
    assert expected.keys() == PRESETS["paper"].keys() == PRESETS["official"].keys()
    beside = FedFRJoint(preset="official", bias="one")
    assert (beside.detail("bias"), beside.detail("weights")) == ("one", "trained")
    # What both say: the paper's own numbers.
    loss, binary, local = paper.loss, paper.binary_loss, paper.local
    assert (paper.rounds, local.epochs, local.lr, local.weight_decay, local.momentum) == (30, 4, 0.001, 5e-4, 0.9)
    assert (loss.scale, loss.margin, paper.threshold) == (30, 0.4, 0.4)  # type: ignore[attr-defined]
    assert (paper.contrastive, paper.temperature, paper.branch_weight, paper.through) == (5, 0.5, 10, True)
    assert (binary.scale, binary.margin, binary.power, binary.balance) == (30, 0.4, 3, 0.7)


def test_the_branchs_scale_and_margin_are_those_of_the_loss_unless_they_are_given(tmp_path: Path) -> None:
    loss = CosFace(scale=16.0, margin=0.2)
    branches = [
        [state.branch["own"] for state in once(tmp_path / str(n), loss=loss, binary=binary)[1].values()]
        for n, binary in enumerate((Binary(), Binary(scale=16.0, margin=0.2), Binary(scale=30.0, margin=0.4)))
    ]
    for tied, given, papers in zip(*branches, strict=True):
        assert tied.equal(given) and not tied.equal(papers)
    of_angle = FedFRJoint(loss=ArcFace(scale=64.0, margin=0.5)).binary_loss
    assert (of_angle.scale, of_angle.margin) == (30, 0.4)  # m of ArcFace is an angle
    partly = FedFRJoint(loss=loss, binary=Binary(balance=0.5)).binary_loss
    assert (partly.scale, partly.margin, partly.balance) == (16, 0.2, 0.5)


def test_the_branch_begins_as_the_preset_says(tmp_path: Path) -> None:
    """Seen after a step that moves nothing."""
    still = LocalTraining(epochs=1, batch_size=100, lr=1e-300, momentum=0.0, weight_decay=0.0)
    for start in ("random", "classes"):
        for bias in ("one", "each"):
            _, states, _ = once(tmp_path, local=still, branch_init=start, bias=bias)
            for state in states.values():
                eye = torch.eye(8, dtype=torch.float64)
                assert max((state.branch["turn"] - eye).abs().max(), state.branch["shift"].abs().max()) < 1e-200
                off = float((state.branch["own"] - state.classes).abs().max())
                assert off < 1e-200 if start == "classes" else off > 1e-3
                assert 0.005 < float(state.branch["own"].std()) < 0.02
                bias_start = (
                    torch.zeros(2) if bias == "each" else torch.tensor(SphereFace2(scale=16.0, margin=0.1).start(2))
                )
                torch.testing.assert_close(state.branch["bias"], bias_start.double(), atol=1e-5, rtol=0)


# --- what leaves, and what stays --------------------------------------------------------------------------------------


def test_no_reply_holds_anything_of_what_stays(tmp_path: Path) -> None:
    """Neither W, nor Π, Ω and b, nor the model of a round before: their bytes are in no reply, after any round."""
    assert [field.name for field in fields(Update)] == ["backbone", "classifier", "images", "loss"]
    before: dict[str, list[bytes]] = {}
    for rounds in (1, 2):
        _, heard = heard_run(joint(rounds=rounds, contrastive=0.0), tmp_path / str(rounds), EXACT)
        for party in EXACT().data:
            state = naive.kept(tmp_path / str(rounds), party, Own)
            private = [
                state.classes,
                *state.classes,
                *state.branch.values(),
                *state.branch["own"],
                *state.branch["turn"],
            ]
            secrets = before.get(party, []) + [t.numpy().tobytes() for t in private]
            replies = [h for h in heard if h.request.party == party and h.request.round == rounds]
            assert len(replies) == 1 and len(codec.decode(bytearray(replies[0].data), Update).classifier) == 3
            assert not any(secret in replies[0].data for secret in secrets)
            assert all(t.numpy().tobytes() in replies[0].data for t in state.model.values())  # Θ_l: what is sent
            before[party] = [t.numpy().tobytes() for t in state.model.values()]
