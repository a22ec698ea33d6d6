"""Robust means of a run's replies: what they count, what they refuse, and that their bytes are always the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from grids import over_flower
from server_runs import metrics, stopped_and_resumed
from toys import Moves, State, Values

from coalface.core.errors import RecipeError
from coalface.core.method import Federation, Mean, Tensors, message
from coalface.engine.faults import SimulatedFaults
from coalface.engine.robust.aggregators import (
    AGGREGATORS,
    Aggregator,
    CentredClipping,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBound,
    TrimmedMean,
)
from coalface.engine.robust.mean import RobustMean
from coalface.experiments.conformance.tiny_federation import Tiny, run, workers

pytestmark = pytest.mark.usefixtures("toy_steps")
FIVE = Tiny(parties=5)
STATISTICS = frozenset({"norm.running_mean", "norm.running_var"})


@message
class Reply:
    w: Tensors
    images: int = 1


def combined(
    mean: Mean,
    aggregator: Aggregator,
    replies: dict[str, Tensors],
    sent: Any = None,
    everyone: tuple[str, ...] | None = None,
) -> Tensors:
    """The robust mean of replies; `sent` is the same for all, or of each party."""
    parties = everyone or tuple(replies)
    rng = np.random.default_rng(0)
    robust = RobustMean(mean, aggregator, everyone=parties, statistics=STATISTICS, rng=rng)
    for place, (party, w) in enumerate(replies.items()):
        robust.add(party, place, w, (sent or {}).get(party, sent), Reply(w=w, images=10**6 if party == "p0" else 1))
    result = robust.result()
    assert isinstance(result, dict)
    return result


def single(*values: float, dtype: torch.dtype = torch.float32) -> dict[str, Tensors]:
    return {f"p{i}": {"a": torch.tensor([value], dtype=dtype)} for i, value in enumerate(values)}


# --- what is counted --------------------------------------------------------------------------------------------------


def test_numbers_worked_by_hand() -> None:
    replies, sent = single(900.0, 2.0, 3.0, 5.0, 1.0), {"a": torch.tensor([1.0])}
    assert combined(Mean("w", by="images"), Median(), replies)["a"].item() == 3.0  # a million images count once
    assert combined(Mean("w", of="differences"), Median(), replies, sent)["a"].item() == 2.0
    trimmed = combined(Mean("w"), TrimmedMean(byzantine=0.2), replies)["a"].item()
    assert trimmed == pytest.approx(10 / 3)
    # updates 899, 1, 2, 4, 0, their median 2: (2 + 1 + 2 + 2 + 0) / 5, from 1 on
    assert combined(Mean("w"), NormBound(), replies, sent)["a"].item() == pytest.approx(2.4)
    assert combined(Mean("w"), NormBound(), replies)["a"].item() == pytest.approx((3 + 2 + 3 + 3 + 1) / 5)
    assert combined(Mean("w", over="all"), Median(), replies, everyone=tuple("p0 p1 p2 p3 p4 x y z u v".split()))[
        "a"
    ].item() == pytest.approx(1.5)  # half of all answered


def test_whom_the_server_gives_no_weight_is_left_out() -> None:
    replies = single(900.0, 2.0, 3.0, 5.0)
    by = {"p1": 1.0, "p2": 100.0, "p3": 1.0}
    assert combined(Mean("w", by=by), Median(), replies)["a"].item() == 3.0
    assert combined(Mean("w", by=by, over="all"), Median(), single(900.0, 2.0, 4.0), everyone=("p0", "p1", "p2", "p3"))[
        "a"
    ].item() == pytest.approx(3 * 101 / 102)
    with pytest.raises(ValueError, match="weight"):
        combined(Mean("w", by={"p3": 1.0}), Median(), single(1.0))
    with pytest.raises(ValueError, match="negative"):
        combined(Mean("w", by={"p3": -1.0}), Median(), single(1.0))


def test_parties_that_were_sent_different_values_are_combined_as_they_are() -> None:
    sent = {f"p{i}": {"a": torch.tensor([float(i)])} for i in range(3)}
    assert combined(Mean("w"), NormBound(radius=2.0), single(1.0, 2.0, 9.0), sent)["a"].item() == pytest.approx(5 / 3)
    mean = Mean("w", of="differences")  # 1, 1 and 7
    assert combined(mean, NormBound(radius=2.0), single(1.0, 2.0, 9.0), sent)["a"].item() == pytest.approx(4 / 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_result_has_the_type_of_the_replies(dtype: torch.dtype) -> None:
    result = combined(Mean("w"), GeometricMedian(), single(1.0, 2.0, 4.0, dtype=dtype))["a"]
    assert result.dtype == dtype and result.item() == pytest.approx(2.0, abs=0.02)
    counted = {p: {**w, "count": torch.tensor(7)} for p, w in single(1.0, 2.0, 4.0, dtype=dtype).items()}
    assert set(combined(Mean("w"), Median(), counted)) == {"a"}


@pytest.mark.parametrize("name", AGGREGATORS)
def test_running_statistics_go_by_themselves_and_no_variance_is_below_0(name: str) -> None:
    """They are larger than all else, and would decide whose weights are taken; a liar's would be in a mean."""
    cls = AGGREGATORS[name]
    aggregator = cls(byzantine=1) if cls.counts_liars else cls()
    rng = np.random.default_rng(0)

    def drawn(weight: float, variance: float) -> Tensors:
        near = torch.from_numpy(weight + 0.01 * rng.standard_normal(8)).float()
        return {
            "norm.running_var": torch.full((2,), variance),
            "weight": near,
            "norm.running_mean": torch.full((2,), variance),
        }

    replies = {f"p{i}": drawn(1.0, v) for i, v in enumerate((0.0, 1e-12, 500.0, 900.0, 1e3))} | {"p5": drawn(90.0, 0.0)}
    sent = drawn(1.0, 1.0)
    result = combined(Mean("w"), aggregator, replies, sent)
    assert list(result) == ["norm.running_var", "weight", "norm.running_mean"]
    assert result["norm.running_var"].tolist() == pytest.approx([250.0, 250.0])  # of six values the middle two
    assert (result["weight"] - 1).abs().max() < 0.2  # that of p5 is far off, though its statistics are p0's
    nothing = combined(Mean("w"), aggregator, {p: drawn(1.0, 0.0) for p in replies}, drawn(1.0, 1e-3))
    assert (nothing["norm.running_var"] >= 0).all()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "where"),
    [
        (lambda: TrimmedMean(), "byzantine"),
        (lambda: Krum(mixing=True), "byzantine"),
        (lambda: Median(mixing=True), "byzantine"),
        (lambda: Median(byzantine=2), "byzantine"),
        (lambda: MultiKrum(byzantine=0.5), "byzantine"),
        (lambda: MultiKrum(byzantine=-1), "byzantine"),
        (lambda: Median(bucket=0), "bucket"),
        (lambda: NormBound(radius=0.0), "radius"),
        (lambda: CentredClipping(radius=float("nan")), "radius"),
        (lambda: CentredClipping(iterations=0), "iterations"),
    ],
)
def test_settings_that_cannot_be_are_refused(made: Callable[[], Aggregator], where: str) -> None:
    with pytest.raises(RecipeError) as error:
        made()
    assert error.value.where == where


