"""FedFR: a better model for everybody and one for each client's own people at once, with public images at all of them.

C.-T. Liu, Wang, Chien, Lai, "FedFR: joint optimization federated framework for generic and personalized face
recognition", 2022. Balanced CosFace over [Φ ; W], hard negatives of the public images, a contrastive term, and a branch
with binary classifiers at the client. Θ and Φ travel; W, Π, Ω, b and the model of a client's last round stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coalface.core.local_results import OWN_MODEL, PERSONAL_MODEL, PUBLIC_IMAGES_USED
from coalface.core.method import (
    Federation,
    Mean,
    Method,
    Models,
    Party,
    Scenario,
    Tensors,
    content,
    message,
    private,
    state,
    step,
)
from coalface.data.faceset import FaceSet
from coalface.training.classifier import Criterion, classifier_for
from coalface.training.features import loaded_features, unit_features
from coalface.training.joint.fedfr import Binary, JointLoss, first_branch, frozen, untrained
from coalface.training.joint.own_images import Curriculum, confident_labels, with_labelled
from coalface.training.joint.public_images import PublicImages, hard_negatives, public_features
from coalface.training.local_training import Beside, Trained, fresh_head, train, whole_backbone
from coalface.training.local_work import Cursor, EpochPlan, LocalTraining
from coalface.training.losses.base import check_pure
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.losses.sphereface2 import SphereFace2


@message
class Global:
    """Down, the same for all."""

    backbone: Tensors
    """Θ_g."""
    classifier: Tensor = content("template")
    """(K_g, d) Φ_g, class embeddings of the public identities, in `adafedfr` at their mean features; (0, d) where the
    client uses none."""


@message
class Update:
    """Up."""

    backbone: Tensors
    """Θ_l."""
    classifier: Tensor = content("template")
    """(K_g, d) Φ_l."""
    images: int
    """N_l, or with `weights: trained` the images of an epoch, public ones included."""
    loss: float


@private
class Own:
    """What a client keeps; none of it is ever sent."""

    classes: Tensor
    """(K_l, d) W."""
    branch: Tensors
    """Π as `turn` (d, d) and `shift` (d,), Ω as `own` (K_l, d), b as `bias`; empty without a branch."""
    model: Tensors
    """Θ_l of its last round: its own model, and f_prev's in the next."""
    kept: Tensors
    """What the BatchNorm policy keeps from the wire."""
    cursor: Cursor
    used: tuple[int, ...] = ()
    """How many public images it trained on, in each of its rounds."""
    federated: Tensors = field(default_factory=dict)
    """`kept` as it was with Θ_g, where the client went on alone since."""


@state
class State:
    """At the server."""

    backbone: Tensors
    """Θ_g."""
    classifier: Tensor = content("template")
    """(K_g, d) Φ_g."""


WORK = LocalTraining(epochs=4, lr=0.001)
"""As the text has it."""
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "phi_update": "average", "weights": "images", "previous": "global", "branch_init": "random", "bias": "one",
        "epochs": (), "decay_after": (), "drop_last": False,
    },
    "official": {
        "phi_update": "none", "weights": "trained", "previous": "random", "branch_init": "classes", "bias": "each",
        "epochs": (10, 8, 6, 4), "decay_after": (8, 6, 4, 3), "drop_last": True,
    },
}  # fmt: skip
"""Where the text and its public code differ, or the text is silent; `official` has an error of that code, that its
update of Φ is computed and not used."""


