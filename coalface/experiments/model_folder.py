"""The folder `model` that a run leaves: tensors, how to build the network that they are of, and a card."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save_file

from coalface.core import disk
from coalface.core.json_text import parse_json
from coalface.core.method import Models, Tensors
from coalface.engine.server import Server
from coalface.evaluation import verification
from coalface.evaluation.verification import write_json, write_text
from coalface.experiments.recipe.own_data import OWN
from coalface.experiments.recipe.schema import Recipe
from coalface.methods import METHODS

ABOUT = "model.json"
"""How the network is built, and in `sha256` the digests of the files of tensors, and of what it says itself."""
CLASSIFIER = "classifier.safetensors"
"""In the folder of a run on public identities alone, their class embeddings: what a run whose parties share these
images starts from. It is no part of the model that is given on."""

_LONGEST = 1 << 26
"""Bytes of `model.json`; one that names a file for each of very many parties is long."""


def write(
    recipe: Recipe, server: Server, models: Models, out: Path, figures: verification.Figures, readable: str = ""
) -> None:
    """`model/` with the tensors, how to build the network, and a card; `readable` is `plan.what_can_be_read`."""
    folder, fresh = out / "model", out / "model.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    if models.shared is not None:
        save(models.shared, fresh / "backbone.safetensors")
    elif models.at_party is not None:
        (fresh / "parties").mkdir()
        for party, tensors in server.own_models(models):
            save(tensors, fresh / "parties" / f"{party}.safetensors")
    write_text(fresh / "README.md", _card(recipe, models, figures, len(server.at.tallies), readable))
    beside = []
    if recipe.data.side == "public":
        for _, tensors in server.classifiers(models):
            if tensors:
                save(tensors, out / CLASSIFIER)
                beside = [f"../{CLASSIFIER}"]
    write_about(fresh, built(recipe), beside)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def save(tensors: Tensors, path: Path) -> None:
    """Tensors as a safetensors file."""
    with disk.writing(path):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def built(recipe: Recipe) -> dict[str, Any]:
    """How the network of a recipe is built, as `read_model` needs it."""
    about = {"backbone": recipe.model.name, "size": recipe.data.size, "channels": 1 if recipe.data.grey else 3}
    return about | {"embedding_size": recipe.model.embedding_size}


def write_about(folder: Path, about: Mapping[str, Any], beside: Sequence[str] = ()) -> None:
    """Write `model.json` into a folder whose tensors are written; `beside` names files of tensors outside of it."""
    inside = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.safetensors"))
    sha256 = {}
    for name in (*inside, *beside):
        with open(folder / name, "rb") as file:
            sha256[name] = hashlib.file_digest(file, "sha256").hexdigest()
    told = {**about, "sha256": sha256}
    write_json(folder / ABOUT, {**about, "sha256": {**sha256, ABOUT: _digest(told)}})


def read_about(folder: Path) -> dict[str, Any]:
    """What `model.json` says. Raises ValueError where it is damaged, or holds no digests."""
    path = folder / ABOUT
    try:
        about = parse_json(path.read_bytes(), longest=_LONGEST, any_number=True)
        if not isinstance(about, dict) or not isinstance(about.get("sha256", {}), dict):
            raise ValueError("it holds no keys and values")
        if lacking := [key for key in ("backbone", "size", "channels", "embedding_size") if key not in about]:
            raise ValueError(f"{lacking[0]} is missing")
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}): {remedy(folder)}") from None
    sha256 = about.get("sha256", {})
    others = {name: digest for name, digest in sha256.items() if name != ABOUT}
    if sha256.get(ABOUT) != _digest({**about, "sha256": others}):
        raise ValueError(f"{path} is not as it was written: {remedy(folder)}")
    return about


def read_tensors(folder: Path, name: str, about: Mapping[str, Any]) -> Tensors:
    """The tensors of a file, whose digest `about` has. Raises ValueError where they are not those that were written."""
    path = folder / name
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != about["sha256"].get(name):
        raise ValueError(f"{path} is not as it was written, its SHA-256 is another: {remedy(folder)}")
    try:
        return load(data)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read ({error}): {remedy(folder)}") from None


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def remedy(folder: Path) -> str:
    """How a damaged model is had again."""
    run = folder.parent
    if folder.name == "model" and (run / "config.yaml").exists():
        return f"`coalface resume {shlex.quote(str(run))}` writes it anew"
    return "copy the model again from its run, or export it again"


def _card(recipe: Recipe, models: Models, figures: verification.Figures, count: int, readable: str) -> str:
    source, partition = recipe.data.source, recipe.data.partition
    what = " ".join([source.kind, *([source.path] if source.path else []), *(source.parties or source.parts)])
    pooled = METHODS[recipe.method].pooled
    lines = [f"# {recipe.name}", "", "license: not stated (choose one that the images' terms allow)", ""]
    lines += [f"- method: {recipe.method}, {recipe.rounds} rounds, seed {recipe.seed}"]
    lines += [f"- backbone: {recipe.model.name}, {recipe.data.size}×{recipe.data.size}, grey: {recipe.data.grey}"]
    dealt: str = partition.kind
    if source.kind == OWN:
        dealt = "each its own images"
    if (two := recipe.data.domains) is not None:
        known = "with" if METHODS[recipe.method].told else "without"
        dealt = f"source {two.source}, target {two.target} {known} its identities"
    parties = "pooled at one party" if pooled else f"{count:,} {'party' if count == 1 else 'parties'}"
    parties = parties if pooled and two is None else f"{dealt}, {parties}"
    lines += [f"- data: {what}; {parties}"]
    lines += ["- pixels: (x − 127.5) / 127.5; compare embeddings by cosine", ""]
    if models.shared is None:
        lines += ["One model per party, in `parties/`; the figures are the mean over the parties judged.", ""]
    lines += ["| judged on | figure | % |", "|---|---|---|"]
    lines += [f"| {on} | {name} | {value:.2f} |" for on, each in figures.items() for name, value in each.items()]
    if readable:
        lines += ["", f"In training, {readable}."]
    elif models.shared is not None and not pooled:
        lines += ["", "In training, updates left the parties; an update tells of the images that it was computed from."]
    lines += ["", "Made for research on federated training. It has not been tested for use on people's decisions."]
    return "\n".join(lines) + "\n"
