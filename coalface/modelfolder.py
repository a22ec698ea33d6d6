"""The folder `model` that a run leaves: tensors, how to build the network that they are of, and a card."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import save_file

from coalface import judging
from coalface.config import Recipe
from coalface.core import Models
from coalface.engines.server import Server
from coalface.judging import write_json
from coalface.methods import METHODS
from coalface.owned import OWN

CLASSIFIER = "classifier.safetensors"
"""In the folder of a run on public identities alone, their class embeddings: what a run whose parties share these
images starts from. It is no part of the model that is given on."""


def write(recipe: Recipe, server: Server, models: Models, out: Path, figures: judging.Figures) -> None:
    """`model/` with the tensors, how to build the network, and a card."""
    folder, fresh = out / "model", out / "model.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    if models.shared is not None:
        save_file({n: t.contiguous() for n, t in models.shared.items()}, fresh / "backbone.safetensors")
    elif models.at_party is not None:
        (fresh / "parties").mkdir()
        for party, tensors in server.own_models(models):
            save_file({n: t.contiguous() for n, t in tensors.items()}, fresh / "parties" / f"{party}.safetensors")
    channels = 1 if recipe.data.grey else 3
    about = {"backbone": recipe.model.name, "size": recipe.data.size, "channels": channels}
    write_json(fresh / "model.json", about | {"embedding_size": recipe.model.embedding_size})
    (fresh / "README.md").write_text(_card(recipe, models, figures, len(server.at.tallies)), encoding="utf-8")
    if recipe.data.side == "public":
        for _, tensors in server.classifiers(models):
            if tensors:
                save_file({n: t.contiguous() for n, t in tensors.items()}, out / CLASSIFIER)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def _card(recipe: Recipe, models: Models, figures: judging.Figures, count: int) -> str:
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
    lines += ["", "Made for research on federated training. It has not been tested for use on people's decisions."]
    return "\n".join(lines) + "\n"
