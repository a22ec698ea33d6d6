"""FedDyn: each party's objective is regularised anew every round, so that its optimum comes to be everybody's.

Acar et al., "Federated learning based on dynamic regularization", ICLR 2021, Algorithm 1; the class embeddings are not
sent, and not regularised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coalface.core.method import Federation, Mean, Party, Tensors, private, state, step
from coalface.methods import fedavg
from coalface.methods.fedavg import Global, Update
from coalface.training.local_training import Learner, learn


@private
class Regularised(Learner):
    """What stays at a party."""

    gradient: Tensors
    """g_i, of the parameters alone, zero before the first round: at the end of a round that of its own loss."""


@state
class State(fedavg.State):
    """At the server: θ, and the mean of the parties' gradients."""

    gradient: Tensors
    """h, of the parameters alone, in units of a gradient."""


@dataclass(frozen=True, kw_only=True)
class FedDyn(fedavg.FedAvg):
    """A party trains on F_i(θ) − ⟨g_i, θ⟩ + (α/2) ‖θ − θ_t‖², and then g_i ← g_i − α (θ_i − θ_t).

    The server takes h ← h − α Σ w_i (θ_i − θ_t) over those who answer, where w_i are shares of all m trainers (1 / m in
    the paper), so an absent party counts as zero and h stays Σ w_i g_i; then θ ← θ̄ − h / α, with θ̄ the mean of those
    who answered. Where it stands still, Σ w_i ∇F_i = 0. BatchNorm's running statistics are averaged. The loss that
    parties report is F_i.
    """

    title: ClassVar[str] = "changes each party's objective so that all have one optimum"
    paper: ClassVar[str] = "Acar et al. 2021"
    setting: ClassVar[str] = "any"
    counts_replies: ClassVar[bool] = True

    alpha: float = 0.01
    """α, how strongly a party is held at the backbone that was sent: the larger, the shorter a round's way."""
    weights: Literal["images", "equal"] = "images"
    """w_i: shares of the images, or equal as in the paper."""

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ValueError(f"alpha is {self.alpha}; give a number above 0, such as 0.01")

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial, gradient=fed.zeros())

    def round(self, fed: Federation, state: State) -> State:  # type: ignore[override]
        everyone = fed.parties("trainer")
        weight = fed.weights("trainer") if self.weights == "images" else dict.fromkeys(everyone, 1.0)
        answer = fed.ask(
            self.train,
            to=fed.sample("trainer", self.sample),
            common=Global(backbone=state.backbone),
            aggregate=[Mean("backbone", by=weight)],
        )
        fed.log(loss=answer.mean("loss", by="images"))
        theta, mean = state.backbone, answer.aggregated["backbone"]
        arrived = sum(weight[party] for party in answer.arrived) / sum(weight.values())  # Σ w_i of those
        h = {n: old - self.alpha * arrived * (mean[n] - theta[n]) for n, old in state.gradient.items()}
        return State(backbone={n: w - h[n] / self.alpha if n in h else w for n, w in mean.items()}, gradient=h)

    @step(role="trainer")
    def train(self, party: Party, own: Regularised | None, common: Global) -> tuple[Update, Regularised]:
        theta = {n: w.to(party.device) for n, w in common.backbone.items() if n in party.backbone.parameters}  # θ_t
        g = {n: own.gradient[n].to(party.device) if own else torch.zeros_like(w) for n, w in theta.items()}

        def pull(trained: Tensors, images: Tensor, labels: Tensor) -> Tensors:  # − g_i + α (θ − θ_t)
            return {n: self.alpha * (trained[n].detach() - w) - g[n] for n, w in theta.items()}

        loss, learner = learn(
            party,
            common.backbone,
            own,
            self.local,
            self.loss,
            momentum=self.momentum,
            head_momentum=self.head_momentum,
            pull=pull,
        )
        shared = party.backbone.shared()
        gradient = {n: g[n] - self.alpha * (shared[n] - w) for n, w in theta.items()}
        return Update(backbone=shared, images=len(party.data), loss=loss), Regularised(
            **vars(learner), gradient=gradient
        )
