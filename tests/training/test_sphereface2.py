import math

import pytest
import torch
import torch.nn.functional as F
from problems import problem

from coalface.training.losses.base import cosines
from coalface.training.losses.sphereface2 import SphereFace2

# One embedding at 60° from its own class (cosine 1/2) and at 90° from the other (cosine 0); lengths do not count.
EMBEDDING = torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64)
WEIGHTS = torch.tensor([[1.0, math.sqrt(3), 0.0], [0.0, 0.0, 5.0]], dtype=torch.float64)
OWN = torch.tensor([0])


def softplus(x):
    return math.log1p(math.exp(x))


def test_hand_worked_numbers():
    bias = torch.tensor(0.5, dtype=torch.float64)
    # t = 1: g(z) = z. Own class: −4 · (1/2 − 1/4) − 1/2 = −3/2; the other: 4 · (0 + 1/4) + 1/2 = 3/2.
    plain = SphereFace2(scale=4, margin=0.25, power=1, balance=0.7)
    expected = 0.7 / 4 * softplus(-1.5) + 0.3 / 4 * softplus(1.5)
    assert plain(EMBEDDING, WEIGHTS, OWN, bias).item() == pytest.approx(expected)
    # t = 2: g(1/2) = 2 · (3/4)² − 1 = 1/8 and g(0) = −1/2, so −4 · (1/8 − 1/4) − 1/2 = 0 and 4 · (−1/4) + 1/2 = −1/2.
    spread = SphereFace2(scale=4, margin=0.25, power=2, balance=0.7)
    expected = 0.7 / 4 * math.log(2) + 0.3 / 4 * softplus(-0.5)
    assert spread(EMBEDDING, WEIGHTS, OWN, bias).item() == pytest.approx(expected)


def test_an_image_of_none_of_the_classes_is_a_negative_for_all():
    loss = SphereFace2(scale=4, margin=0.25, power=1, balance=0.7)
    value = loss(EMBEDDING, WEIGHTS, torch.tensor([-1]), torch.tensor(0.5, dtype=torch.float64))
    assert value.item() == pytest.approx(0.3 / 4 * (softplus(4 * 0.75 + 0.5) + softplus(4 * 0.25 + 0.5)))
    with pytest.raises(ValueError, match="label -2 names no class: there are 2, numbered from 0; -1 stands for none"):
        loss(EMBEDDING, WEIGHTS, torch.tensor([-2]))


def test_torchs_binary_cross_entropy_gives_the_same_with_one_bias_for_each_class():
    embeddings, weights, labels = problem(k=5)
    labels[2] = -1
    bias = torch.linspace(-3, 4, 5, dtype=torch.float64, requires_grad=True)
    loss = SphereFace2(scale=20.0, margin=0.3, power=3.0, balance=0.6)
    is_own = (labels[:, None] == torch.arange(5)).double()
    g = 2 * ((cosines(embeddings, weights) + 1) / 2).pow(3) - 1
    logits = 20 * (g - 0.3 * (2 * is_own - 1)) + bias
    weight = torch.where(is_own == 1, 0.6, 0.4)
    oracle = F.binary_cross_entropy_with_logits(logits, is_own, weight=weight, reduction="sum") / 20 / len(labels)
    value = loss(embeddings, weights, labels, bias)
    torch.testing.assert_close(value, oracle)
    gradient_, expected = (torch.autograd.grad(v, bias)[0] for v in (value, oracle))
    torch.testing.assert_close(gradient_, expected)


@pytest.mark.parametrize("loss", [SphereFace2(), SphereFace2(balance=0.5), SphereFace2(scale=64, margin=0.9, power=1)])
@pytest.mark.parametrize("classes", [2, 3, 5, 100, 3000])
def test_the_first_bias_is_the_best_one_while_all_cosines_are_zero(loss, classes):
    weights = torch.eye(classes + 1, dtype=torch.float64)[:classes]
    embeddings = torch.eye(classes + 1, dtype=torch.float64)[classes:]  # at a right angle to every class
    start = loss.extra(classes)["bias"].double()
    values = []
    for step in (-0.01, 0.0, 0.01):
        bias = (start + step).requires_grad_()
        value = loss(embeddings, weights, torch.tensor([0]), bias)
        values.append(value.item())
        if step == 0.0:
            # Both parts of the slope cancel: small beside either of them, λ σ(−a − b) being the first.
            a = loss.scale * (2 * 0.5**loss.power - 1 - loss.margin)
            part = loss.balance * torch.sigmoid(-a - bias).item() / loss.scale
            (slope,) = torch.autograd.grad(value, bias)
            assert abs(slope.item()) < 1e-5 * part
    assert values[1] < values[0] and values[1] < values[2]


def test_the_first_bias_by_hand():
    # t = 1 and m = 0: a = a' = 0. z = 1 for two classes at λ = 1/2, so v² = 1 and b = 0.
    assert SphereFace2(margin=0.0, power=1, balance=0.5).start(2) == 0
    # Three classes: z = 1/2 and v² + v/2 − 1/2 = 0, so v = 1/2.
    assert SphereFace2(margin=0.0, power=1, balance=0.5).start(3) == pytest.approx(math.log(0.5))
    # λ = 2/3, two classes: z = 2 and v² − v − 2 = 0, so v = 2.
    assert SphereFace2(margin=0.0, power=1, balance=2 / 3).start(2) == pytest.approx(math.log(2))


def test_the_first_bias_with_one_class_is_zero_and_the_loss_is_trained_all_the_same():
    loss = SphereFace2()
    assert loss.start(1) == 0
    bias = loss.extra(1)["bias"].requires_grad_()
    loss(EMBEDDING, WEIGHTS[:1], OWN, bias).backward()
    assert bias.grad.isfinite() and bias.grad < 0
    assert loss(EMBEDDING, WEIGHTS[:1], OWN).isfinite()


@pytest.mark.parametrize("classes", [2, 4, 10**7])
@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e6])
@pytest.mark.parametrize("balance", [0.5, 0.75, 0.999])
def test_the_first_bias_is_finite_where_exponentials_are_not(classes, scale, balance):
    # With balance 1/2 and two classes, or 3/4 and four, z is 1.
    assert math.isfinite(SphereFace2(scale=scale, balance=balance).start(classes))


def test_a_bias_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"bias is \(3,\): give one number, or one for each of 2 classes"):
        SphereFace2()(EMBEDDING, WEIGHTS, OWN, torch.zeros(3))
