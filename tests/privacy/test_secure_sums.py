"""Secure sums whole: whoever drops out, and whatever single parties answer, the sum is exact or it is not opened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sum_rounds import RARE, STAGES, Parties, context, uniform

from coalface.core.method import Abandoned
from coalface.privacy.secure_sums import client, shamir
from coalface.privacy.secure_sums.context import SumContext
from coalface.privacy.secure_sums.fixed_point import HiddenMean, Layout, Summand
from coalface.privacy.secure_sums.guard import Answers
from coalface.privacy.secure_sums.keys import Member, mask_key, self_mask_key
from coalface.privacy.secure_sums.masks import add_masks
from coalface.privacy.secure_sums.neighbours import Roster

BIG = pytest.param(100, 100, marks=[pytest.mark.slow, pytest.mark.ci])
BIG_SPARSE = pytest.param(100, 10, marks=[pytest.mark.slow, pytest.mark.ci])
SIZES = pytest.mark.parametrize(("parties", "complete"), [(12, 100), (30, 10), BIG, BIG_SPARSE])


def dropped(parties: Parties, where: str) -> dict[str, list[str]]:
    """30 % of the parties, at one stage or spread over all of them."""
    count = parties.context.dropouts
    names = [parties.names[3 * number] for number in range(count)]
    return {stage: names[i::5] for i, stage in enumerate(STAGES)} if where == "all" else {where: names}


@SIZES
@pytest.mark.parametrize("where", [*STAGES, "all", "nowhere"])
def test_the_sum_is_exact_whoever_drops_out_and_where(where: str, parties: int, complete: int) -> None:
    count = 3 * parties // 10
    many = Parties(context(parties, count, parties // 20, complete=complete), signs=True)
    away = {} if where == "nowhere" else dropped(many, where)
    ran = many.run(away)
    early = {name for stage in STAGES[:3] for name in away.get(stage, ())}
    assert ran.survivors == [name for name in many.names if name not in early]
    assert ran.result() == many.total(ran.survivors)
    assert not ran.server.liars() and not many.refused
    assert (Roster(many.context, many.names).degree < parties - 1) == (complete == 10)


def test_the_decoded_means_are_within_the_stated_error() -> None:
    """Two means of one round, weights hidden; 20 parties, of which 6 drop out at different stages."""
    draws = np.random.default_rng(7)
    layout = Layout(
        {
            "backbone": HiddenMean({"w": Summand(30, 1.0), "b": Summand(4, 0.25, 20)}, heaviest=500),
            "head": HiddenMean({"": Summand(11, 2.0)}, heaviest=40),
        },
        parties=20,
    )
    many = Parties(context(20, 6, 4, length=layout.length, bits=layout.bits, layout=layout.digest))
    values: dict[str, Any] = {}
    for name in many.names:
        weights = int(draws.integers(1, 501)), int(draws.integers(1, 41))
        tensors = {"w": draws.normal(0, 0.6, 30), "b": draws.normal(0, 0.1, 4).astype(np.float32)}
        values[name] = {"backbone": (tensors, weights[0]), "head": ({"": draws.normal(0, 1, 11)}, weights[1])}
        many.vectors[name], _ = layout.encode(values[name])
    ran = many.run(dropped(many, "all"))
    means = layout.decode(ran.server.result())
    for mean, (tensors, weight) in means.items():
        assert weight == sum(values[name][mean][1] for name in ran.survivors)
        for tensor, numbers in tensors.items():
            clip = layout.means[mean].tensors[tensor].clip
            cut = {name: np.clip(values[name][mean][0][tensor].astype(float), -clip, clip) for name in ran.survivors}
            exact = sum(cut[name] * values[name][mean][1] for name in ran.survivors) / weight
            bound = layout.error(mean, tensor, len(ran.survivors), weight)
            assert 0 < np.abs(numbers - exact).max() <= bound


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whatever_drops_out_the_sum_is_exact_or_not_opened(data: st.DataObject) -> None:
    many = Parties(context(8, 3, 1, length=6), signs=data.draw(st.booleans()))
    fates = data.draw(st.lists(st.sampled_from([*STAGES, "stays", "stays"]), min_size=8, max_size=8))
    away = {stage: [n for n, fate in zip(many.names, fates, strict=True) if fate == stage] for stage in STAGES}
    if not many.verify:
        away["mask"], away["confirm"] = [*away["mask"], *away["confirm"]], []
    left = 8 - sum(len(names) for names in away.values())
    if left >= 5:
        ran = many.run(away)
        assert ran.result() == many.total(ran.survivors)
    else:
        with pytest.raises(Abandoned):
            many.run(away).result()


@pytest.mark.parametrize("where", STAGES)
@pytest.mark.parametrize("complete", [100, 10])
def test_below_the_threshold_nothing_is_put_together(
    where: str, complete: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One party more than may drop out does: no secret is opened, and before the last stage no share is asked for."""
    opened: list[Any] = []
    asked: list[Any] = []
    combine, unmask = shamir.combine, client.unmask
    monkeypatch.setattr(shamir, "combine", lambda shares: opened.append(shares) or combine(shares))
    monkeypatch.setattr(client, "unmask", lambda *given: asked.append(given) or unmask(*given))
    many = Parties(context(20, 6, 2, complete=complete), signs=True)
    few = [many.names[0], *dropped(many, where)[where][1:], many.names[1], many.names[2]]
    if where == "unmask" and complete == 10:  # so many must stay away that some party lacks holders of its shares
        few = many.names[:18]
    with pytest.raises(Abandoned, match="needed"):
        many.run({where: few}).result()
    assert not opened and (not asked or where == "unmask")


