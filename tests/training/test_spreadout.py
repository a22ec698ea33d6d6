import itertools
import math

import numpy as np
import pytest
import torch
from largest_tensor import Largest

from coalface.training.losses import spreadout
from coalface.training.losses.spreadout import cosine_histogram, gradient, mean_cosine, spread_out


def random(c=40, d=12, seed=0, dtype=torch.float64):
    return torch.randn(c, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def clustered(c=40, d=12, clusters=5, noise=0.5, seed=0, dtype=torch.float64):
    """Rows of any length around some centres: most of the pairs of a cluster are near."""
    centres = random(clusters, d, seed).repeat_interleave(c // clusters, 0)
    return (centres + noise * random(c, d, seed + 1)).to(dtype)


WEIGHTS = {
    "random": random(),
    "clustered": clustered(),
    "one cluster": clustered(clusters=1),
    "wide": random(30, 64),
    "two": random(2, 3, seed=1),
    "few numbers": random(23, 2),
}
weights_of = pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
reduces = pytest.mark.parametrize("reduce", ["sum", "mean"])


def units_of(weights):
    return [[v / math.sqrt(sum(x * x for x in row)) for v in row] for row in weights.tolist()]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def naive_terms(units, top_k):
    """The ordered pairs that the sum goes over: of equal cosines the lower index is nearer."""
    for c, unit_row in enumerate(units):
        other_rows = [o for o in range(len(units)) if o != c]
        if top_k is not None:
            other_rows = sorted(other_rows, key=lambda o: (-dot(unit_row, units[o]), o))[:top_k]
        yield from ((c, o) for o in other_rows)


def autograd(weights, margin=0.7, reduce="sum", top_k=None, tangent=False):
    """By the unit rows, or by W through the normalisation; which pairs count is decided in plain numbers."""
    leaf = (weights if tangent else weights / weights.norm(dim=1, keepdim=True)).clone().requires_grad_()
    rows = leaf / leaf.norm(dim=1, keepdim=True) if tangent else leaf
    a, b = torch.tensor(list(naive_terms(units_of(weights), top_k))).T
    terms = (margin - (1 - (rows[a] * rows[b]).sum(1))).clamp_min(0).square()
    (terms.sum() if reduce == "sum" else terms.mean()).backward()
    return leaf.grad


def close(tensor, expected, bound=1e-12):
    assert tensor.shape == expected.shape and tensor.dtype == expected.dtype
    assert (tensor - expected).abs().max().item() <= bound * max(1.0, expected.abs().max().item())


which_pairs = pytest.mark.parametrize(("margin", "top_k"), [(0.2, None), (2.0, None), (0.7, 1), (1.0, 3), (0.7, 1000)])


@weights_of
@reduces
@which_pairs
def test_the_gradient_is_that_of_autograd(weights, margin, reduce, top_k):
    for tangent in (False, True):
        expected = autograd(weights, margin, reduce, top_k, tangent)
        close(gradient(weights, margin=margin, reduce=reduce, top_k=top_k, tangent=tangent, block=7), expected)


@pytest.mark.parametrize("sparse", [1, 32, 10**9])
def test_multiplying_pair_by_pair_is_multiplying_blocks(sparse, monkeypatch):
    # `SPARSE` 1: all blocks pair by pair; 10⁹: none.
    weights = clustered()
    monkeypatch.setattr(spreadout, "SPARSE", sparse)
    close(gradient(weights, block=9), autograd(weights))


def test_three_by_hand():
    # u_1 = (1, 0), u_2 = (3/5, 4/5), u_3 = (0, −1), cosines 3/5, 0 and −4/5; v = 7/10, so the hinges are 3/10, 0 and 0.
    weights = torch.tensor([[2.0, 0.0], [3.0, 4.0], [0.0, -1.0]], dtype=torch.float64)
    expected = torch.tensor([[0.72, 0.96], [1.2, 0.0], [0.0, 0.0]], dtype=torch.float64)  # 4 · 3/10 · the other
    close(gradient(weights), expected)
    # Through the normalisation: u_1 keeps (0, 0.96), over 2; u_2 keeps 1.2 (1, 0) − 0.72 (3/5, 4/5), over 5.
    expected = torch.tensor([[0.0, 0.48], [0.1536, -0.1152], [0.0, 0.0]], dtype=torch.float64)
    close(gradient(weights, tangent=True), expected)
    # A step of 1/4: (1, 0) − (0.18, 0.24) and (3/5, 4/5) − (0.3, 0), each at length one.
    moved = torch.tensor([[0.82, -0.24], [0.3, 0.8], [0.0, -1.0]], dtype=torch.float64)
    close(spread_out(weights, step=0.25), moved / moved.norm(dim=1, keepdim=True))


def test_the_nearest_of_three_by_hand():
    # The nearest of 1 is 2, of 2 is 1, of 3 is 1: at v = 2 with hinges 8/5, 8/5 and 1.
    weights = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]], dtype=torch.float64)
    # The pair of 1 and 2 was chosen from both sides, 4 · 8/5; that of 3 and 1 from one, 2 · 1, and moves both.
    expected = torch.tensor([[3.84, 5.12 - 2], [6.4, 0.0], [2.0, 0.0]], dtype=torch.float64)
    close(gradient(weights, margin=2.0, top_k=1), expected)


