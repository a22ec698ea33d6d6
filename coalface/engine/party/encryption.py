"""A party's commits, encrypted on its disk: AES-256-GCM under a key that follows from the key of the party's node.

The ledger stays in the clear: it holds names, shapes and hashes, and is there for the party to read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PIECE = 16 << 20
"""Bytes that are encrypted at once; a private state may be larger than the 2 GiB that one call takes."""
TAG = 16
"""Bytes by which each piece grows."""
_INFO = b"coalface private state 1\0"


@dataclass(frozen=True)
class Vault:
    """What a party's private state of one run is encrypted with.

    The key is HKDF-SHA256 of the secret number of the node's key (ECDSA on P-384), with a fixed text and the party's
    name as `info`. That is sound because the number is uniform over 384 bits and secret, so that HKDF's output cannot
    be told from random bytes; because the output tells nothing of the number, HMAC being one-way, nor do signatures;
    and because no other key is derived with this text. Who has the node's key can read the state, and nobody else: a
    copy of the party's home without that key is of no use, a disk with both protects nothing.

    Every file is encrypted under a key of its own, derived from this one with 32 random bytes that its header names;
    a piece's nonce is its place in the file. So no nonce is used twice under one key, however often the same commit
    is written. (These bytes are the system's, not a run's: a request that is answered again after a crash would meet
    the same generator with other private state.) Bound to each piece, as associated data, are the run, the party, the
    commit's name and the whole header: a file that is moved, or patched from two, does not open.

    A new key of the node does not open what was written under the old one: `coalface.flower.party.rekey` writes it
    anew.
    """

    run: str
    party: str
    key: bytes = field(repr=False)
    id: str
    """Names the key in a file's header, so that a wrong key is told from a damaged file; says nothing of the key."""

    @classmethod
    def of(cls, secret: bytes, run: str, party: str) -> Vault:
        """The vault of a party in a run; `secret` is the secret number of its node's key."""
        derived = _derived(secret, None, _INFO + party.encode(), 40)
        return cls(run, party, derived[:32], derived[32:].hex())

    def fresh(self) -> dict[str, str]:
        """What the header of a new file says under `sealed`."""
        return {"key": self.id, "salt": os.urandom(32).hex()}

    @staticmethod
    def taken(size: int) -> int:
        """Bytes that `size` bytes take once they are encrypted."""
        return size + TAG * -(-size // PIECE)

    def cipher(self, name: str, header: bytes) -> Cipher:
        """For the file `name` with this header; ValueError where it lacks what `fresh` gave, under `sealed`."""
        try:
            salt = bytes.fromhex(json.loads(header)["sealed"]["salt"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"its header does not say {error}") from None
        bound = json.dumps([self.run, self.party, name]).encode() + b"\0" + header
        return Cipher(AESGCM(_derived(self.key, salt, b"coalface commit 1", 32)), bound)


@dataclass(frozen=True)
class Cipher:
    """Encrypts and decrypts what follows the header of one file; `start` is a place in it, beyond the header."""

    aead: AESGCM
    bound: bytes

    def seal(self, data: bytes | bytearray | memoryview, start: int) -> Iterator[bytes]:
        """The pieces that are written from `start` on; together they have `Vault.taken` bytes."""
        with memoryview(data) as view:
            for begin in range(0, len(view), PIECE):
                yield self.aead.encrypt(_nonce(start), view[begin : begin + PIECE], self.bound)
                start += PIECE + TAG

    def mark(self) -> bytes:
        """16 bytes after the header, which show that the header is unchanged and of this key."""
        return self.aead.encrypt(_nonce(0), b"", self.bound)

    def open(self, sealed: bytes | bytearray | memoryview, start: int) -> bytearray:
        """What `seal` was given. Raises ValueError unless it is as it was written, and where it was."""
        count = -(-len(sealed) // (PIECE + TAG))
        opened = bytearray(len(sealed) - count * TAG)
        try:
            with memoryview(sealed) as view, memoryview(opened) as target:
                for number in range(count):
                    begin, size = number * (PIECE + TAG), PIECE + TAG
                    into = target[number * PIECE : (number + 1) * PIECE]
                    self.aead.decrypt_into(_nonce(start + begin), view[begin : begin + size], self.bound, into)
        except InvalidTag:
            raise ValueError("its bytes are not those that were written here under this key") from None
        return opened

    def check(self, mark: bytes) -> None:
        """Raise ValueError unless `mark` is what `mark` gave of this header."""
        try:
            self.aead.decrypt(_nonce(0), mark, self.bound)
        except InvalidTag:
            raise ValueError("its header is not the one that was written here under this key") from None


def _nonce(place: int) -> bytes:
    return place.to_bytes(12, "big")


def _derived(secret: bytes, salt: bytes | None, info: bytes, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)
