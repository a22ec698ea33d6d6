"""Running weighted means, in party order within fixed blocks, in the memory of one accumulator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coalface.core.codec import by_path, joined
from coalface.core.method import Mean, Tensors

_CACHED = 1 << 15
"""Numbers that are added at a time, so that torch's copy of them in float64 stays in a cache."""


def heaviest(images: Sequence[int], share: float) -> float:
    """W, the most that a party may weigh so that min(m_p, W) is at most `share` of their sum, over the m_p of `images`.

    It is the largest such W. Where 1 / share is more than there are parties no W is, and the least m_p makes all equal.

    >>> heaviest([10, 20, 30, 10**15], 0.5), heaviest([10, 20, 30], 0.5), heaviest([1, 5, 9], 0.2)
    (60.0, 30.0, 1.0)
    """
    ordered, total = sorted(images, reverse=True), sum(images)
    for bound, largest in enumerate(ordered):  # so many before it are brought to W
        if largest * (1 - share * bound) <= share * total:  # it is within the share if it is W itself
            return max(float(largest), share * total / (1 - share * bound)) if 0 < share * bound < 1 else float(largest)
        total -= largest
    return float(ordered[-1])


def server_weight(mean: Mean, party: str) -> float:
    """What the server lets a party weigh, where replies do not say it: 1 where it says nothing either."""
    return float(mean.by.get(party, 0.0)) if isinstance(mean.by, Mapping) else 1.0


def check_weights(mean: Mean) -> None:
    """Raise ValueError where the server's own weights are not finite and ≥ 0."""
    if isinstance(mean.by, Mapping) and (
        bad := {p: w for p, w in mean.by.items() if not (math.isfinite(w) and w >= 0)}
    ):
        raise ValueError(f"Mean({mean.field!r}): weights must be finite and not negative; got {bad}.")


class FloatField:
    """The floats of one field as a vector, of replies that must all have the same tensors. Counters are left out."""

    def __init__(self, mean: Mean) -> None:
        self._mean = mean
        self._seen = False
        self.looks: dict[str, tuple[torch.Size, torch.dtype]] = {}
        """Of each tensor; what was asked for alone is called as the field."""

    def vector(self, party: str, value: Tensor | Tensors) -> Tensor | None:
        """The numbers of a party's reply, a view where they lie so; None where it has no floats.

        Raises ValueError where its tensors are others than those of the parties before it.
        """
        field = self._mean.field
        tensors = {n: t for n, t in by_path(field, value).items() if t.is_floating_point()}
        looks = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        if not self._seen:
            self.looks, self._seen = looks, True
        if looks != self.looks:  # each reply looks like what that party was sent
            raise ValueError(
                f"Mean({field!r}): {party} was sent other tensors (names, shapes or dtypes) than the parties "
                "before it, and so sent back others. Ask for them in calls of their own, or do not average them."
            )
        return _flat(tensors.values()) if tensors else None

    def start(self, party: str, sent: Tensor | Tensors | None) -> Tensor | None:
        """The numbers that a party was sent under the same names; None where nothing is needed of them, and sent.

        Raises ValueError where there are none and the mean is of differences.
        """
        if sent is not None:
            start = by_path(self._mean.field, sent)
            return _flat(start[name] for name in self.looks) if self.looks else None
        if self._mean.of == "differences":
            raise ValueError(f"Mean({self._mean.field!r}, of='differences'): {party} was sent no {self._mean.field}.")
        return None

    def value(self, numbers: Tensor | None) -> Tensor | Tensors:
        """A vector in the form and in the types of the replies."""
        field = self._mean.field
        parts = [] if numbers is None else numbers.split([shape.numel() for shape, _ in self.looks.values()])
        tensors = {
            path: flat.view(shape).to(dtype, copy=True)
            for (path, (shape, dtype)), flat in zip(self.looks.items(), parts, strict=True)
        }
        return (
            tensors[field] if list(tensors) == [field] else {path[len(field) + 1 :]: tensors[path] for path in tensors}
        )


class RunningMean:
    """The running sums of one `Mean`.

    Replies are added in party order. Sums are float64; the sum of each block of `block` asked parties is closed before
    the next begins, so the result depends on the order of the parties and on the block size, never on who answered
    first. `everyone` are all parties of the step's role; a weight that a reply says counts up to `heaviest`.
    Raises ValueError where the server's own weights are not finite and ≥ 0.
    """

    def __init__(self, mean: Mean, *, block: int, everyone: Sequence[str], heaviest: float = math.inf) -> None:
        self.mean, self._heaviest = mean, heaviest
        check_weights(mean)
        self._field = FloatField(mean)
        self._block = block
        self._current = 0
        self._partial: Tensor | None = None
        """The numbers of all tensors of the field, one after the other."""
        self._total: Tensor | None = None
        self._weight = sum(server_weight(mean, p) for p in everyone) if mean.over == "all" else 0.0

    def add(
        self,
        party: str,
        place: int,
        value: Tensor | Tensors,
        sent: Tensor | Tensors | None,
        reply: Any,
        weight: float | None = None,
    ) -> None:
        """Add one reply's field; `place` is the party's place among those asked, `sent` what differences are from.

        With `weight` it is the mean over some parties from that place on, who have that weight together.
        """
        by = self.mean.by
        if weight is None:
            server = server_weight(self.mean, party)
            weight = min(float(getattr(reply, by)), self._heaviest) if isinstance(by, str) else server
        if place // self._block != self._current:
            self._close()
            self._current = place // self._block
        change = self._field.vector(party, value)
        start = self._field.start(party, sent) if self.mean.of == "differences" else None
        if change is not None:
            if start is not None:
                change = change.double() - start.double()
            if self._partial is None:
                self._partial = torch.zeros_like(change, dtype=torch.float64)
            for sums, numbers in zip(self._partial.split(_CACHED), change.split(_CACHED), strict=True):
                sums.add_(numbers, alpha=weight)
        if self.mean.over == "arrived":
            self._weight += weight

    def _close(self) -> None:
        if self._partial is None:
            return
        if self._total is None:
            self._total = self._partial.clone()
        else:
            self._total.add_(self._partial)
        self._partial.zero_()

    def total(self) -> Tensor:
        """The sums, float64, one after the other: what is added to them here is added to the mean."""
        self._close()
        return torch.zeros(0, dtype=torch.float64) if self._total is None else self._total

    def result(self, weight: float | None = None) -> Tensor | Tensors:
        """The mean, in the dtype of the replies; with `weight` it is divided by that in place of the weights' sum.

        Raises ValueError where the weights add up to nothing.
        """
        self._close()
        weight = self._weight if weight is None else weight
        if not weight > 0:
            raise ValueError(
                f"Mean({self.mean.field!r}) has a total weight of {weight}: give a party that answers a weight."
            )
        return self._field.value(None if self._total is None else self._total / weight)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """Their numbers, one after the other; of several types in float64."""
    alike = list(tensors)
    if len({tensor.dtype for tensor in alike}) > 1:
        alike = [tensor.double() for tensor in alike]
    return joined(alike)
