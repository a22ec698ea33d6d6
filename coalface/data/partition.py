"""The partition of the identities of a face set over parties, and what is held out to evaluate on.

A partition gives `{party: FaceSet}`. Its keys are in registration order, which is their sorted order. All the views
share the pixel store of the set they were cut from, and each numbers its identities from 0. Identities of which the
set holds no image go to nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coalface.core.text import first_few, several
from coalface.data.faceset import FaceSet


def equal(faces: FaceSet, parties: int, rng: np.random.Generator) -> dict[str, FaceSet]:
    """Deal shuffled identities to `parties` silos, as equally as can be: their numbers differ by at most one."""
    present = _enough(faces, parties)
    return _deal(faces, np.array_split(rng.permutation(present), parties), "silo")


def one_identity(faces: FaceSet) -> dict[str, FaceSet]:
    """One device per identity, in the order of the identities; the device's name does not tell whose it is."""
    present = np.flatnonzero(faces.counts())
    return _deal(faces, [present[i : i + 1] for i in range(len(present))], "device")


def by_domain(faces: FaceSet, domain_names: Sequence[str]) -> dict[str, FaceSet]:
    """One party per domain, named as the domain; `domain_names[d]` names domain number d.

    An identity seen in two domains is with two parties, which hold different images of it.

    Raises ValueError if the set has no domains, or if names and domains do not match one to one.
    """
    if faces.domains is None:
        raise ValueError("this face set has no domains, so it cannot be partitioned by domain; use equal or dirichlet")
    domains = np.unique(faces.domains)
    if len(set(domain_names)) != len(domain_names) or not np.array_equal(domains, np.arange(len(domain_names))):
        raise ValueError(
            f"the face set has images of the domains {domains.tolist()} and was given the names {list(domain_names)}: "
            "give one name, each different, for every domain from 0 on"
        )
    parties = {}
    for name in sorted(domain_names):
        view = faces.select(np.flatnonzero(faces.domains == domain_names.index(name)))
        parties[name] = view.only(np.flatnonzero(view.counts()))
    return parties


def dirichlet(faces: FaceSet, parties: int, alpha: float, rng: np.random.Generator) -> dict[str, FaceSet]:
    """Deal shuffled identities to silos of unequal size: one to each, the rest by Dirichlet(α, …, α) shares.

    With N identities and K silos, silo k gets 1 + r_k identities, where Σ r_k = N − K and r_k is q_k (N − K) rounded
    down, or up for the silos of the largest remainders; q ~ Dirichlet(α). α (`alpha`) of 100 is nearly equal, α of
    0.1 gives nearly everything to a few silos.
    """
    present = _enough(faces, parties)
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha is {alpha}; give a number above 0")
    sizes = _rounded(rng.dirichlet(np.full(parties, alpha)) * (len(present) - parties))
    return _deal(faces, np.split(rng.permutation(present), np.cumsum(1 + sizes)[:-1]), "silo")


def by_shares(faces: FaceSet, shares_of: Mapping[str, float], rng: np.random.Generator) -> dict[str, FaceSet]:
    """Deal shuffled identities to named silos in proportion to `shares_of`, rounded by the largest remainders.

    Raises ValueError for shares that are not above 0, or where a silo would get nobody.
    """
    names = sorted(shares_of)
    if bad := [name for name in names if not 0 < shares_of[name] < np.inf]:
        raise ValueError(f"the share of {bad[0]} is {shares_of[bad[0]]}: give a number above 0")
    present = _enough(faces, len(names))
    sizes = _rounded(len(present) * np.array([shares_of[name] for name in names]) / sum(shares_of.values()))
    if (sizes == 0).any():
        raise ValueError(f"{names[int(np.argmin(sizes))]} would get none of {len(present)} identities; raise its share")
    parts = np.split(rng.permutation(present), np.cumsum(sizes)[:-1])
    return {name: faces.only(part) for name, part in zip(names, parts, strict=True)}


