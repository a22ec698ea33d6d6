from __future__ import annotations

from typing import Any

import pytest
import torch
from toys import Moved, Note, Values

from coalface.core import checks
from coalface.core.codec import forms
from coalface.core.errors import RecipeError
from coalface.engine.faults import COUNT_FAULTS, TENSOR_FAULTS, SimulatedFaults

WHEN = [("train", round_, 1) for round_ in range(1, 401)]


def moved() -> Moved:
    values = {"a": torch.zeros(3), "b": torch.ones(2)}
    return Moved(values=values, delta=values, images=7, loss=0.5)


def share(faults: SimulatedFaults, method: str, party: str = "silo-0", seed: int = 0) -> float:
    return sum(getattr(faults, method)(seed, party, when) is not None for when in WHEN) / len(WHEN)


@pytest.mark.parametrize(("field", "method"), [("dropout", "before"), ("lost", "after")])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_trouble_comes_as_often_as_it_is_set(field: str, method: str, rate: float) -> None:
    faults = SimulatedFaults(**{field: rate})
    assert share(faults, method) == pytest.approx(rate, abs=0.07)  # three standard deviations of 400 draws
    other = "after" if method == "before" else "before"
    assert share(faults, other) == 0


def test_trouble_depends_on_names_alone() -> None:
    faults = SimulatedFaults(dropout=0.5)
    first = [faults.before(1, "silo-0", when) for when in WHEN]
    assert [SimulatedFaults(dropout=0.5).before(1, "silo-0", when) for when in reversed(WHEN)] == first[::-1]
    assert [faults.before(1, "silo-1", when) for when in WHEN] != first
    assert [faults.before(2, "silo-0", when) for when in WHEN] != first


def test_slow_parties_come_late_as_an_exponential_says() -> None:
    # P(delay > deadline) = exp(−deadline / mean)
    faults = SimulatedFaults(slow={"*": 10.0, "silo-1": 40.0, "silo-2": 0.0}, deadline=10.0)
    assert share(faults, "after", "silo-0") == pytest.approx(0.368, abs=0.07)
    assert share(faults, "after", "silo-1") == pytest.approx(0.779, abs=0.07)
    assert share(faults, "after", "silo-2") == 0
    late = next(filter(None, (faults.after(0, "silo-1", when) for when in WHEN)))
    assert "10 s" in late


@pytest.mark.parametrize("what", list(TENSOR_FAULTS))
def test_a_corrupted_model_is_corrupted_in_its_first_tensors(what: str) -> None:
    original = moved()
    bad = SimulatedFaults.corrupted(original, what)
    changed = {
        "nan": lambda: bool(bad.values["a"].isnan().all()),
        "shape": lambda: tuple(bad.values["a"].shape) == (3, 2),
        "dtype": lambda: bad.values["a"].dtype == torch.float64,
        "name": lambda: list(bad.values) == ["other.a", "other.b"],
    }
    assert changed[what]()
    assert bad.images == 7
    assert torch.equal(original.values["a"], torch.zeros(3))


@pytest.mark.parametrize(("what", "images"), [("negative", -1000), ("zero", 0), ("absurd", 10**12)])
def test_a_corrupted_count_is_the_first_whole_number(what: str, images: int) -> None:
    assert set(COUNT_FAULTS) == {"negative", "zero", "absurd"}
    bad = SimulatedFaults.corrupted(moved(), what)
    assert (bad.images, bad.loss) == (images, 0.5)


def test_single_tensors_are_corrupted_too() -> None:
    note = Note(drawn=torch.zeros(2), remembered=1)
    assert SimulatedFaults.corrupted(note, "nan").drawn.isnan().all()
    assert SimulatedFaults.corrupted(note, "name") is note


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"corrupt": {"silo-1": "nonsense"}}, "corrupt.silo-1"),
        ({"stages": {"advertise": 0.5}}, "stages.advertise"),
        ({"stages": {"nonsense": 0.5}}, "stages.nonsense"),
        ({"stages": {"mask": 1.5}}, "stages.mask"),
        ({"lost": 1.5}, "lost"),
        ({"dropout": -0.1}, "dropout"),
        ({"slow": {"*": 5.0}}, "slow"),
        ({"slow": {"silo-1": -1.0}, "deadline": 1.0}, "slow.silo-1"),
        ({"slow": {"silo-1": 1.0}, "deadline": -1.0}, "deadline"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: Any, where: str) -> None:
    for build in (lambda: SimulatedFaults(**settings), lambda: checks.build(SimulatedFaults, settings, "faults")):
        with pytest.raises(RecipeError) as error:
            build()
        assert error.value.where.removeprefix("faults.") == where and "faults.faults" not in str(error.value)
    assert SimulatedFaults(slow={"*": 0.0}).after(0, "silo-0", WHEN[0]) is None


@pytest.mark.parametrize(
    ("lie", "values", "delta"),
    [
        ("scaled", [2001.0, -2999.0], [2000.0, -3000.0]),
        ("flipped", [-1.0, 4.0], [-2.0, 3.0]),
        ("shifted", [1.0, -5.0], [0.0, -6.0]),
        ("pushed", [-5.0, -8.0], [-6.0, -9.0]),
    ],
)
def test_a_lie_is_about_what_was_sent(lie: str, values: list[float], delta: list[float]) -> None:
    """What is no changed form of what was sent, as a gradient, is lied about as it is; counters are left alone."""
    sent = Values(values={"a": torch.ones(2), "count": torch.tensor(3)})
    by = {"a": torch.tensor([2.0, -3.0]), "count": torch.tensor(1)}
    reply = Moved(values={n: t + by[n] for n, t in sent.values.items()}, delta=by, images=7, loss=0.5)
    told = SimulatedFaults.corrupted(reply, lie, forms(Moved, [sent]))
    assert told.values["a"].tolist() == values and told.delta["a"].tolist() == delta
    assert (told.values["count"].item(), told.delta["count"].item(), told.images) == (4, 1, 7)
    assert reply.values["a"].tolist() == [3.0, -2.0]
