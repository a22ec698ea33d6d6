"""Mime and MimeLite: local steps with a momentum of the server's, made of full gradients at the global backbone.

Karimireddy et al., "Mime: mimicking centralized stochastic algorithms in federated learning", arXiv:2008.03606, 2020,
Algorithm 1 with SGD with momentum as its base; the class embeddings are not sent.

The paper's momentum is damped: y − η′ ((1 − β) g + β s) and s ← (1 − β) c + β s. Here m = s / (1 − β) and η =
(1 − β) η′: `local.lr` is η, in the convention of `torch.optim.SGD` and of `pfm`. c = Σ w_i ∇f_i(x), where f_i is a
party's mean loss, plus λ/2 ‖x‖², and the weights w_i are the shares of the images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coalface.core.local_results import OWN_MODEL
from coalface.core.method import Federation, Mean, Method, Models, Party, Tensors, content, like, message, state, step
from coalface.methods.fedavg import Update
from coalface.training.gradients import full_gradient, gradient
from coalface.training.local_training import Learner, Pull, learn, whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.base import check_pure
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.sgd import MomentumState


@message
class Global:
    """Down, the same for all."""

    backbone: Tensors
    """x."""
    momentum: Tensors = content("aggregate")
    """Of the parameters alone, in units of a gradient: MimeLite's m; Mime's c + β m, all that a local step needs."""


@message
class LiteUpdate:
    """Up, of MimeLite."""

    backbone: Tensors
    """y_i."""
    gradient: Tensors = like("momentum")
    """∇f_i(x)."""
    images: int
    """n_i."""
    loss: float


@message
class Point:
    """Down, the same for all: where Mime asks for the full gradient."""

    parameters: Tensors = content("aggregate")
    """x."""
    others: Tensors = content("aggregate")
    """What of the backbone is not trained: BatchNorm's running statistics."""


@message
class Slope:
    """Up."""

    gradient: Tensors = like("parameters")
    """∇f_i(x)."""
    images: int
    """n_i."""


@state
class State:
    """At the server."""

    backbone: Tensors
    """x."""
    momentum: Tensors
    """m."""


@dataclass(frozen=True, kw_only=True)
class MimeLite(Method):
    """Local steps y_i ← y_i − η (∇f_i(y_i; ξ) + β m), in which m stands still; then m ← c + β m."""

    title: ClassVar[str] = "takes local steps with a global momentum of full gradients"
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
    """Of the class embeddings: zero at a round's start (`reset`), kept from the last (`keep`), or unused (`none`)."""

    def __post_init__(self) -> None:
        check_pure(self.loss)
        if self.gradient_batches is not None and self.gradient_batches < 1:
            raise ValueError(f"gradient_batches is {self.gradient_batches}; give 1 or more, or leave it out for all")

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial, momentum=fed.zeros())

    def round(self, fed: Federation, state: State) -> State:
        answer = fed.ask(
            self.train,
            to=fed.sample("trainer", self.sample),
            common=Global(backbone=state.backbone, momentum=state.momentum),
            aggregate=[Mean("backbone", by="images"), Mean("gradient", by="images")],
        )
        fed.log(loss=answer.mean("loss", by="images"))
        return State(
            backbone=answer.aggregated["backbone"], momentum=self.moved(answer.aggregated["gradient"], state.momentum)
        )

    def moved(self, c: Tensors, m: Tensors) -> Tensors:
        """C + β m."""
        return {n: c[n] + self.local.momentum * old for n, old in m.items()}

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[LiteUpdate, Learner]:
        whole = full_gradient(party, common.backbone, own, self.local, self.loss, batches=self.gradient_batches)
        push = {n: (self.local.momentum * m).to(party.device) for n, m in common.momentum.items()}  # β m
        loss, learner = self.learn(party, own, common, lambda trained, images, labels: push)
        gradient, images = {n: whole[n] for n in common.momentum}, len(party.data)
        return LiteUpdate(backbone=party.backbone.shared(), gradient=gradient, images=images, loss=loss), learner

    def learn(self, party: Party, own: Learner | None, common: Global, pull: Pull) -> tuple[float, Learner]:
        """A round of local training without a momentum of the backbone's own."""
        head, x = self.head_momentum, common.backbone
        return learn(party, x, own, self.local, self.loss, momentum="none", head_momentum=head, pull=pull)

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Learner | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        return Models.by_policy(fed, Global(backbone=state.backbone, momentum=state.momentum))


@dataclass(frozen=True, kw_only=True)
class Mime(MimeLite):
    """Local steps y_i ← y_i − η (∇f_i(y_i; ξ) − ∇f_i(x; ξ) + c + β m); then m ← c + β m.

    Both gradients of a step are of the same batch ξ; the one at x is taken with the class embeddings as they stood when
    the round began, as c is.
    """

    title: ClassVar[str] = "mimelite with local steps corrected by the global gradient"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.local.sample_rate or 1) < 1:
            raise ValueError(
                f"local.sample_rate is {self.local.sample_rate}, but Mime's two gradients must be of one and the same "
                "loss, over all class embeddings: leave it out, or choose the method mimelite"
            )

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample)
        point = Point(
            parameters={n: w for n, w in state.backbone.items() if n in state.momentum},
            others={n: w for n, w in state.backbone.items() if n not in state.momentum},
        )
        slopes = fed.ask(self.slope, to=chosen, common=point, aggregate=[Mean("gradient", by="images")])
        momentum = self.moved(slopes.aggregated["gradient"], state.momentum)
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

        def pull(trained: Tensors, images: Tensor, labels: Tensor) -> Tensors:
            if not x:
                x.update({n: w.detach().clone() for n, w in trained.items()})
            at_x = gradient(party, x, images, labels, self.loss)
            return {n: torch.sub(m, at_x[n]).sub_(x[n], alpha=self.local.weight_decay) for n, m in push.items()}

        loss, learner = self.learn(party, own, common, pull)
        return Update(backbone=party.backbone.shared(), images=len(party.data), loss=loss), learner