@pytest.mark.parametrize(
    ("aggregator", "replies", "liars"),
    [
        (TrimmedMean(byzantine=2), 5, 2),
        (TrimmedMean(byzantine=2), 4, None),
        (Krum(byzantine=0.2), 10, 2),
        (Krum(byzantine=0.2), 11, 3),
        (Krum(byzantine=0.3), 10, 3),
        (Krum(byzantine=0.4), 3, None),  # 1.2 is rounded up to 2
        (Median(), 1, 0),
        (MultiKrum(byzantine=2, bucket=2), 9, 2),
        (MultiKrum(byzantine=2, bucket=2), 8, None),  # 4 buckets, of which 2 may have a liar
    ],
)
def test_how_many_liars_some_replies_are_taken_to_hold(aggregator: Aggregator, replies: int, liars: int | None) -> None:
    if liars is not None:
        assert aggregator.liars(replies) == liars
        return
    with pytest.raises(ValueError, match=f"{replies} replies"):
        aggregator.liars(replies)


def test_a_mean_over_parties_that_were_computed_together_cannot_be_taken_apart() -> None:
    robust = RobustMean(Mean("w"), Median(), everyone=("p0",), statistics=STATISTICS, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="client_batch"):
        robust.add("p0", 0, single(1.0)["p0"], None, None, 3.0)


# --- in a run ---------------------------------------------------------------------------------------------------------

LIAR = SimulatedFaults(corrupt={"silo-1": "scaled"})
"""Its update is a thousand times what it should be."""


