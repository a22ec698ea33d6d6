"""A backbone whose features a party maps further: x ↦ A f(x) + a."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

WEIGHT, BIAS = NAMES = ("branch.weight", "branch.bias")
"""A (d, d) and a (d,) among the tensors of a party's own model."""


class Branched(nn.Module):
    """A backbone with its branch."""

    def __init__(self, backbone: nn.Module, branch: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.backbone = backbone
        self.embedding_size = len(branch[WEIGHT])
        self.weight, self.bias = nn.Parameter(branch[WEIGHT]), nn.Parameter(branch[BIAS])

    def forward(self, images: Tensor) -> Tensor:
        return F.linear(self.backbone(images), self.weight, self.bias)
