"""Pages in a real browser: what a reader sees at a width, in a colour scheme or on paper, and what is wrong with it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
A4 = 794
"""Pixels that a sheet of A4 is wide."""
SMALLEST = 11
"""Pixels of the smallest text in a chart."""

LIVE = "document.querySelectorAll('figure:has(.chart)').length === document.querySelectorAll('.saves').length"
DEFECTS = """(smallest) => {
  const defects = [];
  const say = (what, element) => defects.push(`${what}: ${element.textContent.trim().slice(0, 60)}`);
  const light = (color) => color.match(/[0-9.]+/g).slice(0, 3).map((part) => (part / 255) ** 2.2)
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0.05);
  for (const text of document.querySelectorAll("svg text")) {
    const svg = text.ownerSVGElement.getBoundingClientRect(), place = text.getBoundingClientRect();
    const style = getComputedStyle(text), { a, b } = text.getScreenCTM();
    if (!text.textContent.trim() || !place.width) continue;
    if (parseFloat(style.fontSize) * Math.hypot(a, b) < smallest - 0.01) say("small text in a chart", text);
    if (text.textContent.endsWith("…")) say("shortened text in a chart", text);
    const over = [svg.left - place.left, place.right - svg.right, svg.top - place.top, place.bottom - svg.bottom];
    if (Math.max(...over) > 1) say("clipped text in a chart", text);
    const card = getComputedStyle(text.closest("figure")).backgroundColor;
    const [least, most] = [light(style.fill), light(card)].sort((one, other) => one - other);
    if (most / least < 4) say("faint text in a chart", text);
  }
  const scrolls = matchMedia("print").matches ? "svg" : "svg, .scroll, pre";
  for (const element of document.querySelectorAll("main *")) {
    if (element.closest(scrolls) && !element.matches(".scroll, pre")) continue;
    const { width, right } = element.getBoundingClientRect();
    if (width && right > innerWidth + 1) say(`${element.tagName} beyond the edge`, element);
  }
  for (const caption of document.querySelectorAll("caption"))
    if (caption.getBoundingClientRect().right > innerWidth + 1) say("caption beyond the edge", caption);
  const { scrollWidth, clientWidth } = document.documentElement;
  return scrollWidth > clientWidth ? [...defects, "the page scrolls sideways"] : defects;
}"""


class Browser:
    """A headless Chromium."""

    def __init__(self, chromium: Any, axe: str) -> None:
        self._chromium, self._axe = chromium, axe

    @contextmanager
    def opened(self, page: Path, width: int, scheme: str) -> Iterator[tuple[Any, list[str]]]:
        """A page whose charts are live and whose folds are open, and what it has complained of or asked for.

        `scheme` is `light`, `dark` or `print`.
        """
        media = {"media": "print"} if scheme == "print" else {"color_scheme": scheme}
        context = self._chromium.new_context(viewport={"width": width, "height": 20_000})
        complaints: list[str] = []
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        tab.on("request", lambda request: complaints.append(request.url) if _leaves(request.url) else None)
        tab.emulate_media(**media)
        tab.goto(page.resolve().as_uri())
        tab.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        for _ in range(300):  # `wait_for_function` makes code of a text, which the policy of the page forbids
            if tab.evaluate(LIVE):
                break
            tab.wait_for_timeout(100)
        else:
            complaints.append("some chart has not come alive in 30 seconds")
        try:
            yield tab, complaints
        finally:
            context.close()

    def defects(self, page: Path, width: int, scheme: str) -> list[str]:
        """What is wrong with a page, and what axe-core finds."""
        with self.opened(page, width, scheme) as (tab, complaints):
            defects = tab.evaluate(DEFECTS, SMALLEST)
            if scheme != "print":
                # Not as a <script>, which the policy of the page forbids.
                tab.context.new_cdp_session(tab).send("Runtime.evaluate", {"expression": f"{self._axe};0"})
                violations = tab.evaluate("axe.run().then((results) => results.violations)")
                defects += [f"axe {v['id']}: {node['html'][:200]}" for v in violations for node in v["nodes"]]
            return [*complaints, *defects]


def _leaves(address: str) -> bool:
    return not address.startswith(("file:", "data:", "blob:"))


@contextmanager
def browser() -> Iterator[Browser]:
    """Skips the test where there is no Chromium, or no `axe-playwright-python`."""
    package = pytest.importorskip("axe_playwright_python")
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed here")
    axe = (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield Browser(chromium, axe)
        chromium.close()
