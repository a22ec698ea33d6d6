"""What a server that lies gets of a secure sum, and the contexts in which it could get more."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

import pytest
from sum_rounds import Parties, context

from coalface.privacy.secure_sums import client, server, shamir
from coalface.privacy.secure_sums.context import SecureSumError, joined
from coalface.privacy.secure_sums.guard import Answers
from coalface.privacy.secure_sums.keys import SEALED, Member
from coalface.privacy.secure_sums.neighbours import Roster


def test_the_server_can_invent_no_party_where_keys_are_signed() -> None:
    many = Parties(context(6, 1, 1), signs=True)
    members, names = many.members, many.names
    adverts = {name: client.advertise(members[name], many.node_keys[name].sign) for name in names}
    own = Member(names[3], b"the server's own secret".ljust(32), many.context)
    adverts[names[3]] = client.advertise(own, many.node_keys[names[2]].sign)
    sealed = many.answers[names[0]]
    for refusing in (
        lambda: client.share_keys(members[names[0]], names, adverts, many.verify),
        lambda: client.mask(members[names[0]], names, adverts, names, many.vectors[names[0]], sealed, many.verify),
    ):
        with pytest.raises(SecureSumError) as caught:
            refusing()
        assert (caught.value.code, caught.value.party) == ("signature", names[3])
    gathering = server.SecureSum(many.context, names, many.verify)
    with pytest.raises(SecureSumError) as caught:
        gathering.advertised(names[3], adverts[names[3]])
    assert (caught.value.code, caught.value.party) == ("signature", names[3])


def test_no_party_opens_a_sum_whose_parties_too_few_have_signed() -> None:
    many = Parties(context(6, 1, 1), signs=True)
    members, names = many.members, many.names
    adverts = {name: client.advertise(members[name], many.node_keys[name].sign) for name in names}
    dealt = {name: client.share_keys(members[name], names, adverts, many.verify) for name in names}
    one = names[0]
    sealed = {name: dealt[name][one][:82] for name in names[1:]}
    client.mask(members[one], names, adverts, names, many.vectors[one], many.answers[one], many.verify)
    others = {
        n: client.confirm(members[n], names, names, names[:5], many.node_keys[n].sign, Answers()) for n in names[:5]
    }
    for signatures in ({}, others, None):  # they have signed that the last party has left
        with pytest.raises(SecureSumError, match="signed the survivors") as caught:
            client.unmask(
                members[one], names, adverts, names, names, sealed, many.answers[one], many.verify, signatures
            )
        assert caught.value.code == "unconfirmed"


def test_a_party_answers_no_sets_that_cannot_be() -> None:
    many = Parties(context(6, 2, 1))
    members, names = many.members, many.names
    adverts = {name: client.advertise(members[name]) for name in names}
    one, vector = names[0], many.vectors[names[0]]

    def code(names: Any, sharers: Any, survivors: Any = None, given: Any = adverts, vector: Any = vector) -> str:
        with pytest.raises(SecureSumError) as caught:
            if survivors is None:
                client.mask(members[one], names, given, sharers, vector, Answers())
            else:
                client.unmask(members[one], names, given, sharers, survivors, {}, Answers())
        return caught.value.code

    assert code(names[:3], names[:3]) == code(names, names[:3]) == code(names, names, names[:3]) == "too-few"
    assert code(names[1:], names[1:]) == code(names, names[1:]) == code(names, names, names[1:]) == "roster"
    assert code(names, [*names, "x"]) == code(names, names[:5], names) == code([*names, "x"], names) == "roster"
    assert code([*names[:5], one], names) == code(names, [*names, one]) == code(names, names, [*names, one]) == "roster"
    assert code(names, names, given={name: adverts[name] for name in names[:4]}) == "roster"
    assert code(names, names, given=adverts | {names[2]: adverts[names[3]]}) == "keys"
    assert code(names, names, given=adverts | {names[2]: b"short"}) == "message"
    assert code(names, names, vector=vector[1:]) == code(names, names, vector=vector.astype(float)) == "vector"


def test_the_server_takes_no_answer_twice_late_or_from_a_stranger() -> None:
    many = Parties(context(5, 1, 1))
    gathering = server.SecureSum(many.context, many.names)
    adverts = {name: client.advertise(many.members[name]) for name in many.names}
    for name in many.names[1:]:
        gathering.advertised(name, adverts[name])

    def code(take: Any, *given: Any) -> str:
        with pytest.raises(SecureSumError) as caught:
            take(*given)
        return caught.value.code

    assert code(gathering.advertised, many.names[1], adverts[many.names[1]]) == "stage"
    assert code(gathering.advertised, "stranger", adverts[many.names[0]]) == "unknown"
    assert code(gathering.shared, many.names[1], {}) == "stage"
    gathering.share_requests()
    assert code(gathering.advertised, many.names[0], adverts[many.names[0]]) == "unknown"
    for begin in (gathering.survivors, gathering.unmask_requests, gathering.result):
        with pytest.raises(RuntimeError, match="the stage is shared"):
            begin()


SPARSE = pytest.param(
    60, 18, 6, 10, marks=pytest.mark.xfail(strict=True, reason="see docs/secure-sums.md: 2t <= k + 1")
)


@pytest.mark.parametrize(("parties", "dropouts", "corrupt", "complete"), [(12, 3, 2, 100), SPARSE])
def test_a_server_that_tells_two_sets_of_survivors_gets_one_secret_of_a_party_at_most(
    parties: int, dropouts: int, corrupt: int, complete: int
) -> None:
    """All parties are honest. By places on the ring every second one is told that the victim's vector never came."""
    many = Parties(context(parties, dropouts, corrupt, complete=complete), signs=True)
    names, members = many.names, many.members
    roster = Roster(many.context, names)
    ring = sorted(names, key=lambda name: hashlib.sha256(joined(b"ring", roster.digest, name)).digest())
    victim = ring[0]
    told = {name: names if place % 2 == 0 else [n for n in names if n != victim] for place, name in enumerate(ring)}
    adverts = {name: client.advertise(members[name], many.node_keys[name].sign) for name in names}
    dealt = {name: client.share_keys(members[name], names, adverts, many.verify) for name in names}
    signatures = {
        n: client.confirm(members[n], names, names, told[n], many.node_keys[n].sign, many.answers[n]) for n in names
    }
    shares: dict[bool, dict[int, bytes]] = {True: {}, False: {}}
    for holder in set(roster.holders(victim)) - {victim}:
        near = roster.neighbours(holder)
        sealed = {name: dealt[name][holder][:SEALED] for name in near}
        with suppress(SecureSumError):
            answer = client.unmask(
                members[holder],
                names,
                adverts,
                names,
                told[holder],
                sealed,
                many.answers[holder],
                many.verify,
                {name: signatures[name] for name in near},
            )
            shares[victim in told[holder]][roster.points[holder]] = answer[victim]
    opened = [shamir.combine(of) if len(of) >= roster.threshold else None for of in shares.values()]
    assert None in opened, "its seed and its masking key, and by them its vector"
    assert opened != [members[victim].seed, members[victim].masking_key.private_bytes_raw()]


@pytest.mark.parametrize(("asked", "dropouts", "corrupt"), [(6, 3, 0), (5, 2, 1), (100, 45, 10)])
def test_a_context_of_which_two_sets_of_survivors_could_be_signed_is_refused(
    asked: int, dropouts: int, corrupt: int
) -> None:
    with pytest.raises(ValueError, match="two sets of survivors"):
        context(asked, dropouts, corrupt)
    assert context(asked + 1, dropouts, corrupt).least == asked + 1 - dropouts


@pytest.mark.parametrize(("asked", "dropouts", "corrupt"), [(3, 1, 1), (1, 0, 0), (10, 9, 0), (10, -1, 2)])
def test_a_context_that_could_leave_one_honest_party_alone_is_refused(asked: int, dropouts: int, corrupt: int) -> None:
    with pytest.raises(ValueError, match="fewer than two honest"):
        context(asked, dropouts, corrupt)
    with pytest.raises(ValueError, match="bits must be"):
        context(10, 1, 1, bits=16)
