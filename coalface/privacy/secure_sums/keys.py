"""A party's keys for one sum, and those that it agrees on with its neighbours."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coalface.privacy.secure_sums.context import SecureSumError, SumContext, joined

ADVERT, SIGNATURE = 96, 512
"""Bytes of what a party advertises, two public keys and what its seed is checked by; and of a signature, at most."""
SHARES, SEALED = 66, 82
"""Bytes of a share of either kind, one after the other, and encrypted."""


@dataclass(frozen=True)
class Member:
    """A party of one sum.

    All its keys are HKDF-SHA256 of `secret` with the context, its name, `request` and `commit`: the same request makes
    the same bytes again, any other one makes keys that have nothing to do with them.
    """

    name: str
    secret: bytes = field(repr=False)
    """32 random bytes that the party keeps."""
    context: SumContext
    request: bytes = b""
    """The digest of what the party was asked."""
    commit: bytes = b""
    """The commit that the party starts from."""

    def __post_init__(self) -> None:
        if len(self.secret) != 32:
            raise ValueError(f"a party's secret has 32 bytes; got {len(self.secret)}")

    def derive(self, label: str, *parts: bytes) -> bytes:
        """32 bytes that follow from the secret for one purpose."""
        return derive(self.secret, label, self.context.digest, self.name, self.request, self.commit, *parts)

    @functools.cached_property
    def sealing_key(self) -> X25519PrivateKey:
        """What shares are encrypted to; it never leaves the party."""
        return X25519PrivateKey.from_private_bytes(self.derive("sealing key"))

    @functools.cached_property
    def masking_key(self) -> X25519PrivateKey:
        """What pairwise masks follow from; its shares are asked for where the party drops out."""
        return X25519PrivateKey.from_private_bytes(self.derive("masking key"))

    @functools.cached_property
    def seed(self) -> bytes:
        """What the party's own mask follows from; its shares are asked for where its vector counts."""
        return self.derive("seed")

    @functools.cached_property
    def keys(self) -> bytes:
        """Both public keys, and SHA-256 of the seed: what others check a secret by that was put together of shares."""
        publics = (key.public_key().public_bytes_raw() for key in (self.sealing_key, self.masking_key))
        return b"".join(publics) + seed_check(self.seed)

    @property
    def sealing(self) -> tuple[str, bytes]:
        """The party's name and public sealing key."""
        return self.name, self.keys[:32]

    @property
    def masking(self) -> tuple[str, bytes]:
        """The party's name and public masking key."""
        return self.name, self.keys[32:64]


@dataclass(frozen=True)
class Advert:
    """What a party has advertised."""

    sealing: bytes
    masking: bytes
    seed_check: bytes
    signature: bytes
    signed: bytes
    """The bytes that `signature` is of."""


def read_advert(context: SumContext, name: str, data: bytes) -> Advert:
    """An advert by its fields. Raises SecureSumError (`message`) where it is too short or too long."""
    if not ADVERT <= len(data) <= ADVERT + SIGNATURE:
        raise SecureSumError("message", f"advertised {len(data)} bytes of keys; {ADVERT} are needed", name)
    return Advert(data[:32], data[32:64], data[64:ADVERT], data[ADVERT:], signed_advert(context, name, data[:ADVERT]))


def signed_advert(context: SumContext, name: str, keys: bytes) -> bytes:
    """What a party signs to show that these keys are its own, for this sum alone."""
    return joined(b"coalface secure sum advert", context.digest, name, keys)


def derive(secret: bytes, label: str, *parts: bytes | str) -> bytes:
    """32 bytes by HKDF-SHA256 (RFC 5869), whose `info` are the label and the parts, each after its length."""
    info = joined(label, *parts)
    return HKDF(hashes.SHA256(), 32, b"coalface secure sum 1", info).derive(secret)


def seed_check(seed: bytes) -> bytes:
    return hashlib.sha256(joined(b"seed", seed)).digest()


def share_check(share: bytes, holder: str) -> bytes:
    """What the server checks a share by; it tells nothing, since a share is uniform over more than 2^256 numbers."""
    return hashlib.sha256(joined(b"share", share, holder)).digest()


def check_keys(advert: Advert, name: str) -> None:
    """Raise SecureSumError (`keys`) where a public key is one of the few with which everybody agrees on zero."""
    for key in (advert.sealing, advert.masking):
        agree(_ANY, key, name)


_ANY = X25519PrivateKey.from_private_bytes(bytes(32))


def agree(private: X25519PrivateKey, public: bytes, other: str) -> bytes:
    """What X25519 gives two parties (RFC 7748). Raises SecureSumError (`keys`) where it is zero."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SecureSumError("keys", "advertised a weak public key", other) from None


def mask_key(private: X25519PrivateKey, own: tuple[str, bytes], other: tuple[str, bytes], roster: bytes) -> bytes:
    """The key of the mask between two parties, each a name and a public masking key: the same for both."""
    ends = [part for name, key in sorted((own, other)) for part in (name, key)]
    return derive(agree(private, other[1], other[0]), "pairwise mask", roster, *ends)


def self_mask_key(seed: bytes, roster: bytes) -> bytes:
    """The key of a party's own mask."""
    return derive(seed, "self-mask", roster)


def seal(
    private: X25519PrivateKey, giver: tuple[str, bytes], holder: tuple[str, bytes], roster: bytes, shares: bytes
) -> bytes:
    """Shares encrypted by AES-256-GCM for their holder; giver and holder are a name and a public sealing key.

    The key is bound to both ends, the direction and the roster, and encrypts these bytes alone: its nonce may be 0.
    """
    key = derive(agree(private, holder[1], holder[0]), "sealed shares", roster, *giver, *holder)
    return AESGCM(key).encrypt(bytes(12), shares, None)


def unseal(
    private: X25519PrivateKey, giver: tuple[str, bytes], holder: tuple[str, bytes], roster: bytes, sealed: bytes
) -> bytes:
    """What `seal` was given, at its holder. Raises SecureSumError (`message`) where it does not open."""
    key = derive(agree(private, giver[1], giver[0]), "sealed shares", roster, *giver, *holder)
    try:
        shares = AESGCM(key).decrypt(bytes(12), sealed, None)
    except (InvalidTag, ValueError):
        raise SecureSumError("message", "shares that cannot be decrypted", giver[0]) from None
    if len(shares) != SHARES:
        raise SecureSumError("message", f"{len(shares)} bytes of shares; {SHARES} are needed", giver[0])
    return shares
