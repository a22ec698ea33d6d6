"""FedFR as plain loops over a bare torch network: what its methods must agree with, by the paper's equations.

Only the first weights, the images and the order in which a client takes them are the project's own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coalface.core.method import Tensors, generator
from coalface.data.augment import to_tensor
from coalface.data.faceset import FaceSet
from coalface.experiments.conformance.tiny_federation import Ran, Tiny, run
from coalface.methods.fedfr_joint import FedFRJoint, Own
from coalface.training.joint.fedfr import untrained
from coalface.training.local_training import fresh_head
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace

EXACT = Tiny(flip=False, double=True, public=3)
"""Three clients of two identities each and three public ones, of which nothing is drawn."""
COSFACE = CosFace(scale=16.0, margin=0.1)
WORK = LocalTraining(epochs=2, batch_size=4, lr=0.02, momentum=0.5, weight_decay=5e-3)
NEAR = 0.97
"""t_HN at which some public images are near an untrained network's features of a client, and others are not."""


def joint(**changes: Any) -> FedFRJoint:
    return FedFRJoint(**{"rounds": 2, "local": WORK, "loss": COSFACE, "threshold": NEAR, **changes})


def cosines(f: Tensor, rows: Tensor) -> Tensor:
    return rows @ f / (rows * rows).sum(1).sqrt() / (f @ f).sqrt()


def l_cos(f: Tensor, rows: Tensor, y: int) -> Tensor:
    """(3)"""
    powers = torch.exp(COSFACE.scale * cosines(f, rows))
    genuine = powers[y] * torch.exp(torch.tensor(-COSFACE.scale * COSFACE.margin, dtype=f.dtype))
    return -torch.log(genuine / (genuine + powers.sum() - powers[y]))


def l_con(f: Tensor, anchor: Tensor, previous: Tensor, tau: float) -> Tensor:
    """(5)"""
    near, before = torch.exp(cosines(f, torch.stack([anchor, previous])) / tau)
    return -torch.log(near / (near + before))


def l_bce(f: Tensor, omega: Tensor, k: int, b: Tensor) -> Tensor:
    """(6), s' = s, m' = m, t = 3, λ = 0.7; k < 0: an image of nobody here."""
    s, m = COSFACE.scale, COSFACE.margin
    g = 2 * ((cosines(f, omega) + 1) / 2) ** 3 - 1
    no = 0.3 / s * torch.log(1 + torch.exp(s * (g + m) + b))
    yes = 0.7 / s * torch.log(1 + torch.exp(-s * (g - m) - b))
    return no.sum() if k < 0 else no.sum() - no[k] + yes[k]


def kl(f: Tensor, rows: Tensor, anchor: Tensor, teacher: Tensor, t: float) -> Tensor:
    p, q = (torch.exp(COSFACE.scale * cosines(*pair) / t) for pair in ((anchor, teacher), (f, rows)))
    p, q = p / p.sum(), q / q.sum()
    return (p * torch.log(p / q)).sum()


