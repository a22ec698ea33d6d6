"""Some images of each identity by a draw: held back from training to test on, or told without their identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coalface.data.faceset import FaceSet


def hold_back(faces: FaceSet, images: int, rng_of: Callable[[str], np.random.Generator]) -> tuple[FaceSet, FaceSet]:
    """(the rest, test): of every identity with more than `images` images so many are drawn; the others keep all.

    Both number the identities as `faces` does, and keep its order of images. `rng_of` gives the generator of an
    identity by its name, so that the draw does not depend on who else is there.

    Raises ValueError where nobody has more than `images` images.
    """
    if images < 1:
        raise ValueError(f"{images} test images per identity is not allowed; give 1 or more")
    counts = faces.counts()
    chosen = _drawn(faces, np.where(counts > images, images, 0), rng_of)
    if not chosen.any():
        raise ValueError(
            f"nobody has more than {images} images, the most are {int(counts.max(initial=0))}: take fewer, since an "
            "identity keeps at least one to train on"
        )
    return faces.select(np.flatnonzero(~chosen)), faces.select(np.flatnonzero(chosen))


def hide_identities(
    faces: FaceSet, share: float, rng_of: Callable[[str], np.random.Generator]
) -> tuple[FaceSet, FaceSet]:
    """(those of known identity, the others): of the n images of every identity ⌊share · n⌋ are drawn as the others.

    The first keep their numbers and their order. The others have no name, file or domain and are shuffled, by
    `rng_of("")`, so that their places tell nothing. `share` is 0 or more, and below 1; `rng_of` as in `hold_back`.
    """
    chosen = _drawn(faces, np.floor(share * faces.counts()).astype(np.int64), rng_of)
    others = faces.select(rng_of("").permutation(np.flatnonzero(chosen)))
    none = np.full(len(others), -1, dtype=np.int64)
    hidden = replace(others, labels=none, names=(), files=None, domains=None, domain_names=())
    return faces.select(np.flatnonzero(~chosen)), hidden


def _drawn(
    faces: FaceSet, images: NDArray[np.int64], rng_of: Callable[[str], np.random.Generator]
) -> NDArray[np.bool_]:
    """(n,) which images are drawn, of each identity its number of `images`."""
    chosen = np.zeros(len(faces), dtype=bool)
    places = np.split(np.argsort(faces.labels, kind="stable"), np.cumsum(faces.counts())[:-1])
    for identity in np.flatnonzero(images):
        chosen[rng_of(faces.names[identity]).permutation(places[identity])[: images[identity]]] = True
    return chosen


def by_party(test: FaceSet, parties: Mapping[str, FaceSet]) -> dict[str, FaceSet]:
    """The test images of each party: those of its identities, which have the numbers that they have at the party."""
    places = {name: place for place, name in enumerate(test.names)}
    return {party: test.only([places[name] for name in faces.names]) for party, faces in parties.items()}