@pytest.mark.parametrize("block", [1, 2, 3, 4, 5, 8])
def test_of_equal_neighbours_the_lower_is_nearer(block):
    # Axes twice over; every inner product is exact. Class 0 has one at cosine 1 (4), and six at 0: the lowest is 1.
    rows = torch.eye(4, dtype=torch.float64).repeat(2, 1)
    for top_k in (1, 2, 3, 5):
        terms = {"margin": 1.5, "top_k": top_k}
        close(gradient(rows, block=block, **terms), autograd(rows, **terms))
    # One direction nine times: all neighbours are equal, and those of every class but 0 and 1 are 0 and 1.
    rows_alike = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(9, 1)
    close(gradient(rows_alike, margin=1.0, top_k=2, block=block), autograd(rows_alike, margin=1.0, top_k=2))
    assert gradient(rows_alike, margin=1.0, top_k=2, block=block)[:, 0].tolist() == [20, 20, 8] + [4] * 6


def test_one_class_and_two():
    single = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    for top_k, reduce, tangent in itertools.product([None, 1, 5], ["sum", "mean"], [False, True]):
        assert gradient(single, top_k=top_k, reduce=reduce, tangent=tangent).tolist() == [[0, 0]]
        close(spread_out(single, step=10.0, top_k=top_k, reduce=reduce, tangent=tangent), single / 5)
    assert cosine_histogram(single).pairs.sum() == 0
    two = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    for top_k in (None, 1, 5):
        assert gradient(two, margin=1.0, top_k=top_k).tolist() == [[4, 0], [4, 0]]
    # Equal ones part only at a start that is not exactly equal: along the sphere there is no slope.
    assert gradient(two, tangent=True).abs().max() == 0


def naive_descent(weights, step, steps, momentum, tangent, **terms):
    """With `torch.optim.SGD` on the double sum."""
    rows = (weights / weights.norm(dim=1, keepdim=True)).requires_grad_()
    optimiser = torch.optim.SGD([rows], lr=step, momentum=momentum)
    for _ in range(steps):
        rows.grad = autograd(rows.detach(), tangent=tangent, **terms)
        optimiser.step()
        with torch.no_grad():
            rows /= rows.norm(dim=1, keepdim=True)
    return rows.detach()


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("tangent", [False, True])
@pytest.mark.parametrize("terms", [{}, {"top_k": 3}, {"reduce": "mean", "margin": 1.2}], ids=str)
def test_descent_is_that_of_an_optimiser(terms, tangent, momentum):
    weights = clustered(30, 8)
    copy = weights.clone()
    settings = {"step": 0.02, "steps": 4, "momentum": momentum, "tangent": tangent}
    close(spread_out(weights, **settings, **terms, block=11), naive_descent(weights, **settings, **terms), 1e-11)
    assert torch.equal(weights, copy)


