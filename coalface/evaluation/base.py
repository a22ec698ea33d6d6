"""What a run is evaluated by: a list of evaluators, each of which adds to its summary."""

from __future__ import annotations

from typing import Any

from coalface.core.local_results import PUBLIC_IMAGES_USED
from coalface.core.method import Models, Tensors
from coalface.engine.server import Server


class Evaluator:
    """Evaluates a run from outside its method, with nothing on the wire; it says nothing where it does not apply.

    What it returns becomes part of `summary.json`, each evaluator's under keys of its own.
    """

    missing: str = ""
    """What a person is told where the run left nothing for it to evaluate."""

    def evaluate_start(self, model: Tensors) -> dict[str, Any]:
        """Evaluate the model that the run starts from: all tensors of the backbone."""
        return {}

    def evaluate_round(self, server: Server, models: Models) -> dict[str, Any]:
        """Evaluate what a run has reached after a round that is evaluated; it becomes the round's `judged`."""
        return {}

    def evaluate(self, server: Server, models: Models) -> dict[str, Any]:
        """Evaluate what the run leaves."""
        return {}


class PublicImages(Evaluator):
    """How many of the `count` public images each party trained on in each round that it took part in."""

    def __init__(self, count: int) -> None:
        self.count = count

    def evaluate(self, server: Server, models: Models) -> dict[str, Any]:
        """Party -> images by round, under `public_images`."""
        used = {
            party: results["images"].tolist()
            for party, results in server.local_results(PUBLIC_IMAGES_USED, models)
            if results
        }
        return {"public_images": {"held": self.count, "used": used}} if used else {}
