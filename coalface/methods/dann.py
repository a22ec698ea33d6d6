"""DANN: supervised training on the source, against a discriminator that tells the domains of features apart.

Ganin et al., "Domain-adversarial training of neural networks", JMLR 2016. One party holds the images of both domains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.core.method import Party, Tensors
from coalface.methods.dan import Adaptation
from coalface.training.domain_adaptation.losses import Adversary, fresh_discriminator, reversal_at


@dataclass(frozen=True, kw_only=True)
class DANN(Adaptation):
    """L = F_s(w) + weight · cross-entropy of the domains; the features get the discriminator's gradient times −λ_p."""

    title: ClassVar[str] = "pools both domains, against a discriminator of domains"
    paper: ClassVar[str] = "Ganin et al. 2016"

    hidden: int = 128
    """Units of the discriminator's hidden layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight >= 0 or self.hidden < 1:
            raise ValueError(f"weight is 0 or more and hidden 1 or more; got {self.weight} and {self.hidden}")

    def between(self, party: Party) -> tuple[Adversary, Tensors]:
        progress = (party.round - 1) / max(1, party.rounds)  # λ_p is constant within a round, as the learning rate is
        rng = party.stream(party.stage, "discriminator")
        fresh = fresh_discriminator(party.backbone.embedding_size, self.hidden, rng)
        return Adversary(self.loss, self.weight, reversal_at(progress)), fresh
