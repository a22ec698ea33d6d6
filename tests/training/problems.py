"""Random batches for the tests of losses, and what their naive loops share: plain numbers, one pair at a time."""

from __future__ import annotations

import math

import torch


def problem(n=12, k=7, d=16, seed=0, dtype=torch.float64, rows=None):
    """(n, d) embeddings of lengths about √d, (rows or k, d) class embeddings, (n,) labels below k."""
    g = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, d, generator=g, dtype=torch.float64).to(dtype)
    weights = torch.randn(rows or k, d, generator=g, dtype=torch.float64).to(dtype)
    return embeddings, weights, torch.randint(k, (n,), generator=g)


def length(x):
    return math.sqrt(sum(a * a for a in x))


def cosine(x, w):
    return sum(a * b for a, b in zip(x, w, strict=True)) / length(x) / length(w)


def softplus(x):
    return max(x, 0) + math.log1p(math.exp(-abs(x)))


def cross_entropy(logits, own):
    top = max(logits)
    return math.log(sum(math.exp(v - top) for v in logits)) + top - logits[own]


def turned(cos, margin):
    """ArcFace's f."""
    angle = math.acos(cos)
    if angle < math.pi - margin:
        return math.cos(angle + margin)
    return cos - margin * math.sin(math.pi - margin)


def curricularface(loss, x, rows, y, batch, t=0.0):
    cosine_list = [cosine(x, w) for w in rows]
    target = turned(cosine_list[y], loss.margin)
    scores = [c * (t + c) if c > target else c for c in cosine_list]
    scores[y] = target
    return cross_entropy([loss.scale * c for c in scores], y)


def check_against(oracle, loss, embeddings, weights, labels):
    """Value and gradients of a loss are those of one of pytorch-metric-learning's, at the same class embeddings."""
    oracle.W.data = weights.T.clone()
    ours, theirs = (embeddings.clone().requires_grad_() for _ in range(2))
    weights = weights.clone().requires_grad_()
    value, expected = loss(ours, weights, labels), oracle(theirs, labels)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights.grad, oracle.W.grad.T, rtol=1e-4, atol=1e-5)
