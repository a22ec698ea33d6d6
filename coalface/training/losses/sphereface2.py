"""SphereFace2: every class decides for itself whether an image is of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coalface.training.losses.base import CosineLoss, check, cosines, require


@dataclass(frozen=True)
class SphereFace2(CosineLoss):
    r"""The binary loss of SphereFace2, with the margin on the cosine (its type C), the mean over the batch of

        (λ/r)·log(1 + e^{−r(g(cos θ_y) − m) − b}) + ((1 − λ)/r)·Σ_{j≠y} log(1 + e^{r(g(cos θ_j) + m) + b})

    with g(z) = 2((z + 1)/2)^t − 1, which spreads the cosines (λ is `balance`, r `scale`, m `margin`, t `power`). b is
    trained with the class embeddings: take its first value from `extra(k)` and give it as `bias`. A label −1 says that
    an image is of none of the classes: it is a negative for all of them.

    Source: Wen et al., "SphereFace2" (ICLR 2022); used by Liu et al., "FedFR" (AAAI 2022), with one b for each class.
    """

    scale: float = 30.0
    """r."""
    margin: float = 0.4
    """m, in units of g."""
    power: float = 3.0
    """t, 1 or more."""
    balance: float = 0.7
    """λ, between 0 and 1: the weight of the one positive against the k − 1 negatives."""

    def __post_init__(self) -> None:
        require(self, "scale > 0", 0 < self.scale < math.inf, self.scale)
        require(self, "a margin of 0 or more", 0 <= self.margin < math.inf, self.margin)
        require(self, "power of 1 or more", 1 <= self.power < math.inf, self.power)
        require(self, "0 < balance < 1", 0 < self.balance < 1, self.balance)

    def start(self, classes: int) -> float:
        """The first b: the one at which the loss of `classes` classes has slope 0 in b while all cosines are 0.

        With a = r(g(0) − m), a' = r(g(0) + m) and z = λ / ((1 − λ)(k − 1)), v = e^{a' + b} is the positive root of
        e^{a − a'} v² + (1 − z) v − z = 0. With one class there are no negatives, and the slope is 0 nowhere (b would
        grow for ever): b starts at 0 then.
        """
        if classes < 2:
            return 0.0
        middle = 2 * 0.5**self.power - 1
        gap = -2 * self.scale * self.margin  # a − a'
        z = self.balance / ((1 - self.balance) * (classes - 1))
        root = math.hypot(1 - z, 2 * math.sqrt(z) * math.exp(gap / 2))
        if z < 1:  # of the two forms of the root, the one that adds what it must not cancel
            log_v = math.log(2 * z) - math.log(1 - z + root)
        elif z > 1:
            log_v = math.log(z - 1 + root) - math.log(2) - gap
        else:
            log_v = -gap / 2
        return log_v - self.scale * (middle + self.margin)

    def extra(self, classes: int) -> dict[str, Tensor]:
        """`bias`, a scalar, at `start`."""
        return {"bias": torch.tensor(self.start(classes))}

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor, bias: Tensor | None = None) -> Tensor:
        """The mean loss of the batch, a scalar.

        `embeddings` (n, d) and `weights` (k, d) of any length; `labels` (n,) int64, −1 to k − 1; `bias` b, a scalar or
        (k,), one for each class; None: fixed at `start(k)`.

        Raises ValueError where the shapes do not fit, or a label names no class.
        """
        check(embeddings, weights, labels, lowest=-1)
        classes = len(weights)
        if bias is not None and bias.shape not in ((), (classes,)):
            raise ValueError(f"bias is {tuple(bias.shape)}: give one number, or one for each of {classes} classes")
        cosine = cosines(embeddings, weights)
        shift = self.start(classes) if bias is None else bias
        # A cosine of −1 may come out just below it, where a power is not defined.
        spread = 2 * ((cosine + 1) / 2).clamp_min(0) ** self.power - 1
        is_own = labels[:, None] == torch.arange(classes, device=labels.device)
        # log(1 + e^x) = −log σ(−x): exact in every dtype, and linear where e^x would overflow.
        genuine = -F.logsigmoid(self.scale * (spread - self.margin) + shift)
        impostor = -F.logsigmoid(-self.scale * (spread + self.margin) - shift)
        terms = torch.where(is_own, self.balance * genuine, (1 - self.balance) * impostor)
        return terms.sum(1).mean() / self.scale
