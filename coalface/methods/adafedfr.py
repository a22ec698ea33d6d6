"""After AdaFedFR: FedFR whose clients hold no public images, and are sent the mean feature of each public identity.

Qiu et al., "AdaFedFR: federated face recognition with adaptive inter-class representation learning", 2024. Known of it:
the means in place of images, an adaptive contrast with the k hardest as learnable negatives, an adapter at each client.
Its formulas were not at hand: those of the contrast, k's rule and the adapter, FedFR's branch, are this project's own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coalface.core.method import Abandoned, Federation, Mean, Party, Tensors, step
from coalface.methods.fedavg import Update
from coalface.methods.fedfr_joint import FedFRJoint, Global, Own, State
from coalface.training.classifier import Criterion
from coalface.training.features import mean_head
from coalface.training.joint.hard_means import HardMeans, JointMeansLoss
from coalface.training.losses.margins import CosFace


@dataclass(frozen=True)
class Contrast:
    """The constants of L_ada (`coalface.training.joint.hard_means`)."""

    weight: float = 1.0
    """α; 0: without it."""
    nearest: int = 16
    """k: an image has at most so many negatives, of the means that come within the margin."""
    margin: float | None = None
    """m; None: that of a CosFace `loss`, else 0.4."""
    temperature: float = 0.1
    """τ."""
    learned: bool = True
    """Within a round a client trains the means as class embeddings; False: they stay what they were sent as."""

    def __post_init__(self) -> None:
        for name, allowed, within in (  # NaN is within nothing
            ("weight", "0 or more", self.weight >= 0),
            ("nearest", "1 or more", self.nearest >= 1),
            ("margin", "a number from -2 to 2", self.margin is None or -2 <= self.margin <= 2),
            ("temperature", "a number above 0", self.temperature > 0),
        ):
            if not within:
                raise ValueError(f"{name} is {getattr(self, name)}; use {allowed}")


@dataclass(frozen=True, kw_only=True)
class AdaFedFR(FedFRJoint):
    """Θ_g = Σ N_l Θ_l / N; M, the means of the public identities by Θ_g, made anew at the server in each round.

    At a client L = L_cos over W + α L_ada + α2 L_con + α3 L_BCE. With α = 0 it is `fedfr-joint` with `public: none`.
    """

    title: ClassVar[str] = "after AdaFedFR: public people's means in place of their images"
    paper: ClassVar[str] = "after Qiu et al. 2024"
    public_at_server: ClassVar[bool] = True

    public: Literal["none"] = "none"
    """A client has none of their images."""
    contrastive: float = 0.0
    """α2 of FedFR's term (5), in whose place the contrast comes."""
    contrast: Contrast = Contrast()

    def __post_init__(self) -> None:
        super().__post_init__()
        of_images = ("threshold", "phi_update", "weights")
        of_term = ("temperature", "previous") if not self.contrastive else ()
        defaults = {f.name: f.default for f in fields(self)}
        if idle := [name for name in (*of_images, *of_term) if getattr(self, name) != defaults[name]]:
            why = "contrastive is 0" if idle[0] in of_term else "clients have no public images, and the server makes M"
            raise ValueError(f"{idle[0]} has no effect here, since {why}; remove it")

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial, classifier=self.means(fed, fed.initial))

    def means(self, fed: Federation, backbone: Tensors) -> Tensor:
        """(K_g, d) M: the direction of each public identity's mean unit feature; (0, d) where α is 0."""
        if not self.contrast.weight:
            return torch.empty(0, fed.embedding_size, dtype=next(iter(fed.initial.values())).dtype)
        faces = fed.extra_data.faces
        return mean_head(fed.embed(faces, backbone), torch.from_numpy(faces.labels), len(faces.names))

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample)
        common = Global(backbone=state.backbone, classifier=state.classifier)
        answer = fed.ask(self.train, to=chosen, common=common, aggregate=[Mean("backbone", by="images")])
        fed.log(loss=answer.mean("loss", by="images"))
        theta = answer.aggregated["backbone"]
        try:
            means = self.means(fed, theta)
        except ValueError as error:  # what the clients sent is finite and yet useless: the state stays what it was
            raise Abandoned(str(error)) from error
        return State(backbone=theta, classifier=means)

    @step(role="trainer")
    def train(self, party: Party, own: Own | None, common: Global) -> tuple[Update, Own]:
        trained, images, after = self.work(party, own, common)
        return Update(backbone=party.backbone.shared(), images=images, loss=trained.loss), after

    def criterion(self, public_classes: int, head: Tensor) -> Criterion:
        margin = self.contrast.margin
        if margin is None:
            margin = self.loss.margin if isinstance(self.loss, CosFace) else 0.4
        hard = HardMeans(self.contrast.nearest, margin, self.contrast.temperature)
        joint = super().criterion(0, head)
        return JointMeansLoss(joint, hard, self.contrast.weight, means=public_classes, learned=self.contrast.learned)
