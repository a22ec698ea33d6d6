"""Parameters and multiply-adds of single layers, by the textbook, for the sums in the tests of whole networks."""

from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    parameters: int
    multiply_adds: int


def conv(kernel, width, wider, side, groups=1, bias=False):
    """A convolution onto a map of side × side."""
    weights = kernel * kernel * (width // groups) * wider
    return Cost(weights + wider * bias, weights * side * side)


def linear(inputs, outputs, times=1):
    """A linear layer with bias, applied to `times` vectors."""
    return Cost(inputs * outputs + outputs, inputs * outputs * times)


def only(parameters):
    """Parameters whose arithmetic is not counted: norms and activations."""
    return Cost(parameters, 0)


def total(costs):
    costs = list(costs)
    return Cost(sum(c.parameters for c in costs), sum(c.multiply_adds for c in costs))
