import itertools
from dataclasses import replace

import numpy as np
import pytest

from coalface.data.faceset import FaceSet
from coalface.data.partition import (
    by_domain,
    by_shares,
    check_disjoint,
    dirichlet,
    equal,
    first_images,
    hold_out,
    one_identity,
)


def faces_of(counts: list[int], seed: int = 0) -> FaceSet:
    """Identities `id0`, `id1`, … with so many images each, in mixed order; the pixel tells the identity."""
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    pixels = labels.astype(np.uint8).reshape(-1, 1, 1, 1)
    return FaceSet(pixels, np.arange(len(labels)), labels, tuple(f"id{i}" for i in range(len(counts))))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def all_partitions(faces: FaceSet) -> list[dict[str, FaceSet]]:
    domained = replace(faces, domains=faces.labels % 2)
    return [
        equal(faces, 4, rng()),
        one_identity(faces),
        dirichlet(faces, 4, 0.3, rng()),
        by_domain(domained, ["street", "studio"]),
        equal(domained, 3, rng()),
    ]


def test_every_partition_deals_every_image_once_under_its_own_name() -> None:
    faces = faces_of([3, 1, 4, 1, 5, 9, 2, 6, 5])
    for parties in all_partitions(faces):
        assert list(parties) == sorted(parties)
        rows = np.concatenate([view.rows for view in parties.values()])
        assert sorted(rows.tolist()) == list(range(len(faces)))
        for view in parties.values():
            assert view.pixels is faces.pixels
            names = [view.names[label] for label in view.labels]
            assert names == [f"id{pixel}" for pixel in view.take(np.arange(len(view)))[:, 0, 0, 0]]
            assert view.counts().min() > 0
            if view.domains is not None:
                assert (view.domains == view.take(np.arange(len(view)))[:, 0, 0, 0] % 2).all()
            assert (np.diff(view.rows) > 0).all()  # images keep their order
        for a, b in itertools.combinations(parties.values(), 2):
            check_disjoint(a, b)


def test_the_generator_decides_who_goes_where() -> None:
    faces = faces_of([1] * 30)

    def names(seed: int, alpha: float | None = None) -> list[tuple[str, ...]]:
        dealt = equal(faces, 3, rng(seed)) if alpha is None else dirichlet(faces, 3, alpha, rng(seed))
        return [view.names for view in dealt.values()]

    assert names(1) == names(1) != names(2)
    assert names(1, 0.5) == names(1, 0.5) != names(2, 0.5)


def test_equal_shares_have_padded_names() -> None:
    dealt = equal(faces_of([1] * 23), 5, rng())
    assert sorted(len(view.names) for view in dealt.values()) == [4, 4, 5, 5, 5]
    assert list(equal(faces_of([1] * 4), 4, rng())) == ["silo-00", "silo-01", "silo-02", "silo-03"]
    devices = list(one_identity(faces_of([1] * 1001)))
    assert (devices[0], devices[7], devices[-1]) == ("device-0000", "device-0007", "device-1000")


def test_dirichlet_sizes_follow_the_shares() -> None:
    """By hand: 4 silos, 24 identities; the shares of the same generator, times 20, rounded to a sum of 20."""
    shares = rng(3).dirichlet([0.5] * 4) * 20
    sizes = np.array([len(view.names) for view in dirichlet(faces_of([1] * 24), 4, 0.5, rng(3)).values()])
    assert sizes.sum() == 24
    assert (np.abs(sizes - 1 - shares) < 1).all()
    rounded_up = (sizes - 1) > shares
    remainders = shares - np.floor(shares)
    assert remainders[rounded_up].min() > remainders[~rounded_up].max()


@pytest.mark.parametrize("parties", [0, -1, 4])
def test_too_many_or_no_parties_are_refused(parties: int) -> None:
    reason = rf"{parties} parties cannot each have one of 3 identities: choose between 1 and 3 parties"
    with pytest.raises(ValueError, match=reason):
        equal(faces_of([1, 2, 3]), parties, rng())
    with pytest.raises(ValueError, match=reason):
        dirichlet(faces_of([1, 2, 3]), parties, 1.0, rng())
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="give a number above 0"):
            dirichlet(faces_of([1, 2, 3]), 2, alpha, rng())


