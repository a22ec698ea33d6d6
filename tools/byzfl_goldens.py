"""Write `tests/engine/byzfl_goldens.json`: what ByzFL 0.0.11 makes of vectors, for tests of robust means and lies.

    pip install --no-deps --target /tmp/byzfl byzfl==0.0.11
    python tools/byzfl_goldens.py /tmp/byzfl

ByzFL is no dependency: of it only `byzfl.aggregators` and `byzfl.attacks` are imported, which need numpy, scipy and
torch, and not what its other parts want. Numpy arrays are given to it, since its medians of torch tensors are the lower
ones.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

PLACE = Path(__file__).parents[1] / "tests" / "engine" / "byzfl_goldens.json"
CASES = [(5, 3, 1), (10, 4, 2), (11, 6, 3), (20, 2, 4)]
"""Vectors, numbers of each, and lies among them."""


def drawn(vectors: int, numbers: int, lies: int, rng: np.random.Generator) -> np.ndarray:
    """Honest vectors about one point, and lies far away on one side."""
    rows = rng.standard_normal(numbers) + 0.5 * rng.standard_normal((vectors, numbers))
    rows[rng.permutation(vectors)[:lies]] = 20 + rng.standard_normal((lies, numbers))
    return rows.round(4)


def made(oracle: Any, rows: np.ndarray, lies: int) -> dict[str, Any]:
    """Every rule's result; the names are those of `coalface.engine.robust.rules`."""
    mixed, clipped = oracle.NNM(lies)(rows), oracle.Clipping(2.0)(rows.copy())  # it clips in place
    np.random.seed(len(rows))  # of the buckets' permutation
    state = np.random.get_state()
    order = np.random.permutation(np.arange(len(rows)))
    np.random.set_state(state)
    results = {
        "median": oracle.Median()(rows),
        "trimmed_mean": oracle.TrMean(lies)(rows),
        "geometric_median, 3 steps": oracle.GeometricMedian(nu=0.1, T=3)(rows),
        "geometric_median": oracle.GeometricMedian(nu=1e-9, T=5000)(rows),
        "krum": oracle.Krum(lies)(rows),
        "multi_krum": oracle.MultiKrum(lies)(rows),
        "centred_clipping": oracle.CenteredClipping(L=4, tau=1.5)(rows),
        "norm_bound": oracle.Average()(clipped),
        "nearest_neighbour_mixing": mixed,
        "mixing and trimmed_mean": oracle.TrMean(lies)(mixed),
        "mixing and krum": oracle.Krum(lies)(mixed),
        "bucketing": oracle.Bucketing(2)(rows),
    }
    return {"order": order.tolist(), **{name: np.asarray(result).tolist() for name, result in results.items()}}


def main(place: str) -> None:
    package = types.ModuleType("byzfl")
    package.__path__ = [str(Path(place) / "byzfl")]
    sys.modules["byzfl"] = package  # its own __init__ imports data sets and plots
    oracle, attacks = (importlib.import_module(f"byzfl.{name}") for name in ("aggregators", "attacks"))
    rng, goldens = np.random.default_rng(28), []
    for vectors, numbers, lies in CASES:
        rows = drawn(vectors, numbers, lies, rng)
        lied = {"alie": attacks.ALittleIsEnough(1.5)(rows), "ipm": attacks.InnerProductManipulation(2.0)(rows)}
        lied = {name: vector.tolist() for name, vector in lied.items()}
        goldens.append({"f": lies, "rows": rows.tolist(), "byzfl": made(oracle, rows, lies), "lies": lied})
    PLACE.write_text("[\n" + ",\n".join(map(json.dumps, goldens)) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
