"""FedFR for unsupervised domain adaptation: target clients label their images by clustering, then all train together.

Zhuang et al., "Towards unsupervised domain adaptation for deep face recognition under privacy constraints via federated
learning", 2021. Three stages: the source client trains alone; each target client clusters the features of its images
with that model; source and targets train together, the source held near the global model (domain constraint loss).
The classifiers stay at the clients (3.4): the source's goes on from the first stage to the third. What the text leaves
open is a setting: λ, E, τ, and where the class embeddings of new classes start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coalface.core.local_results import OWN_MODEL, PSEUDO_LABELS
from coalface.core.method import (
    Abandoned,
    Federation,
    Mean,
    Method,
    Models,
    Party,
    Scenario,
    Stage,
    Tensors,
    content,
    message,
    private,
    state,
    step,
)
from coalface.methods.fedavg import Global, Update
from coalface.training.clustering.pseudo_labels import Labelling
from coalface.training.features import mean_head, unit_features
from coalface.training.local_training import Learner, fresh_head, learn, whole_backbone
from coalface.training.local_work import Cursor, LocalTraining
from coalface.training.losses.margins import ArcFace, CosineLoss
from coalface.training.sgd import MomentumState


@message
class ToLabel:
    """Down to the targets."""

    backbone: Tensors
    threshold: float
    """τ."""


@message
class Threshold:
    """Up from the source: a number, chosen on its own labelled images."""

    threshold: float


@message
class Clustered:
    """Up from a target: counts alone; who is in which cluster stays."""

    images: int
    clusters: int
    kept: float = content("count")
    """The share of its images that are in a cluster."""


@private
class Labels:
    """A target's pseudo labels."""

    labels: Tensor
    """(n,) the cluster of each of its images, −1 for none."""


@private
class Own:
    """What a client keeps; none of it is ever sent."""

    labels: Labels | None
    learner: Learner | None
    """Its class embeddings, cursor and momentum; None until it has trained, and after its images were labelled anew."""
    kept: Tensors
    """What the BatchNorm policy keeps from the wire; empty under `average`."""
    cursor: Cursor
    """Where a target begins with new labels: at an order of its images that it has not trained in yet."""
    alone: bool
    """The source has trained in the first stage alone so far, whose momentum ends with it."""


@state
class State:
    """At the server."""

    backbone: Tensors
    """w^t."""
    threshold: float | None
    """τ, once it is known."""
    labelled: tuple[str, ...]
    """The targets that have labels, as far as the server heard."""
    since: int
    """The round of the training after which they were asked for them; 0: before it."""


