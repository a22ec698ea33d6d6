"""PrivacyFace: clients share where groups of their people lie, with noise, and keep their own people away from others'.

After "Improving Federated Learning Face Recognition via Privacy-Agnostic Clusters", ICLR 2022. Ours where the text at
hand says nothing: the clustering's mechanisms and every constant of it (`coalface.privacy.local_clustering`), that the
centres are mean features by the backbone that is sent, and when they are released.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coalface.core.method import (
    Federation,
    Mean,
    Models,
    Party,
    Tensors,
    content,
    free,
    message,
    state,
    step,
)
from coalface.methods import fedavg
from coalface.methods.fedavg import FedAvg
from coalface.privacy.local_clustering import LocalClustering, release
from coalface.training.features import mean_head
from coalface.training.joint.public_images import PublicImages
from coalface.training.local_training import Learner, learn
from coalface.training.losses.base import CosineLoss, MarginSoftmax, unit
from coalface.training.losses.consensus import ConsensusAware


@message
class Global(fedavg.Global):
    """Down, the same for all."""

    centres: Tensor = content("sanitised")
    """(R, d) the sanitised centres that all clients have released last, at length one."""


@message
class Place:
    """Down, to each its own: which rows of `centres` it has released."""

    first: int
    count: int


@message
class Update:
    """Up."""

    backbone: Tensors
    """θ_i."""
    centres: Tensor | None = free("sanitised")
    """(q, d) sanitised centres of groups of the client's people; None in a round without a release."""
    images: int
    """n_i."""
    loss: float
    rho: float | None = None
    """ρ of all that the client has released so far, in any run, where it releases some: ε follows from it."""


@state
class State(fedavg.State):
    """At the server: θ, and the sanitised centres."""

    centres: Tensors
    """Client -> (q, d) those of its last release."""
    rho: float
    """The largest that a client has said so far."""


@dataclass(frozen=True, kw_only=True)
class PrivacyFace(FedAvg):
    """θ = Σ n_i θ_i / n, of clients that train against the sanitised centres of all others.

    ε is of what the sanitised centres tell of one identity's images beside the backbones, which have no noise.
    """

    title: ClassVar[str] = "after PrivacyFace: against others' clusters, sent with noise"
    paper: ClassVar[str] = "after Meng et al. 2022"
    setting: ClassVar[str] = "cross-silo"
    takes_public: ClassVar[bool] = True

    clustering: LocalClustering = LocalClustering()
    every: int = 5
    """Rounds from one release to the next, the first in round 1: each costs ε."""

    def __post_init__(self) -> None:
        if not isinstance(self.loss, MarginSoftmax):
            raise ValueError(
                f"loss: {type(self.loss).__name__} is no margin on a softmax that others' clusters could join: "
                "use a loss such as cosface"
            )
        if self.every < 1:
            raise ValueError(f"every is {self.every}; give 1 or more rounds")

    def init(self, fed: Federation) -> State:
        if fed.policy != "average":
            raise ValueError(
                f"with model.batchnorm={fed.policy} the features of one person would depend on all people of a client, "
                "and ε would hold for none of them: set model.batchnorm=average"
            )
        return State(backbone=fed.initial, centres={}, rho=0.0)

    def round(self, fed: Federation, state: State) -> State:  # type: ignore[override]
        none = torch.zeros(0, fed.embedding_size, dtype=next(iter(fed.initial.values())).dtype)
        counts = {client: len(rows) for client, rows in sorted(state.centres.items())}
        first = dict(zip(counts, itertools.accumulate(counts.values(), initial=0), strict=False))
        answer = fed.ask(
            self.train,
            common=Global(
                backbone=state.backbone, centres=torch.cat([none, *(state.centres[client] for client in counts)])
            ),
            each={
                client: Place(first=first.get(client, 0), count=counts.get(client, 0))
                for client in fed.sample("trainer", self.sample)
            },
            aggregate=[Mean("backbone", by="images")],
        )
        sent = {client: rows for client, rows in answer.each["centres"].items() if rows is not None}
        centres = state.centres | {client: rows for client, rows in sent.items() if self.accepts(rows, none)}
        rho = max([state.rho, *(said for said in answer.each["rho"].values() if said is not None)])
        fed.log(
            loss=answer.mean("loss", by="images"),
            clusters=sum(map(len, centres.values())),
            centre_epsilon=self.clustering.epsilon(rho),
        )
        return State(backbone=answer.aggregated["backbone"], centres=centres, rho=rho)

    def accepts(self, rows: Tensor, none: Tensor) -> bool:
        """Whether what a client released takes the place of its last release: up to Q directions, or none."""
        fits = rows.ndim == 2 and rows.shape[1] == none.shape[1] and rows.dtype == none.dtype
        return fits and len(rows) <= self.clustering.clusters and bool(rows.any(1).all())

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global, each: Place) -> tuple[Update, Learner]:
        if party.shards is not None:
            raise ValueError(
                "a softmax with others' clusters is not split over processes: leave out engine.processes_per_party"
            )
        released, rho = None, None
        if (party.round - 1) % self.every == 0:
            released, rho = release(party, *self._clustered(party, common), self.clustering)
        own_rows = slice(each.first, each.first + each.count)
        others = torch.cat([common.centres[: own_rows.start], common.centres[own_rows.stop :]])
        loss, learner = learn(
            party,
            common.backbone,
            own,
            self.local,
            self.consensus(others),
            momentum=self.momentum,
            head_momentum=self.head_momentum,
            pull=self.pull(party, common.backbone),
        )
        return Update(
            backbone=party.backbone.shared(),
            centres=released,
            rho=rho,
            images=len(party.data),
            loss=loss,
        ), learner

    def consensus(self, others: Tensor) -> CosineLoss:
        """The loss against (q, d) sanitised centres of others; without any it is the loss alone."""
        assert isinstance(self.loss, MarginSoftmax)
        return ConsensusAware(self.loss, unit(others), self.clustering.angle) if len(others) else self.loss

    def _clustered(self, party: Party, common: Global) -> tuple[Tensor, Tensor]:
        """The centre of each identity, made of its own images alone, and directions that depend on no image here.

        An identity is embedded by itself, since a batch's other images tell how its features are rounded. The
        directions are what was released before, mean features of public people, and some that are drawn.
        """
        known = [common.centres.double()]
        if isinstance(party.extra_data, PublicImages):
            faces = party.extra_data.faces
            features = party.extra_data.features(party, common.backbone)
            labels = torch.from_numpy(faces.labels).to(features.device)
            known.append(mean_head(features, labels, len(faces.names)).double().cpu())
        rng = party.stream(party.stage, "directions", party.round)
        drawn = rng.standard_normal((self.clustering.directions, party.backbone.embedding_size))
        party.backbone.load(common.backbone)
        people = [party.data.select(np.flatnonzero(party.data.labels == k)) for k in range(len(party.data.names))]
        features = torch.cat(
            [unit(party.compute.embed_all(party.backbone, person)) for person in people if len(person)]
        )
        whose = torch.from_numpy(np.sort(party.data.labels)).to(features.device)
        centres = mean_head(features, whose, len(people)).cpu()
        return centres, torch.cat([*known, torch.from_numpy(drawn)])

    @property
    def sanitises_with(self) -> LocalClustering:
        return self.clustering

    def protection(self, reply: Update) -> str:
        assert reply.rho is not None
        return self.clustering.protection(reply.rho)

    def models(self, fed: Federation, state: State) -> Models:  # type: ignore[override]
        return Models(shared=state.backbone)
