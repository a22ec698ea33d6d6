"""A trained face model in Python: a torch module that embeds, compares and is evaluated."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from coalface.core.disk import beside, write_json
from coalface.core.errors import DataError, RecipeError
from coalface.core.parsing import read_json
from coalface.core.text import html_table
from coalface.data.arrays import Images
from coalface.data.faceset import FaceSet
from coalface.evaluation import membership
from coalface.evaluation.figures import FIGURES, figure_name, figure_of, figure_text
from coalface.evaluation.finished_model import check_shape, evaluate_network, named_beside, read_model
from coalface.evaluation.metrics.verification import THRESHOLD
from coalface.experiments import model_folder
from coalface.experiments.api.faces import Faces, load_faces
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.sections import Model, Pack, Source
from coalface.experiments.setup.parts import first_backbone, imported_weights
from coalface.models import Backbone, branched
from coalface.models.calibration import Threshold, choose, fingerprint, read_thresholds, write_thresholds
from coalface.models.embedding import embed, unit_features
from coalface.models.folder import save, write_about
from coalface.models.pretrained.input import InputConvention
from coalface.models.pretrained.onnx import read_onnx

MEASURED = "figures.json"
"""Beside `calibration.json`: the figures that the thresholds were measured with, by the model's fingerprint."""
_FIGURES = TypeAdapter(dict[str, dict[str, dict[str, float]]])


