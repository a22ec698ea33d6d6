from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coalface.core.calls import check_mean
from coalface.core.method import Mean, Tensors, content, free, like, message
from coalface.engine.sums.running import RunningMean, heaviest


@message
class Sent:
    w: Tensors
    centre: Tensor = content("template")


@message
class Reply:
    w: Tensors
    point: Tensor = like("centre", "template")
    maybe: Tensor | None = like("centre", "template")
    drawn: Tensor | None = free("weight")
    images: int = 1
    share: float = 1.0
    text: str = content("code", default="")


PARTIES = [f"p{i}" for i in range(7)]


def replies(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Reply]:
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4)).to(dtype)

    return {
        p: Reply(
            w={"a": drawn(3), "b": drawn(2, 2), "count": torch.tensor(5)},
            point=drawn(4),
            maybe=None,
            drawn=None,
            images=int(rng.integers(1, 50)),
            share=float(rng.random() + 0.1),
        )
        for p in PARTIES
    }


def aggregate(mean: Mean, replies_given: dict[str, Reply], sent: Any = None, block: int = 3) -> Any:
    running_mean = RunningMean(mean, block=block, everyone=PARTIES)
    for place, party in enumerate(PARTIES):
        if party in replies_given:
            before = sent[party] if sent and party in sent else sent
            running_mean.add(party, place, getattr(replies_given[party], mean.field), before, replies_given[party])
    return running_mean.result()


def naive(mean: Mean, replies_given: dict[str, Reply], name: str, sent: Any = None) -> list[float]:
    """Σ w x / Σ w, number by number, in Python's own floats."""
    total, weights = None, 0.0
    for party in PARTIES:
        by: Any = mean.by
        weight = 1.0 if by is None else by.get(party, 0.0) if isinstance(by, dict) else 0.0
        if party in replies_given:
            weight = float(getattr(replies_given[party], by)) if isinstance(by, str) else weight
            value = getattr(replies_given[party], mean.field)
            numbers = (value[name] if name else value).double().flatten().tolist()
            if mean.of == "differences":
                numbers = [x - s for x, s in zip(numbers, sent[party][name].double().flatten().tolist(), strict=True)]
            total = [t + weight * x for t, x in zip(total or [0.0] * len(numbers), numbers, strict=True)]
        if party in replies_given or mean.over == "all":
            weights += weight
    assert total is not None
    return [t / weights for t in total]


BY: list[Any] = ["images", "share", None, {p: 0.5 + i for i, p in enumerate(PARTIES)}, {"p1": 2.0, "p4": 1.0}]
CASES = [
    Mean("w", by=by, over=over, of=of)  # type: ignore[arg-type]
    for by, over, of in itertools.product(BY, ("arrived", "all"), ("values", "differences"))
    if not (isinstance(by, str) and over == "all")
]


@pytest.mark.parametrize("mean", CASES, ids=lambda m: f"{m.by}-{m.over}-{m.of}")
def test_a_fold_is_the_weighted_mean_that_a_loop_gives(mean: Mean) -> None:
    arrived = {p: r for p, r in replies().items() if p not in ("p2", "p6")}
    sent = {
        p: {"a": torch.arange(3.0) + i, "b": torch.ones(2, 2), "count": torch.tensor(0)} for i, p in enumerate(PARTIES)
    }
    result = aggregate(mean, arrived, sent)
    assert set(result) == {"a", "b"}  # the counter is not aggregated
    for name in ("a", "b"):
        expected = torch.tensor(naive(mean, arrived, name, sent), dtype=torch.float64).float()
        assert result[name].dtype == torch.float32
        assert torch.allclose(result[name].flatten(), expected, rtol=1e-6, atol=0)


def simple(value: float, images: int = 1) -> Reply:
    return Reply(w={"a": torch.tensor([value])}, point=torch.tensor([value]), maybe=None, drawn=None, images=images)


def test_numbers_worked_by_hand() -> None:
    two_replies = {"p0": simple(1.0, 1), "p1": simple(3.0, 3)}
    assert aggregate(Mean("w", by="images"), two_replies)["a"].item() == 2.5  # (1·1 + 3·3) / 4
    assert aggregate(Mean("w"), two_replies)["a"].item() == 2.0
    assert aggregate(Mean("w", over="all"), two_replies)["a"].item() == pytest.approx(
        4 / 7
    )  # the five that are missing count as 0
    assert (
        aggregate(Mean("w", by={"p0": 1.0, "p1": 1.0, "p2": 2.0}, over="all"), two_replies)["a"].item() == 1.0
    )  # (1 + 3) / 4
    assert aggregate(Mean("point", by="images"), two_replies).tolist() == [2.5]
    assert aggregate(Mean("w", of="differences"), two_replies, {"a": torch.tensor([0.5])})["a"].item() == 1.5


def test_sums_are_kept_in_float64() -> None:
    same_replies = {p: simple(1.0) for p in PARTIES}
    same_replies["p0"] = simple(2.0**30)
    assert aggregate(Mean("point"), same_replies).item() == torch.tensor((2.0**30 + 6) / 7).item()
    half = {
        p: Reply(w={"a": torch.tensor([400.0 + i], dtype=torch.float16)}, point=torch.zeros(1), maybe=None, drawn=None)
        for i, p in enumerate(PARTIES)
    }
    result = aggregate(Mean("w"), half)["a"]
    assert (result.dtype, result.item()) == (torch.float16, 403.0)


