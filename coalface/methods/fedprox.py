"""FedProx: local training is held near the global backbone by a proximal term.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020, equation 2 and Algorithm 2; the class
embeddings stay with their party, as in `fedavg`, and are not held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coalface.core.local_results import OWN_MODEL
from coalface.core.method import Federation, Mean, Method, Models, Party, Tensors, message, state, step
from coalface.training.local_training import Learner, learn, whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.sgd import MomentumState


@message
class Global:
    """Down, the same for all."""

    backbone: Tensors
    """w^t."""


@message
class Update:
    """Up."""

    backbone: Tensors
    """w_k^{t+1} after local training."""
    images: int
    """n_k."""
    loss: float
    """Mean of F_k, without the proximal term."""


@state
class State:
    """At the server."""

    backbone: Tensors
    """w^t."""


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """Local training on h_k(w) = F_k(w) + (μ/2) ‖w − w^t‖², over the parameters of the backbone that are shared."""

    title: ClassVar[str] = "FedAvg with a proximal term that holds local training near the global backbone"
    paper: ClassVar[str] = "Li et al. 2020"
    setting: ClassVar[str] = "any"

    rounds: int = 20
    sample: int | None = None
    """Parties a round, drawn anew each round; None: all."""
    mu: float = 0.01
    """μ; 0 is FedAvg."""
    local: LocalTraining = LocalTraining()
    loss: CosineLoss = CosFace(scale=30.0, margin=0.35)
    momentum: MomentumState = "reset"
    """What a round's local training starts from: see `MomentumState`."""
    head_momentum: MomentumState | None = None
    """The same of the class embeddings; None: as the backbone's."""

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial)

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample) if self.sample is not None else None
        answer = fed.ask(
            self.train, to=chosen, common=Global(backbone=state.backbone), aggregate=[Mean("backbone", by="images")]
        )
        fed.log(loss=answer.mean("loss", by="images"))
        return State(backbone=answer.aggregated["backbone"])

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[Update, Learner]:
        anchor = {n: w.to(party.device) for n, w in common.backbone.items()}

        def pull(now: Tensors, images: Tensor, labels: Tensor) -> Tensors:  # ∇ (μ/2) ‖w − w^t‖² = μ (w − w^t)
            return {n: self.mu * (w.detach() - anchor[n]) for n, w in now.items() if n in anchor}

        loss, kept = learn(
            party,
            common.backbone,
            own,
            self.local,
            self.loss,
            momentum=self.momentum,
            head_momentum=self.head_momentum,
            pull=pull,
        )
        return Update(backbone=party.backbone.shared(), images=len(party.data), loss=loss), kept

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Learner | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        if fed.policy == "average":
            return Models(shared=state.backbone)
        return Models(shared=None, common=Global(backbone=state.backbone))  # BatchNorm differs by party
