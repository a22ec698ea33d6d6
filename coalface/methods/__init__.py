"""Federated methods, a file for each paper: both sides of the wire in it. Each is imported when it is first used."""

from __future__ import annotations

from coalface.core.method import Method
from coalface.core.registry import Registry, load, subclass_of

_OWN = {
    "fedavg": "coalface.methods.fedavg:FedAvg",
    "fedavg-fv": "coalface.methods.fv:FedAvgFV",
    "fedprox": "coalface.methods.fedprox:FedProx",
    "scaffold": "coalface.methods.scaffold:Scaffold",
    "mime": "coalface.methods.mime:Mime",
    "mimelite": "coalface.methods.mime:MimeLite",
    "fednova": "coalface.methods.fednova:FedNova",
    "feddyn": "coalface.methods.feddyn:FedDyn",
    "moon": "coalface.methods.moon:Moon",
    "slowmo": "coalface.methods.slowmo:SlowMo",
    "fedadam": "coalface.methods.fedopt:FedAdam",
    "fedyogi": "coalface.methods.fedopt:FedYogi",
    "fedadagrad": "coalface.methods.fedopt:FedAdagrad",
    "pfm": "coalface.methods.pfm:PFM",
    "pfm-fv": "coalface.methods.fv:PFMFV",
    "ditto": "coalface.methods.ditto:Ditto",
    "fedrep": "coalface.methods.fedrep:FedRep",
    "fedbabu": "coalface.methods.fedbabu:FedBABU",
    "fedface": "coalface.methods.fedface:FedFace",
    "fedaws": "coalface.methods.fedaws:FedAwS",
    "fedfv": "coalface.methods.fedfv:FedFV",
    "feduv": "coalface.methods.feduv:FedUV",
    "positive-only": "coalface.methods.fedface:PositiveOnly",
    "random-init": "coalface.methods.fedface:RandomInit",
    "fedfr-joint": "coalface.methods.fedfr_joint:FedFRJoint",
    "adafedfr": "coalface.methods.adafedfr:AdaFedFR",
    "ss-fedfr": "coalface.methods.cl_fedfr:SSFedFR",
    "cl-fedfr": "coalface.methods.cl_fedfr:CLFedFR",
    "finetune": "coalface.methods.finetune:Finetune",
    "kd": "coalface.methods.finetune:KD",
    "fedface-multi": "coalface.methods.fedface_multi:FedFaceMulti",
    "fedgc": "coalface.methods.fedgc:FedGC",
    "privacyface": "coalface.methods.privacyface:PrivacyFace",
    "fedfr-uda": "coalface.methods.fedfr_uda:FedFRUDA",
    "source-only": "coalface.methods.domain_bounds:SourceOnly",
    "target-only": "coalface.methods.domain_bounds:TargetOnly",
    "merge": "coalface.methods.domain_bounds:Merge",
    "finetune-pseudo": "coalface.methods.fedfr_uda:FinetunePseudo",
    "dan": "coalface.methods.dan:DAN",
    "dann": "coalface.methods.dann:DANN",
    "solo": "coalface.methods.solo:Solo",
    "distill": "coalface.methods.distill:Distill",
    "centralized": "coalface.methods.centralized:Centralized",
}
_KNOWN_AS = {"fedpav": "method=fedavg", "fedper": "method=fedavg", "fedbn": "method=fedavg model.batchnorm=local"}
"""What the literature has a name for and is a method, or a setting, of another name here."""

METHODS = Registry[type[Method]](
    "coalface.methods", _OWN, subclass_of(Method), "a subclass of coalface.core.method.Method", _KNOWN_AS
)
"""Every method by the name that a recipe gives it."""


def __getattr__(name: str) -> type[Method]:
    for reference in _OWN.values():
        if reference.endswith(f":{name}"):
            return load(reference)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
