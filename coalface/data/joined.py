"""Several named sources as one, each of them a domain of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coalface.core.names import check_party
from coalface.data.source import Source


@dataclass(frozen=True, eq=False)
class Joined:
    """The images of all the parts, part after part in the order given, as one `Source`.

    Identity `s1` of the part `orl` is called `orl/s1`, so that two parts can each have an identity `s1`. Part number d
    is domain d. Raises ValueError without parts, and for a name that cannot be a party's.
    """

    parts: Mapping[str, Source]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a joined source needs at least one part")
        for name in self.parts:
            check_party(name)  # parties are called after parts

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The identities, as `part/identity`."""
        return tuple(f"{part}/{name}" for part, source in self.parts.items() for name in source.names)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """(n,) where each image comes from, as `part/identity/file name`."""
        return tuple(f"{part}/{file}" for part, source in self.parts.items() for file in source.files)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """(n,) the identity of each image, counted on from part to part."""
        firsts = np.cumsum([0, *(len(source.names) for source in self.parts.values())])
        shifted = [source.labels + first for source, first in zip(self.parts.values(), firsts[:-1], strict=True)]
        return np.concatenate(shifted)

    @property
    def domain_numbers(self) -> NDArray[np.int64]:
        """(n,) the place of each image's part in `parts`."""
        return np.repeat(np.arange(len(self.parts)), [len(source.files) for source in self.parts.values()])

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        """Each image in turn, (size, size, 1 or 3), as its part gives it."""
        for source in self.parts.values():
            yield from source.images(size=size, grey=grey)

    def fingerprint(self) -> str:
        """SHA-256 over the names and the fingerprints of the parts."""
        lines = "".join(f"{name}\0{source.fingerprint()}\n" for name, source in self.parts.items())
        return hashlib.sha256(lines.encode()).hexdigest()
