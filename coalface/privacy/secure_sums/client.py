"""What a party does at each stage: functions of its secret and of what it was sent, which keep nothing.

The stages are those of Bonawitz et al. 2017 (figure 4): `advertise`, `share_keys`, `mask`, `confirm`, `unmask`. All
messages are bytes, names, dicts of bytes by name, or one vector. Every function raises SecureSumError, and answers
nothing, where the party must not answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from coalface.privacy.secure_sums import shamir
from coalface.privacy.secure_sums.context import SecureSumError, joined
from coalface.privacy.secure_sums.guard import Answers
from coalface.privacy.secure_sums.keys import (
    Advert,
    Member,
    mask_key,
    read_advert,
    seal,
    self_mask_key,
    share_check,
    signed_advert,
    unseal,
)
from coalface.privacy.secure_sums.masks import RINGS, add_masks, keystream, signed
from coalface.privacy.secure_sums.neighbours import Roster, check_enough, read_roster

Sign = Callable[[bytes], bytes]
Verify = Callable[[str, bytes, bytes], bool]
"""Whether a party, by its name, has signed these bytes with this signature."""


def advertise(member: Member, sign: Sign | None = None) -> bytes:
    """Stage 1: the party's public keys for this sum, 96 bytes, and its signature where it signs."""
    keys = member.keys
    return keys + (sign(signed_advert(member.context, member.name, keys)) if sign else b"")


def share_keys(
    member: Member, names: Sequence[str], adverts: Mapping[str, bytes], verify: Verify | None = None
) -> dict[str, bytes]:
    """Stage 2: shares of the party's two secrets for every neighbour, encrypted to it.

    `names` are all parties that have advertised, `adverts` what the neighbours did. By holder the answer has 82 bytes
    that the server passes on, and two times 32 that it keeps, to check by them the shares that come back. The party
    holds a share of its own as well, of which only the latter are sent.
    """
    roster = _roster(member, names)
    peers = _read_adverts(member, roster, adverts, verify)
    holders = roster.holders(member.name)
    seeds = _split(member, roster, b"seed", holders)
    keys = _split(member, roster, b"masking key", holders)
    answer = {}
    for holder, seed, key in zip(holders, seeds, keys, strict=True):
        checks = share_check(seed, holder) + share_check(key, holder)
        if holder != member.name:
            other = (holder, peers[holder].sealing)
            checks = seal(member.sealing_key, member.sealing, other, roster.digest, seed + key) + checks
        answer[holder] = checks
    return answer


def mask(
    member: Member,
    names: Sequence[str],
    adverts: Mapping[str, bytes],
    sharers: Sequence[str],
    vector: NDArray[Any],
    answers: Answers,
    verify: Verify | None = None,
) -> NDArray[Any]:
    """Stage 3: the party's vector x_u under its masks, modulo 2^bits.

    y_u = x_u + PRG(b_u) + Σ_{v>u} PRG(s_uv) - Σ_{v<u} PRG(s_uv), over the neighbours v among `sharers`, who have all
    shared their keys. `vector` has the context's length, in unsigned integers of its bits; the answer is a copy, as
    signed ones, which all formats of tensors know.
    """
    roster, context = _roster(member, names), member.context
    peers = _read_adverts(member, roster, adverts, verify)
    _check_sharers(member, roster, sharers)
    if vector.shape != (context.length,) or vector.dtype != RINGS[context.bits]:
        raise SecureSumError("vector", f"a vector of {context.length} numbers of {context.bits} bits is needed")
    _record_sharers(member, roster, sharers, answers)
    answers.record(context.place, "vector", _digest(member, hashlib.sha256(vector.data).digest()))
    masked = vector.copy()
    keys = [(self_mask_key(member.seed, roster.digest), True)]
    for name in peers.keys() & set(sharers):
        key = mask_key(member.masking_key, member.masking, (name, peers[name].masking), roster.digest)
        keys.append((key, member.name < name))
    add_masks(masked, keys)
    return masked.view(signed(masked.dtype))


def confirm(
    member: Member, names: Sequence[str], sharers: Sequence[str], survivors: Sequence[str], sign: Sign, answers: Answers
) -> bytes:
    """Stage 4, where parties sign: the party's signature over the sets that it was told, so that all were told one."""
    roster = _roster(member, names)
    _check_survivors(member, roster, sharers, survivors)
    _record_survivors(member, roster, sharers, survivors, answers)
    return sign(signed_survivors(roster, sharers, survivors))