@dataclass(frozen=True, kw_only=True)
class FedFRUDA(Method):
    """w^{t+1} = mean of the clients' w_k; the source minimises F_s(w) + (λ/2) ‖w − w^t‖², a target F_k(w)."""

    title: ClassVar[str] = "labelled source, unlabelled targets: clusters serve as labels"
    paper: ClassVar[str] = "Zhuang et al. 2021"
    setting: ClassVar[str] = "cross-silo"
    scenario: ClassVar[Scenario] = "domains"

    rounds: int = 20
    pretrain: int = 0
    """Rounds of the first stage, in which the source trains alone; 0 where the recipe's `pretrain` gives the model."""
    local: LocalTraining = LocalTraining(steps_per_round=100)
    loss: CosineLoss = ArcFace(scale=30.0, margin=0.3)
    labelling: Labelling = Labelling()
    relabel: int = 0
    """Rounds after which the targets cluster anew, with the model of then; 0: once, as the paper has it."""
    constraint: float = 0.01
    """λ; 0 is without the domain constraint loss."""
    source: bool = True
    """False: the source trains no more once the targets have labels."""
    weights: Literal["equal", "images"] = "equal"
    """How clients weigh in the mean: alike, as Equation 1 has it, or by their images."""
    head_init: Literal["pretrained", "mean", "random"] | None = None
    """Where class embeddings start: at the mean features of their class (`mean`), or at random. `pretrained`: the
    source goes on with those that the recipe's `pretrain` trained for the same people, which must have left some; all
    others start at the mean. None: as `pretrained` where it left some, else `mean`."""
    momentum: MomentumState = "reset"
    """Zero at the start of a round (`reset`), kept from the party's last round (`keep`), or unused (`none`)."""
    head_momentum: MomentumState | None = None
    """The same of the class embeddings; None: as the backbone's."""

    @property
    def keeps_classifier(self) -> bool:
        """Whether the source goes on with the classifier of the recipe's `pretrain`."""
        return self.source and not self.pretrain and self.head_init in (None, "pretrained")

    def __post_init__(self) -> None:
        if self.pretrain < 0 or self.relabel < 0 or not 0 <= self.constraint < math.inf:
            raise ValueError(
                f"pretrain, relabel and constraint are 0 or more; got {self.pretrain}, {self.relabel} and "
                f"{self.constraint}"
            )

    def untrained(self) -> str:
        if self.pretrain:
            return ""
        return (
            "the targets cluster their images by a model that nobody has trained, so their labels mean little: give "
            "the recipe a `pretrain`, or the method rounds of its own for it (`pretrain` among its settings)"
        )

    def stages(self) -> tuple[Stage, ...]:
        first = Stage("pretrain", self.pretrain, begin=lambda fed, _: self.init(fed), round=self.alone)
        label = Stage("label", 1, begin=lambda fed, before: before or self.init(fed), round=self.clusters)
        train = Stage("train", self.rounds, begin=lambda _, before: before, round=self.round)
        return (first, label, train) if self.pretrain else (label, train)

    def round_work(self, stage: str, round_: int, role: str, party: str, images: int) -> tuple[int, int] | None:
        """A target trains on the images that it could label: how many those are tells only where K is given."""
        if stage == "label" or (role.endswith("source") and stage == "train" and not self.source):
            return 0, 0
        if role.endswith("target"):
            return (
                (0, 0)
                if stage == "pretrain"
                else None
                if self.local.steps_per_round is None
                else self.local.work(party, images)
            )
        return self.local.work(party, images)

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial, threshold=None, labelled=(), since=0)

    def alone(self, fed: Federation, state: State) -> State:
        """Stage 1: the source's own training."""
        answer = fed.ask(self.train_alone, common=Global(backbone=state.backbone), aggregate=[Mean("backbone")])
        fed.log(loss=answer.mean("loss"))
        return replace(state, backbone=answer.aggregated["backbone"])

    def clusters(self, fed: Federation, state: State) -> State:
        """Stage 2: τ from the source if it is not given, then the labels of the targets that have none."""
        threshold = state.threshold
        if threshold is None and self.labelling.threshold == "auto" and self.labelling.by_threshold:
            answer = fed.ask(self.choose, common=Global(backbone=state.backbone))
            (threshold,) = answer.each["threshold"].values()
        elif threshold is None:
            threshold = 0.0 if self.labelling.threshold == "auto" else self.labelling.threshold
        unlabelled = [name for name in fed.parties("trainer/target") if name not in state.labelled]
        common = ToLabel(backbone=state.backbone, threshold=threshold)
        answer = fed.collect(fed.post(self.label, to=unlabelled, common=common), optional=True)
        if self.labelling.by_threshold:
            fed.log(threshold=threshold)
        if answer.arrived:
            fed.log(clusters=sum(answer.each["clusters"].values()), kept=answer.mean("kept", by="images"))
        labelled = tuple(sorted({*state.labelled, *answer.arrived}))
        return replace(state, threshold=threshold, labelled=labelled)

    def round(self, fed: Federation, state: State) -> State:
        """Stage 3: Algorithm 1. A target whose labels the server has not heard of labels its images first."""
        rounds_before = fed.round - 1
        if self.relabel and rounds_before - state.since >= self.relabel:
            state = replace(state, threshold=None, labelled=(), since=rounds_before)
        if len(state.labelled) < len(fed.parties("trainer/target")):
            state = self.clusters(fed, state)
        clients = [*(fed.parties("trainer/source") if self.source else ()), *state.labelled]
        if not clients:
            raise Abandoned("no target client has labelled its images yet, and the source trains no more")
        by = "images" if self.weights == "images" else None
        answer = fed.ask(
            self.train, to=clients, common=Global(backbone=state.backbone), aggregate=[Mean("backbone", by=by)]
        )
        fed.log(loss=answer.mean("loss", by="images"))
        return replace(state, backbone=answer.aggregated["backbone"])

    @step(role="trainer/source")
    def train_alone(self, party: Party, own: Own | None, common: Global) -> tuple[Update, Own]:
        before = own.learner if own else None
        loss, learner = learn(party, common.backbone, before, self.local, self.loss, momentum="keep")
        update = Update(backbone=party.backbone.shared(), images=len(party.data), loss=loss)
        return update, Own(labels=None, learner=learner, kept=learner.kept, cursor=learner.cursor, alone=True)

    @step(role="trainer/source")
    def choose(self, party: Party, own: Own | None, common: Global) -> Threshold:
        faces = party.extra_data if party.extra_data is not None else party.data
        features = unit_features(party, faces, common.backbone, _kept(own))
        return Threshold(threshold=self.labelling.choose(features, faces.labels))

    @step(role="trainer/target")
    def label(self, party: Party, own: Own | None, common: ToLabel) -> tuple[Clustered, Own]:
        features = unit_features(party, party.data, common.backbone, _kept(own))
        clusters = self.labelling(features, common.threshold, party.rng)
        clustered = clusters >= 0
        if not clustered.any():
            raise ValueError(
                f"{party.name}: none of its {len(clusters)} images is in a cluster of "
                f"{self.labelling.min_cluster_size} or more at τ = {common.threshold:g}: raise the threshold, or lower "
                "labelling.min_cluster_size"
            )
        counts = Clustered(images=len(clusters), clusters=int(clusters.max()) + 1, kept=float(clustered.mean()))
        kept = own.kept if own else party.backbone.kept()
        cursor = own.cursor if own else Cursor()
        if own and own.learner:  # it has trained in this order of its images
            cursor = Cursor(epoch=cursor.epoch + 1)
        labels = Labels(labels=torch.from_numpy(clusters))
        return counts, Own(labels=labels, learner=None, kept=kept, cursor=cursor, alone=False)

    @step(role="trainer")
    def train(self, party: Party, own: Own | None, common: Global) -> tuple[Update, Own]:
        labels = own.labels if own else None
        labelled = party if labels is None else replace(party, data=party.data.clustered(labels.labels.numpy()))
        learner = own.learner if own else None
        if learner is None:
            learner = self._begin(labelled, common.backbone, _kept(own), own.cursor if own else Cursor())
        elif own is not None and own.alone:  # this stage has orders of its own, so it begins one
            learner = replace(learner, velocity={}, cursor=Cursor(epoch=learner.cursor.epoch + 1))
        constrained = party.role == "trainer/source" and self.constraint > 0
        anchor = {n: w.to(party.device) for n, w in common.backbone.items()}

        def pull(trained: Tensors, images: Tensor, labels: Tensor) -> Tensors:  # ∇ (λ/2) ‖w − w^t‖² = λ (w − w^t)  (3)
            return {n: self.constraint * (w.detach() - anchor[n]) for n, w in trained.items() if n in anchor}

        loss, learner = learn(
            labelled,
            common.backbone,
            learner,
            self.local,
            self.loss,
            momentum=self.momentum,
            head_momentum=self.head_momentum,
            pull=pull if constrained else None,
        )
        update = Update(backbone=party.backbone.shared(), images=len(labelled.data), loss=loss)
        return update, Own(labels=labels, learner=learner, kept=learner.kept, cursor=learner.cursor, alone=False)

    def _begin(self, party: Party, backbone: Tensors, kept: Tensors | None, cursor: Cursor) -> Learner:
        """The class embeddings of a client that has not trained on these classes yet."""
        classes = len(party.data.names)
        rows = self.loss.rows(classes)
        head = fresh_head(party, rows)
        block = party.shards.span(rows) if party.shards is not None else slice(None)
        if self.keeps_classifier and party.class_embeddings is not None:
            head = party.class_embeddings[block].to(head)
        elif self.head_init != "random" and rows == classes:
            features = unit_features(party, party.data, backbone, kept)
            means = mean_head(features, torch.from_numpy(party.data.labels).to(features.device), classes)
            head = means[block].to(head.dtype)
        party.backbone.load(backbone, kept)
        extra = self.loss.extra(classes) | self.loss.state(classes)
        return Learner(head=head, extra=extra, kept=party.backbone.kept(), velocity={}, cursor=cursor)

    @step(role="trainer/target", local=PSEUDO_LABELS)
    def labels(self, party: Party, own: Own | None) -> Tensors:
        return {"labels": own.labels.labels} if own and own.labels else {}

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Own | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, _kept(own))

    def models(self, fed: Federation, state: State) -> Models:
        return Models.by_policy(fed, Global(backbone=state.backbone))


@dataclass(frozen=True, kw_only=True)
class FinetunePseudo(FedFRUDA):
    """The source pre-trains and chooses τ; then the targets alone train, on their clusters (Tables 2 to 5).

    With one target client it is plain fine-tuning on pseudo labels ("fine-tune", "P + C"); with several, their mean.
    """

    title: ClassVar[str] = "targets train on clusters of their images, without the source"

    constraint: float = 0.0
    source: bool = False
    head_init: Literal["mean", "random"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source or self.constraint:
            raise ValueError(
                "finetune-pseudo trains without the source client: leave `source` and `constraint` out, or use "
                "fedfr-uda"
            )


def _kept(own: Own | None) -> Tensors | None:
    return own.kept if own else None