def test_a_party_that_all_its_neighbours_leave_stops_the_sum_before_a_share_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No more drop out than may: it is their places in the graph that the bound says are improbable."""
    monkeypatch.delattr(client, "unmask")
    many = Parties(context(60, 30, 1, complete=10))
    alone = many.names[5]
    near = Roster(many.context, many.names).neighbours(alone)
    assert len(near) == many.context.dropouts
    with pytest.raises(Abandoned, match=f"1 parties that hold shares of {alone} are left, and 2 are needed"):
        many.run({"mask": near})


def test_a_masked_vector_is_uniform_whatever_it_hides() -> None:
    many = Parties(context(5, 1, 1, length=20_000))
    names = many.names
    adverts = {name: client.advertise(many.members[name]) for name in names}
    for filled in (0, 12345, 2**31):
        vector = np.full(20_000, filled, "<u4")
        masked = client.mask(many.members[names[2]], names, adverts, names, vector, Answers())
        assert uniform(masked) > RARE
        assert uniform(vector) < 1e-9


def test_a_masked_vector_is_uniform_until_the_last_honest_neighbour_tells() -> None:
    """The server and all corrupt parties take off what they know: the party's own mask, and those shared with them."""
    many = Parties(context(6, 1, 3, length=20_000))
    names, victim = many.names, many.members[many.names[3]]
    adverts = {name: client.advertise(many.members[name]) for name in names}
    masked = client.mask(victim, names, adverts, names, np.zeros(20_000, "<u4"), Answers()).view("<u4")
    roster = Roster(many.context, names).digest
    add_masks(masked, [(self_mask_key(victim.seed, roster), False)])
    for number, name in enumerate(n for n in names if n != victim.name):
        assert uniform(masked) > RARE, number
        key = mask_key(many.members[name].masking_key, many.members[name].masking, victim.masking, roster)
        add_masks(masked, [(key, name < victim.name)])  # the other one's own part, which cancels the victim's
    assert not masked.any()


def test_the_same_request_gives_the_same_bytes_and_any_other_one_other_masks() -> None:
    about = context(4, 1, 1, length=2_000)
    zeros = np.zeros(2_000, "<u4")

    def masked(about: SumContext, request: bytes, commit: bytes) -> Any:
        members = {name: Member(name, name.encode().ljust(32), about, request, commit) for name in "abcd"}
        adverts = {name: client.advertise(member) for name, member in members.items()}
        return client.mask(members["b"], "abcd", adverts, "abcd", zeros, Answers())

    first = masked(about, b"asked", b"commit")
    assert (masked(about, b"asked", b"commit") == first).all()
    settings = {"length": 2_000}
    others = [
        masked(about, b"another", b"commit"),
        masked(about, b"asked", b"another"),
        masked(about, b"askedc", b"ommit"),
        *(masked(context(4, 1, 1, **settings, **{key: 2}), b"asked", b"commit") for key in ("round", "call")),
        *(masked(context(4, 1, 1, **settings, **{key: "x"}), b"asked", b"commit") for key in ("run", "stage")),
        masked(context(4, 1, 1, **settings, layout=b"x"), b"asked", b"commit"),
        masked(context(4, 1, 0, **settings), b"asked", b"commit"),
    ]
    for number, vector in enumerate(others):
        assert uniform(vector - first) > RARE, number  # what two masks differ by is as random as either


