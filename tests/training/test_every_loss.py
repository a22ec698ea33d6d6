"""What holds for every loss in the shared form: one row each, with a naive loop beside it."""

from __future__ import annotations

import math
import statistics
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from problems import cosine, cross_entropy, curricularface, length, problem, softplus, turned

from coalface.training.losses.adaface import AdaFace
from coalface.training.losses.base import CosineLoss, unit
from coalface.training.losses.curricularface import CurricularFace
from coalface.training.losses.elasticface import ElasticFace
from coalface.training.losses.hinge import PositiveHinge
from coalface.training.losses.margins import ArcFace, CosFace, Softmax
from coalface.training.losses.sphereface import SphereFace
from coalface.training.losses.sphereface2 import SphereFace2
from coalface.training.losses.subcenter import SubCenterArcFace


def softmax(loss, x, rows, y, batch):
    return cross_entropy([loss.scale * cosine(x, w) for w in rows], y)


def cosface(loss, x, rows, y, batch):
    return cross_entropy([loss.scale * (cosine(x, w) - loss.margin * (j == y)) for j, w in enumerate(rows)], y)


def arcface(loss, x, rows, y, batch):
    cosine_list = [cosine(x, w) for w in rows]
    cosine_list[y] = turned(cosine_list[y], loss.margin)
    return cross_entropy([loss.scale * c for c in cosine_list], y)


