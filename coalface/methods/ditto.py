"""Ditto: beside the global model each party trains one of its own, held near the global one; it is never sent.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, Algorithm 1. The
class embeddings of both models stay with their party, each model with its own, and are not held.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import ClassVar

from coalface.core.local_results import PERSONAL_MODEL
from coalface.core.method import Party, Tensors, private, step
from coalface.methods import solo
from coalface.methods.fedavg import FedAvg, Global, Update
from coalface.training.local_training import Learner, learn, pull_towards, whole_backbone


@private
class TwoModels(Learner):
    """What stays at a party: what the global model's training keeps, and"""

    personal: solo.Own
    """v_k, and what its training keeps."""


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """`fedavg`, and at each party that trains v_k ← v_k − η (∇F_k(v_k) + λ (v_k − θ)), θ the backbone that it was sent.

    v_k takes the steps of `local` on the same images as the global model, from v_k of the party's last round, at first
    the initial backbone; its momentum goes on from round to round. With λ = 0 it is `solo`'s, bit for bit. A round
    takes twice the work of one of `fedavg`. It gains nothing where a party's images tell its people apart no better
    than everybody's do; of one identity F_k is constant under a softmax, and v_k only follows θ.
    """

    title: ClassVar[str] = "fedavg, and beside it each party's own model, held near it"
    paper: ClassVar[str] = "Li et al. 2021"
    setting: ClassVar[str] = "any"

    lam: float = 1.0
    """λ, how strongly a party's own model is held; the paper tries 0.1, 1 and 2."""

    def __post_init__(self) -> None:
        if not 0 <= self.lam < float("inf"):
            raise ValueError(f"lam is {self.lam}; give 0 (a model by itself) or more, such as 1")

    @step(role="trainer")
    def train(self, party: Party, own: TwoModels | None, common: Global) -> tuple[Update, TwoModels]:
        again = replace(party, rng=copy.deepcopy(party.rng))  # the same augmented images in the same order
        update, learner = super().train(party, own, common)
        before = own.personal if own else None
        v, held = before.backbone if before else party.initial, pull_towards(common.backbone, self.lam, party.device)
        _, of_v = learn(again, v, before, self.local, self.loss, momentum="keep", pull=held)
        personal = solo.Own(**vars(of_v), backbone=party.backbone.shared())
        return update, TwoModels(**vars(learner), personal=personal)

    def round_work(self, stage: str, round_: int, role: str, party: str, images: int) -> tuple[int, int]:
        steps, seen = self.local.work(party, images)
        return 2 * steps, 2 * seen

    @step(role="trainer", local=PERSONAL_MODEL)
    def personal(self, party: Party, own: TwoModels | None) -> Tensors:
        return whole_backbone(party, own.personal.backbone, own.personal.kept) if own else {}
