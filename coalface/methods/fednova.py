"""FedNova: updates are averaged per local step, so that parties with more steps do not pull the objective to theirs.

Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS 2020,
Section 4 (Algorithm 1); the class embeddings are not sent, as in `fedavg`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.core.method import Backbone, Federation, Mean
from coalface.methods.fedavg import Global, State
from coalface.methods.fedprox import FedProx


@dataclass(frozen=True, kw_only=True)
class FedNova(FedProx):
    """x ← x + τ_eff Σ p_i (x_i − x) / a_i with τ_eff = Σ p_i a_i, p_i the shares of the images of those who answer.

    a_i is what a party's steps weigh together: how far it would go, in units of η, if all of its gradients were 1. For
    plain SGD it is the number of steps; see `normaliser`. BatchNorm's running statistics are averaged by p_i. Where all
    parties take as many steps it is `fedavg`, or with μ `fedprox`.
    """

    title: ClassVar[str] = "fedavg of updates per local step, for silos of unequal size"
    paper: ClassVar[str] = "Wang et al. 2020 (FedNova)"
    setting: ClassVar[str] = "cross-silo"
    counts_replies: ClassVar[bool] = True

    mu: float = 0.0
    """μ of a proximal term as `fedprox` has it; 0: without."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local.lr * self.mu >= 1:
            raise ValueError(
                f"mu is {self.mu}, and a step of local.lr={self.local.lr} passes x by; use less than 1 / lr"
            )
        if self.momentum == "keep":
            raise ValueError("momentum is keep, and a_i counts the steps of one round; use reset or none")

    def round(self, fed: Federation, state: State) -> State:
        weights = fed.weights("trainer")
        shrink = self.local.lr_at(fed.round, self.rounds) * self.mu
        beta = self.local.momentum if self.momentum == "reset" else 0.0
        steps = {p: self.local.count(fed.images(p)) for p in weights}
        normalisers = {count: normaliser(count, beta, shrink) for count in set(steps.values())}
        a = {p: normalisers[count] for p, count in steps.items()}
        by_step = Mean("backbone", by={p: w / a[p] for p, w in weights.items()}, of="differences", name="by step")
        statistics = [Mean("backbone", by=weights)] if len(state.backbone) > len(fed.parameters) else []
        answer = fed.ask(
            self.train,
            to=fed.sample("trainer", self.sample),
            common=Global(backbone=state.backbone),
            aggregate=[by_step, *statistics],
        )
        fed.log(loss=answer.mean("loss", by="images"))
        total = sum(weights[p] for p in answer.arrived)
        per_step = sum(weights[p] / a[p] for p in answer.arrived) / total  # the mean is of p_i / a_i divided by this
        effective = sum(weights[p] * a[p] for p in answer.arrived) / total  # τ_eff
        d, mean = answer.aggregated["by step"], answer.aggregated.get("backbone", {})
        x = {n: w + effective * per_step * d[n] if n in fed.parameters else mean[n] for n, w in state.backbone.items()}
        return State(backbone=x)

    def unbatchable_reason(self, backbone: Backbone) -> str:
        return "fednova weighs parties by their local steps, and a client batch is a mean by images"


def normaliser(steps: int, momentum: float, shrink: float) -> float:
    """‖a_i‖₁ of so many steps: y after them, from y = v = 0 on, by v ← β v + 1 − η μ y and y ← y + v.

    `momentum` is β, `shrink` η μ. With neither it is τ, the steps; without μ (τ − β (1 − β^τ) / (1 − β)) / (1 − β),
    without β (1 − (1 − η μ)^τ) / (η μ).

    Examples:
        >>> normaliser(3, 0.0, 0.0), normaliser(3, 0.5, 0.0), normaliser(2, 0.0, 0.5)
        (3.0, 4.25, 1.5)
    """
    moved = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - shrink * moved
        moved += velocity
    return moved
