import numpy as np
import pytest
import torch
from problems import problem

from coalface.training.bch_codes import BCH, Codebook
from coalface.training.losses.hinge import OnCodes, PositiveHinge


def test_the_squared_hinge_by_hand():
    # Cosines 3/5, 1 and 0 to the own class, m = 9/10: squares of 3/10, 0 and 9/10.
    embeddings = torch.tensor([[3.0, 4.0], [7.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    weights = torch.tensor([[5.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    value = PositiveHinge()(embeddings, weights, torch.tensor([0, 0, 0]))
    assert value.item() == pytest.approx((0.09 + 0 + 0.81) / 3)
    # The other class: cosine −4/5.
    assert PositiveHinge()(embeddings[:1], weights, torch.tensor([1])).item() == pytest.approx(1.7**2)


def hinge_on_codes(z, codes, labels):
    return OnCodes()(z, codes, labels, projection=torch.eye(z.shape[1], dtype=z.dtype))


def coded(n=12, k=7, c=15, seed=0, dtype=torch.float64):
    embeddings, weights, labels = problem(n=n, k=k, d=c, seed=seed, dtype=dtype)
    return embeddings, weights.sign(), labels


def test_the_hinge_on_codes_by_hand():
    # ⟨v, z⟩ / 4 = (1 + 2 − 1/2 + 0) / 4 = 5/8; the same z against −v: −5/8. A score of 2 costs nothing.
    codes = torch.tensor([[1, -1, -1, 1], [-1, 1, 1, -1]])
    z = torch.tensor([[1.0, -2.0, 0.5, 0.0], [1.0, -2.0, 0.5, 0.0], [2.0, -2.0, -2.0, 2.0]], dtype=torch.float64)
    value = hinge_on_codes(z, codes, torch.tensor([0, 1, 0]))
    assert value.item() == pytest.approx((3 / 8 + 13 / 8 + 0) / 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("code_dtype", [torch.int8, torch.int64, torch.float32])
def test_the_hinge_on_codes_in_a_naive_loop(dtype, code_dtype):
    z, codes, labels = coded(n=30, dtype=dtype)
    total = 0.0
    for row, y in zip(z.double().tolist(), labels.tolist(), strict=True):
        score = sum(a * int(b) for a, b in zip(row, codes[y].tolist(), strict=True)) / len(row)
        total += max(0.0, 1 - score)
    hinge = hinge_on_codes(z, codes.to(code_dtype), labels)
    assert hinge.dtype == torch.promote_types(dtype, torch.float32)
    assert hinge.item() == pytest.approx(total / 30, rel=1e-12 if dtype == torch.float64 else 1e-5)


def test_what_does_not_fit_is_refused():
    z, codes, labels = coded()
    with pytest.raises(ValueError, match="codewords of ±1"):
        hinge_on_codes(z, (codes + 1) / 2, labels)
    with pytest.raises(ValueError, match="label 7 names no class: there are 7"):
        hinge_on_codes(z, codes, labels.index_fill(0, torch.tensor([0]), 7))
    with pytest.raises(ValueError, match="do not fit"):
        hinge_on_codes(z[:, 1:], codes, labels)


def coded_problem(n=12, k=7, c=15, d=4, dtype=torch.float64):
    rng = torch.Generator().manual_seed(5)
    embeddings, projection = (torch.randn(m, d, generator=rng, dtype=torch.float64).to(dtype) for m in (n, c))
    return 8 * embeddings, projection, *coded(n, k, c, dtype=dtype)[1:]


def test_on_codes_scaled_is_one_less_the_cosine_in_a_naive_loop():
    embeddings, projection, codes, labels = coded_problem()
    losses = OnCodes(scaled=True).each(embeddings, codes, labels, projection=projection)
    for hinge, g, y in zip(losses.tolist(), embeddings.tolist(), labels.tolist(), strict=True):
        z = [sum(w * x for w, x in zip(row, g, strict=True)) for row in projection.tolist()]
        cosine = sum(a * b for a, b in zip(z, codes[y].tolist(), strict=True)) / (15 * sum(a * a for a in z)) ** 0.5
        assert hinge == pytest.approx(1 - cosine, abs=1e-13)
    longer = OnCodes(scaled=True).each(9 * embeddings, codes, labels, projection=projection)
    assert torch.allclose(longer, losses, atol=1e-13)


def test_one_long_projection_for_everybody_meets_few_codewords_unless_it_is_scaled():
    codes = BCH(511, 67)
    book, rng = Codebook(codes, 64), np.random.default_rng(0)
    drawn = torch.cat([book.codeword(user, rng)[None] for user in range(64)]).double()
    solution = torch.linalg.lstsq(drawn, 1.01 * drawn.new_full((64, 1), 511)).solution.T  # 64 equations in 511 unknowns
    everybody = solution.expand(64, -1)
    eye, users = torch.eye(511, dtype=torch.float64), torch.arange(64)
    bare, scaled = (OnCodes(way).each(everybody, drawn, users, projection=eye) for way in (False, True))
    assert bare.max() == 0 and scaled.min() > 0.7


def test_on_codes_the_gradient_reaches_embeddings_and_matrix():
    embeddings, projection, codes, labels = coded_problem()

    def loss(g, w):
        return OnCodes().each(g, codes, labels, projection=w)

    assert torch.autograd.gradcheck(loss, (embeddings.requires_grad_(), projection.requires_grad_()))
    # ∂/∂W' = −v gᵀ / c of an image whose hinge is open, by hand; 0 of one whose hinge is shut.
    losses = loss(embeddings, projection)
    for place in (int((losses > 0).nonzero()[0]), int((losses == 0).nonzero()[0])):
        (by,) = torch.autograd.grad(losses[place], projection, retain_graph=True)
        expected = -torch.outer(codes[labels[place]], embeddings[place].detach()) / 15 * float(losses[place] > 0)
        assert torch.allclose(by, expected, atol=1e-15)
