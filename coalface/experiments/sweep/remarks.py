"""The remarks below a sweep's table: what its numbers are, and which runs differ in more than the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coalface.evaluation.figures import figure_name
from coalface.experiments.sweep.grid import Cell
from coalface.experiments.sweep.records import Line
from coalface.methods import METHODS

ALIKE = 0.1
"""Percent points within which figures of one model may lie that two processors have computed."""


def of_figures(cells: Sequence[Cell], both_halves: bool) -> list[str]:
    """What the numbers of a table are."""
    beside = "Bytes and seconds: mean of a run."
    if both_halves:
        return [
            "Figures in percent: mean over seeds ± standard deviation over seeds. fold_split=first: the validators",
            "hold the first half of the folds and the figures are of the other half; second: the other way round.",
            f"A setting's own row is of each seed's mean of both. {beside}",
        ]
    lines = [f"Figures in percent: mean over seeds ± standard deviation over seeds. {beside}"]
    split = next((cell.recipe for cell in cells if cell.recipe.fold_split is not None), None)
    if split is not None:
        on = ", ".join(dict.fromkeys(v.validates for v in split.validators.values() if v.validates is not None))
        lines += [f"Of {on} these are of one half alone: fold_split=first,second gives both and their mean."]
    return lines


def of_bounds(cells: Sequence[Cell]) -> list[str]:
    """Which methods for two domains are no federation."""
    used = [name for name in dict.fromkeys(cell.recipe.method for cell in cells) if METHODS[name].scenario == "domains"]
    pooled = [
        n + (", told who is in the target's images" if METHODS[n].pools == "images and labels" else "")
        for n in used
        if METHODS[n].pools
    ]
    return [f"Pooled at one party, and no federation: {'; '.join(pooled)}."] if pooled else []


def unlike_starts(cells: Sequence[Cell], finished: Mapping[str, Line]) -> list[str]:
    """Which seeds' cells start from pre-trained models that are not the same, though their recipes say so.

    One recipe leaves another model on a processor that rounds otherwise, such as one without bfloat16.
    """
    by_start: dict[tuple[str, str], list[float]] = {}  # (pre-training, figure on those pairs) -> of each cell
    seeds = {}
    for cell in cells:
        if cell.recipe.pretrain is None or (line := finished.get(cell.digest)) is None:
            continue
        start = cell.recipe.pretrain.recipe.digest()
        seeds[start] = line["seed"]
        for name, figures in line["untrained"].items():
            pairs = line.get("lists", {}).get(name)
            for figure, value in figures.items():
                if pairs is not None and not figure.endswith("_se"):
                    by_start.setdefault((start, f"{name}/{figure} {pairs}"), []).append(value)
    lines = {}
    for (start, figure), values in by_start.items():
        if max(values) - min(values) > ALIKE and start not in lines:
            range_text = f"{figure_name(figure.split()[0])} {min(values):.2f} and {max(values):.2f}"
            lines[start] = f"- seed {seeds[start]}: {range_text}"
    if not lines:
        return []
    return [
        "",
        "**Not from one model:** these seeds' runs start from pre-trained models that differ (on processors that round",
        "otherwise, the same recipe leaves another). Their differences hold the difference of what they start from.",
        "",
        *lines.values(),
    ]


def unlike_code(cells: Sequence[Cell], finished: Mapping[str, Line]) -> list[str]:
    """Which cells ran before code of their method was changed by which others ran; `finished` is as they ran."""
    names = {cell.digest: cell.name or cell.setting for cell in cells}
    ran = {names[digest]: line.get("code", {}) for digest, line in finished.items() if digest in names}
    last = {module: digest for code in ran.values() for module, digest in code.items()}
    lines = [
        f"- {name}: {', '.join(module for module, digest in code.items() if last[module] != digest)}"
        for name, code in ran.items()
        if code.items() - last.items()
    ]
    if not lines:
        return []
    return [
        "",
        "**Not by one code:** code of the methods was changed during the sweep. These cells ran before that, others",
        "after it. Delete their lines in cells.jsonl, and the same command runs them by the code as it is then.",
        "",
        *lines,
    ]
