"""Server optimisers: how the global backbone moves, once the parties' backbones are aggregated.

Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2; `sgd` is Algorithm 1's, with momentum that of
Hsu et al., "Measuring the effects of non-identical data distribution for federated visual classification",
arXiv:1909.06335, 2019.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from coalface.core.checks import TypedSettings
from coalface.core.errors import RecipeError
from coalface.core.method import Tensors, state
from coalface.core.registry import Registry, subclass_of


@state
class Moments:
    """What a server optimiser remembers, of the parameters alone."""

    first: Tensors
    """m_t, in units of a weight."""
    second: Tensors
    """v_t, in units of a squared weight; empty for `sgd`."""


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(TypedSettings, ABC):
    """A step of the parameters x along Δ = x̄ − x, where x̄ is what the parties' backbones were aggregated to."""

    lr: float = 0.01
    """η, the server's learning rate."""

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise RecipeError(f"{self.lr} is not allowed; use a number above 0", where="lr")

    @abstractmethod
    def start(self, zeros: Tensors) -> Moments:
        """The moments before the first step, of parameters for which there are zeros."""

    @abstractmethod
    def move(
        self, x: Tensor, mean: Tensor, first: Tensor, second: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(x, m, v) of one tensor after a step."""

    def step(self, backbone: Tensors, mean: Tensors, moments: Moments) -> tuple[Tensors, Moments]:
        """The backbone and the moments after a step; BatchNorm's running statistics become those of the mean."""
        moved, first, second = dict(mean), dict[str, Tensor](), dict[str, Tensor]()
        for name, m in moments.first.items():
            moved[name], first[name], v = self.move(backbone[name], mean[name], m, moments.second.get(name))
            if v is not None:
                second[name] = v
        return moved, Moments(first=first, second=second)


@dataclass(frozen=True, kw_only=True)
class ServerSGD(ServerOptimizer):
    """m ← β m + Δ and x ← x + η m; η = 1 and β = 0 leave the mean as it is, bit for bit."""

    lr: float = 1.0
    """η."""
    momentum: float = 0.0
    """β."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("momentum", self.momentum)

    def start(self, zeros: Tensors) -> Moments:
        return Moments(first=zeros, second={})

    def move(self, x: Tensor, mean: Tensor, first: Tensor, second: Tensor | None) -> tuple[Tensor, Tensor, None]:
        m = self.momentum * first + (mean - x)
        return (x + self.lr * m if self.momentum else torch.lerp(x, mean, self.lr)), m, None


@dataclass(frozen=True, kw_only=True)
class Adaptive(ServerOptimizer, ABC):
    """m ← β₁ m + (1 − β₁) Δ and x ← x + η m / (√v + τ), from m = 0 and v = τ² on, without bias correction."""

    beta1: float = 0.9
    """β₁."""
    tau: float = 1e-3
    """τ: below it, in units of a weight, a change is no longer scaled up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("beta1", self.beta1)
        if not self.tau > 0:
            raise RecipeError(f"{self.tau} is not allowed; use a number above 0", where="tau")

    def start(self, zeros: Tensors) -> Moments:
        return Moments(first=zeros, second={name: torch.full_like(zero, self.tau**2) for name, zero in zeros.items()})

    def move(self, x: Tensor, mean: Tensor, first: Tensor, second: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        assert second is not None  # as `start` has it
        delta = mean - x
        m, v = self.beta1 * first + (1 - self.beta1) * delta, self.accumulate(second, delta.square())
        return x + self.lr * m / (v.sqrt() + self.tau), m, v

    @abstractmethod
    def accumulate(self, v: Tensor, square: Tensor) -> Tensor:
        """The second moment after a step with Δ², from v before it."""


@dataclass(frozen=True, kw_only=True)
class Adagrad(Adaptive):
    """v ← v + Δ²."""

    beta1: float = 0.0
    """β₁."""

    def accumulate(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True, kw_only=True)
class Adam(Adaptive):
    """v ← β₂ v + (1 − β₂) Δ²."""

    beta2: float = 0.99
    """β₂."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("beta2", self.beta2)

    def accumulate(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True, kw_only=True)
class Yogi(Adam):
    """v ← v − (1 − β₂) Δ² sign(v − Δ²): it grows as fast as it falls."""

    def accumulate(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


def _check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise RecipeError(f"{value} is not allowed; use 0 or more, and less than 1", where=name)


_OWN: dict[str, type[ServerOptimizer]] = {"sgd": ServerSGD, "adam": Adam, "yogi": Yogi, "adagrad": Adagrad}
SERVER_OPTIMIZERS = Registry[type[ServerOptimizer]](
    "coalface.server_optimizers",
    _OWN,
    subclass_of(ServerOptimizer),
    "a subclass of coalface.training.server_optimizers.ServerOptimizer",
)
"""Every server optimiser by the name that a recipe gives it."""