@pytest.mark.slow
@pytest.mark.ci
def test_where_small_steps_collapse():
    # C = 250, v = 0.7: 2 · 0.01 · C (ρ − 0.3) passes 1 at ρ = 0.5. Below it one cluster loosens, above it it collapses.
    for noise, tight in [(1.1, False), (0.9, True)]:
        weights = clustered(250, 512, 1, noise, dtype=torch.float32)
        start = mean_cosine(weights)
        assert (start > 0.52) is tight and (start < 0.48) is not tight
        after = mean_cosine(spread_out(weights, step=0.01, steps=200))
        assert after > 0.99 if tight else after < start - 0.1
        assert mean_cosine(spread_out(weights, step=0.01, steps=200, tangent=True)) < 0.1


@pytest.mark.parametrize("start", [clustered(600, 4), torch.ones(600, 4)])
@pytest.mark.parametrize(
    "ask",
    [
        lambda w: spread_out(w, step=0.01, steps=2, momentum=0.5, block=32),
        lambda w: spread_out(w, step=0.01, steps=2, tangent=True, top_k=3, block=32),
        lambda w: cosine_histogram(w, block=32),
        mean_cosine,
    ],
    ids=["all", "top_k", "histogram", "mean"],
)
def test_no_tensor_grows_with_the_square(ask, start):
    with Largest() as largest:
        ask(start)
    # W, k places to choose from, a block, or two numbers for each pair of a block; 600² would be 360,000.
    assert 600 * 4 <= largest.entries <= 2 * max(600 * 4, 32 * 32)


@weights_of
def test_the_mean_cosine_in_a_naive_loop(weights):
    units = units_of(weights)
    cosines = [dot(a, b) for a, b in itertools.combinations(units, 2)]
    assert mean_cosine(weights) == pytest.approx(sum(cosines) / len(cosines), abs=1e-14)


def test_the_mean_cosine_by_hand():
    assert mean_cosine(torch.tensor([[2.0, 0.0], [3.0, 4.0], [0.0, -1.0]])) == pytest.approx((0.6 + 0 - 0.8) / 3)
    assert mean_cosine(random(9000, 3).abs().sign()) == pytest.approx(1)  # more than one block
    with pytest.raises(ValueError, match="C >= 2"):
        mean_cosine(torch.ones(1, 3))


@weights_of
@pytest.mark.parametrize("block", [1, 7, 2048])
def test_the_histogram_counts_every_pair_once(weights, block):
    units = units_of(weights)
    cosines = [dot(a, b) for a, b in itertools.combinations(units, 2)]
    expected, edges = np.histogram(cosines, bins=200, range=(-1, 1))
    histogram = cosine_histogram(weights, block=block)
    assert np.allclose(histogram.edges, edges, atol=1e-15)
    assert histogram.pairs.dtype == np.int64 and histogram.pairs.tolist() == expected.tolist()


def test_the_histogram_by_hand():
    # Cosines of the six pairs: 1, −1, 0, −1, 0, 0. Quarters from −1: the ends and an edge in the bin above it.
    weights = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    assert cosine_histogram(weights, bins=4).pairs.tolist() == [2, 0, 3, 1]
    alike = torch.full((5, 3), 0.1)  # cosines that rounding may put beyond 1
    assert cosine_histogram(alike, bins=4).pairs.tolist() == [0, 0, 0, 10]
    assert cosine_histogram(torch.cat([alike, -alike]), bins=4).pairs.tolist() == [25, 0, 0, 20]


@pytest.mark.parametrize("function", [gradient, mean_cosine, cosine_histogram])
def test_rows_without_a_direction_are_named(function):
    for bad in (0.0, math.nan):
        weights = random(9, 4)
        weights[[3, 7]] = bad
        with pytest.raises(ValueError, match="2 of 9 .*rows 3, 7"):
            function(weights)


@pytest.mark.parametrize("wrong", [{"margin": 2.1}, {"reduce": "max"}, {"top_k": 0}, {"steps": 0}, {"momentum": 1.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError):
        spread_out(random(), **{"step": 0.1, **wrong})
