"""SS-FedFR and CL-FedFR: rounds against plain loops and by hand, nothing without unknown images, whom labels reach."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import torch
from cases import by_default
from naive_clients import heard_run, metrics
from naive_fedfr import COSFACE, EXACT, NEAR, WORK, Client, first_phi, part, pixels, same_as_kept
from tinyruns import Silent
from tinyruns import public_images as recipe
from torch import Tensor

from coalface.core import codec
from coalface.core.method import Party, Tensors
from coalface.engine.party.setup import FederatedData
from coalface.experiments import run as experiment
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.experiments.setup.parts import Parts
from coalface.methods import METHODS
from coalface.methods.adafedfr import AdaFedFR
from coalface.methods.cl_fedfr import CLFedFR, SSFedFR
from coalface.methods.fedfr_joint import FedFRJoint, Own, Update
from coalface.training.joint.own_images import Curriculum, sharpness
from coalface.training.local_work import LocalTraining

BUILD = replace(EXACT, unlabelled=0.5)
SURE = 0.3
"""A threshold that some images of unknown identity of an untrained network pass, and others do not."""
SETTINGS: dict[str, Any] = {"rounds": 3, "local": WORK, "loss": COSFACE, "threshold": NEAR}


# --- whole rounds -----------------------------------------------------------------------------------------------------


class Learner(Client):
    """A client by the loop, epoch by epoch, with the images that join, or the easier ones alone."""

    joined: list[int]

    def train(self, round_: int, theta: Tensors, phi: Tensor) -> tuple[Tensors, Tensor, int]:
        method, party = self.method, self.party
        if self.classes is None:
            self.begin(theta)
        assert self.classes is not None
        mine = list(range(len(party.data)))
        strangers = [] if party.unlabelled is None else list(range(len(party.unlabelled)))
        if method.curriculum is not None and round_ <= method.curriculum.rounds * method.rounds:
            mine, strangers = (self.easier(theta, faces, which) for faces, which in self.sets(mine, strangers))
        own, labels = pixels(party.data)[mine], torch.from_numpy(party.data.labels)[mine] + len(phi)
        unknown = pixels(party.unlabelled)[strangers] if strangers else own[:0]
        public, public_labels = own[:0], labels[:0]
        if method.public != "none":
            faces = party.extra_data.faces
            near, features = self.answers(theta, pixels(faces)), self.answers(theta, pixels(party.data))
            unit, own_unit = (rows / rows.norm(dim=1, keepdim=True) for rows in (near, features))
            chosen = [p for p in range(len(faces)) if any(float(unit[p] @ f) > method.threshold for f in own_unit)]
            public, public_labels = pixels(faces)[chosen], torch.from_numpy(faces.labels)[chosen]
        tensors = {f"net.{n}": t for n, t in {**theta, **self.kept}.items()} | {"rows": torch.cat([phi, self.classes])}
        tensors |= {f"branch.{n}": t for n, t in self.branch.items()}
        velocity, losses = dict[str, Tensor](), list[float]()
        self.joined = []
        for _ in range(method.local.epochs):
            found, names = own[:0], labels[:0]
            if method.pseudo_labels is not None and len(unknown):
                given = [self.told(image, tensors, len(phi)) for image in unknown]
                which = [image for image, label in enumerate(given) if label is not None]
                found, names = unknown[which], torch.tensor([label for label in given if label is not None])
                self.joined.append(len(which))
            images, rows = torch.cat([public, own, found]), torch.cat([public_labels, labels, names.long()])
            anchor, previous = self.answers(theta, images), self.answers(self.model, images)
            for batch in self.order(len(images), self.epoch):
                self.net.load_state_dict({**self.net.state_dict(), **part(tensors, "net.")})
                leaves = {n: t.clone().requires_grad_() for n, t in tensors.items() if not n.startswith("net.")}
                leaves |= {f"net.{n}": p for n, p in self.net.named_parameters()}
                features, total = self.net.train()(images[batch]), torch.zeros((), dtype=torch.float64)
                for f, i in zip(features, batch, strict=True):
                    of_one = self.of_one(f, leaves, int(rows[i]), len(phi), anchor[i], previous[i], leaves["rows"])
                    total = total + of_one / len(batch)
                slopes = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
                tensors |= {f"net.{n}": b.clone() for n, b in self.net.named_buffers() if b.is_floating_point()}
                for (name, _), slope in zip(leaves.items(), slopes, strict=True):
                    g = torch.zeros_like(tensors[name]) if slope is None else slope
                    push = g + method.local.weight_decay * tensors[name]
                    velocity[name] = method.local.momentum * velocity.get(name, torch.zeros_like(push)) + push
                    tensors[name] = tensors[name] - method.local.lr * velocity[name]
                losses += [total.item()] * len(batch)
            self.epoch += 1
        self.classes, self.branch, net = tensors["rows"][len(phi) :], part(tensors, "branch."), part(tensors, "net.")
        self.model, self.kept = {n: net[n] for n in theta}, {n: net[n] for n in self.kept}
        self.loss = sum(losses) / len(losses)
        return self.model, tensors["rows"][: len(phi)], len(party.data)

    def sets(self, mine: list[int], strangers: list[int]) -> list[tuple[Any, list[int]]]:
        return [(self.party.data, mine), (self.party.unlabelled, strangers)]

    def easier(self, theta: Tensors, faces: Any, which: list[int]) -> list[int]:
        if not which:
            return which
        ease = self.answers(theta, pixels(faces)).norm(dim=1).tolist()
        assert self.method.curriculum is not None
        if self.method.curriculum.order == "sharpness":
            ease = sharpness(faces).tolist()
        return sorted(sorted(which, key=lambda image: -ease[image])[: (len(which) + 1) // 2])

    def told(self, image: Tensor, tensors: Tensors, public_count: int) -> int | None:
        """The row of its largest cosine, where that is the client's own and above the threshold."""
        net = part(tensors, "net.")
        self.net.load_state_dict({**self.net.state_dict(), **net})
        with torch.no_grad():
            f = self.net.eval()(image[None])[0]
        cosines = [float(f @ row / f.norm() / row.norm()) for row in tensors["rows"]]
        best = max(range(len(cosines)), key=cosines.__getitem__)
        assert self.method.pseudo_labels is not None
        return best if best >= public_count and cosines[best] > self.method.pseudo_labels else None


