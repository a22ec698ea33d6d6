"""Images of a gradient: gradient matching among the faces that eigenfaces make, then pixel by pixel, and how near the
images are to others.

Geiping et al., "Inverting gradients: how easy is it to break privacy in federated learning?" (NeurIPS 2020), match
the cosine of the gradients over pixels under total variation. Begun at noise, as public code does, that takes thousands
of iterations (`benchmarks/public_inversion.py`); begun at a face of public eigenfaces, hundreds. A prior of faces is
that of Jeon et al., "Gradient inversion with generative image prior" (NeurIPS 2021). Batch statistics as BatchNorm's
running ones tell them: Yin et al., "See through gradients" (CVPR 2021).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from coalface.core.method import Tensors
from coalface.experiments.attacks.updates import reading
from coalface.training.sgd import SGD

WINDOW = 7
"""Side of the windows of SSIM."""
RANGE = 2.0
"""Of pixels in [−1, 1]."""
COMPONENTS, LR, PRIOR, STATISTICS, VARIATION = 64, 0.1, 0.003, 0.01, 0.15
"""Eigenfaces; the learning rate of Adam, 0.4 times it after 3/8, 5/8 and 7/8 of the iterations; and the weights of the
mean squared coefficient, of the mean squared distance of batch statistics in units of the told variance, and of total
variation. All were chosen on other synthetic people, with an untrained network."""
PLAYED_LR = 0.03
"""The learning rate where local steps are played, and a third of it over pixels; both were chosen on one update of
seed 0 of `attacks/silos`, of five steps of one image."""


@dataclass(frozen=True)
class Eigenfaces:
    """What faces look like: mean + Σ_k c_k σ_k v_k, with c_k of variance 1."""

    mean: Tensor
    """(1, c, h, w)."""
    scaled: Tensor
    """(K, c · h · w) σ_k v_k."""

    @classmethod
    def of(cls, images: Tensor, components: int) -> Eigenfaces:
        """The first principal components of images (n, c, h, w); at most n − 1 of them."""
        mean = images.mean(0, keepdim=True)
        _, sizes, vectors = torch.linalg.svd((images - mean).flatten(1), full_matrices=False)
        kept = min(components, len(images) - 1)
        return cls(mean, vectors[:kept] * sizes[:kept, None] / len(images) ** 0.5)

    def draw(self, coefficients: Tensor) -> Tensor:
        """(n, c, h, w) the faces of coefficients (n, K)."""
        return self.mean + (coefficients @ self.scaled).unflatten(1, self.mean.shape[1:])


@dataclass(frozen=True)
class LocalSteps:
    """A party's K steps of SGD on as many images each, every image once: v ← β v + g + λ θ + drift, θ ← θ − η v.

    Of several steps an update is no gradient: step k sees its images through the weights that the steps before left.
    The server knows η, β, λ and K, plays the steps on rebuilt images, and looks for those that make the update.

    Source: Geiping et al., section 6; Dimitrov et al., "Data leakage in federated averaging" (TMLR 2022).
    """

    count: int
    """K."""
    sgd: SGD
    drift: Tensors = field(default_factory=dict)
    """Name -> what each step adds to the gradient."""

    def weights(self, images: int) -> Tensor:
        """(images, 1) how often each image's gradient is in K times the mean: Σ_j β^j over its step and those after."""
        powers = torch.tensor([self.sgd.momentum**k for k in range(self.count)])
        return powers.cumsum(0).flip(0).repeat_interleave(images // self.count)[:, None]

    def mean_gradient(self, module: nn.Module, images: Tensor, slopes: Tensor) -> Tensors:
        """(θ_0 − θ_K) / (η K) − λ θ_0 − drift by the names of the module's parameters, as `Change.gradient` has it.

        `images` (n, c, h, w) in the order of the steps; `slopes` (n, d) the ∂L/∂x of their embeddings at their step,
        whatever the class embeddings were by then: with them a step's gradient is that of Σ ⟨x, ∂L/∂x⟩.
        """
        start: Tensors = {**dict(module.named_parameters())}
        theta, speeds = start, {name: torch.zeros_like(w) for name, w in start.items()}
        moved = dict(speeds)
        for own, u in zip(images.chunk(self.count), slopes.chunk(self.count), strict=True):
            along = (functional_call(module, theta, (own,)) * u).sum()
            gradients = torch.autograd.grad(along, list(theta.values()), create_graph=True)
            for (name, w), g in zip(theta.items(), gradients, strict=True):
                added = g + self.sgd.weight_decay * w + self.drift.get(name, 0)
                speeds[name] = self.sgd.momentum * speeds[name] + added
                moved[name] = moved[name] + speeds[name]
            theta = {name: w - self.sgd.lr * speeds[name] for name, w in theta.items()}
        decay = self.sgd.weight_decay
        return {n: m / self.count - decay * start[n] - self.drift.get(n, 0) for n, m in moved.items()}


def rebuild(
    module: nn.Module,
    gradient: Tensors,
    count: int,
    faces: Eigenfaces,
    rng: np.random.Generator,
    iterations: int,
    statistics: Mapping[str, Tensor],
    loss_of: Callable[[Tensor], Tensor] | None = None,
    *,
    is_exact: bool = True,
    steps: LocalSteps | None = None,
) -> Tensor:
    """(count, c, h, w) images in [−1, 1] of which the module has such a gradient by the names of its parameters.

    `loss_of` is the loss L by the images' embeddings, where its class embeddings are known. Where they are not,
    ∂L/∂θ = Σ_i J_iᵀ u_i, with J_i the Jacobian of image i's embedding and u_i = ∂L/∂x_i: `count` · d numbers, which are
    found with the images. Where the module ends in a bias, its gradient is Σ u_i, and of one image u is known.
    `statistics` are those of `batch_statistics_told`.

    So many `iterations` go over the coefficients of eigenfaces. With `steps`, of several local steps, the gradient is
    the mean that they leave: the images come into the order in which they make it best, as far as swaps of two lead,
    and as many iterations again play the steps. Where the gradient is exactly that of so many images, and no more, as
    many then go over pixels from there; contrast stays, since a network that normalises its maps tells none.

    The module is used as it is, in training mode where its BatchNorm is to see the batch.
    """
    named = {name: p for name, p in module.named_parameters() if name in gradient}
    targets = [gradient[name].float() for name in named]
    length = _norm(targets)
    with torch.no_grad():
        width = module(faces.draw(torch.zeros(max(2, count), len(faces.scaled)))).shape[1]
    last = list(named)[-1]
    total = gradient[last].float() if last.endswith("bias") and len(gradient[last]) == width else None
    spread = 1.0 if total is None else float(total.norm()) / width**0.5
    shapes = (count, len(faces.scaled)), (count, width)
    coefficients, slopes = (torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes)
    coefficients.mul_(0.1).requires_grad_(True)
    slopes.requires_grad_(True)
    variables, is_played = [coefficients, slopes], False
    norms = [name for name, layer in module.named_modules() if isinstance(layer, _BatchNorm) and name in statistics]
    distances: list[Tensor] = []

    def measure(name: str, maps: Tensor) -> None:
        distances.append(statistics_distance(maps, statistics[name].float()))

    def slopes_now() -> Tensor:
        """(count, d) the u_i, whose sum, as often as each is in the gradient, is told where `total` is."""
        if total is None:
            return spread * slopes
        if not is_played or steps is None:
            return spread * (slopes - slopes.mean(0)) + total / count
        often = steps.weights(count)
        own = spread * (slopes - (often * slopes).sum(0) / often.sum()) + total / count
        return own * (steps.count * count / often.sum())

    def gradient_of(images: Tensor) -> Sequence[Tensor]:
        if is_played and steps is not None:
            own = steps.mean_gradient(module, images, slopes_now())
            return [own[name] for name in named]
        embeddings = module(images)
        of_images = (embeddings * slopes_now()).sum() if loss_of is None else loss_of(embeddings)
        return torch.autograd.grad(of_images, list(named.values()), create_graph=True)

    def mismatch(images: Tensor) -> Tensor:
        distances.clear()
        own = gradient_of(images)
        along = torch.stack([(a * b).sum() for a, b in zip(own, targets, strict=True)]).sum()
        loss = 1 - along / (_norm(own) * length).clamp_min(1e-30)
        return loss + STATISTICS * torch.stack(distances).mean() if distances else loss

    def order() -> None:
        """Swap two images and their u_i while that brings the steps nearer."""
        best, is_nearer = float(among_faces().detach()), True
        while is_nearer:
            is_nearer = False
            for pair in itertools.combinations(range(count), 2):
                _swap(variables, *pair)
                if (now := float(among_faces().detach())) < best:
                    best, is_nearer = now, True
                else:
                    _swap(variables, *pair)

    def among_faces() -> Tensor:
        return mismatch(faces.draw(coefficients)) + PRIOR * coefficients.square().mean()

    def among_pixels() -> Tensor:
        return mismatch(pixels) + VARIATION * total_variation(pixels)

    with reading(module, norms, measure):
        _descend(among_faces, variables, iterations)
        if steps is not None:
            is_played = True
            order()
            _descend(among_faces, variables, iterations, PLAYED_LR)
        images = faces.draw(coefficients.detach())
        if is_exact:
            pixels = images.clone().requires_grad_(True)
            _descend(among_pixels, [pixels, slopes], iterations, LR if steps is None else PLAYED_LR / 3)
            images = at_contrast_of(images, pixels.detach())
    return images.clamp_(-1, 1)


def _swap(variables: Sequence[Tensor], one: int, other: int) -> None:
    """Exchange two rows of each, in place."""
    for variable in variables:
        rows = variable.detach()
        rows[[one, other]] = rows[[other, one]]


def _descend(loss_of: Callable[[], Tensor], variables: list[Tensor], iterations: int, lr: float = LR) -> None:
    optimiser = torch.optim.Adam(variables, lr=lr)
    marks = [iterations * eighths // 8 for eighths in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, marks, gamma=0.4)
    for _ in range(iterations):
        grads = torch.autograd.grad(loss_of(), variables, materialize_grads=True)
        for variable, grad in zip(variables, grads, strict=True):
            variable.grad = grad
        optimiser.step()
        schedule.step()


def total_variation(images: Tensor) -> Tensor:
    """The mean over pixels of images (n, c, h, w), less the last row and column, of how far the next two are from them.

    √(Δ_right² + Δ_down²), with 1e-8 under the root, whose slope at zero would be infinite.
    """
    right, down = images.diff(dim=3)[..., :-1, :], images.diff(dim=2)[..., :-1]
    return (right.square() + down.square() + 1e-8).sqrt().mean()


def at_contrast_of(others: Tensor, images: Tensor) -> Tensor:
    """Images (n, c, h, w) with each the mean and deviation of the other in its place."""
    (mean, deviation), (own_mean, own_deviation) = (
        (x.mean((1, 2, 3), keepdim=True), x.std((1, 2, 3), keepdim=True)) for x in (others, images)
    )
    return (images - own_mean) / own_deviation.clamp_min(1e-6) * deviation + mean


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()


def statistics_distance(maps: Tensor, told: Tensor) -> Tensor:
    """How far the mean and unbiased variance of maps (n, channels, …) are from (2, channels) that BatchNorm told.

    The mean over channels of (μ − μ_told)² / σ²_told + (σ² / σ²_told − 1)².
    """
    axes, variance = [axis for axis in range(maps.dim()) if axis != 1], told[1].clamp_min(1e-5)
    far = (maps.mean(axes) - told[0]).square() / variance + (maps.var(axes) / variance - 1).square()
    return far.mean()


def psnr(images: Tensor, true: Tensor) -> Tensor:
    """(n,) 10 log₁₀(range² / mean squared error), dB, of images (n, c, h, w) in [−1, 1]; at most 100."""
    error = (images.double() - true.double()).square().mean((1, 2, 3)).clamp_min(RANGE**2 * 1e-10)
    return 10 * torch.log10(RANGE**2 / error)


def ssim(images: Tensor, true: Tensor) -> Tensor:
    """(n,) structural similarity, −1 to 1: the mean over windows of 7×7 pixels and channels; images as for `psnr`.

    (2 μ_a μ_b + C₁)(2 σ_ab + C₂) / ((μ_a² + μ_b² + C₁)(σ_a² + σ_b² + C₂)), C₁ = (0.01 L)², C₂ = (0.03 L)², L = 2.
    Source: Wang et al., "Image quality assessment" (IEEE TIP 2004); equal windows.
    """
    a, b = images.double(), true.double()
    mean_a, mean_b = _windowed(a), _windowed(b)
    unbiased = WINDOW**2 / (WINDOW**2 - 1)
    var_a, var_b = (_windowed(x * x) - m * m for x, m in ((a, mean_a), (b, mean_b)))
    both = unbiased * (_windowed(a * b) - mean_a * mean_b)
    first, second = (0.01 * RANGE) ** 2, (0.03 * RANGE) ** 2
    above = (2 * mean_a * mean_b + first) * (2 * both + second)
    below = (mean_a**2 + mean_b**2 + first) * (unbiased * (var_a + var_b) + second)
    return (above / below).mean((1, 2, 3))


def _windowed(maps: Tensor) -> Tensor:
    return F.avg_pool2d(maps, WINDOW, stride=1)


def assign(scores: Tensor) -> Sequence[int]:
    """Row -> the column that it gets, each at most once, the highest score first; (n, m) with n ≤ m."""
    left = scores.clone()
    columns = [-1] * len(scores)
    for _ in range(len(scores)):
        row, column = divmod(int(left.argmax()), left.shape[1])
        columns[row] = column
        left[row], left[:, column] = -torch.inf, -torch.inf
    return columns
