import math

import pytest
import torch
import worlds
from pytorch_metric_learning.losses import ArcFaceLoss, CosFaceLoss, NormalizedSoftmaxLoss

from coalface.experiments.recipe import loader
from coalface.training.losses.adaface import AdaFace
from coalface.training.losses.hinge import PositiveHinge
from coalface.training.losses.margins import ArcFace, CosFace, Softmax, unit
from coalface.training.losses.registry import LOSSES
from coalface.training.losses.sphereface import SphereFace
from coalface.training.losses.sphereface2 import SphereFace2
from coalface.training.losses.subcenter import SubCenterArcFace

EVERY = [Softmax(scale=30.0), CosFace(scale=30.0, margin=0.35), ArcFace(scale=30.0, margin=0.5)]
HALVES = [torch.bfloat16, torch.float16]


def problem(n=12, k=7, d=16, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, d, generator=g, dtype=torch.float64).to(dtype)
    weights = torch.randn(k, d, generator=g, dtype=torch.float64).to(dtype)
    return embeddings, weights, torch.randint(k, (n,), generator=g)


def naive(loss, embeddings, weights, labels):
    """The formula in plain Python numbers, image by image and class by class."""
    total = 0.0
    for x, y in zip(embeddings.double().tolist(), labels.tolist(), strict=True):
        logits = []
        for j, w in enumerate(weights.double().tolist()):
            dot = sum(a * b for a, b in zip(x, w, strict=True))
            cosine = dot / math.sqrt(sum(a * a for a in x)) / math.sqrt(sum(b * b for b in w))
            if j == y and isinstance(loss, CosFace):
                cosine -= loss.margin
            if j == y and isinstance(loss, ArcFace):
                angle = math.acos(cosine)
                if angle < math.pi - loss.margin:
                    cosine = math.cos(angle + loss.margin)
                else:
                    cosine -= loss.margin * math.sin(math.pi - loss.margin)
            logits.append(loss.scale * cosine)
        top = max(logits)
        total += math.log(sum(math.exp(v - top) for v in logits)) + top - logits[y]
    return total / len(labels)


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-5)])
def test_a_naive_loop_gives_the_same(loss, dtype, rel):
    problem_ = problem(dtype=dtype)
    assert loss(*problem_).item() == pytest.approx(naive(loss, *problem_), rel=rel)


def test_hand_worked_numbers():
    # One embedding at 60° from its own class (cosine 1/2) and at 90° from the other (cosine 0); lengths do not count.
    embeddings = torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([[1.0, math.sqrt(3), 0.0], [0.0, 0.0, 5.0]], dtype=torch.float64)
    label = torch.tensor([0])
    # log(1 + e^{-s·f}), with f = 1/2, then 1/2 − 1/4 = 1/4, then cos(60° + 30°) = 0.
    assert Softmax(scale=4)(embeddings, weights, label).item() == pytest.approx(math.log1p(math.exp(-2)))
    assert CosFace(scale=4, margin=0.25)(embeddings, weights, label).item() == pytest.approx(math.log1p(math.exp(-1)))
    assert ArcFace(scale=4, margin=math.pi / 6)(embeddings, weights, label).item() == pytest.approx(math.log(2))
    logits = CosFace(scale=4, margin=0.25).logits(embeddings, weights, label)
    torch.testing.assert_close(logits, torch.tensor([[1.0, 0.0]], dtype=torch.float64))


def test_pytorch_metric_learning_gives_the_same_value_and_gradient():
    embeddings, weights, labels = problem(n=40, k=9, d=6, dtype=torch.float32)
    oracles = {
        Softmax(scale=20): NormalizedSoftmaxLoss(num_classes=9, embedding_size=6, temperature=1 / 20),
        CosFace(scale=64, margin=0.35): CosFaceLoss(num_classes=9, embedding_size=6, margin=0.35, scale=64),
        ArcFace(scale=64, margin=0.5): ArcFaceLoss(num_classes=9, embedding_size=6, margin=math.degrees(0.5), scale=64),
    }
    for loss, oracle in oracles.items():
        ours = embeddings.clone().requires_grad_()
        theirs = embeddings.clone().requires_grad_()
        oracle.W.data = weights.T.clone()
        mine, other = loss(ours, weights, labels), oracle(theirs, labels)
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
        mine.backward()
        other.backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: type(loss).__name__)
