"""Rows of length one for tests of scores: of few cosines, of nearly one, of one alone, and of any."""

import numpy as np


def unit(rows):
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return (rows / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def coarse(rng, count, width=8):
    """Rows of length one, of few different cosines, all of them exact in any arithmetic: ties abound."""
    rows = np.zeros((count, width), np.float32)
    for row in rows:
        row[rng.permutation(width)[:4]] = rng.choice([-0.5, 0.5], 4)
    return rows


def crowded(rng, count, width=16):
    """Rows so close together that float32 cannot tell their cosines apart."""
    return unit(rng.normal(size=width) + 1e-4 * rng.normal(size=(count, width)))


def spread(rng, count, width=16):
    return unit(rng.normal(size=(count, width)))


def collapsed(rng, count, width=16):
    return np.repeat(unit(rng.normal(size=(1, width))), count, axis=0)
