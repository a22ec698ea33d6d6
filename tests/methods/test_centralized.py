from __future__ import annotations

from pathlib import Path

import pytest
import torch
from worlds import recipe

from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.training.local_work import LocalTraining


def test_rounds_are_parts_of_one_long_training(tmp_path: Path) -> None:
    """Momentum, class embeddings and the place in the data go on: 6 rounds of 1 step are 1 round of 6 steps."""
    build = Tiny(pooled=True, flip=False)

    def backbone(rounds: int, iterations: int) -> dict[str, torch.Tensor]:
        method, _ = recipe(
            "centralized", rounds=rounds, local=LocalTraining(steps_per_round=iterations, batch_size=5, lr=0.05)
        )
        trained: dict[str, torch.Tensor] = run(method, tmp_path / str(rounds), build).state.backbone
        return trained

    many, one = backbone(6, 1), backbone(1, 6)
    assert all(torch.equal(many[n], t) for n, t in one.items())


@pytest.mark.parametrize("policy", ["average", "parameters-only", "local"])
def test_one_party_gives_the_same_model_under_every_batchnorm_policy(tmp_path: Path, policy: str) -> None:
    def model(chosen: str) -> dict[str, torch.Tensor]:
        build = Tiny(pooled=True, norm=True, policy=chosen)  # type: ignore[arg-type]
        ran = run(recipe("centralized")[0], tmp_path / chosen, build)
        if ran.models.shared is not None:
            return ran.models.shared
        (trained,) = ran.own_models().values()
        return trained

    expected, trained = model("average"), model(policy)
    assert set(trained) == set(expected)
    assert all(torch.equal(trained[n], t) for n, t in expected.items())
