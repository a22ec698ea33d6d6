"""The figures that runs have, by name, for whoever shows them: tables, pages, drawings, TensorBoard.

Each is declared beside the code that computes it; a plug-in declares its own. A name that nobody declared is shown as
it is, in percent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coalface.core.names import check_name
from coalface.evaluation.metrics import clustering, enrolled, identification, personalised, verification
from coalface.evaluation.metrics.figure import Figure, Unit

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for module in (verification, identification, personalised, enrolled, clustering)
    for figure in module.FIGURES
}

ENROLLED_BY = ("features", "codewords")
"""What clients are verified by, as the summary names it below `enrolled`."""

SERVED_BY = {
    "start": "the model before the run",
    "shared": "everybody's model",
    "own": "its own backbone",
    "branch": "its own backbone and branch",
}
"""By which model a client's own people are evaluated, as the summary names it below `personalised`, and in words."""


_DECLARED: dict[str, Figure] = {}


def declare(figure: Figure) -> None:
    """Show a plug-in's figure by what it says of itself.

    Raises ValueError for a name that the package's own figures have, or that is not plain.
    """
    name = check_name(figure.name)
    families = [family for family in FIGURES.values() if family.is_family]
    if name in FIGURES or name.endswith("_se") or any(name.startswith(family.name) for family in families):
        raise ValueError(f"{name} is another figure's name; choose another")
    _DECLARED[name] = figure


def declare_all(figures: object) -> None:
    """Declare the figures of a plug-in by what a run's summary, or a line of a sweep, keeps of them."""
    for figure in figures.values() if isinstance(figures, dict) else ():
        declare(Figure(**{**figure, "unit": Unit(**figure["unit"])}))


def figure_of(key: str) -> Figure:
    """The figure that a key names: `accuracy`, or `devtest/tar@far=0.01`.

    >>> figure_of("devtest/tar@far=0.01").heading, figure_of("devtest/eer").better
    ('TAR at FAR 0.01', 'lower')
    """
    name = key.rpartition("/")[2]
    if name in FIGURES or name in _DECLARED:
        return FIGURES.get(name) or _DECLARED[name]
    for family in FIGURES.values():
        if family.is_family and name.startswith(family.name):
            return replace(family, name=name, title=(family.title or family.name) + name.removeprefix(family.name))
    return Figure(name, title=name)


def figure_name(key: str) -> str:
    """A figure as a person reads it: `devtest/tar@far=0.01` → `devtest TAR at FAR 0.01`."""
    return f"{key.rpartition('/')[0]} {figure_of(key).heading}".strip()


def axis_title(key: str) -> str:
    """The same over a drawing: `devtest accuracy (%)`."""
    return f"{key.rpartition('/')[0]} {figure_of(key).axis_title}".strip()


def figure_text(figures: Mapping[str, float], key: str, *, sign: bool = False) -> str:
    """A figure with its standard error where it has one, `83.1 ± 1.1`; empty without the figure."""
    if key not in figures:
        return ""
    figure = figure_of(key)
    return figure.text(figures[key], figures.get(f"{key}_se")) + (figure.unit.sign if sign else "")
