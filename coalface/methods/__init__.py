"""Federated methods, one file each: both sides of the wire in it."""

from __future__ import annotations

from coalface.core import Method
from coalface.methods.centralized import Centralized
from coalface.methods.fedavg import FedAvg
from coalface.methods.fedprox import FedProx
from coalface.methods.pfm import PFM
from coalface.methods.solo import Solo

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "pfm": PFM,
    "solo": Solo,
    "centralized": Centralized,
}
"""Every method by the name that a recipe gives it."""
