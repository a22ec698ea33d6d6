from __future__ import annotations

import numpy as np
import pytest

from coalface.data.joined import Joined
from coalface.data.readers.pack import cached_pack
from coalface.data.synthetic.generator import SyntheticFaces

FIRST = SyntheticFaces(2, 3, seed=1, size=32)
SECOND = SyntheticFaces(3, 2, seed=1, size=32, domains=("night",))


def test_identities_and_files_carry_the_name_of_their_part() -> None:
    joined = Joined({"day": FIRST, "night": SECOND})
    assert joined.names == (
        "day/s1-0000000",
        "day/s1-0000001",
        "night/s1-0000000",
        "night/s1-0000001",
        "night/s1-0000002",
    )
    assert joined.files[0] == "day/s1-0000000/0000.png" and joined.files[6] == "night/s1-0000000/0000.png"
    assert joined.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]
    assert joined.domain_numbers.tolist() == [0] * 6 + [1] * 6


def test_a_pack_of_it_keeps_names_labels_and_pixels() -> None:
    joined = Joined({"day": FIRST, "night": SECOND})
    faces = cached_pack(joined, size=32, grey=True)
    assert faces.names == joined.names and faces.labels.tolist() == joined.labels.tolist()
    apart = [*FIRST.images(size=32, grey=True), *SECOND.images(size=32, grey=True)]
    assert np.array_equal(faces.pixels, np.stack(apart))


def test_the_fingerprint_follows_names_and_contents() -> None:
    prints = {
        Joined({"a": FIRST, "b": SECOND}).fingerprint(),
        Joined({"a": FIRST, "c": SECOND}).fingerprint(),
        Joined({"b": SECOND, "a": FIRST}).fingerprint(),
        Joined({"a": FIRST, "b": FIRST}).fingerprint(),
        Joined({"a": FIRST}).fingerprint(),
        FIRST.fingerprint(),
    }
    assert len(prints) == 6
    assert Joined({"a": FIRST}).fingerprint() == Joined({"a": SyntheticFaces(2, 3, seed=1, size=32)}).fingerprint()


@pytest.mark.parametrize("name", ["", "a/b", "..", ".a", "a b", "-a", "é", "x" * 101])
def test_a_name_that_cannot_be_a_party_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a party"):
        Joined({name: FIRST})
    with pytest.raises(ValueError, match="at least one part"):
        Joined({})
