from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from unit_rows import unit

from coalface.evaluation.metrics.enrolled import FARS, templates, verify
from coalface.evaluation.metrics.verification import eer, tar_at_far


def trials(scores: NDArray[np.float64], clients: list[int], owners: list[int]) -> tuple[list[float], list[float]]:
    """(genuine, impostor) scores, by a double loop."""
    genuine, impostor = [], []
    for i, client in enumerate(clients):
        for j, owner in enumerate(owners):
            (genuine if client == owner else impostor).append(float(scores[i, j]))
    return genuine, impostor


def test_all_figures_equal_a_double_loop() -> None:
    for seed, ties in ((0, False), (1, False), (2, True)):
        rng = np.random.default_rng(seed)
        clients, owners = [4, 0, 2, 7, 5], rng.choice([0, 2, 4, 5, 7, 9], size=40).tolist()  # 9 is not enrolled
        scores = rng.standard_normal((5, 40)) + np.equal.outer(clients, owners)
        scores = scores.round(1) if ties else scores
        thresholds = [0.5, float("nan"), scores[2, 3], 1.5, -0.2]
        verified = verify(scores, np.array(clients), np.array(owners), thresholds)
        genuine, impostor = trials(scores, clients, owners)
        assert (verified.genuine, verified.impostors) == (len(genuine), len(impostor))
        every, same = np.array(genuine + impostor), np.arange(200) < len(genuine)
        assert verified.eer == pytest.approx(eer(every, same), abs=1e-12)
        assert verified.tars == {tar.far: tar.tar for tar in tar_at_far(every, same, FARS) if tar.carried}
        accepted, accepted_of_others = [], []
        for i, (client, threshold) in enumerate(zip(clients, thresholds, strict=True)):
            if not math.isnan(threshold):
                own_trials = [scores[i, j] >= threshold for j, owner in enumerate(owners) if owner == client]
                other_trials = [scores[i, j] >= threshold for j, owner in enumerate(owners) if owner != client]
                accepted += [sum(own_trials) / len(own_trials)] if own_trials else []
                accepted_of_others.append(sum(other_trials) / len(other_trials))
        assert verified.accepted == pytest.approx(sum(accepted) / len(accepted), abs=1e-12)
        assert verified.accepted_of_others == pytest.approx(
            sum(accepted_of_others) / len(accepted_of_others), abs=1e-12
        )


def test_hand_worked_figures() -> None:
    # Client 0 has two probes, client 1 one, client 2 none; client 1 accepts at its score, client 2 has no threshold.
    scores = np.array([[0.9, 0.4, 0.5], [0.1, 0.2, 0.6], [0.3, 0.0, 0.7]])
    verified = verify(scores, np.arange(3), np.array([0, 0, 1]), [0.45, 0.6, np.nan])
    assert (verified.genuine, verified.impostors) == (3, 6)  # 0.9, 0.4, 0.6 against 0.5, 0.1, 0.2, 0.3, 0.0, 0.7
    assert verified.tars == {}  # six impostor trials carry none of the FARs
    assert verified.eer == pytest.approx(1 / 3)
    assert verified.accepted == pytest.approx((1 / 2 + 1) / 2)  # client 2 has no genuine trial
    assert verified.accepted_of_others == pytest.approx((1 + 0) / 2)  # of 0.5; of 0.1 and 0.2
    assert list(verified.figures()) == ["eer", "accepted", "accepted of others"]
    assert verified.figures()["accepted"] == pytest.approx(75)
    plain = verify(scores, np.arange(3), np.array([0, 0, 1]))
    assert plain.accepted is None and list(plain.figures()) == ["eer"]


def test_templates_are_the_unit_means_of_each_identity() -> None:
    features, labels = (
        unit(np.random.default_rng(0).standard_normal((30, 8))),
        np.random.default_rng(1).permutation(np.arange(30) % 4),
    )
    enrolled = templates(features, labels, 4)
    for identity in range(4):
        total = np.zeros(8)
        for row, label in zip(features, labels, strict=True):
            total += row.astype(float) if label == identity else 0
        assert enrolled[identity] == pytest.approx(total / math.sqrt((total**2).sum()), abs=1e-12)
    assert not templates(np.zeros((2, 3), dtype=np.float32), np.array([0, 0]), 1).any()
    with pytest.raises(ValueError, match="2 identities have no image to enrol with, the first is number 4"):
        templates(features, labels, 6)


def test_what_is_no_verification_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scores \(2, 3\) of 2 clients and 2 probes do not go together"):
        verify(np.zeros((2, 3)), np.arange(2), np.arange(2))
    with pytest.raises(ValueError, match="once"):
        verify(np.zeros((2, 2)), np.zeros(2, dtype=np.int64), np.arange(2))
    with pytest.raises(ValueError, match="no genuine pairs"):
        verify(np.zeros((2, 2)), np.arange(2), np.array([5, 6]))
    with pytest.raises(ValueError, match="1 of 4 scores are not finite"):
        verify(np.array([[0, np.nan], [0, 0]]), np.arange(2), np.arange(2))
    with pytest.raises(ValueError, match="give one for each, NaN for none"):
        verify(np.zeros((2, 2)), np.arange(2), np.arange(2), [0.5])
