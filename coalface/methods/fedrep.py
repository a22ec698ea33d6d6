"""FedRep: a party trains its class embeddings over a fixed backbone, then the backbone under them, which is averaged.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for personalized federated learning", ICML
2021, Algorithm 1. Class embeddings, the paper's heads, are not sent in `fedavg` either: what differs is who is trained
when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.core.local_results import PERSONAL_MODEL
from coalface.core.method import Party, Tensors, step
from coalface.methods.fedavg import FedAvg, Global, Update
from coalface.methods.solo import Own
from coalface.training.local_training import learn, learners_classifier, train, whole_backbone
from coalface.training.local_work import Cursor, LocalTraining
from coalface.training.sgd import MOMENTUM


@dataclass(frozen=True, kw_only=True)
class FedRep(FedAvg):
    """`fedavg` whose local round is in two parts: h ← h − η ∇_h F(θ, h), `head_epochs` times over the party's images.

    Then θ ← θ − η ∇_θ F(θ, h), for the work of `local`; the loss that a party reports is of this part. BatchNorm takes
    the statistics of its batches in both. Faces are compared by embeddings, in which the class embeddings h have no
    part, so a party's own model is its backbone as its last round left it. It gains nothing where class embeddings keep
    up with the backbone without a part of their own; of one identity a softmax has no gradient, and nothing is trained.
    """

    title: ClassVar[str] = "trains class embeddings, then the backbone, which is averaged"
    paper: ClassVar[str] = "Collins et al. 2021"
    setting: ClassVar[str] = "any"

    head_epochs: int = 10
    """τ_h: passes over a party's images that train the class embeddings alone, as in the paper's experiments."""

    def __post_init__(self) -> None:
        if self.head_epochs < 1:
            raise ValueError(f"head_epochs is {self.head_epochs}; give 1 or more")

    @step(role="trainer")
    def train(self, party: Party, own: Own | None, common: Global) -> tuple[Update, Own]:
        of_head = MOMENTUM[self.head_momentum or self.momentum]
        party.backbone.load(common.backbone, own.kept if own else None)
        batches, cursor = self.head_work.batches(party, own.cursor if own else Cursor())
        classifier = learners_classifier(party, own, self.local, self.loss, of_head)
        head = train(party, classifier, batches, self.local.sgd(party), fixed_backbone=True)
        learner = head.learner(cursor, party.backbone.kept(), own.velocity if own else {})
        loss, learner = learn(
            party,
            party.backbone.shared(),
            learner,
            self.local,
            self.loss,
            momentum=self.momentum,
            fixed_head=True,
        )
        update = Update(backbone=party.backbone.shared(), images=len(party.data), loss=loss)
        kept = vars(learner) | {"velocity": learner.velocity | of_head.keep(head.head_velocity)}
        return update, Own(**kept, backbone=update.backbone)

    def round_work(self, stage: str, round_: int, role: str, party: str, images: int) -> tuple[int, int]:
        (steps, seen), (body_steps, body_seen) = (work.work(party, images) for work in (self.head_work, self.local))
        return steps + body_steps, seen + body_seen

    @property
    def head_work(self) -> LocalTraining:
        """Which images the first part trains on; its learning rate is the round's."""
        return self.local.in_epochs(self.head_epochs)

    @step(role="trainer", local=PERSONAL_MODEL)
    def personal(self, party: Party, own: Own | None) -> Tensors:
        return whole_backbone(party, own.backbone, own.kept) if own else {}
