import itertools
import re

import numpy as np
import pytest
import torch
from cases import by_default
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.training.bch_codes import BCH, PRIMITIVE, Codebook, code_scores, warm_up_threshold
from coalface.training.losses.hinge import OnCodes

OF_FEDUV = {(127, 64): 21, (255, 63): 61, (511, 67): 175}
# n → {k: t}, from the table of binary primitive BCH codes in Lin and Costello, "Error Control Coding".
TABLE = {
    7: {4: 1},
    15: {11: 1, 7: 2, 5: 3},
    31: {26: 1, 21: 2, 16: 3, 11: 5, 6: 7},
    63: {57: 1, 51: 2, 45: 3, 39: 4, 36: 5, 30: 6, 24: 7, 18: 10, 16: 11, 10: 13, 7: 15},
    127: dict(
        zip(
            [120, 113, 106, 99, 92, 85, 78, 71, 64, 57, 50, 43, 36, 29, 22, 15, 8],
            [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 14, 15, 21, 23, 27, 31],
            strict=True,
        )
    ),
}
codes = pytest.mark.parametrize(("n", "k"), OF_FEDUV)


def drawn(code, count, seed=0):
    return np.random.default_rng(seed).integers(2, size=(count, code.k))


def test_the_polynomials_are_primitive():
    import galois

    assert all(galois.Poly.Int(polynomial).is_primitive() for polynomial in PRIMITIVE.values())


# --- the codes --------------------------------------------------------------------------------------------------------


