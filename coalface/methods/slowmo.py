"""SlowMo: the server moves the global backbone by a slow momentum of its rounds.

Wang et al., "SlowMo: improving communication-efficient distributed SGD with slow momentum", ICLR 2020, Algorithm 1; the
class embeddings are not sent, as in `fedavg`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.core.method import Federation, Tensors, state
from coalface.methods import fedavg


@state
class State(fedavg.State):
    """At the server: x_{t,0}, and its momentum."""

    momentum: Tensors
    """u_t, of the parameters alone, in units of a gradient."""


@dataclass(frozen=True, kw_only=True)
class SlowMo(fedavg.FedAvg):
    """u ← β u + (x − x̄) / γ and x ← x − α γ u, where x̄ is the mean of the local backbones by images and γ the rate.

    Both are of the parameters alone: BatchNorm's running statistics are averaged. α = 1 and β = 0 is FedAvg.
    """

    title: ClassVar[str] = "FedAvg with a slow momentum at the server"
    paper: ClassVar[str] = "Wang et al. 2020"
    setting: ClassVar[str] = "any"

    slow_momentum: float = 0.7
    """β. The paper tunes it by task; the default is ours."""
    slow_lr: float = 1.0
    """α."""

    def __post_init__(self) -> None:
        if not (0 <= self.slow_momentum < 1 and self.slow_lr > 0):
            raise ValueError(
                f"SlowMo needs 0 ≤ slow_momentum < 1 and slow_lr > 0; got slow_momentum={self.slow_momentum}, "
                f"slow_lr={self.slow_lr}"
            )

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial, momentum=fed.zeros())

    def round(self, fed: Federation, state: State) -> State:  # type: ignore[override]
        x, mean = state.backbone, super().round(fed, state).backbone  # x_{t,0}, x_{t,τ}
        lr = self.local.lr_at(fed.round, self.rounds)  # γ_t
        u = {n: self.slow_momentum * old + (x[n] - mean[n]) / lr for n, old in state.momentum.items()}
        return State(
            backbone={n: x[n] - self.slow_lr * lr * u[n] if n in u else mean[n] for n in x},
            momentum=u,
        )
