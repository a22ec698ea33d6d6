"""Inner products of rows in float64, defined to the last bit: the same on every device, at any threads, in any blocks.

T(x, y): the d products, with zeros up to a power of two, then the second half added to the first until one number is
left. Each step of it rounds alone; T(x, y) = T(y, x). Of float32 rows the products are exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK = 2**18
"""Numbers that are widened to float64 at a time."""


def inner(left: Tensor, right: Tensor) -> Tensor:
    """(n,) T of the n pairs of rows of (n, d) `left` and `right`, or of every row and the only one of `right`."""
    count, d = left.shape
    found = left.new_empty(count, dtype=torch.float64)
    width = 1 << max(0, d - 1).bit_length()
    for part in slices(count, max(1, CHUNK // width)):
        products = left[part].double() * (right[part] if len(right) > 1 else right).double()
        if not d:
            products = products.new_zeros(len(products), 1)
        while products.shape[1] > 1:
            half = 1 << (products.shape[1] - 1).bit_length() - 1
            # The missing entries up to a power of two are zeros, which alter nothing: they are not added.
            products, rest = products[:, :half].contiguous(), products[:, half:]
            products[:, : rest.shape[1]] += rest
        found[part] = products[:, 0]
    return found


def inner_of(rows: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """(n,) T of the pairs of rows that `left` and `right`, (n,) each, name."""
    found = rows.new_empty(len(left), dtype=torch.float64)
    for part in slices(len(left), few(rows)):
        found[part] = inner(rows[left[part]], rows[right[part]])
    return found


def few(rows: Tensor) -> int:
    """How many rows are widened at a time."""
    return max(1, CHUNK // max(1, rows.shape[1]))


def slices(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
