"""Centralised training: one party holds everybody's images. The upper bound, and no federation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coalface.core.local_results import CLASS_EMBEDDINGS, OWN_MODEL
from coalface.core.method import Federation, Method, Models, Party, Pools, Tensors, free, message, step
from coalface.data.faceset import FaceSet
from coalface.methods.fedavg import Global, State, Update
from coalface.training.local_training import Learner, learn, whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.losses.per_party import PerPartyLoss


@message
class BySilo:
    """Up, where each silo has a classifier of its own."""

    backbone: Tensors
    images: int
    loss: float
    losses: Tensors = free("score")
    """Silo -> its mean loss, (), over its images in this round."""


@dataclass(frozen=True, kw_only=True)
class Centralized(Method):
    """Plain SGD on the pooled images; momentum goes on throughout."""

    title: ClassVar[str] = "pools all images at one party: the upper bound"
    paper: ClassVar[str] = "the upper bound"
    setting: ClassVar[str] = "any"
    pools: ClassVar[Pools] = "images and labels"

    rounds: int = 20
    batch_size: int | None = None
    """Images of a step; None: `local.batch_size`. For as many as all silos take in a step together."""
    classifiers: Literal["per-party"] | None = None
    """A classifier for the identities of each silo, as a federation has, so that each one's loss can be held against
    theirs (Bai et al. 2021, Table 1); None: one over all identities."""
    local: LocalTraining = LocalTraining()
    loss: CosineLoss = CosFace(scale=30.0, margin=0.35)

    @property
    def work(self) -> LocalTraining:
        """A round's, with the batches of this method."""
        return self.local if self.batch_size is None else replace(self.local, batch_size=self.batch_size)

    def round_work(self, stage: str, round_: int, role: str, party: str, images: int) -> tuple[int, int]:
        return self.work.work(party, images)

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial)

    def round(self, fed: Federation, state: State) -> State:
        answer = fed.ask(self.train_by_silo if self.classifiers else self.train, common=Global(backbone=state.backbone))
        fed.log(loss=answer.mean("loss", by="images"))
        for losses in answer.each.get("losses", {}).values():
            fed.log_losses({silo: float(loss.mean()) for silo, loss in losses.items()})
        (backbone,) = answer.each["backbone"].values()
        return State(backbone=backbone)

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[Update, Learner]:
        loss, learner = learn(party, common.backbone, own, self.work, self.loss, momentum="keep")
        return Update(backbone=party.backbone.shared(), images=len(party.data), loss=loss), learner

    @step(role="trainer")
    def train_by_silo(self, party: Party, own: Learner | None, common: Global) -> tuple[BySilo, Learner]:
        criterion, names = PerPartyLoss(self.loss, _silos(party.data)), party.data.domain_names
        loss, learner = learn(party, common.backbone, own, self.work, criterion, momentum="keep")
        losses = {names[n]: torch.tensor(total / images) for n, (images, total) in criterion.sums.items()}
        return BySilo(backbone=party.backbone.shared(), images=len(party.data), loss=loss, losses=losses), learner

    @property
    def needs_silos(self) -> bool:
        return self.classifiers is not None

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Learner | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.kept if own else None)

    @step(role="trainer", local=CLASS_EMBEDDINGS)
    def classifier(self, party: Party, own: Learner | None) -> Tensors:
        classes = len(party.data.names)
        return {"class_embeddings": own.head} if own and self.loss.rows(classes) == classes else {}

    def models(self, fed: Federation, state: State) -> Models:
        return Models.by_policy(fed, Global(backbone=state.backbone))


def _silos(faces: FaceSet) -> Tensor:
    """(k,) the number of the silo that each identity is of. Raises ValueError where an identity is of two."""
    silos, domains = torch.full((len(faces.names),), -1), torch.from_numpy(faces.domains)
    labels = torch.from_numpy(faces.labels)
    silos[labels] = domains
    if not torch.equal(silos[labels], domains):
        both = faces.names[int(labels[(silos[labels] != domains).nonzero()[0, 0]])]
        raise ValueError(f"{both} is of two silos, and a classifier for each silo needs every identity in one")
    return silos
