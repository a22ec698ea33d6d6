"""A face model as a scikit-learn transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
except ImportError:
    raise ImportError("FaceEmbedder is a transformer of scikit-learn: pip install scikit-learn") from None

from coalface.experiments.api.face_model import FaceModel


class FaceEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Images in, unit embeddings out, in a pipeline of scikit-learn; `fit` learns nothing.

    Examples:
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> pipeline = make_pipeline(FaceEmbedder("runs/a"), KNeighborsClassifier(1))
    """

    def __init__(self, model: Any = None, flip: bool = False) -> None:
        """`model` is a `FaceModel`, a run, or the folder of a run or a model."""
        self.model, self.flip = model, flip

    def fit(self, X: Any = None, y: Any = None) -> FaceEmbedder:
        """Read the model."""
        if self.model is None:
            raise ValueError("model is None; give a FaceModel, a run, or the folder of a run or a model")
        self.model_ = self.model if isinstance(self.model, FaceModel) else FaceModel.from_run(self.model)
        self._n_features_out = self.model_.embedding_size
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """(n, d) embeddings of unit length, of images `X` as `FaceModel.embed` takes them."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "model_")
        return self.model_.embed(X, flip=self.flip)
