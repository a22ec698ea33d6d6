"""Who holds what: the images of each identity at each party, as a chart."""

from __future__ import annotations

from collections.abc import Sequence

from coalface.core.text import clean
from coalface.experiments.report import specs
from coalface.experiments.report.runs import Run, as_list, mapping, whole_number
from coalface.experiments.report.specs import Spec
from coalface.experiments.report.vega import PALETTE, Chart

ROW = 16
"""Pixels of a party's row."""


def charts(run: Run) -> list[Chart]:
    """A row for each party and a column for each identity, or for several; the darker, the more images."""
    held = mapping(run.summary.get("holdings"))
    names = [" to ".join(clean(str(name)) for name in as_list(row)) for row in as_list(held.get("parties"))]
    counts = whole_numbers([held.get(key) for key in ("identities", "shared", "identities_per_column")])
    images = whole_numbers(as_list(held.get("images")))
    cells = [whole_numbers(as_list(cell)) for cell in as_list(held.get("cells"))]
    if len(counts) < 3 or len(images) < 3 or not cells or any(len(cell) < 3 for cell in cells):
        return []
    (identities, shared, wide), (least, median, most) = counts, images[:3]
    rows = []
    for row, column, count in (cell[:3] for cell in cells):
        first, last = column * wide, min((column + 1) * wide, identities)
        if not 0 <= row < len(names) or last <= first:
            return []
        mean = specs.rounded(count / (last - first))
        rows.append({"party": names[row], "from": first + 1, "to": last + 1, "images": mean})
    spread = f"{least:,} to {most:,} images each, {median:,} in the middle" if least < most else f"{most:,} images each"
    caption = f"{identities:,} identities with {spread}."
    caption += f" A column is {wide:,} identities, of which the mean is drawn." if wide > 1 else ""
    held_by = f"{shared:,} {'is' if shared == 1 else 'are'}" if shared else "None is"
    caption += f" {held_by} held by several parties."
    return [Chart("images of each identity at each party", _spec(rows, names, identities), caption, wide=True)]


def whole_numbers(values: Sequence[object]) -> list[int]:
    """The whole numbers of a list; none where it holds anything else."""
    numbers = [number for value in values if (number := whole_number(value)) is not None]
    return numbers if len(numbers) == len(values) else []


def _spec(rows: list[Spec], names: list[str], identities: int) -> Spec:
    across = specs.number("from", "identity", nice=False, domain=[1, identities + 1])
    across["axis"] = {"grid": False, "format": "d", "tickMinStep": 1}
    up: Spec = {"field": "party", "type": "nominal", "sort": None, "scale": {"domain": names}}
    up["axis"] = {"title": None, "domain": False, "ticks": False}
    shade = specs.number("images", "images of an identity", domainMin=0, range=[0.06, 1])
    shade["legend"] = {"orient": "bottom", "tickCount": 4, "titleFontWeight": "normal"}
    cells = {
        "mark": {"type": "rect", "color": PALETTE[0]},
        "encoding": {"x": across, "x2": {"field": "to"}, "y": up, "opacity": shade, "tooltip": specs.tips(*rows[0])},
    }
    return specs.of_layers(rows, [cells], ROW * len(names) + 10)
