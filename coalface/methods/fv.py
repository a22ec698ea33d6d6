"""Federated Validation (FV): `fedavg` and `pfm` whose backbones are averaged by the weighting that validators choose.

Bai et al., "Federated Face Recognition", 2021: its FedAvg + FV, and the whole of its FedFace (PFM + FV).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coalface.core.method import Backbone, Federation, Models, state
from coalface.methods import fedavg, pfm
from coalface.training.federated_validation import FederatedValidation, Weighting

SINGLE_REPLIES = "validators' weightings are of single replies, and a client batch makes none"


@state
class FedAvgState:
    """At the server."""

    training: fedavg.State
    weighting: Weighting


@state
class PFMState:
    """At the server."""

    training: pfm.State
    weighting: Weighting


@dataclass(frozen=True, kw_only=True)
class FedAvgFV(fedavg.FedAvg):
    """`fedavg` in a federation that averages by FV's weighting in place of the shares of the images."""

    title: ClassVar[str] = "fedavg whose average is weighted by what validators score (FV)"
    paper: ClassVar[str] = "Bai et al. 2021"
    setting: ClassVar[str] = "cross-silo"

    validation: FederatedValidation = FederatedValidation()

    def init(self, fed: Federation) -> FedAvgState:  # type: ignore[override]
        return FedAvgState(training=super().init(fed), weighting=self.validation.begin(fed, self.sample))

    def round(self, fed: Federation, state: Any) -> FedAvgState:  # type: ignore[override]
        weighted = self.validation.over(fed, state.weighting)
        return FedAvgState(training=super().round(weighted, state.training), weighting=weighted.validate())

    def models(self, fed: Federation, state: Any) -> Models:
        return super().models(fed, state.training)

    def unbatchable_reason(self, backbone: Backbone) -> str:
        return SINGLE_REPLIES


@dataclass(frozen=True, kw_only=True)
class PFMFV(pfm.PFM):
    """`pfm` in the same federation."""

    title: ClassVar[str] = "pfm whose average is weighted by what validators score (FV)"

    validation: FederatedValidation = FederatedValidation()

    def init(self, fed: Federation) -> PFMState:  # type: ignore[override]
        return PFMState(training=super().init(fed), weighting=self.validation.begin(fed, self.sample))

    def round(self, fed: Federation, state: Any) -> PFMState:  # type: ignore[override]
        weighted = self.validation.over(fed, state.weighting)
        return PFMState(training=super().round(weighted, state.training), weighting=weighted.validate())

    def models(self, fed: Federation, state: Any) -> Models:
        return super().models(fed, state.training)

    def unbatchable_reason(self, backbone: Backbone) -> str:
        return SINGLE_REPLIES
