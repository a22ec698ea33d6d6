"""AdaFedFR: whole rounds against plain loops, a round by hand, who holds the public images, and what is sent."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import torch
from cases import by_default
from naive_clients import heard_run, metrics
from naive_fedfr import COSFACE, EXACT, WORK, Client, l_bce, l_con, l_cos, own_model, pixels, same_as_kept
from tinyruns import Silent
from tinyruns import public_images as recipe
from torch import Tensor

from coalface.core.local_results import PERSONAL_MODEL
from coalface.core.method import Party, Tensors
from coalface.data.augment import Augment
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.experiments import run as experiment
from coalface.experiments.conformance.tiny_federation import Tiny, raw, run
from coalface.experiments.plan import on_paper
from coalface.methods.adafedfr import AdaFedFR, Contrast
from coalface.methods.fedfr_joint import FedFRJoint, Own
from coalface.models.groups import Backbone
from coalface.training.compute import Compute

BUILD = replace(EXACT, public_at_server=True)


def ada(**changes: Any) -> AdaFedFR:
    return AdaFedFR(**{"rounds": 2, "local": WORK, "loss": COSFACE, **changes})


# --- whole rounds -----------------------------------------------------------------------------------------------------


class MeansClient(Client):
    """A client by the loop: FedFR's without a public image, and with the contrast."""

    method: AdaFedFR

    def of_one(self, f: Tensor, leaves: Tensors, label: int, public_count: int, *references: Tensor) -> Tensor:
        method, contrast = self.method, self.method.contrast
        anchor, previous, _ = references
        rows, k = leaves["rows"][public_count:], label - public_count
        total = l_cos(f, rows, k)
        if method.contrastive:
            total = total + method.contrastive * l_con(f, anchor, previous, method.temperature)
        if method.branch == "binary":
            turned = leaves["branch.turn"] @ f + leaves["branch.shift"]
            bce = l_bce(turned, leaves["branch.own"], k, leaves["branch.bias"])
            total = total + method.branch_weight * bce
        margin = COSFACE.margin if contrast.margin is None else contrast.margin
        unit = f / f.norm()
        genuine = unit @ rows[k] / rows[k].norm()
        means = leaves["rows"][:public_count] if contrast.learned else leaves["rows"][:public_count].detach()
        near = sorted((unit @ mean / mean.norm() for mean in means), key=Tensor.item)[::-1][: contrast.nearest]
        powers = [torch.exp((c - genuine + margin) / contrast.temperature) for c in near if c > genuine - margin]
        return total + contrast.weight * torch.log(1 + sum(powers, torch.zeros_like(genuine)))


def naive_means(build: Tiny, theta: Tensors) -> Tensor:
    """(3, 8) M: the mean of each public person's unit features, at length one."""
    faces, net = build.public_faces(), build().backbone.module
    assert faces is not None
    net.load_state_dict({**net.state_dict(), **theta})
    with torch.no_grad():
        features = net.eval()(pixels(faces))
    means = []
    for person in range(len(faces.names)):
        total = torch.zeros(8, dtype=torch.float64)
        for feature, label in zip(features, faces.labels, strict=True):
            total += feature / feature.norm() if label == person else 0
        means.append(total / total.norm())
    return torch.stack(means)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two nearest": {"contrast": Contrast(nearest=2, margin=0.6, temperature=0.5), "branch": "none"},
    "means that stay": {"contrast": Contrast(learned=False, weight=3.0), "contrastive": 5.0, "sample": 2, "rounds": 4},
    "BatchNorm": {"norm": True, "contrast": Contrast(margin=0.9)},
    "own BatchNorm": {"norm": True, "policy": "local", "branch": "none"},
}


