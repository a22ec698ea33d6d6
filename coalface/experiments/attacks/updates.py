"""What the change of a backbone tells of the images behind it: a gradient, embeddings, batch statistics."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from coalface.core.declarations import contents
from coalface.core.method import Models, Tensors
from coalface.data.augment import to_tensor
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.experiments.attacks.base import Attack, Attacker, Exchange, NotAttackable, RoundCounter
from coalface.experiments.attacks.drift import KnownDrift, sent_drift
from coalface.experiments.prepare import PreparedRun
from coalface.methods.fedrep import FedRep
from coalface.methods.mime import Point
from coalface.models.embedding import cache_sized, eval_mode
from coalface.models.groups import Backbone, is_frozen
from coalface.privacy.templates import templates
from coalface.training.compute import Compute

UPDATE, GRADIENT, MEAN = "a party's update", "a party's gradient", "the round's mean"
CLASSIFIER = "classifier"
"""The field of rows of class embeddings that methods with public identities send."""


@dataclass(frozen=True)
class Recorded(Compute):
    """The arithmetic of a run that keeps what is trained on: the truth, for counting alone."""

    batches: list[tuple[FaceSet, Tensor]] = field(default_factory=list)
    """(images as they are, as they were trained on (n, c, h, w)) of each batch."""

    def batch(
        self, faces: FaceSet, index: NDArray[np.int64], rng: np.random.Generator, part: slice | None = None
    ) -> tuple[Tensor, Tensor]:
        images, labels = super().batch(faces, index, rng, part)
        self.batches.append((faces.select(index), images.detach().cpu().clone()))
        return images, labels


@dataclass(frozen=True)
class Change:
    """How a backbone changed in a round, as an attacker has it, and whose images made it so, which is the truth."""

    target: str
    attacker: Attacker
    begins: str
    """The stage whose first round this is, which parties begin with class embeddings drawn by the seed; else empty."""
    before: Tensors
    after: Tensors
    rows: tuple[Tensor, Tensor] | None
    """(k, d) class embeddings of public identities before and after, where a method sends them."""
    class_embeddings: Tensor | None
    """(rows, d) of the party's own people, where it sends them (`own_class_embeddings`)."""
    lr: float
    """η of the round."""
    weight_decay: float
    drift: Tensors
    """What is known to have been added to the gradients of the local steps, the mean over them (`drift`)."""
    parties: tuple[str, ...]
    steps: int
    """Local steps of each of the parties, by the recipe and the count that it tells."""
    images: int
    """Images that made it, by the same."""
    names: tuple[str, ...]
    """Truth: whose each image is that made it, among the parties' own people."""
    trained_on: Tensor
    """Truth: (n, c, h, w) these images, as augmented."""
    photographs: Tensor
    """Truth: the same before augmentation."""

    def gradient(self, parameters: Sequence[str]) -> Tensors:
        """The mean gradient of the loss over the local steps, −Δθ / (η K) − λ θ − drift: of one step without momentum.

        A momentum of the party's own is not taken off.
        """
        moved = {name: (self.after[name] - self.before[name]).double() for name in parameters if name in self.after}
        scale = self.lr * self.steps
        gradient = {n: -m / scale - self.weight_decay * self.before[n].double() for n, m in moved.items()}
        return {n: g - self.drift[n].double() if n in self.drift else g for n, g in gradient.items()}

    def row_gradient(self) -> Tensor | None:
        """(k, d) the same of the class embeddings of public identities."""
        if self.rows is None:
            return None
        before, after = (rows.double() for rows in self.rows)
        return (before - after) / (self.lr * self.steps) - self.weight_decay * before


@dataclass(frozen=True)
class LastLayer:
    """The linear layer W h + b that a backbone ends in, and how much an update changed it."""

    name: str
    weight: Tensor
    """(d, m) W."""
    bias: Tensor
    """(d,) b."""
    weight_change: Tensor
    bias_change: Tensor