def test_by_domain_gives_each_domain_its_images() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    domains = np.array([1, 0, 1, 1, 0, 0])
    faces = FaceSet(np.zeros((6, 1, 1, 1), np.uint8), np.arange(6), labels, ("a", "b", "c"), domains=domains)
    parties = by_domain(faces, ["studio", "night"])
    assert list(parties) == ["night", "studio"]
    assert parties["studio"].rows.tolist() == [1, 4, 5]
    assert parties["studio"].names == ("a", "c")
    assert parties["studio"].labels.tolist() == [0, 1, 1]
    assert parties["night"].rows.tolist() == [0, 2, 3]
    assert parties["night"].names == ("a", "b")


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], ["a", "a"]])
def test_domain_names_must_match_the_domains(names: list[str]) -> None:
    faces = faces_of([1, 1])
    with pytest.raises(ValueError, match=r"images of the domains \[0, 1\] and was given the names .*: give one name"):
        by_domain(replace(faces, domains=faces.labels), names)
    with pytest.raises(
        ValueError, match="has no domains, so it cannot be partitioned by domain; use equal or dirichlet"
    ):
        by_domain(faces, names)


def test_hold_out_is_disjoint_and_complete() -> None:
    faces = faces_of([2, 3, 0, 1, 2, 2])
    rest, held = hold_out(faces, rng(4), identities=2)
    assert len(held.names) == 2
    assert sorted(rest.names + held.names) == ["id0", "id1", "id3", "id4", "id5"]
    assert list(held.names) == sorted(held.names)
    assert len(rest) + len(held) == len(faces)
    check_disjoint(rest, held)
    assert hold_out(faces, rng(4), identities=2)[1].names == held.names
    assert len({hold_out(faces, rng(seed), identities=2)[1].names for seed in range(20)}) > 3


@pytest.mark.parametrize("identities", [3, 0])
def test_an_impossible_hold_out_is_refused(identities: int) -> None:
    with pytest.raises(ValueError, match=f"holding out {identities} of 3 identities .*; choose between 1 and 2"):
        hold_out(faces_of([1, 1, 1]), rng(), identities=identities)


def test_shared_identities_are_named() -> None:
    a, b = faces_of([1, 0, 2, 1]), faces_of([1, 1, 1])
    with pytest.raises(
        ValueError, match=r"the two sets share 2 identities \(id0, id2\): take them out of one with wit"
    ):
        check_disjoint(a, b)
    with pytest.raises(ValueError, match=r"share 8 identities \(id0, id1, id2, id3, id4, …\)"):
        check_disjoint(faces_of([1] * 8), faces_of([1] * 8))
    with pytest.raises(ValueError, match=r"share 1 identity \(id2\)"):
        check_disjoint(a, faces_of([0, 0, 1]))
    check_disjoint(a, faces_of([0, 5]))


def test_shares_of_identities_go_to_named_silos() -> None:
    """Of 11 identities 0.6 : 0.3 : 0.1 are 6.6, 3.3 and 1.1, rounded by the largest remainders to 7, 3 and 1."""
    faces = faces_of([2, 0, *[1] * 10])
    dealt = by_shares(faces, {"small": 0.1, "large": 0.6, "medium": 0.3}, rng(4))
    assert {name: len(silo.names) for name, silo in dealt.items()} == {"large": 7, "medium": 3, "small": 1}
    assert list(dealt) == sorted(dealt)
    names = [name for silo in dealt.values() for name in silo.names]
    assert sorted(names) == sorted(set(faces.names) - {"id1"})
    again = by_shares(faces, {"large": 6, "medium": 3, "small": 1}, rng(4))
    assert all(again[name].names == silo.names for name, silo in dealt.items())


def test_the_first_images_of_each_identity_are_taken_in_their_order() -> None:
    faces = faces_of([4, 0, 1, 3], seed=2)
    few = first_images(faces, 2)
    naive: list[int] = []
    for place, label in enumerate(faces.labels.tolist()):
        if sum(faces.labels[: place + 1] == label) <= 2:
            naive.append(place)
    assert few.rows.tolist() == faces.rows[naive].tolist()
    assert few.names == faces.names
    assert few.counts().tolist() == [2, 0, 1, 2]
