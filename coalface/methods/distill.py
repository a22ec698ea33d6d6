"""Distillation: a backbone learns to give a teacher's embeddings of unlabelled faces. A pre-training, no federation.

Hinton et al., "Distilling the knowledge in a neural network", 2015, with embeddings in the place of classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from coalface.core.errors import RecipeError
from coalface.core.local_results import OWN_MODEL
from coalface.core.method import Federation, Method, Models, Party, Pools, Tensors, private, step
from coalface.methods.fedavg import Global, State, Update
from coalface.models.pretrained.input import InputConvention
from coalface.training.local_training import whole_backbone
from coalface.training.local_work import Cursor, by_epochs

WARM_UP, FIRST, LAST = 0.3, 1 / 25, 1e-4 / 25
"""Of one cycle: the share of steps that the rate rises in, and the first and the last rate as shares of the highest."""


@private
class Student:
    """What the party keeps of its training."""

    kept: Tensors
    """What the BatchNorm policy keeps from the wire."""
    mean: Tensors
    """AdamW's means of the gradients, by parameter."""
    square: Tensors
    """Those of their squares."""
    steps: int
    """Steps taken."""


@dataclass(frozen=True, kw_only=True)
class Distill(Method):
    """A student f learns a teacher's unit embeddings t of the images of all parties, whose labels it does not see.

    With s the student's unit embeddings of a batch of n, a step lowers (1/n) Σ_i (1 − ⟨s_i, t_i⟩) by AdamW, at the rate
    of one cycle.
    """

    title: ClassVar[str] = "gives a teacher's embeddings of unlabelled faces"
    paper: ClassVar[str] = "Hinton et al. 2015"
    setting: ClassVar[str] = "any"
    pools: ClassVar[Pools] = "images"
    taught: ClassVar[bool] = True

    rounds: int = 20
    """Epochs."""
    batch_size: int = 128
    """n, the images of a step."""
    lr: float = 8e-3
    """The highest learning rate of the cycle."""
    weight_decay: float = 0.01
    """AdamW's."""
    teacher: str = ""
    """Whose embeddings are learnt: an ONNX file, a run, a folder with a model, or weights of a `backbone`."""
    sha256: str | None = None
    """Of the teacher's file; filled in when the run begins."""
    size: int = 112
    """Side of the teacher's images, where its file does not say it."""
    mirror: Literal[True] | None = None
    """Its embeddings of an image and of the mirror image are added, and the sum is learnt."""
    backbone: str | None = None
    """The teacher's network, where its file holds weights alone."""
    input: InputConvention = InputConvention()
    """What such a teacher expects of its input, or an ONNX file; `imagenet` for torchvision's. `channels: 1`: weights
    of a network for grey images."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 2), ("lr", 1e-30), ("weight_decay", 0), ("size", 1)):
            if getattr(self, name) < least:
                raise RecipeError(f"{getattr(self, name)} is too small", where=name)

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial)

    def round(self, fed: Federation, state: State) -> State:
        answer = fed.ask(self.train, common=Global(backbone=state.backbone))
        fed.log(loss=answer.mean("loss", by="images"))
        (backbone,) = answer.each["backbone"].values()
        return State(backbone=backbone)

    @step(role="trainer")
    def train(self, party: Party, own: Student | None, common: Global) -> tuple[Update, Student]:
        if party.shards is not None:
            raise ValueError("the teacher's embeddings are not split over processes: use one process a party")
        party.backbone.load(common.backbone, own.kept if own else None)
        module, theta = party.backbone.module.train(), party.backbone.parameters
        optimiser = torch.optim.AdamW(theta.values(), lr=self.lr, weight_decay=self.weight_decay)
        taken = 0
        if own is not None:
            taken = own.steps
            for name, parameter in theta.items():
                moments = {"exp_avg": own.mean[name].clone(), "exp_avg_sq": own.square[name].clone()}
                optimiser.state[parameter] = {"step": torch.tensor(float(taken)), **moments}
        order = party.stream("epoch", party.round).permutation(len(party.data))
        batches, _ = by_epochs(len(party.data), self.batch_size, 1, Cursor(), lambda epoch: order)
        total, teacher = 0.0, torch.from_numpy(party.extra_data)
        for index in batches:
            images, _ = party.compute.batch(party.data, index, party.rng)
            for group in optimiser.param_groups:
                group["lr"] = self.lr * one_cycle(taken, party.rounds * len(batches))
            embeddings = party.compute.embed(module, images)
            loss = distillation_loss(embeddings, teacher[index].to(embeddings))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            taken += 1
            total += float(loss.detach()) * len(index)
        if not math.isfinite(mean := total / len(party.data)):
            raise FloatingPointError(f"the training loss is {mean} at learning rate {self.lr:g}; lower it")
        first, second = (
            {name: optimiser.state[parameter][key] for name, parameter in theta.items()}
            for key in ("exp_avg", "exp_avg_sq")
        )
        student = Student(kept=party.backbone.kept(), mean=first, square=second, steps=taken)
        return Update(backbone=party.backbone.shared(), images=len(party.data), loss=mean), student

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Student | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        return Models.by_policy(fed, Global(backbone=state.backbone))


def distillation_loss(embeddings: Tensor, teacher: Tensor) -> Tensor:
    """The loss of `Distill` for (n, d) embeddings of a student and (n, d) unit embeddings of its teacher."""
    return 1 - (F.normalize(embeddings, dim=1) * teacher).sum(1).mean()


def one_cycle(step: int, steps: int) -> float:
    """The rate of a step, counted from 0, as a share of the highest: up, then down, along half a cosine each.

    Smith and Topin, "Super-convergence", 2019, as torch's `OneCycleLR` has it.

    >>> [round(one_cycle(step, 10), 3) for step in (0, 2, 9)]
    [0.04, 1.0, 0.0]
    """
    top = WARM_UP * steps - 1
    start, end, done = (
        (FIRST, 1.0, step / max(top, 1e-9)) if step <= top else (1.0, LAST, (step - top) / (steps - 1 - top))
    )
    return end + (start - end) / 2 * (1 + math.cos(math.pi * done))
