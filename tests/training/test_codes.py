import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.training.bch_codes import BCH, PRIMITIVE, Codebook, code_scores, warm_up_threshold
from coalface.training.losses.hinge import hinge_on_codes

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


# --- a field of one's own: elements are integers, the product by shifts, powers by repeated products ------------------


def product(a, b, m):
    total = 0
    for place in range(m):
        total ^= (a << place) * (b >> place & 1)
    for place in reversed(range(m, 2 * m)):
        total ^= (PRIMITIVE[m] << place - m) * (total >> place & 1)
    return total


def power(e, m):
    value = 1
    for _ in range(e):
        value = product(value, 2, m)
    return value


def evaluate(polynomial, at, m):
    """The value of a polynomial over GF(2), the highest power first, at an element: Horner."""
    value = 0
    for coefficient in polynomial:
        value = product(value, at, m) ^ int(coefficient)
    return value


@pytest.mark.parametrize("m", PRIMITIVE)
def test_the_polynomials_are_primitive(m):
    seen, value = set(), 1
    while value not in seen:
        seen.add(value)
        value = product(value, 2, m)
    assert value == 1 and len(seen) == 2**m - 1


@pytest.mark.slow
@pytest.mark.ci
def test_the_polynomials_are_those_in_common_use():
    import galois

    assert {m: int(galois.matlab_primitive_poly(2, m)) for m in PRIMITIVE} == PRIMITIVE


# --- the codes --------------------------------------------------------------------------------------------------------


def test_the_code_of_length_7_by_hand():
    # g = x³ + x + 1. The message 1000 is x³, and x⁶ = x² + 1 by g; 0001 is 1, and x³ = x + 1.
    code = BCH(7, 4)
    assert code.d == 3 and code.generator.tolist() == [1, 0, 1, 1]
    assert code.encode([1, 0, 0, 0]).tolist() == [1, 0, 0, 0, 1, 0, 1]
    assert code.encode([0, 0, 0, 1]).tolist() == [0, 0, 0, 1, 0, 1, 1]
    assert code.encode([1, 0, 0, 1]).tolist() == [1, 0, 0, 1, 1, 1, 0]


def test_the_generators_of_length_15_by_hand():
    # x⁴ + x + 1; times x⁴ + x³ + x² + x + 1: x⁸ + x⁷ + x⁶ + x⁴ + 1; times x² + x + 1: x¹⁰ + x⁸ + x⁵ + x⁴ + x² + x + 1.
    assert BCH(15, 11).generator.tolist() == [1, 0, 0, 1, 1]
    assert BCH(15, 7).generator.tolist() == [1, 1, 1, 0, 1, 0, 0, 0, 1]
    assert BCH(15, 5).generator.tolist() == [1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1]
    assert BCH(15, 1).generator.tolist() == [1] * 15 and BCH(15, 1).d == 15


@pytest.mark.parametrize("n", TABLE)
def test_the_codes_that_there_are_stand_in_the_table(n):
    for k in range(-1, n + 2):
        if k in TABLE[n]:
            assert (BCH(n, k).d - 1) // 2 == TABLE[n][k]
        elif k != 1:  # the table leaves the repetition out
            with pytest.raises(ValueError):
                BCH(n, k)


@pytest.mark.parametrize(("n", "k"), [(7, 4), (15, 11), (15, 7), (15, 5), (31, 11), (31, 6), (63, 10), (63, 7)])
def test_the_least_distance_of_small_codes_over_all_their_words(n, k):
    code = BCH(n, k)
    weights = code.encode(list(itertools.product([0, 1], repeat=k))).sum(1)
    assert weights[0] == 0 and weights[1:].min() == code.d


@codes
def test_a_code_of_feduv_is_the_one_of_another_library(n, k):
    import galois

    # Computed in Python: compiled arithmetic takes seconds for each field.
    field = galois.GF(n + 1, irreducible_poly=galois.Poly.Int(PRIMITIVE[n.bit_length()]), compile="python-calculate")
    code, other = BCH(n, k), galois.BCH(n, d=OF_FEDUV[n, k], extension_field=field)
    assert (other.k, other.d) == (k, code.d) == (k, OF_FEDUV[n, k])
    assert code.generator.tolist() == np.asarray(other.generator_poly.coeffs).tolist()
    messages = drawn(code, 200)
    assert np.array_equal(code.encode(messages), np.asarray(other.encode(messages)))


@codes
def test_the_roots_of_the_generator_and_of_its_words(n, k):
    code, m = BCH(n, k), n.bit_length()
    alphas = [power(e, m) for e in range(1, code.d + 1)]
    assert len(code.generator) == n - k + 1 and code.generator[0] == 1
    assert [evaluate(code.generator, at, m) for at in alphas[:-1]] == [0] * (code.d - 1)
    assert evaluate(code.generator, alphas[-1], m) != 0  # the distance that is claimed is no smaller than it could be
    word = code.encode(drawn(code, 1)[0])
    syndromes = [evaluate(word, at, m) for at in alphas[:-1]]
    assert syndromes == [0] * (code.d - 1)
    word[5] ^= 1
    assert all(evaluate(word, at, m) for at in alphas[:-1])  # each syndrome of a single error is a power of α