class Client:
    """One client: what it keeps, and its local training."""

    def __init__(self, name: str, build: Tiny, method: FedFRJoint) -> None:
        self.party, self.method = naive.party(name, build), method
        self.net: nn.Module = build().backbone.module
        self.classes: Tensor | None = None
        self.branch: Tensors = {}
        self.model: Tensors = {}
        self.kept: Tensors = build().backbone.kept()
        """The BatchNorm that stays with it; at first that of an untrained network."""
        self.epoch = 0
        self.near: list[int] = []
        """How many public images were near, by round."""
        self.teaching: tuple[float, float] | None = None
        """α and T, where everybody's model teaches."""

    def enter(self, stage: str) -> None:
        """A stage begins."""
        self.party = replace(self.party, stage=stage)

    def begin(self, theta: Tensors) -> None:
        method = self.method
        self.classes = fresh_head(self.party)
        self.model = dict(theta)
        if method.detail("previous") == "random":
            drawn = untrained(self.party, self.party.stream("previous"))
            self.model = {name: drawn[name] for name in theta}
        if method.branch == "none":
            return
        omega = self.party.stream("branch").standard_normal(tuple(self.classes.shape), dtype=np.float32)
        self.branch = {
            "turn": torch.eye(8, dtype=torch.float64),
            "shift": torch.zeros(8, dtype=torch.float64),
            "own": torch.from_numpy(omega * np.float32(0.01)).double(),
        }
        if method.detail("branch_init") == "classes":
            self.branch["own"] = self.classes.clone()
        if method.branch == "binary":
            start = torch.tensor(method.binary_loss.start(len(self.classes)), dtype=torch.float64)
            self.branch["bias"] = torch.zeros(len(self.classes)).double() if method.detail("bias") == "each" else start

    def answers(self, model: Tensors, images: Tensor) -> Tensor:
        """(n, d) of a network that is not in training, with the BatchNorm that has stayed here."""
        self.net.load_state_dict({**self.net.state_dict(), **model, **self.kept})
        with torch.no_grad():
            return self.net.eval()(images).clone()

    def images(self, theta: Tensors, first_row: int) -> tuple[Tensor, Tensor]:
        """What it trains on, public images first, and their rows in [Φ ; W]."""
        faces, public = self.party.data, self.party.extra_data and self.party.extra_data.faces
        images, labels = pixels(faces), torch.from_numpy(faces.labels) + first_row
        if self.method.public == "none":
            return images, labels
        chosen = list(range(len(public)))
        if self.method.public == "hard-negatives":
            features, public_features = self.answers(theta, images), self.answers(theta, pixels(public))
            chosen = [
                p
                for p in chosen
                if any(float(c) > self.method.threshold for c in cosines(public_features[p], features))
            ]
        self.near.append(len(chosen))
        return torch.cat([pixels(public)[chosen], images]), torch.cat([torch.from_numpy(public.labels)[chosen], labels])

    def order(self, count: int, epoch: int) -> list[list[int]]:
        """The batches of an epoch: one image that is left over joins the last, or goes where the last must be full."""
        batch, whole = self.method.local.batch_size, self.stream(epoch).permutation(count).tolist()
        if self.method.detail("drop_last") and count >= batch:
            return [whole[at : at + batch] for at in range(0, count - batch + 1, batch)]
        batches = [whole[at : at + batch] for at in range(0, count, batch)]
        return [*batches[:-2], batches[-2] + batches[-1]] if len(batches) > 1 and len(batches[-1]) == 1 else batches

    def stream(self, epoch: int) -> np.random.Generator:
        return self.party.stream(self.party.stage, "epoch", epoch)

    def train(self, round_: int, theta: Tensors, phi: Tensor) -> tuple[Tensors, Tensor, int]:
        """A round: Θ_l, Φ_l and the client's weight; `loss` is then the mean of the images'."""
        method, public_count = self.method, len(phi)
        if self.classes is None:
            self.begin(theta)
        assert self.classes is not None
        images, labels = self.images(theta, public_count)
        anchor, previous = self.answers(theta, images), self.answers(self.model, images)
        tensors = {f"net.{n}": t for n, t in {**theta, **self.kept}.items()} | {"rows": torch.cat([phi, self.classes])}
        tensors |= {f"branch.{n}": t for n, t in self.branch.items()}
        teacher, velocity, losses = tensors["rows"].clone(), dict[str, Tensor](), list[float]()
        epochs, after = method.detail("epochs"), method.detail("decay_after")
        place = min(round_, len(epochs)) - 1
        for number in range(epochs[place] if epochs else method.local.epochs):
            lr = method.local.lr_at(round_, method.rounds) / (10 if after and number >= after[place] else 1)
            for batch in self.order(len(images), self.epoch):
                self.net.load_state_dict({**self.net.state_dict(), **part(tensors, "net.")})
                leaves = {n: t.clone().requires_grad_() for n, t in tensors.items() if not n.startswith("net.")}
                leaves |= {f"net.{n}": p for n, p in self.net.named_parameters()}
                features, total = self.net.train()(images[batch]), torch.zeros((), dtype=torch.float64)
                for f, i in zip(features, batch, strict=True):
                    total = total + self.of_one(
                        f, leaves, int(labels[i]), public_count, anchor[i], previous[i], teacher
                    )
                total = total / len(batch)
                slopes = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
                tensors |= {f"net.{n}": b.clone() for n, b in self.net.named_buffers() if b.is_floating_point()}
                for (name, _), slope in zip(leaves.items(), slopes, strict=True):
                    g = torch.zeros_like(tensors[name]) if slope is None else slope
                    step = g + method.local.weight_decay * tensors[name]
                    velocity[name] = method.local.momentum * velocity.get(name, torch.zeros_like(step)) + step
                    tensors[name] = tensors[name] - lr * velocity[name]
                losses += [total.item()] * len(batch)
            self.epoch += 1
        self.classes, self.branch, net = tensors["rows"][public_count:], part(tensors, "branch."), part(tensors, "net.")
        self.model, self.kept = {n: net[n] for n in theta}, {n: net[n] for n in self.kept}
        self.loss = sum(losses) / len(losses)
        weight = len(images) if method.detail("weights") == "trained" else len(self.party.data)
        return self.model, tensors["rows"][:public_count], weight

    def of_one(
        self,
        f: Tensor,
        leaves: Tensors,
        label: int,
        public_count: int,
        anchor: Tensor,
        previous: Tensor,
        teacher: Tensor,
    ) -> Tensor:
        """(7) of one image."""
        method, total = self.method, l_cos(f, leaves["rows"], label)
        if self.teaching is not None:
            alpha, t = self.teaching
            return (1 - alpha) * total + alpha * t**2 * kl(f, leaves["rows"], anchor, teacher, t)
        if method.contrastive:
            total = total + method.contrastive * l_con(f, anchor, previous, method.temperature)
        if method.branch != "none":
            rows = leaves["branch.own"]
            turned = leaves["branch.turn"] @ (f if method.through else f.detach()) + leaves["branch.shift"]
            if method.branch == "binary":
                total = total + method.branch_weight * l_bce(turned, rows, label - public_count, leaves["branch.bias"])
            elif label >= public_count:
                total = total + method.branch_weight * l_cos(turned, rows, label - public_count)
        return total


