"""FedFace with several identities a client, as C.-T. Liu et al. 2022 (FedFR, Figure 4) take it to compare with.

FedFace is for one identity a client. Where a client holds more, CosFace over its own class embeddings takes the place
of the squared hinge; the server keeps the class embeddings of all clients apart, as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coalface.core.method import Backbone, Party, Scenario, Tensors, free, message, step
from coalface.methods.fedface import PRESETS, Centre, FedFace, Global
from coalface.training.classifier import classifier_for
from coalface.training.local_training import train
from coalface.training.losses.base import unit
from coalface.training.losses.hinge import PositiveHinge
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.losses.spreadout import Spreading
from coalface.training.one_identity import batches, first_centres


@message
class Update:
    """Up."""

    backbone: Tensors
    """θ_i."""
    centre: Tensor = free("template")
    """(k, d) the class embeddings of all identities of the client, each at length one: the server learns them."""
    images: int
    """n_i."""
    loss: float


@dataclass(frozen=True, kw_only=True)
class FedFaceMulti(FedFace):
    """`fedface` whose messages carry (k, d) class embeddings, k the identities of a client.

    With k = 1 it is `fedface`, but for the constants of `preset: official`.

    A client that was sent (1, d) zeros starts each class embedding from the mean feature of its identity, and thereby
    says how many it has. What it sends in another shape later, or with a row of zeros, leaves what it had.
    """

    title: ClassVar[str] = "fedface for several identities a client, with CosFace"
    paper: ClassVar[str] = "C.-T. Liu et al. 2022, Figure 4"
    setting: ClassVar[str] = "cross-silo"
    scenario: ClassVar[Scenario] = "any"

    head_init: Literal["mean"] = "mean"
    loss: CosineLoss = CosFace(scale=30.0, margin=0.4)
    """Of clients with two identities or more; of the others it is the squared hinge."""
    presets: ClassVar[Mapping[str, Spreading]] = PRESETS | {
        "official": Spreading(margin=0.6, step=0.01, steps=20, momentum=0.9, reduce="mean", tangent=True)
    }
    """`official` is C.-T. Liu et al.'s code: (cos − 0.4)², where FedFace's has (cos − 0.3)², and twice its steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_init != "mean":
            raise ValueError("head_init: the server does not know how many identities a client has; remove it")
        if self.loss.rows(2) != 2 or self.loss.extra(2) or self.loss.state(2):
            raise ValueError(
                f"{type(self.loss).__name__} has more than one class embedding for each identity, or something "
                "beside them, which the messages have no place for: use a loss such as cosface"
            )

    def accepts(self, sent: Tensor, before: Tensor) -> bool:
        return fits(sent, before)

    @step(role="trainer")
    def train(self, party: Party, common: Global, each: Centre) -> Update:
        if party.shards is not None:
            raise ValueError(
                "class embeddings that are sent are not split over processes: leave out engine.processes_per_party"
            )
        several = len(party.data.names) > 1
        centres = each.centre if each.centre.any() else _means(party, common.backbone, each.centre)
        party.backbone.load(common.backbone)
        loss, rate = (self.loss, self.local.sample_rate) if several else (PositiveHinge(self.target_cosine), None)
        sgd = self.local.sgd(party)
        classifier = classifier_for(party, centres, loss, sgd, sample_rate=rate, fixed=self.fixed)
        trained = train(party, classifier, batches(party, self.local), sgd)
        images = len(party.data)
        return Update(backbone=party.backbone.shared(), centre=unit(trained.head), images=images, loss=trained.loss)

    def unbatchable_reason(self, backbone: Backbone) -> str:
        return "clients of several identities have a softmax of their own each"


def fits(sent: Tensor, before: Tensor) -> bool:
    """Whether class embeddings have a direction each, and the shape of those before them: zeros stand for none yet."""
    alike = sent.ndim == 2 and sent.shape[1] == before.shape[1] and sent.dtype == before.dtype
    counts = alike and len(sent) > 0 and (len(sent) == len(before) or not before.any())
    return counts and bool(sent.any(1).all())


def _means(party: Party, backbone: Tensors, zeros: Tensor) -> Tensor:
    """(k, d) mean features of the party's identities, each as `fedface` has it for a client of that one alone."""
    clients = [replace(party, data=party.data.only([number])) for number in range(len(party.data.names))]
    return torch.cat([first_centres([client], backbone, [zeros])[0] for client in clients])
