"""The folder `model` that a run leaves: tensors, how to build the network that they are of, and a card."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coalface.core.disk import write_text
from coalface.core.local_results import CLASS_EMBEDDINGS, OWN_MODEL
from coalface.core.method import Models
from coalface.core.text import several
from coalface.engine.server import Server
from coalface.evaluation import verification
from coalface.evaluation.figures import figure_of
from coalface.experiments.recipe.scenarios import OfFaces
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import OnDisk
from coalface.experiments.report import runs
from coalface.methods.distill import Distill
from coalface.models.calibration import Threshold, fingerprint, write_thresholds
from coalface.models.folder import save, write_about
from coalface.privacy.accountant import UNBOUNDED

CLASSIFIER = "classifier.safetensors"
"""In the folder of a run on public identities or on the source's alone, their class embeddings: what the server of a
run, or its source client, starts from. It is no part of the model that is given on."""


def leaves_classifier(recipe: Recipe) -> bool:
    """Whether a run leaves class embeddings: a pooled one on public people or on the source, with one row a person."""
    method, on = recipe.build_method(), recipe.side in ("public", "source")
    return on and method.local_step(CLASS_EMBEDDINGS) is not None and recipe.loss.rows(2) == 2


def write(
    recipe: Recipe,
    server: Server,
    models: Models,
    out: Path,
    figures: verification.Figures,
    thresholds: Mapping[str, Sequence[Threshold]],
    readable: str = "",
) -> None:
    """`model/` with the tensors, how to build the network, and a card.

    `thresholds` are those of each party's own model, or under '' of the shared one; `readable` is
    `plan.what_can_be_read`.
    """
    folder, fresh = out / "model", out / "model.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    about, calibrated = built(recipe), {}
    if models.shared is not None:
        save(models.shared, fresh / "backbone.safetensors")
        calibrated[fingerprint(about, models.shared)] = thresholds.get("", ())
    else:
        (fresh / "parties").mkdir()
        for party, tensors in server.local_results(OWN_MODEL, models):
            save(tensors, fresh / "parties" / f"{party}.safetensors")
            calibrated[fingerprint(about, tensors)] = thresholds.get(party, ())
    write_thresholds(fresh, calibrated)
    write_text(fresh / "README.md", _card(recipe, server, models, figures, readable))
    beside = []
    if leaves_classifier(recipe) and models.shared is not None:
        for _, tensors in server.local_results(CLASS_EMBEDDINGS, models):
            if tensors:
                save(tensors, out / CLASSIFIER)
                beside = [f"../{CLASSIFIER}"]
    write_about(fresh, about, beside)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def built(recipe: Recipe) -> dict[str, Any]:
    """How the network of a recipe is built, as `read_model` needs it."""
    about = {"backbone": recipe.model.name, "size": recipe.data.size, "channels": 1 if recipe.data.grey else 3}
    about |= {"embedding_size": recipe.model.embedding_size}
    return about if recipe.model.input is None else about | {"input": asdict(recipe.model.input)}


def _promised(server: Server) -> list[str]:
    """A line for each protection of a run: secure sums, and ε, δ and z of noise on the means or on single templates."""
    lines = []
    if server.secure is not None:
        lines.append("secure sums, so the server learned sums over a round's parties, and no party's update")
    if server.private is not None:
        spent, against = server.private.summary(), ", from the server too" if server.secure is not None else ""
        is_seeded = spent["noise"] == "seed"
        seeded = "; it was simulated, and whoever has the seed can take the noise off" if is_seeded else ""
        bounded = spent["epsilon"] is not None
        lines.append(f"ε by party {_bound(spent)}{against}, {_noise(spent)}{seeded}" if bounded else UNBOUNDED)
    if server.templates is not None:
        spent = server.templates.summary()
        count = several(spent["releases"], "release")
        lines.append(f"ε by template {_bound(spent)} after {count}, {_noise(spent)}; of templates alone")
    return [f"- privacy: {line}" for line in lines]


def _bound(spent: Mapping[str, Any]) -> str:
    return f"= {spent['epsilon']:.4g} at δ = {spent['delta']:g}"


def _noise(spent: Mapping[str, Any]) -> str:
    return f"noise multiplier z = {spent['noise_multiplier']:g}"


def _networks_learnt_from(recipe: Recipe) -> Iterator[str]:
    """A line for each network of a file that a run, or its pre-training, starts from or learns from."""
    files = [("weights", recipe.model.weights, recipe.model.sha256)]
    if isinstance(method := recipe.build_method(), Distill):
        files += [("teacher", method.teacher, method.sha256)]
    for kind, file, sha256 in files:
        if file:
            concerns = "its licence and the people it was trained on concern this model too"
            yield f"- {kind}: from `{Path(file).name}`, SHA-256 {sha256}; {concerns}"
    if recipe.pretrain is not None:
        yield from _networks_learnt_from(recipe.pretrain.recipe)


def _card(recipe: Recipe, server: Server, models: Models, figures: verification.Figures, readable: str) -> str:
    method, count = server.method, len(server.at.party_stats)
    images = "their own"
    if isinstance(recipe.data, OfFaces):
        source = recipe.data.faces
        on_disk = [Path(source.path).absolute().name] if isinstance(source, OnDisk) else []  # a card leaves the machine
        images = " ".join([source.kind, *on_disk, *recipe.data.parts])
    elif recipe.own is not None:
        images = " ".join(["own", *recipe.own.parties])
    lines = [f"# {recipe.name}", "", "license: not stated (choose one that the images' terms allow)", ""]
    rounds = several(recipe.rounds, "round")
    if server.ended:
        rounds = f"{len(runs.read_metrics(server.folder)):,} of {rounds}"
    lines += [f"- method: {recipe.method}, {rounds}, seed {recipe.seed}"]
    side, colour = recipe.data.size, "grey" if recipe.data.grey else "RGB"
    lines += [f"- backbone: {recipe.model.name}, {side}×{side} {colour}"]
    assigned: str = recipe.partition.kind if recipe.partition is not None else "each its own images"
    if (two := recipe.domains) is not None:
        labels = "with" if method.pools == "images and labels" else "without"
        assigned = f"source {two.source_domain}, target {two.target_domain} {labels} its identities"
    parties = "pooled at one party" if method.pools else f"{count:,} {'party' if count == 1 else 'parties'}"
    parties = parties if method.pools and two is None else f"{assigned}, {parties}"
    lines += [f"- data: {images}; {parties}", *dict.fromkeys(_networks_learnt_from(recipe)), *_promised(server)]
    pixels = "(x − 127.5) / 127.5" if recipe.model.input is None else str(recipe.model.input)
    lines += [f"- pixels: {pixels}; compare embeddings by cosine", ""]
    if models.shared is None:
        lines += ["One model per party, in `parties/`; the figures are the mean over the parties evaluated.", ""]
    lines += ["| evaluated on | figure | value |", "|---|---|---|"]
    for on, by_name in figures.items():
        for name, value in by_name.items():
            unit = figure_of(name.removesuffix("_se")).unit
            lines.append(f"| {on} | {name} | {value:.{unit.digits}f}{unit.sign} |")
    if readable:
        lines += ["", f"In training, {readable}."]
    elif models.shared is not None and not method.pools:
        left, one = (
            ("updates left the parties", "an update") if server.secure is None else ("sums were learned", "a sum")
        )
        lines += ["", f"In training, {left}; {one} tells of the images that it was computed from."]
    lines += ["", "Made for research on federated training. It has not been tested for use on people's decisions."]
    return "\n".join(lines) + "\n"
