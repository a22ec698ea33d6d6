import math
import statistics

import numpy as np
import pytest
import torch
from problems import cosine, cross_entropy, problem, turned

from coalface.training.losses.elasticface import ElasticFace


@pytest.mark.parametrize("plus", [False, True])
def test_a_naive_loop_over_margins_gives_the_same(plus):
    embeddings, weights, labels = problem(n=40, d=5)
    margins = ElasticFace(deviation=0.4).draw(40, np.random.default_rng(0))["margins"].double()
    batch = list(zip(embeddings.tolist(), labels.tolist(), strict=True))
    assigned = margins.tolist()
    if plus:
        nearest_first = sorted(range(40), key=lambda i: -cosine(batch[i][0], weights[labels[i]].tolist()))
        by_image = dict(zip(nearest_first, sorted(assigned), strict=True))
        assigned = [by_image[i] for i in range(40)]
    losses = []
    for (x, y), margin in zip(batch, assigned, strict=True):
        cosine_list = [cosine(x, w) for w in weights.tolist()]
        cosine_list[y] = turned(cosine_list[y], margin)
        losses.append(cross_entropy([30.0 * c for c in cosine_list], y))
    value = ElasticFace(scale=30.0, plus=plus)(embeddings, weights, labels, margins)
    assert value.item() == pytest.approx(statistics.mean(losses), rel=1e-12)


def test_hand_worked_numbers():
    # Images at 60° and at 30° from their class, which has margins of 15° and 30°: plus gives the far one 30°.
    embeddings = torch.tensor([[0.5, math.sqrt(0.75)], [math.sqrt(0.75), 0.5]], dtype=torch.float64)
    inputs = embeddings, torch.tensor([[2.0, 0.0]], dtype=torch.float64), torch.tensor([0, 0])
    margins = torch.tensor([math.pi / 12, math.pi / 6], dtype=torch.float64)
    for plus, angles in ((False, (75, 60)), (True, (90, 45))):
        logits = ElasticFace(scale=4, plus=plus).logits(*inputs, margins)[:, 0]
        assert logits.tolist() == pytest.approx([4 * math.cos(math.radians(a)) for a in angles], abs=1e-12)


def test_margins_are_normal_within_a_half_circle_and_the_same_of_the_same_generator():
    loss = ElasticFace(margin=0.5, deviation=0.05)
    margins = loss.draw(20_000, np.random.default_rng(3))["margins"]
    assert margins.shape == (20_000,)
    assert margins.mean().item() == pytest.approx(0.5, abs=0.002)
    assert margins.std().item() == pytest.approx(0.05, abs=0.002)
    assert torch.equal(margins, loss.draw(20_000, np.random.default_rng(3))["margins"])
    far = ElasticFace(deviation=50.0).draw(100, np.random.default_rng(3))["margins"].double()
    assert far.min() == 0 and far.max() == pytest.approx(math.pi)