def last_layer(change: Tensors, before: Tensors, module: nn.Module) -> LastLayer | None:
    """The linear layer that a network ends in, a frozen BatchNorm after it folded in; None: it ends in another.

    γ (W h + b − μ) / σ + β is s W h + s (b − μ) + β with s = γ / σ, so that the network ends in linear: β changes by
    ∝ Σ g and W by ∝ Σ s g hᵀ, beside which s Δβ is a bias's change. W may be a 1×1 convolution there; nothing may lie
    between the two.
    """
    *_, weight, bias = (name for name, _ in module.named_parameters() if name in before)
    name = weight.removesuffix(".weight")
    if before[weight].dim() == 2 and bias == f"{name}.bias":
        return LastLayer(name, *(tensors[n].double() for tensors in (before, change) for n in (weight, bias)))
    owners = [("", module), *((name, part) for name, part in module.named_modules() if part._parameters)]
    (name, layer), (norm_name, norm) = owners[-2:]
    pointwise = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1
    if not is_frozen(norm) or f"{norm_name}.bias" not in change or not (pointwise or isinstance(layer, nn.Linear)):
        return None
    weight, bias = f"{name}.weight", f"{name}.bias"
    gamma, beta, mean, variance = (
        before[f"{norm_name}.{n}"].double() for n in ("weight", "bias", "running_mean", "running_var")
    )
    scale = gamma / (variance + norm.eps).sqrt()
    offset = before[bias].double() if bias in before else torch.zeros_like(mean)
    return LastLayer(
        name,
        scale[:, None] * before[weight].double().flatten(1),
        scale * (offset - mean) + beta,
        change[weight].double().flatten(1),
        scale * change[f"{norm_name}.bias"].double(),
    )


def embeddings_told(layer: LastLayer) -> Tensor:
    """(r, d) embeddings that the gradient of a last linear layer tells: W h + b of h_o = ∂W_o / ∂b_o, output by output.

    Of one image, ∂W = g hᵀ and ∂b = g, and each h_o is the image's h; of several each is a mean of theirs with
    weights of its own. Outputs whose |∂b_o| is below a thousandth of the largest are left out.

    Source: Geiping et al., "Inverting gradients" (NeurIPS 2020), proposition 3.1; Zhu & Blaschko, "R-GAP" (ICLR 2021).
    """
    slopes = layer.bias_change
    moved = slopes.abs() > slopes.abs().max() / 1000
    inputs = layer.weight_change[moved] / slopes[moved, None]
    return inputs @ layer.weight.T + layer.bias


def embeddings_told_by_rows(gradient: Tensor, before: Tensor) -> Tensor:
    """(r, d) directions of embeddings that the gradient (k, d) of rows of class embeddings tells.

    With cosines in the softmax, row j of one image's gradient is a_j (x − ⟨x, w_j⟩ w_j) at unit length, a_j > 0 for all
    identities but its own: each row is a direction, and x is what lies in all planes of w_j and row j, which is the
    first eigenvector of the sum of their projections, weighted by the rows' lengths; it comes first.
    """
    lengths = gradient.norm(dim=1)
    moved = lengths > lengths.max() / 1000
    if not moved.any():
        return gradient[:0]
    rows, sizes = normalize(gradient[moved], dim=1), lengths[moved]
    own = normalize(before[moved].double(), dim=1)
    across = normalize(rows - (rows * own).sum(1, keepdim=True) * own, dim=1)
    planes = torch.einsum("k,ki,kj->ij", sizes, own, own) + torch.einsum("k,ki,kj->ij", sizes, across, across)
    common = torch.linalg.eigh(planes)[1][:, -1]
    common = common * (rows @ common * sizes).sum().sign()
    return torch.cat([common[None], rows])


def batch_statistics_told(before: Tensors, after: Tensors, steps: int, momentum: float = 0.1) -> dict[str, Tensor]:
    """Layer's name -> (2, channels) mean and variance over the images, of the change of BatchNorm's running ones.

    One step leaves r′ = (1 − m) r + m s, K steps r′ = (1 − m)^K r + (1 − (1 − m)^K) s̄, with s̄ a weighted mean of the
    steps' statistics, m torch's `momentum`. Empty where none are sent, or they are frozen.
    """
    kept = (1 - momentum) ** steps
    statistics: dict[str, Tensor] = {}
    for name in (n for n in after if n.endswith("running_mean") and not torch.equal(after[n], before[n])):
        layer = name.rpartition(".")[0]
        of_layer = [name, f"{layer}.running_var"]
        statistics[layer] = torch.stack(
            [(after[n].double() - kept * before[n].double()) / (1 - kept) for n in of_layer]
        )
    return statistics


