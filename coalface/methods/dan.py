"""DAN: supervised training on the source, with the discrepancy (MMD) of the two domains' features in the loss.

Long et al., "Learning transferable features with deep adaptation networks", ICML 2015; for faces Luo et al., "Deep
unsupervised domain adaptation for face recognition", FG 2018. One party holds the images of both domains.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from coalface.core.local_results import OWN_MODEL
from coalface.core.method import Federation, Method, Models, Party, Pools, Scenario, Tensors, step
from coalface.methods.fedavg import Global, State, Update
from coalface.training.domain_adaptation.losses import Adversary, Discrepancy
from coalface.training.domain_adaptation.mixed_batches import Mixed, learn_mixed
from coalface.training.local_training import whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.base import check_pure
from coalface.training.losses.margins import CosFace, CosineLoss


@dataclass(frozen=True, kw_only=True)
class Adaptation(Method):
    """Training at one party on batches of both domains, by a loss of the source's labels and of both domains."""

    setting: ClassVar[str] = "cross-silo"
    scenario: ClassVar[Scenario] = "domains"
    pools: ClassVar[Pools] = "images"

    rounds: int = 20
    local: LocalTraining = LocalTraining(steps_per_round=100)
    loss: CosineLoss = CosFace(scale=30.0, margin=0.35)
    weight: float = 1.0
    """Of the term between the domains, beside the loss of the source."""

    def __post_init__(self) -> None:
        check_pure(self.loss)

    def round_work(self, stage: str, round_: int, role: str, party: str, images: int) -> tuple[int, int] | None:
        """A step sees a batch of each domain; an epoch is of the source, whose images are not known apart."""
        k = self.local.steps_per_round
        return None if k is None else (k, 2 * k * self.local.batch_size)

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial)

    def round(self, fed: Federation, state: State) -> State:
        answer = fed.ask(self.train, common=Global(backbone=state.backbone))
        fed.log(loss=answer.mean("loss"))
        (backbone,) = answer.each["backbone"].values()
        return State(backbone=backbone)

    @abstractmethod
    def between(self, party: Party) -> tuple[Discrepancy | Adversary, Tensors]:
        """The loss of a round, and what it trains beside the class embeddings, as it is at first."""

    @step(role="trainer")
    def train(self, party: Party, own: Mixed | None, common: Global) -> tuple[Update, Mixed]:
        loss, fresh = self.between(party)
        extra = self.loss.extra(len(party.data.names)) | fresh
        mean, state = learn_mixed(party, common.backbone, own, self.local, loss, extra)
        return Update(backbone=party.backbone.shared(), images=len(party.data), loss=mean), state

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Mixed | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.learner.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        return Models.by_policy(fed, Global(backbone=state.backbone))


@dataclass(frozen=True, kw_only=True)
class DAN(Adaptation):
    """L = F_s(w) + weight · MMD²(features of the source, features of the target), under several Gaussian kernels."""

    title: ClassVar[str] = "pools both domains and narrows their discrepancy (MMD)"
    paper: ClassVar[str] = "Long et al. 2015"

    kernels: int = 5
    """Gaussian kernels whose mean is taken."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight >= 0 or self.kernels < 1:
            raise ValueError(f"weight is 0 or more and kernels 1 or more; got {self.weight} and {self.kernels}")

    def between(self, party: Party) -> tuple[Discrepancy, Tensors]:
        return Discrepancy(self.loss, self.weight, self.kernels), {}
