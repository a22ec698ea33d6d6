"""Update inversion: the formulas by hand and by loops, and the attack where it must succeed and where it cannot."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import torch
import torch.nn.functional as F
from commands import outputs
from tinyruns import Silent, public_images, tiny
from torch import Tensor, nn

from coalface.core.method import generator
from coalface.experiments.attacks import measure, update_inversion
from coalface.experiments.attacks.base import Outcome
from coalface.experiments.attacks.gradient_matching import (
    Eigenfaces,
    assign,
    at_contrast_of,
    psnr,
    rebuild,
    ssim,
    total_variation,
)
from coalface.experiments.attacks.replay import replay
from coalface.experiments.attacks.update_inversion import UpdateInversion, nearness, share_named
from coalface.experiments.attacks.updates import (
    MEAN,
    UPDATE,
    Change,
    LastLayer,
    batch_statistics_told,
    embeddings_told,
    embeddings_told_by_rows,
    last_layer,
)
from coalface.models.groups import freeze_batchnorm
from coalface.training.losses.margins import Softmax

ONE_STEP = {"steps_per_round": 1, "batch_size": 1, "momentum": 0.0}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(generator(seed, "test").standard_normal(shape))


def network() -> nn.Sequential:
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 12), nn.Tanh(), nn.Linear(12, 6)).double()
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_(random(*parameter.shape, seed=number) / 3)
    return net


def gradient_of(net: nn.Module, images: Tensor, head: Tensor) -> dict[str, Tensor]:
    loss = Softmax(scale=4.0)(net(images), head, torch.arange(len(images)))
    named = dict(net.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def found(layer: LastLayer | None) -> LastLayer:
    assert layer is not None
    return layer


def test_one_image_s_embedding_is_told_by_the_last_layer_and_by_rows_of_class_embeddings() -> None:
    net, image, head = network(), random(1, 3, 4, 4, seed=7), random(9, 6, seed=8)
    embedding = net(image).detach()
    gradient = gradient_of(net, image, head)
    before = {name: p.detach() for name, p in net.named_parameters()}
    told = embeddings_told(found(last_layer(gradient, before, net)))
    torch.testing.assert_close(told, embedding.expand(len(told), -1))
    rows = head.clone().requires_grad_(True)
    loss = Softmax(scale=4.0)(embedding, rows, torch.tensor([0]))
    (of_rows,) = torch.autograd.grad(loss, rows)
    by_rows = embeddings_told_by_rows(of_rows[1:], head[1:])  # the party's own rows do not leave
    torch.testing.assert_close(by_rows[0], F.normalize(embedding, dim=1)[0])
    assert not len(embeddings_told_by_rows(torch.zeros(4, 6), head[:4]))


def test_a_network_that_ends_in_batchnorm_does_not_end_in_linear() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = net.state_dict()
    assert last_layer(before, before, net) is None


def test_a_last_linear_layer_is_found_behind_batchnorm_whatever_the_order_of_what_was_sent() -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, 4), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5, 6))
    sent = dict(net.named_parameters()) | dict(net.named_buffers())
    assert found(last_layer(dict(net.named_parameters()), sent, net)).name == "3"


@pytest.mark.parametrize("bias", [True, False])
def test_a_frozen_batchnorm_at_the_end_hides_nothing_of_one_image(bias: bool) -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, 4), nn.Tanh(), nn.Conv2d(5, 6, 1, bias=bias), nn.BatchNorm2d(6), nn.Flatten())
    for number, tensor in enumerate(net.double().state_dict().values()):
        if tensor.is_floating_point():
            tensor.copy_(random(*tensor.shape, seed=number).abs() + 0.1)
    with torch.no_grad():
        net[3].weight[0] = 0
    freeze_batchnorm(net)
    image, head = random(1, 3, 4, 4, seed=7), random(9, 6, seed=8)
    before = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
    told = embeddings_told(found(last_layer(gradient_of(net.train(), image, head), before, net)))
    torch.testing.assert_close(told, net(image).detach().expand(len(told), -1))
    assert batch_statistics_told(before, net.state_dict(), steps=1) == {}
    for other in (nn.BatchNorm1d(3), nn.Sequential(nn.PReLU(3), nn.BatchNorm1d(3))):
        freeze_batchnorm(other)
        assert last_layer(other.state_dict(), other.state_dict(), other) is None


def test_batch_statistics_are_those_of_the_batch_after_one_step_and_a_mean_after_several() -> None:
    layer, batches = nn.BatchNorm2d(3).double(), [random(5, 3, 2, 2, seed=n) for n in (1, 2)]
    start = {f"bn.{n}": t.clone() for n, t in layer.state_dict().items()}
    states = []
    for batch in batches:
        layer(batch)
        states.append({f"bn.{n}": t.clone() for n, t in layer.state_dict().items()})
    told = batch_statistics_told(start, states[0], steps=1)["bn"]
    torch.testing.assert_close(told[0], batches[0].mean((0, 2, 3)))
    torch.testing.assert_close(told[1], batches[0].transpose(0, 1).flatten(1).var(1))
    later = batch_statistics_told(start, states[1], steps=2)["bn"][0]
    weights = 0.9 / 1.9, 1 / 1.9
    expected = sum(w * batch.mean((0, 2, 3)) for w, batch in zip(weights, batches, strict=True))
    torch.testing.assert_close(later, expected)


def test_psnr_by_hand_and_ssim_by_a_loop() -> None:
    a, b = random(2, 1, 9, 9, seed=1).tanh(), random(2, 1, 9, 9, seed=2).tanh()
    assert psnr(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.2)).item() == pytest.approx(20.0, abs=1e-5)
    for image in range(2):
        values = []
        for top in range(3):
            for left in range(3):
                x, y = (t[image, 0, top : top + 7, left : left + 7].flatten() for t in (a, b))
                covariance = ((x - x.mean()) * (y - y.mean())).sum() / 48
                above = (2 * x.mean() * y.mean() + 0.0004) * (2 * covariance + 0.0036)
                below = (x.mean() ** 2 + y.mean() ** 2 + 0.0004) * (x.var() + y.var() + 0.0036)
                values.append(float(above / below))
        assert ssim(a, b)[image].item() == pytest.approx(sum(values) / 9)
    torch.testing.assert_close(ssim(a, a), torch.ones(2, dtype=torch.float64))


def test_each_image_gets_one_true_image_the_nearest_first() -> None:
    assert assign(torch.tensor([[5.0, 9.0, 1.0], [6.0, 8.0, 2.0]])) == [1, 0]
    true = torch.stack([torch.zeros(1, 8, 8), torch.ones(1, 8, 8)])
    assert nearness(true.flip(0), true)[0] == pytest.approx(100.0)


def test_the_people_named_are_as_many_as_there_are() -> None:
    templates, told = torch.eye(4), torch.tensor([[0.9, 0.1, 0.0, 0.0], [0.0, 0.2, 0.8, 0.0]])
    assert share_named(told, templates, [0, 2]) == 1.0
    assert share_named(told, templates, [0, 3]) == 0.5
    assert share_named(told[:0], templates, [0]) == 0.0


@pytest.mark.slow
@pytest.mark.ci
def test_an_image_is_rebuilt_from_its_gradient_and_not_from_another_s() -> None:
    net = network().float()
    faces = Eigenfaces.of(random(40, 3, 4, 4, seed=3).float().tanh(), 8)
    images = faces.draw(random(2, 8, seed=4).float() / 2).clamp(-1, 1)
    head = random(5, 6, seed=5).float()

    def rebuilt(gradient: dict[str, Tensor], loss_of: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        return rebuild(net, gradient, 1, faces, generator(0, "rebuild"), 300, {}, loss_of)

    near = psnr(rebuilt(gradient_of(net, images[:1], head)), images[:1]).item()
    far = psnr(rebuilt(gradient_of(net, images[1:], head)), images[:1]).item()
    mean = psnr(faces.mean, images[:1]).item()
    assert near > mean + 5 and near > far + 5
    known = rebuilt(gradient_of(net, images[:1], head), lambda x: Softmax(scale=4.0)(x, head, torch.tensor([0])))
    other = rebuilt(gradient_of(net, images[:1], head), lambda x: Softmax(scale=4.0)(x, -head, torch.tensor([0])))
    assert psnr(known, images[:1]).item() > max(mean, psnr(other, images[:1]).item()) + 5


@pytest.mark.slow
@pytest.mark.ci
def test_what_eigenfaces_cannot_draw_is_rebuilt_pixel_by_pixel() -> None:
    net, head = network().float(), random(5, 6, seed=5).float()
    faces = Eigenfaces.of(random(40, 3, 4, 4, seed=3).float().tanh() / 2, 8)
    ramp = torch.linspace(-0.5, 0.5, 4).expand(1, 3, 4, 4)
    image = faces.mean + ramp
    basis = torch.linalg.qr(faces.scaled.T).Q
    nearest_face = faces.mean + (ramp.flatten(1) @ basis @ basis.T).unflatten(1, (3, 4, 4))
    rebuilt = rebuild(net, gradient_of(net, image, head), 1, faces, generator(0, "rebuild"), 300, {})
    assert psnr(rebuilt, image).item() > psnr(nearest_face, image).item() + 3


def test_total_variation_by_a_loop_and_contrast_by_hand() -> None:
    image = random(1, 2, 3, 4, seed=1)
    slopes = [
        math.hypot(*(float(image[0, c, y + down, x + 1 - down] - image[0, c, y, x]) for down in (0, 1)))
        for c, y, x in itertools.product(range(2), range(2), range(3))
    ]
    assert total_variation(image).item() == pytest.approx(sum(slopes) / 12, abs=1e-6)
    stretched = at_contrast_of(torch.tensor([[[[3.0, 5.0]]]]), torch.tensor([[[[-9.0, 1.0]]]]))
    assert stretched.flatten().tolist() == [3.0, 5.0]
    assert at_contrast_of(image, torch.zeros_like(image)).isfinite().all()


def attacked(**changes: Any) -> dict[tuple[str, str], Outcome]:
    recipe = tiny(rounds=1, **changes)
    make_attack = functools.partial(UpdateInversion, iterations=2)
    attack, models = replay(recipe, make_attack, Silent())
    return by_row(attack.outcomes(models))


def by_row(outcomes: list[Outcome]) -> dict[tuple[str, str], Outcome]:
    return {(outcome.target, outcome.figure): outcome for outcome in outcomes}


NAMED = "people named by the last layer, %"
FIGURES = ("shows somebody in the update, %", "PSNR, dB", "SSIM, %")


def test_the_server_names_the_person_of_a_step_on_one_image_and_secure_sums_hide_the_party() -> None:
    """The photographs are those trained on."""
    few: dict[str, Any] = {"partition": {"parties": 3}, "augment": {"flip": False}}
    seen = attacked(local=ONE_STEP, data=few)
    assert seen[UPDATE, NAMED].value == 100 and seen[UPDATE, NAMED].chance == pytest.approx(100 / 8)
    assert seen[MEAN, NAMED].chance > seen[UPDATE, NAMED].chance  # as many people as parties
    secure = {"privacy": {"secure": {"dropouts": 0, "corrupt": 0}}}
    hidden = attacked(local=ONE_STEP, data=few, **secure)
    assert {target for target, _ in hidden} == {MEAN}


@pytest.mark.parametrize("told", [True, False])
def test_rebuilt_images_are_held_against_those_trained_on(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what is rebuilt is what was trained on, or the mean face, which is chance."""
    changes: list[Change] = []

    class Noting(UpdateInversion):
        def study(self, change: Change) -> None:
            changes.append(change)
            super().study(change)

    def planted(
        module: nn.Module, gradient: dict[str, Tensor], count: int, faces: Eigenfaces, *_: Any, **__: Any
    ) -> Tensor:
        change = changes[-1]
        assert count == change.images == len(change.trained_on)
        moved = change.after["fc.weight"] - change.before["fc.weight"]  # two steps, at a rate of 0.05, decayed by 5e-4
        expected = -moved.double() / (2 * 0.05) - 5e-4 * change.before["fc.weight"].double()
        torch.testing.assert_close(gradient["fc.weight"], expected)
        return change.trained_on if told else faces.mean.expand_as(change.trained_on)

    monkeypatch.setattr(update_inversion, "rebuild", planted)
    recipe = tiny(rounds=1, local=ONE_STEP | {"steps_per_round": 2}, data={"augment": {"flip": False}})
    attack, models = replay(recipe, Noting, Silent())
    seen = by_row(attack.outcomes(models))
    for target in (UPDATE, MEAN):
        rows = {figure: seen[target, f"rebuilt: {figure}"] for figure in FIGURES}
        mean_face = {figure: seen[target, f"mean face: {figure}"] for figure in FIGURES}
        assert all(row.chance == mean_face[figure].chance for figure, row in rows.items())
        assert all(mean_face[figure].value == pytest.approx(mean_face[figure].chance) for figure in FIGURES[1:])
        photograph = seen[target, f"the photograph itself: {FIGURES[0]}"]
        assert (photograph.value, photograph.chance) == (100, rows[FIGURES[0]].chance)  # the judge has the same one
        if told:
            assert [rows[figure].value for figure in FIGURES] == pytest.approx([100, 100, 100])
        else:
            assert [rows[figure].value for figure in FIGURES] == [mean_face[figure].value for figure in FIGURES]


