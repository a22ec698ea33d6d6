import math
import statistics

import pytest
import torch
from problems import cosine, curricularface, problem

from coalface.training.losses.curricularface import CurricularFace


def test_a_naive_loop_over_steps_gives_the_same():
    loss, state, t = CurricularFace(scale=30.0, momentum=0.3), CurricularFace().state(7), 0.0
    state = {"t": state["t"].double()}
    for step in range(4):
        embeddings, weights, labels = inputs = problem(n=20, d=5, seed=step)
        weights[labels] += embeddings  # own cosines above 0, so that t is
        state = loss.advance(*inputs, **state)
        batch = list(zip(embeddings.tolist(), labels.tolist(), strict=True))
        rows = weights.tolist()
        t = 0.3 * statistics.mean(cosine(x, rows[y]) for x, y in batch) + 0.7 * t
        assert state["t"].item() == pytest.approx(t, rel=1e-12) and t > 0.05
        losses = [curricularface(loss, x, rows, y, None, t) for x, y in batch]
        assert loss(*inputs, **state).item() == pytest.approx(statistics.mean(losses), rel=1e-12)


def test_hand_worked_numbers():
    # An image at 60° from its class; with a margin of 30° the target is 0. One other class at cosine 1/2 is hard, one
    # at −1/2 is not. A batch with mean 1/2 takes t from 0 to 0.01 · 1/2.
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([[1.0, math.sqrt(3)], [1.0, -math.sqrt(3)], [-1.0, math.sqrt(3)]], dtype=torch.float64)
    inputs = x, weights, torch.tensor([0])
    loss = CurricularFace(scale=4, margin=math.pi / 6)
    state = loss.advance(*inputs, **loss.state(3))
    assert state["t"].item() == pytest.approx(0.005)
    logits = loss.logits(*inputs, t=torch.tensor(0.4))
    torch.testing.assert_close(logits, torch.tensor([[0.0, 4 * 0.5 * 0.9, -2.0]], dtype=torch.float64))


def test_the_state_gets_no_gradient_and_no_other_dtype():
    embeddings, weights, labels = problem(dtype=torch.float16)
    state = CurricularFace().advance(embeddings, weights, labels, t=torch.zeros(()))
    assert state["t"].dtype == torch.float32 and state["t"].shape == ()
