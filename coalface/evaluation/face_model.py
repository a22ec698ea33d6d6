"""A trained face model in Python: a torch module that embeds, compares and is evaluated."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from coalface.core.disk import beside
from coalface.core.errors import RecipeError
from coalface.data.arrays import Images
from coalface.data.faceset import FaceSet
from coalface.evaluation.finished_model import evaluate_model, read_faces, read_model
from coalface.models.embedding import embed, unit_features
from coalface.models.folder import ABOUT


class FaceModel(nn.Module):
    """The network that a run left, in evaluation mode, and the size and colour of images that it takes.

    >>> model = FaceModel.from_run("runs/a")  # doctest: +SKIP
    >>> model.similarity("a.jpg", "b.jpg")  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str], party: str | None = None) -> None:
        """`folder` is a run's, or its `model`; `party` whose own model it is, where each party has one.

        Raises FileNotFoundError, with what there is, and DataError where a file is not as it was written.
        """
        super().__init__()
        self.folder, self.party = Path(folder), party
        backbone, self.about = read_model(self.folder, party)
        self.network, self._embedding_size = backbone.module, backbone.embedding_size
        self.eval()

    @classmethod
    def from_run(cls, run: Any, party: str | None = None) -> FaceModel:
        """The model of a run: its folder, or what `coalface.fit` returned."""
        return cls(getattr(run, "path", run), party)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> FaceModel:
        """A model that `save_pretrained` wrote."""
        return cls(folder)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Copy the model into a new folder: `model.json` and the weights. Raises RecipeError where one is."""
        if self.party is not None:
            raise RecipeError("a party's own model is exported by `coalface export`", where="party")
        source = self.folder / "model" if (self.folder / "model" / ABOUT).exists() else self.folder
        if Path(folder).exists():
            raise RecipeError("something is there already; give a new folder", where=Path(folder))
        with beside(Path(folder)) as partial:
            shutil.copytree(source, partial)
            os.rename(partial, folder)

    @property
    def size(self) -> int:
        """Side of its images in pixels."""
        return int(self.about["size"])

    @property
    def grey(self) -> bool:
        """Whether its images have one channel."""
        return bool(self.about["channels"] == 1)

    @property
    def embedding_size(self) -> int:
        """Numbers in an embedding."""
        return self._embedding_size

    def forward(self, images: Tensor) -> Tensor:
        """(n, d) embeddings, not of unit length, of (n, channels, size, size) float images in [−1, 1]."""
        embeddings: Tensor = self.network(images)
        return embeddings

    def embed(self, faces: Any, *, flip: bool = False, batch: int = 256) -> NDArray[np.float32]:
        """(n, d) embeddings of unit length.

        `faces` are images as arrays, or a file, a folder, a pack, `.rec` or `.bin`, or what `coalface.load_faces`
        gives; a single image has one row. With `flip`, the embedding of the mirrored image is added before normalising.
        """
        faces = getattr(faces, "images", faces)
        if isinstance(faces, FaceSet):
            return embed(self.network, faces, flip=flip, batch=batch)
        if isinstance(faces, str | os.PathLike):
            path = Path(faces)
            if path.is_file() and path.suffix not in (".rec", ".bin"):
                from coalface.data.source import decode

                image = decode(path.read_bytes(), path, size=self.size, grey=self.grey)
                return unit_features(self.network, image[None], flip=flip)
            return embed(self.network, read_faces(path, self.about), flip=flip, batch=batch)
        single = np.ndim(faces) == 2 or (np.ndim(faces) == 3 and np.shape(faces)[-1] in (1, 3))
        source = Images([faces] if single else faces, ["?"] * (1 if single else len(faces)))
        pixels = list(source.images(size=self.size, grey=self.grey))
        parts = [pixels[start : start + batch] for start in range(0, len(pixels), batch)]
        return np.concatenate([unit_features(self.network, np.stack(part), flip=flip) for part in parts])

    def similarity(self, first: Any, second: Any) -> float | NDArray[np.float32]:
        """Cosine of two images, −1 to 1; of several with several the (n, m) matrix."""
        cosines = self.embed(first) @ self.embed(second).T
        return float(cosines[0, 0]) if cosines.size == 1 else np.asarray(cosines, np.float32)

    def evaluate(self, on: str | os.PathLike[str], images: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Figures on a pair list with its `images`, a `.bin`, a pack or identity folders, as `coalface evaluate` gives.

        Options are those of `evaluate_model`. Raises RecipeError for one that does not fit the others.
        """
        where = None if images is None else Path(images)
        return evaluate_model(self.folder, Path(on), images=where, party=self.party, **options)

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.parameters())
        colour = "grey" if self.grey else "RGB"
        return (
            f"FaceModel({str(self.folder)!r}: {self.about['backbone']}, {parameters:,} parameters, "
            f"{self.size}×{self.size} {colour} → {self.embedding_size})"
        )
