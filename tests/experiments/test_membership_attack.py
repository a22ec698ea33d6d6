"""Membership: rates against an outside oracle, scores by loops, and the attack where it must succeed and cannot."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tinyruns import Silent, tiny
from torch import Tensor, nn

from coalface.core.method import Models, generator
from coalface.experiments.attacks import membership
from coalface.experiments.attacks.base import NotAttackable, Outcome
from coalface.experiments.attacks.membership import (
    Membership,
    layer_inputs,
    likelier,
    most_tpr,
    nearest_cosines,
    rates,
    span_shares,
)
from coalface.experiments.attacks.replay import replay
from coalface.experiments.attacks.updates import MEAN, UPDATE, last_layer, people_of
from coalface.experiments.prepare import prepare
from coalface.experiments.run import begin_or_resume


def test_rates_are_those_of_another_library_and_of_a_count() -> None:
    rng = generator(0, "scores")
    members, others = rng.integers(0, 30, 50) / 10, rng.integers(0, 20, 200) / 10
    auc, tpr = rates(members, others)
    assert auc == pytest.approx(roc_auc_score([1] * 50 + [0] * 200, np.concatenate([members, others])))
    strict = np.sort(others)[-3]  # two of 200 may be accepted
    assert tpr == pytest.approx(float((members > strict).mean()))
    assert rates(others, others)[0] == pytest.approx(0.5)


def test_what_epsilon_allows_by_hand() -> None:
    assert most_tpr(0.0, 0.0, 0.01) == pytest.approx(0.01)
    assert most_tpr(math.log(2), 0.001, 0.01) == pytest.approx(0.021)
    assert most_tpr(math.log(100), 0.0, 0.5) == pytest.approx(1 - 0.5 / 100)  # the other side of the curve
    assert most_tpr(math.inf, 1e-5, 0.01) == 1.0


def test_what_a_layer_reads_of_the_images_of_a_step_lies_in_the_span_of_its_gradient() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 8))
    images = torch.from_numpy(generator(1, "images").standard_normal((5, 3, 2, 2))).float()
    embeddings = net(images[:3])
    slopes = torch.from_numpy(generator(2, "slopes").standard_normal((3, 8))).float()
    named = dict(net.named_parameters())
    gradient = dict(zip(named, torch.autograd.grad((embeddings * slopes).sum(), list(named.values())), strict=True))
    layer = last_layer(gradient, net.state_dict(), net)
    assert layer is not None
    shares = span_shares(net, layer, images, 3)
    torch.testing.assert_close(shares[:3], torch.ones(3).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(span_shares(net, layer, images.flip(-1), 3), shares)
    read = torch.cat([net[:3](images).detach().double(), torch.ones(5, 1)], 1)
    mixture = torch.linalg.lstsq(read[:3].T, read[3]).solution
    own = (read[:3].T @ mixture).norm() / read[3].norm()
    assert shares[3] >= own - 1e-6 and shares[3] < 0.99
    assert net.training


def test_an_image_is_likelier_by_its_own_statistics_than_by_others() -> None:
    net = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    before = {f"0.{n}": t.clone() for n, t in net[0].state_dict().items()}
    images = torch.stack([torch.full((2, 2, 2), 3.0), torch.zeros(2, 2, 2)])
    torch.testing.assert_close(layer_inputs(net, ["0"], images)["0"], torch.tensor([[3.0, 3.0], [0.0, 0.0]]).double())
    told = {"0": torch.tensor([[3.0, 3.0], [1.0, 1.0]]).double()}
    # sent: mean 0, variance 1. (3 − 0)² − (3 − 3)² = 9, and (0 − 0)² − (0 − 3)² = −9
    torch.testing.assert_close(likelier(net, before, told, images), torch.tensor([9.0, -9.0]).double())


def attacked(**changes: Any) -> dict[tuple[str, str], Outcome]:
    attack, models = replay(tiny(**changes), Membership, Silent())
    return {(outcome.target, outcome.figure): outcome for outcome in attack.outcomes(models)}


ONE_IMAGE: dict[str, Any] = {
    "rounds": 1,
    "local": {"steps_per_round": 1, "batch_size": 1, "momentum": 0.0},
    "data": {"test": {"images": 2}, "augment": {"flip": False}},
}


def test_the_image_of_a_step_is_known_by_the_update_and_an_update_of_nothing_tells_nothing() -> None:
    seen = attacked(**ONE_IMAGE)
    nothing = attacked(**ONE_IMAGE | {"local": {**ONE_IMAGE["local"], "lr": 1e-30}})
    assert nothing[UPDATE, "an image by the last layer's span: AUC, %"].value < 80
    assert seen[UPDATE, "an image by the last layer's span: AUC, %"].value == 100
    assert "a party by anything: TPR at FPR 1 % at most, %" not in {figure for _, figure in seen}
    assert seen["the model", "a person by tightness: AUC, %"].chance == 50


@pytest.mark.parametrize("members_first", [True, False])
def test_scores_of_members_are_held_against_those_of_others(
    members_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: images trained on, other photographs and strangers score 3, 2 and 1, or the reverse."""
    scores = itertools.cycle([3.0, 2.0, 1.0] if members_first else [1.0, 2.0, 3.0])

    def planted(*about: Any) -> Tensor:
        (images,) = (argument for argument in about if isinstance(argument, Tensor))
        return torch.full((len(images),), next(scores))

    monkeypatch.setattr(membership, "span_shares", planted)
    monkeypatch.setattr(membership, "likelier", planted)
    monkeypatch.setattr(membership, "batch_statistics_told", lambda before, after, steps: {"told": torch.ones(2, 3)})
    seen, kinds = attacked(rounds=1, data={"test": {"images": 2}}), ("the last layer's span", "BatchNorm statistics")
    for target, what, kind in itertools.product((UPDATE, MEAN), ("an image", "a person"), kinds):
        auc, tpr = (seen[target, f"{what} by {kind}: {rate}"] for rate in ("AUC, %", "TPR at FPR 1 %, %"))
        assert (auc.value, auc.chance, tpr.value, tpr.chance) == (100 * members_first, 50, 100 * members_first, 1)


