"""Open-set search against loops that follow the definitions."""

import math

import numpy as np
import pytest
from unit_rows import coarse, collapsed, spread, unit

from coalface.evaluation.metrics import open_set


def naive_search(probes, gallery, probe_subjects, subjects, fpirs, ks):
    def score(p, g):
        return math.fsum(a * b for a, b in zip(probes[p].tolist(), gallery[g].tolist(), strict=True))

    ranks, scores, non_mated = [], [], []
    for p in range(len(probes)):
        row = [score(p, g) for g in range(len(gallery))]
        own_scores = [s for s, name in zip(row, subjects, strict=True) if name == probe_subjects[p]]
        if not own_scores:
            non_mated.append(max(row))
            continue
        impostors = [s for s, name in zip(row, subjects, strict=True) if name != probe_subjects[p]]
        ranks.append(1 + sum(s >= max(own_scores) - 1e-10 for s in impostors))
        scores.append(max(own_scores))
    figures = {f"rank-{k}": 100 * sum(r <= k for r in ranks) / len(ranks) for k in ks}
    for fpir in fpirs:
        allowance = math.floor(round(fpir * len(non_mated), 9))
        candidates = [t for t in [*scores, *non_mated, math.inf] if sum(o >= t for o in non_mated) <= allowance]
        best = max(sum(s >= t and r == 1 for s, r in zip(scores, ranks, strict=True)) for t in candidates)
        if allowance:
            figures[f"tpir@fpir={fpir:g}"] = 100 * best / len(scores)
    return figures


@pytest.mark.parametrize("kind", [coarse, spread, collapsed])
@pytest.mark.parametrize("block", [1, 7, 1000])
def test_search_is_its_definition(kind, block):
    fpirs, ks = (0.01, 0.1, 0.35, 1), (1, 5, 10)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        features = kind(rng, 90)
        subjects, probe_subjects = rng.permutation(20)[:15].repeat([2, 1, 1] * 5), rng.integers(20, size=70)
        gallery, probes = features[:20], features[20:]
        if kind is spread:
            probes = unit(probes + 0.8 * gallery[rng.integers(20, size=70)])
        result = open_set.search(probes, gallery, probe_subjects, subjects, fpirs=fpirs, block=block)
        assert result.figures(ks) == pytest.approx(naive_search(probes, gallery, probe_subjects, subjects, fpirs, ks))


def test_search_worked_by_hand():
    gallery, subjects = np.eye(3, dtype=np.float32), np.array([1, 2, 3])
    probes = np.array([[0.8, 0.6, 0], [0.6, 0.8, 0], [0, 0, 1], [0, 0.28, 0.96], [0.6, 0, -0.8]], np.float32)
    probe_subjects = np.array([1, 1, 3, 8, 9])  # 8 and 9 are not in the gallery: they find 0.96 and 0.6
    result = open_set.search(probes, gallery, probe_subjects, subjects, fpirs=(0.1, 0.5, 1))
    assert result.identification.ranks.tolist() == [1, 2, 1]
    none, half, every = result.tpirs
    assert (none.tpir, none.false_positives, none.carried) == (1 / 3, 0, False)  # only 1 is above 0.96
    assert (half.tpir, half.false_positives, half.trials) == (2 / 3, 1, 2)  # 0.8 and 1; 0.6 is not above 0.6
    assert half.threshold == np.nextafter(np.float64(np.float32(0.6)), 1)
    assert (every.tpir, every.false_positives) == (2 / 3, 2)  # the second probe is not of rank 1
    assert set(result.figures()) == {"rank-1", "rank-5", "rank-10", "tpir@fpir=0.5", "tpir@fpir=1"}


def test_where_everybody_is_in_the_gallery_there_is_no_open_set():
    features = np.eye(3, dtype=np.float32)
    result = open_set.search(features, features, np.arange(3), np.arange(3))
    assert result.tpirs == () and result.figures((1,)) == {"rank-1": 100}


def test_searches_are_checked():
    features, names = np.eye(3, dtype=np.float32), np.arange(3)
    for arguments, says in [
        ((features, features, names, names + 9), "no probe's subject is in the gallery"),
        ((features * 3, features, names, names), "features are not of length 1 .* probe 0"),
        ((features, features * 3, names, names), "gallery image 0"),
        ((features, features, names[:2], names), "give one for each probe"),
        ((features, np.eye(2, dtype=np.float32), names, names[:2]), "one model each"),
    ]:
        with pytest.raises(ValueError, match=says):
            open_set.search(*arguments)
