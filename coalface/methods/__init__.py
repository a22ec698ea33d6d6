"""Federated methods, a file for each paper: both sides of the wire in it."""

from __future__ import annotations

from coalface.core.method import Method
from coalface.core.registry import Registry, subclass_of
from coalface.methods.centralized import Centralized
from coalface.methods.dan import DAN
from coalface.methods.dann import DANN
from coalface.methods.domain_bounds import Merge, SourceOnly, TargetOnly
from coalface.methods.fedavg import FedAvg
from coalface.methods.fedaws import FedAwS
from coalface.methods.fedface import FedFace, PositiveOnly, RandomInit
from coalface.methods.fedface_multi import FedFaceMulti
from coalface.methods.fedfr_joint import FedFRJoint
from coalface.methods.fedfr_uda import FedFRUDA, FinetunePseudo
from coalface.methods.fedfv import FedFV
from coalface.methods.fedprox import FedProx
from coalface.methods.feduv import FedUV
from coalface.methods.finetune import KD, Finetune
from coalface.methods.fv import PFMFV, FedAvgFV
from coalface.methods.mime import Mime, MimeLite
from coalface.methods.pfm import PFM
from coalface.methods.scaffold import Scaffold
from coalface.methods.slowmo import SlowMo
from coalface.methods.solo import Solo

_OWN: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedavg-fv": FedAvgFV,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "mime": Mime,
    "mimelite": MimeLite,
    "slowmo": SlowMo,
    "pfm": PFM,
    "pfm-fv": PFMFV,
    "fedface": FedFace,
    "fedaws": FedAwS,
    "fedfv": FedFV,
    "feduv": FedUV,
    "positive-only": PositiveOnly,
    "random-init": RandomInit,
    "fedfr-joint": FedFRJoint,
    "finetune": Finetune,
    "kd": KD,
    "fedface-multi": FedFaceMulti,
    "fedfr-uda": FedFRUDA,
    "source-only": SourceOnly,
    "target-only": TargetOnly,
    "merge": Merge,
    "finetune-pseudo": FinetunePseudo,
    "dan": DAN,
    "dann": DANN,
    "solo": Solo,
    "centralized": Centralized,
}
METHODS = Registry[type[Method]](
    "coalface.methods", _OWN, subclass_of(Method), "a subclass of coalface.core.method.Method"
)
"""Every method by the name that a recipe gives it."""