@contextlib.contextmanager
def reading(module: nn.Module, layers: Iterable[str], look: Callable[[str, Tensor], Tensor | None]) -> Iterator[None]:
    """Within, `look` is given the name of each of some layers and what it reads, and may give it another tensor."""
    hooks = [
        module.get_submodule(name).register_forward_pre_hook(lambda _, read, name=name: look(name, read[0]))
        for name in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class Last:
    """What a run leaves, in the place of the message of a next round."""

    backbone: Tensors


class UpdateAttack(Attack):
    """An attack on what changes a backbone: single parties' updates, by the server, and the round's mean, by whoever is
    sent the next one. Two rounds are looked at, the first and the last, and in each `parties` updates, and as many
    gradients where a method sends them beside, or before, its backbones.
    """

    kind: ClassVar[str]

    def __init__(self, run: PreparedRun, seed: int, *, parties: int = 4) -> None:
        policy = run.recipe.model.policy
        network = Backbone(copy.deepcopy(run.data.backbone.module).cpu(), policy)
        network.module.requires_grad_(True)
        super().__init__(run, seed)
        self.network, self._most = network, parties
        self._recorded = Recorded(**{f.name: getattr(run.data.compute, f.name) for f in dataclasses.fields(Compute)})
        owned = [
            (name, party) for party in run.data.by_role().get("trainer", []) for name in run.data.data[party].names
        ]
        self.owner = dict(owned)
        """Person -> the party."""
        if len(self.owner) < len(owned):
            raise NotAttackable("people are at several parties, so that nobody can count whose images were found")
        self._looked_at = {1, sum(stage.rounds for stage in run.method.stages())}
        self._rounds = RoundCounter()
        self._open: tuple[Any, list[Exchange], list[tuple[FaceSet, Tensor]]] | None = None
        """The last message to all, and what answered it: exchanges, and the batches behind them."""
        self._studied: Counter[tuple[int, str]] = Counter()
        """(round, target) -> how many were looked at."""
        self._drift = KnownDrift()

    def poison(self, data: FederatedData) -> FederatedData:
        """The same images, with arithmetic that records what is trained on."""
        return dataclasses.replace(data, compute=self._recorded)

    @abstractmethod
    def study(self, change: Change) -> None:
        """Attack one change."""

    def watch(self, exchange: Exchange) -> None:
        common, before = exchange.sent[0], self._rounds.number
        if isinstance(common, Point):  # of Mime, which asks for a gradient before it asks for local steps
            common = Last(common.parameters | common.others)
        if getattr(common, "backbone", None) is None:
            return
        batches = self._take(exchange.request.party)
        if self._rounds.count(exchange.request) != before and self._open is not None:
            self._close(common)
        drift = self._drift.of(exchange)
        if self._rounds.number not in self._looked_at or not batches:
            return
        fields = contents(exchange.declared.reply) if exchange.declared.reply is not None else {}
        steps = self.run.recipe.local.count(len(self.run.data.data[exchange.request.party]))
        if "gradient" in fields:  # it was taken before the local steps, if there are any
            cut = len(batches) - steps if "backbone" in fields else len(batches)
            if exchange.reply is not None and self._is_studied(GRADIENT):
                self._study_gradient(exchange, common.backbone, batches[:cut])
            batches = batches[cut:]
        if isinstance(self.run.method, FedRep):
            batches = batches[-steps:]  # those before train class embeddings over a backbone that stands
        if not batches or "backbone" not in fields:
            return
        if self._open is None:
            self._open = common, [], []
        self._open[1].append(exchange)
        self._open[2].extend(batches)
        if exchange.update is not None and self._is_studied(UPDATE):
            self.study(self._change(common, exchange.reply, [exchange], batches, drift))

    def conclude(self, models: Models) -> None:
        """Attack the last round's mean, which the final model is."""
        if self._open is not None:
            self._close(Last(models.shared) if models.shared is not None else models.common)

    def _is_studied(self, target: str) -> bool:
        """Whether one more of a kind is looked at in the round, which counts it."""
        self._studied[self._rounds.number, target] += 1
        return self._studied[self._rounds.number, target] <= self._most

    def _study_gradient(self, exchange: Exchange, x: Tensors, batches: Sequence[tuple[FaceSet, Tensor]]) -> None:
        """Attack the gradient at x that a reply has, as a step of rate 1."""
        stepped = Last({n: x[n].double() - g.double() for n, g in exchange.reply.gradient.items()})
        change = self._change(Last(x), stepped, [exchange], batches, {})
        images = sum(len(faces) for faces, _ in batches)
        self.study(dataclasses.replace(change, target=GRADIENT, lr=1.0, steps=1, images=images))

    def _take(self, party: str) -> list[tuple[FaceSet, Tensor]]:
        """The batches of a party since it was last asked; those of public people alone are left out."""
        owners = [{self.owner.get(name) for name in names_of(faces)} - {None} for faces, _ in self._recorded.batches]
        own = [b for b, of in zip(self._recorded.batches, owners, strict=True) if of == {party}]
        self._recorded.batches[:] = [b for b, of in zip(self._recorded.batches, owners, strict=True) if of != {party}]
        return own

    def _close(self, after: Any) -> None:
        """Attack the mean of the round that is open; `after` has the `backbone` that came of it."""
        assert self._open is not None
        common, exchanges, batches = self._open
        self._open = None
        if len(exchanges) > 1:
            self.study(self._change(common, after, exchanges, batches, sent_drift(exchanges[0])))

    def _change(
        self,
        common: Any,
        after: Any,
        exchanges: Sequence[Exchange],
        batches: Sequence[tuple[FaceSet, Tensor]],
        drift: Tensors,
    ) -> Change:
        local, request = self.run.recipe.local, exchanges[0].request
        parties = tuple(exchange.request.party for exchange in exchanges)
        of_parties = [local.work(party, len(self.run.data.data[party])) for party in parties]
        trained = [
            (name, image, photograph)
            for faces, images in batches
            for name, image, photograph in zip(names_of(faces), images, to_images(faces), strict=True)
            if name in self.owner
        ]
        names, images, photographs = zip(*trained, strict=True)
        rows = getattr(common, CLASSIFIER, None), getattr(after, CLASSIFIER, None)
        return Change(
            target=UPDATE if len(parties) == 1 else MEAN,
            attacker="server" if len(parties) == 1 else "client",
            begins=request.stage if request.round == 1 else "",
            before=common.backbone,
            after=after.backbone,
            rows=None if rows[0] is None or rows[1] is None or not len(rows[0]) else (rows[0], rows[1]),
            class_embeddings=own_class_embeddings(exchanges[0]) if len(exchanges) == 1 else None,
            lr=local.lr_at(request.round, request.rounds),
            weight_decay=local.weight_decay,
            drift=drift,
            parties=parties,
            steps=max(steps for steps, _ in of_parties),
            images=sum(
                min(images, len(self.run.data.data[p])) for p, (_, images) in zip(parties, of_parties, strict=True)
            ),
            names=names,
            trained_on=torch.stack(images).float(),
            photographs=torch.stack(photographs),
        )


def own_class_embeddings(exchange: Exchange) -> Tensor | None:
    """(rows, d) what a reply tells of the party's own people: a template of each, or sanitised centres of groups."""
    declared, reply = exchange.declared.reply, exchange.reply
    assert declared is not None
    sanitised = [getattr(reply, name) for name, content in contents(declared).items() if content == "sanitised"]
    fields = (*sanitised, *own_templates(exchange).values())
    return next((rows for rows in fields if rows is not None and len(rows)), None)  # none in a round without a release


def own_templates(exchange: Exchange) -> dict[str, Tensor]:
    """Field -> (people, d) of a reply's templates, those of the party's own people, in their order."""
    people, declared = len(exchange.run.data.data[exchange.request.party].names), exchange.declared.reply
    fields = {name: getattr(exchange.reply, name) for name in templates(declared)}
    return {
        name: rows
        for name, rows in fields.items()
        if len(rows) == people and not hasattr(exchange.sent[0], name)  # all are sent those of public people as well
    }


def people_of(run: PreparedRun) -> FaceSet:
    """All images of the parties that train."""
    return functools.reduce(FaceSet.beside, (run.data.data[party] for party in run.data.by_role()["trainer"]))


def names_of(faces: FaceSet) -> list[str]:
    """Whose each image of a set is."""
    return [faces.names[label] for label in faces.labels.tolist()]


def to_images(faces: FaceSet) -> Tensor:
    """(n, c, h, w) all images of a set, in [−1, 1]."""
    return to_tensor(faces.take(np.arange(len(faces))))


def unit_embeddings(module: nn.Module, images: Tensor) -> Tensor:
    """(n, d) of images (n, c, h, w) in [−1, 1], in evaluation mode, float64."""
    with eval_mode(module), torch.no_grad():
        parts = [normalize(module(part).double(), dim=1) for part in cache_sized(images)]
    return torch.cat(parts)


def person_means(features: Tensor, people: Sequence[int] | NDArray[np.int64], count: int) -> Tensor:
    """(count, d) the mean of each person's unit embeddings (n, d), at length one; zeros of who has none."""
    means = torch.zeros(count, features.shape[1], dtype=features.dtype)
    return normalize(means.index_add_(0, torch.as_tensor(people), features), dim=1)
