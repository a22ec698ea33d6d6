"""SCAFFOLD: control variates correct the drift of local training.

Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020, Algorithm 1 with
option II of line 12; the class embeddings are not sent and not corrected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from coalface.core.local_results import OWN_MODEL
from coalface.core.method import (
    Federation,
    Mean,
    Method,
    Models,
    Party,
    Tensors,
    content,
    message,
    private,
    state,
    step,
)
from coalface.methods.fedavg import Update
from coalface.training.local_training import Learner, learn, whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.sgd import MomentumState


@message
class Global:
    """Down, the same for all."""

    backbone: Tensors
    """x."""
    control: Tensors = content("aggregate")
    """c, of the parameters alone, in units of a gradient."""


@private
class Controlled(Learner):
    """What stays at a party."""

    control: Tensors
    """c_i, zero before the first round."""


@state
class State:
    """At the server."""

    backbone: Tensors
    """x."""
    control: Tensors
    """c."""


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
    """Local steps y_i ← y_i − η (g − c_i + c), where c = Σ w_i c_i over all trainers, present or not.

    A party that took part has c_i⁺ = c_i − c + (x − y_i) / (K_i η), its mean gradient along the way (weight decay
    included); the others keep theirs. So Δc_i = (x − y_i) / (K_i η) − c, and the server takes Σ w_i Δc_i from the
    differences y_i − x, in which an absent party counts as zero. Backbones have no local momentum, with which c_i would
    not be a gradient. Algorithm 1 sends Δc_i too, but it follows from y_i:
    half of that is sent. K_i is `local.steps_per_round`, or the steps that the party's epochs have.
    """

    title: ClassVar[str] = "corrects the drift of local steps by control variates"
    paper: ClassVar[str] = "Karimireddy et al. 2020"
    setting: ClassVar[str] = "any"
    counts_replies: ClassVar[bool] = True

    rounds: int = 20
    sample: int | None = None
    """Parties a round, drawn anew each round; None: all."""
    server_lr: float = 1.0
    """η_g."""
    weights: Literal["images", "equal"] = "images"
    """w_i: shares of the images, or equal as in the paper."""
    local: LocalTraining = LocalTraining()
    loss: CosineLoss = CosFace(scale=30.0, margin=0.35)
    head_momentum: MomentumState = "keep"
    """Of the class embeddings: zero at a round's start (`reset`), kept from the last (`keep`), or unused (`none`)."""

    def __post_init__(self) -> None:
        if not self.server_lr > 0:
            raise ValueError(f"server_lr is {self.server_lr}; give a number above 0 (1: the mean of the backbones)")

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial, control=fed.zeros())

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample)
        everyone = fed.parties("trainer")
        weight = fed.weights("trainer") if self.weights == "images" else dict.fromkeys(everyone, 1.0)
        slowed = {party: w / self.local.count(fed.images(party)) for party, w in weight.items()}  # w_i / K_i
        mean = Mean("backbone", by=weight)
        drift = Mean("backbone", by=slowed, over="all", of="differences", name="drift")
        sent = Global(backbone=state.backbone, control=state.control)
        answer = fed.ask(self.train, to=chosen, common=sent, aggregate=[mean, drift])
        fed.log(loss=answer.mean("loss", by="images"))
        x, y, moved, c = state.backbone, answer.aggregated["backbone"], answer.aggregated["drift"], state.control
        arrived = sum(weight[party] for party in answer.arrived) / sum(weight.values())  # Σ w_i of those
        rate = sum(slowed.values()) / (sum(weight.values()) * self.local.lr_at(fed.round, self.rounds))
        return State(
            backbone={n: torch.lerp(x[n], y[n], self.server_lr) if n in c else y[n] for n in x},  # lines 16, 17
            control={n: c[n] - arrived * c[n] - rate * moved[n] for n in c},  # c + Σ w_i Δc_i
        )

    @step(role="trainer")
    def train(self, party: Party, own: Controlled | None, common: Global) -> tuple[Update, Controlled]:
        x, c = ({n: w.to(party.device) for n, w in t.items()} for t in (common.backbone, common.control))
        c_i = own.control if own else {n: torch.zeros_like(w) for n, w in c.items()}
        excess = {n: c_i[n].to(party.device) - w for n, w in c.items()}  # c_i − c
        correction = {n: -w for n, w in excess.items()}
        loss, learner = learn(
            party,
            common.backbone,
            own,
            self.local,
            self.loss,
            momentum="none",
            head_momentum=self.head_momentum,
            pull=lambda trained, images, labels: correction,
        )  # line 10
        y = party.backbone.shared()
        rate = 1 / (self.local.count(len(party.data)) * self.local.lr_at(party.round, party.rounds))
        control = {n: excess[n] + rate * (x[n] - y[n]) for n in c}  # line 12 (ii)
        return Update(backbone=y, images=len(party.data), loss=loss), Controlled(**vars(learner), control=control)

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Controlled | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        return Models.by_policy(fed, Global(backbone=state.backbone, control=state.control))