@codes
def test_encoding_is_the_remainder_by_the_generator(n, k):
    code = BCH(n, k)
    for message in drawn(code, 5, seed=1).tolist():
        rest = message + [0] * (n - k)
        for place in range(k):  # long division
            if rest[place]:
                for step, coefficient in enumerate(code.generator.tolist()):
                    rest[place + step] ^= coefficient
        assert code.encode(message).tolist() == message + rest[k:]


@codes
def test_encoding_is_linear_and_keeps_the_form_of_a_batch(n, k):
    code = BCH(n, k)
    a, b = drawn(code, 60, seed=2), drawn(code, 60, seed=3)
    assert np.array_equal(code.encode(a ^ b), code.encode(a) ^ code.encode(b))
    assert not code.encode(np.zeros(k)).any() and code.encode(np.ones(k, dtype=bool)).shape == (n,)
    batch = code.encode(a.reshape(3, 20, k))
    assert batch.dtype == np.uint8 and np.array_equal(batch.reshape(60, n), code.encode(a))
    assert code.encode(a[:0]).shape == (0, n)


@codes
def test_500_codewords_lie_as_far_apart_as_promised(n, k):
    code = BCH(n, k)
    # Half of them differ in a single bit from another: of such messages the words are the nearest.
    messages = drawn(code, 250)
    near = messages.copy()
    near[np.arange(250), np.arange(250) % k] ^= 1
    signs = 2.0 * code.encode(np.concatenate([messages, near])) - 1
    distances = (n - signs @ signs.T) / 2
    assert distances[~np.eye(500, dtype=bool)].min() >= code.d


def test_codes_that_do_not_exist_are_refused_with_the_nearest():
    for n, k, told in [
        (127, 63, "there is no BCH code (127, 63): of length 127 the nearest are (127, 57) and (127, 64)"),
        (127, 127, "of length 127 the nearest is (127, 120)"),
        (511, 0, "of length 511 the nearest is (511, 1)"),
        (128, 64, "lengths are 2^m − 1, from 7 to 1023: the nearest is (127, 64)"),
        (2, 4, "lengths are 2^m − 1, from 7 to 1023: the nearest is (7, 4)"),
    ]:
        with pytest.raises(ValueError, match=re.escape(told) + "$"):
            BCH(n, k)


def test_messages_that_are_no_bits_or_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"messages \(2, 6\) do not fit the BCH code \(15, 7\): give \(…, 7\)"):
        BCH(15, 7).encode(np.zeros((2, 6)))
    with pytest.raises(ValueError, match="do not fit"):
        BCH(15, 7).encode(1)
    for wrong in (2, -1, 0.5, np.nan):
        with pytest.raises(ValueError, match="hold more than 0 and 1"):
            BCH(15, 7).encode([0, 1, 0, 1, 0, 1, wrong])


# --- codewords of users -----------------------------------------------------------------------------------------------


def test_a_codeword_by_hand():
    # Two users and (7, 4): user 1 begins with the bit 1, and the other three are drawn.
    book = Codebook(BCH(7, 4), users=2)
    assert (book.user_bits, book.secret_bits) == (1, 3)
    bits = [1, *np.random.default_rng(4).integers(2, size=3, dtype=np.uint8).tolist()]
    word = book.codeword(1, np.random.default_rng(4))
    assert word.dtype == torch.float32 and word.shape == (7,)
    assert word.tolist() == [2.0 * bit - 1 for bit in BCH(7, 4).encode(bits).tolist()]


@pytest.mark.parametrize(
    ("users", "bits"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (250, 8), (1000, 10), (1024, 10), (1025, 11)]
)
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


def test_all_users_of_a_small_code_are_apart_with_no_bit_left_to_draw():
    book = Codebook(BCH(15, 5), users=32)
    words = torch.stack([book.codeword(user, np.random.default_rng(0)) for user in range(32)])
    apart = (words[:, None] != words).sum(2)
    assert book.secret_bits == 0 and apart[~torch.eye(32, dtype=bool)].min() == 7


def test_1000_users_of_feduv_are_apart_and_draw_for_themselves():
    book = Codebook(BCH(127, 64), users=1000)
    words = torch.stack([book.codeword(user, np.random.default_rng(user)) for user in range(1000)])
    apart = (127 - words @ words.T) / 2
    assert apart[~torch.eye(1000, dtype=bool)].min() >= 21
    bits = (words + 1) / 2
    assert (bits[:, :10] @ 2.0 ** torch.arange(9, -1, -1)).tolist() == list(range(1000))  # no secret
    assert ((bits[:, 10:64].mean(0) - 0.5).abs() < 5 * 0.5 / 1000**0.5).all()
    assert not torch.equal(book.codeword(7, np.random.default_rng(1)), book.codeword(7, np.random.default_rng(2)))


