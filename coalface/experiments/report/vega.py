"""A chart: its Vega-Lite specification, drawn as SVG without a browser, and what makes it live in one.

Everything comes with the package `vl-convert-python`: nothing is loaded from elsewhere, and no browser is needed.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from textwrap import wrap
from typing import Any

from markupsafe import Markup

from coalface.core.checks import unknown_name
from coalface.core.disk import writing

HOVER = "hover"
"""The name of a layer that only a reader's pointer needs: an SVG has none."""
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that colour-blind readers tell apart (Okabe and Ito 2008), without yellow, which is faint on white."""
INK, SOFT, RULE, PAPER = "#1C1B1A", "#6A6560", "#E3DFD9", "#FFFFFF"
"""Of text, of what stands behind, of the grid, and of the ground."""
IN_THE_DARK = {
    **dict(zip(PALETTE, ("#5AA9E6", "#FF8A57", "#3CC79B", "#E7A5C9", "#F0B63C", "#9AD4F7", "#D8D3CC"), strict=True)),
    **{INK: "var(--ink)", SOFT: "var(--soft)", RULE: "var(--rule)", PAPER: "var(--card)"},
}
"""What a page in the dark shows for each colour of a chart."""
CONFIG = {
    "aria": False,  # the page names the chart
    "background": PAPER,
    # The font that vl-convert brings along comes first: it measures text by it, so every machine draws the same bytes.
    "font": "Liberation Sans, Arial, Helvetica, sans-serif",
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelColor": SOFT,
        "titleColor": SOFT,
        "gridColor": RULE,
        "domainColor": SOFT,
        "tickColor": SOFT,
        "tickCount": 5,
    },
    "legend": {
        "labelFontSize": 12,
        "labelColor": INK,
        "titleColor": INK,
        "titleFontSize": 12,
        "symbolSize": 70,
        "symbolStrokeWidth": 0,
        "rowPadding": 4,
    },
    "line": {"strokeWidth": 2, "strokeJoin": "round"},
    "point": {"filled": True, "size": 36, "opacity": 1},
    "rule": {"color": SOFT},
    "text": {"color": SOFT, "fontSize": 12},
    "title": {"anchor": "start", "color": INK, "fontSize": 13},
    "view": {"stroke": None},
}
_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_MIME = "application/vnd.vegalite.v5+json"


TITLE = 44
"""Letters of a title in one line of a chart."""


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite specification in layers, with its title and what a reader needs to know to read it.

    A notebook draws it where it is the last line of a cell.
    """

    title: str
    spec: Mapping[str, Any]
    caption: str = ""
    wide: bool = False
    """It takes two columns of a page."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What it draws."""
        return list(self.spec["data"]["values"])

    @property
    def json(self) -> Markup:
        """The specification, as it may stand in a `<script>` of data."""
        return as_data(self.spec)

    @property
    def svg(self) -> Markup:
        """The chart without what answers a pointer. The same specification gives the same bytes."""
        return Markup(draw(json.dumps(self.spec)))

    def save(self, path: str | Path) -> Path:
        """Write the chart with its title, as the suffix says: `.svg`, `.png`, or `.json`, which is Vega-Lite.

        Raises RecipeError for another suffix.
        """
        import vl_convert

        path, whole = Path(path), self._whole
        if path.suffix == ".svg":
            content = draw(json.dumps(whole)).encode()
        elif path.suffix == ".png":
            content = vl_convert.vegalite_to_png(whole, scale=2, allowed_base_urls=[])
        elif path.suffix == ".json":
            content = json.dumps(whole, indent=1).encode()
        else:
            raise unknown_name(path.suffix, (".svg", ".png", ".json"), str(path))
        with writing(path):
            path.write_bytes(content)
        return path

    @property
    def _whole(self) -> dict[str, Any]:
        return {"$schema": _SCHEMA, "config": CONFIG, **self.spec, "title": wrap(self.title, TITLE)}

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {_MIME: self._whole, "image/svg+xml": draw(json.dumps(self._whole)), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"<chart {self.title!r}>"


@functools.lru_cache(maxsize=64)
def draw(text: str) -> str:
    import vl_convert  # starts a JavaScript engine: only where something is drawn

    spec = json.loads(text)
    spec["layer"] = [layer for layer in spec["layer"] if layer.get("name") != HOVER]
    svg = vl_convert.vegalite_to_svg(spec, config=CONFIG, allowed_base_urls=[])
    svg = re.sub(' d="[^"]*"', lambda path: re.sub(r"-?[0-9]+\.[0-9]{3,}", _tenths, path[0]), svg)
    svg = re.sub(_NEEDLESS, "", svg).replace("<svg ", f'<svg font-family="{CONFIG["font"]}" ', 1)
    # Vega counts its clips over a process and over a page: here they are named by the chart and their place in it.
    digest, clips = sha256(text.encode()).hexdigest()[:12], itertools.count()
    names = {name: f"clip-{digest}-{next(clips)}" for name in re.findall(r'id="(clip[0-9]+)"', svg)}
    return re.sub(r'(id="|url\(#)(clip[0-9]+)', lambda match: match[1] + names.get(match[2], match[2]), svg)


_NEEDLESS = ' (?:role="graphics-[a-z]+"|aria-[a-z]+="[^"]*"|pointer-events="none"|font-family="[^"]*")'
"""Attributes of each element of a drawing that its place in a page makes needless, or the font of all of it."""


def _tenths(coordinate: re.Match[str]) -> str:
    """A tenth of a pixel is less than a screen shows, and the digits are half of a page's drawings."""
    return f"{float(coordinate[0]):.1f}"


def as_data(value: object) -> Markup:
    """A value as JSON that cannot end the `<script>` which it stands in."""
    return Markup(json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"))


@functools.cache
def scripts() -> dict[str, str]:
    """What makes the charts of a page live, and the Content Security Policy that lets it and nothing else run.

    `library` is Vega, Vega-Lite and Vega-Embed, deflated, in base64; `own` what uses them, with `config`; `sources`
    says by their hashes which scripts may run.
    """
    library, own = _library(), (files("coalface.experiments.report") / "page.js").read_text("utf-8")
    hashes = (base64.b64encode(sha256(script.encode()).digest()).decode() for script in (library, own))
    return {
        "library": Markup(base64.b64encode(zlib.compress(library.encode(), 9)).decode()),
        "own": Markup(own),
        "config": as_data(CONFIG),
        "sources": " ".join(f"'sha256-{digest}'" for digest in hashes),
    }


def _library() -> str:
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
