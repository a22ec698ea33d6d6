"""Running weighted means, in party order within fixed blocks, in the memory of one accumulator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coalface.core.codec import Refused
from coalface.core.method import Mean, Tensors


def heaviest(images: Sequence[int], share: float) -> float:
    """W, the most that a party may weigh so that min(m_p, W) is at most `share` of their sum, over the m_p of `images`.

    It is the largest such W. Where 1 / share is more than there are parties no W is, and the least m_p makes all equal.

    >>> heaviest([10, 20, 30, 10**15], 0.5), heaviest([10, 20, 30], 0.5), heaviest([1, 5, 9], 0.2)
    (60.0, 30.0, 1.0)
    """
    ordered, rest = sorted(images, reverse=True), sum(images)
    for bound, largest in enumerate(ordered):  # so many before it are brought to W
        if largest * (1 - share * bound) <= share * rest:  # it is within the share if it is W itself
            return max(float(largest), share * rest / (1 - share * bound)) if 0 < share * bound < 1 else float(largest)
        rest -= largest
    return float(ordered[-1])


class RunningMean:
    """The running sums of one `Mean`.

    Replies are added in party order. Sums are float64; the sum of each block of `block` asked parties is closed before
    the next begins, so the result depends on the order of the parties and on the block size, never on who answered
    first. `everyone` are all parties of the step's role; a weight that a reply says counts up to `heaviest`.
    Raises ValueError where the server's own weights are not finite and ≥ 0.
    """

    def __init__(self, mean: Mean, *, block: int, everyone: Sequence[str], heaviest: float = math.inf) -> None:
        self.mean, self._heaviest = mean, heaviest
        if isinstance(mean.by, Mapping) and (
            bad := {p: w for p, w in mean.by.items() if not (math.isfinite(w) and w >= 0)}
        ):
            raise ValueError(f"Mean({mean.field!r}): weights must be finite and not negative; got {bad}.")
        self._block = block
        self._current = 0
        self._partial: Tensors = {}
        self._total: Tensors = {}
        self._looks: dict[str, tuple[torch.Size, torch.dtype]] | None = None
        self._weight = sum(self._server_weight(p) for p in everyone) if mean.over == "all" else 0.0

    def _server_weight(self, party: str) -> float:
        return float(self.mean.by.get(party, 0.0)) if isinstance(self.mean.by, Mapping) else 1.0

    def check(self, reply: Any, limit: int) -> None:
        """Raise Refused where the field is empty, or the weight that a reply claims is not within 0 < w ≤ limit."""
        if getattr(reply, self.mean.field) is None:
            raise Refused(f"{self.mean.field} is empty")
        if isinstance(self.mean.by, str) and not 0 < (claimed := getattr(reply, self.mean.by)) <= limit:
            raise Refused(f"{self.mean.by} is {claimed}; this party can have 1 to {limit}")

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
            said = min(float(getattr(reply, by)), self._heaviest) if isinstance(by, str) else None
            weight = self._server_weight(party) if said is None else said
        if place // self._block != self._current:
            self._close()
            self._current = place // self._block
        if self.mean.of == "differences" and sent is None:
            raise ValueError(f"Mean({self.mean.field!r}, of='differences'): {party} was sent no {self.mean.field}.")
        before = _named(sent) if self.mean.of == "differences" else None
        tensors = {n: t for n, t in _named(value).items() if t.is_floating_point()}  # counters are never aggregated
        looks = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        if self._looks is None:
            self._looks = looks
        if looks != self._looks:  # each reply looks like what that party was sent
            raise ValueError(
                f"Mean({self.mean.field!r}): {party} was sent other tensors (names, shapes or dtypes) than the parties "
                "before it, and so sent back others. Ask for them in calls of their own, or do not average them."
            )
        for name, tensor in tensors.items():
            if name not in self._partial:
                self._partial[name] = torch.zeros(tensor.shape, dtype=torch.float64, device=tensor.device)
            change = tensor if before is None else tensor.double() - before[name].double()
            self._partial[name].add_(change, alpha=weight)
        if self.mean.over == "arrived":
            self._weight += weight

    def _close(self) -> None:
        for name, partial in self._partial.items():
            if name in self._total:
                self._total[name].add_(partial)
            else:
                self._total[name] = partial.clone()
            partial.zero_()

    def result(self) -> Tensor | Tensors:
        """The mean, in the dtype of the replies. Raises ValueError where the weights add up to nothing."""
        self._close()
        if not self._weight > 0:
            raise ValueError(
                f"Mean({self.mean.field!r}) has a total weight of {self._weight}: give a party that answers a weight."
            )
        looks = self._looks or {}
        mean = {name: (total / self._weight).to(looks[name][1]) for name, total in self._total.items()}
        return mean[""] if list(mean) == [""] else mean


def _named(value: Tensor | Tensors | None) -> Tensors:
    return {"": value} if isinstance(value, Tensor) else value or {}
