from __future__ import annotations

import numpy as np

from coalface.core.method import generator
from coalface.data.faceset import FaceSet
from coalface.data.held_back import by_party, hide_identities, hold_back

COUNTS = (5, 2, 0, 3, 9)


def faces(names: str = "abcde") -> FaceSet:
    """Identities a to e with so many images as `COUNTS` says, one after another in turns; c has none."""
    pixels = np.zeros((sum(COUNTS), 2, 2, 1), dtype=np.uint8)
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(5), COUNTS))
    every = FaceSet(pixels, np.arange(len(labels)), labels, tuple("abcde"))
    return every.only(["abcde".index(name) for name in names])


def stream(name: str) -> np.random.Generator:
    return generator(7, name)


def test_so_many_are_drawn_of_those_with_more_and_the_others_keep_all() -> None:
    whole = faces()
    rest, test = hold_back(whole, 2, stream)
    assert test.counts().tolist() == [2, 0, 0, 2, 2] and rest.counts().tolist() == [3, 2, 0, 1, 7]
    assert sorted([*rest.rows, *test.rows]) == sorted(whole.rows) and rest.names == test.names == whole.names
    owner = dict(zip(whole.rows.tolist(), whole.labels.tolist(), strict=True))
    for part in (rest, test):
        assert [owner[row] for row in part.rows.tolist()] == part.labels.tolist()
        assert part.rows.tolist() == [row for row in whole.rows.tolist() if row in set(part.rows.tolist())]


def test_the_draw_of_an_identity_does_not_depend_on_the_others() -> None:
    def drawn(names: str) -> dict[str, list[int]]:
        test = hold_back(faces(names), 2, stream)[1]
        return {name: test.rows[test.labels == number].tolist() for number, name in enumerate(test.names)}

    whole = drawn("abcde")
    assert drawn("ea") == {name: whole[name] for name in "ea"}
    with_another_seed = hold_back(faces(), 2, lambda name: generator(8, name))[1]
    assert with_another_seed.rows.tolist() != hold_back(faces(), 2, stream)[1].rows.tolist()


def test_each_party_gets_those_of_its_identities_in_its_numbers() -> None:
    rest, test = hold_back(faces(), 2, stream)
    parties = {"one": rest.only([4, 1]), "two": rest.only([0, 3])}
    by_name = by_party(test, parties)
    for name, faces_of_party in by_name.items():
        assert faces_of_party.names == parties[name].names
    assert by_name["one"].counts().tolist() == [2, 0] and by_name["two"].counts().tolist() == [2, 2]
    assert sorted(by_name["two"].rows.tolist()) == sorted(test.only([0, 3]).rows.tolist())


def test_so_large_a_share_of_each_identity_is_told_without_it_and_its_place_tells_nothing() -> None:
    """⌊0.5 · n⌋ of 5, 2, 0, 3 and 9 images are 2, 1, 0, 1 and 4."""
    whole = faces()
    known, others = hide_identities(whole, 0.5, stream)
    assert known.counts().tolist() == [3, 1, 0, 2, 5] and known.names == whole.names
    assert sorted([*known.rows, *others.rows]) == sorted(whole.rows) and len(others) == 8
    assert others.names == () and set(others.labels.tolist()) == {-1} and others.files is None
    assert known.rows.tolist() == [row for row in whole.rows.tolist() if row in set(known.rows.tolist())]
    assert others.rows.tolist() != sorted(others.rows.tolist())
    owner = dict(zip(whole.rows.tolist(), whole.labels.tolist(), strict=True))
    assert [owner[row] for row in known.rows.tolist()] == known.labels.tolist()
    alone = hide_identities(faces("ea"), 0.5, stream)[1]  # the draw of an identity does not depend on the others
    assert {row for row in others.rows.tolist() if owner[row] in (0, 4)} == set(alone.rows.tolist())
    assert len(hide_identities(whole, 0.0, stream)[1]) == 0
