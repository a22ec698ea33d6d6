"""The nearest templates of a probe, exactly: by one product with all of them, or by an index of faiss."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import MissingExtra

Nearest = tuple[NDArray[np.float32], NDArray[np.int64]]
"""(q, top) cosines, the greatest first, and whose they are, by number."""


class Search(Protocol):
    """What finds the nearest of the templates (n, d) that it was made with."""

    def __call__(self, probes: NDArray[np.float32], top: int) -> Nearest:
        """The `top` templates with the greatest cosines with each unit probe (q, d); top ≤ n."""


class Product:
    """A float32 product with all templates."""

    def __init__(self, templates: NDArray[np.float32]) -> None:
        self._templates = templates

    def __call__(self, probes: NDArray[np.float32], top: int) -> Nearest:
        cosines, places = np.empty((len(probes), top), np.float32), np.empty((len(probes), top), np.int64)
        for i, row in enumerate(probes @ self._templates.T):
            nearest = np.argpartition(row, -top)[-top:] if top > 1 else np.array([row.argmax()])
            places[i] = nearest[np.argsort(-row[nearest], kind="stable")]
            cosines[i] = row[places[i]]
        return cosines, places


class Faiss:
    """faiss's `IndexFlatIP`, which compares with every template as well, and holds a copy of them."""

    def __init__(self, templates: NDArray[np.float32]) -> None:
        try:
            import faiss
        except ImportError:
            raise MissingExtra("a search by faiss", "faiss") from None
        self._index: Any = faiss.IndexFlatIP(templates.shape[1])
        self._index.add(np.ascontiguousarray(templates))

    def __call__(self, probes: NDArray[np.float32], top: int) -> Nearest:
        cosines, places = self._index.search(np.ascontiguousarray(probes, np.float32), top)
        return cosines, places
