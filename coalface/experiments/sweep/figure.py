"""The figure of a sweep: how far its settings lie from the first baseline in one figure, as `OUT/figure.svg`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coalface.core.checks import unknown_name
from coalface.experiments.comparison.page import differences_chart
from coalface.experiments.report.long_table import Record
from coalface.experiments.report.vega import Chart
from coalface.experiments.sweep.grid import Cell


def check_figure(cells: Sequence[Cell], metric: str) -> None:
    """Raise RecipeError where no cell is evaluated on the list of `LIST/METRIC`."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.recipe.evaluation.pairs))
    if metric.partition("/")[0] not in names:
        raise unknown_name(metric.partition("/")[0], names, "--figure")


def figure(cells: Sequence[Cell], differences: Sequence[Record], base_of: Mapping[str, str], metric: str) -> Chart:
    """Each setting less what it is compared with: a dot, and the 95 % interval over people and seeds.

    A dot is a ring where nothing is decided. Raises RecipeError for a figure that the list does not have.
    """
    labels = {cell.setting: cell.label for cell in cells}
    records = [record for record in differences if record.by == base_of.get(record.setting)]
    of_metric = [record for record in records if record.metric == metric]
    if not of_metric:
        have = list(dict.fromkeys(record.metric for record in records if not np.isnan(record.value)))
        raise unknown_name(metric, have, "--figure")
    bases = {base_of[record.setting] for record in records}
    return differences_chart(of_metric, labels, labels[bases.pop()] if len(bases) == 1 else "the baseline most like it")
