"""The losses that a recipe can name; each family has a file of its own."""

from __future__ import annotations

from coalface.learn.adaface import AdaFace
from coalface.learn.cosines import CosineLoss
from coalface.learn.hinges import PositiveHinge
from coalface.learn.margins import ArcFace, CosFace, Softmax
from coalface.learn.sphereface import SphereFace
from coalface.learn.sphereface2 import SphereFace2
from coalface.learn.subcenter import SubCenterArcFace

LOSSES: dict[str, type[CosineLoss]] = {
    "softmax": Softmax,
    "cosface": CosFace,
    "arcface": ArcFace,
    "sphereface": SphereFace,
    "sphereface2": SphereFace2,
    "adaface": AdaFace,
    "subcenter-arcface": SubCenterArcFace,
    "positive": PositiveHinge,
}
