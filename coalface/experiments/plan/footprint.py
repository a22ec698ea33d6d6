"""The memory and the disk that a party takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coalface.data.faceset import FaceSet
from coalface.experiments.plan.messages import what_stays
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.parts import network_options
from coalface.models import Backbone, sketch


@dataclass(frozen=True)
class Footprint:
    """Bytes, of the party that takes most."""

    training: int
    """Weights, gradients and momentum of the backbone and the class embeddings, with one copy that a step makes."""
    activations: int
    """What the backbone's backward pass needs of a batch, in float32; about, and less with autocast."""
    batch: int
    """Images in that batch."""
    private: int
    """Private state on disk, one version."""
    classes: int
    """Identities of that party; 0 where they are not known here."""
    uncounted: tuple[str, ...]
    """Private fields whose size only the method knows."""


def footprint(recipe: Recipe, parties: Mapping[str, FaceSet]) -> Footprint:
    """What the largest party takes in a step, and keeps."""
    channels, size = 1 if recipe.data.grey else 3, recipe.data.size
    module = sketch(recipe.model.name, **network_options(recipe))
    backbone, method = Backbone(module, recipe.model.policy), recipe.build_method()
    loss, work = recipe.loss, recipe.local
    classes = max(len(faces.names) for faces in parties.values())
    most = max(len(faces) for faces in parties.values())
    batch = min(work.batch_size, most or work.batch_size)
    trained = 4 * sum(p.numel() for p in module.parameters() if p.requires_grad)
    head = 4 * loss.rows(classes) * backbone.embedding_size
    extra = _bytes(loss.extra(classes) | loss.state(classes))
    velocity = trained + head + extra if getattr(method, "momentum", "keep") == "keep" and work.momentum else 0
    sizes = {"head": head, "extra": extra, "kept": _bytes(backbone.kept()), "backbone": _bytes(backbone.shared())}
    sizes |= {"velocity": velocity, "epoch": 8, "offset": 8}
    fields = {path: path.rpartition(".")[2] for path in what_stays(method)}
    return Footprint(
        training=(4 if work.momentum else 3) * (trained + head + extra),
        activations=activations(module, torch.empty(batch, channels, size, size, device="meta")),
        batch=batch,
        private=sum(sizes.get(name, 0) for name in fields.values()),
        classes=classes,
        uncounted=tuple(path for path, name in fields.items() if name not in sizes),
    )


def activations(module: nn.Module, images: Tensor) -> int:
    """Bytes that the backward pass of a batch needs beside the parameters: each stored tensor once.

    On the meta device nothing is computed. What a layer needs for the moment only is not in it.
    """
    parameters = {p.untyped_storage()._cdata for p in [*module.parameters(), *module.buffers()]}
    stored: dict[int, tuple[Any, int]] = {}  # the storages are held, so that no second one takes the place of a first

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters:
            stored[storage._cdata] = storage, storage.nbytes()
        return tensor

    modes = {part: part.training for part in module.modules()}
    module.train()
    try:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            module(images)
    finally:
        for part, training in modes.items():
            part.training = training
    return sum(count for _, count in stored.values())


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(math.prod(t.shape) * t.element_size() for t in tensors.values())
