"""SlowMo: the server moves the global backbone by a slow momentum of its rounds.

Wang et al., "SlowMo: improving communication-efficient distributed SGD with slow momentum", ICLR 2020, Algorithm 1; the
class embeddings are not sent, as in `fedavg`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

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
    """x_{t,0}."""


@message
class Update:
    """Up."""

    backbone: Tensors
    """x_{t,τ} of this party."""
    images: int
    """n_i."""
    loss: float


@state
class State:
    """At the server."""

    backbone: Tensors
    """x_{t,0}."""
    momentum: Tensors
    """u_t, of the parameters alone, in units of a gradient."""


@dataclass(frozen=True, kw_only=True)
class SlowMo(Method):
    """u ← β u + (x − x̄) / γ and x ← x − α γ u, where x̄ is the mean of the local backbones by images and γ the rate.

    Both are of the parameters alone: BatchNorm's running statistics are averaged. α = 1 and β = 0 is FedAvg.
    """

    title: ClassVar[str] = "FedAvg with a slow momentum at the server"
    paper: ClassVar[str] = "Wang et al. 2020"
    setting: ClassVar[str] = "any"

    rounds: int = 20
    sample: int | None = None
    """Parties a round, drawn anew each round; None: all."""
    slow_momentum: float = 0.7
    """β. The paper tunes it by task; the default is ours."""
    slow_lr: float = 1.0
    """α."""
    local: LocalTraining = LocalTraining()
    loss: CosineLoss = CosFace(scale=30.0, margin=0.35)
    momentum: MomentumState = "reset"
    """What a round's local training starts from: see `MomentumState`."""
    head_momentum: MomentumState | None = None
    """The same of the class embeddings; None: as the backbone's."""

    def __post_init__(self) -> None:
        if not (0 <= self.slow_momentum < 1 and self.slow_lr > 0):
            raise ValueError(
                f"SlowMo needs 0 ≤ slow_momentum < 1 and slow_lr > 0; got slow_momentum={self.slow_momentum}, "
                f"slow_lr={self.slow_lr}"
            )

    def init(self, fed: Federation) -> State:
        zero = {name: torch.zeros_like(w) for name, w in fed.initial.items() if name in fed.parameters}
        return State(backbone=fed.initial, momentum=zero)

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample) if self.sample is not None else None
        answer = fed.ask(
            self.train, to=chosen, common=Global(backbone=state.backbone), aggregate=[Mean("backbone", by="images")]
        )
        fed.log(loss=answer.mean("loss", by="images"))
        x, mean, beta = state.backbone, answer.aggregated["backbone"], self.slow_momentum  # x_{t,0}, x_{t,τ}
        lr = self.local.lr_at(fed.round, self.rounds)  # γ_t
        u = {n: beta * old + (x[n] - mean[n]) / lr for n, old in state.momentum.items()}
        return State(
            backbone={n: x[n] - self.slow_lr * lr * u[n] if n in u else mean[n] for n in x},
            momentum=u,
        )

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[Update, Learner]:
        loss, kept = learn(
            party, common.backbone, own, self.local, self.loss, momentum=self.momentum, head_momentum=self.head_momentum
        )
        return Update(backbone=party.backbone.shared(), images=len(party.data), loss=loss), kept

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Learner | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        if fed.policy == "average":
            return Models(shared=state.backbone)
        return Models(shared=None, common=Global(backbone=state.backbone))  # BatchNorm differs by party
