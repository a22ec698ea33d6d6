"""The losses that a recipe can name; each family has a file of its own."""

from __future__ import annotations

from coalface.core.registry import Registry, subclass_of
from coalface.training.losses.adaface import AdaFace
from coalface.training.losses.base import CosineLoss
from coalface.training.losses.curricularface import CurricularFace
from coalface.training.losses.elasticface import ElasticFace
from coalface.training.losses.hinge import PositiveHinge
from coalface.training.losses.margins import ArcFace, CosFace, Softmax
from coalface.training.losses.sphereface import SphereFace
from coalface.training.losses.sphereface2 import SphereFace2
from coalface.training.losses.subcenter import SubCenterArcFace

_OWN: dict[str, type[CosineLoss]] = {
    "softmax": Softmax,
    "cosface": CosFace,
    "arcface": ArcFace,
    "sphereface": SphereFace,
    "sphereface2": SphereFace2,
    "adaface": AdaFace,
    "curricularface": CurricularFace,
    "elasticface": ElasticFace,
    "subcenter-arcface": SubCenterArcFace,
    "positive": PositiveHinge,
}

LOSSES = Registry[type[CosineLoss]](
    "coalface.losses", _OWN, subclass_of(CosineLoss), "a subclass of coalface.training.losses.base.CosineLoss"
)
"""Every loss by the name that a recipe gives it."""
