"""The bootstrap against its definition: the list with each pair repeated as often as it weighs, evaluated anew."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cases import by_default
from paired_runs import naive_interval, repeated, scored, small_list
from scipy.stats import norm, ttest_1samp, ttest_ind
from scipy.stats import t as student

from coalface.evaluation.metrics import paired
from coalface.evaluation.metrics.bootstrap import Bootstrap, PairIdentities, draw_identities
from coalface.evaluation.metrics.evidence import _packed, accuracy_evidence, hits_evidence, tar_evidence
from coalface.evaluation.metrics.verification import eer, tar_at_far, ten_fold_accuracy, tenths


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_tar_in_each_draw_is_that_of_the_repeated_list(seed, ties):
    pairs = small_list(seed)
    scores = scored(pairs, seed, ties)
    bootstrap = draw_identities(pairs, np.random.default_rng(seed), draws=150)  # more than one block
    evidence = json.loads(json.dumps(tar_evidence(scores, pairs, fars=(0.2, 0.05), tail=4.0)))
    runs = paired.resample(evidence, bootstrap)
    assert list(runs) == ["tar@far=0.2", "tar@far=0.05"]
    for far, run in zip((0.2, 0.05), runs.values(), strict=True):
        counted = repeated(pairs, np.ones(15, dtype=int))
        assert run.point == tar_at_far(scores[counted], pairs.same[counted], [far])[0].tar
        assert not run.short.any()
        for draw in range(150):
            places = repeated(pairs, bootstrap.counts[:, draw])
            (expected,) = tar_at_far(scores[places], pairs.same[places], [far])
            assert run.values[draw] == pytest.approx(expected.tar, abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("own_folds", "folds"), [(0, None), (7, None), (0, (0, 1, 2, 3, 4)), (4, (2, 3))])
def test_figures_from_ranks_in_each_draw_are_those_of_the_repeated_list(ties, own_folds, folds):
    pairs = small_list(5, pairs=150, headline=False)
    pairs = replace(pairs, fold=np.arange(150) % own_folds if own_folds else None)
    fold = tenths(pairs.same) if pairs.fold is None else pairs.fold
    scores = scored(pairs, 1, ties)
    bootstrap = draw_identities(pairs, np.random.default_rng(2), draws=150)
    evidence = json.loads(json.dumps(accuracy_evidence(scores, pairs, fars=(0.2, 0.05, 0.015), folds=folds)))
    runs, counted, checked = paired.resample(evidence, bootstrap), np.isin(fold, folds or fold), 0
    carried = [far for far in (0.2, 0.05, 0.015) if far * np.count_nonzero(counted & ~pairs.same) >= 1]
    assert list(runs) == ["accuracy", "eer", *(f"tar@far={far}" for far in carried)]
    assert (0.015 in carried) == (folds is None)  # a list of which a part is evaluated carries fewer
    for draw in range(-1, 150):
        places = np.arange(150) if draw < 0 else repeated(pairs, bootstrap.counts[:, draw])
        evaluated = places[counted[places]]
        if folds is not None and set(folds) - set(fold[evaluated].tolist()):
            continue
        figures = {figure: run.point if draw < 0 else run.values[draw] for figure, run in runs.items()}
        accuracy = ten_fold_accuracy(scores[places], pairs.same[places], fold[places], folds)
        assert figures["accuracy"] == pytest.approx(accuracy.mean, abs=1e-12)
        assert figures["eer"] == pytest.approx(eer(scores[evaluated], pairs.same[evaluated]), abs=1e-12)
        for tar in tar_at_far(scores[evaluated], pairs.same[evaluated], carried):
            assert figures[f"tar@far={tar.far:g}"] == pytest.approx(tar.tar, abs=1e-12)
        checked += 1
    assert checked > 75 and not any(run.short.any() for run in runs.values())


def test_eer_worked_by_hand_and_the_lower_one_is_better():
    # Identities 0, 1, 2, each genuine pair and impostor pair of theirs once, as below.
    pairs = PairIdentities(
        np.array([0, 1, 2, 0, 0, 1]), np.array([0, 1, 2, 1, 2, 2]), sha256="abc", fold=np.arange(6) % 2
    )
    counts = np.array([[1, 1, 1], [2, 1, 0], [3, 0, 0]], dtype=np.int32).T
    bootstrap = Bootstrap(pairs, counts)
    good, bad = (
        paired.resample(accuracy_evidence(np.array(scores), pairs, fars=()), bootstrap)["eer"]
        for scores in ([0.9, 0.8, 0.7, 0.3, 0.2, 0.1], [0.9, 0.6, 0.3, 0.8, 0.5, 0.1])
    )
    # Bad, all: from 0.6 on 1 of 3 genuine missed and 1 of 3 impostors accepted.
    # Drawn 2, 1, 0: impostor 0-1 at 0.8 alone; between 0.8 and 0.9 the FAR falls from 1 to 0 at 1 of 3 missed.
    # Drawn 3, 0, 0: no impostor pair is left.
    np.testing.assert_allclose(bad.values, [1 / 3, 1 / 3, np.nan])
    np.testing.assert_allclose(good.values, [0, 0, np.nan])
    sides = [[run, replace(run, seed=1)] for run in (bad, good)]  # a second seed that came out the same
    result = paired.compare(*sides)
    assert result.low > 0 and result.verdict == "second" and paired.compare(*sides[::-1]).verdict == "first"
    assert paired.compare(sides[1], sides[1]).verdict == "undecided"
    assert paired.compare([bad], [good]).low > 0 and paired.compare([bad], [good]).verdict == "undecided"  # one seed


def test_worked_by_hand():
    # Identities 0, 1, 2. Genuine 0: 0.9; 1: 0.6; 2: 0.3. Impostors 0-1: 0.8; 0-2: 0.5; 1-2: 0.1.
    pairs = PairIdentities(np.array([0, 1, 2, 0, 0, 1]), np.array([0, 1, 2, 1, 2, 2]), sha256="abc")
    evidence = tar_evidence(np.array([0.9, 0.6, 0.3, 0.8, 0.5, 0.1]), pairs, fars=(0.4,))
    counts = np.array([[1, 1, 1], [2, 1, 0], [0, 1, 2], [3, 0, 0]], dtype=np.int32).T
    run = paired.resample(evidence, Bootstrap(pairs, counts))["tar@far=0.4"]
    # 1 of 3 impostors allowed: threshold above 0.5, genuine 0 and 1 pass.
    # Drawn 2, 1, 0: impostor 0-1 weighs 2, the rest nothing; 0 of 2 allowed: above 0.8, 2 of 3 genuine pass.
    # Drawn 0, 1, 2: 1-2 weighs 2; 0 of 2 allowed: above 0.1, all pass.
    # Drawn 3, 0, 0: no impostor pair is left.
    np.testing.assert_array_equal(run.values, [2 / 3, 2 / 3, 1, np.nan])
    assert run.point == 2 / 3


def test_a_tail_too_short_is_reported_and_what_is_not_short_is_exact():
    rng = np.random.default_rng(0)
    left, right = rng.integers(40, size=(2, 4000))
    right[:200] = left[:200]
    pairs = PairIdentities(left, right, sha256="abc")
    scores = scored(pairs, 0, ties=False)
    # The best impostors are all of identity 0: they weigh nothing in a third of the draws, and much in others.
    scores[(left == 0) | (right == 0)] += 2
    bootstrap = draw_identities(pairs, np.random.default_rng(1), draws=200)
    short = paired.resample(tar_evidence(scores, pairs, fars=(0.02,), tail=0.5), bootstrap)["tar@far=0.02"]
    whole = paired.resample(tar_evidence(scores, pairs, fars=(0.02,), tail=100), bootstrap)["tar@far=0.02"]
    assert 0 < short.short.sum() < 200 and not whole.short.any()
    np.testing.assert_array_equal(short.values[~short.short], whole.values[~short.short])
    assert (short.values <= whole.values).all()
    result = paired.compare([short], [whole])
    assert result.short == short.short.sum()


def runs_of(pairs, seeds, gap, bootstrap):
    return [
        paired.resample(tar_evidence(scored(pairs, s, gap=gap), pairs, fars=(0.1,)), bootstrap, seed)["tar@far=0.1"]
        for seed, s in enumerate(seeds)
    ]


def test_the_draws_of_one_seed_are_those_of_the_identities():
    pairs = small_list(0)
    bootstrap = draw_identities(pairs, np.random.default_rng(3), draws=400)
    (better,), (worse,) = runs_of(pairs, (1,), 0.8, bootstrap), runs_of(pairs, (4,), 0.1, bootstrap)
    result = paired.compare([better], [worse])
    assert (result.low, result.high) == tuple(np.quantile(better.values - worse.values, [0.025, 0.975]))
    assert result.difference == better.point - worse.point and result.low > 0
    assert (result.seeds, result.verdict) == (1, "undecided")
    same = paired.compare([better], [better])
    assert (same.difference, same.low, same.high, same.verdict) == (0, 0, 0, "undecided")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hard", "own_hard", "widest"),
    [
        pytest.param(0.08, 0.1, 1.15, id="each method has its own hard identities"),
        pytest.param(0.12, 0.0, 1.55, id="methods differ by chance of the pair alone"),
    ],
)
def test_the_interval_covers_a_known_difference(hard, own_hard, widest):
    """Two methods whose scores are normal, so that the true TARs are exact.

    An impostor score is n + h_a + h_b, a genuine one gap + n − h_a; h says how hard an identity is, a part of it for
    both methods. Weights that are products make the interval too wide where n is all that parts the methods.
    """
    far, noise, shared, gaps, people, simulations = 0.05, 0.2, 0.15, (0.55, 0.45), 120, 200
    all_hard = np.hypot(hard, own_hard)
    threshold = norm.isf(far, scale=np.sqrt(noise**2 + 2 * all_hard**2))
    tars = [norm.sf(threshold, loc=gap, scale=np.hypot(noise, all_hard)) for gap in gaps]
    truth, covered, differences, widths = tars[0] - tars[1], 0, [], []
    rng = np.random.default_rng(0)
    for _ in range(simulations):
        left = np.concatenate([np.repeat(np.arange(people), 6), rng.integers(people, size=6000)])
        right = left.copy()
        right[6 * people :] = (left[6 * people :] + rng.integers(1, people, size=6000)) % people
        pairs = PairIdentities(left, right, sha256="abc")
        bootstrap = draw_identities(pairs, rng, draws=400)
        shared_hard, pair = rng.normal(0, hard, people), rng.normal(0, shared, len(left))
        runs = []
        for gap in gaps:
            h = shared_hard + rng.normal(0, own_hard, people)
            scores = pair + rng.normal(0, np.sqrt(noise**2 - shared**2), len(left))
            scores += np.where(pairs.same, gap - h[left], h[left] + h[right])
            runs.append(paired.resample(tar_evidence(scores, pairs, fars=(far,)), bootstrap)["tar@far=0.05"])
        result = paired.compare(runs[:1], runs[1:])
        covered += result.low <= truth <= result.high
        differences.append(result.difference)
        widths.append(result.high - result.low)
        assert result.short == 0
    assert covered / simulations >= 0.90  # 0.95 less 3 standard errors
    assert 0.9 < np.mean(widths) / (2 * 1.96 * np.std(differences)) < widest


def test_wrong_use_is_explained():
    pairs = small_list(0)
    bootstrap = draw_identities(pairs, np.random.default_rng(0), draws=10)
    evidence = tar_evidence(scored(pairs, 0), pairs)
    with pytest.raises(ValueError, match="the evidence is of pair list xyz, the comparison is on abc"):
        paired.resample(evidence | {"list": "xyz"}, bootstrap)
    with pytest.raises(ValueError, match=r"form 'tail-9' is unknown: it must be one of \['ranks-1', 'tail-1'\]"):
        paired.resample(evidence | {"form": "tail-9"}, bootstrap)
    for damaged in (evidence["data"][:-9], "\x00", _packed([np.arange(5)])):
        with pytest.raises(ValueError, match="the evidence is damaged"):
            paired.resample(evidence | {"data": damaged}, bootstrap)
    run = paired.resample(evidence, bootstrap)["tar@far=0.01"]
    redrawn = paired.resample(evidence, draw_identities(pairs, np.random.default_rng(0), draws=10))["tar@far=0.01"]
    with pytest.raises(ValueError, match="the same draws"):
        paired.compare([run], [redrawn])


# --- seeds ------------------------------------------------------------------------------------------------------------


def made(points, values, seeds, better="higher"):
    """Runs of a method over seeds, all on one list: their figures on it, (seeds,), and in its draws, (seeds, draws)."""
    return [
        paired.Resampled("accuracy", float(p), v, np.zeros(len(v), bool), LIST, better=better, seed=seed)
        for p, v, seed in zip(points, np.asarray(values), seeds, strict=True)
    ]


LIST = Bootstrap(small_list(0), np.ones((15, 1), dtype=np.int32))


def constant(points, seeds, draws=50, **options):
    """Runs in whose draws all identities weigh alike."""
    return made(points, np.repeat(np.array(points)[:, None], draws, axis=1), seeds, **options)


def test_the_noise_of_two_seeds_worked_by_hand():
    # Differences 2 and 4 points: mean 3, s = √2, s / √2 = 1; t of one degree of freedom is 12.706 at 97.5 %.
    first, second = constant([0.82, 0.88], [0, 1]), constant([0.80, 0.84], [0, 1])
    result = paired.compare(first, second)
    assert result.in_unit == pytest.approx((3, 3 - 12.706, 3 + 12.706), abs=5e-4)
    assert (result.seeds, result.verdict) == (2, "undecided")
    # A third seed of 3 points: s = 1, s / √3 = 0.577; t of two degrees of freedom is 4.303.
    third = paired.compare([*first, *constant([0.85], [2])], [*second, *constant([0.82], [2])])
    assert third.in_unit == pytest.approx((3, 3 - 4.303 * 0.57735, 3 + 4.303 * 0.57735), abs=5e-4)
    assert (third.seeds, third.verdict) == (3, "first")


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10])
def test_students_distribution_is_scipys(freedom):
    t = np.array([-400.0, -13, -2.5, -0.1, 0, 0.3, 1, 4.303, 90])
    np.testing.assert_allclose(paired.student(t, freedom), student.cdf(t, freedom), atol=1e-14)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_where_draws_do_not_differ_it_is_the_t_interval_of_the_seeds(count):
    rng = np.random.default_rng(count)
    seeds, figures = range(count), rng.normal(0.8, 0.02, (2, count))
    together = paired.compare(constant(figures[0], seeds), constant(figures[1], seeds))
    expected = ttest_1samp(figures[0] - figures[1], 0).confidence_interval(0.95)
    assert (together.low, together.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    # Without a seed in common the variances add up; with as many seeds a side, Welch's error and fewer degrees.
    unpaired = paired.compare(constant(figures[0], seeds), constant(figures[1], range(10, 10 + count)))
    apart = unpaired.difference
    error = apart / ttest_ind(figures[0], figures[1], equal_var=False).statistic
    half = student.ppf(0.975, count - 1) * error
    assert apart == pytest.approx(together.difference)
    assert (unpaired.low, unpaired.high) == pytest.approx((apart - half, apart + half), abs=1e-9)


def test_seeds_and_identities_together_are_the_quantiles_of_their_sum():
    rng = np.random.default_rng(0)
    points = rng.normal(0.8, 0.02, (2, 3))
    values = points[:, :, None] + rng.normal(0, 0.02, (2, 3, 400))
    sides = [made(p, v, range(3)) for p, v in zip(points, values, strict=True)]
    result, turned = paired.compare(*sides), paired.compare(*sides[::-1])
    drawn = (values[0] - values[1]).mean(axis=0)
    assert (result.low, result.high) == pytest.approx(naive_interval(drawn, points[0] - points[1]), abs=2e-4)
    assert (turned.low, turned.high) == pytest.approx((-result.high, -result.low), abs=1e-9)


def test_the_runs_of_the_seeds_that_both_have_are_compared():
    first, second = constant([0.9, 0.8, 0.7], [0, 1, 2]), constant([0.6, 0.5], [2, 3])
    assert [[r.point for r in side] for side in paired.of_shared_seeds(first, second)] == [[0.7], [0.6]]
    assert paired.of_shared_seeds(first[:2], second) == (first[:2], second)
    with pytest.raises(ValueError, match="of_shared_seeds"):
        paired.compare(first, second)


@pytest.mark.parametrize("seeds", by_default(1, [3, 5]))
def test_the_interval_covers_no_difference_where_seeds_and_identities_are_noise(seeds):
    """Figures are means over 60 identities of p + e_identity + n_seed + m_{seed, identity}; true difference 0."""
    people, draws, simulations = 60, 200, 300
    rng = np.random.default_rng(seeds)
    covered = of_identities_alone = 0
    for _ in range(simulations):
        shared = rng.normal(0, 0.1, people)  # by identity, for both methods: it cancels
        weights = rng.multinomial(people, np.full(people, 1 / people), size=draws).T / people
        sides, drawn = [], []
        for _ in range(2):
            of_method, of_seed = rng.normal(0, 0.05, people), rng.normal(0, 0.03, (seeds, 1))
            by_identity = 0.8 + shared + of_method + of_seed + rng.normal(0, 0.05, (seeds, people))
            values = by_identity @ weights
            sides.append(made(by_identity.mean(axis=1), values, range(seeds)))
            drawn.append(values.mean(axis=0))
        result = paired.compare(*sides)
        covered += result.low <= 0 <= result.high
        low, high = np.quantile(drawn[0] - drawn[1], [0.025, 0.975])
        of_identities_alone += low <= 0 <= high
    assert 0.93 <= covered / simulations <= 0.99
    assert of_identities_alone / simulations < 0.7


# --- seeds that are evaluated on lists of their own -------------------------------------------------------------------


def two_lists():
    """Two lists of other people, each with its draws."""
    lists = [replace(small_list(seed, people=people), sha256=f"list {seed}") for seed, people in ((0, 15), (1, 11))]
    return [draw_identities(pairs, np.random.default_rng(n), draws=300) for n, pairs in enumerate(lists)]


def on(bootstraps, gap, seed):
    """A run on each list, each of a seed of its own."""
    return [replace(runs_of(b.pairs, (seed + n,), gap, b)[0], seed=n) for n, b in enumerate(bootstraps)]


def test_seeds_on_lists_of_their_own_are_compared_list_by_list():
    bootstraps = two_lists()
    better, worse = on(bootstraps, 0.7, 10), on(bootstraps, 0.2, 20)
    result = paired.compare(better, worse)
    apart = [b.point - w.point for b, w in zip(better, worse, strict=True)]
    assert result.difference == pytest.approx(np.mean(apart)) and result.seeds == 2
    drawn = np.mean([b.values - w.values for b, w in zip(better, worse, strict=True)], axis=0)
    assert (result.low, result.high) == pytest.approx(naive_interval(drawn, apart), abs=1e-4)
    assert paired.compare(better[::-1], worse) == result  # which list comes first says nothing
    twice = paired.compare(better * 2, worse)  # a seed that was run again is averaged first
    assert (twice.low, twice.high, twice.seeds) == pytest.approx((result.low, result.high, 2))


def test_sides_on_other_lists_or_not_as_often_are_not_compared():
    bootstraps = two_lists()
    runs = [on(bootstraps, 0.5, 10 * n) for n in range(4)]

    def side(*places):
        return [replace(runs[n][place], seed=0) for n, place in enumerate(places)]

    for first, second in (([0, 1], [1, 0]), ([0, 1], [0, 1, 1, 0]), ([0], [0, 0, 0])):
        assert paired.compare(side(*first), side(*second))
    for first, second in (([0], [1]), ([0, 1], [0]), ([0, 1], [0, 0, 1]), ([0, 0, 1], [0, 1, 1])):
        with pytest.raises(ValueError, match="different lists or folds"):
            paired.compare(side(*first), side(*second))


# --- rank-1 -----------------------------------------------------------------------------------------------------------


def looked_up(headline):
    """A list, and 40 queries of its people and of two whom no pair names."""
    pairs = small_list(3, people=9, headline=headline)
    queries = np.random.default_rng(0).choice([*pairs.people, 4, 1000], size=40)
    assert {4, 1000} <= set(queries.tolist()) and not {4, 1000} & set(pairs.people.tolist())
    right = np.random.default_rng(1).random(40) < 0.3 + 0.5 * (queries % 2)  # some people are found more easily
    return replace(pairs, queries=queries), right


@pytest.mark.parametrize("headline", [False, True])
def test_rank_1_in_each_draw_is_that_of_the_repeated_queries(headline):
    pairs, right = looked_up(headline)
    pairs = replace(pairs, fold=np.arange(len(pairs.left)) % 5) if not headline else pairs
    make = tar_evidence if headline else accuracy_evidence
    evidence = json.loads(json.dumps(make(scored(pairs, 0), pairs) | hits_evidence(right)))
    bootstrap = draw_identities(pairs, np.random.default_rng(7), draws=150)
    run = paired.resample(evidence, bootstrap)["rank-1"]
    in_list = np.isin(pairs.queries, pairs.people)
    assert run.point == right[in_list].mean() and not run.short.any()
    for draw in range(150):
        count = dict(zip(pairs.people.tolist(), bootstrap.counts[:, draw].tolist(), strict=True))
        repeated = [
            hit for identity, hit in zip(pairs.queries, right, strict=True) for _ in range(count.get(int(identity), 0))
        ]
        assert run.values[draw] == pytest.approx(np.mean(repeated), abs=1e-12)


def test_rank_1_worked_by_hand():
    # Pairs of 0, 1 and 2. Queries: 0 right, 0 wrong, 1 right, 2 wrong, and 5, whom no pair names, right.
    pairs = PairIdentities(
        np.array([0, 1, 2, 0, 0, 1]), np.array([0, 1, 2, 1, 2, 2]), "abc", queries=np.array([0, 0, 1, 2, 5])
    )
    evidence = tar_evidence(np.array([0.9, 0.6, 0.3, 0.8, 0.5, 0.1]), pairs, fars=(0.4,))
    evidence |= hits_evidence(np.array([True, False, True, False, True]))
    counts = np.array([[1, 1, 1], [2, 1, 0], [0, 2, 1], [0, 1, 2], [3, 0, 0]], dtype=np.int32).T
    run = paired.resample(evidence, Bootstrap(pairs, counts))["rank-1"]
    # 2 of 4; 2 + 1 of 4 + 1; 2 of 2 + 1; 1 of 1 + 2; no impostor pair is left of 3, 0, 0.
    np.testing.assert_array_equal(run.values, [2 / 4, 3 / 5, 2 / 3, 1 / 3, np.nan])
    assert run.point == 2 / 4