def altered(stage: str, who: str, answer: Any) -> Any:
    """An answer instead of a party's at a stage."""
    return lambda at, name, given: answer(given) if (at, name) == (stage, who) else given


LIAR = "silo-0004"


@pytest.mark.parametrize(
    ("stage", "answer", "code"),
    [
        ("advertise", lambda advert: advert[:95], "message"),
        ("advertise", lambda advert: advert + bytes(513), "message"),
        ("advertise", lambda advert: bytes(32) + advert[32:], "keys"),
        ("advertise", lambda advert: advert[:32] + advert[:32] + advert[64:], "keys"),
        ("share", lambda shares: {name: data[:-1] for name, data in shares.items()}, "message"),
        ("share", lambda shares: dict(list(shares.items())[1:]), "message"),
        ("share", lambda shares: {**shares, "stranger": b""}, "message"),
        ("mask", lambda vector: vector[:-1], "vector"),
        ("mask", lambda vector: vector.astype(np.int64), "vector"),
        ("mask", lambda vector: vector.astype(np.float32), "vector"),
        ("unmask", lambda shares: {**shares, "stranger": b""}, "message"),
    ],
)
def test_a_malformed_answer_takes_its_party_out_and_nobody_else(stage: str, answer: Any, code: str) -> None:
    many = Parties(context(10, 3, 2))
    ran = many.run(change=altered(stage, LIAR, answer))
    assert [(error.code, error.party) for error in many.refused] == [(code, LIAR)]
    assert str(many.refused[0]).startswith(LIAR)
    assert ran.survivors == [n for n in many.names if n != LIAR or stage == "unmask"]
    assert ran.result() == many.total(ran.survivors)


@pytest.mark.parametrize(
    "answer",
    [
        lambda shares: {name: bytes(33) for name in shares},
        lambda shares: {name: b"\xff" * 33 for name in shares},
        lambda shares: {name: b"" for name in shares},
        lambda shares: {},
        lambda shares: dict(zip(shares, [*list(shares.values())[1:], list(shares.values())[0]], strict=True)),
    ],
)
def test_who_gives_wrong_shares_is_told_and_the_others_open_the_sum(answer: Any) -> None:
    many = Parties(context(10, 3, 2))
    ran = many.run({"mask": many.names[:2]}, altered("unmask", LIAR, answer))
    assert ran.result() == many.total(many.names[2:])
    assert ran.server.liars() == [LIAR]


def garbled(shares: dict[str, bytes]) -> dict[str, bytes]:
    return {name: bytes(len(data) - 64) + data[-64:] for name, data in shares.items()}


def test_who_deals_shares_that_nobody_can_read_is_told_and_the_sum_is_not_opened() -> None:
    many = Parties(context(10, 3, 2))
    ran = many.run(change=altered("share", LIAR, garbled))
    with pytest.raises(Abandoned, match=f"secret of {LIAR} came.*who lied: {LIAR}"):
        ran.result()
    assert ran.server.liars() == [LIAR]


def test_one_share_that_cannot_be_read_stops_nobody_and_tells_of_nobody() -> None:
    many = Parties(context(10, 3, 2))

    def one(shares: dict[str, bytes]) -> dict[str, bytes]:
        return {name: data if name != "silo-0007" else garbled(shares)[name] for name, data in shares.items()}

    ran = many.run(change=altered("share", LIAR, one))
    assert ran.result() == many.total(many.names)
    assert ran.server.liars() == []  # either of the two may have lied


@pytest.mark.parametrize("drops", [False, True])
def test_who_deals_shares_of_another_secret_is_told(drops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every share fits what its dealer said of it; what they give together does not fit what it advertised."""
    many = Parties(context(10, 3, 2))
    split = shamir.split
    monkeypatch.setattr(shamir, "split", lambda secret, *given: split(lies.get(secret, secret), *given))
    member = many.members[LIAR]
    lies = {secret: b"another secret".ljust(32) for secret in (member.seed, member.masking_key.private_bytes_raw())}
    ran = many.run({"mask": [LIAR]} if drops else {})
    with pytest.raises(Abandoned, match=LIAR):
        ran.result()
    assert ran.server.liars() == [LIAR]
