"""Coalface: face recognition models trained over parties that may not pool their face images.

The names below make an experiment in Python: `coalface.Experiment(method=coalface.FedAvg(rounds=20)).run("runs/a")`.
Each is imported when it is first used, so `import coalface` loads nothing else.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "experiments.experiment": "Experiment",
    "experiments.api.align": "align align_folder",
    "data.photographs": "Limits",
    "data.detection": "Face YuNet",
    "experiments.api.faces": "load_faces Faces",
    "experiments.api.fit": "fit resume",
    "experiments.api.finished_run": "FinishedRun",
    "experiments.api.comparison": "compare Comparison",
    "experiments.api.face_model": "FaceModel",
    "experiments.api.face_embedder": "FaceEmbedder",
    "experiments.gallery.gallery": "Gallery",
    "core.method": "Method",
    "data.arrays": "Images",
    "evaluation.metrics.figure": "Figure Unit PERCENT COSINE RATIO COUNT",
    "evaluation.metrics.pair_figures": "PairFigure",
    "experiments.recipe.scenarios": "Silos Devices PrivatePublic Public Domains Own Private Testing Augmentation",
    "experiments.recipe.partitions": "Partition Equal Dirichlet Shares OneIdentity ByDomain FromFile",
    "experiments.recipe.sections": "Synthetic Folder Records Pack JoinedParts EvaluationPairs Validator Personalised "
    "Evaluation Model Engine Reader",
    "models.pretrained.input": "InputConvention",
    "engine.faults": "SimulatedFaults",
    "training.local_work": "LocalTraining",
    "training.server_optimizers": "ServerSGD Adam Yogi Adagrad",
    "training.losses.base": "CosineLoss",
    "training.losses.margins": "Softmax CosFace ArcFace",
    "training.losses.sphereface": "SphereFace",
    "training.losses.sphereface2": "SphereFace2",
    "training.losses.adaface": "AdaFace",
    "training.losses.curricularface": "CurricularFace",
    "training.losses.elasticface": "ElasticFace",
    "training.losses.subcenter": "SubCenterArcFace",
    "training.losses.hinge": "PositiveHinge",
    "methods": "FedAvg FedProx Scaffold Mime MimeLite FedNova FedDyn Moon SlowMo FedAdam FedYogi FedAdagrad PFM PFMFV "
    "FedAvgFV Ditto FedRep FedBABU FedGC PrivacyFace Solo Centralized FedFace FedAwS FedFV FedUV PositiveOnly "
    "RandomInit FedFRJoint AdaFedFR SSFedFR CLFedFR Finetune KD FedFaceMulti "
    "FedFRUDA FinetunePseudo SourceOnly TargetOnly Merge DAN DANN Distill",
    "experiments.callbacks.base": "Callback",
    "experiments.callbacks.progress": "Progress",
    "experiments.callbacks.tensorboard": "TensorBoard",
    "experiments.callbacks.mlflow": "MLflow",
    "experiments.callbacks.wandb": "WandB",
    "core.errors": "CoalfaceError RecipeError DataError",
}
"""Module -> the names that it gives to the public API."""
_MODULES = {name: f"coalface.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