def test_a_fold_leaves_the_replies_and_what_was_sent_as_they_were() -> None:
    drawn_replies, sent = replies(), {"a": torch.arange(3.0), "b": torch.ones(2, 2)}
    before = {p: {n: t.clone() for n, t in r.w.items()} for p, r in drawn_replies.items()}
    result = aggregate(Mean("w", by="images"), drawn_replies)
    result["a"].fill_(0)
    aggregate(Mean("w", of="differences"), drawn_replies, sent | {"count": torch.tensor(0)})
    assert all(torch.equal(before[p][n], t) for p, r in drawn_replies.items() for n, t in r.w.items())
    assert torch.equal(sent["a"], torch.arange(3.0))


def sums(replies_given: dict[str, Reply], block: int) -> bytes:
    return aggregate(Mean("w", by="share"), replies_given, block=block)["b"].double().numpy().tobytes()


def test_bits_follow_the_block_size_and_nothing_else() -> None:
    """A party that is missing keeps its place in the blocks."""
    drawn_replies = replies(seed=4, dtype=torch.float64)
    assert sums(drawn_replies, 3) == sums(dict(reversed(drawn_replies.items())), 3)

    def by_hand(block: int) -> bytes:
        total, weight = None, 0.0
        for start in range(0, len(PARTIES), block):
            part = torch.zeros(2, 2, dtype=torch.float64)
            for p in PARTIES[start : start + block]:
                if p in drawn_replies:
                    part.add_(drawn_replies[p].w["b"], alpha=drawn_replies[p].share)
                    weight += drawn_replies[p].share
            total = part if total is None else total + part
        assert total is not None
        return (total / weight).numpy().tobytes()

    results = {block: sums(drawn_replies, block) for block in (1, 2, 3, 4, 7, 16)}
    assert results[7] == results[16] == by_hand(7)  # all in one block
    assert results[3] == by_hand(3)
    assert results[2] == by_hand(2)
    assert len(set(results.values())) > 1
    del drawn_replies["p1"]
    assert sums(drawn_replies, 3) == by_hand(3)


# --- one party's share ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "share", "expected"),
    [
        ([10, 20, 30, 10**15], 0.5, 60),
        ([100, 1, 1, 1], 0.5, 3),
        ([100, 90, 1, 1], 0.4, 4),  # 4, 4, 1, 1: of 10
        ([1, 5, 9], 0.2, 1),  # not possible: all count the same
        ([10**12] * 3 + [2**40], 1.0, 2**40),
    ],
)
def test_the_most_that_a_party_may_weigh(images: list[int], share: float, expected: float) -> None:
    most = heaviest(images, share)
    assert most == pytest.approx(expected)
    weights = [min(n, most) for n in images]
    if share * len(images) >= 1:
        assert max(weights) <= share * sum(weights) * (1 + 1e-12)


def test_a_weight_that_a_reply_says_counts_up_to_the_bound() -> None:
    most = heaviest([1, 2, 10**15], 0.5)
    running_mean = RunningMean(Mean("w", by="images"), block=4, everyone=["a", "b", "c"], heaviest=most)
    for place, (name, value, images) in enumerate([("a", 1.0, 1), ("b", 2.0, 2), ("c", 0.0, 10**15)]):
        running_mean.add(name, place, simple(value, images).w, None, simple(value, images))
    result = running_mean.result()
    assert isinstance(result, dict) and result["a"].item() == pytest.approx((1 * 1 + 2 * 2 + 3 * 0) / 6)


# --- what is refused --------------------------------------------------------------------------------------------------


def running(mean: Mean) -> RunningMean:
    return RunningMean(mean, block=3, everyone=PARTIES)


@pytest.mark.parametrize(
    ("mean", "names"),
    [
        (Mean("v"), "'v'"),
        (Mean("images"), "'images'"),
        (Mean("w", by="imgs"), "imgs"),
        (Mean("w", by="text"), "text"),
        (Mean("point", of="differences"), "point"),
        (Mean("drawn"), "free"),
        (Mean("w", by={"p1": 1.0, "p01": 2.0}), "p01"),
        (Mean("w", by={"p0": 1.0, "p1": -1.0}), "p1"),
        (Mean("w", by={"p0": 1.0, "p1": math.nan}), "p1"),
    ],
)
def test_a_mean_that_cannot_be_is_refused_when_it_is_asked_for(mean: Mean, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        check_mean(mean, everyone=PARTIES, reply=Reply, sent=(Sent,))
        running(mean)


@pytest.mark.parametrize(
    "other",
    [{"a": torch.ones(1)}, {"a": torch.ones(2), "b": torch.ones(2)}, {"a": torch.ones(2).double()}, {}],
    ids=["shape", "names", "dtype", "none"],
)
def test_tensors_that_differ_from_party_to_party_have_no_sum(other: Tensors) -> None:
    for one, two in ((other, {"a": torch.ones(2)}), ({"a": torch.ones(2)}, other)):
        running_mean = running(Mean("w"))
        running_mean.add("p0", 0, one, None, simple(1.0))
        with pytest.raises(ValueError, match="p3"):
            running_mean.add("p3", 3, two, None, simple(1.0))


def test_a_mean_of_no_weight_or_of_differences_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="p3 was sent no w"):
        running(Mean("w", of="differences")).add("p3", 3, simple(1.0).w, None, simple(1.0))
    with pytest.raises(ValueError, match="weight"):
        aggregate(Mean("w", by={"p6": 1.0}), {"p0": simple(1.0)})
