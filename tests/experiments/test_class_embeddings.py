"""How close class embeddings have come: what the page draws and says of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from coalface.experiments.report import charts, page, runs
from coalface.experiments.summary import class_embeddings
from coalface.training.losses.base import unit


def test_a_collapse_shows_as_cosines_of_one(write_run: Any) -> None:
    rng = np.random.default_rng(0)
    apart = unit(torch.from_numpy(rng.standard_normal((40, 64))))
    together = unit(apart * 0.01 + apart[:1])
    spread = runs.read(write_run("spread", class_embeddings=class_embeddings(apart)))
    fallen = runs.read(write_run("fallen", class_embeddings=class_embeddings(together)))
    plain = runs.read(write_run("plain"))
    histogram, *trace = charts.class_embeddings([spread, fallen, plain])
    assert "spread: 40 class embeddings, mean cosine" in histogram.caption and not trace  # nobody logged one a round
    assert histogram.caption.count("They have fallen together") == 1
    assert histogram.caption.index("fallen: 40") < histogram.caption.index("They have fallen together")
    assert histogram.svg.count("<polyline") == 2  # the run without class embeddings has no curve
    assert charts.class_embeddings([plain]) == [] and "Class embeddings" not in page.render([plain])
    assert "tells nobody apart" in page.render([fallen, spread])


def test_the_histogram_counts_every_pair_once() -> None:
    rows = torch.eye(5).repeat(2, 1)  # 5 pairs at 1, 40 at 0
    found = class_embeddings(rows)
    counts = dict(zip(found["edges"], found["pairs"], strict=False))
    assert sum(found["pairs"]) == 45 and found["pairs"][-1] == 5
    assert sum(n for low, n in counts.items() if -0.02 < low <= 0.01) == 40
    assert abs(found["mean"] - 5 / 45) < 1e-12 and class_embeddings(rows[:1]) == {}
