"""A figure over a setting: the cells of a sweep as lines over the numbers that one key takes.

Cells that agree in every swept key but the axis, the seed and the half of the folds are one line. A line's value at a
number is the mean over seeds, of each seed's mean over its halves, with the lowest and the highest seed beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coalface.evaluation.figures import figure_of

ENOUGH = 3
"""Numbers of a key from which on it is an axis by itself."""
MOST_PANELS = 9
"""Values of a key up to which each has a chart of its own."""


@dataclass(frozen=True)
class Point:
    """One cell of a sweep, as planned; `figures` are empty where it has not been run."""

    chosen: Mapping[str, Any]
    """Swept key -> its value here, without the seed and the half of the folds."""
    seed: int
    figures: Mapping[str, float] = field(default_factory=dict)
    half: str | None = None
    start: str = ""
    """What its training starts from."""
    untrained: Mapping[str, float] = field(default_factory=dict)
    """The figures of that."""


@dataclass(frozen=True)
class Spread:
    """The mean over seeds, the lowest and the highest seed, and how many seeds of how many that were planned."""

    mean: float
    low: float
    high: float
    seeds: int
    planned: int


@dataclass(frozen=True)
class Line:
    """One setting over the axis: its numbers, ascending; None where no seed is there."""

    name: str
    at: Mapping[float, Spread | None]


@dataclass(frozen=True)
class Level:
    """A setting that the sweep has at one number of the axis (`at`), or without one (None)."""

    name: str
    value: Spread
    at: float | None = None


@dataclass(frozen=True)
class Over:
    """A figure over an axis."""

    lines: tuple[Line, ...]
    levels: tuple[Level, ...]
    digits: int = 2
    """Behind the point of its numbers."""


def numeric(value: object) -> float | None:
    """A swept value as a number; text that YAML does not read as one, such as `1e-2`, is one to a recipe.

    >>> numeric(5), numeric("1e-2"), numeric(True), numeric([5]), numeric("none")
    (5.0, 0.01, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def axes(points: Sequence[Point], least: int = ENOUGH) -> list[str]:
    """The keys that take `least` numbers or more in the sweep, and more than one with all other keys as they are."""
    all_keys = dict.fromkeys(key for point in points for key in point.chosen)
    axes_of_sweep = []
    for key in all_keys:
        numbers = {n for p in points if (n := numeric(p.chosen.get(key))) is not None}
        if len(numbers) >= least and any(len(_numbers(group, key)) > 1 for group in _groups(points, key).values()):
            axes_of_sweep.append(key)
    return axes_of_sweep


def panels(points: Sequence[Point], axis: str) -> dict[str, list[Point]]:
    """The cells by a second key, `loss=cosface` -> its cells without that key, so that each panel has fewer lines.

    The key is one that every line over the axis has, and not the method, which a panel compares: of several one that
    takes numbers, and of those the one that takes the most. Cells without it are in all panels; empty without a key.
    """
    drawn = [point for point in points if numeric(point.chosen.get(axis)) is not None]
    values = {
        key: list(dict.fromkeys(_text(point.chosen[key]) for point in drawn))
        for key in dict.fromkeys(key for point in drawn for key in point.chosen)
        if key not in (axis, "method", "name") and all(key in point.chosen for point in drawn)
    }
    numbers = {key: all(numeric(point.chosen[key]) is not None for point in drawn) for key in values}
    several = [key for key in values if 1 < len(values[key]) <= MOST_PANELS]
    if not several:
        return {}
    key, whole = max(several, key=lambda key: (numbers[key], len(values[key]))), _short_keys(points)
    by_value: dict[str, list[Point]] = {}
    for value in values[key]:
        own = [point for point in points if key not in point.chosen or _text(point.chosen[key]) == value]
        name = name_of({key: json.loads(value)}, whole)
        by_value[name] = [replace(p, chosen={k: v for k, v in p.chosen.items() if k != key}) for p in own]
    return by_value


def over(points: Sequence[Point], axis: str, figure: str, otherwise: str = "") -> Over:
    """A figure over an axis; `otherwise` names cells in which nothing else was swept.

    A setting without any run is left out. What runs start from is a level where it is the same at all of them.
    """
    whole, lines, levels = _short_keys(points), [], []
    for group in _groups(points, axis).values():
        fixed = {key: value for key, value in group[0].chosen.items() if key != axis}
        name = name_of(fixed, whole) or otherwise or "all"
        numbers = _numbers(group, axis)
        if len(numbers) > 1:
            at = {n: _spread([p for p in group if numeric(p.chosen.get(axis)) == n], figure) for n in numbers}
            lines += [Line(name, at)] if any(at.values()) else []
        elif numbers and (value := _spread([p for p in group if numeric(p.chosen.get(axis)) == numbers[0]], figure)):
            levels.append(Level(name, value, numbers[0]))
        for text in dict.fromkeys(_text(p.chosen.get(axis)) for p in group if numeric(p.chosen.get(axis)) is None):
            cells = [p for p in group if _text(p.chosen.get(axis)) == text]
            swept = {axis: cells[0].chosen[axis]} if axis in cells[0].chosen else {}
            if value := _spread(cells, figure):
                levels.append(Level(name_of(fixed | swept, whole) or otherwise or "all", value))
    return Over(tuple(lines), (*levels, *_starts(points, figure)), figure_of(figure).unit.digits)


def name_of(chosen: Mapping[str, Any], whole: Mapping[str, str] | None = None) -> str:
    """A setting in few words: a method, a loss or a model by its name, other keys by their last part.

    >>> name_of({"method": "fedavg", "methods.fedavg.momentum": "reset", "loss.name": "arcface"})
    'fedavg, momentum=reset, arcface'
    """
    words = []
    for key, value in chosen.items():
        text = value if isinstance(value, str) else json.dumps(value)
        is_name = isinstance(value, str) and (key in ("method", "name") or key.endswith(".name"))
        words.append(text if is_name else f"{(whole or {}).get(key, key.rpartition('.')[2])}={text}")
    return ", ".join(words)


def _short_keys(points: Sequence[Point]) -> dict[str, str]:
    """The keys of the sweep by their last part, or whole where two have the same last part."""
    keys = dict.fromkeys(key for point in points for key in point.chosen)
    last = [key.rpartition(".")[2] for key in keys]
    return {key: short if last.count(short) == 1 else key for key, short in zip(keys, last, strict=True)}


def _groups(points: Sequence[Point], axis: str) -> dict[str, list[Point]]:
    """The cells that differ in the axis, the seed and the half alone, in the order of the sweep."""
    groups: dict[str, list[Point]] = {}
    for point in points:  # as text, since a value may be a list
        fixed = sorted((key, _text(value)) for key, value in point.chosen.items() if key != axis)
        groups.setdefault(json.dumps(fixed), []).append(point)
    return groups


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _numbers(points: Sequence[Point], axis: str) -> list[float]:
    return sorted({n for p in points if (n := numeric(p.chosen.get(axis))) is not None})


def _spread(points: Sequence[Point], figure: str) -> Spread | None:
    halves: dict[int, list[float]] = {}
    for point in points:
        if figure in point.figures:
            halves.setdefault(point.seed, []).append(point.figures[figure])
    seeds = [math.fsum(values) / len(values) for values in halves.values()]
    if not seeds:
        return None
    planned = len({point.seed for point in points})
    return Spread(math.fsum(seeds) / len(seeds), min(seeds), max(seeds), len(seeds), planned)


def _starts(points: Sequence[Point], figure: str) -> list[Level]:
    """What runs start from, where for every seed and half all runs start from the same."""
    levels = []
    for start in dict.fromkeys(point.start for point in points if figure in point.untrained):
        started = [point for point in points if point.start == start and figure in point.untrained]
        by_seed = {(p.seed, p.half): Point({}, p.seed, p.untrained, p.half) for p in started}
        is_same = all(math.isclose(p.untrained[figure], by_seed[p.seed, p.half].figures[figure]) for p in started)
        if is_same and (value := _spread(list(by_seed.values()), figure)):
            levels.append(Level(start, value))
    return levels