class FaceModel(nn.Module):
    """The network that a run left, or of an ONNX file, in evaluation mode; the size and colour of images it takes.

    Examples:
        >>> model = FaceModel.from_run("runs/a")  # doctest: +SKIP
        >>> model.similarity("a.jpg", "b.jpg")  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str], party: str | None = None, input: Any = None) -> None:
        """`folder` is a run's, or its `model`; `party` whose own model it is, where each party has one.

        It may be an ONNX file too, and `input` what that expects, as in `from_onnx`.

        Raises FileNotFoundError, with what there is, and DataError where a file is not as it was written.
        """
        with _arguments():
            backbone, about = read_model(Path(folder), party, Model(input=input).input)
        self._hold(Path(folder), party, backbone, about)

    @classmethod
    def opened(cls, place: Path, party: str | None = None, convention: InputConvention | None = None) -> FaceModel:
        """As `FaceModel(…)`, for commands: errors name their options, `--party` and `--input`.

        A folder that `coalface export --to onnx` wrote stands for its `model.onnx`.
        """
        if (exported := place / "model.onnx").is_file():
            place = exported
        model = cls.__new__(cls)
        model._hold(place, party, *read_model(place, party, convention))
        return model

    def _hold(self, folder: Path, party: str | None, backbone: Backbone, about: dict[str, Any]) -> None:
        super().__init__()
        self.folder, self.party, self.about = folder, party, about
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

    @classmethod
    def from_weights(
        cls,
        path: str | os.PathLike[str],
        backbone: str,
        *,
        size: int,
        grey: bool = False,
        embedding_size: int | None = None,
        input: Any = None,
        note: Callable[[str], None] = print,
    ) -> FaceModel:
        """A network that others trained: a `.safetensors`, `.pt` or `.pth` file with the weights of a backbone.

        `input` is what the network expects, as `model.input` of a recipe: `"imagenet"`, `{"mean": 127, "std": 128}`.
        `note` is told how each tensor was matched. Raises RecipeError where they do not fit.
        """
        network = {"name": backbone, "weights": os.fspath(path), "embedding_size": embedding_size, "input": input}
        recipe = loader.parse({"data": {"size": size, "grey": grey}, "model": network})
        tensors, steps = imported_weights(recipe)
        for step in steps:
            note(step)
        model = cls.__new__(cls)
        weights = {"file": Path(path).name, "sha256": recipe.model.sha256}
        about = model_folder.built(recipe) | {"weights": weights}
        model._hold(Path(path), None, first_backbone(recipe, tensors), about)
        return model

    @classmethod
    def from_onnx(
        cls, path: str | os.PathLike[str], *, size: int | None = None, grey: bool | None = None, input: Any = None
    ) -> FaceModel:
        """The network of an ONNX file, to embed and evaluate with; it cannot be trained or saved.

        `size`, `grey` and `input` are as in `from_weights`. Without the first two, images have the side that the graph
        fixes, else 112, and its channels. Raises DataError where OpenCV cannot run it on such images.
        """
        images = None if grey is None else 1 if grey else 3
        network, about = read_onnx(Path(path), size=size, images=images, convention=Model(input=input).input)
        model = cls.__new__(cls)
        model._hold(Path(path), None, Backbone(network), about)
        return model

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write the model, as it is now, into a new folder. Raises RecipeError where something is there."""
        folder = Path(folder)
        if self.about["backbone"] == "onnx":
            raise RecipeError("an ONNX file stays as it is; copy the file", where=self.folder)
        if folder.exists():
            raise RecipeError("it exists already; give a new folder", where=folder)
        with beside(folder) as partial:
            partial.mkdir(parents=True)
            save(self._tensors(), partial / "backbone.safetensors")
            card = self._source / "README.md"
            if self.party is None and card.exists():  # of a party's own model it would say too much
                shutil.copy(card, partial)
            write_about(partial, {key: value for key, value in self.about.items() if key != "sha256"})
            write_thresholds(partial, {self.fingerprint: self.thresholds})
            if figures := self.measured:
                write_json(partial / MEASURED, {self.fingerprint: figures})
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

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what an embedding depends on: the tensors as they are now, and how the network is built."""
        return fingerprint(self.about, self._tensors())

    @property
    def thresholds(self) -> list[Threshold]:
        """Cosines at false accept rates, as its run or `calibrate` left them; none for a model that was changed."""
        return read_thresholds(self._thresholds_folder).get(self.fingerprint, [])

    def threshold(self, far: float = 0.001) -> Threshold:
        """The cosine from which on two images count as one person's. Raises DataError where there is none for a FAR."""
        folder = shlex.quote(str(self.folder))
        option = f" --party {self.party}" if self.party else ""
        if "file" in self.about:
            convention = {key: self.about["input"][key] for key in ("mean", "std", "order")}
            option = f" --input {shlex.quote(json.dumps(convention))}"
        write = ""
        if self.folder.is_file() and "file" not in self.about:  # weights, of which a command cannot tell the backbone
            write, folder = "`save_pretrained` writes a folder FOLDER of it, and ", "FOLDER"
        remedy = (
            f"{write}`coalface evaluate {folder}{option} --on PAIRS --calibrate` adds what its pairs carry; or decide "
            "by a cosine, --threshold 0.42"
        )
        return choose(self.thresholds, far, where=str(self.folder), remedy=remedy)

    def calibrate(self, figures: Mapping[str, Any], on: str) -> list[Threshold]:
        """Keep the thresholds of what `evaluate` gave as the model's own, beside it; `on` names its pairs.

        Those on people who were not trained on are taken where `evaluate` gives them apart.
        """
        chosen = []
        measured: dict[str, dict[str, float]] = {}
        for name, of_list in figures.get("lists", {on: figures}).items():
            of_list = of_list["others"] if "eer" in of_list.get("others", ()) else of_list
            measured[name] = {key: of_list[key] for key in _figures_of(of_list)}
            for key in of_list:
                if key.startswith(THRESHOLD.name):
                    far = float(key.removeprefix(THRESHOLD.name))
                    counts = {"count": of_list["pairs"], "impostors": of_list["impostor_pairs"]}
                    chosen.append(Threshold(of_list[key], far, on=name, **counts))
        folder = self._thresholds_folder
        write_thresholds(folder, read_thresholds(folder) | {self.fingerprint: chosen})
        write_json(folder / MEASURED, self._all_measured() | {self.fingerprint: measured})
        return chosen

    @property
    def measured(self) -> dict[str, dict[str, float]]:
        """List -> the figures that `calibrate` kept; none for a model that was changed."""
        return self._all_measured().get(self.fingerprint, {})

    def _all_measured(self) -> dict[str, dict[str, dict[str, float]]]:
        path, again = self._thresholds_folder / MEASURED, "delete it, and calibrate the model again"
        try:
            return _FIGURES.validate_python(read_json(path, again) if path.exists() else {})
        except ValidationError:
            raise DataError(f"damaged: {again}", where=path) from None

    def forward(self, images: Tensor) -> Tensor:
        """(n, d) embeddings, not of unit length, of (n, channels, size, size) float images in [−1, 1]."""
        channels = 1 if self.grey else 3
        if images.ndim != 4 or images.shape[1] != channels:
            takes = f"(n, {channels}, {self.size}, {self.size})"
            raise DataError(f"they are {tuple(images.shape)}; this model takes {takes}", where="images")
        embeddings: Tensor = self.network(images)
        return embeddings

    def embed(self, faces: Any, *, flip: bool = False, batch: int = 256) -> NDArray[np.float32]:
        """(n, d) embeddings of unit length.

        `faces` are what `coalface.load_faces` takes or gives, images without labels, or a single image, which has one
        row. With `flip`, the embedding of the mirrored image is added before normalising.
        """
        items = [faces] if _is_one_image(faces) else faces
        if isinstance(items, FaceSet | Faces | Source | str | os.PathLike):
            return embed(self.network, self._face_set(items), flip=flip, batch=batch, device=self._device)
        if not hasattr(items, "__getitem__"):
            raise TypeError(f"a {type(items).__name__} has no images by number; give a list of them, or its dataset")
        with_labels = len(items) and isinstance(items[0], tuple | list)  # a Dataset
        pixels = Images(items, None if with_labels else ["?"] * len(items)).images(size=self.size, grey=self.grey)
        parts, part = [np.zeros((0, self.embedding_size), np.float32)], []
        for i, image in enumerate(pixels, 1):
            part.append(image)
            if len(part) == batch or i == len(items):
                parts.append(unit_features(self.network, np.stack(part), flip=flip, device=self._device))
                part = []
        return np.concatenate(parts)

    def similarity(self, first: Any, second: Any) -> float | NDArray[np.float32]:
        """Cosine of two images, −1 to 1; of several with several the (n, m) matrix."""
        cosines = self.embed(first) @ self.embed(second).T
        return float(cosines[0, 0]) if _is_one_image(first) and _is_one_image(second) else cosines

    def evaluate(
        self,
        on: Any,
        images: str | os.PathLike[str] | None = None,
        *,
        labels: Sequence[Any] | None = None,
        pairs: int | None = None,
        list_name: str | None = None,
        threshold_from: str | os.PathLike[str] | None = None,
        flip: bool = False,
    ) -> EvaluatedModel:
        """Verification figures on a pair list with its `images`, or on what `coalface.load_faces` takes or gives.

        What each option and figure means says `coalface.evaluation.finished_model.evaluate_model`. Raises RecipeError
        for an option that does not fit the others.
        """
        if not isinstance(on, str | os.PathLike) or labels is not None:
            on = self._face_set(on, labels)
        with _arguments():
            figures = evaluate_network(
                self.network,
                self.about,
                on if isinstance(on, FaceSet) else Path(on),
                membership.read_beside(self._source),
                named_beside(self._source),
                images=None if images is None else Path(images),
                pairs=pairs,
                list_name=list_name,
                threshold_from=None if threshold_from is None else Path(threshold_from),
                flip=flip,
            )
        return EvaluatedModel(figures)

    def __repr__(self) -> str:
        return f"FaceModel({str(self.folder)!r}: {self.form})"

    @property
    def form(self) -> str:
        """Backbone, parameters, the images that it takes and the size of an embedding, as a person reads it."""
        parameters = sum(parameter.numel() for parameter in self.parameters())
        colour = "grey" if self.grey else "RGB"
        size = f"{self.size}×{self.size} {colour}"
        return f"{self.about['backbone']}, {parameters:,} parameters, {size} → {self.embedding_size}"

    def _face_set(self, faces: Any, labels: Sequence[Any] | None = None) -> FaceSet:
        """What `load_faces` takes or gives, at the size and colour that the model takes."""
        if isinstance(faces, Faces) and not isinstance(faces.source, Pack):
            faces = faces.source  # decoded again where the size or the colour is another
        if labels is not None or not isinstance(faces, FaceSet | Faces):
            faces = load_faces(faces, labels, size=self.size, grey=self.grey)
        face_set: FaceSet = faces.images if isinstance(faces, Faces) else faces
        check_shape(face_set, self.about, "faces")
        return face_set

    @property
    def _source(self) -> Path:
        return self.folder / "model" if (self.folder / "model" / "model.json").exists() else self.folder

    @property
    def _thresholds_folder(self) -> Path:
        return self._source if self._source.is_dir() else self._source.parent  # of a model that is one file, beside it

    @property
    def _device(self) -> Any:
        return next((tensor.device for tensor in self.parameters()), "cpu")

    def _tensors(self) -> dict[str, Tensor]:
        if not isinstance(self.network, branched.Branched):
            return Backbone(self.network).shared()
        branch = zip(branched.NAMES, (self.network.weight, self.network.bias), strict=True)
        return Backbone(self.network.backbone).shared() | {name: tensor.detach() for name, tensor in branch}


