"""MegaFace's figures against loops over single scores, on features of which many have the same cosines."""

import math

import numpy as np
import pytest
from unit_rows import coarse, collapsed, crowded, spread

from coalface.evaluation.metrics import megaface, verification

FARS = (1e-4, 1e-3, 0.02, 0.3)


KINDS = [coarse, crowded, spread, collapsed]


def drawn(kind, seed, probes=40, distractors=150):
    rng = np.random.default_rng(seed)
    features = kind(rng, probes + distractors)
    return features[:probes], rng.integers(12, size=probes), features[probes:]


def naive(probes, identities, distractors, fars):
    def score(x, y):
        return math.fsum(a * b for a, b in zip(x.tolist(), y.tolist(), strict=True))

    impostor = [[score(x, y) for y in distractors] for x in probes]
    right, genuine = [], []
    for i in range(len(probes)):
        for j in range(len(probes)):
            if i != j and identities[i] == identities[j]:
                mate_score = score(probes[i], probes[j])
                right.append(all(mate_score > score + 1e-10 for score in impostor[i]))
                if i < j:
                    genuine.append(mate_score)
    scores = np.array([*genuine, *(score for row in impostor for score in row)])
    tars = verification.tar_at_far(scores, np.arange(len(scores)) < len(genuine), fars)
    return len(right), sum(right), tars


@pytest.mark.parametrize("kind", [coarse, spread, collapsed])
@pytest.mark.parametrize("block", [(1, 150), (7, 64), (2048, 8192)])
def test_the_figures_are_those_of_single_scores(kind, block):
    for seed in range(3):
        probes, identities, distractors = drawn(kind, seed)
        result = megaface.evaluate_probes(probes, identities, distractors, fars=FARS, block=block)
        pairs, right, tars = naive(probes, identities, distractors, FARS)
        assert (result.pairs, result.right, result.distractors) == (pairs, right, 150)
        for tar, expected in zip(result.tars, tars, strict=True):
            assert tar.tar == pytest.approx(expected.tar, abs=1e-15) and tar.impostors == 40 * 150
            assert (tar.false_accepts, tar.carried) == (expected.false_accepts, expected.carried)
            assert tar.threshold == pytest.approx(expected.threshold, abs=1e-15)


def test_worked_by_hand():
    probes = np.array([[1, 0], [0.8, 0.6], [0, 1], [0.6, 0.8], [0, -1]], np.float32)
    identities = np.array([4, 4, 9, 9, 7])
    # The nearest distractors are at 0.96, 0.936, 0.96, 0.8, −0.28; the mates at 0.8, 0.8 and 0.8, 0.8.
    distractors = np.array([[0.96, 0.28], [-0.28, 0.96], [0, 1]], np.float32)
    result = megaface.evaluate_probes(probes, identities, distractors[1:], fars=(0.1, 0.2, 0.5))
    # Without the first: 0, 0.6, 1, 0.8 and below 0. Both of identity 4 are right; of 9, 1 and 0.8 = 0.8 beat the mate.
    assert (result.pairs, result.right) == (4, 2)
    tenth, fifth, half = result.tars  # impostors: 1, 0.96, 0.8, 0.6, 0.6, …: 1, 2 and 5 of 10 may be accepted
    assert (tenth.false_accepts, tenth.tar) == (1, 0) and (fifth.false_accepts, fifth.tar) == (2, 0)
    assert (half.false_accepts, half.tar) == (5, 1)
    assert megaface.evaluate_probes(probes, identities, distractors, fars=()).figures() == {"rank-1": 0}


def test_distractors_from_a_file(tmp_path):
    probes, identities, distractors = drawn(coarse, 3)
    path = tmp_path / "features"
    distractors.tofile(path)
    mapped = np.memmap(path, np.float32, "r", shape=distractors.shape)
    result = megaface.evaluate_probes(probes, identities, mapped, fars=FARS, block=(16, 16))
    again = megaface.evaluate_probes(probes, identities, distractors, fars=FARS)
    assert result.tars == again.tars and result.right == again.right and result.distractors == 150


def test_what_does_not_fit():
    probes, identities, distractors = drawn(spread, 0)
    bad = distractors.copy()
    bad[70] = np.nan
    for arguments, options, says in [
        ((probes * 2, identities, distractors), {}, "probe 0, of length 2"),
        ((probes, identities[1:], distractors), {}, "give one for each"),
        ((probes, identities, distractors[:, 1:]), {}, "by the same model"),
        ((probes, identities, distractors[:0]), {}, "no distractors"),
        ((probes, np.arange(40), distractors), {}, "no identity has two probes"),
        ((probes, identities, bad), {"block": (8, 32)}, "distractors 64 to 96: 1 of 32 .* distractor 6,"),
        ((probes, identities, distractors), {"fars": (0.1, 1)}, "one allows all impostors"),
        ((probes, identities, distractors), {"fars": (0,)}, "not a rate"),
    ]:
        with pytest.raises(ValueError, match=says):
            megaface.evaluate_probes(*arguments, **options)
