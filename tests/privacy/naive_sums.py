"""What secure sums stand on, again in plain Python: RFC 5869, 7748 and 8439, Shamir, and all masks in a loop."""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297


def hkdf(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    """RFC 5869 with SHA-256."""
    key = hmac.digest(salt, secret, "sha256")
    block = output = b""
    for number in range(1, -(-size // 32) + 1):
        block = hmac.digest(key, block + info + bytes([number]), "sha256")
        output += block
    return output[:size]


def x25519(private: bytes, point: bytes = (9).to_bytes(32, "little")) -> bytes:
    """RFC 7748, section 5: a ladder over the curve's u coordinates."""
    p = 2**255 - 19
    bits = int.from_bytes(private, "little") & (2**254 - 8) | 2**254
    u = int.from_bytes(point, "little") % 2**255
    x2, z2, x3, z3 = 1, 0, u, 1
    for place in range(254, -1, -1):
        bit = bits >> place & 1
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        aa, bb = (x2 + z2) ** 2 % p, (x2 - z2) ** 2 % p
        da, cb = (x3 - z3) * (x2 + z2) % p, (x3 + z3) * (x2 - z2) % p
        x3, z3 = (da + cb) ** 2 % p, u * (da - cb) ** 2 % p
        x2, z2 = aa * bb % p, (aa - bb) * (aa + 121665 * (aa - bb)) % p
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, p - 2, p) % p).to_bytes(32, "little")


def chacha20(key: bytes, size: int, counter: int = 0, nonce: bytes = bytes(12)) -> bytes:
    """RFC 8439, section 2.4: the keystream."""
    stream = b""
    while len(stream) < size:
        start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
        start += struct.unpack("<3I", nonce)
        state = list(start)
        rounds = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
        rounds += [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
        for a, b, c, d in rounds * 10:
            for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                state[x] = (state[x] + state[y]) % 2**32
                turned = state[z] ^ state[x]
                state[z] = (turned << turn | turned >> (32 - turn)) % 2**32
        stream += struct.pack("<16I", *((now + then) % 2**32 for now, then in zip(state, start, strict=True)))
        counter += 1
    return stream[:size]


def polynomial(secret: bytes, randomness: bytes, x: int) -> int:
    """f(x) of Shamir, term by term."""
    terms = [int.from_bytes(secret, "big")]
    terms += [int.from_bytes(randomness[i : i + 48], "big") for i in range(0, len(randomness), 48)]
    return sum(term * x**power for power, term in enumerate(terms)) % PRIME


def told(*parts: bytes | str) -> bytes:
    """Parts, each after its length."""
    return b"".join(
        struct.pack(">I", len(part)) + part for part in (p.encode() if isinstance(p, str) else p for p in parts)
    )


class Naive:
    """The parties of one sum in a complete graph, from their secrets by name."""

    def __init__(self, secrets: Mapping[str, bytes], context: bytes, request: bytes, commit: bytes) -> None:
        self.secrets, self.context, self._asked = secrets, context, (request, commit)
        self.names = sorted(secrets)
        self.roster = hashlib.sha256(told(b"roster", context, *self.names)).digest()

    def _key(self, secret: bytes, label: str, *parts: bytes | str) -> bytes:
        return hkdf(secret, b"coalface secure sum 1", told(label, *parts), 32)

    def own(self, name: str, label: str, *parts: bytes) -> bytes:
        return self._key(self.secrets[name], label, self.context, name, *self._asked, *parts)

    def advert(self, name: str) -> bytes:
        seed = hashlib.sha256(told(b"seed", self.own(name, "seed"))).digest()
        return x25519(self.own(name, "sealing key")) + x25519(self.own(name, "masking key")) + seed

    def shares(self, name: str, holder: str, threshold: int) -> bytes:
        """The holder's share of the seed, then of the masking key."""
        given = b""
        for kind in ("seed", "masking key"):
            randomness = chacha20(self.own(name, "coefficients", kind.encode(), self.roster), 48 * (threshold - 1))
            value = polynomial(self.own(name, kind), randomness, self.names.index(holder) + 1)
            given += value.to_bytes(33, "big")
        return given

    def sealing(self, giver: str, holder: str) -> bytes:
        """The key that the giver's shares are encrypted under for the holder."""
        publics = {name: x25519(self.own(name, "sealing key")) for name in (giver, holder)}
        agreed = x25519(self.own(holder, "sealing key"), publics[giver])
        return self._key(agreed, "sealed shares", self.roster, giver, publics[giver], holder, publics[holder])

    def masked(self, name: str, vector: Sequence[int], sharers: Sequence[str], bits: int) -> list[int]:
        """The vector of whole numbers under all its masks, one by one."""
        size = bits // 8
        total = list(vector)

        def add(key: bytes, sign: int) -> None:
            stream = chacha20(key, len(total) * size)
            for place in range(len(total)):
                total[place] += sign * int.from_bytes(stream[place * size : (place + 1) * size], "little")

        add(self._key(self.own(name, "seed"), "self-mask", self.roster), 1)
        for other in sharers:
            if other != name:
                publics = {n: x25519(self.own(n, "masking key")) for n in (name, other)}
                first, second = sorted(publics)
                agreed = x25519(self.own(name, "masking key"), publics[other])
                ends = (first, publics[first], second, publics[second])
                add(self._key(agreed, "pairwise mask", self.roster, *ends), 1 if name == first else -1)
        return [number % 2**bits for number in total]
