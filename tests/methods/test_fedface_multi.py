"""FedFace over clients of several identities: as `fedface` where each has one, else whole rounds by a plain loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import naive
import naive_clients as clients
import pytest
import torch
from cases import by_default
from naive_clients import heard_run, metrics
from test_fedface import TROUBLED, spread
from torch import Tensor

from coalface.core import codec
from coalface.core.method import Party, Tensors, step
from coalface.data.faceset import FaceSet
from coalface.engine.faults import SimulatedFaults
from coalface.experiments.conformance.tiny_federation import NUMERICS, Tiny, faces, run
from coalface.methods.fedface import Centre, FedFace, Global
from coalface.methods.fedface_multi import FedFaceMulti, Update
from coalface.training.local_work import Cursor, LocalTraining
from coalface.training.losses.margins import CosFace
from coalface.training.losses.spreadout import Spreading

COSFACE = CosFace(scale=16.0, margin=0.1)
WORK = LocalTraining(epochs=2, batch_size=4, lr=0.05, momentum=0.5, weight_decay=5e-3)


@dataclass(frozen=True)
class Mixed(Tiny):
    """Clients of three identities, whose numbers are not in the order of their images, of one, and of two."""

    def data(self) -> dict[str, FaceSet]:
        whole = faces(6, self.each)
        return {f"silo-{i}": whole.only(ids) for i, ids in enumerate(([2, 0, 1], [3], [5, 4]))}


EXACT = Mixed(flip=False, double=True)
KNOWN = {"silo-0": 3, "silo-1": 1, "silo-2": 2}


MEAN = Spreading(step=0.1, steps=3, momentum=0.9, reduce="mean", tangent=True)


def multi(**changes: Any) -> FedFaceMulti:
    return FedFaceMulti(**{"rounds": 3, "local": WORK, "loss": COSFACE, **changes})


# --- one identity a client --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "build", "rules"),
    by_default(
        2,
        [
            ({}, Tiny(parties=5, one_identity=True, norm=True), {}),
            ({"sample": 3, "local": WORK, "spreading": MEAN}, Tiny(parties=5, one_identity=True), {}),
            (
                {"fixed": True, "local": LocalTraining(steps_per_round=3, batch_size=2)},
                Tiny(parties=5, one_identity=True),
                {},
            ),
            ({"spreadout": False, "local": replace(WORK, sample_rate=0.5)}, clients.EXACT, {}),
            ({"target_cosine": 0.5}, clients.EXACT, {"faults": TROUBLED, "min_reply_fraction": 0.3}),
        ],
    ),
)
def test_with_one_identity_a_client_it_is_fedface_bit_for_bit(
    settings: dict[str, Any], build: Tiny, rules: dict[str, Any], tmp_path: Path
) -> None:
    """The weights, the class embeddings, the metrics, the ledgers, and every message of either way."""
    heads = []
    for cls in (FedFace, FedFaceMulti):
        ran, heard = heard_run(cls(**{"rounds": 4, **settings}), tmp_path / cls.__name__, build, **rules)
        down = [
            (h.request.party, *(bytes(m.data) for m in (codec.encode(h.common), codec.encode(h.each)))) for h in heard
        ]
        heads.append((ran.bytes(), down, [h.data for h in heard]))
    assert heads[0] == heads[1] and len(heads[0][2]) >= 10


def test_the_authors_spreadout_is_of_their_own_code() -> None:
    """(cos − 0.4)², the mean over ordered pairs, twenty steps with momentum 0.9, through the normalisation."""
    rows = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.5, 0.5, 0.7]], dtype=torch.float64)
    w = (rows / rows.norm(dim=1, keepdim=True)).requires_grad_()
    velocity = torch.zeros_like(rows)
    for _ in range(20):
        near = [cosine(w[i], w[j]) - 0.4 for i in range(3) for j in range(3) if i != j]
        (slope,) = torch.autograd.grad(sum(max(c, 0 * c) ** 2 for c in near) / 6, w)
        velocity = 0.9 * velocity + slope
        moved = w.detach() - 0.01 * velocity
        w = (moved / moved.norm(dim=1, keepdim=True)).requires_grad_()
    method = FedFaceMulti(preset="official")
    assert naive.furthest({"w": method.spread(rows)}, {"w": w.detach()}) < 1e-12
    assert naive.furthest({"w": FedFace(preset="official").spread(rows)}, {"w": w.detach()}) > 1e-3


# --- several ----------------------------------------------------------------------------------------------------------


def cosine(left: Tensor, right: Tensor) -> Tensor:
    return left @ right / ((left @ left).sqrt() * (right @ right).sqrt())


class Client:
    """One client: its images and its local training, by torch's own gradients through the bare network."""

    def __init__(self, name: str, build: Tiny, method: FedFaceMulti) -> None:
        self.party, self.method = naive.party(name, build), method
        self.net = build().backbone.module
        self.pixels, self.labels = naive.Silo(name, build, method.local).everything()[0]

    def means(self, theta: Tensors) -> Tensor:
        """(k, d), a row an identity in the order of the labels."""
        self.net.load_state_dict({**self.net.state_dict(), **theta})
        with torch.no_grad():
            features = self.net.eval()(self.pixels)
        rows = torch.zeros(len(self.party.data.names), 8, dtype=torch.float64)
        for feature, label in zip(features, self.labels.tolist(), strict=True):
            rows[label] += feature / feature.norm()
        return torch.stack([row / row.norm() for row in rows])

    def of_one(self, f: Tensor, rows: Tensor, y: int) -> Tensor:
        """CosFace, or of one identity alone the squared hinge."""
        if len(rows) == 1:
            return torch.clamp(self.method.target_cosine - cosine(f, rows[0]), min=0) ** 2
        logits = [COSFACE.scale * (cosine(f, row) - COSFACE.margin * (j == y)) for j, row in enumerate(rows)]
        return torch.log(sum(torch.exp(z) for z in logits)) - logits[y]  # type: ignore[arg-type]

    def train(self, round_: int, theta: Tensors, rows: Tensor) -> tuple[Tensors, Tensor]:
        """A round, with momentum from zero; `loss` is then the mean of the images'."""
        work, cursor, parameters = self.method.local, Cursor(), {**theta, "rows": rows}
        for _ in range(round_):  # the work of the rounds before it, whether or not the client was there
            batches, cursor = work.batches(self.party, cursor)
        velocity: Tensors = {}
        losses: list[float] = []
        for index in batches:
            self.net.load_state_dict({**self.net.state_dict(), **{n: t for n, t in parameters.items() if n != "rows"}})
            leaves = {**dict(self.net.named_parameters()), "rows": parameters["rows"].clone().requires_grad_()}
            features = self.net.train()(self.pixels[index])
            each = [self.of_one(f, leaves["rows"], int(y)) for f, y in zip(features, self.labels[index], strict=True)]
            slopes = torch.autograd.grad(torch.stack(each).mean(), list(leaves.values()))
            parameters |= {n: b.clone() for n, b in self.net.named_buffers() if b.is_floating_point()}
            for name, slope in zip(leaves, slopes, strict=True):
                if name == "rows" and self.method.fixed:
                    continue
                velocity[name] = work.momentum * velocity.get(name, 0) + slope + work.weight_decay * parameters[name]
                parameters[name] = parameters[name] - work.lr * velocity[name]
            losses += [loss.item() for loss in each]
        self.loss = sum(losses) / len(losses)
        return parameters, parameters.pop("rows")