@pytest.mark.slow
@pytest.mark.ci
def test_who_judges_does_not_change_where_statistics_are_in_no_message() -> None:
    """Gradient matching runs a network in training mode, which moves its running statistics."""

    class Keeping(UpdateInversion):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.before = {name: tensor.clone() for name, tensor in self.network.module.state_dict().items()}

    model = {"name": "mobilefacenet", "batchnorm": "parameters-only"}
    recipe = tiny(rounds=1, model=model, local=ONE_STEP | {"batch_size": 4})
    attack, models = replay(recipe, functools.partial(Keeping, parties=1, iterations=2), Silent())
    assert isinstance(attack, Keeping)
    attack.outcomes(models)
    judge, network = attack._judge.state_dict(), attack.network.module.state_dict()
    assert all(torch.equal(judge[name], tensor) for name, tensor in attack.before.items())
    assert all(torch.equal(network[n], t) for n, t in attack.before.items() if "running" in n)


@pytest.mark.parametrize("parties", [1, 2])
def test_the_seed_gives_the_loss_of_a_first_round_and_of_no_later_one(
    parties: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """True images have the update's own gradient under that loss; the second round's class embeddings have moved."""
    cosines: list[float] = []
    studied: list[tuple[Change, bool]] = []

    class Noting(UpdateInversion):
        def study(self, change: Change) -> None:
            studied.append((change, False))
            super().study(change)

    def noting(module: nn.Module, gradient: dict[str, Tensor], *arguments: Any, **_: Any) -> Tensor:
        change, loss_of = studied[-1][0], arguments[5] if len(arguments) > 5 else None
        if loss_of is not None:
            studied[-1] = change, True
            named = dict(module.named_parameters())
            own = torch.autograd.grad(loss_of(module(change.trained_on)), list(named.values()))
            flat = (torch.cat([g.flatten().double() for g in of]) for of in (own, [gradient[n] for n in named]))
            cosines.append(F.cosine_similarity(*flat, dim=0).item())
        return change.trained_on

    monkeypatch.setattr(update_inversion, "rebuild", noting)
    local = {"steps_per_round": 1, "batch_size": 3, "momentum": 0.0}
    recipe = tiny(rounds=2, local=local, data={"partition": {"parties": 2}})
    make_attack = functools.partial(Noting, parties=parties, iterations=1)
    attack, models = replay(recipe, make_attack, Silent())
    rows = by_row(attack.outcomes(models))
    assert [(change.begins, known) for change, known in studied] == [
        *[("train", True)] * (parties + 1),
        *[("", False)] * (parties + 1),
    ]
    assert cosines == pytest.approx([1.0] * (parties + 1), abs=1e-5)
    assert {target for target, figure in rows if "known by the seed" in figure} == {UPDATE, MEAN}


@pytest.mark.parametrize(("method", "is_known"), [("fedavg", True), ("fedrep", False)])
def test_class_embeddings_that_train_before_the_backbone_are_not_those_of_the_seed(method: str, is_known: bool) -> None:
    local = {"steps_per_round": 1, "batch_size": 3}
    recipe = tiny(method=method, rounds=1, local=local, data={"partition": {"parties": 2}})
    attack, models = replay(recipe, functools.partial(UpdateInversion, parties=1, iterations=1), Silent())
    rows = by_row(attack.outcomes(models))
    assert any(figure == "rebuilt: PSNR, dB" for _, figure in rows)
    assert any("known by the seed" in figure for _, figure in rows) == is_known


@pytest.mark.parametrize(("lr", "named"), [(0.05, 100.0), (1e-30, 100 / 6)])
def test_head_rows_name_the_people_of_a_step_and_those_of_no_step_come_to_chance(lr: float, named: float) -> None:
    """Six parties of one person each beside public people; where nothing moved all are taken for the same person."""
    local = {"batch_size": 100, "momentum": 0.0, "lr": lr}
    data = {"partition": {"parties": 6}, "augment": {"flip": False}}
    fedfr = {"fedfr-joint": {"threshold": 1.0}}  # no public image is trained on
    recipe = public_images(local=local, data=data, methods=fedfr, pretrain={"rounds": 12})
    attack, models = replay(recipe, functools.partial(UpdateInversion, iterations=0, parties=6), Silent())
    rows = attack.outcomes(models)
    assert [(row.target, row.attacker, row.figure, row.trials) for row in rows] == [
        (UPDATE, "server", NAMED, 6),
        (UPDATE, "server", "people named by the head rows, %", 6),
        (MEAN, "client", NAMED, 1),
    ]
    assert [row.value for row in rows] == pytest.approx([named, named, 100])
    assert [row.chance for row in rows] == pytest.approx([100 / 6, 100 / 6, 100])


def test_the_command_keeps_a_table_with_the_chance_of_each_defence(tmp_path: Path) -> None:
    recipe = tinyruns.write(tmp_path / "recipe.yaml", rounds=1, local=ONE_STEP)
    command = ["attack", recipe, "--kind", "update-inversion", "--option", "iterations=1", "--out", tmp_path / "a"]
    outputs(*command, "--defence", "local.batch_size=16", "--quiet")
    cells = [json.loads(line) for line in (tmp_path / "a" / measure.CELLS).read_text().splitlines()]
    figures = {outcome["figure"] for outcome in cells[0]["outcomes"]}
    assert {NAMED, "rebuilt: PSNR, dB", "mean face: SSIM, %", "another's face: PSNR, dB"} <= figures
    row = next(line for line in (tmp_path / "a" / measure.TABLE).read_text().splitlines() if NAMED in line)
    assert "[12.5]" in row and row.count("[") == 2