def unmask(
    member: Member,
    names: Sequence[str],
    adverts: Mapping[str, bytes],
    sharers: Sequence[str],
    survivors: Sequence[str],
    sealed: Mapping[str, bytes],
    answers: Answers,
    verify: Verify | None = None,
    confirmed: Mapping[str, bytes] | None = None,
) -> dict[str, bytes]:
    """Stage 5: a share of the seed of each neighbour whose vector counts, and of the masking key of each that left.

    `survivors` are those of the `sharers` whose vectors are in the sum, `sealed` the 82 bytes that each neighbour
    encrypted for this party. Who verifies needs `confirmed`, the neighbours' signatures from stage 4. A share that
    does not open is left out of the answer.
    """
    roster = _roster(member, names)
    peers = _read_adverts(member, roster, adverts, verify)
    _check_survivors(member, roster, sharers, survivors)
    if verify is not None:
        text, signatures = signed_survivors(roster, sharers, survivors), confirmed or {}
        signers = [name for name in peers.keys() & set(survivors) & signatures.keys()]
        count = 1 + sum(verify(name, text, signatures[name]) for name in signers)
        if count < roster.threshold:
            raise SecureSumError("unconfirmed", f"{count} parties signed the survivors; {roster.threshold} must")
    _record_survivors(member, roster, sharers, survivors, answers)
    answer = {member.name: _split(member, roster, b"seed", [member.name])[0]}
    kept = set(survivors)
    for name in sorted(peers.keys() & set(sharers) & sealed.keys()):
        giver = (name, peers[name].sealing)
        try:
            shares = unseal(member.sealing_key, giver, member.sealing, roster.digest, sealed[name])
        except SecureSumError:
            continue  # one who deals shares that nobody can read must not keep others from the sum
        answer[name] = shares[: shamir.SHARE] if name in kept else shares[shamir.SHARE :]
    return answer


def signed_survivors(roster: Roster, sharers: Sequence[str], survivors: Sequence[str]) -> bytes:
    """What parties sign at stage 4."""
    return joined(b"coalface secure sum survivors", _sets(roster, sharers, survivors))


def _sets(roster: Roster, sharers: Sequence[str], survivors: Sequence[str]) -> bytes:
    return joined(roster.digest, joined(*sorted(sharers)), joined(*sorted(survivors)))


def _roster(member: Member, names: Sequence[str]) -> Roster:
    roster = read_roster(member.context, names)
    if member.name not in roster.points:
        raise SecureSumError("roster", "the party is not among those that have advertised", member.name)
    return roster


def _read_adverts(
    member: Member, roster: Roster, adverts: Mapping[str, bytes], verify: Verify | None
) -> dict[str, Advert]:
    """The neighbours' adverts, checked."""
    neighbours = roster.neighbours(member.name)
    if missing := sorted(set(neighbours) - adverts.keys()):
        raise SecureSumError("roster", f"{len(missing)} neighbours' keys are missing, first those of {missing[0]}")
    peers = {name: read_advert(member.context, name, adverts[name]) for name in neighbours}
    taken = {member.keys[:32], member.keys[32:64]}
    for name, advert in peers.items():
        if verify is not None and not verify(name, advert.signed, advert.signature):
            raise SecureSumError("signature", "its keys are not signed by it", name)
        if taken & {advert.sealing, advert.masking} or advert.sealing == advert.masking:
            raise SecureSumError("keys", "advertised a public key that another party has", name)
        taken |= {advert.sealing, advert.masking}
    return peers


def _split(member: Member, roster: Roster, kind: bytes, holders: Sequence[str]) -> list[bytes]:
    """The shares that these holders have of one of the party's two secrets."""
    secret = member.seed if kind == b"seed" else member.masking_key.private_bytes_raw()
    coefficients = member.derive("coefficients", kind, roster.digest)
    randomness = keystream(coefficients, (roster.threshold - 1) * shamir.COEFFICIENT)
    return shamir.split(secret, roster.threshold, [roster.points[name] for name in holders], randomness)


def _check_sharers(member: Member, roster: Roster, sharers: Sequence[str]) -> None:
    if member.name not in sharers or not set(sharers) <= roster.points.keys() or len(set(sharers)) < len(sharers):
        raise SecureSumError("roster", "who shared keys must have advertised them, and the party be among them")
    _check_left(member, roster, sharers)


def _check_survivors(member: Member, roster: Roster, sharers: Sequence[str], survivors: Sequence[str]) -> None:
    _check_sharers(member, roster, sharers)
    if member.name not in survivors or not set(survivors) <= set(sharers) or len(set(survivors)) < len(survivors):
        raise SecureSumError("roster", "survivors must have shared keys, and the party be among them")
    _check_left(member, roster, survivors)


def _check_left(member: Member, roster: Roster, names: Sequence[str]) -> None:
    check_enough(member.context, len(names))
    if (count := len(set(roster.holders(member.name)) & set(names))) < roster.threshold:
        raise SecureSumError("too-few", f"{count} holders of its shares are left; {roster.threshold} are needed")


def _record_sharers(member: Member, roster: Roster, sharers: Sequence[str], answers: Answers) -> None:
    """Write down whom the party masks for: at one place of a run one roster, and one set of it that shared keys.

    Its seed and masking key do not depend on the roster. A vector masked for a second one would be opened by the shares
    that were given for the first, and the two sums would differ by single vectors.
    """
    answers.record(member.context.place, "sharers", _digest(member, roster.digest, *sorted(sharers)))


def _record_survivors(
    member: Member, roster: Roster, sharers: Sequence[str], survivors: Sequence[str], answers: Answers
) -> None:
    """Write the sets down; the sharers are those that the vector was masked for."""
    _record_sharers(member, roster, sharers, answers)
    answers.record(member.context.place, "survivors", _digest(member, _sets(roster, sharers, survivors)))


def _digest(member: Member, *parts: bytes | str) -> bytes:
    """What an answer depends on besides its place: the party's keys for it, and these parts."""
    return hashlib.sha256(joined(member.context.digest, member.keys, *parts)).digest()
