"""The tables of `benchmarks/robust.py`, by hand."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "robust.py"))


def cells(**accuracies: list[float | None]) -> list[dict[str, Any]]:
    """The runs of SCAFFOLD by rule: without a liar in two seeds, then under either attack."""
    settings = [(attack, seed) for attack in BENCHMARK["WORLDS"]["scaffold"][2] for seed in (0, 1)]
    return [
        {"world": "scaffold", "rule": rule.replace("_", "-"), "attack": attack, "seed": seed}
        | ({"failed": "NaN"} if accuracy is None else {"accuracy": accuracy})
        for rule, row in accuracies.items()
        for (attack, seed), accuracy in zip(settings, row, strict=True)
    ]


def test_a_run_that_failed_has_no_accuracy_and_losses_have_a_verdict() -> None:
    runs = cells(
        mean=[70, 72, None, None, 60, 60],
        median=[70, 72, 69, 71, 69, 71],
        trimmed_mean=[70, 72, 60, 62, None, 64],
        multi_krum=[76, 80, 76, 78, 77, 79],
    )
    rows = {
        row.split(" | ")[0].removeprefix("| "): row.removesuffix(" |").split(" | ")[1:]
        for row in BENCHMARK["table"](runs)
        if row.startswith("| ")
    }
    assert rows["mean"] == ["71.0", "fails", "60.0", "fails", "fails"]
    assert rows["trimmed-mean"][:3] == ["71.0", "61.0", "64.0, 1 of 2 fail"] and rows["trimmed-mean"][3] == "fails"
    # Ten settings are whole; from the one seed to the other they gain 2, but 0 and 4 once. Half of what differs is left
    # in each seed: s² = 2 (1² + 1²) / (9 · 1) = 0.667², and t of nine degrees of freedom is 2.262.
    assert rows["median"][3:] == ["1.0 ± 1.5, undecided"] * 2
    assert rows["multi-krum"][3:] == ["1.0 ± 1.5, undecided", "−6.0 ± 1.5, shown"]


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([[1.0, 1.2], [0.5, 0.7]], "shown"),
        ([[1.0, 1.2], [1.8, 2.0]], "undecided"),
        ([[3.0, 3.2], [0.0, 0.0]], "refuted"),
    ],
)
def test_a_verdict_takes_the_intervals_of_all_attacks(losses: list[list[float]], verdict: str) -> None:
    """t of four degrees of freedom is 2.7764 at 97.5 %, so that of two seeds each interval is ± 0.28."""
    text = BENCHMARK["loss_text"](losses, 0.1, 4)
    assert text == f"{max(sum(by_seed) / 2 for by_seed in losses):.1f} ± 0.3, {verdict}"
