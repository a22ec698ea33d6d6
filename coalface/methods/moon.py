"""MOON: a party's embeddings are held near the global model's, and away from those of its own last model.

Li, He, Song, "Model-contrastive federated learning", CVPR 2021, Algorithm 1; the class embeddings are not sent, and the
term is taken of the embeddings themselves, where the paper has a projection head above them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coalface.core.method import Party, Tensors, private, step
from coalface.methods.fedavg import FedAvg, Global, Update
from coalface.training.joint.fedfr import drift, frozen
from coalface.training.local_training import Learner, learn, whole_backbone
from coalface.training.losses.base import check_pure


@private
class Contrasted(Learner):
    """What stays at a party."""

    model: Tensors
    """w_i of its last round."""


@dataclass(frozen=True, kw_only=True)
class Moon(FedAvg):
    """`fedavg` with local training on ℓ_sup + μ ℓ_con, the mean of −log(e^{a/τ} / (e^{a/τ} + e^{p/τ})).

    a = cos(z, z_glob) and p = cos(z, z_prev) compare an image's embedding z with those by the global model that was
    sent, and by the party's model of its last round; both stand still, in evaluation mode. In a party's first round
    z_prev is z_glob, so that the term is log 2 and has no gradient. The loss that parties report is ℓ_sup.
    """

    title: ClassVar[str] = "fedavg that contrasts the global model with a party's last"
    paper: ClassVar[str] = "Li et al. 2021 (MOON)"
    setting: ClassVar[str] = "cross-silo"

    mu: float = 1.0
    """μ; the paper chooses among 0.1, 1, 5 and 10. 0 is FedAvg."""
    temperature: float = 0.5
    """τ."""

    def __post_init__(self) -> None:
        if not (self.mu >= 0 and self.temperature > 0):
            raise ValueError(f"mu is 0 or more and temperature above 0; got {self.mu} and {self.temperature}")
        check_pure(self.loss)

    def criterion(
        self, embeddings: Tensor, head: Tensor, labels: Tensor, *, anchor: Tensor, previous: Tensor, **extra: Tensor
    ) -> Tensor:
        """ℓ_sup of (n, d) embeddings z, with the gradient of ℓ_sup + μ ℓ_con; `anchor` is z_glob, `previous` z_prev."""
        contrast = self.mu * drift(embeddings, anchor, previous, self.temperature)
        return self.loss(embeddings, head, labels, **extra) + (contrast - contrast.detach())

    @step(role="trainer")
    def train(self, party: Party, own: Contrasted | None, common: Global) -> tuple[Update, Contrasted]:
        beside = None
        if self.mu:
            kept = own.kept if own else None
            models = {"anchor": common.backbone, "previous": own.model if own else common.backbone}
            beside = frozen(party, {name: whole_backbone(party, model, kept) for name, model in models.items()})
        loss, learner = learn(
            party,
            common.backbone,
            own,
            self.local,
            self.loss,
            momentum=self.momentum,
            head_momentum=self.head_momentum,
            criterion=self.criterion if self.mu else None,
            beside=beside,
        )
        shared = party.backbone.shared()
        return Update(backbone=shared, images=len(party.data), loss=loss), Contrasted(**vars(learner), model=shared)
