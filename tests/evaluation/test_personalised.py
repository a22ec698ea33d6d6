"""The personalised protocols against loops over every pair."""

import dataclasses
import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from unit_rows import unit

from coalface.evaluation.metrics import personalised as p
from coalface.evaluation.metrics.exact import exactly
from coalface.evaluation.metrics.verification import tar_at_far

RATES = (1e-6, 0.001, 0.01, 0.05, 0.1, 0.29, 0.5, 0.9, 1.0)


@dataclasses.dataclass
class World:
    """Three clients of identities with 1 to 4 test images, in any order, and the gallery of client 1."""

    features: np.ndarray
    identities: np.ndarray
    clients: np.ndarray
    gallery: np.ndarray
    gallery_identities: np.ndarray

    def evaluate(self, client=1, **options):
        return p.evaluate_client(
            self.features, self.identities, self.clients, client, self.gallery, self.gallery_identities, **options
        )

    def shuffled(self, rng):
        order, places = rng.permutation(len(self.features)), rng.permutation(len(self.gallery))
        return World(
            self.features[order],
            self.identities[order],
            self.clients[order],
            self.gallery[places],
            self.gallery_identities[places],
        )


def world(seed, kind="plain", per_client=5):
    """`ties`: embeddings on a small grid, some zeros. `close`: copies of few, some digits apart at the last place."""
    rng = np.random.default_rng(seed)
    count = 3 * per_client
    images = rng.integers(1, 5, count)
    images[per_client] = 3  # of client 1
    names = rng.permutation(100)[:count]
    labels = np.repeat(np.arange(count), images)
    d = {"plain": 16, "ties": 3, "close": 40}[kind]
    centres = rng.normal(size=(count, d))
    rows = centres[labels] + rng.normal(size=(len(labels), d))
    train = centres[per_client : 2 * per_client].repeat(3, 0) + rng.normal(size=(3 * per_client, d))
    if kind == "ties":
        rows, train = np.clip(np.round(rows), -1, 1), np.clip(np.round(train), -1, 1)
    if kind == "close":
        base = unit(rng.normal(size=(2, d)))
        rows, train = (base[rng.integers(2, size=len(rows))] for rows in (rows, train))
        rows, train = (r * (1 + 1e-7 * rng.integers(-1, 2, r.shape)) for r in (rows, train))
    trained = np.repeat(names[per_client : 2 * per_client], 3)
    gallery, gallery_identities = p.gallery_of(unit(train) if kind != "close" else train.astype(np.float32), trained)
    features = unit(rows) if kind != "close" else rows.astype(np.float32)
    return World(features, names[labels], labels // per_client, gallery, gallery_identities).shuffled(rng)


def one_score(left, right):
    return float(exactly(left[None], np.array([0]), right[None], np.array([0]))[0])


@functools.cache
def naive_scores(seed, kind, mode, per_client=5):
    """Genuine and impostor scores, by every ordered quadruple (identity, image, identity, image) once."""
    w, client = world(seed, kind, per_client), 1
    genuine, impostor = [], []
    for i, j in itertools.combinations(range(len(w.features)), 2):
        own_count = int(w.clients[i] == client) + int(w.clients[j] == client)
        if own_count == 2 and w.identities[i] == w.identities[j]:
            genuine.append(one_score(w.features[i], w.features[j]))
        elif own_count == 1 or (own_count == 2 and mode == "official"):
            impostor.append(one_score(w.features[i], w.features[j]))
    return np.array(genuine), np.array(impostor)


@pytest.mark.parametrize("block", [(7, 5), (1000, 1000)])
@pytest.mark.parametrize("kind", ["plain", "ties", "close"])
@pytest.mark.parametrize("mode", ["paper", "official"])
def test_one_to_one_is_tar_at_far_of_all_pairs_bit_for_bit(kind, mode, block):
    for seed in range(2):
        w = world(seed, kind)
        genuine, impostor = naive_scores(seed, kind, mode)
        result = w.evaluate(fars=RATES, one_to_one=mode, block=block)
        scores = np.concatenate([genuine, impostor])
        expected = tar_at_far(scores, np.arange(len(scores)) < len(genuine), RATES)
        assert list(result.tars) == expected
        assert (result.genuine, result.impostors) == (len(genuine), len(impostor))
        # And by the definition alone: the best of all thresholds that keep to the allowance.
        for tar in result.tars:
            thresholds = [t for t in [*scores, 9] if (impostor >= t).sum() <= Fraction(str(tar.far)) * len(impostor)]
            assert tar.tar == max((genuine >= t).sum() for t in thresholds) / len(genuine)


@functools.cache
def naive_one_to_many(seed, kind, fpirs, mode):
    """(TPIR, false positives, trials) of each FPIR by the best threshold of all that keep to the allowance."""
    w, client = world(seed, kind), 1
    names = w.gallery_identities.tolist()
    mate, rivals, strangers, negatives = [], [], [], []
    for x, y, c in zip(w.features, w.identities, w.clients, strict=True):
        scores = {name: one_score(x, t) for name, t in zip(names, w.gallery, strict=True)}
        if c == client:
            mate.append(scores.pop(y))
            rivals.append(max(scores.values(), default=-math.inf))
        else:
            strangers.append(max(scores.values()))
        negatives += scores.values()
    results = []
    for fpir in fpirs:
        share = Fraction(str(fpir))
        if mode == "standard":
            against, most = strangers, math.floor(share * len(strangers))
        else:
            against, most = negatives, math.ceil(share * len(w.features)) - 1
        best = (-1, 0)
        for threshold in sorted({*mate, *against, *np.nextafter(against, 9)}):
            accepted = sum(s >= threshold for s in against)
            if accepted <= most:
                right = [m >= threshold and (m > r or mode == "legacy") for m, r in zip(mate, rivals, strict=True)]
                best = max(best, (sum(right) / len(right), accepted))
        results.append((best[0], best[1], len(against)))
    return results


@pytest.mark.parametrize("block", [(7, 5), (1000, 1000)])
@pytest.mark.parametrize("kind", ["plain", "ties", "close"])
@pytest.mark.parametrize("mode", ["standard", "legacy"])
def test_one_to_many_is_its_definition(kind, mode, block):
    for seed in range(3):
        w = world(seed, kind)
        result = w.evaluate(fpirs=RATES, one_to_many=mode, block=block)
        expected = naive_one_to_many(seed, kind, RATES, mode)
        assert [(t.tpir, t.false_positives, t.trials) for t in result.tpirs] == expected
        assert [t.fpir for t in result.tpirs] == list(RATES)
        assert result.mated == (w.clients == 1).sum() and result.mated + result.non_mated == len(w.features)


def by_angle(*degrees):
    turn = np.deg2rad(degrees)
    return np.stack([np.cos(turn), np.sin(turn)], axis=1).astype(np.float32)


def worked(**modes):
    # Client 0: identity 5 at 0° and 10°, identity 6 at 90° and 96°. Client 1: identities 7 at 40°, 8 at 60°, 180°.
    features = by_angle(0, 10, 90, 96, 41, 60, 180)
    identities, clients = np.array([5, 5, 6, 6, 7, 8, 8]), np.array([0, 0, 0, 0, 1, 1, 1])
    gallery, names = by_angle(4, 52), np.array([5, 6])
    return p.evaluate_client(features, identities, clients, 0, gallery, names, fars=(0.05, 0.1, 0.26), **modes)


def test_one_to_one_worked_by_hand():
    # Genuine: 10° and 6° apart. Impostors: 41 60 180, 31 50 170, 49 30 90, 55 36 84.
    result = worked(fpirs=(0.5,))
    assert (result.genuine, result.impostors) == (2, 12)
    assert [(t.tar, t.false_accepts, t.carried) for t in result.tars] == [(1, 0, False), (1, 1, True), (1, 3, True)]
    assert result.tars[1].threshold == pytest.approx(np.cos(np.deg2rad(31)), abs=1e-6)
    assert result.tars[2].threshold == pytest.approx(np.cos(np.deg2rad(41)), abs=1e-6)
    # Of the client's own: 90, 96, 80, 86.
    official = worked(fpirs=(0.5,), one_to_one="official")
    assert official.impostors == 16
    assert [t.carried for t in official.tars] == [False, True, True]


def test_one_to_many_worked_by_hand():
    # Templates at 4° and 52°. Others' probes at 41°, 60°, 180°: their nearest template is 11°, 8° and 128° away.
    # The client's own, by identity: 4, 6, 38, 44 from their template; 52, 42, 86, 92 from the other. All are first.
    result = worked(fpirs=(0.3, 0.4, 0.7))
    assert [(t.tpir, t.false_positives, t.trials) for t in result.tpirs] == [(0.5, 0, 3), (0.5, 1, 3), (1, 2, 3)]
    # All pairs of probe and another's template: 8, 11, 37, 42, 52, 56, 86, 92, 128, 176. n = 7 probes: ⌈0.3 · 7⌉ = 3.
    legacy = worked(fpirs=(0.1, 0.3, 0.5, 0.6), one_to_many="legacy").tpirs
    assert [(t.tpir, t.false_positives, t.trials) for t in legacy] == [
        (0.5, 0, 10),
        (0.5, 2, 10),  # above 37°
        (0.75, 3, 10),  # above 42°
        (1, 4, 10),  # above 52°
    ]
    assert [t.carried for t in legacy] == [False, True, True, True]


def test_templates_of_the_mean_s_length_alter_official_alone():
    # Identity 6's template is the mean of features 120° apart, half as long: 38° and 44° from it score 0.39 and 0.36.
    gallery, names = p.gallery_of(by_angle(4, -8, 112), np.array([5, 6, 6]), unit=False)
    np.testing.assert_allclose(np.linalg.norm(gallery, axis=1), [1, 0.5], atol=1e-6)
    features, owner = by_angle(0, 10, 90, 96, 41, 60, 180), np.array([0, 0, 0, 0, 1, 1, 1])
    arguments = (features, np.array([5, 5, 6, 6, 7, 8, 8]), owner, 0)
    official = p.evaluate_client(*arguments, gallery, names, fpirs=(0.4,), one_to_many="official")
    legacy = worked(fpirs=(0.4,), one_to_many="legacy")
    # ⌈0.4 · 7⌉ − 1 = 2 wrong pairs: against unit templates 60° and 41° on 52°, against these 41° and 60° on 4°.
    assert [(t.tpir, t.false_positives) for r in (legacy, official) for t in r.tpirs] == [(0.5, 2), (0.5, 2)]
    assert official.tpirs[0].threshold < legacy.tpirs[0].threshold
    assert list(official.figures())[-1] == "tpir@fpir=0.4 (official)"
    with pytest.raises(ValueError, match="not of length 1"):
        p.evaluate_client(*arguments, gallery, names, one_to_many="legacy")


def test_a_client_of_one_identity_and_identities_of_one_image():
    features = unit(np.random.default_rng(0).normal(size=(6, 8)))
    identities, clients = np.array([3, 3, 4, 5, 6, 6]), np.array([0, 0, 1, 1, 2, 2])
    alone = p.evaluate_client(
        features, identities, clients, 0, features[:1], np.array([3]), fars=(0.5,), one_to_one="official"
    )
    assert (alone.genuine, alone.impostors) == (1, 8)
    # Nobody else is in its gallery: every probe of its own is first.
    every = p.evaluate_client(features, identities, clients, 0, features[:1], np.array([3]), fpirs=(1,))
    assert every.tpirs[0].tpir == 1
    # No identity of client 1 has two images: there is no 1:1, but there is 1:N.
    lone = p.evaluate_client(features, identities, clients, 1, features[2:4], np.array([4, 5]), fpirs=(0.25,))
    assert lone.tars == () and lone.genuine == 0
    assert list(lone.figures()) == ["tpir@fpir=0.25 (standard)"]


def test_the_mean_is_over_the_clients_that_carry_a_figure():
    w = world(1)
    client = w.evaluate(fars=(0.1,), fpirs=(0.2,))
    tar = dataclasses.replace(client.tars[0], tar=0.25)
    tpir = dataclasses.replace(client.tpirs[0], tpir=0.5)
    evaluated = [
        dataclasses.replace(client, tars=(tar,), tpirs=(tpir,)),
        dataclasses.replace(client, tars=(), tpirs=(dataclasses.replace(tpir, tpir=0.75),)),
        dataclasses.replace(client, tars=(dataclasses.replace(tar, tar=1.0),), tpirs=(tpir,)),
    ]
    means, carried = p.over_clients(evaluated)
    assert means == {"tar@far=0.1 (paper)": 62.5, "tpir@fpir=0.2 (standard)": 175 / 3}
    assert carried == {"tar@far=0.1 (paper)": 2, "tpir@fpir=0.2 (standard)": 3}
    with pytest.raises(ValueError, match="no client"):
        p.over_clients([])
    with pytest.raises(ValueError, match="different modes"):
        p.over_clients([client, dataclasses.replace(client, one_to_one="official")])


def test_a_gallery_holds_the_mean_of_each_identity():
    features = by_angle(0, 90, 30, 30)
    gallery, names = p.gallery_of(features, np.array([9, 9, 2, 2]))
    assert names.tolist() == [2, 9] and gallery.dtype == np.float32
    np.testing.assert_allclose(gallery, by_angle(30, 45), atol=1e-7)


# Errors


def broken(**changes):
    return dataclasses.replace(world(0), **changes)


def test_what_cannot_be_evaluated_is_refused_by_name():
    w = world(0)
    for change, message in (
        ({"features": 2 * w.features}, "of test image 0, of length 2"),
        ({"features": w.features * np.float32(np.nan)}, "not of length 1"),
        ({"features": unit(w.features[:, :5])}, "by one model"),
        ({"identities": w.identities[1:]}, "give one for each"),
        ({"clients": w.clients[1:]}, "do not go together"),
        ({"gallery": 2 * w.gallery}, "of template 0, of length 2"),
        ({"clients": np.ones_like(w.clients)}, "client 1 has"),
        ({"clients": np.zeros_like(w.clients)}, "client 1 has 0 of"),
        ({"identities": np.full_like(w.identities, 3)}, "another client too, the first is 3"),
        ({"gallery_identities": w.gallery_identities[[0, 0, *range(2, 5)]]}, "have no template"),
        ({"gallery": w.gallery[:1], "gallery_identities": w.gallery_identities[:1]}, "have no template"),
    ):
        with pytest.raises(ValueError, match=message):
            broken(**change).evaluate()
    strange = int(w.identities[w.clients != 1][0])
    more = np.concatenate([w.gallery, w.gallery[:1]]), np.append(w.gallery_identities, strange)
    with pytest.raises(ValueError, match=f"template of identity {strange}"):
        broken(gallery=more[0], gallery_identities=more[1]).evaluate()
    for modes in ({"one_to_one": "Paper"}, {"one_to_many": "rank"}):
        with pytest.raises(ValueError, match="there is no mode"):
            w.evaluate(**modes)
    for rate in (0, -1, 1.5):
        for rates in ({"fars": (rate,)}, {"fpirs": (rate,)}, {"fpirs": (rate,), "one_to_many": "legacy"}):
            with pytest.raises(ValueError, match="not a rate"):
                w.evaluate(**rates)
