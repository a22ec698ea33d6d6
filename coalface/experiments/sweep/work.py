"""How much a run has trained: local steps, and images seen, of all its trainers together; a pre-training apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coalface.core.method import Method
from coalface.core.steps import plays
from coalface.training.local_work import LocalTraining, WorksByRound


def trained(method: Method, summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    """`steps` and `images`, by what the run's summary and its rounds say; None where these do not tell.

    A method whose rounds are alike has them from the rounds of each party. One that says what a round is
    (`WorksByRound`) has them round by round, if nobody was left out of any.
    """
    local = getattr(method, "local", None)
    trainers = [party for party in summary["parties"] if plays(party["role"], "trainer")]
    if any(party["images"] is None for party in trainers):  # hidden in secure sums
        return None
    used = summary.get("public_images", {}).get("used", {})
    rounds = [record for record in records if not record["abandoned"]]
    pairs: list[tuple[int, int] | None] = []
    if isinstance(method, WorksByRound):
        if getattr(method, "sample", None) is not None or any(record["failed"] for record in rounds):
            return None
        for party in trainers:
            for place, record in enumerate(rounds):
                images = party["images"] + (used[party["name"]][place] if party["name"] in used else 0)
                pairs.append(method.round_work(record["stage"], record["round"], party["role"], party["name"], images))
    elif isinstance(local, LocalTraining) and type(method).stages is Method.stages:
        for party in trainers:
            steps, images = local.work(party["name"], party["images"])
            pairs.append((party["rounds"] * steps, party["rounds"] * images))
    if not pairs or None in pairs:
        return None
    steps_of, images_of = zip(*filter(None, pairs), strict=True)
    return {"steps": sum(steps_of), "images": sum(images_of)}
