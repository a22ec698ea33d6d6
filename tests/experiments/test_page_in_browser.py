"""The pages of ten methods in Chromium: readable at every width, in the dark and on paper, and without a complaint."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import tinyruns
from browser import A4, Browser, browser

from coalface.experiments import run as experiment
from coalface.experiments import sharing
from coalface.experiments.comparison import page as comparison_page
from coalface.experiments.comparison.table import compare
from coalface.experiments.recipe import loader
from coalface.experiments.report import page, vega
from coalface.experiments.report.templates import write_page
from coalface.experiments.report.vega import _library, draw
from coalface.experiments.sweep import page as sweep_page
from coalface.experiments.sweep.series import Point

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
METHODS = (
    "fedavg solo centralized pfm-fv fedface feduv fedfr-joint fedfr-uda ditto privacyface".split()
)  # silos, own models, pooled, validators, devices, codewords, public images, domains, personal, clusters

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Charts are drawn, which most tests do without."""
    monkeypatch.setattr(vega, "draw", draw)
    monkeypatch.setattr(vega, "_library", _library)
    vega.scripts.cache_clear()
    yield
    vega.scripts.cache_clear()


@pytest.mark.parametrize("method", METHODS)
def test_a_page_is_readable_everywhere_and_complains_of_nothing(
    method: str, chromium: Browser, drawn: None, tmp_path: Path
) -> None:
    recipes = runpy.run_path(str(BENCHMARKS / "fingerprints.py"))["recipes"]()
    tree = loader.merged(recipes[method], {"evaluation": {"every": 1}})
    experiment.run(loader.parse(tree), tmp_path / method, tinyruns.Silent())
    path = page.build(tmp_path / method)
    for scheme in ("light", "dark"):
        for width in (390, 768, 1280):
            assert chromium.defects(path, width, scheme) == [], (width, scheme)
    assert chromium.defects(path, A4, "print") == []
    assert path.stat().st_size < 1_000_000


def test_what_would_be_wrong_is_found(chromium: Browser, drawn: None, fedavg_run: Path, tmp_path: Path) -> None:
    whole = page.build(fedavg_run, to=tmp_path / "sound.html").read_text(encoding="utf-8")
    assert chromium.defects(tmp_path / "sound.html", 390, "light") == []
    wrong = {
        "small text in a chart": ("</style>", ".chart text { font-size: 8px !important; }</style>"),
        "clipped text in a chart": ("</style>", ".chart text { transform: translate(-400px, 0); }</style>"),
        "faint text in a chart": ("</style>", ".chart text { fill: #eee !important; }</style>"),
        "P beyond the edge": ("</main>", '<p style="width: 900px; max-width: none">wide</p></main>'),
        "axe image-alt": ("</main>", '<img src="data:image/jpeg;base64,"></main>'),
        "http://localhost:9/": ("</main>", '<img alt="away" src="http://localhost:9/"></main>'),
    }
    for name, (before, after) in wrong.items():
        (tmp_path / "wrong.html").write_text(whole.replace(before, after, 1), encoding="utf-8")
        assert any(defect.startswith(name) for defect in chromium.defects(tmp_path / "wrong.html", 390, "light")), name


def test_pages_of_comparisons_of_sweeps_and_to_pass_on_are_readable_too(
    chromium: Browser, drawn: None, fedavg_run: Path, solo_run: Path, tmp_path: Path
) -> None:
    grid = [(method, k, rate) for method in ("fedavg", "pfm", "solo") for k in (5, 25, 75) for rate in (0.01, 0.1)]
    points = [
        Point({"method": method, "local.steps_per_round": k, "local.lr": rate}, seed, {"unseen/eer": k / 9 + seed})
        for method, k, rate in grid
        for seed in range(3)
    ]
    name = "method=fedavg, methods.fedavg.momentum=reset, loss.name=cosface, local.steps_per_round=75"
    table = f"| setting | unseen TAR at FAR 0.001 | seeds |\n|---|--:|--:|\n| {name} | 80.0 ± 1.2 | 3 |"
    text = sweep_page.render(
        "grid", "coalface sweep", "18 settings in 54 runs.", table, points, ["local.steps_per_round"]
    )
    write_page(tmp_path / "sweep.html", text)
    comparison_page.build(compare([fedavg_run, solo_run]), tmp_path / "compared.html")
    sharing.build(fedavg_run, tmp_path / "shared.html")
    for file in ("sweep.html", "compared.html", "shared.html"):
        for scheme, width in (("light", 390), ("dark", 1280), ("print", A4)):
            assert chromium.defects(tmp_path / file, width, scheme) == [], (file, scheme, width)


def test_tables_are_sorted_by_bytes_and_by_clock(chromium: Browser, tmp_path: Path) -> None:
    sent = ["7.47 MB", "528 B", "1.2 kB", "1:02:05", "27:10"]
    table = "| setting | up |\n|---|--:|\n" + "".join(f"| {place} | {text} |\n" for place, text in enumerate(sent))
    write_page(tmp_path / "sweep.html", sweep_page.render("grid", "coalface sweep", "", table, [], []))
    with chromium.opened(tmp_path / "sweep.html", 768, "light") as (tab, _):
        tab.click("th:nth-child(2) button")
        cells = tab.evaluate("[...document.querySelectorAll('tbody td:nth-child(2)')].map((cell) => cell.textContent)")
    assert cells == ["528 B", "1.2 kB", "27:10", "1:02:05", "7.47 MB"]