class EvaluatedModel(dict[str, Any]):
    """What `coalface evaluate` gives, by name; it shows its figures as text, and in a notebook."""

    def __repr__(self) -> str:
        return "\n".join(f"{name}  {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        rows = []
        for name, figures in self.get("lists", {"": self}).items():
            values = {f"{name}/{key}".lstrip("/"): value for key, value in figures.items()}
            rows += [(f"{name} pairs".strip(), f"{figures['pairs']:,}")]
            rows += [(figure_name(key), figure_text(values, key, sign=True)) for key in _figures_of(values)]
        return rows


def _figures_of(values: Mapping[str, Any]) -> list[str]:
    """The keys of figures among what `evaluate` gives of a list."""
    keys = [key for key in values if figure_of(key).name in FIGURES or "@" in key]
    return [key for key in keys if not key.endswith("_se")]


def _is_one_image(faces: Any) -> bool:
    if isinstance(faces, str | os.PathLike):
        return Path(faces).is_file() and Path(faces).suffix not in (".rec", ".bin")
    if not isinstance(faces, np.ndarray | Tensor):
        return not hasattr(faces, "__len__") and not isinstance(faces, Faces | Source)  # an image of PIL
    shape = faces.shape
    return len(shape) == 2 or (len(shape) == 3 and shape[0 if isinstance(faces, Tensor) else 2] in (1, 3))


@contextlib.contextmanager
def _arguments() -> Iterator[None]:
    """Within, an error that names an option of the command names the argument of Python: `--party` → `party`."""
    try:
        yield
    except (RecipeError, FileNotFoundError) as error:
        text = re.sub(r"--([a-z]+)", r"\1=", error.text if isinstance(error, RecipeError) else str(error))
        if isinstance(error, RecipeError):
            raise type(error)(text, where=error.where.removeprefix("--")) from None
        raise type(error)(text) from None
