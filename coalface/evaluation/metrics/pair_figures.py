"""Figures of a plug-in, on every pair list of a run: their values, and their draws for paired comparisons."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import PluginError, RecipeError
from coalface.core.registry import Registry
from coalface.evaluation.metrics.bootstrap import PairIdentities, bootstrap_of
from coalface.evaluation.metrics.evidence import drawn_evidence
from coalface.evaluation.metrics.figure import Figure

WHERE = "evaluation.figures"
MOST_PAIRS = 20_000
"""Pairs of a list up to which a figure is computed again in every draw."""


class PairFigure(ABC):
    """A figure that you define, on the pairs of a list.

    Examples:
        >>> from coalface import COSINE
        >>> class Gap(PairFigure):
        ...     figure = Figure("gap", unit=COSINE)
        ...
        ...     def compute(self, scores, same):
        ...         return scores[same].mean() - scores[~same].mean()
    """

    figure: ClassVar[Figure]
    """Its name, title and unit, and which way is better."""

    @abstractmethod
    def compute(self, scores: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
        """The value in the figure's unit, from the cosine of each pair (n,), and whether it is of one identity."""


def _fits(thing: Any) -> bool:
    is_figure = isinstance(thing, type) and issubclass(thing, PairFigure) and not inspect.isabstract(thing)
    return is_figure and isinstance(getattr(thing, "figure", None), Figure)


PAIR_FIGURES = Registry[type[PairFigure]](
    "coalface.figures",
    {},
    _fits,
    "a subclass of coalface.PairFigure with a `figure`, which is a coalface.Figure, and `compute`",
)


def find_figures(references: Sequence[str]) -> tuple[PairFigure, ...]:
    """The figures that a recipe names. Raises RecipeError where one cannot be found, or two have one name."""
    made: dict[str, PairFigure] = {}
    for reference in references:
        cls = PAIR_FIGURES.find(reference, WHERE)
        if (name := cls.figure.name) in made:
            raise RecipeError(f"two figures are called {name}; rename one", where=WHERE)
        made[name] = cls()
    return tuple(made.values())


def declarations(pair_figures: Sequence[PairFigure]) -> dict[str, Any]:
    """Name -> the figure, as the summary keeps it for `figures.declare_all`."""
    return {own.figure.name: asdict(own.figure) for own in pair_figures}


def values(
    pair_figures: Sequence[PairFigure],
    scores: NDArray[np.float64],
    pairs: PairIdentities,
    folds: Sequence[int] | None = None,
) -> dict[str, float]:
    """Figure -> its value on the evaluated pairs. Raises as `compute_all` does."""
    counted = pairs.counted(folds)
    return compute_all(pair_figures, scores[counted], pairs.same[counted])


def compute_all(
    pair_figures: Sequence[PairFigure], scores: NDArray[np.float64], same: NDArray[np.bool_]
) -> dict[str, float]:
    """Figure -> its value on pairs. Raises PluginError where one cannot be computed, or is not finite."""
    computed = {own.figure.name: _compute(own, scores, same) for own in pair_figures}
    for name, value in computed.items():
        if not math.isfinite(value):
            raise PluginError(f"{name} is {value}; a figure is a finite number", where=WHERE)
    return computed


def evidence(
    pair_figures: Sequence[PairFigure],
    scores: NDArray[np.float64],
    pairs: PairIdentities,
    folds: Sequence[int] | None = None,
) -> dict[str, Any]:
    """What a paired comparison needs of these figures: their values in the draws that every comparison has.

    In a draw each pair is repeated as often as it weighs. Of a list with more than `MOST_PAIRS` no draws are kept.
    """
    points = values(pair_figures, scores, pairs, folds)
    counted = pairs.counted(folds)
    if not points or len(counted) > MOST_PAIRS:
        return {"own": {name: None for name in points}} if points else {}
    bootstrap, kept_scores, same = bootstrap_of(pairs), scores[counted], pairs.same[counted]
    left, right = pairs.sides(counted)
    drawn = {name: np.full(bootstrap.counts.shape[1], np.nan) for name in points}
    for draw, counts in enumerate(bootstrap.counts.T):
        repeated = np.repeat(np.arange(len(counted)), np.where(same, counts[left], counts[left] * counts[right]))
        if 0 < np.count_nonzero(same[repeated]) < len(repeated):
            for own in pair_figures:
                drawn[own.figure.name][draw] = _compute(own, kept_scores[repeated], same[repeated])
    return drawn_evidence(
        {own.figure: (points[own.figure.name], drawn[own.figure.name]) for own in pair_figures}, bootstrap
    )


def _compute(own: PairFigure, scores: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    try:
        return float(own.compute(scores, same))
    except Exception as error:  # whatever the code of somebody else raises
        raise PluginError(f"{own.figure.name}: {type(error).__name__}: {error}", where=WHERE) from error
