"""Known answers of the RFCs; and messages, byte by byte, as the plain second implementation has them."""

from __future__ import annotations

import hashlib
import importlib
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from naive_sums import Naive, chacha20, hkdf, polynomial, told, x25519
from sum_rounds import Parties, context, secret

from coalface.privacy.secure_sums import client, masks, shamir
from coalface.privacy.secure_sums.keys import derive


def test_the_naive_functions_give_the_answers_of_their_rfcs() -> None:
    """RFC 5869 A.1; RFC 7748 5.2, the first vector and one iteration; RFC 8439 2.4.2 and A.1 #1."""
    info = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9")
    assert hkdf(b"\x0b" * 22, bytes(range(13)), info, 42).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    assert x25519(scalar, point).hex() == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    nine = (9).to_bytes(32, "little")
    assert x25519(nine, nine).hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    stream = chacha20(bytes(range(32)), 16, counter=1, nonce=bytes.fromhex("000000000000004a00000000"))
    text = b"Ladies and Gentl"
    assert bytes(a ^ b for a, b in zip(stream, text, strict=True)).hex() == "6e2e359a2568f98041ba0728dd0d6981"
    assert chacha20(bytes(32), 16).hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_a_mask_is_the_keystream_as_numbers_also_beyond_a_chunk() -> None:
    key, other = hashlib.sha256(b"key").digest(), hashlib.sha256(b"other").digest()
    assert masks.keystream(key, 200) == chacha20(key, 200)
    for bits, dtype in masks.RINGS.items():
        small = np.arange(77, dtype=dtype)
        masks.add_masks(small, [(key, True), (other, False)])
        size = bits // 8
        streams = [chacha20(k, 77 * size) for k in (key, other)]
        drawn = [[int.from_bytes(s[i : i + size], "little") for i in range(0, 77 * size, size)] for s in streams]
        assert small.tolist() == [(i + a - b) % 2**bits for i, (a, b) in enumerate(zip(*drawn, strict=True))]
        large = np.zeros((1 << 18) // size + 5, dtype)
        masks.add_masks(large, [(key, True)])
        assert large.tobytes() == masks.keystream(key, large.nbytes)


def test_every_message_is_byte_by_byte_that_of_the_second_implementation() -> None:
    parties = Parties(context(5, 1, 1, length=21))
    names, threshold = parties.names, 4
    naive = Naive({name: secret(name) for name in names}, parties.context.digest, b"request", b"commit")
    adverts = {name: client.advertise(parties.members[name]) for name in names}
    assert adverts == {name: naive.advert(name) for name in names}
    for name in names:
        dealt = client.share_keys(parties.members[name], names, adverts)
        assert dealt.keys() == set(names)
        for holder, message in dealt.items():
            shares = naive.shares(name, holder, threshold)
            checks = [told(b"share", share, holder) for share in (shares[:33], shares[33:])]
            assert message[-64:] == b"".join(hashlib.sha256(check).digest() for check in checks)
            if holder != name:
                assert AESGCM(naive.sealing(name, holder)).decrypt(bytes(12), message[:-64], None) == shares
    sharers = [name for name in names if name != "silo-0003"]
    for name in sharers:
        given = (names, adverts, sharers, parties.vectors[name], parties.answers[name])
        masked = client.mask(parties.members[name], *given)
        assert masked.view("<u4").tolist() == naive.masked(name, parties.vectors[name].tolist(), sharers, 32)


def test_a_vector_of_64_bits_is_masked_as_well() -> None:
    parties = Parties(context(4, 1, 0, length=9, bits=64))
    naive = Naive({n: secret(n) for n in parties.names}, parties.context.digest, b"request", b"commit")
    adverts = {name: client.advertise(parties.members[name]) for name in parties.names}
    name, given = parties.names[2], (parties.names, adverts, parties.names)
    masked = client.mask(parties.members[name], *given, parties.vectors[name], parties.answers[name])
    assert masked.dtype == np.int64
    assert masked.view("<u8").tolist() == naive.masked(name, parties.vectors[name].tolist(), parties.names, 64)


def test_these_bytes_stay() -> None:
    """Parties of two versions must not mix in one sum: who changes these changes the `salt` of `derive` as well."""
    parties = Parties(context(4, 1, 1, length=8))
    names = parties.names
    adverts = {name: client.advertise(parties.members[name]) for name in names}
    dealt = client.share_keys(parties.members[names[0]], names, adverts)
    vector = np.arange(8, dtype="<u4")
    masked = client.mask(parties.members[names[0]], names, adverts, names, vector, parties.answers[names[0]])
    assert parties.context.digest.hex() == "f94514f074e008912d1a790ddb88cfe1f9dcf5a63957f257cdee2e480a6ee2f2"
    assert adverts[names[0]].hex() == (
        "46783f675552dde13987b007dc065992c263cd21f6002fbd7a468ccf332ace4e58ea84ef12910650a6c8ad80c43a1e6c"
        "6f024c13702c77904d0c9f405bfd295c2658372b4675358fa297f07ef9f5a085baed0d2a7f92d60c6b61d8530c06031c"
    )
    assert (
        hashlib.sha256(dealt[names[1]]).hexdigest()
        == "f046d52027f0675a19e1d3ca74c134aabd75d6c742cd970120ea8231454f9902"
    )
    assert masked.tolist() == [
        233413131,
        -1980318890,
        -2144195881,
        250063594,
        -809656435,
        -483522169,
        1380052523,
        1107046868,
    ]


def test_hkdf_is_that_of_the_rfc() -> None:
    assert (
        derive(b"s" * 32, "label", b"one", "two").hex()
        == hkdf(b"s" * 32, b"coalface secure sum 1", b"\0\0\0\5label\0\0\0\3one\0\0\0\3two", 32).hex()
    )


SECRETS = (bytes(32), b"\xff" * 32, hashlib.sha256(b"secret").digest())


@pytest.fixture(scope="module")
def galois() -> Any:
    """Imported where it is used alone: with its compiler it takes a tenth of what all tests are collected in."""
    return importlib.import_module("galois")


@pytest.mark.parametrize("hidden", SECRETS)
@pytest.mark.parametrize(("threshold", "points"), [(1, [1]), (2, [1, 2, 3]), (5, [7, 2, 1000, 4, 99, 12])])
def test_shares_are_those_of_galois_over_the_same_prime_field(
    galois: Any, hidden: bytes, threshold: int, points: list[int]
) -> None:
    field = galois.GF(shamir.PRIME, primitive_element=5, verify=False)
    randomness = chacha20(hidden, 48 * (threshold - 1))
    shares = shamir.split(hidden, threshold, points, randomness)
    draws = [randomness[i : i + 48] for i in range(0, len(randomness), 48)]
    coefficients = [int.from_bytes(hidden, "big"), *(int.from_bytes(draw, "big") % shamir.PRIME for draw in draws)]
    values = galois.Poly(field(coefficients[::-1]))(field(points))
    assert [int.from_bytes(share, "big") for share in shares] == [int(value) for value in values]
    assert [polynomial(hidden, randomness, x) for x in points] == [int(value) for value in values]
    chosen = points[-threshold:]
    matrix = field([[pow(x, power, shamir.PRIME) for power in range(threshold)] for x in chosen])
    solved = np.linalg.solve(matrix, values[-threshold:])
    assert int(solved[0]).to_bytes(32, "big") == hidden
    assert shamir.combine(dict(zip(chosen, shares[-threshold:], strict=True))) == hidden


def test_the_field_is_prime_and_holds_every_secret(galois: Any) -> None:
    assert galois.is_prime(shamir.PRIME) and shamir.PRIME == galois.next_prime(2**256)


def test_shares_of_what_is_no_secret_give_none() -> None:
    """A dealer can share a number that has no 32 bytes."""
    assert shamir.combine({1: (2**256).to_bytes(33, "big")}) is None
    assert shamir.combine({1: (2**256 - 1).to_bytes(33, "big")}) == b"\xff" * 32
    assert not shamir.is_share(shamir.PRIME.to_bytes(33, "big")) and shamir.is_share(bytes(33))


def test_fewer_shares_fit_every_secret() -> None:
    """Of three shares that open, two fit one polynomial for each secret there is, so that they tell nothing of it."""
    points, hidden = [1, 2, 3], SECRETS[2]
    shares = shamir.split(hidden, 3, points, chacha20(bytes(32), 96))
    for other in SECRETS:
        third = {0: other.rjust(33, b"\0"), 1: shares[0], 2: shares[1]}
        value = int.from_bytes(shamir.combine(_moved(third, 3)) or b"", "big")
        again = shamir.combine({1: shares[0], 2: shares[1], 3: value.to_bytes(33, "big")})
        assert again == other


def _moved(shares: dict[int, bytes], x: int) -> dict[int, bytes]:
    """The same points of the same polynomial, seen from x: what lies at x comes to lie at 0."""
    return {(point - x) % shamir.PRIME: share for point, share in shares.items()}


@pytest.mark.parametrize(
    ("hidden", "points", "randomness"),
    [
        (b"short", [1, 2], bytes(48)),
        (bytes(32), [1, 1], bytes(48)),
        (bytes(32), [0, 1], bytes(48)),
        (bytes(32), [1], b""),
    ],
)
def test_what_would_give_a_secret_away_is_refused(hidden: bytes, points: list[int], randomness: bytes) -> None:
    with pytest.raises(ValueError, match="needed|distinct"):
        shamir.split(hidden, 2, points, randomness)