@pytest.mark.parametrize("name", by_default(2, VARIANTS))
def test_the_rounds_are_those_of_the_loop(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `local` the server embeds with the BatchNorm that the run began with."""
    settings = dict(VARIANTS[name])
    build = replace(BUILD, norm=settings.pop("norm", False), policy=settings.pop("policy", "average"))
    method, states = ada(**settings), naive.watched(AdaFedFR, monkeypatch)
    ran = run(method, tmp_path, build)
    theta = build().backbone.shared()
    means, members = naive_means(build, theta), {party: MeansClient(party, build, method) for party in build().data}
    for line, state in zip(metrics(tmp_path), states, strict=True):
        came = [members[party] for party in sorted(line["losses"])]
        assert len(came) == (method.sample or 3)
        ends = [client.train(line["round"], theta, means) for client in came]
        shares = [weight / sum(weight for *_, weight in ends) for *_, weight in ends]
        theta = naive.mean(shares, [end for end, _, _ in ends])
        means = naive_means(build, theta)
        assert naive.furthest(state.backbone, theta) < 1e-10 and (state.classifier - means).abs().max() < 1e-10
        loss = sum(share * client.loss for share, client in zip(shares, came, strict=True))
        assert line["loss"] == pytest.approx(loss, abs=1e-10)
    personal = dict(ran.server.local_results(PERSONAL_MODEL, ran.models))
    for party, client in members.items():
        same_as_kept(client, naive.kept(tmp_path, party, Own))
        assert naive.furthest(personal[party], own_model(client)) < 1e-10


def line() -> FederatedData:
    """`naive.line`, and at the server two images of a person of pixel −1, and one of a person of pixel −0.2."""
    world, pixels = naive.line(), np.array([0, 0, 102], dtype=np.uint8).reshape(3, 1, 1, 1)
    public = FaceSet(pixels, np.arange(3), np.array([0, 0, 1]), ("far", "near"))
    compute = Compute(augment=Augment(flip=False), dtype=torch.float64)
    return FederatedData(world.data, Backbone(naive.Number()), compute, server_public=public)


def test_a_round_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """w = 0: features w − p of 1, 1 and 0.2, so both means are +1.

    a: 0 → ½ → 1 (velocity −1, −1), b: 0 → −½ → −1; their mean by images is (1 − 3)/4 = −½, where the person of −1 has
    a feature of ½ and the one of −0.2 has −0.3: +1 and −1. Cosines of numbers have no slope.
    """
    begun, states = naive.watched(AdaFedFR, monkeypatch, "init"), naive.watched(AdaFedFR, monkeypatch)
    run(AdaFedFR(rounds=1, local=naive.BY_HAND, loss=naive.Square(), branch="none"), tmp_path, line)
    assert [state.classifier.tolist() for state in (*begun, *states)] == [[[1.0], [1.0]], [[1.0], [-1.0]]]
    assert float(states[0].backbone["w"]) == -0.5


def test_without_the_contrast_it_is_fedfr_without_public_images_bit_for_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 3, "local": WORK, "loss": COSFACE, "contrastive": 5.0, "sample": 2}
    build = Tiny(public=3, norm=True)
    without = AdaFedFR(contrast=Contrast(weight=0.0), **settings)
    ran = run(without, tmp_path / "ada", replace(build, public_at_server=True))
    joint = run(FedFRJoint(public="none", **settings), tmp_path / "joint", build)
    assert raw(ran.state.backbone) == raw(joint.state.backbone) and ran.state.classifier.shape == (0, 8)
    for party in build().data:
        left, right = (naive.kept(tmp_path / folder, party, Own) for folder in ("ada", "joint"))
        assert left.classes.equal(right.classes) and raw(left.branch) == raw(right.branch)


# --- who holds what ---------------------------------------------------------------------------------------------------


def test_no_party_holds_a_public_image_and_none_may_claim_to_have_trained_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[Any] = []
    plain = AdaFedFR.work

    def noted(self: AdaFedFR, party: Party, own: Own | None, common: Any) -> Any:
        beside.append(party.extra_data)
        return plain(self, party, own, common)

    monkeypatch.setattr(AdaFedFR, "work", noted)
    ran = run(ada(), tmp_path, BUILD)
    assert beside == [None] * 6 and ran.server.extra_data is not None
    assert [ran.server._most(party) for party in BUILD().data] == [len(faces) for faces in BUILD().data.values()]


def test_what_is_sent_is_the_means_down_and_nothing_of_public_people_up(tmp_path: Path) -> None:
    """FedFR's Φ goes both ways; a client's reply is as long as FedAvg's."""
    world = BUILD()
    planned = on_paper.plan(ada(), world.by_role(), world.backbone, world.at_server)
    sizes = {
        (sent.direction, sent.field): (sent.bytes, sent.content) for sent in planned.sent if sent.field != "header"
    }
    backbone = sum(tensor.nbytes for tensor in world.backbone.shared().values())
    assert sizes[("down", "classifier")] == (3 * 8 * 4, "template")  # on paper in float32
    assert sizes[("up", "backbone")] == (backbone, "weight")
    assert ("up", "classifier") not in sizes
    ran, heard = heard_run(ada(), tmp_path, BUILD)
    means = naive_means(BUILD, BUILD().backbone.shared())
    assert {tuple(h.common.classifier.shape) for h in heard} == {(3, 8)}
    assert (heard[0].common.classifier - means).abs().max() < 1e-12
    assert all(line["failed"] == {} for line in metrics(tmp_path))


def test_a_model_that_gives_no_features_is_given_up_and_the_state_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite weights whose features are infinite: the round does not count, and the next one goes on from before."""
    plain, calls = AdaFedFR.means, list[int]()

    def failing(self: AdaFedFR, fed: Any, backbone: Tensors) -> Tensor:
        calls.append(fed.round)
        spoilt = {name: tensor * 1e200 for name, tensor in backbone.items()} if len(calls) == 2 else backbone
        return plain(self, fed, spoilt)

    monkeypatch.setattr(AdaFedFR, "means", failing)
    states = naive.watched(AdaFedFR, monkeypatch)
    run(ada(rounds=3), tmp_path, BUILD)
    lines = metrics(tmp_path)
    assert [line["abandoned"] for line in lines] == [True, False, False] and len(states) == 2


# --- a run by a recipe ------------------------------------------------------------------------------------------------


def test_a_run_by_a_recipe_says_nothing_of_public_images_used(tmp_path: Path) -> None:
    parsed = recipe(pretrain=None, method="adafedfr", rounds=1)
    experiment.run(parsed, tmp_path / "run", Silent(), report=False)
    assert (tmp_path / "run" / "summary.json").exists()
    assert '"public_images"' not in (tmp_path / "run" / "summary.json").read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": -1.0},
        {"weight": float("nan")},
        {"margin": float("nan")},
        {"nearest": 0},
        {"margin": 2.5},
        {"temperature": 0.0},
        {"temperature": -1.0},
    ],
)
def test_constants_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{min(wrong)} is "):
        Contrast(**wrong)


@pytest.mark.parametrize(
    ("settings", "idle"),
    [
        ({"threshold": 0.9}, "threshold"),
        ({"phi_update": "none"}, "phi_update"),
        ({"weights": "trained"}, "weights"),
        ({"temperature": 0.1}, "temperature"),
        ({"previous": "random"}, "previous"),
        ({"previous": "random", "temperature": 0.1, "contrastive": 1.0}, None),
    ],
)
def test_a_setting_of_fedfr_that_would_change_nothing_is_refused(settings: dict[str, Any], idle: str | None) -> None:
    with nullcontext() if idle is None else pytest.raises(ValueError, match=f"^{idle} has no effect"):
        AdaFedFR(**settings)
