"""A robust mean: every reply is kept, and a rule makes one of them when all are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coalface.core.method import Mean, Tensors
from coalface.engine.robust.aggregators import Aggregator
from coalface.engine.robust.rules import median
from coalface.engine.sums.running import FloatField, check_weights, server_weight
from coalface.engine.update_bounds import VARIANCE


@dataclass(eq=False)
class RobustMean:
    """The replies to one `Mean`, in memory one by one: n × d numbers, and up to twice as many again while the
    rule computes.

    Every party counts the same, whatever `by` says, but those that the server gives the weight 0 are left out:
    images and other numbers in a reply would be a lever for those who lie. Vectors are differences to what was sent,
    where all were sent the same under that name. BatchNorm's `statistics` go by themselves, by the median of each
    number: they have other units, and would decide every distance. With `over="all"` the result is scaled by the
    share of the server's weights that answered. `rng` draws buckets. Raises ValueError as `RunningMean` does.
    """

    mean: Mean
    aggregator: Aggregator
    everyone: Sequence[str]
    statistics: frozenset[str]
    rng: np.random.Generator

    def __post_init__(self) -> None:
        check_weights(self.mean)
        self._field = FloatField(self.mean)
        self._rows: list[Tensor] = []
        self._start: Tensor | None = None
        self._parties: list[str] = []

    def add(
        self,
        party: str,
        place: int,
        value: Tensor | Tensors,
        sent: Tensor | Tensors | None,
        reply: Any,
        weight: float | None = None,
    ) -> None:
        """Keep one reply's field, as `RunningMean.add` would add it; `weight` cannot be, as nothing is summed."""
        if weight is not None:
            raise ValueError("engine.aggregator needs the reply of each party; set engine.client_batch=0.")
        numbers, start = self._field.vector(party, value), self._field.start(party, sent)
        if not server_weight(self.mean, party) > 0:
            return
        if not self._parties:
            self._start = start
        elif start is not None and self._start is not None and not torch.equal(start, self._start):
            self._start = None  # each was sent its own
        self._parties.append(party)
        if numbers is not None:
            if start is not None and self.mean.of == "differences":
                self._rows.append(numbers - start)
            else:
                self._rows.append(numbers.clone())

    def result(self) -> Tensor | Tensors:
        """What the rule makes of the replies, in their dtype. Raises ValueError where they are too few for it."""
        whole = sum(server_weight(self.mean, party) for party in self.everyone)
        if not self._parties or not whole > 0:
            raise ValueError(f"Mean({self.mean.field!r}): no party that answers has a weight; give one that does.")
        if not self._rows:
            return self._field.value(None)
        rows = torch.stack(self._rows)
        self._rows.clear()
        start = self._start if self.mean.of == "values" else None
        if start is not None:
            rows -= start
        result = torch.empty(rows.shape[1], dtype=torch.float64)
        statistics = self._columns(self.statistics)
        if statistics.any():
            result[statistics] = median(rows[:, statistics])
            result[~statistics] = self.aggregator.combine(rows[:, ~statistics], self.rng)
        else:
            result = self.aggregator.combine(rows, self.rng)
        if start is not None:
            result += start
        if self.mean.over == "all":
            result *= sum(server_weight(self.mean, party) for party in self._parties) / whole
        variances = self._columns(frozenset(name for name in self.statistics if name.endswith(VARIANCE)))
        return self._field.value(torch.where(variances, result.clamp(min=0), result))  # rounding may pass 0

    def _columns(self, names: frozenset[str]) -> Tensor:
        """Which numbers of the vector are of tensors with these names."""
        below, looks = len(self.mean.field) + 1, self._field.looks
        sizes = torch.tensor([shape.numel() for shape, _ in looks.values()])
        return torch.tensor([path[below:] in names for path in looks]).repeat_interleave(sizes)