def spread_over_all(centres: Tensors, settings: Spreading) -> Tensors:
    """(9) over the rows of all clients, also of those of one client."""
    rows = {f"{client}/{i}": w[i : i + 1] for client, w in centres.items() for i in range(len(w))}
    after = spread(rows, settings)
    return {client: torch.cat([after[f"{client}/{i}"] for i in range(len(w))]) for client, w in centres.items()}


@pytest.mark.parametrize(
    ("settings", "build", "rules"),
    by_default(
        3,
        [
            ({}, EXACT, {}),
            ({"local": replace(WORK, momentum=0.9)}, replace(EXACT, norm=True), {}),
            ({"spreadout": False}, EXACT, {}),
            ({"preset": "official", "local": LocalTraining(epochs=1, batch_size=99, lr=0.3)}, EXACT, {}),
            ({"fixed": True, "spreading": Spreading(margin=1.1, step=0.02)}, EXACT, {}),
            ({"sample": 2, "rounds": 5}, EXACT, {}),
            ({"sample": 1, "rounds": 5, "spreadout": False}, EXACT, {}),
            ({"rounds": 6}, EXACT, {"faults": SimulatedFaults(dropout=0.5, lost=0.3), "min_reply_fraction": 0.3}),
        ],
    ),
)
def test_the_rounds_are_those_of_a_plain_loop(
    settings: dict[str, Any], build: Tiny, rules: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = multi(**settings)
    states = naive.watched(FedFaceMulti, monkeypatch)
    _, heard = heard_run(method, tmp_path, build, **rules)
    lines = metrics(tmp_path)
    theta, centres = build().backbone.shared(), dict[str, Tensor]()
    members, late, absent = {name: Client(name, build, method) for name in build().data}, 0, 0
    for line, state, came in zip(lines, states, clients.counted(heard, "train", lines), strict=True):
        late += sum(name not in centres for name in came) * (line["round"] > 1)
        absent += len(centres.keys() - set(came))
        for h in heard:
            if h.request.round == line["round"]:  # to each its own, and to nobody those of another
                centres_sent = centres.get(h.request.party, torch.zeros(1, 8, dtype=torch.float64))
                assert naive.furthest({"w": h.each.centre}, {"w": centres_sent}) < 1e-10
        ends = {}
        for name in came:
            start = centres[name] if name in centres else members[name].means(theta)
            ends[name] = members[name].train(line["round"], theta, start)
        total = sum(len(members[name].labels) for name in came)
        shares = [len(members[name].labels) / total for name in came]
        theta = naive.mean(shares, [ends[name][0] for name in came])
        centres |= {name: w / w.norm(dim=1, keepdim=True) for name, (_, w) in ends.items()}
        if method.spreadout:
            before, centres = centres, spread_over_all(centres, method.spreading or method.presets[method.preset])
            assert len(centres) < 2 or naive.furthest(before, centres) > 1e-4
        assert {name: len(w) for name, w in state.centres.items()} == {name: KNOWN[name] for name in centres}
        assert naive.furthest(state.backbone, theta) < 1e-10
        assert naive.furthest(state.centres, centres) < 1e-10
        rows = torch.cat([centres[name] for name in sorted(centres)])
        pairs = [float(rows[i] @ rows[j]) for i in range(len(rows)) for j in range(i)]
        assert line.get("cosine") == (pytest.approx(sum(pairs) / len(pairs), abs=1e-10) if pairs else None)
        loss = sum(share * members[name].loss for share, name in zip(shares, came, strict=True))
        assert line["loss"] == pytest.approx(loss, abs=1e-10)
    assert naive.furthest(theta, build().backbone.shared()) > 1e-3
    assert (late > 0 and absent > 0) == (method.sample is not None or "faults" in rules)


# --- what a client may send -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Odd(FedFaceMulti):
    """One client sends something else than it should in some rounds."""

    what: str = "rows"
    odd: tuple[int, ...] = ()

    @step(role="trainer")
    def train(self, party: Party, common: Global, each: Centre) -> Update:
        reply: Update = FedFaceMulti.train(self, party, common, each)
        w = reply.centre
        sent = {
            "rows": torch.cat([w, w[:1]]),
            "zeros": w * torch.tensor([[1.0], [0.0]]).to(w) if len(w) == 2 else w,
            "none": w[:0],
            "columns": w[:, :5],
            "flat": w.flatten(),
            "dtype": w.float() if w.dtype == torch.float64 else w.double(),
        }[self.what]
        return replace(reply, centre=sent) if self.is_odd(party) else reply

    def is_odd(self, party: Party) -> bool:
        return party.name == "silo-2" and party.round in self.odd


@pytest.mark.parametrize("what", by_default(2, ["rows", "zeros", "none", "columns", "flat", "dtype"]))
def test_what_does_not_fit_leaves_the_class_embeddings_before_it(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = naive.watched(Odd, monkeypatch)
    odd = (3,) if what == "rows" else (1, 3)  # at first the server cannot know how many there are
    _, heard = heard_run(Odd(rounds=4, local=WORK, loss=COSFACE, spreadout=False, what=what, odd=odd), tmp_path, EXACT)
    sent = {h.request.round: h.each.centre for h in heard if h.request.party == "silo-2"}
    assert [bool(sent[r].any()) for r in (1, 2, 3, 4)] == [False, what == "rows", True, True]
    assert ["silo-2" in s.centres for s in states] == [what == "rows", True, True, True]
    assert naive.furthest({"w": states[2].centres["silo-2"]}, {"w": states[1].centres["silo-2"]}) < 1e-15
    assert naive.furthest({"w": states[3].centres["silo-2"]}, {"w": states[2].centres["silo-2"]}) > 1e-3
    assert all(s.centres["silo-0"].shape == (3, 8) for s in states)


# --- client batches, and what cannot be
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [EXACT, clients.EXACT])
def test_the_batched_form_for_one_identity_a_client_is_never_used(
    build: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a run is given client batches all the same, each client is asked by itself, to the same bytes."""

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("clients of several identities were trained as one batch")

    monkeypatch.setattr(FedFace, "train_batched", never)
    assert {n: d.batched for n, d in FedFaceMulti.own_steps.items()} == {"train": None}
    method = multi(local=LocalTraining(epochs=1, batch_size=99, lr=0.3))
    assert "a softmax of their own each" in method.unbatchable_reason(build().backbone)
    cohorts = run(method, tmp_path / "cohorts", build, numerics=replace(NUMERICS, client_batch=64))
    assert cohorts.bytes() == run(method, tmp_path / "alone", build).bytes()
    assert not (tmp_path / "cohorts" / "cohorts.jsonl").exists()
