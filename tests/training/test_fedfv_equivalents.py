import itertools
import math
import tracemalloc

import numpy as np
import pytest
import torch
from scipy import stats

from coalface.training import fedfv
from coalface.training.fedfv import AgainstOthers, draw_subsets, equivalent_embeddings


def unit(r, d, seed=0, dtype=torch.float64):
    rows_ = torch.randn(r, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (rows_ / rows_.norm(dim=1, keepdim=True)).to(dtype)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_three_fused_by_hand():
    # The axes: (1, 1, 1) / √3. With one of them turned round: (1, 1, −1) / √3.
    for sign in (1.0, -1.0):
        axes = torch.diag(torch.tensor([1.0, 1.0, sign]))
        expected = torch.tensor([[1.0, 1.0, sign]]) / math.sqrt(3)
        assert torch.allclose(equivalent_embeddings(axes, 1, 3, generator=rng()), expected)


@pytest.mark.parametrize("k", [2, 3, 7, 20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_naive_loop_over_the_same_draws(k, dtype):
    weights = unit(20, 16, dtype=dtype)
    fused = equivalent_embeddings(weights, 30, k, generator=rng(4))
    assert fused.dtype == dtype and fused.shape == (30, 16)
    for row, subset in zip(fused.tolist(), draw_subsets(20, 30, k, rng(4)), strict=True):
        mean = [sum(weights[i, j].item() for i in subset) / k for j in range(16)]
        length = math.sqrt(sum(v * v for v in mean))
        assert row == pytest.approx([v / length for v in mean], abs=1e-14 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize(("size", "k"), [(6, 2), (6, 3), (7, 5), (5, 5)])
def test_every_subset_is_equally_likely(size, k):
    drawn = draw_subsets(size, 20_000, k, rng(1))
    subsets = {c: 0 for c in itertools.combinations(range(size), k)}
    for subset in map(tuple, drawn.tolist()):
        subsets[subset] += 1  # a KeyError where numbers repeat or descend
    if len(subsets) > 1:
        assert stats.chisquare(list(subsets.values())).pvalue > 0.01


def test_memory_hangs_on_n_and_k_and_not_on_n_times_r():
    draw_subsets(10, 10, 2, rng())
    tracemalloc.start()
    draw_subsets(100_000, 10_000, 3, rng())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e6  # n × R bytes would be 1e9


def test_opposite_ones_are_drawn_anew():
    # Of the three pairs of (1, 0), (−1, 0) and (0, 1), the first has no mean: only the other two come out.
    weights = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    fused = equivalent_embeddings(weights, 300, generator=rng())
    assert torch.allclose(fused.abs(), torch.full((300, 2), math.sqrt(0.5)))
    right = int((fused[:, 0] > 0).sum())
    assert stats.binomtest(right, 300).pvalue > 0.01


def test_only_opposite_ones_are_refused():
    weights = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    with pytest.raises(ValueError, match="mean of 2 class embeddings vanished 100 times.*the 2 clients"):
        equivalent_embeddings(weights, 1, generator=rng())
    assert fedfv.DRAWS == 100


def test_too_few_clients_left():
    for clients, fused in [(2, 3), (1, 2), (0, 2)]:
        with pytest.raises(ValueError, match=f"not selected: {clients}, .* fuses {fused}"):
            equivalent_embeddings(unit(3, 4)[:clients], 5, fused, generator=rng())
    assert equivalent_embeddings(unit(3, 4), 5, 3, generator=rng()).shape == (5, 4)


# --- the softmax against them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 7.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_softmax_against_others_in_a_naive_loop(scale, dtype):
    embeddings, weights, equivalents = (unit(n, 6, seed, dtype) * (1 + seed) for n, seed in ((9, 1), (3, 2), (5, 3)))
    labels = torch.arange(9) % 3
    losses = AgainstOthers(equivalents, scale).each(embeddings, weights, labels)
    assert losses.shape == (9,) and losses.dtype == dtype

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    for loss, row, y in zip(losses.tolist(), embeddings.tolist(), labels.tolist(), strict=True):
        own_term = math.exp(scale * cosine(row, weights[y].tolist()))
        total = own_term + sum(math.exp(scale * cosine(row, equivalent)) for equivalent in equivalents.tolist())
        assert loss == pytest.approx(-math.log(own_term / total), abs=1e-12 if dtype == torch.float64 else 1e-5)
    mean = AgainstOthers(equivalents, scale)(embeddings, weights, labels)
    assert mean.item() == pytest.approx(losses.double().mean().item(), rel=1e-6)


@pytest.mark.parametrize(("n", "scale"), [(100, 1.0), (1, 1.0), (5, 4.0)])
def test_the_floor_of_the_softmax_against_others(n, scale):
    # On w, opposite to all of W̃: log(1 + n e^(−2s)), which is 2.68 at n = 100 and s = 1. Elsewhere it is above.
    w = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    loss, label = AgainstOthers(torch.tensor([[0.0, -1.0]], dtype=torch.float64).expand(n, 2), scale), torch.tensor([0])
    floor = loss(w, w, label).item()
    assert floor == pytest.approx(math.log(1 + n * math.exp(-2 * scale)), rel=1e-12)
    assert (n, scale) != (100, 1.0) or round(floor, 2) == 2.68
    for embedding in unit(200, 2, seed=7):
        assert loss(embedding[None], w, label).item() >= floor
    assert loss(-w, w, label).item() == pytest.approx(math.log(1 + n * math.exp(2 * scale)), rel=1e-12)


def test_the_others_get_no_gradient_and_the_rest_that_of_the_value():
    embeddings, own_term, equivalents = unit(4, 6, 1).requires_grad_(), unit(2, 6, 2).requires_grad_(), unit(5, 6, 3)
    loss = AgainstOthers(equivalents, 2.0)
    labels = torch.tensor([0, 1, 1, 0])
    assert torch.autograd.gradcheck(lambda e, w: loss.each(e, w, labels), (embeddings, own_term))
    loss(embeddings, own_term, labels).backward()
    assert equivalents.grad is None and not equivalents.requires_grad
    copy = equivalents.clone()
    loss(embeddings, own_term, labels)
    assert torch.equal(equivalents, copy)
