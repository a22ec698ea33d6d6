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
from numpy.typing import NDArray
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
    message,
    private,
    state,
    step,
)
from coalface.data.faceset import FaceSet
from coalface.training.classifier import Criterion, classifier_for
from coalface.training.features import unit_features
from coalface.training.fedfr import JointLoss, frozen, untrained
from coalface.training.local_training import Beside, Trained, fresh_head, train, whole_backbone
from coalface.training.local_work import Cursor, LocalTraining
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.losses.sphereface2 import SphereFace2
from coalface.training.public_images import PublicImages, hard_negatives, public_features


@message
class Global:
    """Down, the same for all."""

    backbone: Tensors
    """Θ_g."""
    classifier: Tensor
    """(K_g, d) Φ_g, class embeddings of the public identities; (0, d) where no public image is used."""


@message
class Update:
    """Up."""

    backbone: Tensors
    """Θ_l."""
    classifier: Tensor
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
    classifier: Tensor
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

    title: ClassVar[str] = "public images at all; one model for everybody, and one for each client's own people"
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
    binary: SphereFace2 = SphereFace2(scale=30.0, margin=0.4, power=3.0, balance=0.7)
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

    def __post_init__(self) -> None:
        for name, low, high in (("threshold", -1, 1), ("contrastive", 0, 1e6), ("branch_weight", 0, 1e6)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}; give a number from {low:g} to {high:g}")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}; give a number above 0, such as 0.5")
        epochs, after = self.detail("epochs"), self.detail("decay_after")
        if min((*epochs, *after), default=1) < 1 or len(after) not in (0, len(epochs)):
            raise ValueError(
                f"epochs and decay_after are 1 or more, as many of the one as of the other, or decay_after is []; got "
                f"epochs={list(epochs)} and decay_after={list(after)}"
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
        if self.loss.rows(2) != 2 or self.loss.extra(2):
            raise ValueError(
                f"{type(self.loss).__name__} trains more than one class embedding for each identity, which [Φ ; W] has "
                "no place for: use a loss such as cosface"
            )

    def detail(self, name: str) -> Any:
        """A setting that the preset gives where it is left out."""
        own = getattr(self, name)
        return PRESETS[self.preset][name] if own is None else own

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
        fresh = answer.aggregated["classifier"] if self.detail("phi_update") == "average" else state.classifier
        return State(backbone=answer.aggregated["backbone"], classifier=fresh)

    @step(role="trainer")
    def train(self, party: Party, own: Own | None, common: Global) -> tuple[Update, Own]:
        loss, images, trained, kept = self.work(party, own, common)
        weight = images if self.detail("weights") == "trained" else len(party.data)
        phi = trained.head[: len(common.classifier)]
        update = Update(backbone=party.backbone.shared(), classifier=phi.contiguous(), images=weight, loss=loss)
        return update, kept

    def work(self, party: Party, own: Own | None, common: Global) -> tuple[float, int, Trained, Own]:
        """A round of local training: (its loss, images of an epoch, what was trained, what the client keeps)."""
        if party.shards is not None:
            raise ValueError(
                "several losses over one batch are not split over processes: leave engine.processes_per_party out"
            )
        before = own or self.first(party, common)
        beside = self.near(party, common, before.kept)
        data = beside.beside(party.data) if beside is not None else party.data
        known = len(common.classifier)
        head = torch.cat([common.classifier.to(before.classes), before.classes])
        others = {name: {**model, **before.kept} for name, model in self.others(common, before).items()}
        party.backbone.load(common.backbone, before.kept)
        trained, cursor = self.passes(
            replace(party, data=data),
            head,
            before,
            self.criterion(known, head),
            frozen(party, others) if others else None,
        )
        kept = Own(
            classes=trained.head[known:].clone(),
            branch=trained.extra,
            model=party.backbone.shared(),
            kept=party.backbone.kept(),
            cursor=cursor,
            used=(*before.used, len(data) - len(party.data)),
        )
        return trained.loss, len(data), trained, kept

    def criterion(self, known: int, head: Tensor) -> Criterion:
        """The loss of a round that begins with (K_g + K_l, d) class embeddings, of which the first `known` are Φ's."""
        return JointLoss(
            classes=self.loss,
            public=known,
            contrastive=self.contrastive,
            temperature=self.temperature,
            branch={"binary": self.binary, "softmax": self.loss, "none": None}[self.branch],
            weight=self.branch_weight,
            through=self.through,
        )

    def others(self, common: Global, before: Own) -> dict[str, Tensors]:
        """The models whose answers the loss is given, by keyword."""
        return {"anchor": common.backbone, "previous": before.model} if self.contrastive else {}

    def near(self, party: Party, common: Global, kept: Tensors) -> FaceSet | None:
        """The public images that the client trains on in this round; None where it uses none of them."""
        if self.public == "none":
            return None
        public: FaceSet = party.extra_data.faces
        if self.public == "all":
            return public
        others = public_features(party, common.backbone, kept)
        mine = unit_features(party, party.data, common.backbone, kept)
        return public.select(hard_negatives(others, mine, self.threshold))

    def first(self, party: Party, common: Global) -> Own:
        """What a client that has not trained yet begins with."""
        classes, size = fresh_head(party), party.backbone.embedding_size
        branch: Tensors = {}
        if self.branch != "none":
            drawn = party.stream("branch").standard_normal(tuple(classes.shape), dtype=np.float32)
            omega = torch.from_numpy(drawn).mul_(0.01).to(classes)
            branch = {
                "turn": torch.eye(size, dtype=classes.dtype, device=classes.device),
                "shift": torch.zeros(size, dtype=classes.dtype, device=classes.device),
                "own": classes.clone() if self.detail("branch_init") == "classes" else omega,
            }
        if self.branch == "binary":
            start = torch.tensor(self.binary.start(len(classes)), dtype=torch.float64)
            branch["bias"] = (torch.zeros(len(classes)) if self.detail("bias") == "each" else start).to(classes)
        party.backbone.load(common.backbone)
        model, kept = common.backbone, party.backbone.kept()
        if self.detail("previous") == "random":
            fresh = untrained(party, party.stream("previous"))
            model = {name: fresh[name] for name in model}
        return Own(classes=classes, branch=branch, model=model, kept=kept, cursor=Cursor())

    def passes(
        self, party: Party, head: Tensor, before: Own, loss: Criterion, beside: Beside | None
    ) -> tuple[Trained, Cursor]:
        """The local epochs of a round, in two parts where η falls within it."""
        epochs, after = self.detail("epochs"), self.detail("decay_after")
        place = min(party.round, len(epochs)) - 1
        work = replace(self.local, epochs=epochs[place]) if epochs else self.local
        parts = [(work, 1.0)]
        if after and after[place] < work.epochs:
            first, rest = after[place], work.epochs - after[place]
            parts = [(replace(work, epochs=first), 1.0), (replace(work, epochs=rest), 0.1)]
        cursor, done = before.cursor, Trained(head, before.branch, 0.0, {}, {})
        total, steps = 0.0, 0
        for some, factor in parts:
            batches, cursor = some.batches(party, cursor)
            batches = self._full(batches, some.batch_size)
            sgd = self.local.sgd(party)
            sgd = replace(sgd, lr=factor * sgd.lr)
            classifier = classifier_for(party, done.head, loss, sgd, extra=done.extra, velocity=done.velocity)
            done = train(party, classifier, batches, sgd, velocity=done.velocity, beside=beside)
            images = sum(map(len, batches))
            total, steps = total + done.loss * images, steps + images
        return replace(done, loss=total / max(1, steps)), cursor

    def _full(self, batches: list[NDArray[np.int64]], size: int) -> list[NDArray[np.int64]]:
        if not self.detail("drop_last") or self.local.steps_per_round is not None:
            return batches
        # An image that alone was left over has joined the batch before it, and is left out too.
        full = [one[:size] for one in batches if len(one) >= size]
        return full or batches  # a client with fewer images than a batch trains on what it has

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