def part(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def pixels(faces: FaceSet) -> Tensor:
    return to_tensor(faces.take(np.arange(len(faces)))).double()


def first_phi(stage: str, method: FedFRJoint) -> Tensor:
    """Φ_g where no pre-training left one."""
    rows = generator(0, "server", stage, 0, "classifier").standard_normal((3, 8), dtype=np.float32)
    return torch.from_numpy(rows * np.float32(0.01)).double()[: 0 if method.public == "none" else 3]


def followed(
    method: FedFRJoint, folder: Path, monkeypatch: pytest.MonkeyPatch, build: Tiny = EXACT, stage: str = "train"
) -> tuple[Ran, dict[str, Client], Tensors, Tensor]:
    """A run whose every round was held against the loop: the run, and its clients, Θ_g and Φ_g by the loop."""
    states = naive.watched(type(method), monkeypatch)
    ran = run(method, folder, build)
    theta, phi = build().backbone.shared(), first_phi(stage, method)
    members = {name: Client(name, build, method) for name in build().data}
    lines = [line for line in metrics(folder) if line["stage"] == stage]
    assert len(lines) == len(states) == method.rounds
    for line, state in zip(lines, states, strict=True):
        came = {name: members[name] for name in sorted(line["losses"])}
        assert len(came) == (method.sample or len(members))
        for client in came.values():
            client.enter(stage)
        ends = [client.train(line["round"], theta, phi) for client in came.values()]
        total = sum(weight for _, _, weight in ends)
        shares = [weight / total for _, _, weight in ends]
        theta = naive.mean(shares, [end for end, _, _ in ends])
        if method.detail("phi_update") == "average":
            phi = sum(share * end for share, (_, end, _) in zip(shares, ends, strict=True))  # type: ignore[assignment]
        assert naive.furthest(state.backbone, theta) < 1e-10
        assert (
            naive.furthest({"phi": state.classifier}, {"phi": phi}) < 1e-10 if len(phi) else not len(state.classifier)
        )
        loss = sum(share * client.loss for share, client in zip(shares, came.values(), strict=True))
        assert line["loss"] == pytest.approx(loss, abs=1e-10)
    return ran, members, theta, phi


def same_as_kept(client: Client, private: Own) -> None:
    """What a client keeps is what the loop says."""
    assert client.classes is not None
    assert naive.furthest({"W": private.classes, **private.branch}, {"W": client.classes, **client.branch}) < 1e-10
    assert naive.furthest({**private.model, **private.kept}, {**client.model, **client.kept}) < 1e-10
    assert private.kept.keys() == client.kept.keys()


def own_model(client: Client) -> Tensors:
    """[Θ_l, Π], with the client's BatchNorm; nothing of one that has never trained."""
    if client.classes is None:
        return {}
    names = {"turn": "branch.weight", "shift": "branch.bias"}
    mapped = {names[name]: tensor for name, tensor in client.branch.items() if name in names}
    return {**client.model, **client.kept, **mapped}


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
