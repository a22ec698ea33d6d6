"""Who masks with whom, and shares secrets with whom: a complete graph of few parties, a sparse one of many."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence

from coalface.privacy.secure_sums.context import SecureSumError, SumContext, joined

SECURITY, CORRECTNESS = 40, 20
"""σ and η: the graph fails to hide with a probability of at most 2^-σ, and to open with one of at most 2^-η."""


@functools.lru_cache(maxsize=64)
def choose(parties: int, dropouts: int, corrupt: int, complete: int = 100) -> tuple[int, int]:
    """The degree k of the graph and the threshold t of the shares.

    Of n parties c show the server what they know, and d drop out, neither chosen by the graph. In a ring of n places in
    random order, where each is a neighbour of the k/2 to its left and right (Harary's graph), k and t are the least for
    which (Bell et al. 2020, section 3, "good" graphs; H(n, m, k) is hypergeometric, draws of k from n with m marked):

    - n · P[H(n-1, c, k) ≥ t] ≤ 2^-(σ+1): no party has t corrupt neighbours, who could give its secrets away;
    - n (n-k-1) / 2 · C(c+d, k) / C(n, k) ≤ 2^-(σ+1), where C(a, b) are the ways to choose b of a: the honest who stay
      are connected, since two gaps of k/2 places in a row are needed to part a ring; so the server learns the sum of
      all of them, and of no part of them;
    - n · P[H(n-1, d, k) > k - t] ≤ 2^-η: all have t neighbours who stay, so the sum can be opened.

    They are computed in whole numbers, so that all parties find the same. To `complete` parties, and where no sparse
    graph will do, all are neighbours: k = n - 1 and t = n - d, which never fails.

    Examples:
        >>> choose(10, 3, 2), choose(1000, 330, 50), choose(1000, 330, 330)
        ((9, 7), (72, 24), (286, 150))
    """
    if parties > complete:
        for degree in range(2, parties - 1, 2):
            gaps = parties * (parties - degree - 1) * math.comb(corrupt + dropouts, degree)
            if gaps << SECURITY > math.comb(parties, degree):
                continue
            safe = _least_marked(parties, corrupt, degree, SECURITY + 1)
            stay = degree - _least_marked(parties, dropouts, degree, CORRECTNESS) + 1
            if max(safe, 2) <= stay:
                return degree, max(safe, 2)
    return parties - 1, parties - dropouts


def _least_marked(parties: int, marked: int, degree: int, bits: int) -> int:
    """The least t for which n · P[H(n-1, marked, degree) ≥ t] ≤ 2^-bits."""
    rest, count = parties - 1 - marked, min(marked, degree)
    limit = math.comb(parties - 1, degree) // (parties << bits)
    ways = tail = math.comb(marked, count) * math.comb(rest, degree - count)
    while tail <= limit:
        ways = ways * count * (rest - degree + count) // ((marked - count + 1) * (degree - count + 1))
        tail, count = tail + ways, count - 1
    return count + 1


class Roster:
    """The parties of a sum that have advertised keys, and the graph between them.

    The order of the ring follows from the context and the names, so that every party finds its neighbours itself.
    Raises SecureSumError where there are too few, or a name stands twice.
    """

    def __init__(self, context: SumContext, names: Sequence[str]) -> None:
        self.context, self.names = context, sorted(names)
        if len(set(names)) < len(names) or len(names) > context.asked:
            raise SecureSumError("roster", f"{len(names)} names, {len(set(names))} of them different")
        check_enough(context, len(names))
        self.digest = hashlib.sha256(joined(b"roster", context.digest, *self.names)).digest()
        dropouts = len(names) - context.least
        self.degree, self.threshold = choose(len(names), dropouts, context.corrupt, context.complete)
        self.points = {name: place for place, name in enumerate(self.names, 1)}
        """Where each party's shares lie on a polynomial."""
        ring = sorted(self.names, key=lambda name: hashlib.sha256(joined(b"ring", self.digest, name)).digest())
        self._ring, self._places = ring, {name: place for place, name in enumerate(ring)}

    def neighbours(self, name: str) -> list[str]:
        """A party's neighbours, sorted."""
        if self.degree == len(self.names) - 1:
            return [other for other in self.names if other != name]
        place, half = self._places[name], self.degree // 2
        return sorted(self._ring[(place + step) % len(self._ring)] for step in range(-half, half + 1) if step)

    def holders(self, name: str) -> list[str]:
        """Who holds shares of a party's secrets: its neighbours and itself, sorted."""
        return sorted([*self.neighbours(name), name])


@functools.lru_cache(maxsize=8)
def _roster(context: SumContext, names: tuple[str, ...]) -> Roster:
    return Roster(context, names)


def read_roster(context: SumContext, names: Sequence[str]) -> Roster:
    """The roster of these names; it is made once for several stages, or several parties in one process."""
    return _roster(context, tuple(names))


def check_enough(context: SumContext, count: int) -> None:
    """Raise SecureSumError where so few parties are left that no sum is opened."""
    if count < context.least:
        raise SecureSumError("too-few", f"{count} of {context.asked} parties are left, and {context.least} are needed")
