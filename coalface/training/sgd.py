"""Stochastic gradient descent with momentum, and what becomes of the momentum between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coalface.core.declarations import Tensors

MomentumState = Literal["reset", "keep", "none"]
"""The momentum at the start of a round: zero, the party's own of its last round, or no momentum at all."""


@dataclass(frozen=True)
class Momentum:
    """A kind of momentum: whether steps have it, and whether a party keeps it for its next round."""

    used: bool
    kept: bool

    def factor(self, beta: float) -> float:
        """β of the steps."""
        return beta if self.used else 0.0

    def keep(self, velocity: Tensors) -> Tensors:
        """What a party keeps of a round's velocity."""
        return velocity if self.kept else {}


MOMENTUM: dict[MomentumState, Momentum] = {
    "reset": Momentum(used=True, kept=False),
    "keep": Momentum(used=True, kept=True),
    "none": Momentum(used=False, kept=False),
}


@dataclass(frozen=True)
class SGD:
    """The constants of a step of SGD: v ← β v + (g + λ w); w ← w − η v, as `torch.optim.SGD` has it.

    η is `lr`, β `momentum`, λ `weight_decay`; the velocity v starts at zero.

    Examples:
        >>> w, v = [torch.tensor([1.0])], [torch.zeros(1)]
        >>> SGD(lr=0.1, momentum=0.5).step(w, [torch.tensor([2.0])], v)
        >>> w, v
        ([tensor([0.8000])], [tensor([2.])])
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def start(self, tensors: Tensors, carried: Tensors) -> Tensors:
        """The velocity of tensors by name: what is `carried` of it from before, else zeros; {} without momentum."""
        if not self.momentum:
            return {}
        return {
            name: carried[name].to(t.device, copy=True) if name in carried else torch.zeros_like(t)
            for name, t in tensors.items()
        }

    def step(
        self, tensors: Sequence[Tensor], gradients: Sequence[Tensor], velocity: list[Tensor], *, spend: bool = False
    ) -> None:
        """One step in place, of tensors and their velocity; an empty list of it is zero, and is filled if it is used.

        With `spend` the gradients are written over, which spares the memory of as much again.
        """
        if not tensors:  # of a backbone that is frozen
            return
        with torch.no_grad():
            steps = list(gradients)
            if self.weight_decay:
                if spend:
                    torch._foreach_add_(steps, list(tensors), alpha=self.weight_decay)
                else:
                    steps = list(torch._foreach_add(steps, list(tensors), alpha=self.weight_decay))
            if self.momentum and not velocity:
                velocity += steps if self.weight_decay else [step.clone() for step in steps]
            elif self.momentum:
                torch._foreach_mul_(velocity, self.momentum)
                torch._foreach_add_(velocity, steps)
                steps = velocity
            torch._foreach_add_(list(tensors), steps, alpha=-self.lr)
