"""Settings of methods that mean nothing: each is refused by its name before a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import recipe

from coalface.experiments.conformance.tiny_federation import run
from coalface.methods import METHODS
from coalface.training.clustering.pseudo_labels import Labelling
from coalface.training.federated_validation import FederatedValidation
from coalface.training.local_work import LocalTraining
from coalface.training.losses.curricularface import CurricularFace
from coalface.training.losses.elasticface import ElasticFace
from coalface.training.losses.sphereface import SphereFace
from coalface.training.losses.sphereface2 import SphereFace2
from coalface.training.losses.spreadout import Spreading
from coalface.training.losses.subcenter import SubCenterArcFace

OFFICIAL: dict[str, Any] = {"preset": "official"}

REFUSED: list[tuple[str | Callable[..., Any], dict[str, Any], str]] = [
    ("fedface", {"target_cosine": 2.0}, "target cosine"),
    ("fedface", {**OFFICIAL, "spreading": Spreading(step=0.5)}, "spreading"),
    (Spreading, {"margin": 3.0}, "cosine distance"),
    ("fedaws", {"top_k": 5, "spreading": Spreading(top_k=3)}, "top_k"),
    ("fedaws", {"top_k": 0}, "top_k"),
    ("fedface-multi", {"head_init": "random"}, "head_init"),
    ("fedface-multi", {"loss": SubCenterArcFace()}, "SubCenterArcFace"),
    ("fedgc", {"loss": SubCenterArcFace()}, "SubCenterArcFace"),
    ("privacyface", {"loss": SphereFace2()}, "SphereFace2"),
    ("privacyface", {"every": 0}, "every"),
    ("fedfr-joint", {"threshold": 1.5}, "threshold"),
    ("fedfr-joint", {"branch_weight": math.nan}, "branch_weight"),
    ("fedfr-joint", {"temperature": 0.0}, "temperature"),
    ("fedfr-joint", {"epochs": (2, 0)}, "epochs"),
    ("fedfr-joint", {"epochs": (2, 1), "decay_after": (1,)}, "decay_after"),
    ("fedfr-joint", {**OFFICIAL, "local": LocalTraining(epochs=2)}, "epochs"),
    ("fedfr-joint", {**OFFICIAL, "local": LocalTraining(steps_per_round=3)}, "epochs"),
    ("fedfr-joint", {"local": LocalTraining(sample_rate=0.5)}, "sample_rate"),
    ("fedfr-joint", {"loss": SphereFace2()}, "SphereFace2"),
    ("fedfr-joint", {"loss": ElasticFace()}, "ElasticFace"),
    ("mimelite", {"loss": ElasticFace()}, "ElasticFace"),
    ("dan", {"loss": CurricularFace()}, "CurricularFace"),
    ("dann", {"loss": CurricularFace()}, "CurricularFace"),
    ("fedface-multi", {"loss": CurricularFace()}, "CurricularFace"),
    ("finetune", {"branch": "binary"}, "branch"),
    ("finetune", {"tuning_epochs": 0}, "tuning"),
    ("kd", {"weight": 1.5}, "weight"),
    ("kd", {"distillation_temperature": 0.0}, "distillation_temperature"),
    ("kd", {"loss": SphereFace()}, "SphereFace"),
    ("slowmo", {"slow_momentum": 1.0}, "slow_momentum"),
    ("slowmo", {"slow_lr": 0.0}, "slow_lr"),
    ("mime", {"gradient_batches": 0}, "gradient_batches"),
    ("fednova", {"momentum": "keep"}, "momentum"),
    ("feddyn", {"alpha": 0.0}, "alpha"),
    ("moon", {"mu": -1.0}, "mu"),
    ("moon", {"temperature": 0.0}, "temperature"),
    ("moon", {"loss": ElasticFace()}, "ElasticFace"),
    ("scaffold", {"server_lr": 0}, "server_lr"),
    ("feduv", {"length": 128}, "length"),
    ("feduv", {"quantile": 0.0}, "quantile"),
    ("finetune-pseudo", {"source": True}, "source"),
    ("fedfr-uda", {"pretrain": -1}, "pretrain"),
    ("fedfr-uda", {"constraint": math.nan}, "constraint"),
    (Labelling, {"threshold": 2.1}, "2.1"),
    (Labelling, {"algorithm": "k-means"}, "clusters"),
    (Labelling, {"clusters": 0}, "clusters"),
    (Labelling, {"algorithm": "dbscan", "clusters": 3}, "clusters"),
    (Labelling, {"min_cluster_size": 0}, "min_cluster_size"),
    (Labelling, {"min_samples": 0}, "min_samples"),
    (FederatedValidation, {"candidates": 1}, "candidates"),
    (FederatedValidation, {"lag": -1}, "lag"),
    (FederatedValidation, {"smoothing": 1.5}, "smoothing"),
    (FederatedValidation, {"forgetting": -0.1}, "forgetting"),
    (FederatedValidation, {"epsilon": 0.0}, "epsilon"),
    (FederatedValidation, {"far": 0.0}, "far"),
]


@pytest.mark.parametrize(
    ("of", "settings", "names"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_settings_that_mean_nothing_are_refused(of: Any, settings: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        (METHODS[of] if isinstance(of, str) else of)(**settings)


@pytest.mark.parametrize(
    "name", [name for name, cls in METHODS.items() if cls.scenario == "devices"] + ["fedface-multi"]
)
def test_batchnorm_that_stays_at_parties_is_refused_where_clients_keep_no_model(name: str, tmp_path: Path) -> None:
    method, build = recipe(name)
    with pytest.raises(ValueError, match="batchnorm"):
        run(method, tmp_path, replace(build, norm=True, policy="local"))
