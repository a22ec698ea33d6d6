"""One party whose update is too large: it neither decides the mean nor ends the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import worlds
from grids import over_flower
from server_runs import metrics
from toys import CALLS, Moved, Moves, State, Values, _zeros

from coalface.core import codec
from coalface.core.method import Federation, Mean, Ticket
from coalface.engine.faults import SimulatedFaults
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request
from coalface.engine.party.setup import FederatedData, Setup
from coalface.engine.transport import Member, Reply
from coalface.engine.update_bounds import UpdateBounds
from coalface.engine.workers import Workers
from coalface.experiments.conformance.tiny_federation import Ran, Stop, Tiny, run, stopping

pytestmark = pytest.mark.usefixtures("toy_steps")
FIVE = Tiny(parties=5)
SLOW = (pytest.mark.slow, pytest.mark.ci)
Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def times(factor: float) -> Change:
    """An update so many times as large."""
    return lambda after, before: before + factor * (after - before)


def hostile(
    change: Change, carrier: type[InProcess] = InProcess, liars: Mapping[str, Change] | None = None, only: str = ""
) -> Callable[[Setup, FederatedData], Any]:
    """A transport on whose way silo-1's replies are changed, and those of `liars` where they are asked again."""

    def made(setup: Setup, world: FederatedData) -> Any:
        asked: set[tuple[str, str]] = set()

        class Rewriting(carrier):  # type: ignore[misc, valid-type]
            def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
                return self.changed(super().exchange(requests))

            def collect(self, ticket: Ticket, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
                answered = super().collect(ticket, requests)
                return self.changed(answered) if carrier is Workers else answered  # which asks `exchange` else

            def changed(self, answered: Iterator[tuple[Request, Reply]]) -> Iterator[tuple[Request, Reply]]:
                for request, reply in answered:
                    how = change if request.party == "silo-1" else None
                    if (request.party, request.id) in asked:
                        how = (liars or {}).get(request.party, how)
                    asked.add((request.party, request.id))
                    yield request, reply if how is None else rewritten(setup, request, reply, how, only)

        return Rewriting(setup, world, 2, 4) if carrier is Workers else Rewriting(setup, world)

    return made


def rewritten(setup: Setup, request: Request, reply: Any, change: Any, only: str = "") -> Reply:
    declaration = setup.method.steps[request.step][1]
    message = codec.decode(bytearray(reply.data), declaration.reply)
    sent = request.common.message(declaration.common) if request.common else None
    changed = {}
    for name, value in vars(message).items():
        if isinstance(value, dict):
            before = getattr(sent, name, None) or {n: torch.zeros_like(t) for n, t in value.items()}
            changed[name] = {n: change(t, before[n]).to(t.dtype) if only in n else t for n, t in value.items()}
    return codec.encode(dataclasses.replace(message, **changed))


def claiming(images: int, *, zeros: bool = False) -> type[InProcess]:
    """A transport over which silo-1 says that it has so many images; with `zeros` it sends values of nothing."""

    class Claiming(InProcess):
        def __init__(self, setup: Setup, world: FederatedData) -> None:
            super().__init__(setup, world)
            self.members["silo-1"] = Member("trainer", images, 1)

        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for request, reply in super().exchange(requests):
                if zeros and request.party == "silo-1":
                    reply = codec.encode(Moved(values=_zeros(), delta=_zeros(), images=images, loss=0.0))
                yield request, reply

    return Claiming


def without(ran: Ran) -> dict[str, bytes]:
    """The bytes that are those of a run in which the party never counts: all but the metrics and what it has itself."""
    return {n: b for n, b in ran.bytes().items() if n != "metrics" and not n.startswith(("silo-1 ", "ledger silo-1"))}


@pytest.mark.parametrize(
    ("factor", "carrier"),
    [(1000.0, InProcess), (-1000.0, InProcess), (3e30, InProcess), pytest.param(1000.0, Workers, marks=SLOW)],
)
@pytest.mark.usefixtures("quick_workers")
def test_a_reply_that_is_too_large_counts_no_more_than_one_that_never_came(
    tmp_path: Path, factor: float, carrier: type[InProcess]
) -> None:
    attacked = run(Moves(), tmp_path / "attacked", FIVE, transport=hostile(times(factor), carrier=carrier))
    absent = run(Moves(), tmp_path / "absent", FIVE, faults=SimulatedFaults(corrupt={"silo-1": "nan"}))
    assert without(attacked) == without(absent)
    assert {"silo-1"} == set().union(*(r["failed"] for r in metrics(tmp_path / "attacked")))


def test_without_a_bound_it_decides_the_mean(tmp_path: Path) -> None:
    honest = run(Moves(), tmp_path / "honest", FIVE).state.values["a"][0].item()
    for bound, says in ((0.0, True), (10.0, False)):
        ran = run(Moves(), tmp_path / str(bound), FIVE, transport=hostile(times(1000)), max_update_norm=bound)
        assert (ran.state.values["a"][0].item() > 100 * honest) is says


def test_asked_again_a_party_trains_once(tmp_path: Path) -> None:
    bound = run(Moves(), tmp_path / "bound", FIVE)  # nobody is asked again where all are honest
    assert len(CALLS) == 15 and bound.server.at.totals["again"] == 0
    assert run(Moves(), tmp_path / "free", FIVE, max_update_norm=0.0).bytes() == bound.bytes()
    CALLS.clear()
    ran = run(Moves(), tmp_path / "hostile", FIVE, transport=hostile(times(1000)))
    assert len(CALLS) == 15
    totals = ran.server.at.totals
    assert 0 < totals["again"] < totals["up"] and 0 < totals["refused"]


def test_a_party_that_sends_something_else_when_asked_again_does_not_count(tmp_path: Path) -> None:
    """Beside one that is too large, another one is measured small and would be summed large."""
    for oversized in ("refuse", "clip"):
        liars = hostile(times(1000), liars={"silo-2": times(5)})
        ran = run(Moves(rounds=1), tmp_path / oversized, FIVE, transport=liars, oversized=oversized)
        assert "something else" in metrics(tmp_path / oversized)[0]["failed"]["silo-2"]
        assert ran.state.values["a"][0] < 100


@pytest.mark.parametrize(
    ("factor", "bound", "named"),
    [(8.0, 30.0, False), (20.0, 30.0, True), (20.0, 0.0, True), (20.0, 5.0, False), (8.0, 5.0, False)],
)
def test_a_large_reply_that_counts_is_named_in_the_metrics(
    tmp_path: Path, factor: float, bound: float, named: bool
) -> None:
    """Its update is 2 times the factor, and the median 4 by the root of the images; one that is refused has failed."""
    run(Moves(rounds=1), tmp_path, FIVE, transport=hostile(times(2 * factor)), max_update_norm=bound)
    (record,) = metrics(tmp_path)
    assert ("large" in record, "silo-1" in record["failed"]) == (named, factor > bound > 0)
    if named:
        assert list(record["large"]) == ["silo-1"] and "what others sent" in record["large"]["silo-1"]


def test_a_clipped_reply_counts_as_one_at_the_bound(tmp_path: Path) -> None:
    ran = run(Moves(rounds=1), tmp_path, FIVE, transport=hostile(times(1000)), oversized="clip", max_update_norm=2.0)
    # The updates are 1, 2000, 3, 4, 5 in every number: by the root of the images the median is 4 / √12.
    images = [12, 11, 10, 12, 11]
    expected = sum(n * by for n, by in zip(images, [1, 8 * (11 / 12) ** 0.5, 3, 4, 5], strict=True)) / sum(images)
    assert ran.state.values["a"].tolist() == pytest.approx([expected] * 3)
    (record,) = metrics(tmp_path)
    assert (record["arrived"], list(record["clipped"])) == (5, ["silo-1"])


@pytest.mark.parametrize("oversized", ["refuse", "clip"])
def test_stopped_anywhere_and_resumed_is_the_unbroken_run(tmp_path: Path, oversized: str) -> None:
    def attacked(folder: str, carrier: type[InProcess]) -> Any:
        return run(Moves(), tmp_path / folder, FIVE, transport=hostile(times(99), carrier=carrier), oversized=oversized)

    unbroken = attacked("unbroken", InProcess).bytes()
    for after in (3, 6, 9, 13, 20):
        with pytest.raises(Stop):
            attacked(f"{after}", stopping(after))
        assert attacked(f"{after}", InProcess).bytes() == unbroken, after


@dataclass(frozen=True, kw_only=True)
class Posts(Moves):
    """Has the values moved by posted work."""

    def round(self, fed: Federation, state: State) -> State:
        ticket = fed.post(self.move, common=Values(values=state.values))
        return State(values=fed.collect(ticket, aggregate=[Mean("values")]).aggregated["values"], control=state.control)


@pytest.mark.parametrize("carrier", [InProcess, pytest.param(Workers, marks=SLOW)])
@pytest.mark.usefixtures("quick_workers")
def test_posted_work_is_bounded_as_well(tmp_path: Path, carrier: type[InProcess]) -> None:
    ran = run(Posts(rounds=2), tmp_path, FIVE, transport=hostile(times(1000), carrier=carrier))
    assert ran.state.values["a"].tolist() == pytest.approx([2 * (1 + 3 + 4 + 5) / 4] * 3)


def test_of_two_nobody_can_tell_which_is_too_large_but_what_float32_cannot_hold(tmp_path: Path) -> None:
    two = Tiny(parties=2)
    run(Moves(rounds=1), tmp_path / "large", two, transport=hostile(times(1000)))
    run(Moves(rounds=1), tmp_path / "huge", two, transport=hostile(times(1e30)))
    assert [list(metrics(tmp_path / n)[0]["failed"]) for n in ("large", "huge")] == [[], ["silo-1"]]


@pytest.mark.parametrize(("share", "most"), [(None, 1.0), (0.5, 0.5)])
def test_a_party_that_says_it_has_all_images_of_the_world_counts_up_to_the_bound(
    tmp_path: Path, share: float | None, most: float
) -> None:
    """It sends the zeros that it was sent, so the mean falls by its share of the weights."""
    ran = run(Moves(rounds=1), tmp_path, FIVE, transport=claiming(1 << 40, zeros=True), max_share=share)
    others = (12 * 1 + 10 * 3 + 12 * 4 + 11 * 5) / 45
    assert ran.state.values["a"][0].item() == pytest.approx((1 - most) * others, abs=1e-6)


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_the_absent_hold_nobody_down(tmp_path: Path, absent: int) -> None:
    """Of silo-1's 11 images and the others' 12 + 10 + 12 + 11, half of what arrives is the most that one can count."""
    faults = SimulatedFaults(corrupt={f"silo-{p}": "nan" for p in (4, 3)[:absent]})
    bound: dict[str, Any] = {"transport": claiming(1000, zeros=True), "max_share": 0.5, "max_update_norm": 0.0}
    value = run(Moves(rounds=1), tmp_path, FIVE, faults=faults, **bound).state.values["a"][0].item()
    moved = [(12, 1), (10, 3), (12, 4), (11, 5)][: 4 - absent]
    assert value == pytest.approx(sum(n * by for n, by in moved) / sum(2 * n for n, _ in moved))


def test_a_number_of_images_that_a_server_weighs_by_is_held_down_too(tmp_path: Path) -> None:
    weights: dict[str, float] = {}

    @dataclass(frozen=True, kw_only=True)
    class Weighs(Moves):
        def round(self, fed: Federation, state: State) -> State:
            weights.update(fed.weights("trainer"))
            return super().round(fed, state)

    run(Weighs(rounds=1), tmp_path, FIVE, transport=claiming(1 << 40), max_share=0.5)
    assert weights == {"silo-0": 12, "silo-1": 45, "silo-2": 10, "silo-3": 12, "silo-4": 11}


@pytest.mark.parametrize(("equal", "refused"), [(True, True), (False, False)])
def test_who_takes_more_steps_may_go_further(tmp_path: Path, equal: bool, refused: bool) -> None:
    """Of 100 times the images an update of six times the median is half the median by its root."""

    carrier = hostile(times(24 / 2), carrier=claiming(1100))  # its own update is 2, the median 4
    run(Moves(rounds=1), tmp_path, FIVE, transport=carrier, equal_steps=equal, max_update_norm=5.0)
    assert ("silo-1" in metrics(tmp_path)[0]["failed"]) is refused


def test_over_flower_it_comes_to_the_same_bytes(tmp_path: Path) -> None:
    def attacked(setup: Setup, world: FederatedData) -> Any:
        link: Any = over_flower()(setup, world)
        exchange_before = link.exchange

        def exchange(requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for request, reply in exchange_before(requests):
                bad = request.party == "silo-1"
                yield request, rewritten(setup, request, reply, times(1000)) if bad else reply

        link.exchange = exchange
        return link

    kept_bytes = run(Moves(), tmp_path / "here", FIVE, transport=hostile(times(1000))).bytes()
    assert run(Moves(), tmp_path / "there", FIVE, transport=attacked).bytes() == kept_bytes


def test_running_statistics_are_measured_apart_from_parameters(tmp_path: Path) -> None:
    """They may differ more than weights do; but no variance is below 0."""
    build = Tiny(parties=5, norm=True)
    method = worlds.recipe("fedavg", rounds=2)[0]

    for name, factor, refused in (
        ("weight", 12.0, True),
        ("running_mean", 12.0, False),
        ("running_mean", 1e4, True),
        ("running_var", -12.0, True),
    ):
        folder = tmp_path / f"{name} {factor}"
        run(method, folder, build, transport=hostile(times(factor), only=name), max_update_norm=5.0)
        assert any("silo-1" in r["failed"] for r in metrics(folder)) is refused
        if refused:
            says = {"weight": "norm of its backbone", "running_mean": "running statistics", "running_var": "variance"}
            assert says[name] in metrics(folder)[0]["failed"]["silo-1"]


def test_the_measure_is_the_lower_of_two_middle_updates(tmp_path: Path) -> None:
    """Of four parties of equal steps the updates are 1, 24, 3 and 4: 24 is 8 times 3, and 6 times 4."""
    four = Tiny(parties=4)
    rules: dict[str, Any] = {"equal_steps": True, "max_update_norm": 7.0}
    run(Moves(rounds=1), tmp_path, four, transport=hostile(times(24 / 2)), **rules)
    assert list(metrics(tmp_path)[0]["failed"]) == ["silo-1"]


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-9, 1.0, 1e12, 1e16])
def test_a_norm_is_that_of_float64_however_small_or_large_the_numbers_are(scale: float) -> None:
    before = {"a": torch.randn(400, 700, generator=torch.Generator().manual_seed(1)), "b": torch.ones(3)}
    moved = {name: torch.randn(tensor.shape) * scale for name, tensor in before.items()}
    like = codec.forms(Values, [Values(values=before)])
    bounds = UpdateBounds(Values, like, ["values"], frozenset(), lengths={"silo-0": 1.0})
    after = {name: tensor + moved[name] for name, tensor in before.items()}
    bounds.admit("silo-0", Values(values=after), like)
    squares = sum(((after[name] - before[name]).double() ** 2).sum().item() for name in before)
    assert bounds.norms["silo-0"]["values"] == pytest.approx(squares**0.5, rel=1e-5, abs=0)
