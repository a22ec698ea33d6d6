"""Centralised training: one party holds everybody's images. The upper bound, and no federation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coalface.core.local_results import CLASS_EMBEDDINGS, OWN_MODEL
from coalface.core.method import Federation, Method, Models, Party, Pools, Tensors, free, message, step
from coalface.data.faceset import FaceSet
from coalface.methods.fedavg import Global, State
from coalface.training.local_training import Learner, learn, whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.losses.per_party import PerPartyLoss


@message
class Update:
    """Up."""

    backbone: Tensors
    images: int
    loss: float
    losses: Tensors = free()
    """With a classifier for each silo: silo -> its mean loss, (), over its images in this round."""


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
    classifiers: Literal["pooled", "per-party"] = "pooled"
    """One classifier over all identities, or one for the identities of each silo, as a federation has: then the loss is
    given for each silo, and can be held against theirs (Bai et al. 2021, Table 1)."""
    local: LocalTraining = LocalTraining()
    loss: CosineLoss = CosFace(scale=30.0, margin=0.35)

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial)

    def round(self, fed: Federation, state: State) -> State:
        answer = fed.ask(self.train, common=Global(backbone=state.backbone))
        (backbone,), (losses,) = (answer.each[name].values() for name in ("backbone", "losses"))
        fed.log(loss=answer.mean("loss", by="images"))
        if losses:
            fed.log_losses({silo: float(loss.mean()) for silo, loss in losses.items()})
        return State(backbone=backbone)

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[Update, Learner]:
        local = self.local if self.batch_size is None else replace(self.local, batch_size=self.batch_size)
        by_silo = PerPartyLoss(self.loss, _silos(party.data)) if self.classifiers == "per-party" else None
        loss, learner = learn(party, common.backbone, own, local, by_silo or self.loss, momentum="keep")
        sums = by_silo.sums if by_silo else {}
        update = Update(
            backbone=party.backbone.shared(),
            images=len(party.data),
            loss=loss,
            losses={party.data.domain_names[n]: torch.tensor(total / images) for n, (images, total) in sums.items()},
        )
        return update, learner

    @property
    def needs_silos(self) -> bool:
        return self.classifiers == "per-party"

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
