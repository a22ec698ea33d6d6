"""PFM with Federated Validation: `pfm` whose backbones are averaged by the weighting that validators choose.

Bai et al., "Federated Face Recognition", 2021: the whole of its FedFace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coalface.core.method import Federation, Models, state
from coalface.methods import pfm
from coalface.training.federated_validation import FederatedValidation, Weighting


@state
class State:
    """At the server."""

    training: pfm.State
    weighting: Weighting


@dataclass(frozen=True, kw_only=True)
class PFMFV(pfm.PFM):
    """`pfm` in a federation that averages by FV's weighting in place of the shares of the images."""

    title: ClassVar[str] = "pfm whose average is weighted by what validators score (FV)"
    paper: ClassVar[str] = "Bai et al. 2021"
    setting: ClassVar[str] = "cross-silo"

    validation: FederatedValidation = FederatedValidation()

    def init(self, fed: Federation) -> State:  # type: ignore[override]
        return State(training=super().init(fed), weighting=self.validation.begin(fed, self.sample))

    def round(self, fed: Federation, state: Any) -> State:  # type: ignore[override]
        weighted = self.validation.over(fed, state.weighting)
        training = super().round(weighted, state.training)
        return State(training=training, weighting=weighted.validate())

    def models(self, fed: Federation, state: Any) -> Models:
        return super().models(fed, state.training)