VARIANTS: dict[str, dict[str, Any]] = {
    "both": {"curriculum": Curriculum("norm", 0.7), "pseudo_labels": SURE},
    "labels": {"pseudo_labels": SURE},
    "labels, BatchNorm": {"pseudo_labels": 0.0, "norm": True, "policy": "local", "branch": "none"},
    "labels, no public": {"pseudo_labels": SURE, "public": "none", "contrastive": 0.0},
    "sharp first": {"curriculum": Curriculum("sharpness", 0.5)},
}


@pytest.mark.parametrize("name", by_default(2, VARIANTS))
def test_the_rounds_are_those_of_the_loop(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dict(VARIANTS[name])
    build = replace(BUILD, norm=settings.pop("norm", False), policy=settings.pop("policy", "average"))
    method, states = FedFRJoint(**SETTINGS, **settings), naive.watched(FedFRJoint, monkeypatch)
    run(method, tmp_path, build)
    theta, phi = build().backbone.shared(), first_phi("train", method)
    members = {party: Learner(party, build, method) for party in build().data}
    joined = []
    for line, state in zip(metrics(tmp_path), states, strict=True):
        ends = [members[party].train(line["round"], theta, phi) for party in sorted(members)]
        shares = [weight / sum(weight for *_, weight in ends) for *_, weight in ends]
        theta = naive.mean(shares, [end for end, _, _ in ends])
        phi = sum((share * end for share, (_, end, _) in zip(shares, ends, strict=True)), torch.zeros_like(phi))
        assert naive.furthest(state.backbone, theta) < 1e-10
        joined += [count for member in members.values() for count in member.joined]
    for party, client in members.items():
        same_as_kept(client, naive.kept(tmp_path, party, Own))
    if method.pseudo_labels is not None:  # some joined, not all, and not as many in every epoch
        assert 0 < max(joined) and min(joined) < 6 and len(set(joined)) > 2, joined


def test_an_easy_round_and_a_whole_one_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Party a has one image of pixel 1, b of −1/5, −1 and −1; at w = 0 the lengths |w − p| of b's are 1/5, 1 and 1.

    Round 1, b's two of −1: a goes 0 → 1/2 → 1 and b to −1, and they count by all of their images: w = (1 − 3)/4 = −1/2.
    Round 2, all three, whose mean is −11/15: a goes −1/2 → 1/4 → 1, and b −1/2 → −37/60 → −11/15: w = (1 − 11/5)/4.
    """

    def line() -> FederatedData:
        world, pixels = naive.line(), np.array([255, 102, 0, 0], dtype=np.uint8).reshape(4, 1, 1, 1)
        return replace(world, data={name: replace(faces, pixels=pixels) for name, faces in world.data.items()})

    work = LocalTraining(epochs=2, batch_size=4, lr=0.5, momentum=0.5, weight_decay=0.0)
    states = naive.watched(CLFedFR, monkeypatch)
    method = CLFedFR(rounds=2, local=work, loss=naive.Square(), public="none", contrastive=0.0, branch="none")
    run(method, tmp_path, line)
    assert [float(state.backbone["w"]) for state in states] == pytest.approx([-0.5, -0.3], abs=1e-8)


# --- parity -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedfr-joint", "adafedfr"])
def test_where_nothing_is_unknown_labels_change_no_bit(name: str, tmp_path: Path) -> None:
    cls = METHODS[name]
    build = Tiny(public=3, norm=True, public_at_server=cls.public_at_server)
    settings: dict[str, Any] = {"rounds": 3, "local": WORK, "loss": COSFACE, "sample": 2}
    plain = run(cls(**settings), tmp_path / "plain", build).bytes()
    assert run(cls(**settings, pseudo_labels=-1.0), tmp_path / "labels", build).bytes() == plain
    never = Curriculum("norm", rounds=0.0)
    assert run(cls(**settings, curriculum=never), tmp_path / "never", build).bytes() == plain


def test_images_of_unknown_identity_are_left_out_where_none_may_join(tmp_path: Path) -> None:
    """Also of a method that is not asked; a threshold of 1 lets none join, and its epochs are taken one by one."""
    known = {party: faces for party, faces in BUILD().data.items()}
    assert [len(faces) for faces in known.values()] == [6, 6, 5]
    left_out = run(FedFRJoint(**SETTINGS), tmp_path / "out", BUILD)
    none_sure = run(FedFRJoint(**SETTINGS, pseudo_labels=1.0), tmp_path / "sure", BUILD)
    assert naive.furthest(left_out.state.backbone, none_sure.state.backbone) == 0
    some = run(FedFRJoint(**SETTINGS, pseudo_labels=SURE), tmp_path / "some", BUILD)
    assert naive.furthest(left_out.state.backbone, some.state.backbone) > 1e-4


def test_the_names_have_the_settings_on() -> None:
    assert SSFedFR().pseudo_labels == 0.5 and SSFedFR().uses_unlabelled and not FedFRJoint().uses_unlabelled
    assert CLFedFR().curriculum == Curriculum("norm", 0.5) and FedFRJoint().curriculum is None
    assert AdaFedFR(pseudo_labels=0.5).uses_unlabelled


def test_with_steps_in_place_of_epochs_images_join_once_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, plain = list[int](), FedFRJoint.with_joined

    def noted(self: FedFRJoint, party: Party, head: Tensor, public_classes: int) -> Any:
        calls.append(party.round)
        return plain(self, party, head, public_classes)

    monkeypatch.setattr(FedFRJoint, "with_joined", noted)
    steps = LocalTraining(steps_per_round=3, batch_size=4, lr=0.02)
    run(FedFRJoint(**SETTINGS | {"local": steps}, pseudo_labels=SURE), tmp_path / "steps", BUILD)
    assert calls == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    calls.clear()
    run(FedFRJoint(**SETTINGS, pseudo_labels=SURE), tmp_path / "epochs", BUILD)
    assert calls == [round_ for round_ in (1, 2, 3) for _ in range(6)]


# --- whom a label reaches ---------------------------------------------------------------------------------------------


def test_no_step_sees_the_identity_of_an_image_that_its_party_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a reply tell how many joined: it counts the known ones alone."""
    seen: list[Party] = []
    plain = FedFRJoint.work

    def noted(self: FedFRJoint, party: Party, own: Own | None, common: Any) -> Any:
        seen.append(party)
        return plain(self, party, own, common)

    monkeypatch.setattr(FedFRJoint, "work", noted)
    _, heard = heard_run(FedFRJoint(**SETTINGS, pseudo_labels=-1.0, weights="trained"), tmp_path, BUILD)
    assert seen
    for party in seen:
        assert party.unlabelled.names == () and set(party.unlabelled.labels.tolist()) == {-1}
        assert party.unlabelled.files is None and (party.data.labels >= 0).all()
        assert not set(party.unlabelled.rows.tolist()) & set(party.data.rows.tolist())
    public = {party: naive.kept(tmp_path, party, Own).used for party in BUILD().data}
    assert len(heard) == 9
    for h in heard:
        said = codec.decode(bytearray(h.data), Update).images
        assert said == len(BUILD().data[h.request.party]) + public[h.request.party][h.request.round - 1]


def test_a_recipe_hides_a_share_of_each_clients_people_and_of_nobody_public(tmp_path: Path) -> None:
    """Six private people of five images: two of each are unknown. The pre-training knows all public people."""
    whole, half = (recipe(data={"unlabelled": share}, method="ss-fedfr", rounds=1) for share in (0.0, 0.5))
    before, parts = Parts(whole).data, Parts(half)
    known, unknown = parts.data.data, parts.data.unlabelled
    for party, faces in before.data.items():
        assert known[party].names == faces.names and set(known[party].counts().tolist()) == {3}
        assert sorted([*known[party].rows, *unknown[party].rows]) == sorted(faces.rows.tolist())
    assert parts.public is not None and len(parts.public) == 30
    assert half.pretrain.recipe == whole.pretrain.recipe
    joint = recipe(data={"unlabelled": 0.5}, method="fedfr-joint")
    assert Parts(joint).data.unlabelled == {} and len(Parts(joint).data.data["silo-00"]) == 6
    pooled = recipe(data={"unlabelled": 0.5, "side": "both"}, method="centralized", pretrain=None)
    (everything,) = Parts(pooled).data.data.values()
    assert len(everything) == 30 + 18
    hidden = np.concatenate([faces.rows for faces in unknown.values()])
    assert not np.isin(everything.rows, hidden).any()


def test_it_is_said_where_images_of_unknown_identity_are_of_no_use_or_there_are_none(tmp_path: Path) -> None:
    notes = {}
    for name, share in (("fedfr-joint", 0.5), ("ss-fedfr", 0.0), ("ss-fedfr", 0.5), ("fedfr-joint", 0.0)):
        view = Silent()
        folder = tmp_path / f"{name}-{share}"
        settings = {"data": {"unlabelled": share}, "method": name, "rounds": 1, "pretrain": None}
        experiment.run(recipe(**settings), folder, view, report=False)
        notes[name, share] = [line for line in view.notes if "unlabelled" in line]
        assert json.loads((folder / "summary.json").read_text())["method"] == name
    assert [len(lines) for lines in notes.values()] == [1, 1, 0, 0], notes


@pytest.mark.parametrize("wrong", [{"pseudo_labels": 1.5}, {"pseudo_labels": float("nan")}])
def test_a_threshold_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="pseudo_labels"):
        FedFRJoint(**wrong)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_of_rounds_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"curriculum\.rounds"):
        Curriculum("norm", share)
