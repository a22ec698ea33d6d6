"""The local steps of a party as an attacker plays them on images that it rebuilds, differentiable by these.

Of a party that took several steps an update is no gradient: step k sees its images through the weights that the steps
before left. The server knows η, β, λ and K, so it plays the same steps, and looks for images of which they make the
same update.

Geiping et al., "Inverting gradients" (NeurIPS 2020), section 6; Dimitrov et al., "Data leakage in federated averaging"
(TMLR 2022).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coalface.core.method import Tensors
from coalface.training.sgd import SGD


@dataclass(frozen=True)
class LocalSteps:
    """K steps of SGD on as many images each, every image once: v ← β v + g + λ θ + drift, θ ← θ − η v."""

    count: int
    """K."""
    sgd: SGD
    drift: Tensors = field(default_factory=dict)
    """Name -> what each step adds to the gradient."""

    def weights(self, images: int) -> Tensor:
        """(images, 1) how often each image's gradient is in K times the mean: Σ_j β^j over its step and those after."""
        powers = torch.tensor([self.sgd.momentum**k for k in range(self.count)])
        return powers.cumsum(0).flip(0).repeat_interleave(images // self.count)[:, None]

    def mean_gradient(self, module: nn.Module, images: Tensor, slopes: Tensor) -> Tensors:
        """(θ_0 − θ_K) / (η K) − λ θ_0 − drift by the names of the module's parameters, as `Change.gradient` has it.

        `images` (n, c, h, w) in the order of the steps; `slopes` (n, d) the ∂L/∂x of their embeddings at their step,
        whatever the class embeddings were by then: with them a step's gradient is that of Σ ⟨x, ∂L/∂x⟩.
        """
        start: Tensors = {**dict(module.named_parameters())}
        theta, speeds, moved = start, Tensors(), Tensors()
        for own, u in zip(images.chunk(self.count), slopes.chunk(self.count), strict=True):
            along = (functional_call(module, theta, (own,)) * u).sum()
            gradients = torch.autograd.grad(along, list(theta.values()), create_graph=True)
            for (name, w), g in zip(theta.items(), gradients, strict=True):
                added = g + self.sgd.weight_decay * w + self.drift.get(name, 0)
                speeds[name] = self.sgd.momentum * speeds[name] + added if name in speeds else added
                moved[name] = moved[name] + speeds[name] if name in moved else speeds[name]
            theta = {name: w - self.sgd.lr * speeds[name] for name, w in theta.items()}
        decay = self.sgd.weight_decay
        return {n: m / self.count - decay * start[n] - self.drift.get(n, 0) for n, m in moved.items()}