def test_users_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"33 users need 6 bits .* \(15, 5\) encodes 5: take a code with a larger k"):
        Codebook(BCH(15, 5), users=33)
    with pytest.raises(ValueError, match="codewords for 0 users: give 1"):
        Codebook(BCH(15, 5), users=0)
    for user in (-1, 3):
        with pytest.raises(ValueError, match=f"user {user} has no codeword among 3: give a number from 0 to 2"):
            Codebook(BCH(15, 5), users=3).codeword(user, np.random.default_rng(0))


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
        hinge_on_codes(embeddings @ matrix.T, word[None], torch.zeros(6, dtype=torch.int64)).backward()
        optimiser.step()
    return matrix.detach() - shared


@codes
def test_the_update_of_one_user_shows_its_codeword(n, k):
    word = Codebook(BCH(n, k), users=1000).codeword(700, np.random.default_rng(0))
    update = trained(word, seed=1)
    assert torch.linalg.matrix_rank(update, rtol=1e-9) == 1
    shown = update[:, 0].sign()
    assert torch.equal(shown * shown[0], word.double() * word[0])  # and the number, which begins with 1, tells the sign


def test_the_sum_of_five_users_shows_their_codewords():
    book = Codebook(BCH(127, 64), users=1000)
    words = torch.stack([book.codeword(user, np.random.default_rng(user)) for user in range(5)]).double()
    total = sum(trained(word.float(), seed=user) for user, word in enumerate(words))
    basis = torch.linalg.svd(total).U[:, :5]
    rows = next(rows for rows in itertools.combinations(range(12, 40), 5) if torch.linalg.cond(basis[list(rows)]) < 30)
    guesses = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=5)), dtype=torch.float64)
    vectors = torch.linalg.solve(basis[list(rows)], guesses.T).T @ basis.T  # (32, 127), in the span of the columns
    found = vectors[((vectors.abs() - 1).abs() < 1e-6).all(1)].round()
    assert len(found) == 10  # each codeword and its negative
    assert {tuple(word) for word in words.tolist()} <= {tuple(word) for word in found.tolist()}


# --- scores and thresholds --------------------------------------------------------------------------------------------


def test_code_scores_by_hand():
    z = torch.tensor([[1.0, -2.0, 0.5, 0.0], [2.0, -2.0, -2.0, 2.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    for dtype in (torch.int8, torch.int64, torch.float32):
        scores = code_scores(z, torch.tensor([1, -1, -1, 1], dtype=dtype))
        assert scores.dtype == torch.float64 and scores.tolist() == [0.625, 2.0, 0.0]
    assert code_scores(z.bfloat16(), torch.tensor([1, -1, -1, 1])).dtype == torch.float32
    assert code_scores(z[:0], torch.tensor([1, -1, -1, 1])).shape == (0,)


def test_the_hinge_is_one_less_the_score():
    draw = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(40, 127, generator=draw, dtype=torch.float64)
    word = Codebook(BCH(127, 64), users=10).codeword(3, np.random.default_rng(0))
    z[:20] += word
    by_scores = (1 - code_scores(z, word)).clamp_min(0).mean()
    assert hinge_on_codes(z, word[None], torch.zeros(40, dtype=torch.int64)).item() == pytest.approx(by_scores.item())


def test_scores_of_codewords_are_their_distances():
    # Of vectors of ±1, and of these alone, the score is 1 − 2 · Hamming distance / c.
    book = Codebook(BCH(255, 63), users=50)
    words = torch.stack([book.codeword(user, np.random.default_rng(user)) for user in range(50)])
    distances = (words != words[7]).sum(1)
    torch.testing.assert_close(code_scores(words, words[7]), 1 - 2 * distances / 255)
    assert (code_scores(words, words[7])[torch.arange(50) != 7] <= 1 - 2 * 61 / 255 + 1e-6).all()


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
@settings(max_examples=200, deadline=None)
def test_the_threshold_is_the_highest_that_the_share_reaches(scores, percent):
    threshold = warm_up_threshold(torch.tensor(scores), percent / 100)
    reach = [at for at in scores if 100 * sum(score >= at for score in scores) >= percent * len(scores)]
    assert threshold == max(reach)
    assert (torch.tensor(scores) >= threshold).sum() * 100 >= percent * len(scores)


def test_thresholds_of_nothing_or_of_what_is_not_finite_are_refused():
    with pytest.raises(ValueError, match=r"scores \(0,\) have no quantile: give \(n,\), one for each warm-up image"):
        warm_up_threshold(torch.zeros(0), 0.9)
    with pytest.raises(ValueError, match="have no quantile"):
        warm_up_threshold(torch.zeros(2, 2), 0.9)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="1 of 3 warm-up scores are not finite"):
            warm_up_threshold(torch.tensor([0.1, bad, 0.3]), 0.9)
    for quantile in (0, -0.1, 1.01, 90, np.nan, np.inf):
        with pytest.raises(ValueError, match=f"quantile {quantile} is no share"):
            warm_up_threshold(torch.tensor([0.1, 0.3]), quantile)
