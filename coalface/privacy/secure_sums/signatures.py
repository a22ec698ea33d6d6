"""Signatures by the keys of parties' nodes: ECDSA on P-384 with SHA-384, deterministic (RFC 6979)."""

from __future__ import annotations

from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coalface.core.parsing import parse_json
from coalface.privacy.secure_sums.client import Sign, Verify
from coalface.privacy.secure_sums.context import joined

_PURPOSE = b"coalface secure sums 1"
"""Before all that is signed, so that a signature for another purpose is none for this one."""
_HASH = hashes.SHA384()
_LONGEST = 1 << 26
"""Bytes of a list of keys; that of a hundred thousand parties has half as many."""


def signer(secret: int) -> Sign:
    """What signs with a node's private key; `secret` is its number."""
    key = ec.derive_private_key(secret, ec.SECP384R1())
    algorithm = ec.ECDSA(_HASH, deterministic_signing=True)
    return lambda text: key.sign(joined(_PURPOSE, text), algorithm)


def read_keys(data: bytes) -> dict[str, bytes]:
    """The parties' public keys by name, of a `names.json`. Raises ValueError."""
    keys = parse_json(data, longest=_LONGEST)
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise ValueError("it should map the parties' names to their keys")
    return {name: bytes.fromhex(key) for name, key in keys.items()}


def verifier(public: Mapping[str, bytes]) -> Verify:
    """What verifies by the parties' public keys (PEM). Raises ValueError for a key of another kind."""
    keys = {}
    for name, pem in public.items():
        try:
            key = serialization.load_pem_public_key(pem)
        except UnsupportedAlgorithm as error:
            raise ValueError(f"the key of {name} cannot be read: {error}") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
            raise ValueError(f"the key of {name} is not an ECDSA key on P-384")
        keys[name] = key

    def verify(name: str, text: bytes, signature: bytes) -> bool:
        if name not in keys:
            return False
        try:
            keys[name].verify(signature, joined(_PURPOSE, text), ec.ECDSA(_HASH))
        except InvalidSignature:
            return False
        return True

    return verify
