"""Test images of trained identities: some of each, held back from training."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from coalface.data.faceset import FaceSet


def hold_back(faces: FaceSet, images: int, rng_of: Callable[[str], np.random.Generator]) -> tuple[FaceSet, FaceSet]:
    """(the rest, test): of every identity with more than `images` images so many are drawn; the others keep all.

    Both number the identities as `faces` does, and keep its order of images. `rng_of` gives the generator of an
    identity by its name, so that the draw does not depend on who else is there.

    Raises ValueError where nobody has more than `images` images.
    """
    if images < 1:
        raise ValueError(f"{images} test images per identity is not allowed; give 1 or more")
    chosen = np.zeros(len(faces), dtype=bool)
    counts = faces.counts()
    places = np.split(np.argsort(faces.labels, kind="stable"), np.cumsum(counts)[:-1])
    for identity in np.flatnonzero(counts > images):
        chosen[rng_of(faces.names[identity]).permutation(places[identity])[:images]] = True
    if not chosen.any():
        raise ValueError(
            f"nobody has more than {images} images, the most are {int(counts.max(initial=0))}: take fewer, since an "
            "identity keeps at least one to train on"
        )
    return faces.select(np.flatnonzero(~chosen)), faces.select(np.flatnonzero(chosen))


def by_party(test: FaceSet, parties: Mapping[str, FaceSet]) -> dict[str, FaceSet]:
    """The test images of each party: those of its identities, which have the numbers that they have at the party."""
    places = {name: place for place, name in enumerate(test.names)}
    return {party: test.only([places[name] for name in faces.names]) for party, faces in parties.items()}