def subcenter(loss, x, rows, y, batch):
    c = loss.centers
    cosine_list = [max(cosine(x, rows[j * c + i]) for i in range(c)) for j in range(len(rows) // c)]
    cosine_list[y] = turned(cosine_list[y], loss.margin)
    return cross_entropy([loss.scale * v for v in cosine_list], y)


def sphereface(loss, x, rows, y, batch):
    m, cosine_list = loss.margin_factor, [cosine(x, w) for w in rows]
    angle = math.acos(cosine_list[y])
    q = math.floor(angle * m / math.pi)
    psi = (-1) ** q * math.cos(m * angle) - 2 * q
    cosine_list[y] = (loss.annealing * cosine_list[y] + psi) / (1 + loss.annealing)
    scale = length(x) if loss.scale is None else loss.scale
    return cross_entropy([scale * c for c in cosine_list], y)


def adaface(loss, x, rows, y, batch):
    lengths = [length(embedding) for embedding in batch]
    quality = (length(x) - statistics.mean(lengths)) / (statistics.stdev(lengths) + 1e-3) * loss.concentration
    quality = min(max(quality, -1), 1)
    cosine_list = [cosine(x, w) for w in rows]
    angle = min(max(math.acos(cosine_list[y]) - loss.margin * quality, 0), math.pi)
    cosine_list[y] = math.cos(angle) - (loss.margin + loss.margin * quality)
    return cross_entropy([loss.scale * c for c in cosine_list], y)


def sphereface2(loss, x, rows, y, batch):
    total, r, m, b = 0.0, loss.scale, loss.margin, loss.start(len(rows))
    for j, w in enumerate(rows):
        g = 2 * ((cosine(x, w) + 1) / 2) ** loss.power - 1
        if j == y:
            total += loss.balance / r * softplus(-r * (g - m) - b)
        else:
            total += (1 - loss.balance) / r * softplus(r * (g + m) + b)
    return total


def positive(loss, x, rows, y, batch):
    return max(0.0, loss.target_cosine - cosine(x, rows[y])) ** 2


@dataclass(frozen=True)
class Row:
    loss: CosineLoss
    naive: Any
    softmax: bool = True
    """With a single class the loss is 0."""

    def problem(self, k=7, **options):
        return problem(k=k, rows=self.loss.rows(k), **options)

    def __str__(self) -> str:
        return type(self.loss).__name__


ROWS = [
    Row(Softmax(scale=30.0), softmax),
    Row(CosFace(scale=30.0, margin=0.35), cosface),
    Row(ArcFace(scale=30.0, margin=0.5), arcface),
    Row(SubCenterArcFace(scale=30.0, margin=0.5, centers=3), subcenter),
    Row(SphereFace(), sphereface),
    Row(SphereFace(scale=30.0, margin_factor=3, annealing=5.0), sphereface),
    Row(AdaFace(scale=30.0), adaface),
    Row(CurricularFace(scale=30.0), curricularface),
    Row(ElasticFace(scale=30.0), arcface),  # of margins that are not given, each is m
    Row(SphereFace2(), sphereface2, softmax=False),
    Row(PositiveHinge(), positive, softmax=False),
]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
every_row = pytest.mark.parametrize("row", ROWS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def gradients(loss, embeddings, weights, labels):
    """The value and its gradients; all of them must be finite."""
    embeddings, weights = embeddings.clone().requires_grad_(), weights.clone().requires_grad_()
    value = loss(embeddings, weights, labels)
    gradients_ = torch.autograd.grad(value, (embeddings, weights))
    assert value.shape == () and value.isfinite() and all(g.isfinite().all() for g in gradients_)
    return value.detach(), *gradients_


def naive(row, embeddings, weights, labels):
    batch, rows = embeddings.double().tolist(), weights.double().tolist()
    return statistics.mean(row.naive(row.loss, x, rows, y, batch) for x, y in zip(batch, labels.tolist(), strict=True))


@every_row
@every_dtype
def test_a_naive_loop_gives_the_same(row, dtype):
    inputs = row.problem(n=40, d=5, dtype=dtype)  # in 5 dimensions cosines of all sizes occur
    rel = 1e-12 if dtype == torch.float64 else 1e-5  # halves are computed in float32
    assert row.loss(*inputs).item() == pytest.approx(naive(row, *inputs), rel=rel)


@every_row
def test_the_gradient_is_that_of_the_value(row):
    embeddings, weights, labels = row.problem(n=5, k=3, d=4)
    lengths = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)

    def value(e, w):
        # AdaFace takes lengths without gradient, by definition: hold them still there.
        return row.loss(unit(e) * lengths if isinstance(row.loss, AdaFace) else e, w, labels)

    assert torch.autograd.gradcheck(value, (embeddings.requires_grad_(), weights.requires_grad_()))


@every_row
@every_dtype
@pytest.mark.parametrize("sign", [1, -1])
def test_cosines_of_one_and_minus_one_are_no_edge(row, dtype, sign):
    _, weights, _ = row.problem(k=50, d=64, dtype=dtype)
    embeddings = sign * weights[:: row.loss.rows(1)]
    value, _, _ = gradients(row.loss, embeddings, weights, torch.arange(50))
    if sign == -1:
        assert value > 0.5  # as wrong as can be


@every_row
def test_at_the_far_end_and_the_near_end_the_value_is_that_of_the_naive_loop(row):
    weights = torch.eye(4, dtype=torch.float64).repeat_interleave(row.loss.rows(1), 0)
    embeddings = torch.tensor([[2.0, 0, 0, 0], [0, -3.0, 0, 0], [0, 0, 5.0, 0]], dtype=torch.float64)
    inputs = embeddings, weights, torch.arange(3)
    assert row.loss(*inputs).item() == pytest.approx(naive(row, *inputs), rel=1e-12)


@every_row
@every_dtype
def test_vectors_of_zeros_give_no_gradient_to_themselves_and_leave_the_others_theirs(row, dtype):
    embeddings, weights, labels = row.problem(dtype=dtype)
    empty = int(labels[3]) * row.loss.rows(1)
    embeddings[5], weights[empty] = 0, 0
    _, to_embeddings, to_weights = gradients(row.loss, embeddings, weights, labels)
    assert (to_embeddings[5] == 0).all() and (to_weights[empty] == 0).all()
    assert (to_embeddings[4] != 0).any()
    gradients(row.loss, torch.zeros_like(embeddings), torch.zeros_like(weights), labels)


@every_row
def test_a_single_class(row):
    value, to_embeddings, _ = gradients(row.loss, *row.problem(k=1))
    if row.softmax and not isinstance(row.loss, SubCenterArcFace):
        assert value == 0 and (to_embeddings == 0).all()
    elif row.softmax:
        assert value == 0
    else:
        assert value > 0 and (to_embeddings != 0).any()


@pytest.mark.parametrize("row", [row for row in ROWS if not isinstance(row.loss, PositiveHinge)], ids=str)
@pytest.mark.parametrize("scale", [1e-6, 1e4, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_huge_and_tiny_scales_stay_finite(row, scale, dtype):
    embeddings, weights, labels = row.problem(dtype=dtype)
    value = replace(row.loss, scale=scale)(embeddings.requires_grad_(), weights.requires_grad_(), labels)
    assert value.isfinite()
    value.backward()
    if dtype == torch.float32:  # a gradient of 1e30 is beyond float16
        assert embeddings.grad.isfinite().all() and weights.grad.isfinite().all()


@every_row
@pytest.mark.parametrize("far", [1e30, 1e19, 1e-19, 1e-23, 1e-30])
@pytest.mark.parametrize("which", ["embeddings", "class embeddings", "one of each"])
def test_lengths_whose_squares_are_no_numbers_are_lengths_all_the_same(row, far, which):
    """In float64, whose squares reach to 1e±308, nothing is out of the ordinary."""
    embeddings, weights, labels = row.problem(dtype=torch.float32)
    if which == "one of each":
        embeddings[3] *= far
        weights[2] *= far
    else:
        (embeddings if which == "embeddings" else weights).mul_(far)
    assert row.loss(embeddings, weights, labels).item() == pytest.approx(
        naive(row, embeddings, weights, labels), rel=1e-5
    )
    narrow = gradients(row.loss, embeddings, weights, labels)
    wide = gradients(row.loss, embeddings.double(), weights.double(), labels)
    assert (narrow[1] != 0).any() and (narrow[2] != 0).any()
    for by32, by64, of in ((narrow[1], wide[1], embeddings), (narrow[2], wide[2], weights)):
        reach = of.double().abs().amax(1, keepdim=True)  # gradients by the direction, alike for long and short ones
        by_direction, off = by64 * reach, (by32.double() - by64) * reach
        assert off.abs().max() <= 1e-5 * by_direction.abs().max()


def test_a_vector_beside_one_of_no_ordinary_length_keeps_its_bits():
    vectors = problem(n=40, d=16, dtype=torch.float32)[0].requires_grad_()
    beside = torch.cat([vectors.detach(), 1e30 * vectors.detach()[:1], torch.zeros(1, 16)]).requires_grad_()
    slope = problem(n=42, d=16, seed=1, dtype=torch.float32)[0]
    alone, together = unit(vectors), unit(beside)
    assert torch.equal(alone, together[:40]) and (together[41] == 0).all()
    assert torch.equal(alone, vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True))
    alone.backward(slope[:40])
    together.backward(slope)
    assert torch.equal(vectors.grad, beside.grad[:40]) and (beside.grad[41] == 0).all()
    assert together[40].norm().item() == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_vectors_below_every_normal_number_count_as_zeros_and_what_is_no_number_stays_one(dtype):
    tiny = torch.finfo(dtype).tiny
    vectors = torch.tensor([[tiny / 8, 0], [4 * tiny, 3 * tiny]], dtype=dtype).requires_grad_()
    units = unit(vectors)
    torch.testing.assert_close(units.detach(), torch.tensor([[0, 0], [0.8, 0.6]], dtype=dtype))
    (by,) = torch.autograd.grad(units[0].sum(), vectors)
    assert (by == 0).all()
    assert unit(torch.tensor([[math.nan, 1.0], [3.0, 4.0]])).isnan().tolist() == [[True, True], [False, False]]
    assert unit(torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    ("loss", "wrong"),
    [
        (Softmax, {"scale": (0.0, -1.0, math.inf, math.nan)}),
        (CosFace, {"margin": (-0.1, 2.1, math.nan)}),
        (ArcFace, {"margin": (-0.1, 3.2)}),
        (SubCenterArcFace, {"centers": (0,)}),
        (SphereFace, {"margin_factor": (0,), "annealing": (-1.0, math.nan), "scale": (0.0,)}),
        (AdaFace, {"margin": (4.0,), "concentration": (-1.0,)}),
        (CurricularFace, {"margin": (4.0,), "momentum": (-0.1, 1.1)}),
        (ElasticFace, {"margin": (4.0,), "deviation": (-1.0, math.inf)}),
        (SphereFace2, {"power": (0.5,), "balance": (0.0, 1.0), "margin": (-1.0,)}),
        (PositiveHinge, {"target_cosine": (1.1, -1.1, math.nan)}),
    ],
)
def test_settings_out_of_range_are_refused(loss, wrong):
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=f"^{loss.__name__} needs"):
                loss(**{name: value})


@every_row
def test_the_widest_dtype_counts_and_float32_at_least_under_autocast_too(row):
    embeddings, weights, labels = row.problem()
    for e, w, out in [
        (torch.float32, torch.float64, torch.float64),
        (torch.float64, torch.float32, torch.float64),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float16, torch.bfloat16, torch.float32),
    ]:
        plain = row.loss(embeddings.to(e), weights.to(w), labels)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = row.loss(embeddings.to(e), weights.to(w), labels)
        assert plain.dtype == inside.dtype == out and torch.equal(plain, inside)


@every_row
def test_what_does_not_fit_is_refused_by_name(row):
    e, w, y = row.problem()
    for given, says in [
        ((e[:, :-1], w, y), r"embeddings \(12, 15\) and class embeddings \(\d+, 16\) do not fit"),
        ((e, w, y[:-1]), r"labels are torch.int64 \(11,\): give one int64 for each of 12 embeddings"),
        ((e, w, y.index_fill(0, torch.tensor([5]), 7)), "label 7 names no class: there are 7"),
        ((e, w, y.index_fill(0, torch.tensor([5]), -2)), "label -2 names no class: there are 7"),
        ((e[:0], w, y[:0]), "empty batch"),
    ]:
        with pytest.raises(ValueError, match=says):
            row.loss(*given)


@every_row
def test_nothing_waits_for_a_device(row, monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # there is none for meta tensors
    # A meta tensor has no values: whatever looked at one, or mixed devices, would raise.
    embeddings, weights, labels = (t.to("meta") for t in row.problem(dtype=torch.float32))
    state = {name: t.to("meta") for name, t in row.loss.state(7).items()}
    state = row.loss.advance(embeddings, weights, labels, **state)
    extra = {name: t.to("meta") for name, t in row.loss.extra(7).items()}
    extra |= {name: t.to("meta") for name, t in row.loss.draw(12, np.random.default_rng(0)).items()} | state
    value = row.loss(embeddings.requires_grad_(), weights.requires_grad_(), labels, **extra)
    value.backward()
    assert value.device.type == embeddings.grad.device.type == weights.grad.device.type == "meta"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_row
def test_a_cuda_device_gives_the_same(row):
    inputs = row.problem(n=40, d=5)
    on_cpu = gradients(row.loss, *inputs)
    on_gpu = gradients(row.loss, *(t.cuda() for t in inputs))
    torch.testing.assert_close([t.cpu() for t in on_gpu], list(on_cpu))
