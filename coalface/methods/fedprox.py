"""FedProx: local training is held near the global backbone by a proximal term.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020, equation 2 and Algorithm 2; the class
embeddings stay with their party, as in `fedavg`, and are not held.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from coalface.core.method import Party, Tensors
from coalface.methods.fedavg import FedAvg
from coalface.training.local_training import Pull, pull_towards


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """`fedavg` with local training on h_k(w) = F_k(w) + (μ/2) ‖w − w^t‖², over the parameters that are shared.

    The loss that parties report is F_k, without the proximal term.
    """

    title: ClassVar[str] = "fedavg with a proximal term that holds back local drift"
    paper: ClassVar[str] = "Li et al. 2020"
    setting: ClassVar[str] = "any"

    mu: float = 0.01
    """μ; 0 is FedAvg."""

    def __post_init__(self) -> None:
        if not 0 <= self.mu < math.inf:
            raise ValueError(f"mu is {self.mu}; give 0 (fedavg) or more, such as 0.01")

    def pull(self, party: Party, backbone: Tensors) -> Pull:
        return pull_towards(backbone, self.mu, party.device)  # ∇ (μ/2) ‖w − w^t‖² = μ (w − w^t)
