"""Template features and TAR over listed pairs against loops that follow the definitions."""

import math

import numpy as np
import pytest
from cases import by_default
from unit_rows import coarse, collapsed, crowded, spread

from coalface.evaluation.metrics import templates, verification
from coalface.evaluation.metrics.exact import exactly

OPTIONS = [(norm, flip, scored) for norm in (True, False) for flip in (False, True) for scored in (True, False)]


KINDS = [coarse, crowded, spread, collapsed]


# Pooling


def naive_pool(features, template, media, norm, flip, detector):
    pooled = {}
    for name in sorted(set(template.tolist())):
        total = 0
        for part in {m for t, m in zip(template.tolist(), media.tolist(), strict=True) if t == name}:
            images = []
            for i in range(len(features)):
                if template[i] == name and media[i] == part:
                    x = features[i].astype(float)
                    half = len(x) // 2
                    x = x[:half] + x[half:] if flip else x
                    x = x if norm else x / math.sqrt(sum(v * v for v in x))
                    images.append(x if detector is None else x * float(detector[i]))
            total = total + sum(images) / len(images)
        pooled[name] = total / math.sqrt(sum(v * v for v in total))
    return pooled


@pytest.mark.parametrize(("norm", "flip", "scored"), OPTIONS)
@pytest.mark.parametrize("at_once", by_default(2, [1, 7, 8192]))
def test_pooling_is_its_definition(monkeypatch, norm, flip, scored, at_once):
    monkeypatch.setattr(templates, "IMAGES", at_once)
    rng = np.random.default_rng(at_once)
    features = (rng.normal(size=(60, 6)) * rng.uniform(0.1, 9, size=(60, 1))).astype(np.float32)
    template, media = rng.integers(3, 20, size=60), rng.integers(4, size=60)
    detector = rng.uniform(0.2, 1, size=60).astype(np.float32) if scored else None
    pooled = templates.template_features(features, template, media, norm=norm, flip=flip, detector=detector)
    expected = naive_pool(features, template, media, norm, flip, detector)
    assert pooled.template.tolist() == list(expected)
    assert pooled.features.dtype == np.float32 and pooled.features.shape[1] == (3 if flip else 6)
    np.testing.assert_allclose(pooled.features, list(expected.values()), atol=1e-7)


def test_pooling_worked_by_hand():
    # A video of two frames (4, 0) and (0, 2), mean (2, 1), and a photograph (1, 3): (3, 4), which is 5 long.
    features = np.array([[4, 0], [1, 3], [0, 2], [0, 0]], np.float32)
    template, media = np.array([7, 7, 7, 2]), np.array([5, 1, 5, 5])
    pooled = templates.template_features(features, template, media)
    assert pooled.template.tolist() == [2, 7]
    np.testing.assert_allclose(pooled.features, [[0, 0], [0.6, 0.8]], atol=1e-7)  # nothing stays nothing
    # D1 with scores 1, 1, 0.5: the mean of the video is (2, 0.5), and all is (3, 3.5).
    pooled = templates.template_features(features, template, media, detector=np.array([1, 1, 0.5, 1]))
    np.testing.assert_allclose(pooled.features[1], np.array([3, 3.5]) / math.hypot(3, 3.5), atol=1e-7)
    # F1: image and mirror (3, 4) + (1, −1).
    pooled = templates.template_features(np.array([[3, 4, 1, -1]], np.float32), np.array([1]), np.array([1]), flip=True)
    np.testing.assert_allclose(pooled.features, [[0.8, 0.6]], atol=1e-7)


def test_pooling_refuses_what_does_not_fit():
    features, numbers = np.ones((2, 3), np.float32), np.array([1, 2])
    for arguments, options, says in [
        ((features, numbers[:1], numbers), {}, r"2 features with \(1,\) templates"),
        ((features * np.array([[1], [np.nan]], np.float32), numbers, numbers), {}, "image 1 is not finite"),
        ((features, numbers, numbers), {"flip": True}, "3 dimensions have no halves"),
        ((features, numbers, numbers), {"detector": np.array([1, np.inf])}, "scores of the detector are not finite"),
    ]:
        with pytest.raises(ValueError, match=says):
            templates.template_features(*arguments, **options)


# 1:1


