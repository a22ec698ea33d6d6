"""Mime: local steps with a momentum of the server's, each corrected by the gradient at the global backbone.

Karimireddy et al., "Mime: mimicking centralized stochastic algorithms in federated learning", arXiv:2008.03606, 2020,
Algorithm 1 (Mime) with SGD with momentum as its base; the class embeddings are not sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coalface.core.local_results import OWN_MODEL
from coalface.core.method import Federation, Mean, Method, Models, Party, Tensors, like, message, state, step
from coalface.training.gradients import full_gradient, gradient
from coalface.training.local_training import Learner, learn, whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.sgd import MomentumState


@message
class Point:
    """Down, the same for all: where the full gradient is asked for."""

    parameters: Tensors
    """x."""
    others: Tensors
    """What of the backbone is not trained: BatchNorm's running statistics."""


@message
class Slope:
    """Up."""

    gradient: Tensors = like("parameters")
    """∇f_i(x)."""
    images: int
    """n_i."""


@message
class Global:
    """Down, the same for all."""

    backbone: Tensors
    """x."""
    momentum: Tensors
    """c + β m, of the parameters alone: the next m, and all that a local step needs of c and m."""


@message
class Update:
    """Up."""

    backbone: Tensors
    """y_i."""
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
class Mime(Method):
    """Local steps y_i ← y_i − η (∇f_i(y_i; ξ) − ∇f_i(x; ξ) + c + β m); then m ← c + β m, where c = Σ w_i ∇f_i(x).

    Both gradients of a step are of the same batch ξ; the one at x is taken with the class embeddings as they stood when
    the round began, as c is. The paper's momentum is damped: y − η′ ((1 − β) g + β s) and s ← (1 − β) c + β s. With
    m = s / (1 − β) that is the above, for η = (1 − β) η′: `local.lr` is η, in the convention of `torch.optim.SGD` and
    of `pfm`. f_i is a party's mean loss, plus λ/2 ‖x‖²; the weights w_i are the shares of the images.
    """

    title: ClassVar[str] = "as mimelite, with local steps corrected by the gradient at the global backbone"
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
        if (self.local.sample_rate or 1) < 1:
            raise ValueError(
                f"local.sample_rate is {self.local.sample_rate}, but Mime's two gradients must be of one and the same "
                "loss, over all class embeddings: leave it out, or choose the method mimelite"
            )

    def init(self, fed: Federation) -> State:
        zero = {name: torch.zeros_like(w) for name, w in fed.initial.items() if name in fed.parameters}
        return State(backbone=fed.initial, momentum=zero)

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample) if self.sample is not None else None
        parameters = {n: w for n, w in state.backbone.items() if n in state.momentum}
        others = {n: w for n, w in state.backbone.items() if n not in state.momentum}
        point = Point(parameters=parameters, others=others)
        slopes = fed.ask(self.slope, to=chosen, common=point, aggregate=[Mean("gradient", by="images")])
        c, beta = slopes.aggregated["gradient"], self.local.momentum
        momentum = {n: c[n] + beta * m for n, m in state.momentum.items()}
        sent = Global(backbone=state.backbone, momentum=momentum)
        answer = fed.ask(self.train, to=chosen, common=sent, aggregate=[Mean("backbone", by="images")])
        fed.log(loss=answer.mean("loss", by="images"))
        return State(backbone=answer.aggregated["backbone"], momentum=momentum)

    @step(role="trainer")
    def slope(self, party: Party, own: Learner | None, common: Point) -> Slope:
        x = common.parameters | common.others
        whole = full_gradient(party, x, own, self.local, self.loss, batches=self.gradient_batches)
        return Slope(gradient={n: whole[n] for n in common.parameters}, images=len(party.data))

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[Update, Learner]:
        push = {n: m.to(party.device) for n, m in common.momentum.items()}
        x: Tensors = {}  # all that is trained, as it stands when the round begins
        decay = self.local.weight_decay

        def pull(now: Tensors, images: Tensor, labels: Tensor) -> Tensors:
            if not x:
                x.update({n: w.detach().clone() for n, w in now.items()})
            there = gradient(party, x, images, labels, self.loss)
            return {n: torch.sub(m, there[n]).sub_(x[n], alpha=decay) for n, m in push.items()}

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
        return Update(backbone=party.backbone.shared(), images=len(party.data), loss=loss), kept

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Learner | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        if fed.policy == "average":
            return Models(shared=state.backbone)
        return Models(shared=None, common=Global(backbone=state.backbone, momentum=state.momentum))
