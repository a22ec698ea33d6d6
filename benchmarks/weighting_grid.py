"""The scores of the average of three trainers' backbones over a grid of weightings, from the folder of a run.

    python benchmarks/weighting_grid.py runs/pfm-fv                             # 66 weightings of its three trainers
    python benchmarks/weighting_grid.py runs/twelve --parties a,b,c --steps 20  # three of more; the others get weight 0

Bai et al., "Federated Face Recognition", 2021, Fig. 3: how much there is for Federated Validation to find. The run is
of `pfm-fv` or `fedavg-fv`, stopped or finished, with its replies saved (`engine.save_replies: true`) and all of
BatchNorm averaged. Its validators score the backbones of its last checkpoint, without normalising. Prints CSV, and the
range of each validator's scores on the standard error.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from coalface.core.codec import copied, decode
from coalface.core.method import Tensors
from coalface.engine import checkpoint
from coalface.engine.party.commits import REPLY, Commit
from coalface.evaluation.metrics.verification import score_pairs
from coalface.experiments import provenance
from coalface.experiments.setup.parts import Parts
from coalface.models.embedding import embed, images_needed
from coalface.training.federated_validation import weighted_mean


class Point(NamedTuple):
    """A weighting and what the model that it makes scores."""

    name: str
    """Empty for a weighting of the grid."""
    weights: dict[str, float]
    """By party; they add up to 1."""
    scores: dict[str, float]
    """By validator, higher is better; accuracy and TAR in percent."""


def simplex(steps: int) -> list[tuple[float, float, float]]:
    """The weightings (i, j, k) / steps of three parties, (steps + 1)(steps + 2) / 2 of them."""
    counts = [(i, j, steps - i - j) for i in range(steps, -1, -1) for j in range(steps - i, -1, -1)]
    return [(i / steps, j / steps, k / steps) for i, j, k in counts]


def last_backbone(run: Path, method: Any, party: str, commit: str) -> Tensors:
    """The backbone that a trainer sent last, from the reply that its last accepted commit holds."""
    saved = Commit.open(run / "parties" / party / f"{commit}.commit")
    reply = saved.read(REPLY)
    if reply is None:
        sys.exit(f"{party}: its last reply was not saved; start the run with engine.save_replies=true")
    _, declaration = method.steps[json.loads(saved.lines()[-1])["step"]]
    return copied(decode(reply, declaration.reply).backbone)


def score_grid(run: Path, steps: int, parties: Sequence[str] = ()) -> list[Point]:
    """The weightings of the grid, then equal weights, the shares of the images, and the weighting in use."""
    parts = Parts(provenance.recipe_of(run))
    method, backbone = parts.method, parts.backbone
    last = checkpoint.load(run / "checkpoints")
    if last is None or not parts.validators:
        sys.exit(f"{run}: it has no checkpoint yet, or no validators")
    parties = parties or sorted(parts.trainers)
    if len(parties) != 3 or not set(parties) <= last.record["accepted"].keys():
        sys.exit(f"--parties: name three trainers with an accepted reply, of {', '.join(sorted(parts.trainers))}")
    backbones = {party: last_backbone(run, method, party, last.record["accepted"][party]) for party in parties}
    in_use = checkpoint.unpack_state(last.state, method.stages()[last.stage].state).weighting.weights
    named = {
        "equal weights": dict.fromkeys(parties, 1.0),
        "shares of the images": {party: float(len(parts.trainers[party])) for party in parties},
        "weighting in use": {party: in_use[party] for party in parties},
    }
    weightings = [("", dict(zip(parties, weights, strict=True))) for weights in simplex(steps)]
    for name, weights in named.items():
        total = math.fsum(weights.values())
        weightings.append((name, {party: weight / total for party, weight in weights.items()}))

    def score_model(model: Tensors) -> dict[str, float]:
        backbone.load(model)
        scores = {}
        for validator, (faces, pairs) in parts.validators.items():
            images, left, right = images_needed(pairs.left, pairs.right)
            cosines = score_pairs(embed(backbone.module, faces, images, device=parts.recipe.engine.device), left, right)
            scores[validator] = method.validation.graded(cosines, pairs.same, pairs.fold)
        return scores

    return [Point(name, weights, score_model(weighted_mean(backbones, weights))) for name, weights in weightings]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--steps", type=int, default=10, help="from weight 0 to 1; 10 make 66 weightings")
    parser.add_argument("--parties", type=lambda names: names.split(","), default=(), metavar="A,B,C")
    options = parser.parse_args()
    engine = provenance.recipe_of(options.run).engine
    torch.set_num_threads(engine.threads)
    torch.set_flush_denormal(engine.flush_denormals)
    points = score_grid(options.run, options.steps, options.parties)
    parties, validators = list(points[0].weights), list(points[0].scores)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["name", *(f"weight/{party}" for party in parties), *(f"score/{v}" for v in validators), "sum"])
    for point in points:
        scores = point.scores.values()
        writer.writerow([point.name, *point.weights.values(), *scores, math.fsum(scores)])
    for validator in validators:
        scores = [point.scores[validator] for point in points if not point.name]
        print(f"{validator}: {min(scores):.1f} to {max(scores):.1f}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