def test_the_gradient_is_that_of_the_value(loss):
    embeddings, weights, labels = problem(n=4, k=3, d=5)
    embeddings[0] = -weights[labels[0]] + 0.1 * embeddings[0]  # past π − m, the other branch of ArcFace
    assert torch.autograd.gradcheck(
        lambda e, w: loss(e, w, labels), (embeddings.requires_grad_(), weights.requires_grad_())
    )


def test_no_margin_is_the_softmax():
    embeddings, weights, labels = problem()
    plain = Softmax(scale=30)(embeddings, weights, labels)
    torch.testing.assert_close(CosFace(scale=30, margin=0)(embeddings, weights, labels), plain)
    torch.testing.assert_close(ArcFace(scale=30, margin=0)(embeddings, weights, labels), plain)


@pytest.mark.parametrize("margin", [0.1, 0.5, 1.2])
def test_arcface_falls_with_the_angle_all_the_way(margin):
    angles = torch.linspace(0, math.pi, 5001, dtype=torch.float64)
    kept = ArcFace(margin=margin).target(angles.cos())
    assert (kept.diff() < 0).all()
    before = angles < math.pi - margin - 1e-9
    torch.testing.assert_close(kept[before], (angles[before] + margin).cos())


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
def test_value_and_gradient_are_finite_at_cosine_one_and_minus_one(loss, dtype):
    _, weights, _ = problem(k=50, d=64, dtype=dtype)
    labels = torch.arange(50)
    for sign in (1, -1):
        embeddings = (sign * weights).clone().requires_grad_()
        classes = weights.clone().requires_grad_()
        value = loss(embeddings, classes, labels)
        value.backward()
        assert value.isfinite() and embeddings.grad.isfinite().all() and classes.grad.isfinite().all()