def test_the_code_of_length_7_by_hand():
    # g = x³ + x + 1. The message 1000 is x³, and x⁶ = x² + 1 by g; 0001 is 1, and x³ = x + 1.
    code = BCH(7, 4)
    assert code.d == 3 and code.generator.tolist() == [1, 0, 1, 1]
    assert code.encode([1, 0, 0, 0]).tolist() == [1, 0, 0, 0, 1, 0, 1]
    assert code.encode([0, 0, 0, 1]).tolist() == [0, 0, 0, 1, 0, 1, 1]
    assert code.encode([1, 0, 0, 1]).tolist() == [1, 0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("n", TABLE)
def test_the_codes_that_there_are_stand_in_the_table(n):
    for k in range(-1, n + 2):
        if k in TABLE[n]:
            assert (BCH(n, k).d - 1) // 2 == TABLE[n][k]
        elif k != 1:  # the table leaves the repetition out
            with pytest.raises(ValueError):
                BCH(n, k)


@pytest.mark.parametrize(("n", "k"), [(7, 4), (15, 7), (31, 11), (63, 10)])
def test_the_least_distance_of_small_codes_over_all_their_words(n, k):
    code = BCH(n, k)
    weights = code.encode(list(itertools.product([0, 1], repeat=k))).sum(1)
    assert weights[0] == 0 and weights[1:].min() == code.d


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(("n", "k"), by_default(1, OF_FEDUV))
def test_a_code_of_feduv_is_the_one_of_another_library(n, k):
    import galois

    # Computed in Python: compiled arithmetic takes seconds for each field.
    field = galois.GF(n + 1, irreducible_poly=galois.Poly.Int(PRIMITIVE[n.bit_length()]), compile="python-calculate")
    code, of_galois = BCH(n, k), galois.BCH(n, d=OF_FEDUV[n, k], extension_field=field)
    assert (of_galois.k, of_galois.d) == (k, code.d) == (k, OF_FEDUV[n, k])
    assert code.generator.tolist() == np.asarray(of_galois.generator_poly.coeffs).tolist()
    messages = drawn(code, 200)
    assert np.array_equal(code.encode(messages), np.asarray(of_galois.encode(messages)))


@pytest.mark.parametrize(
    ("n", "k", "nearest"),
    [(127, 63, "(127, 57) and (127, 64)"), (511, 0, "(511, 1)"), (128, 64, "(127, 64)"), (2, 4, "(7, 4)")],
)
def test_codes_that_do_not_exist_are_refused_with_the_nearest(n, k, nearest):
    with pytest.raises(ValueError, match=re.escape(nearest) + "$"):
        BCH(n, k)


@pytest.mark.parametrize("messages", [np.zeros((2, 6)), 1, [0, 1, 0, 1, 0, 1, 2], [0, 1, 0, 1, 0, 1, np.nan]])
def test_messages_that_are_not_bits_or_do_not_fit_are_refused(messages):
    with pytest.raises(ValueError):
        BCH(15, 7).encode(messages)


# --- codewords of users -----------------------------------------------------------------------------------------------


def test_a_codeword_by_hand():
    # Two users and (7, 4): user 1 begins with the bit 1, and the other three are drawn.
    book = Codebook(BCH(7, 4), users=2)
    assert (book.user_bits, book.secret_bits) == (1, 3)
    bits = [1, *np.random.default_rng(4).integers(2, size=3, dtype=np.uint8).tolist()]
    word = book.codeword(1, np.random.default_rng(4))
    assert word.dtype == torch.float32 and word.shape == (7,)
    assert word.tolist() == [2.0 * bit - 1 for bit in BCH(7, 4).encode(bits).tolist()]


@pytest.mark.parametrize(("users", "bits"), [(1, 0), (2, 1), (3, 2), (1024, 10), (1025, 11)])
def test_how_many_bits_are_secret(users, bits):
    book = Codebook(BCH(127, 64), users)
    assert (book.user_bits, book.secret_bits) == (bits, 64 - bits)


@given(
    users=st.integers(1, 3000),
    shape=st.sampled_from([*OF_FEDUV, (31, 16)]),
    seed=st.integers(0, 5),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_different_users_lie_apart_whatever_they_draw(users, shape, seed, data):
    book = Codebook(BCH(*shape), users)
    a, b = (data.draw(st.integers(0, users - 1)) for _ in "ab")
    # The same stream for both is the worst that can happen: then the number alone tells them apart.
    first, second = (book.codeword(user, np.random.default_rng(seed)) for user in (a, b))
    assert set(first.unique().tolist()) <= {-1.0, 1.0}
    assert torch.equal(first, second) if a == b else (first != second).sum() >= book.code.d


def test_1000_users_of_feduv_are_apart_and_draw_for_themselves():
    book = Codebook(BCH(127, 64), users=1000)
    words = torch.stack([book.codeword(user, np.random.default_rng(user)) for user in range(1000)])
    apart = (127 - words @ words.T) / 2
    assert apart[~torch.eye(1000, dtype=bool)].min() >= 21
    bits = (words + 1) / 2
    assert (bits[:, :10] @ 2.0 ** torch.arange(9, -1, -1)).tolist() == list(range(1000))  # no secret
    assert ((bits[:, 10:64].mean(0) - 0.5).abs() < 5 * 0.5 / 1000**0.5).all()
    assert not torch.equal(book.codeword(7, np.random.default_rng(1)), book.codeword(7, np.random.default_rng(2)))


def trained(word, seed, steps=4):
    """What a user's training changes in a shared matrix W′ (c, 24) of float64, beside a layer that learns too."""
    draw = torch.Generator().manual_seed(seed)
    shared = torch.randn(len(word), 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 5
    matrix = shared.clone().requires_grad_()
    layer = torch.randn(24, 12, generator=draw, dtype=torch.float64).requires_grad_()
    optimiser = torch.optim.SGD([matrix, layer], lr=0.5, momentum=0.9)
    for _ in range(steps):
        embeddings = torch.randn(6, 12, generator=draw, dtype=torch.float64) @ layer.T
        optimiser.zero_grad()
        OnCodes()(embeddings, word[None], torch.zeros(6, dtype=torch.int64), projection=matrix).backward()
        optimiser.step()
    return matrix.detach() - shared


@codes
def test_the_update_of_one_user_shows_its_codeword(n, k):
    word = Codebook(BCH(n, k), users=1000).codeword(700, np.random.default_rng(0))
    update = trained(word, seed=1)
    assert torch.linalg.matrix_rank(update, rtol=1e-9) == 1
    signs = update[:, 0].sign()
    assert torch.equal(signs * signs[0], word.double() * word[0])  # and the number, which begins with 1, tells the sign


def test_the_sum_of_five_users_shows_their_codewords():
    book = Codebook(BCH(127, 64), users=1000)
    words = torch.stack([book.codeword(user, np.random.default_rng(user)) for user in range(5)]).double()
    total = sum(trained(word.float(), seed=user) for user, word in enumerate(words))
    basis = torch.linalg.svd(total).U[:, :5]
    rows = next(rows for rows in itertools.combinations(range(12, 40), 5) if torch.linalg.cond(basis[list(rows)]) < 30)
    guesses = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=5)), dtype=torch.float64)
    vectors = torch.linalg.solve(basis[list(rows)], guesses.T).T @ basis.T  # (32, 127), in the span of the columns
    codewords = vectors[((vectors.abs() - 1).abs() < 1e-6).all(1)].round()
    assert len(codewords) == 10  # each codeword and its negative
    assert {tuple(word) for word in words.tolist()} <= {tuple(word) for word in codewords.tolist()}


