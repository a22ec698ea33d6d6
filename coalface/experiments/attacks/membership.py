"""Membership: was this image, or this person, trained on?

Members are the images and people of the parties; no members are other photographs of the same people (`data.test`) for
images, and people that nobody trains on (`data.hold_out`) for people. The attacker has the candidates' photographs:

- *an outsider*, the final model: how near two photographs of a person are to each other, and how near an image is to
  another photograph of the person that was not trained on; beside what the model told before this training, and, where
  the attacker has that model too, by how much they have come nearer (no shadow models are trained);
- *the server*, a party's class embeddings or sanitised centres, and its backbone: how near an image is to any of them,
  as the losses of methods that send them fall with that cosine;
- *the server*, one party's update, without what the server knows that the method added to it, or the gradient that the
  party sends, and whoever is sent the next backbone, the round's mean: how much of what the last layer reads of a
  candidate image lies in the span of that layer's gradient;
- *the server*, the change of BatchNorm's running statistics alone: how much likelier an image's activations are by the
  party's than by those that the party was sent.

Yeom et al., "Privacy risk in machine learning" (CSF 2018), loss; Nasr et al., "Comprehensive privacy analysis of deep
learning" (S&P 2019), updates; Carlini et al., "Membership inference attacks from first principles" (S&P 2022): the
true positive rate at a low false positive rate is what counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import normalize

from coalface.core.method import Models, Tensors, generator
from coalface.data.faceset import FaceSet
from coalface.evaluation.metrics.verification import tar_at_far
from coalface.experiments.attacks.base import Attacker, NotAttackable, Outcome, accuracies
from coalface.experiments.attacks.updates import (
    Change,
    LastLayer,
    UpdateAttack,
    batch_statistics_told,
    last_layer,
    people_of,
    reading,
    to_images,
    unit_embeddings,
)
from coalface.experiments.plan import privacy_budget
from coalface.experiments.prepare import PreparedRun

FPR = 0.01
Scores = tuple[list[float], list[float]]
"""Of members and of others."""


class Membership(UpdateAttack):
    """By the final model, by updates and by batch statistics."""

    kind, version = "membership", 2

    def __init__(self, run: PreparedRun, seed: int, *, parties: PositiveInt = 4, candidates: PositiveInt = 100) -> None:
        """`candidates` are the most images of each kind that are looked for in each change."""
        super().__init__(run, seed, parties=parties)
        if run.test_images is None or run.held_out is None or not len(run.held_out):
            raise NotAttackable("candidates that nobody trained on are missing: set data.test.images and data.hold_out")
        self._members, self._others, self._strangers = people_of(run), run.test_images, run.held_out
        self._candidates, self._first = candidates, run.data.backbone.shared()
        self._scores: dict[tuple[str, Attacker, str], Scores] = defaultdict(lambda: ([], []))

    def study(self, change: Change) -> None:
        rng = generator(self.seed, "attack", change.target, *change.parties, "candidates")
        people = set(change.names)
        of_people = [place for place, name in enumerate(self._others.names) if name in people]
        candidates = (
            change.photographs[rng.permutation(len(change.photographs))[: self._candidates]],
            to_images(drawn(self._others.only(of_people), self._candidates, rng)),
            to_images(drawn(self._strangers, self._candidates, rng)),
        )
        self.network.load(change.before)
        module, gradient = self.network.module, change.gradient(list(self.network.parameters))
        told = batch_statistics_told(change.before, change.after, change.steps)
        layer = last_layer(gradient, change.before, module)
        if layer is not None:
            shares = [span_shares(module, layer, images, change.images) for images in candidates]
            self._note_kinds(change, "the last layer's span", shares)
        if change.class_embeddings is not None:
            self.network.load(change.after)
            cosines = [nearest_cosines(module, change.class_embeddings, images) for images in candidates]
            self._note_kinds(change, "the loss against class embeddings", cosines)
            self.network.load(change.before)
        if told:
            scores = [likelier(module, change.before, told, images) for images in candidates]
            self._note_kinds(change, "BatchNorm statistics", scores)

    def outcomes(self, models: Models) -> list[Outcome]:
        self.conclude(models)
        if models.shared is not None:
            last, first = self._tightness(models.shared), self._tightness(self._first)
            for target, scores in (("the model", last), ("the first model", first)):
                for what, (members, others) in scores.items():
                    self._note(target, "outsider", f"{what} by tightness", members, others)
            for what in last:
                gained = (now - before for now, before in zip(last[what], first[what], strict=True))
                self._note("the model", "outsider", f"{what} by tightness gained since the first model", *gained)
        outcomes = []
        for (target, attacker, figure), known in self._scores.items():
            if not all(known):  # nobody has two photographs that were not trained on
                continue
            auc, tpr = rates(*map(np.array, known))
            trials = sum(map(len, known))
            outcomes.append(Outcome(target, attacker, f"{figure}: AUC, %", 100 * auc, 50.0, trials))
            outcomes.append(Outcome(target, attacker, f"{figure}: TPR at FPR 1 %, %", 100 * tpr, 100 * FPR, trials))
        if not outcomes:
            raise NotAttackable(
                "no model for everybody, last layer's change or BatchNorm statistics is there to score by"
            )
        accuracy = [] if models.shared is None else accuracies(self.run, self._first, models.shared)
        return [*outcomes, *self._bound(), *accuracy]

    def _note_kinds(self, change: Change, how: str, scores: Sequence[Tensor]) -> None:
        trained_on, other_photographs, strangers = scores
        self._note(change.target, change.attacker, f"an image by {how}", trained_on, other_photographs)
        self._note(change.target, change.attacker, f"a person by {how}", other_photographs, strangers)

    def _note(self, target: str, attacker: Attacker, figure: str, members: Tensor, others: Tensor) -> None:
        known = self._scores[target, attacker, figure]
        known[0].extend(members.tolist())
        known[1].extend(others.tolist())

    def _tightness(self, backbone: Tensors) -> dict[str, tuple[Tensor, Tensor]]:
        """What is scored -> the scores of members and of others.

        People by how near two photographs are that were not trained on, images by how near they are to one.
        """
        self.network.load(backbone)
        features = {
            faces: by_person(unit_embeddings(self.network.module, to_images(faces)), faces)
            for faces in (self._members, self._others, self._strangers)
        }
        members, others, strangers = features.values()
        pairs = {name: float(rows[0] @ rows[1]) for name, rows in others.items() if len(rows) > 1}
        people = {name: float(rows[0] @ rows[1]) for name, rows in strangers.items() if len(rows) > 1}
        images = [members[name] @ others[name][0] for name in pairs if name in members]
        of_people = {"a person": (_row(pairs), _row(people))}
        return of_people | ({"an image": (torch.cat(images), _row(pairs))} if images else {})

    def _bound(self) -> list[Outcome]:
        """What (ε, δ) of the run allows whoever has the model: of a party, and so of each of its people and images."""
        if self.run.recipe.dp is None:
            return []
        about = privacy_budget.as_dict(self.run.recipe.dp, self.run.plan)
        epsilon = math.inf if about["epsilon"] is None else about["epsilon"]
        figure = "a party by anything: TPR at FPR 1 % at most, %"
        return [Outcome("the model", "outsider", figure, 100 * most_tpr(epsilon, about["delta"], FPR), 100 * FPR, 0)]


def _row(scores: Mapping[str, float]) -> Tensor:
    return torch.tensor(list(scores.values()), dtype=torch.float64)


def drawn(faces: FaceSet, count: int, rng: np.random.Generator) -> FaceSet:
    """At most `count` images of a set, at random."""
    return faces.select(np.sort(rng.permutation(len(faces))[:count]))


def by_person(features: Tensor, faces: FaceSet) -> dict[str, Tensor]:
    """Name -> the rows of that person's images."""
    labels = torch.from_numpy(faces.labels)
    return {name: features[labels == place] for place, name in enumerate(faces.names)}