@dataclass(frozen=True, kw_only=True)
class FedFRJoint(Method):
    """Θ_g = Σ N_l Θ_l / N, Φ_g = Σ N_l Φ_l / N (2, 4); at a client L = L_cos + α2 L_con + α3 L_BCE (7).

    With no public images, no contrastive term and no branch it is FedAvg, bit for bit.
    """

    title: ClassVar[str] = "public images at every party; a shared model, and one a client"
    paper: ClassVar[str] = "C.-T. Liu et al. 2022"
    setting: ClassVar[str] = "cross-silo"
    scenario: ClassVar[Scenario] = "private-public"

    rounds: int = 30
    sample: int | None = None
    """Clients a round, drawn anew each round; None: all, as the paper has it."""
    local: LocalTraining = WORK
    loss: CosineLoss = CosFace(scale=30.0, margin=0.4)
    public: Literal["hard-negatives", "all", "none"] = "hard-negatives"
    """Which public images a client trains on beside its own; with none, over W alone."""
    threshold: float = 0.4
    """t_HN: a public image above this cosine to any of the client's is a hard negative; the paper takes the margin."""
    contrastive: float = 5.0
    """α2; 0: without the contrastive term."""
    temperature: float = 0.5
    """τ."""
    branch: Literal["binary", "softmax", "none"] = "binary"
    """The branch's loss: (6), or L_cos's over the client's own people (Table 2); none: without a branch."""
    branch_weight: float = 10.0
    """α3."""
    binary: Binary = Binary()
    through: bool = True
    """The gradient of the branch's loss goes on into the backbone; False: it trains the branch alone."""
    preset: Literal["paper", "official"] = "paper"
    """What the settings below are where they are left out."""
    phi_update: Literal["average", "none"] | None = None
    """Φ_g as (4) says, or as it was pre-trained."""
    weights: Literal["images", "trained"] | None = None
    """A client's weight: its images, or its and its public ones."""
    previous: Literal["global", "random"] | None = None
    """f_prev's model at a client's first round: Θ_g, so that the term has no gradient, or one with fresh weights."""
    branch_init: Literal["random", "classes"] | None = None
    """Ω at first: of its own, or a copy of W. Π is the identity at first."""
    bias: Literal["one", "each"] | None = None
    """b: one for all at the loss's own optimum, or one for each of the client's people, at 0."""
    epochs: tuple[int, ...] | None = None
    """Local epochs of round 1, 2, …, the last for all rounds after; (): `local`'s in every round."""
    decay_after: tuple[int, ...] | None = None
    """Epochs of a round after which η is a tenth, as `epochs`; (): never."""
    drop_last: bool | None = None
    """Leave out the last batch of an epoch where it is not full."""
    pseudo_labels: float | None = None
    """Before each local epoch, an image of unknown identity joins with that of its largest cosine to [Φ ; W] where this
    is above so much, and the client's own; with `local.steps_per_round` before each round. None: none ever joins."""
    curriculum: Curriculum | None = None
    """The easier half of a client's images first, then all; None: all in every round."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("threshold", -1, 1),
            ("contrastive", 0, 1e6),
            ("branch_weight", 0, 1e6),
            ("pseudo_labels", -1, 1),
        ):
            if getattr(self, name) is not None and not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}; give a number from {low:g} to {high:g}")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}; give a number above 0, such as 0.5")
        epochs, decay_after = self.detail("epochs"), self.detail("decay_after")
        if min((*epochs, *decay_after), default=1) < 1 or len(decay_after) not in (0, len(epochs)):
            raise ValueError(
                f"epochs and decay_after are 1 or more, as many of the one as of the other, or decay_after is []; got "
                f"epochs={list(epochs)} and decay_after={list(decay_after)}"
            )
        if epochs and self.local.steps_per_round is not None:
            raise ValueError(
                "local.steps_per_round takes the place of epochs: leave it out, or set epochs=[] and decay_after=[]"
            )
        default = self.local.epochs in (WORK.epochs, LocalTraining().epochs)
        if self.epochs is None and epochs and not default:
            raise ValueError(
                f"local.epochs is {self.local.epochs}, and preset={self.preset} would put {list(epochs)} in its place: "
                "leave local.epochs out, or set epochs=[] and decay_after=[]"
            )
        if (self.local.sample_rate or 1) < 1:
            raise ValueError("local.sample_rate: all rows of [Φ ; W] are trained in every step; remove it")
        check_pure(self.loss)
        _ = self.binary_loss  # raises for constants that cannot be
        if self.loss.rows(2) != 2 or self.loss.extra(2):
            raise ValueError(
                f"{type(self.loss).__name__} trains more than one class embedding for each identity, which [Φ ; W] has "
                "no place for: use a loss such as cosface"
            )

    @property
    def binary_loss(self) -> SphereFace2:
        """The loss (6) of the branch."""
        return self.binary.beside(self.loss)

    def detail(self, name: str) -> Any:
        """A setting that the preset gives where it is left out."""
        value = getattr(self, name)
        return PRESETS[self.preset][name] if value is None else value

    @property
    def plan(self) -> EpochPlan:
        """The local epochs of each round."""
        return EpochPlan(self.local, self.detail("epochs"), self.detail("decay_after"), self.detail("drop_last"))

    @property
    def uses_unlabelled(self) -> bool:
        return self.pseudo_labels is not None

    def init(self, fed: Federation) -> State:
        """Θ_g and Φ_g of the pre-training; without one Φ_g is drawn."""
        public: PublicImages | None = fed.extra_data
        count = len(public.faces.names) if public is not None and self.public != "none" else 0
        if public is not None and public.class_embeddings is not None and count:
            return State(backbone=fed.initial, classifier=public.class_embeddings)
        dtype = next(iter(fed.initial.values())).dtype if fed.initial else torch.float32
        drawn = fed.stream("classifier").standard_normal((count, fed.embedding_size), dtype=np.float32)
        return State(backbone=fed.initial, classifier=torch.from_numpy(drawn).mul_(0.01).to(dtype))

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample)
        aggregate = [Mean("backbone", by="images"), Mean("classifier", by="images")]
        common = Global(backbone=state.backbone, classifier=state.classifier)
        answer = fed.ask(self.train, to=chosen, common=common, aggregate=aggregate)
        fed.log(loss=answer.mean("loss", by="images"))
        averaged = self.detail("phi_update") == "average"
        phi = answer.aggregated["classifier"] if averaged else state.classifier  # (4)
        return State(backbone=answer.aggregated["backbone"], classifier=phi)  # (2)

    @step(role="trainer")
    def train(self, party: Party, own: Own | None, common: Global) -> tuple[Update, Own]:
        trained, images, after = self.work(party, own, common)
        weight = images if self.detail("weights") == "trained" else len(party.data)
        phi = trained.head[: len(common.classifier)].contiguous()
        return Update(backbone=party.backbone.shared(), classifier=phi, images=weight, loss=trained.loss), after

    def work(self, party: Party, own: Own | None, common: Global) -> tuple[Trained, int, Own]:
        """A round of local training: (what was trained, known images of an epoch, what the client keeps)."""
        if party.shards is not None:
            raise ValueError(
                "several losses over one batch are not split over processes: leave engine.processes_per_party out"
            )
        before = own or self.first_state(party, common)
        public = self.public_faces(party, common, before.kept)
        known = self.own_faces(party, party.data, common, before.kept)
        unknown = party.unlabelled and self.own_faces(party, party.unlabelled, common, before.kept)
        head = torch.cat([common.classifier.to(before.classes), before.classes])  # [Φ ; W]
        public_classes = len(common.classifier)  # K_g
        references = {name: model | before.kept for name, model in self.references(common, before).items()}
        party.backbone.load(common.backbone, before.kept)
        trained, cursor = self.train_epochs(
            replace(party, data=known, unlabelled=unknown),
            public,
            head,
            before,
            self.criterion(public_classes, head),
            frozen(party, references) if references else None,
        )
        used = 0 if public is None else len(public)
        after = Own(
            classes=trained.head[public_classes:].clone(),
            branch=trained.extra,
            model=party.backbone.shared(),
            kept=party.backbone.kept(),
            cursor=cursor,
            used=(*before.used, used),
        )
        return trained, len(known) + used, after

    def own_faces(self, party: Party, faces: FaceSet, common: Global, kept: Tensors) -> FaceSet:
        """Those of some of the client's own images that it may train on in this round."""
        if self.curriculum is None or not self.curriculum.applies(party):
            return faces
        return self.curriculum.easier(party, faces, common.backbone, kept)

    def criterion(self, public_classes: int, head: Tensor) -> Criterion:
        """The loss (7) of a round that begins with the (K_g + K_l, d) class embeddings `head`, K_g of them Φ's."""
        return JointLoss(
            classes=self.loss,
            public=public_classes,
            contrastive=self.contrastive,
            temperature=self.temperature,
            branch={"binary": self.binary_loss, "softmax": self.loss, "none": None}[self.branch],
            weight=self.branch_weight,
            through=self.through,
        )

    def references(self, common: Global, before: Own) -> dict[str, Tensors]:
        """The backbones whose embeddings the loss compares with, by its keyword: (5)."""
        return {"anchor": common.backbone, "previous": before.model} if self.contrastive else {}

    def public_faces(self, party: Party, common: Global, kept: Tensors) -> FaceSet | None:
        """The public images that the client trains on in this round; None where it uses none of them."""
        if self.public == "none":
            return None
        faces: FaceSet = party.extra_data.faces
        if self.public == "all":
            return faces
        public = public_features(party, common.backbone, kept)
        local = unit_features(party, party.data, common.backbone, kept)
        return faces.select(hard_negatives(public, local, self.threshold))

    def first_state(self, party: Party, common: Global) -> Own:
        """What a client that has not trained yet begins with."""
        classes, copied = fresh_head(party), self.detail("branch_init") == "classes"
        branch = {} if self.branch == "none" else first_branch(classes, None if copied else party.stream("branch"))
        if self.branch == "binary":
            start = torch.tensor(self.binary_loss.start(len(classes)), dtype=torch.float64)
            branch["bias"] = (torch.zeros(len(classes)) if self.detail("bias") == "each" else start).to(classes)
        party.backbone.load(common.backbone)
        model, kept = common.backbone, party.backbone.kept()
        if self.detail("previous") == "random":
            fresh = untrained(party, party.stream("previous"))
            model = {name: fresh[name] for name in model}
        return Own(classes=classes, branch=branch, model=model, kept=kept, cursor=Cursor())

    def train_epochs(
        self,
        party: Party,
        public: FaceSet | None,
        head: Tensor,
        before: Own,
        loss: Criterion,
        beside: Beside | None,
    ) -> tuple[Trained, Cursor]:
        """The local epochs of a round, in the parts between which η falls or images join."""
        plan, joins = self.plan, self.pseudo_labels is not None and bool(party.unlabelled)
        cursor, trained = before.cursor, Trained(head, before.branch, 0.0, {}, {})
        learner, total, images = with_public(party, public, party.data), 0.0, 0
        for part, factor in plan.parts(party.round, by_epoch=joins):
            if joins:
                own = self.with_joined(party, trained.head, len(head) - len(before.classes))
                learner = with_public(party, public, own)
            batches, cursor = plan.batches(part, learner, cursor)
            sgd = part.sgd(party)
            sgd = replace(sgd, lr=factor * sgd.lr)
            velocity = trained.velocity
            classifier = classifier_for(learner, trained.head, loss, sgd, extra=trained.extra, velocity=velocity)
            trained = train(learner, classifier, batches, sgd, velocity=velocity, beside=beside)
            count = sum(map(len, batches))
            total, images = total + trained.loss * count, images + count
        return replace(trained, loss=total / max(1, images)), cursor

    def with_joined(self, party: Party, head: Tensor, public_classes: int) -> FaceSet:
        """The client's images of known identity, and those of the others that get one from [Φ ; W] as it is now."""
        assert self.pseudo_labels is not None
        features = loaded_features(party.name, party.backbone, party.compute, party.unlabelled)
        labels = confident_labels(features, head.to(features), public_classes, self.pseudo_labels)
        return with_labelled(party.data, party.unlabelled, labels)

    def round_work(self, stage: str, round_: int, role: str, party: str, images: int) -> tuple[int, int]:
        return self.plan.count(round_, party, images)

    @step(role="trainer", local=PERSONAL_MODEL)
    def personal(self, party: Party, own: Own | None) -> Tensors:
        """[Θ_l, Π]."""
        if own is None:
            return {}
        names = {"turn": "branch.weight", "shift": "branch.bias"}
        return {**own.model, **own.kept, **{names[n]: t for n, t in own.branch.items() if n in names}}

    @step(role="trainer", local=OWN_MODEL)
    def generic(self, party: Party, own: Own | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, (own.federated or own.kept) if own else None)

    @step(role="trainer", local=PUBLIC_IMAGES_USED)
    def near_images(self, party: Party, own: Own | None) -> Tensors:
        """How many public images the party trained on in each of its rounds."""
        return {} if own is None or self.public == "none" else {"images": torch.tensor(own.used, dtype=torch.int64)}

    def models(self, fed: Federation, state: State) -> Models:
        if fed.policy == "average":
            return Models(shared=state.backbone)
        common = Global(backbone=state.backbone, classifier=state.classifier)
        return Models(shared=None, common=common)  # BatchNorm differs by party


def with_public(party: Party, public: FaceSet | None, own: FaceSet) -> Party:
    """The party as it trains on public images, if there are some, and on some of its own."""
    return replace(party, data=own if public is None else public.beside(own))