# --- scores and thresholds --------------------------------------------------------------------------------------------


def test_code_scores_by_hand():
    z = torch.tensor([[1.0, -2.0, 0.5, 0.0], [2.0, -2.0, -2.0, 2.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    for dtype in (torch.int8, torch.int64, torch.float32):
        scores = code_scores(z, torch.tensor([1, -1, -1, 1], dtype=dtype))
        assert scores.dtype == torch.float64 and scores.tolist() == [0.625, 2.0, 0.0]
    assert code_scores(z.bfloat16(), torch.tensor([1, -1, -1, 1])).dtype == torch.float32
    assert code_scores(z[:0], torch.tensor([1, -1, -1, 1])).shape == (0,)


def test_scores_of_what_does_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"projections \(2, 4\) and the codeword \(3,\) do not fit: give \(n, c\)"):
        code_scores(torch.zeros(2, 4), torch.ones(3))
    with pytest.raises(ValueError, match="do not fit"):
        code_scores(torch.zeros(4), torch.ones(4))
    with pytest.raises(ValueError, match=r"give ±1, for bits 0 and 1 take 2·bits − 1"):
        code_scores(torch.zeros(2, 3), torch.tensor([0, 1, 1]))


@pytest.mark.parametrize(
    ("quantile", "threshold"),
    [(1, 0.1), (0.81, 0.1), (0.8, 0.4), (0.61, 0.4), (0.6, 0.5), (0.4, 0.5), (0.21, 0.5), (0.2, 0.9), (1e-9, 0.9)],
)
def test_thresholds_by_hand_with_a_tie(quantile, threshold):
    scores = torch.tensor([0.5, 0.1, 0.9, 0.5, 0.4], dtype=torch.float64)
    assert warm_up_threshold(scores, quantile) == threshold


def test_a_share_is_the_decimal_number_that_is_written():
    scores = torch.arange(100.0)
    assert 0.55 * 100 > 55 and warm_up_threshold(scores, 0.55) == 45.0  # 45 to 99 are 55
    assert warm_up_threshold(scores, 0.9) == 10.0 and warm_up_threshold(scores, np.float64(0.07)) == 93.0


@given(
    scores=st.lists(st.integers(-3, 3).map(float) | st.floats(-2, 2, width=32), min_size=1, max_size=30),
    percent=st.integers(1, 100),
)
@settings(max_examples=60, deadline=None)
def test_the_threshold_is_the_highest_that_the_share_reaches(scores, percent):
    threshold = warm_up_threshold(torch.tensor(scores), percent / 100)
    reach = [at for at in scores if 100 * sum(score >= at for score in scores) >= percent * len(scores)]
    assert threshold == max(reach)
    assert (torch.tensor(scores) >= threshold).sum() * 100 >= percent * len(scores)


@pytest.mark.parametrize("scores", [[], [[0.1]], [0.1, np.nan], [0.1, np.inf]])
def test_thresholds_of_nothing_or_of_what_is_not_finite_are_refused(scores):
    with pytest.raises(ValueError):
        warm_up_threshold(torch.tensor(scores), 0.9)


@pytest.mark.parametrize("quantile", [0, 1.01, np.nan, np.inf])
def test_a_quantile_that_is_not_a_share_is_refused(quantile):
    with pytest.raises(ValueError, match="quantile"):
        warm_up_threshold(torch.tensor([0.1, 0.3]), quantile)