@pytest.mark.parametrize("aggregator", [Median(), TrimmedMean(byzantine=1)], ids=["median", "trimmed mean"])
def test_a_run_survives_a_liar(tmp_path: Path, aggregator: Aggregator) -> None:
    """Silo i moves every value by i + 1 in each round: by 1, 2000, 3, 4 and 5."""
    ran = run(Moves(rounds=2), tmp_path, FIVE, aggregator=aggregator, faults=LIAR, max_update_norm=0.0)
    assert all((t == 8.0).all() for t in ran.models.shared.values())  # the median 4, and the mean of 3, 4 and 5
    assert all((t == 5 * 8.0).all() for t in ran.state.control.values())
    without = run(Moves(rounds=2), tmp_path / "mean", FIVE, faults=LIAR, max_update_norm=0.0)
    assert all((t > 100).all() for t in without.models.shared.values())


def test_too_few_replies_abandon_the_round(tmp_path: Path) -> None:
    absent = SimulatedFaults(corrupt={"silo-3": "nan", "silo-4": "nan"})
    run(Moves(rounds=1), tmp_path, FIVE, aggregator=Krum(byzantine=2), faults=absent, max_abandoned_rounds=9)
    (line,) = metrics(tmp_path)
    assert line["abandoned"] and "3 replies are too few to survive 2 liars" in line["reason"]


BUCKETS = MultiKrum(byzantine=1, mixing=True, bucket=2)


def test_bytes_are_the_same_after_a_resume_and_others_by_another_seed(tmp_path: Path) -> None:
    kept_bytes = run(Moves(), tmp_path / "whole", FIVE, aggregator=BUCKETS, seed=3).bytes()
    resumed = stopped_and_resumed(Moves(), tmp_path / "resumed", 7, FIVE, aggregator=BUCKETS, seed=3)
    assert resumed.bytes() == kept_bytes
    other = run(Moves(), tmp_path / "other", FIVE, aggregator=BUCKETS, seed=4)
    assert not torch.equal(other.models.shared["b"], resumed.models.shared["b"])  # who shares a bucket is drawn


def test_buckets_follow_from_a_secret_where_there_is_one(tmp_path: Path) -> None:
    def moved(name: str, seed: int, secret: bytes | None) -> tuple[float, ...]:
        ran = run(Moves(), tmp_path / name, FIVE, aggregator=BUCKETS, seed=seed, secret=secret)
        return tuple(ran.models.shared["b"].flatten().tolist())

    by_seed = {moved(f"seed {seed}", seed, None) for seed in range(4)}
    assert len(by_seed) > 1 and len({moved(f"kept {seed}", seed, b"1" * 32) for seed in range(4)}) == 1
    assert len({moved(f"secret {byte}", 0, bytes([byte]) * 32) for byte in range(4)}) > 1


@pytest.mark.slow
@pytest.mark.ci
def test_bytes_are_the_same_over_workers(tmp_path: Path) -> None:
    kept_bytes = run(Moves(), tmp_path / "whole", FIVE, aggregator=BUCKETS).bytes()
    assert run(Moves(), tmp_path / "two", FIVE, aggregator=BUCKETS, transport=workers(2)).bytes() == kept_bytes


def test_over_flower_it_comes_to_the_same_bytes(tmp_path: Path) -> None:
    kept_bytes = run(Moves(), tmp_path / "here", FIVE, aggregator=BUCKETS).bytes()
    assert run(Moves(), tmp_path / "there", FIVE, aggregator=BUCKETS, transport=over_flower()).bytes() == kept_bytes


@dataclass(frozen=True, kw_only=True)
class Once(Moves):
    """Asks for sums that may be opened once."""

    def round(self, fed: Federation, state: State) -> State:
        sent = Values(values=state.values)
        answer = fed.ask(self.move, common=sent, aggregate=[Mean("values", once=True)])
        return State(values=answer.aggregated["values"], control=state.control)


def test_a_robust_mean_is_recorded_before_it_is_opened(tmp_path: Path) -> None:
    run(Once(rounds=2), tmp_path, FIVE, aggregator=Median())
    assert len((tmp_path / "opened.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("name", AGGREGATORS)
def test_a_network_with_batchnorm_trains(tmp_path: Path, name: str) -> None:
    cls = AGGREGATORS[name]
    aggregator = cls(byzantine=1, mixing=True) if cls.counts_liars else cls()
    method = worlds.recipe("fedavg", rounds=2)[0]
    ran = run(method, tmp_path, Tiny(parties=3, norm=True), aggregator=aggregator)
    assert not any(line["abandoned"] for line in metrics(tmp_path))
    assert (ran.models.shared["norm.running_var"] > 0).all()
