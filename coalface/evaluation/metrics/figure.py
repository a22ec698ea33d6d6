"""What a figure is called, what it is counted in and which way is better: said once, where the figure is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Unit:
    """What figures are counted in, as they are stored."""

    name: str
    digits: int
    """Behind the point, in means and differences."""
    sign: str = ""
    """Behind a value in a sentence."""
    difference: str = ""
    """Behind a difference in a sentence."""
    caption: str = ""
    """Behind what a table is of, where the heads of its columns do not name the unit."""
    named: bool = True
    """Whether the head of a column names it: most are in percent, and counts speak for themselves."""


PERCENT = Unit("percent", 2, " %", " points", ", in percent", named=False)
COSINE = Unit("cosine", 6)
RATIO = Unit("ratio", 3)
COUNT = Unit("count", 2, named=False)
"""A mean of counts has digits; a single one has none."""


@dataclass(frozen=True)
class Figure:
    """A figure as `summary.json` has it, or a family of them: `tar@far=` is that of `tar@far=0.01`.

    Examples:
        >>> Figure("tar@far=", "TAR at FAR ").at(0.01)
        'tar@far=0.01'
        >>> Figure("accuracy").text(83.14, 1.06), Figure("clusters", unit=COUNT).text(1200)
        ('83.1 ± 1.1', '1,200')
    """

    name: str
    title: str = ""
    """As a person reads it, where the name with spaces for underscores will not do."""
    unit: Unit = PERCENT
    better: Literal["higher", "lower", ""] = "higher"
    """Which way is better; empty where neither is."""

    def at(self, number: float) -> str:
        """The name of one of a family."""
        return f"{self.name}{number:g}"

    @property
    def is_family(self) -> bool:
        return self.name.endswith(("=", "-"))

    @property
    def heading(self) -> str:
        """The head of a column."""
        name = self.title or self.name.replace("_", " ")
        return f"{name} ({self.unit.name})" if self.unit.named else name

    @property
    def axis_title(self) -> str:
        """Over a drawing, where percent is named too."""
        return f"{self.heading} (%)" if self.unit == PERCENT else self.heading

    def text(self, value: float, error: float | None = None) -> str:
        """A value for people, with its standard error; percent has one digit, and two below ten."""
        places = self.unit.digits
        if self.unit == PERCENT:
            places = 2 if abs(value) < 10 else 1
        elif self.unit == COUNT:
            places = 0
        return f"{value:,.{places}f}" + ("" if error is None else f" ± {error:.{places}f}")

    def mean_text(self, value: float, spread: float | None = None) -> str:
        """A mean over seeds, with its standard deviation."""
        places = self.unit.digits
        return f"{value:.{places}f}" + ("" if spread is None else f" ± {spread:.{places}f}")

    def difference_text(self, value: float) -> str:
        """A difference: `+2.10`, `−0.40`."""
        return f"{value:+.{self.unit.digits}f}".replace("-", "−")
