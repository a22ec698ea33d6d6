"""A decoder of templates: kernel ridge regression from the embeddings of public faces to their pixels.

    x(t) = x̄ + Σ_i k(t, t_i) a_i,    k(t, t') = exp((⟨t, t'⟩ − 1) / w²),    (K + r I) A = X − x̄

Of templates of length one k is Gaussian, exp(−‖t − t'‖² / 2 w²):
A. Mignon & F. Jurie, "Reconstructing faces from their signatures using RBF regression", BMVC 2013. Its form is closed:
nothing is drawn, and a core has it in seconds, where a network of transposed convolutions (NbNet) takes hours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coalface.data.faceset import FaceSet
from coalface.models.embedding import embed

WIDTH, RIDGE = 1.0, 1.0
"""w and r, chosen on people of LFW of another draw than that of `attacks/lfw`; 12 of its 100 are in both."""


@dataclass(frozen=True, eq=False)
class Decoder:
    """Paints faces of templates (n, d) of length one at the most; a shorter one is painted nearer to the mean face."""

    templates: Tensor
    """(m, d) t_i, of the public faces."""
    factor: Tensor
    """(m, m) the Cholesky factor of K + r I."""
    faces: NDArray[np.uint8]
    """(m, height, width, channels) X."""

    @classmethod
    def fit(cls, network: nn.Module, public: FaceSet, device: str = "cpu") -> Decoder:
        """The decoder that an attacker with this network and these images has."""
        templates = torch.from_numpy(embed(network, public, device=device)).double()
        kernel = _kernel(templates, templates) + RIDGE * torch.eye(len(templates), dtype=torch.float64)
        return cls(templates, torch.linalg.cholesky(kernel), public.take(np.arange(len(public))))

    @property
    def mean_face(self) -> NDArray[np.uint8]:
        """(height, width, channels)."""
        return np.asarray(np.rint(self.faces.mean(0)), np.uint8)

    def __call__(self, templates: Tensor) -> NDArray[np.uint8]:
        """(n, height, width, channels) the faces that templates show."""
        # by (K + r I)⁻¹ k(t) in place of A, which has a column for each pixel
        shares = torch.cholesky_solve(_kernel(self.templates, templates.double()), self.factor).T.numpy()
        mean = self.faces.mean(0).ravel()
        pixels = mean + shares @ self.faces.reshape(len(self.faces), -1) - shares.sum(1, keepdims=True) * mean
        return np.asarray(np.rint(pixels).clip(0, 255), np.uint8).reshape(-1, *self.faces.shape[1:])

    def nearest(self, templates: Tensor) -> NDArray[np.uint8]:
        """The public faces of the nearest templates: what an attacker has who rebuilds nothing."""
        return self.faces[(templates.double() @ self.templates.T).argmax(1).numpy()]


def _kernel(left: Tensor, right: Tensor) -> Tensor:
    return torch.exp((left @ right.T - 1) / WIDTH**2)