@pytest.mark.parametrize(("member", "pair", "stranger"), [(30, 40, 80), (40, 20, 10)])
@pytest.mark.parametrize("gained", [5, -5])
def test_tightness_is_of_photographs_that_nobody_trained_on_and_by_how_much_it_has_grown(
    member: int, pair: int, stranger: int, gained: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted angles, in degrees: of images trained on and of second photographs to the first; the reverse next.

    By the first model, which is scored last, those of members were wider by what they have `gained`.
    """
    attack, models = replay(tiny(rounds=1, data={"test": {"images": 2}}), Membership, Silent())
    of_run = people_of(attack.run), attack.run.test_images, attack.run.held_out
    angles = (member, pair, stranger), (member + 2 * gained, pair + gained, stranger)
    sets = iter([(*pair, pair[0] is of_run[0]) for of_model in angles for pair in zip(of_run, of_model, strict=True)])

    def planted(module: nn.Module, images: Tensor) -> Tensor:
        faces, angle, is_member = next(sets)
        assert faces is not None and len(images) == len(faces)
        first = torch.from_numpy(np.r_[True, faces.labels[1:] != faces.labels[:-1]]) & (not is_member)
        angles = torch.deg2rad(torch.where(first, 0.0, float(angle)).double())
        return torch.stack([angles.cos(), angles.sin()], 1)

    monkeypatch.setattr(membership, "span_shares", lambda net, gradient, images, n: torch.zeros(len(images)))
    monkeypatch.setattr(membership, "unit_embeddings", planted)
    seen = {o.figure: o.value for o in attack.outcomes(models) if o.target == "the model"}
    assert seen["a person by tightness: AUC, %"] == 100 * (pair < stranger)
    assert seen["an image by tightness: AUC, %"] == 100 * (member < pair)
    for what in ("a person", "an image"):
        assert seen[f"{what} by tightness gained since the first model: AUC, %"] == 100 * (gained > 0)


def test_the_first_model_is_scored_beside_the_last() -> None:
    recipe = tiny(data={"test": {"images": 2}})
    attack, models = replay(recipe, Membership, Silent())
    run = prepare(recipe, Silent(), begin_or_resume, elsewhere=False)
    trained = attack.outcomes(models)
    untrained = Membership(run, 0).outcomes(Models(shared=run.first_model))

    def tightness(outcomes: list[Outcome], target: str) -> dict[str, float]:
        return {o.figure: o.value for o in outcomes if o.target == target and "by tightness:" in o.figure}

    before = tightness(trained, "the first model")
    assert before == tightness(untrained, "the model") != tightness(trained, "the model")
    (after,), (at_first,) = ([o for o in rows if "accuracy" in o.figure] for rows in (trained, untrained))
    assert after.chance == at_first.chance == at_first.value != after.value


@pytest.mark.slow
@pytest.mark.ci
def test_batchnorm_statistics_are_scored_where_they_are_sent() -> None:
    changes: dict[str, Any] = {"rounds": 1, "data": {"test": {"images": 2}}}
    seen = attacked(**changes, model={"name": "mobilefacenet"})
    assert {
        (UPDATE, "an image by BatchNorm statistics: AUC, %"),
        (MEAN, "a person by BatchNorm statistics: AUC, %"),
    } <= seen.keys()
    with pytest.raises(NotAttackable):  # nor has it a model for everybody, or a last linear layer
        attacked(**changes, model={"name": "mobilefacenet", "batchnorm": "parameters-only"})


def test_the_nearest_class_embedding_is_that_of_a_plain_loop() -> None:
    net, images, rows = nn.Flatten(), torch.randn(4, 1, 2, 3), torch.randn(3, 6)
    naive = [max(torch.cosine_similarity(image.flatten(), row, dim=0).item() for row in rows) for image in images]
    assert nearest_cosines(net, rows, images).tolist() == pytest.approx(naive, abs=1e-6)


def test_class_embeddings_that_are_sent_tell_who_was_trained_on_until_they_are_noised() -> None:
    """They begin as the mean features of the images themselves. Other methods send none."""
    changes = {"rounds": 1, "method": "fedface", "data": {"test": {"images": 2}, "scenario": "devices"}}
    figure = "a person by the loss against class embeddings: AUC, %"
    noise = {"privacy": {"templates": {"noise_multiplier": 50.0}}}
    assert attacked(**changes)[UPDATE, figure].value > 65 > attacked(**changes, **noise)[UPDATE, figure].value
    assert not any("class embeddings" in figure for _, figure in attacked(**ONE_IMAGE))


def test_sanitised_centres_that_are_sent_are_scored_by_and_none_where_none_is_released() -> None:
    def told(members: float) -> bool:
        clustering = {"members": members, "noise_multiplier": 1e-6}
        changes = {"method": "privacyface", "methods": {"privacyface": {"clustering": clustering}}}
        seen = attacked(rounds=2, loss={"name": "cosface"}, data={"test": {"images": 2}}, **changes)  # released in one
        return (UPDATE, "a person by the loss against class embeddings: AUC, %") in seen

    assert told(members=0.5) and not told(members=1000.0)  # one member is 1, give or take its noise


def test_a_run_with_noise_has_the_bound_of_its_epsilon() -> None:
    changes = {"privacy": {"dp": {"clip": 1.0, "noise_multiplier": 5.0, "delta": 1e-5}}}
    seen = attacked(**(ONE_IMAGE | changes))
    bound = seen["the model", "a party by anything: TPR at FPR 1 % at most, %"]
    assert 1 < bound.value < 100


def test_without_candidates_that_nobody_trained_on_it_says_what_to_set() -> None:
    with pytest.raises(NotAttackable):
        attacked(rounds=1)