def test_arcface_at_cosine_one_keeps_the_exact_value():
    for dtype in (torch.float32, torch.float64):
        ends = torch.tensor([1.0, -1.0, 1.0 + torch.finfo(dtype).eps], dtype=dtype)
        kept = ArcFace(margin=0.5).target(ends)
        expected = torch.tensor([math.cos(0.5), -1 - 0.5 * math.sin(0.5), math.cos(0.5)], dtype=dtype)
        torch.testing.assert_close(kept, expected)


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_a_vector_of_zeros_has_cosine_zero_and_no_gradient(loss, dtype):
    embeddings, weights, labels = problem(dtype=dtype)
    embeddings[3] = 0
    weights[(labels[3] + 1) % 7] = 0
    embeddings.requires_grad_()
    weights.requires_grad_()
    loss(embeddings, weights, labels).backward()
    cosines = loss.logits(embeddings, weights, labels) / loss.scale
    others = torch.arange(7) != labels[3]
    assert (cosines[3][others] == 0).all()
    assert (embeddings.grad[3] == 0).all() and (weights.grad[(labels[3] + 1) % 7] == 0).all()
    assert embeddings.grad.isfinite().all() and weights.grad.isfinite().all()
    assert (embeddings.grad[4] != 0).any()


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: type(loss).__name__)
def test_a_single_class_has_loss_zero_and_gradient_zero(loss):
    embeddings, weights, labels = problem(k=1)
    embeddings.requires_grad_()
    value = loss(embeddings, weights, labels)
    value.backward()
    assert value.item() == 0 and (embeddings.grad == 0).all()


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: type(loss).__name__)
def test_the_widest_dtype_counts_and_float32_at_least(loss):
    embeddings, weights, labels = problem()
    for e, w, out in [
        (torch.float32, torch.float64, torch.float64),
        (torch.float64, torch.float32, torch.float64),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float16, torch.bfloat16, torch.float32),
    ]:
        assert loss(embeddings.to(e), weights.to(w), labels).dtype == out


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: type(loss).__name__)
def test_autocast_does_not_touch_the_loss(loss):
    embeddings, weights, labels = problem(dtype=torch.float32)
    plain = loss(embeddings, weights, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(embeddings, weights, labels)
    assert inside.dtype == torch.float32 and torch.equal(inside, plain)


def test_the_inputs_stay_as_they_were():
    embeddings, weights, labels = problem()
    before = embeddings.clone(), weights.clone(), labels.clone()
    for loss in EVERY:
        loss(embeddings, weights, labels)
    assert all(torch.equal(a, b) for a, b in zip(before, (embeddings, weights, labels), strict=True))


def test_unit_vectors():
    vectors = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-20, 0.0]])
    torch.testing.assert_close(unit(vectors)[:2], torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    assert unit(vectors).isfinite().all()


def test_the_registry_makes_each_loss_with_the_papers_defaults():
    assert {name: kind() for name, kind in LOSSES.items()} == {
        "softmax": Softmax(scale=64.0),
        "cosface": CosFace(scale=64.0, margin=0.35),
        "arcface": ArcFace(scale=64.0, margin=0.5),
        "sphereface": SphereFace(scale=None, margin_factor=4, annealing=0.0),
        "sphereface2": SphereFace2(scale=30.0, margin=0.4, power=3.0, balance=0.7),
        "subcenter-arcface": SubCenterArcFace(scale=64.0, margin=0.5, centers=3),
        "adaface": AdaFace(scale=64.0, margin=0.4, concentration=0.333, share=0.01),
        "positive": PositiveHinge(target_cosine=0.9),
    }


@pytest.mark.parametrize("name", LOSSES)
def test_a_recipe_trains_with_every_loss_that_it_can_name(name, tmp_path):
    (tmp_path / "r.yaml").write_text("loss: {name: cosface, scale: 16.0, margin: 0.2}\n")
    asked = loader.load(tmp_path / "r.yaml", [f"loss.name={name}"])
    loss = asked.loss
    assert type(loss) is LOSSES[name] and asked.resolved()["loss"]["name"] == name
    ran = worlds.run(worlds.recipe("solo", loss=loss)[0], tmp_path / "run")
    first = worlds.Tiny()().backbone.shared()
    for model in ran.own_models().values():
        assert all(t.isfinite().all() for t in model.values())
        assert not torch.equal(model["up.weight"], first["up.weight"])


def test_a_setting_that_is_none_is_not_carried_to_another_loss(tmp_path):
    resolved = loader.parse({"loss": {"name": "sphereface"}}).resolved()
    assert resolved["loss"]["scale"] is None
    changed = loader.parse(loader.with_value(resolved, "loss.name", "cosface"))
    assert changed.loss == CosFace(scale=64.0, margin=0.35)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda e, w, y: (e[:, :-1], w, y), r"embeddings \(12, 15\) and class embeddings \(7, 16\) do not fit"),
        (lambda e, w, y: (e, w, y[:-1]), r"labels are torch.int64 \(11,\): give one int64 for each of 12 embeddings"),
        (lambda e, w, y: (e, w, y.int()), r"labels are torch.int32 \(12,\)"),
        (lambda e, w, y: (e, w, y.index_fill(0, torch.tensor([5]), 7)), "label 7 names no class: there are 7"),
        (lambda e, w, y: (e, w, y.index_fill(0, torch.tensor([5]), -1)), "label -1 names no class: there are 7"),
        (lambda e, w, y: (e[:0], w, y[:0]), "empty batch"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, says):
    with pytest.raises(ValueError, match=says):
        Softmax()(*change(*problem()))