def _rounded(shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Shares that add up to a whole number, rounded down, or up for those of the largest remainders."""
    sizes = np.floor(shares).astype(np.int64)
    missing = round(float(shares.sum())) - int(sizes.sum())
    sizes[np.argsort(sizes - shares, kind="stable")[:missing]] += 1
    return sizes


def first_images(faces: FaceSet, most: int) -> FaceSet:
    """At most so many images of each identity, the first in the order of the set; the identities keep their numbers."""
    order = np.argsort(faces.labels, kind="stable")
    ordered = faces.labels[order]
    place = np.arange(len(order)) - np.searchsorted(ordered, ordered)  # among the images of its identity
    return faces.select(np.sort(order[place < most]))


def hold_out(faces: FaceSet, rng: np.random.Generator, *, identities: int) -> tuple[FaceSet, FaceSet]:
    """Split by identity into (rest, held): so many `identities`, drawn, are held; both keep their order.

    Raises ValueError where one of the sets would be empty.
    """
    present = np.flatnonzero(faces.counts())
    if not 0 < identities < len(present):
        raise ValueError(
            f"holding out {identities} of {len(present)} identities leaves one side empty; "
            f"choose between 1 and {len(present) - 1}"
        )
    chosen = np.zeros(len(faces.names), dtype=bool)
    chosen[rng.permutation(present)[:identities]] = True
    return faces.only(present[~chosen[present]]), faces.only(present[chosen[present]])


def shares(counts: Sequence[int], amount: int) -> list[int]:
    """How many of `amount` fall to each of several parts, in proportion to their counts.

    Part k gets amount · n_k / N rounded down, or up for the largest remainders; a part is not emptied while another has
    more than one left.

    >>> shares([400, 40], 110), shares([1, 9], 5)
    ([100, 10], [0, 5])
    """
    total = sum(counts)
    parts = [amount * count // total for count in counts]

    def cost(part: int) -> tuple[int, int]:
        remaining = counts[part] - parts[part] - 1  # 0: it would be emptied; −1: it is
        return max(0, 1 - remaining), parts[part] * total - amount * counts[part]

    while sum(parts) < amount:
        parts[min(range(len(counts)), key=cost)] += 1
    return parts


def without(faces: FaceSet, names: Collection[str]) -> FaceSet:
    """The identities that are not among `names`; a name that the set does not hold changes nothing."""
    excluded = frozenset(names)
    return faces.only([number for number, name in enumerate(faces.names) if name not in excluded])


def part_of(name: str) -> str:
    """Of a joined source, the part whose identity this is."""
    return name.partition("/")[0]


def identities_of(faces: FaceSet, part: str) -> NDArray[np.int64]:
    """The identities of a part of a joined source that have images."""
    belongs = np.array([part_of(name) == part for name in faces.names], dtype=bool)
    return np.flatnonzero(belongs & (faces.counts() > 0))


def check_disjoint(a: FaceSet, b: FaceSet) -> None:
    """Raise ValueError if both sets hold images of the same identity, told by name."""
    shared = sorted(set.intersection(*({s.names[i] for i in np.flatnonzero(s.counts())} for s in (a, b))))
    if shared:
        count = several(len(shared), "identity", "identities")
        raise ValueError(f"the two sets share {count} ({first_few(shared, 5)}): take them out of one with without()")


def _enough(faces: FaceSet, parties: int) -> NDArray[np.int64]:
    """The identities that have images; ValueError unless every party can have one."""
    present = np.flatnonzero(faces.counts())
    if not 1 <= parties <= len(present):
        identities = several(len(present), "identity", "identities")
        remedy = "choose 1 party" if len(present) == 1 else f"choose between 1 and {len(present)} parties"
        raise ValueError(f"{parties} parties cannot each have one of {identities}: {remedy}")
    return present


def _deal(faces: FaceSet, groups: Sequence[NDArray[np.int64]], kind: str) -> dict[str, FaceSet]:
    """Group g of identities becomes party g, each numbered in its group's order; one sort serves all parties."""
    party = np.full(len(faces.names), len(groups), dtype=np.int64)
    number = np.zeros(len(faces.names), dtype=np.int64)
    for g, group in enumerate(groups):
        party[group] = g
        number[group] = np.arange(len(group))
    owner = party[faces.labels]
    order = np.argsort(owner, kind="stable")
    rows, labels = faces.rows[order], number[faces.labels[order]]
    domains = None if faces.domains is None else faces.domains[order]
    bounds = np.searchsorted(owner[order], np.arange(len(groups) + 1))
    return {
        name: replace(
            faces,
            rows=rows[bounds[g] : bounds[g + 1]],
            labels=labels[bounds[g] : bounds[g + 1]],
            names=tuple(faces.names[i] for i in group),
            domains=None if domains is None else domains[bounds[g] : bounds[g + 1]],
        )
        for g, (name, group) in enumerate(zip(party_names(kind, len(groups)), groups, strict=True))
    }


def party_names(kind: str, count: int) -> list[str]:
    """The names of parties that a partition numbers: KIND-00, KIND-01 and so on."""
    width = max(2, len(str(count - 1)))
    return [f"{kind}-{number:0{width}d}" for number in range(count)]
