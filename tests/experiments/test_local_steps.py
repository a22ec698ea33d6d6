"""Local steps as an attacker plays them: by a naive loop, by hand, and beside one gradient at the first weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from test_update_inversion import network, random
from tinyruns import Silent, tiny
from torch import Tensor, nn

from coalface.core.method import generator
from coalface.experiments.attacks import update_inversion
from coalface.experiments.attacks.gradient_matching import Eigenfaces, LocalSteps, psnr, rebuild
from coalface.experiments.attacks.replay import replay
from coalface.experiments.attacks.update_inversion import UpdateInversion
from coalface.experiments.attacks.updates import UPDATE, Change
from coalface.training.losses.base import CosineLoss
from coalface.training.losses.margins import Softmax
from coalface.training.sgd import SGD

LABELS = torch.tensor([0, 3, 1])


def trained(
    net: nn.Module, batches: Sequence[Tensor], labels: Sequence[Tensor], rows: Tensor, loss: CosineLoss, sgd: SGD,
    drift: dict[str, Tensor],
) -> tuple[dict[str, Tensor], Tensor]:  # fmt: skip
    """(the mean gradient of an update, (n, d) ∂L/∂x) by torch's optimiser over a copy of the network and the rows."""
    party, rows, slopes = copy.deepcopy(net), nn.Parameter(rows.clone()), []
    optimiser = torch.optim.SGD([*party.parameters(), rows], sgd.lr, sgd.momentum, weight_decay=sgd.weight_decay)
    for images, own in zip(batches, labels, strict=True):
        optimiser.zero_grad()
        embeddings = party(images)
        embeddings.retain_grad()
        loss(embeddings, rows, own).backward()
        slopes.append(embeddings.grad)
        for name, added in drift.items():
            party.get_parameter(name).grad += added
        optimiser.step()
    mean = {}
    for (name, before), after in zip(net.named_parameters(), party.parameters(), strict=True):
        moved = (before - after).detach() / (len(batches) * sgd.lr)
        mean[name] = moved - sgd.weight_decay * before.detach() - drift.get(name, torch.zeros(()))
    return mean, torch.cat(slopes)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_true_images_make_the_update_of_torch_s_optimiser(momentum: float) -> None:
    net, rows, images = network(), random(5, 6, seed=5), random(3, 3, 4, 4, seed=7)
    sgd, drift = SGD(lr=0.5, momentum=momentum, weight_decay=0.01), {"1.weight": random(12, 48, seed=9) / 10}
    expected, slopes = trained(net, images.split(1), LABELS.split(1), rows, Softmax(scale=4.0), sgd, drift)
    steps = LocalSteps(3, sgd, drift)
    played = steps.mean_gradient(net, images, slopes)
    for name, gradient in expected.items():
        torch.testing.assert_close(played[name], gradient)
    bias = list(expected)[-1]  # without decay it is the slopes' sum, as often as each is in it
    told = (steps.weights(3) * slopes).sum(0) / 3
    undecayed = LocalSteps(3, SGD(0.5, momentum)).mean_gradient(net, images, slopes)
    torch.testing.assert_close(undecayed[bias].detach(), told.to(undecayed[bias].dtype))


def test_steps_by_hand() -> None:
    """w x with w = 1, u = 1, images 1 and 2, β = 0.5: v is 1, then 0.5 + 2; with λ = 1 it is 2, then 1 + 2 + 0.8."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    images, ones = torch.tensor([[1.0], [2.0]]), torch.ones(2, 1)
    played = LocalSteps(2, SGD(lr=0.1, momentum=0.5)).mean_gradient(net, images, ones)
    assert played["weight"].item() == pytest.approx((1 + 2.5) / 2)
    decayed = LocalSteps(2, SGD(lr=0.1, momentum=0.5, weight_decay=1.0)).mean_gradient(net, images, ones)
    assert decayed["weight"].item() == pytest.approx((2 + 3.8) / 2 - 1)
    assert LocalSteps(2, SGD(lr=0.1, momentum=0.5)).weights(4).flatten().tolist() == [1.5, 1.5, 1.0, 1.0]


@pytest.mark.slow
@pytest.mark.ci
def test_images_of_several_steps_are_rebuilt_better_by_the_steps_than_by_one_gradient() -> None:
    net, rows = network().float(), random(5, 6, seed=5).float()
    faces = Eigenfaces.of(random(40, 3, 4, 4, seed=3).float().tanh(), 8)
    images, sgd = faces.draw(random(3, 8, seed=4).float() / 2).clamp(-1, 1), SGD(lr=0.5)
    update, _ = trained(net, images.split(1), LABELS.split(1), rows, Softmax(scale=4.0), sgd, {})

    def rebuilt(steps: LocalSteps | None) -> float:
        found = rebuild(net, update, 3, faces, generator(0, "rebuild"), 300, {}, is_exact=False, steps=steps)
        scores = torch.stack([psnr(image.expand_as(images), images) for image in found])
        return float(scores.max(0).values.mean())

    assert rebuilt(LocalSteps(3, sgd)) > rebuilt(None) + 3


@pytest.mark.parametrize("changes", [{}, {"method": "scaffold"}])
def test_the_attack_plays_the_steps_of_the_party(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the images that were trained on, in their order, and the slopes of the party's loss, it has the update."""
    attacks: list[UpdateInversion] = []
    studied: list[Change] = []
    errors: list[float] = []

    class Noting(UpdateInversion):
        def study(self, change: Change) -> None:
            attacks.append(self)
            studied.append(change)
            super().study(change)

    def noting(module: nn.Module, gradient: dict[str, Tensor], *_: Any, steps: LocalSteps | None, **__: Any) -> Tensor:
        change, run = studied[-1], attacks[-1].run
        images = change.trained_on
        assert (steps is None) == (change.target != UPDATE)
        if steps is not None:
            people = run.data.data[change.parties[0]].names
            rng = generator(run.recipe.seed, "party", change.parties[0], change.begins, "head")
            rows = 0.01 * torch.from_numpy(rng.standard_normal((len(people), run.data.backbone.embedding_size), "f4"))
            labels = torch.tensor([people.index(name) for name in change.names])
            batches, own = images.chunk(steps.count), labels.chunk(steps.count)
            mean, slopes = trained(module, batches, own, rows, run.recipe.loss, steps.sgd, {})
            played = steps.mean_gradient(module, images, slopes)
            for by in (mean, played):
                far = torch.cat([(by[name].detach() - g).flatten() for name, g in gradient.items()])
                errors.append(float(far.norm() / torch.cat([g.flatten() for g in gradient.values()]).norm()))
        return images

    monkeypatch.setattr(update_inversion, "rebuild", noting)
    local = {"steps_per_round": 3, "batch_size": 2, "momentum": 0.0 if changes else 0.9, "lr": 0.05}
    recipe = tiny(rounds=1, local=local, data={"partition": {"parties": 2}}, **changes)
    attack, models = replay(recipe, lambda run, seed: Noting(run, seed, parties=2, iterations=1), Silent())
    attack.outcomes(models)
    assert errors == pytest.approx([0.0] * 4, abs=1e-3)


def test_cells_of_several_steps_are_of_a_later_version() -> None:
    versions = [UpdateInversion.version_of(tiny(local={"steps_per_round": steps})) for steps in (1, 2)]
    assert versions == [UpdateInversion.version, UpdateInversion.version + 1]
