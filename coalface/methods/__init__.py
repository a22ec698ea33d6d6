"""Federated methods, one file each: both sides of the wire in it."""

from __future__ import annotations

from coalface.core.method import Method
from coalface.methods.centralized import Centralized
from coalface.methods.dan import DAN
from coalface.methods.dann import DANN
from coalface.methods.fedavg import FedAvg
from coalface.methods.fedavg_fv import FedAvgFV
from coalface.methods.fedaws import FedAwS
from coalface.methods.fedface import FedFace
from coalface.methods.fedface_multi import FedFaceMulti
from coalface.methods.fedfr_joint import FedFRJoint
from coalface.methods.fedfr_uda import FedFRUDA
from coalface.methods.fedfv import FedFV
from coalface.methods.fedprox import FedProx
from coalface.methods.feduv import FedUV
from coalface.methods.finetune import Finetune
from coalface.methods.finetune_pseudo import FinetunePseudo
from coalface.methods.kd import KD
from coalface.methods.merge import Merge
from coalface.methods.mime import Mime
from coalface.methods.mimelite import MimeLite
from coalface.methods.pfm import PFM
from coalface.methods.pfm_fv import PFMFV
from coalface.methods.positive_only import PositiveOnly
from coalface.methods.random_init import RandomInit
from coalface.methods.scaffold import Scaffold
from coalface.methods.slowmo import SlowMo
from coalface.methods.solo import Solo
from coalface.methods.source_only import SourceOnly
from coalface.methods.target_only import TargetOnly

METHODS: dict[str, type[Method]] = {
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
"""Every method by the name that a recipe gives it."""
