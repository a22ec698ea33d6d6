"""The pages of ten methods in Chromium: readable at every width, in the dark and on paper, and without a complaint."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import tinyruns
from browser import A4, Browser, browser

from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.experiments.report import page, vega
from coalface.experiments.report.vega import _library, draw

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
