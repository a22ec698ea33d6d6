"""What the server does at each stage: it passes messages on, and adds masked vectors up as they come."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from coalface.core.method import Abandoned
from coalface.privacy.secure_sums import shamir
from coalface.privacy.secure_sums.client import Verify, signed_survivors
from coalface.privacy.secure_sums.context import SecureSumError, SumContext
from coalface.privacy.secure_sums.keys import (
    SEALED,
    Advert,
    check_keys,
    mask_key,
    read_advert,
    seed_check,
    self_mask_key,
    share_check,
)
from coalface.privacy.secure_sums.masks import RINGS, add_masks, signed
from coalface.privacy.secure_sums.neighbours import Roster

_CHECKS = 64
"""Bytes of what a share of the seed and one of the masking key are checked by."""


class SecureSum:
    """One sum at the server, in the memory of one vector and of the parties' keys and shares.

    The stages follow each other: `advertised`, `share_requests`, `shared`, `mask_requests`, `masked`, `survivors`,
    `confirmed` (only where the server verifies signatures), `unmask_requests`, `unmasked`, `result`. What a party
    answers goes to the function called after the stage. It raises SecureSumError with the party's name where the answer
    cannot be counted: that party has dropped out, and the others' sum stays as it is. The functions that begin a stage
    raise Abandoned where too few have answered, before anything more is asked. Then nothing has been learned, since no
    two shares of a secret have been put together.
    """

    def __init__(self, context: SumContext, asked: Collection[str], verify: Verify | None = None) -> None:
        if len(set(asked)) != context.asked:
            raise ValueError(f"{len(set(asked))} parties are asked, and the context says {context.asked}")
        self.context, self._verify = context, verify
        self._stage, self._may = "advertised", set(asked)
        self._adverts: dict[str, tuple[bytes, Advert]] = {}
        self._taken: set[bytes] = set()
        self._dealt: dict[str, dict[str, bytes]] = {}
        self._survivors: set[str] = set()
        self._signatures: dict[str, bytes] = {}
        self._shares: dict[str, dict[str, bytes]] = {}
        self._answered: set[str] = set()
        self._total: NDArray[Any] | None = None
        self._suspects: set[tuple[str, str]] = set()
        """(giver, dealer) where no share came that fits what its dealer said of it: one of the two lied."""
        self._false: set[str] = set()
        """Who dealt shares that fit no secret."""

    # Stage 1

    def advertised(self, party: str, advert: bytes) -> None:
        self._expect("advertised", party)
        read = read_advert(self.context, party, advert)
        check_keys(read, party)
        if self._verify is not None and not self._verify(party, read.signed, read.signature):
            raise SecureSumError("signature", "its keys are not signed by it", party)
        if self._taken & {read.sealing, read.masking} or read.sealing == read.masking:
            raise SecureSumError("keys", "advertised a public key that another party has", party)
        self._taken |= {read.sealing, read.masking}
        self._adverts[party] = advert, read
        self._answered.add(party)

    # Stage 2

    def share_requests(self) -> tuple[list[str], dict[str, dict[str, bytes]]]:
        """The names of all that have advertised; and for each of them, what its neighbours did."""
        self._close("advertised", "shared")
        self._roster = Roster(self.context, sorted(self._answered))
        self._open_for(self._answered)
        return self._roster.names, {
            name: {other: self._adverts[other][0] for other in self._roster.neighbours(name)}
            for name in self._roster.names
        }

    def holders(self, party: str) -> list[str]:
        """Who holds shares of a party's secrets, in the order of their names."""
        return self._roster.holders(party)

    def shared(self, party: str, shares: Mapping[str, bytes]) -> None:
        self._expect("shared", party)
        holders = self._roster.holders(party)
        sizes = [_CHECKS if holder == party else SEALED + _CHECKS for holder in holders]
        if sorted(shares) != holders or [len(shares[holder]) for holder in holders] != sizes:
            raise SecureSumError("message", "its shares are not one for each neighbour, of the right size", party)
        self._dealt[party] = dict(shares)
        self._answered.add(party)

    # Stage 3

    def mask_requests(self) -> list[str]:
        """The names of all that have shared their keys: each masks with those of its neighbours that are among them."""
        self._close("shared", "masked")
        self._check_holders(self._answered, self._answered)
        self._open_for(self._answered)
        self._sharers = sorted(self._may)
        return self._sharers

    def masked(self, party: str, vector: NDArray[Any]) -> None:
        self._expect("masked", party)
        ring = RINGS[self.context.bits]
        if vector.shape != (self.context.length,) or vector.dtype.itemsize != ring.itemsize or vector.dtype.kind != "i":
            raise SecureSumError(
                "vector", f"{vector.dtype}{list(vector.shape)} instead of int{self.context.bits}", party
            )
        if self._total is None:
            self._total = np.zeros(self.context.length, ring)
        np.add(self._total, vector.view(ring), out=self._total)
        self._answered.add(party)

    def survivors(self) -> list[str]:
        """The names of all whose vectors are in the sum."""
        self._close("masked", "confirmed" if self._verify else "confirmed already")
        self._survivors = set(self._answered)
        left = set(self._sharers) - self._survivors
        dropped = {name for name in left if self._survivors.intersection(self._roster.neighbours(name))}
        self._opened = sorted(self._survivors | dropped)
        self._check_holders(self._opened, self._survivors)
        self._open_for(self._survivors)
        return sorted(self._survivors)

    # Stage 4, where parties sign

    def confirmed(self, party: str, signature: bytes) -> None:
        self._expect("confirmed", party)
        text = signed_survivors(self._roster, self._sharers, sorted(self._survivors))
        if self._verify is not None and not self._verify(party, text, signature):
            raise SecureSumError("signature", "the survivors are not signed by it", party)
        self._signatures[party] = signature
        self._answered.add(party)

    # Stage 5

    def unmask_requests(self) -> dict[str, tuple[dict[str, bytes], dict[str, bytes]]]:
        """For each party that is asked: what its neighbours encrypted for it, and their signatures of stage 4."""
        if self._verify:
            self._close("confirmed", "unmasked")
            self._check_holders(self._opened, self._answered)
            self._open_for(self._answered)
        else:
            self._expect_stage("confirmed already")
            self._stage = "unmasked"
        requests = {}
        for name in sorted(self._may):
            near = self._roster.neighbours(name)
            sealed = {v: self._dealt[v][name][:SEALED] for v in near if v in self._dealt}
            requests[name] = sealed, {v: self._signatures[v] for v in near if v in self._signatures}
        return requests

    def unmasked(self, party: str, shares: Mapping[str, bytes]) -> None:
        """Take one share of each neighbour's secret. One that does not fit what its dealer said of it is left out."""
        self._expect("unmasked", party)
        due = [dealer for dealer in self._roster.holders(party) if dealer in self._opened]
        if not shares.keys() <= set(due):
            raise SecureSumError("message", "gave shares that it was not asked for", party)
        for dealer in due:
            share = shares.get(dealer, b"")
            checks = self._dealt[dealer][party][-_CHECKS:]
            check = checks[:32] if dealer in self._survivors else checks[32:]
            if shamir.is_share(share) and share_check(share, party) == check:
                self._shares.setdefault(dealer, {})[party] = share
            else:
                self._suspects.add((party, dealer))
        self._answered.add(party)

    def result(self) -> NDArray[Any]:
        """Σ x_u over the survivors, modulo 2^bits, as signed integers.

        Raises Abandoned where too few have helped to open it, or a party has dealt shares that fit no secret. Whom that
        tells of is in `liars`.
        """
        self._close("unmasked", "over")
        for dealer in self._opened:
            if (count := len(self._shares.get(dealer, {}))) < self._roster.threshold:
                lied = ", ".join(self.liars()) or "nobody can be told"
                raise Abandoned(
                    f"{count} good shares of a secret of {dealer} came, and {self._roster.threshold} are needed "
                    f"(who lied: {lied})"
                )
        secrets = {dealer: self._secret(dealer) for dealer in self._opened}
        if self._false:
            raise Abandoned(f"shares of these parties do not give the secrets that they advertised: {self.liars()}")
        assert self._total is not None
        for dealer, secret in secrets.items():
            add_masks(self._total, self._masks(dealer, secret))
        return self._total.view(signed(self._total.dtype))

    def liars(self) -> list[str]:
        """Who lied for certain, if no more than `corrupt` parties did: in more pairs than all others can have."""
        others: dict[str, set[str]] = {}
        for giver, dealer in self._suspects:
            others.setdefault(giver, set()).add(dealer)
            others.setdefault(dealer, set()).add(giver)
        told = {name for name, pairs in others.items() if len(pairs - {name}) > self.context.corrupt}
        return sorted(told | self._false)

    def _secret(self, dealer: str) -> bytes:
        """Put together of t shares, and checked by what the dealer has advertised."""
        shares = sorted(self._shares[dealer].items())[: self._roster.threshold]
        secret = shamir.combine({self._roster.points[giver]: share for giver, share in shares}) or bytes(32)
        advert = self._adverts[dealer][1]
        if dealer in self._survivors:
            fits = seed_check(secret) == advert.seed_check
        else:
            fits = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw() == advert.masking
        if not fits:
            self._false.add(dealer)
        return secret

    def _masks(self, dealer: str, secret: bytes) -> Iterator[tuple[bytes, bool]]:
        """What takes a survivor's own mask away, or the masks that survivors share with one that left."""
        roster = self._roster
        if dealer in self._survivors:
            yield self_mask_key(secret, roster.digest), False
            return
        private = X25519PrivateKey.from_private_bytes(secret)
        own = (dealer, self._adverts[dealer][1].masking)
        for name in roster.neighbours(dealer):
            if name in self._survivors:
                key = mask_key(private, own, (name, self._adverts[name][1].masking), roster.digest)
                yield key, name > dealer  # the survivor subtracted it where its name is the later one

    def _expect(self, stage: str, party: str) -> None:
        if party not in self._may:
            raise SecureSumError("unknown", "was not asked, or has dropped out", party)
        if stage != self._stage or party in self._answered:
            raise SecureSumError("stage", f"answered a stage that is over, or twice: {stage}", party)

    def _expect_stage(self, stage: str) -> None:
        if stage != self._stage:
            raise RuntimeError(f"the stage is {self._stage}, and not {stage}")

    def _close(self, stage: str, following: str) -> None:
        """End a stage. Raises Abandoned where fewer answered it than a sum may be over."""
        self._expect_stage(stage)
        if (count := len(self._answered)) < self.context.least:
            self._stage = "over"
            raise Abandoned(f"{count} of {self.context.asked} parties {stage}, and {self.context.least} are needed")
        self._stage = following

    def _check_holders(self, dealers: Collection[str], holders: Collection[str]) -> None:
        """Raise Abandoned where a secret that is to be opened has too few holders left."""
        left = set(holders)
        for dealer in sorted(dealers):
            if (count := len(left.intersection(self._roster.holders(dealer)))) < self._roster.threshold:
                self._stage = "over"
                raise Abandoned(
                    f"{count} parties that hold shares of {dealer} are left, and {self._roster.threshold} are needed"
                )

    def _open_for(self, parties: Collection[str]) -> None:
        """Begin a stage that these parties may answer."""
        self._may, self._answered = set(parties), set()
