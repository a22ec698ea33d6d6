"""Every reader takes what is sound, and refuses by its own errors what was found before and what is mutated anew."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from readers import READERS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from damage import mutated
from fuzz import kept
from odd_bytes import odd

BYTES = ("bin", "certificate", "cells-packed", "image", "node-objects", "onnx", "weights-torch")
"""Those whose sound inputs hold no text, so that few odd ones are made of them."""
TOLERANT = ("answers", "attack-cells", "cells", "opened")
"""Those that read their own lines, of which a later step takes what it needs."""
BLIND = 40
"""Mutations of each reader in the default suite."""


@pytest.mark.parametrize("name", READERS)
def test_what_is_sound_is_read(name: str) -> None:
    reader = READERS[name]
    assert reader.sound and all(map(reader.holds, reader.sound))


@pytest.mark.parametrize("name", READERS)
def test_what_was_found_once_is_read_or_refused(name: str) -> None:
    for data in kept(name):
        READERS[name].holds(data)


@pytest.mark.parametrize("name", READERS)
def test_what_is_mutated_is_read_or_refused(name: str) -> None:
    rng, reader = random.Random(name), READERS[name]
    inputs = [*reader.sound, *kept(name)]
    was_read = [reader.holds(mutated(rng.choice(inputs), rng)) for _ in range(BLIND)]
    assert not all(was_read)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name in READERS if name != "recipe"])  # its keys: test_included_recipes
def test_what_has_an_odd_value_is_read_or_refused(name: str) -> None:
    reader = READERS[name]
    was_read = [reader.holds(data) for sound in reader.sound for data in odd(sound)]
    assert not all(was_read) or name in TOLERANT
    assert len(was_read) > 20 * len(reader.sound) or name in BYTES
