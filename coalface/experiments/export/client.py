"""A client's own model by itself: backbone, branch, and the gallery of its people, with thresholds.

It is made at the client, of the private state that lies in the run folder and of the client's images; nothing is sent.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from shlex import quote

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.checks import nearest
from coalface.core.errors import RecipeError
from coalface.core.local_results import PERSONAL_MODEL
from coalface.core.method import Tensors, generator
from coalface.data.faceset import FaceSet
from coalface.engine import checkpoint
from coalface.engine.party.commits import Commit, DamagedCommit
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.party.setup import FederatedData, Setup
from coalface.evaluation import embedding
from coalface.evaluation.metrics.personalised import gallery_of
from coalface.evaluation.metrics.verification import allowed
from coalface.experiments import model_folder, provenance
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.gallery.file import Enrolled
from coalface.experiments.gallery.gallery import Gallery
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.parts import Parts
from coalface.models.calibration import Threshold
from coalface.models.folder import save, write_about

FPIRS = (0.1, 0.01, 0.001)
"""Shares of strangers that may be taken for somebody."""
DECIDED_BY = 0.01
"""The one of them that the gallery decides by, if the strangers carry it."""
GALLERY = "people.gallery"
STRANGERS = 20_000
"""Public images by which thresholds are chosen, at most; the first of a draw by the run's seed."""


def export_client(run: Path, party: str, out: Path) -> Path:
    """Write a client's own model and a gallery of its people into a new folder; returns it.

    `backbone.safetensors`, with the branch x ↦ A x + a as `branch.weight` and `branch.bias` where it has one;
    `model.json`, how the network is built; `people.gallery`, with the template of each of its people, the mean feature
    of their training images at length one, and thresholds: for some FPIRs a cosine that at most so many of the public
    images, which show strangers, reach with their nearest template. Raises RecipeError where the run has no such model.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecipeError("it already exists; give another --out", where=out)
    recipe = provenance.recipe_of(run)
    parts = Parts(recipe)
    data = parts.data
    nearest(party, data.data, "--party")
    model = own_model(parts, run, party)
    images = data.data[party]
    embedding.load(data.backbone, model)
    templates, numbers = gallery_of(_features(data, images, model), images.labels)
    strangers = _strangers(recipe, data, party)
    thresholds = _thresholds(_features(data, strangers, model), templates)
    fresh = out.with_name(f"{out.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    _write(recipe, party, model, fresh)
    gallery = Gallery.with_thresholds(fresh / GALLERY, FaceModel(fresh), thresholds)
    gallery.add([Enrolled(images.names[number], f"training images of {party}") for number in numbers], templates)
    if out.exists():
        out.rmdir()
    fresh.rename(out)
    return out


def write_own_model(run: Path, party: str, folder: Path) -> None:
    """Write a client's own model into a new folder, as a model's folder. Raises RecipeError where there is none."""
    parts = Parts(provenance.recipe_of(run))
    nearest(party, parts.data.data, "--party")
    _write(parts.recipe, party, own_model(parts, run, party), folder)


def _write(recipe: Recipe, party: str, model: Tensors, folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    save(model, folder / "backbone.safetensors")
    about = {**model_folder.built(recipe), "party": party, "run": recipe.name, "method": recipe.method}
    write_about(folder, about)


def own_model(parts: Parts, run: Path, party: str) -> Tensors:
    """The party's own model, by the step of the run's method that makes it, on its last accepted private state."""
    recipe, method, data = parts.recipe, parts.method, parts.data
    step = method.local_step(PERSONAL_MODEL)
    last = checkpoint.load(run / "checkpoints")
    if step is None:
        option = "" if (run / "model" / "backbone.safetensors").exists() else f" --party {party}"
        raise RecipeError(
            f"{recipe.method} makes no personalised models, as fedfr-joint does; "
            f"`coalface export {quote(str(run))}{option} --to onnx` takes what it leaves",
            where=run,
        )
    accepted = None if last is None else last.record["accepted"].get(party)
    if accepted is None:
        raise RecipeError(
            f"{party} took part in no round, so it has no model; choose another client"
            if (run / "summary.json").exists()
            else f"{party} has not trained yet; continue with `coalface resume {quote(str(run))}`",
            where="--party",
        )
    name, _ = method.find(step)
    setup = Setup(method, lambda: data, parts.numerics(), recipe.seed, run)
    stage = method.stages()[-1]
    request = Request(
        recipe.name, party, stage.name, stage.rounds, stage.rounds, 0, 0, name, None, None, accepted, (0, None)
    )
    try:
        executor = PartyExecutor(setup.context(data), party)
        Commit.whole(executor.folder / f"{accepted}.commit").check()
        model = executor.local_result(request)
    except (StepFailed, DamagedCommit, FileNotFoundError) as error:
        raise RecipeError(str(error), where=run) from error
    if not model:
        raise RecipeError(f"{party} has no model of its own", where=run)
    return model


def _features(data: FederatedData, faces: FaceSet, model: Tensors) -> NDArray[np.float32]:
    """(n, d) unit features by the model, whose backbone is loaded."""
    features: Tensor = embedding.embeddings(data, faces)
    if "branch.weight" in model:
        features = F.linear(features, model["branch.weight"].cpu(), model["branch.bias"].cpu())
    return embedding.unit(features)


def _strangers(recipe: Recipe, data: FederatedData, party: str) -> FaceSet:
    """Images of people who are nobody's, which the party holds."""
    if data.public is None:
        raise RecipeError(f"{recipe.method} shares no public images to choose thresholds on", where="--party")
    chosen = generator(recipe.seed, "party", party, "strangers").permutation(len(data.public))[:STRANGERS]
    return data.public.select(np.sort(chosen))


def _thresholds(strangers: NDArray[np.float32], templates: NDArray[np.float32]) -> list[Threshold]:
    """For each FPIR that n strangers can carry, a cosine that at most ⌊FPIR · n⌋ of them reach; `DECIDED_BY` first.

    It lies halfway between the last that is refused and the first that is accepted: images that are embedded in other
    batches come out a little otherwise.
    """
    blocks = [strangers[at : at + 4096] for at in range(0, len(strangers), 4096)]
    best = np.sort(np.concatenate([(block @ templates.T).max(axis=1) for block in blocks]))
    thresholds = []
    for fpir in FPIRS:
        if (count := allowed(fpir, len(best))) >= 1:
            refused, accepted = best[len(best) - 1 - count : len(best) + 1 - count]
            halfway = np.float32((float(refused) + float(accepted)) / 2)
            cosine = float(max(halfway, np.nextafter(refused, np.float32(np.inf))))
            thresholds.append(Threshold(cosine, fpir, "FPIR", "public images", len(best)))
    return sorted(thresholds, key=lambda threshold: threshold.rate != DECIDED_BY)
