"""MimeLite: local steps with a momentum of the server's, made of full gradients at the global backbone.

Karimireddy et al., "Mime: mimicking centralized stochastic algorithms in federated learning", arXiv:2008.03606, 2020,
Algorithm 1 (MimeLite) with SGD with momentum as its base; the class embeddings are not sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coalface.core.local_results import OWN_MODEL
from coalface.core.method import Federation, Mean, Method, Models, Party, Tensors, like, message, state, step
from coalface.training.gradients import full_gradient
from coalface.training.local_training import Learner, learn, whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.sgd import MomentumState


@message
class Global:
    """Down, the same for all."""

    backbone: Tensors
    """x."""
    momentum: Tensors
    """m, of the parameters alone, in units of a gradient."""


@message
class Update:
    """Up."""

    backbone: Tensors
    """y_i."""
    gradient: Tensors = like("momentum")
    """∇f_i(x)."""
    images: int
    """n_i."""
    loss: float


@state
class State:
    """At the server."""

    backbone: Tensors
    """x."""
    momentum: Tensors
    """m."""


@dataclass(frozen=True, kw_only=True)
class MimeLite(Method):
    """Local steps y_i ← y_i − η (∇f_i(y_i; ξ) + β m), in which m stands still; then m ← Σ w_i ∇f_i(x) + β m.

    The paper's momentum is damped: y − η′ ((1 − β) g + β s) and s ← (1 − β) c + β s. With m = s / (1 − β) that is the
    above, for η = (1 − β) η′: `local.lr` is η, in the convention of `torch.optim.SGD` and of `pfm`. f_i is a party's
    mean loss, plus λ/2 ‖x‖²; the weights w_i are the shares of the images.
    """

    title: ClassVar[str] = "takes local steps with a momentum of full gradients at the global backbone"
    paper: ClassVar[str] = "Karimireddy et al. 2020 (Mime)"
    setting: ClassVar[str] = "any"

    rounds: int = 20
    sample: int | None = None
    """Parties a round, drawn anew each round; None: all."""
    gradient_batches: int | None = None
    """Batches that a full gradient is taken over; None: all images of the party."""
    local: LocalTraining = LocalTraining()
    loss: CosineLoss = CosFace(scale=30.0, margin=0.35)
    head_momentum: MomentumState = "keep"
    """Of the class embeddings: see `MomentumState`."""

    def __post_init__(self) -> None:
        if self.gradient_batches is not None and self.gradient_batches < 1:
            raise ValueError(f"gradient_batches is {self.gradient_batches}; give 1 or more, or leave it out for all")

    def init(self, fed: Federation) -> State:
        zero = {name: torch.zeros_like(w) for name, w in fed.initial.items() if name in fed.parameters}
        return State(backbone=fed.initial, momentum=zero)

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample) if self.sample is not None else None
        sent = Global(backbone=state.backbone, momentum=state.momentum)
        aggregate = [Mean("backbone", by="images"), Mean("gradient", by="images")]
        answer = fed.ask(self.train, to=chosen, common=sent, aggregate=aggregate)
        fed.log(loss=answer.mean("loss", by="images"))
        c, beta = answer.aggregated["gradient"], self.local.momentum
        return State(
            backbone=answer.aggregated["backbone"],
            momentum={n: c[n] + beta * m for n, m in state.momentum.items()},
        )

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[Update, Learner]:
        whole = full_gradient(party, common.backbone, own, self.local, self.loss, batches=self.gradient_batches)
        push = {n: (self.local.momentum * m).to(party.device) for n, m in common.momentum.items()}  # β m

        def pull(now: Tensors, images: Tensor, labels: Tensor) -> Tensors:
            return push

        loss, kept = learn(
            party,
            common.backbone,
            own,
            self.local,
            self.loss,
            momentum="none",
            head_momentum=self.head_momentum,
            pull=pull,
        )
        gradient = {n: whole[n] for n in common.momentum}
        update = Update(backbone=party.backbone.shared(), gradient=gradient, images=len(party.data), loss=loss)
        return update, kept

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Learner | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        if fed.policy == "average":
            return Models(shared=state.backbone)
        return Models(shared=None, common=Global(backbone=state.backbone, momentum=state.momentum))
