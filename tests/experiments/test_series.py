"""Cells as lines over a setting, by numbers worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from coalface.experiments.sweep.series import Level, Line, Point, Spread, axes, name_of, over, panels

KEY = "local.steps_per_round"


def cell(seed: int, value: float | None, half: str | None = None, start: float | None = None, **chosen: Any) -> Point:
    """A cell; `K` is its number of the axis."""
    settings = {KEY if key == "K" else key.replace("__", "."): value for key, value in chosen.items()}
    untrained = {} if start is None else {"test/accuracy": start}
    return Point(settings, seed, {} if value is None else {"test/accuracy": value}, half, "untrained", untrained)


def lines_and_levels(*points: Point, axis: str = KEY) -> tuple[list[Line], list[Level]]:
    curves = over(points, axis, "test/accuracy", "fedavg")
    return list(curves.lines), list(curves.levels)


def test_a_line_is_the_mean_over_seeds_with_the_lowest_and_the_highest() -> None:
    lines, levels = lines_and_levels(
        *(cell(s, v, method="pfm", K=5) for s, v in enumerate((83.0, 86.0, 80.0))),
        *(cell(s, v, method="pfm", K=25) for s, v in enumerate((70.0, 71.0, 78.0))),
    )
    assert lines == [Line("pfm", {5.0: Spread(83.0, 80.0, 86.0, 3, 3), 25.0: Spread(73.0, 70.0, 78.0, 3, 3)})]
    assert levels == []


def test_the_halves_of_a_seed_are_one_value() -> None:
    """Seed 0: (60 + 80) / 2 = 70; seed 1: 90. Four runs would make 77.5 of it, and the bar 60 to 90."""
    runs = [cell(0, 60.0, "first", K=5), cell(0, 80.0, "second", K=5), cell(1, 90.0, "first", K=5)]
    lines, _ = lines_and_levels(*runs, cell(0, 50.0, "first", K=9))
    assert lines[0].at == {5.0: Spread(80.0, 70.0, 90.0, 2, 2), 9.0: Spread(50.0, 50.0, 50.0, 1, 1)}


def test_cells_that_are_missing_are_counted_and_leave_a_gap() -> None:
    lines, _ = lines_and_levels(
        *[cell(0, 80.0, K=5), cell(1, None, K=5), cell(2, 82.0, K=5)],
        *[cell(seed, None, K=25) for seed in range(3)],
        cell(0, 60.0, K=75),
    )
    assert lines == [Line("fedavg", {5.0: Spread(81.0, 80.0, 82.0, 2, 3), 25.0: None, 75.0: Spread(60, 60, 60, 1, 1)})]
    assert lines_and_levels(*[cell(0, None, K=k) for k in (5, 25)]) == ([], [])
    assert lines_and_levels(cell(0, None, method="solo", K=5))[1] == []


def test_other_settings_are_lines_of_their_own_a_list_among_them() -> None:
    lines, _ = lines_and_levels(
        *[cell(0, 10.0 * k + n, K=k, domains=[*range(n)]) for k in (1, 2) for n in (1, 2)],
    )
    assert [(line.name, [s.mean for s in line.at.values() if s]) for line in lines] == [
        ("domains=[0]", [11.0, 21.0]),
        ("domains=[0, 1]", [12.0, 22.0]),
    ]


def test_a_setting_at_one_number_or_without_one_is_a_level() -> None:
    sweep = [cell(0, 80.0 + k, method="pfm", K=k) for k in (5, 25, 75)]
    sweep += [cell(s, 90.0 + s, method="centralized", K=75) for s in (0, 1)]  # as a file of grids may list it
    sweep += [cell(0, 61.0, method="positive-only")]
    lines, levels = lines_and_levels(*sweep)
    assert [line.name for line in lines] == ["pfm"]
    assert levels == [
        Level("centralized", Spread(90.5, 90.0, 91.0, 2, 2), 75.0),
        Level("positive-only", Spread(61.0, 61.0, 61.0, 1, 1), None),
    ]


@pytest.mark.parametrize("value", [None, "all", [5], True])
def test_a_value_that_is_no_number_is_a_level_beside_its_line(value: Any) -> None:
    text = {None: "null", "all": "all", True: "true"}.get(value if not isinstance(value, list) else "", "[5]")
    lines, levels = lines_and_levels(
        *[cell(0, 80.0, method="pfm", K=k) for k in (5, 25)], cell(0, 70.0, method="pfm", K=value)
    )
    assert [(line.name, list(line.at)) for line in lines] == [("pfm", [5.0, 25.0])]
    assert levels == [Level(f"pfm, steps_per_round={text}", Spread(70.0, 70.0, 70.0, 1, 1), None)]


def test_what_runs_start_from_is_a_level_where_all_start_from_the_same() -> None:
    starts = {0: 60.0, 1: 63.0}
    alike = [cell(s, 80.0, start=starts[s], K=k) for k in (5, 25) for s in starts]
    assert lines_and_levels(*alike)[1] == [Level("untrained", Spread(61.5, 60.0, 63.0, 2, 2), None)]
    assert lines_and_levels(*alike, cell(1, 80.0, start=64.0, K=75))[1] == []  # it depends on the axis
    halves = [cell(0, 80.0, half, start, K=k) for k in (5, 25) for half, start in (("first", 60.0), ("second", 64.0))]
    assert lines_and_levels(*halves)[1] == [Level("untrained", Spread(62.0, 62.0, 62.0, 1, 1), None)]


def test_axes_are_the_keys_with_three_numbers_that_vary_by_themselves() -> None:
    sweep = [cell(s, None, K=k, lr=lr) for k in (5, 25, 75) for lr in (0.1, 0.2) for s in range(3)]
    assert axes(sweep) == [KEY] and axes(sweep, least=2) == [KEY, "lr"]
    assert axes([cell(0, None, K=k, rounds=300 // k) for k in (5, 25, 75)]) == []  # one goes with the other
    assert axes([cell(0, None, K=k) for k in (None, "a", 5, 25)]) == []


def test_a_setting_is_named_in_few_words_but_never_by_the_same_ones() -> None:
    assert name_of({"method": "pfm", "loss.name": "arcface", "data.x.parties": 3}) == "pfm, arcface, parties=3"
    two = [
        Point({"local.batch_size": b, "pretrain.local.batch_size": c, "K": k}, 0, {"f": 1.0})
        for b, c in ((1, 2), (2, 1)) for k in (1, 2)
    ]  # fmt: skip
    assert [line.name for line in over(two, "K", "f").lines] == [
        "local.batch_size=1, pretrain.local.batch_size=2",
        "local.batch_size=2, pretrain.local.batch_size=1",
    ]


def cells_of_two_settings(*, methods: tuple[str, ...] = ("fedavg", "pfm", "solo")) -> list[Point]:
    values = [(m, k, rate) for m in methods for k in (5, 25, 75) for rate in (0.01, 0.02)]
    return [cell(0, 70.0 + k / 10 + rate, method=m, K=k, local__lr=rate) for m, k, rate in values]


def test_cells_are_cut_by_the_second_setting_and_those_without_it_are_in_each_part() -> None:
    centralized = cell(0, 90.0, method="centralized")
    parts = panels([*cells_of_two_settings(), centralized], KEY)
    assert list(parts) == ["lr=0.01", "lr=0.02"] and all(part[-1] == centralized for part in parts.values())
    for rate, part in zip((0.01, 0.02), parts.values(), strict=True):
        lines, levels = lines_and_levels(*part)
        assert [line.name for line in lines] == ["fedavg", "pfm", "solo"] and [at.name for at in levels] == [
            "centralized"
        ]
        assert [s.mean for s in lines[0].at.values() if s] == [70.0 + k / 10 + rate for k in (5, 25, 75)]


def test_of_several_settings_numbers_come_first_and_a_method_is_no_part() -> None:
    points = [
        cell(0, 1.0, method=m, K=k, loss=n, parties=p) for m in "ab" for k in (1, 2) for n in "xyz" for p in (2, 4)
    ]
    assert list(panels(points, KEY)) == ["parties=2", "parties=4"]
    assert panels([cell(0, 1.0, method=m, K=k) for m in "ab" for k in (1, 2)], KEY) == {}
    lacking = [cell(0, 1.0, method="c", K=k) for k in (1, 2)]  # a line that would be in every part
    assert panels([*points, *lacking], KEY) == {}
    assert panels([cell(0, 1.0, K=k, parties=p) for k in (1, 2) for p in range(10)], KEY) == {}
