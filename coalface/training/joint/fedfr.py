"""The loss of FedFR: an image among public and own identities, how far the model drifts, and a branch of its own.

C.-T. Liu et al., "FedFR: joint optimization federated framework for generic and personalized face recognition", 2022,
Equations 3 and 5 to 7.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalface.core.method import Party, Tensors
from coalface.models.embedding import eval_mode
from coalface.training.local_training import Beside
from coalface.training.losses.base import CosineLoss, MarginSoftmax
from coalface.training.losses.margins import CosFace
from coalface.training.losses.sphereface2 import SphereFace2

NEGATIVE = -1
"""The label of an image that shows none of the party's people."""


@dataclass(frozen=True)
class JointLoss:
    """L = L_cos + α2 L_con + α3 L_branch, each the mean over the batch (7; α1 is 1).

    The class embeddings are [Φ ; W]: `public` rows of public identities, then the party's own.
    """

    classes: CosineLoss
    """L_cos (3)."""
    public: int
    """K_g."""
    contrastive: float
    """α2."""
    temperature: float
    """τ."""
    branch: SphereFace2 | CosineLoss | None
    """L_branch: binary (6), in which a public image is a negative for all, or a softmax over the own images alone."""
    weight: float
    """α3."""
    through: bool = True
    """Whether the gradient of L_branch goes on into the backbone."""

    def __call__(
        self,
        embeddings: Tensor,
        weights: Tensor,
        labels: Tensor,
        *,
        anchor: Tensor | None = None,
        previous: Tensor | None = None,
        turn: Tensor | None = None,
        shift: Tensor | None = None,
        own: Tensor | None = None,
        **bias: Tensor,
    ) -> Tensor:
        """A scalar, of (n, d) embeddings f, (K_g + K_l, d) class embeddings and (n,) labels among them.

        `anchor` and `previous` (n, d) are f_glob and f_prev; `turn` (d, d) and `shift` (d,) are Π, `own` (K_l, d) is Ω,
        and `bias` what the binary loss trains besides.
        """
        total = self.classes(embeddings, weights, labels)
        if self.contrastive and anchor is not None and previous is not None:
            total = total + self.contrastive * drift(embeddings, anchor, previous, self.temperature)
        if self.branch is not None and turn is not None and own is not None:
            branch_labels = torch.where(labels >= self.public, labels - self.public, NEGATIVE)
            turned = F.linear(embeddings if self.through else embeddings.detach(), turn, shift)
            if isinstance(self.branch, SphereFace2):
                total = total + self.weight * self.branch(turned, own, branch_labels, **bias)
            elif (inside := branch_labels >= 0).any():
                share = int(inside.sum()) / len(branch_labels)  # so that the mean is over the batch here too
                total = total + self.weight * share * self.branch(turned[inside], own, branch_labels[inside], **bias)
            else:  # public images alone: the branch has a gradient all the same, of zeros
                total = total + 0 * (turned.sum() + own.sum())
        return total


@dataclass(frozen=True)
class Binary:
    """The constants of (6)."""

    scale: float | None = None
    """s′; None: s of a CosFace `loss`, as the paper has it, else 30."""
    margin: float | None = None
    """m′; None: m of a CosFace `loss`, else 0.4."""
    power: float = 3.0
    """t."""
    balance: float = 0.7
    """λ."""

    def beside(self, classes: CosineLoss) -> SphereFace2:
        """The loss with these constants beside an L_cos. Raises ValueError for constants that cannot be."""
        constants = {name: value for name, value in vars(self).items() if value is not None}
        tied = {"scale": classes.scale, "margin": classes.margin} if isinstance(classes, CosFace) else {}
        return SphereFace2(**tied | constants)


def first_branch(classes: Tensor, rng: np.random.Generator | None) -> Tensors:
    """Π at first, the identity, and Ω beside (k, d) class embeddings: a copy of them, or drawn from N(0, 0.01²)."""
    drawn = None if rng is None else rng.standard_normal(tuple(classes.shape), dtype=np.float32)
    return {
        "turn": torch.eye(classes.shape[1]).to(classes),
        "shift": torch.zeros(classes.shape[1]).to(classes),
        "own": classes.clone() if drawn is None else torch.from_numpy(drawn).mul_(0.01).to(classes),
    }


@dataclass(frozen=True, eq=False)
class Distilled:
    """L = (1 − α) L_cos + α T² KL(p ‖ q), with q and p the softmax of s cos θ / T by this model and by another.

    The other model's class embeddings are those that the round begins with. Source: Yu et al., "Salvaging federated
    learning by local adaptation", 2020, of Hinton et al., "Distilling the knowledge in a neural network", 2015.
    """

    classes: MarginSoftmax
    head: Tensor
    """(k, d) the other model's class embeddings."""
    weight: float
    """α."""
    temperature: float
    """T."""

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor, *, anchor: Tensor) -> Tensor:
        """A scalar; `anchor` (n, d) are the other model's embeddings of the same images."""
        factor = self.classes.scale / self.temperature
        teacher = F.log_softmax(factor * self.classes.cosines(anchor, self.head.to(anchor.device)), dim=1)
        pupil = F.log_softmax(factor * self.classes.cosines(embeddings, weights), dim=1)
        apart = F.kl_div(pupil, teacher, reduction="batchmean", log_target=True)
        alone = self.classes(embeddings, weights, labels)
        return (1 - self.weight) * alone + self.weight * self.temperature**2 * apart


def drift(embeddings: Tensor, anchor: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """L_con, the mean of −log(e^{a/τ} / (e^{a/τ} + e^{p/τ})), a = cos(f, f_glob), p = cos(f, f_prev) (5).

    All (n, d). Where both are one vector it is log 2, with gradient 0.
    """
    near, before = (F.cosine_similarity(embeddings, reference, dim=1) for reference in (anchor, previous))
    return F.softplus((before - near) / temperature).mean()


def frozen(party: Party, models: dict[str, Tensors]) -> Beside:
    """What other models of the party's backbone say of images: keyword -> (n, d) embeddings, without gradient.

    Each in evaluation mode; `models` have all its parameters and float buffers.
    """
    module = party.backbone.module
    models = {name: {n: t.to(party.device) for n, t in tensors.items()} for name, tensors in models.items()}

    def answers(images: Tensor) -> Tensors:
        with eval_mode(module), torch.no_grad():
            return {
                name: party.compute.embed(partial(_call_with, module, tensors), images)
                for name, tensors in models.items()
            }

    return answers


def _call_with(module: nn.Module, tensors: Tensors, images: Tensor) -> Tensor:
    embeddings: Tensor = torch.func.functional_call(module, tensors, (images,))
    return embeddings


def untrained(party: Party, rng: np.random.Generator) -> Tensors:
    """A network like the party's with fresh weights, each layer's own way of drawing them; the same on every device.

    Weights of no layer, such as the positions of a transformer, are drawn from N(0, 0.02²).
    """
    module = copy.deepcopy(party.backbone.module).cpu()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**62)))
        for layer in module.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
            else:
                for bare in layer.parameters(recurse=False):
                    nn.init.normal_(bare, std=0.02)
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
