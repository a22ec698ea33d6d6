"""A face model as a scikit-learn transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from coalface.evaluation.face_model import FaceModel


class FaceEmbedder(TransformerMixin, BaseEstimator):
    """Images in, unit embeddings out, in a pipeline of scikit-learn; `fit` learns nothing.

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> pipeline = make_pipeline(FaceEmbedder("runs/a"), KNeighborsClassifier(1))
    """

    def __init__(self, model: Any = None, flip: bool = False) -> None:
        """`model` is a `FaceModel`, or the folder of a run or a model."""
        self.model, self.flip = model, flip

    def fit(self, images: Any, labels: Any = None) -> FaceEmbedder:
        """Read the model."""
        self.model_ = self.model if isinstance(self.model, FaceModel) else FaceModel(self.model)
        return self

    def transform(self, images: Any) -> NDArray[np.float32]:
        """(n, d) embeddings of unit length of (n, height, width, channels) images."""
        return self.model_.embed(images, flip=self.flip)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")
