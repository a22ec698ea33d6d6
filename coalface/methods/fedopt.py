"""FedAdam, FedYogi and FedAdagrad: the server takes an adaptive step along the mean change of the local backbones.

Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2; the class embeddings are not sent, as in
`fedavg`. Other methods take the same step by `server_optimizer` in a recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.core.method import Federation, state
from coalface.methods import fedavg
from coalface.training.server_optimizers import Adagrad, Adam, Moments, ServerOptimizer, Yogi


@state
class State(fedavg.State):
    """At the server: x_t, and the moments of its optimiser."""

    moments: Moments


@dataclass(frozen=True, kw_only=True)
class FedOpt(fedavg.FedAvg):
    """`fedavg` whose server moves by its optimiser, with Δ_t = Σ n_i x_i / Σ n_i − x_t in place of a gradient."""

    paper: ClassVar[str] = "Reddi et al. 2021"

    optimizer: ServerOptimizer

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial, moments=self.optimizer.start(fed.zeros()))

    def round(self, fed: Federation, state: State) -> State:  # type: ignore[override]
        mean = super().round(fed, state).backbone
        backbone, moments = self.optimizer.step(state.backbone, mean, state.moments)
        return State(backbone=backbone, moments=moments)


@dataclass(frozen=True, kw_only=True)
class FedAdam(FedOpt):
    """`fedavg` with Adam at the server: v_t = β₂ v_{t−1} + (1 − β₂) Δ_t²."""

    title: ClassVar[str] = "fedavg with Adam at the server"

    optimizer: Adam = Adam()


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedOpt):
    """`fedavg` with Yogi at the server: v_t = v_{t−1} − (1 − β₂) Δ_t² sign(v_{t−1} − Δ_t²)."""

    title: ClassVar[str] = "fedavg with Yogi at the server"

    optimizer: Yogi = Yogi()


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(FedOpt):
    """`fedavg` with Adagrad at the server: v_t = v_{t−1} + Δ_t²."""

    title: ClassVar[str] = "fedavg with Adagrad at the server"

    optimizer: Adagrad = Adagrad()