def pairs_of(rng, features, count, kinds=12):
    identity = rng.integers(kinds, size=len(features))
    left, right = rng.integers(len(features), size=(2, count))
    same = identity[left] == identity[right]
    same[:2] = True, False
    return left, right, same


def dots(features, left, right):
    """Each score alone, by the sum of exact products that `math.fsum` rounds once."""
    return np.array(
        [
            math.fsum(a * b for a, b in zip(features[i].tolist(), features[j].tolist(), strict=True))
            for i, j in zip(left.tolist(), right.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_tars_are_those_of_single_scores(kind):
    fars = (1e-3, 0.01, 0.05, 0.3, 1)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        features = kind(rng, 90)
        left, right, same = pairs_of(rng, features, 1500)
        if seed == 1:  # few right ones, and not the first
            right = 89 - 4 * (right % 20)
        tars = templates.verify_pairs(features, left, right, same, fars)
        assert tars == verification.tar_at_far(exactly(features, left, features, right), same, fars)
        scores = dots(features, left, right)
        for a, b in zip(tars, verification.tar_at_far(scores, same, fars), strict=True):
            if kind is not crowded:  # there, T and the sum rounded once differ in their last bit
                assert (a.tar, a.false_accepts) == (b.tar, b.false_accepts)
            assert a.threshold == pytest.approx(b.threshold, abs=1e-15)
            assert (a.far, a.impostors, a.carried) == (b.far, b.impostors, b.carried)
            assert a.tar == pytest.approx(b.tar, abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [200, 1500])
def test_tars_do_not_depend_on_how_many_pairs_are_listed(monkeypatch, kind, count):
    rng, fars = np.random.default_rng(count), (1e-3, 0.05, 0.3, 1)
    features = kind(rng, 90)
    left, right = np.divmod(rng.permutation(90 * 90)[:count], 90)  # each pair once
    same = left % 12 == right % 12
    expected = verification.tar_at_far(exactly(features, left, features, right), same, fars)
    scans, scan = [], templates.scan
    monkeypatch.setattr(templates, "scan", lambda *a, **options: scans.append(a) or scan(*a, **options))
    assert templates.verify_pairs(features, left, right, same, fars) == expected
    assert len(scans) == (count == 1500)


def test_tar_worked_by_hand():
    # Templates at angles with cosines 1, 0.8, 0.6, 0 and −1 to the first.
    features = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1], [-1, 0]], np.float32)
    left, right = np.array([0, 0, 0, 0, 1]), np.array([1, 2, 3, 4, 2])
    same = np.array([True, False, False, False, True])
    third, half, all_but_one = templates.verify_pairs(features, left, right, same, (1 / 3, 0.5, 0.7))
    # Impostors 0.6, 0, −1; genuine 0.8 and 0.96. One of three may be accepted at 0.34 and at 0.5, two at 0.7.
    assert third.false_accepts == 0 and not third.carried  # 0.333… × 3 is below 1
    assert (half.tar, half.false_accepts, half.carried) == (1.0, 1, True)
    assert half.threshold == pytest.approx(0, abs=1e-7) and all_but_one.false_accepts == 2


def test_splits_of_ijba():
    def split(tar, carried=True):
        return [
            verification.TarAtFar(1e-3, tar, 0.5, 1, 1000, True),
            verification.TarAtFar(1e-4, 1, 0.5, 0, 1000, carried),
        ]

    assert templates.over_splits([split(0.8), split(0.6, False)]) == {
        "tar@far=0.001": (pytest.approx(70), pytest.approx(math.sqrt(200)))
    }
    assert templates.over_splits([split(0.5)]) == {"tar@far=0.001": (50, 0), "tar@far=0.0001": (100, 0)}


def test_pairs_are_checked():
    features = np.eye(3, dtype=np.float32)
    left, right, same = np.array([0, 1]), np.array([1, 2]), np.array([True, False])
    for arguments, says in [
        ((features * 2, left, right, same), "3 of 3 features are not of length 1"),
        ((features, left, right[:1], same), "give two rows for each pair"),
        ((features, left, right, ~same | True), "no impostor pairs"),
        ((features, left, right + 1, same), "pairs name rows 0 to 3, and there are 3"),
    ]:
        with pytest.raises(ValueError, match=says):
            templates.verify_pairs(*arguments)
