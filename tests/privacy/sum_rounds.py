"""Secure sums among simulated parties, of which any may stay away at any stage, or answer otherwise."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from coalface.privacy.secure_sums import client
from coalface.privacy.secure_sums.context import SecureSumError, SumContext
from coalface.privacy.secure_sums.guard import Answers
from coalface.privacy.secure_sums.keys import Member
from coalface.privacy.secure_sums.masks import RINGS
from coalface.privacy.secure_sums.server import SecureSum

Change = Callable[[str, str, Any], Any]
"""What a party answers instead, from the stage, its name and what it would have answered."""
RARE = 1e-4
"""The p-value from which on words count as uniform: of about twenty in these tests, truly uniform ones fall below it
once in 500 choices of the secrets."""
STAGES = ("advertise", "share", "mask", "confirm", "unmask")


def context(parties: int, dropouts: int, corrupt: int, **other: Any) -> SumContext:
    settings = {"run": "run", "stage": "train", "round": 1, "call": 1, "length": 50, "bits": 32} | other
    return SumContext(asked=parties, dropouts=dropouts, corrupt=corrupt, **settings)


def secret(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


class Parties:
    """All parties of one sum, and their vectors, which are uniform."""

    def __init__(self, about: SumContext, *, signs: bool = False, seed: int = 0) -> None:
        self.context = about
        self.names = [f"silo-{number:04}" for number in range(about.asked)]
        self.members = {name: Member(name, secret(name), about, b"request", b"commit") for name in self.names}
        self.answers = {name: Answers() for name in self.names}
        draws = np.random.default_rng(seed)
        ring = RINGS[about.bits]
        self.vectors = {name: draws.integers(0, 2**about.bits, about.length, ring) for name in self.names}
        self.node_keys = {name: Ed25519PrivateKey.from_private_bytes(secret(name)) for name in self.names if signs}
        self.verify = functools.cache(self.has_signed) if signs else None  # all neighbours check the same ones
        self.refused: list[SecureSumError] = []

    def has_signed(self, name: str, text: bytes, signature: bytes) -> bool:
        try:
            self.node_keys[name].public_key().verify(signature, text)
        except InvalidSignature:
            return False
        return True

    def total(self, names: Iterable[str]) -> list[int]:
        """The sum of these parties' vectors in plain whole numbers, modulo 2^bits."""
        columns = zip(*(self.vectors[name].tolist() for name in names), strict=True)
        return [sum(column) % 2**self.context.bits for column in columns]

    def run(self, away: Mapping[str, Iterable[str]] | None = None, change: Change = lambda *given: given[2]) -> Opening:
        """One whole sum; `away` are those who do not answer a stage, by its name, and none after it."""
        server = SecureSum(self.context, self.names, self.verify)
        gone: set[str] = set()

        def gather(stage: str, asked: Iterable[str], answer: Callable[[str], Any], take: Any) -> None:
            gone.update((away or {}).get(stage, ()))
            for name in asked:
                if name not in gone:
                    try:
                        take(name, change(stage, name, answer(name)))
                    except SecureSumError as error:
                        self.refused.append(error)

        signs = self.node_keys
        gather(
            "advertise",
            self.names,
            lambda n: client.advertise(self.members[n], signs[n].sign if signs else None),
            server.advertised,
        )
        names, adverts = server.share_requests()
        gather(
            "share", names, lambda n: client.share_keys(self.members[n], names, adverts[n], self.verify), server.shared
        )
        sharers = server.mask_requests()
        gather(
            "mask",
            sharers,
            lambda n: client.mask(
                self.members[n], names, adverts[n], sharers, self.vectors[n], self.answers[n], self.verify
            ),
            server.masked,
        )
        survivors = server.survivors()
        sets = (names, sharers, survivors)
        if signs:
            gather(
                "confirm",
                survivors,
                lambda n: client.confirm(self.members[n], *sets, signs[n].sign, self.answers[n]),
                server.confirmed,
            )
        requests = server.unmask_requests()
        gather(
            "unmask",
            requests,
            lambda n: client.unmask(
                self.members[n],
                names,
                adverts[n],
                sharers,
                survivors,
                requests[n][0],
                self.answers[n],
                self.verify,
                requests[n][1],
            ),
            server.unmasked,
        )
        return Opening(server, survivors)


class Opening:
    """A sum that is gathered, and can be opened."""

    def __init__(self, server: SecureSum, survivors: list[str]) -> None:
        self.server, self.survivors = server, survivors

    def result(self) -> list[int]:
        bits = self.server.context.bits
        return [int(number) % 2**bits for number in self.server.result()]


def uniform(vector: NDArray[Any]) -> float:
    """The p-value of Kolmogorov and Smirnov's test that 32-bit words are uniform."""
    from scipy.stats import kstest

    return float(kstest(vector.view("<u4") / 2.0**32, "uniform").pvalue)