def nearest_cosines(module: nn.Module, class_embeddings: Tensor, images: Tensor) -> Tensor:
    """(n,) the cosine of each image's embedding to the class embedding (k, d) that it is nearest to."""
    return (unit_embeddings(module, images) @ normalize(class_embeddings.double(), dim=1).T).max(1).values


def span_shares(module: nn.Module, layer: LastLayer, images: Tensor, count: int) -> Tensor:
    """(n,) how much of what a last linear layer reads of each image lies in the span of its gradient's rows, 0 to 1.

    The gradient (d, m + 1), the bias's beside it, is G = Σ_i u_i h̃_iᵀ over `count` images, with h̃ = (h, 1), h what the
    layer reads. So h̃ of an image among fewer than d lies in the span of its rows, and ‖P h̃‖ / ‖h̃‖ is 1. P is taken of
    at most half the directions, since all is in the span of all, and of the image or its mirror what has more.

    Source: Petrov et al., "DAGER" (NeurIPS 2024), for the tokens of a text.
    """
    whole = torch.cat([layer.weight_change, layer.bias_change[:, None]], dim=1)
    _, sizes, directions = torch.linalg.svd(whole, full_matrices=False)
    rank = min(count, len(sizes) // 2, int((sizes > sizes[0] / 1000).sum()))
    shares = []
    for side in (images, images.flip(-1)):
        inputs = layer_inputs(module, [layer.name], side)
        read = nn.functional.pad(next(iter(inputs.values())), (0, 1), value=1.0)
        shares.append((read @ directions[:rank].T).norm(dim=1) / read.norm(dim=1))
    return torch.maximum(*shares)


def likelier(module: nn.Module, before: Tensors, told: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """(n,) how much nearer each image's means of activations are to the told batch statistics than to the running ones.

    The mean over layers and channels of (μ − μ_sent)² / σ²_sent − (μ − μ_told)² / σ²_told.
    """
    layers = []
    for name, means in layer_inputs(module, list(told), images).items():
        sent = before[f"{name}.running_mean"].double(), before[f"{name}.running_var"].double().clamp_min(1e-5)
        mean, variance = told[name][0], told[name][1].clamp_min(1e-5)
        layers.append(((means - sent[0]).square() / sent[1] - (means - mean).square() / variance).mean(1))
    return torch.stack(layers).mean(0)


def layer_inputs(module: nn.Module, names: Sequence[str], images: Tensor) -> dict[str, Tensor]:
    """Layer's name -> (n, channels) what it reads of each image, its mean over places, in evaluation mode; float64."""
    parts: dict[str, list[Tensor]] = {name: [] for name in names}

    def keep(name: str, read: Tensor) -> None:
        parts[name].append((read.flatten(2).mean(2) if read.dim() > 2 else read).double())

    with reading(module, names, keep):
        unit_embeddings(module, images)
    return {name: torch.cat(batches) for name, batches in parts.items()}


def rates(members: NDArray[np.float64], others: NDArray[np.float64]) -> tuple[float, float]:
    """(AUC, TPR at FPR 1 %): how often a member's score is above another's, ties half; and as `tar_at_far` has it."""
    ranks = np.searchsorted(np.sort(others), members, "left") + np.searchsorted(np.sort(others), members, "right")
    same = np.repeat([True, False], [len(members), len(others)])
    (point,) = tar_at_far(np.concatenate([members, others]), same, [FPR])
    return float(ranks.mean() / 2 / len(others)), point.tar


def most_tpr(epsilon: float, delta: float, fpr: float) -> float:
    """min(1, e^ε FPR + δ, 1 − e^{−ε} (1 − δ − FPR)): what (ε, δ) allows any test of one party's having taken part.

    Source: Kairouz, Oh, Viswanath, "The composition theorem for differential privacy" (ICML 2015), theorem 2.1.
    """
    if math.isinf(epsilon):
        return 1.0
    return min(1.0, math.exp(min(epsilon, 700)) * fpr + delta, 1 - math.exp(-epsilon) * (1 - delta - fpr))
