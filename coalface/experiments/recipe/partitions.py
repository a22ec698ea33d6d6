"""Kinds of partition: a class for each, with its keys, its parties' names and its draws."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from coalface.data import partition
from coalface.data.faceset import FaceSet
from coalface.data.partition_file import read_partition
from coalface.experiments.recipe.base import Kinds, PluginSection
from coalface.experiments.recipe.sections import PartyName


class Partition(PluginSection):
    """How the training identities are assigned to the parties."""

    seed: int | None = None
    """Of the draws that assign them; None: the run's seed."""

    def names(self) -> list[str] | None:
        """The parties' names, in their order; None where the images tell."""
        return None

    @abstractmethod
    def assign(self, faces: FaceSet, rng: np.random.Generator, domains: Sequence[str]) -> dict[str, FaceSet]:
        """Party -> its images; `domains` are the names of the domains that the images are of.

        Raises ValueError where a party would have nobody.
        """


class Equal(Partition):
    """As many identities for each party, within one."""

    kind: Literal["equal"] = "equal"
    parties: int = Field(8, ge=1)
    """How many parties: silo-00, silo-01, …"""

    def names(self) -> list[str]:
        return partition.party_names("silo", self.parties)

    def assign(self, faces: FaceSet, rng: np.random.Generator, domains: Sequence[str]) -> dict[str, FaceSet]:
        return partition.equal(faces, self.parties, rng)


class Dirichlet(Partition):
    """Parties of unequal size."""

    kind: Literal["dirichlet"] = "dirichlet"
    parties: int = Field(8, ge=1)
    """How many parties: silo-00, silo-01, …"""
    alpha: float = Field(0.5, gt=0)
    """The smaller, the more unequal."""

    def names(self) -> list[str]:
        return partition.party_names("silo", self.parties)

    def assign(self, faces: FaceSet, rng: np.random.Generator, domains: Sequence[str]) -> dict[str, FaceSet]:
        return partition.dirichlet(faces, self.parties, self.alpha, rng)


class Shares(Partition):
    """Named parties, each with its share of the identities."""

    kind: Literal["shares"] = "shares"
    shares: dict[PartyName, Annotated[float, Field(gt=0)]] = Field(min_length=1)
    """Party -> its share, in proportion to the others'."""

    def names(self) -> list[str]:
        return sorted(self.shares)

    def assign(self, faces: FaceSet, rng: np.random.Generator, domains: Sequence[str]) -> dict[str, FaceSet]:
        return partition.by_shares(faces, self.shares, rng)


class OneIdentity(Partition):
    """A party for each identity, as in the scenario `devices`."""

    kind: Literal["one-identity"] = "one-identity"

    def assign(self, faces: FaceSet, rng: np.random.Generator, domains: Sequence[str]) -> dict[str, FaceSet]:
        return partition.one_identity(faces)


class ByDomain(Partition):
    """A party for each part of joined faces, or for each of the synthetic domains, named as it is."""

    kind: Literal["by-domain"] = "by-domain"
    split: int | None = Field(None, ge=1)
    """Each domain's identities are assigned equally to so many parties, named DOMAIN-a, DOMAIN-b, …."""

    def assign(self, faces: FaceSet, rng: np.random.Generator, domains: Sequence[str]) -> dict[str, FaceSet]:
        parties = partition.by_domain(faces, domains)
        if self.split in (None, 1):
            return parties
        return {
            f"{name}-{chr(ord('a') + number)}": part
            for name, whole in parties.items()
            for number, part in enumerate(partition.equal(whole, self.split, rng).values())
        }


class FromFile(Partition):
    """Parties as a text file names them, and who is held out of training, to be evaluated."""

    kind: Literal["file"] = "file"
    path: str
    """Lines `identity, party` or `identity/image, party`, `-` for held out; below the data root unless absolute."""
    sha256: str | None = None
    """That of the file, which a run keeps: with another it is not resumed. None: filled in as the recipe is read."""

    def assign(self, faces: FaceSet, rng: np.random.Generator, domains: Sequence[str]) -> dict[str, FaceSet]:
        return read_partition(Path(self.path)).assign(faces)


PARTITIONS = Kinds(
    Equal, Dirichlet, Shares, OneIdentity, ByDomain, FromFile, group="coalface.partitions", base=Partition
)
"""Every kind of partition; the first is the usual one."""
