"""Accuracy of a sweep's settings over what a party sends in a run, as a picture.

    python benchmarks/accuracy_over_bytes.py docs/results/across-clients --parties 4 --without centralized solo

Each setting is a mark at the means over its seeds; `NAME of N rounds` is joined with `NAME`. The picture is
FOLDER/bytes.svg.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coalface.experiments.report import specs
from coalface.experiments.report.vega import Chart
from coalface.experiments.sweep.cells import read_cells


def curves(folder: Path, pairs: str, parties: int, without: Sequence[str]) -> list[specs.Curve]:
    """A curve for each method: (MB that a party sends, accuracy in percent) of its settings."""
    by_setting: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for cell in read_cells(folder / "cells.jsonl", mend=False).values():
        if cell["method"] in without:
            continue
        sent = cell["bytes"]["up"] / parties / 1e6
        by_setting[cell["cell"]["name"]].append((sent, cell["figures"][pairs]["accuracy"]))
    by_method: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for setting, points in by_setting.items():
        sent, accuracy = np.mean(points, axis=0)
        by_method[setting.partition(" of ")[0] if setting.endswith(" rounds") else setting].append((sent, accuracy))
    return [
        specs.Curve(method, *map(list, zip(*sorted(points), strict=True)), series=place)
        for place, (method, points) in enumerate(by_method.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with the cells of a sweep whose settings have names")
    parser.add_argument("--list", default="unseen", help="of pairs")
    parser.add_argument("--parties", type=int, required=True, help="of a run")
    parser.add_argument("--without", nargs="*", default=(), help="methods that send no models, or images")
    options = parser.parse_args()
    spec = specs.lines(
        curves(options.folder, options.list, options.parties, options.without),
        x="MB that a party sends",
        y="accuracy (%)",
        whole=False,
        height=specs.TALL,
    )
    Chart(f"{options.list}: accuracy over what a party sends", spec).save(options.folder / "bytes.svg")


if __name__ == "__main__":
    main()
