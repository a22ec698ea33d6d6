from __future__ import annotations

import json
from pathlib import Path

import pytest
import tinyruns
import torch
from worlds import recipe

from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.training.local_work import LocalTraining
from coalface.training.losses.base import CosineLoss
from coalface.training.losses.elasticface import ElasticFace
from coalface.training.losses.margins import Softmax
from coalface.training.losses.per_party import PerPartyLoss
from coalface.training.losses.subcenter import SubCenterArcFace


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


def test_a_classifier_for_each_silo_is_the_naive_sum_over_silos() -> None:
    g, scale = torch.Generator().manual_seed(0), 4.0
    parties, labels = torch.tensor([0, 1, 0, 1, 1]), torch.tensor([4, 0, 2, 1, 1, 3, 0])
    x, w = (torch.randn(n, 6, generator=g, dtype=torch.float64).requires_grad_() for n in (len(labels), len(parties)))
    loss = PerPartyLoss(Softmax(scale=scale), parties)
    naive = []
    for embedding, label in zip(x, labels.tolist(), strict=True):
        logits = {
            j: scale * torch.cosine_similarity(embedding, w[j], dim=0)
            for j in range(len(parties))
            if parties[j] == parties[label]
        }
        naive.append(-(logits[label] - torch.stack(list(logits.values())).exp().sum().log()))
    expected = torch.stack(naive).mean()
    value = loss(x, w, labels)
    assert value.item() == pytest.approx(expected.item(), abs=1e-12)
    for ours, theirs in zip(*(torch.autograd.grad(v, (x, w)) for v in (value, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    for party, (images, total) in loss.sums.items():
        of_party = [v.item() for v, label in zip(naive, labels, strict=True) if parties[label] == party]
        assert images == len(of_party) and total == pytest.approx(sum(of_party), abs=1e-12)


def test_a_run_gives_the_loss_of_each_silo(tmp_path: Path) -> None:
    settings = {"method": "centralized", "methods": {"centralized": {"classifiers": "per-party"}}}
    pooled, split = (tinyruns.run(tmp_path / n, **s) for n, s in (("a", {"method": "centralized"}), ("b", settings)))
    rounds = [[json.loads(line) for line in (p / "metrics.jsonl").read_text().splitlines()] for p in (pooled, split)]
    assert [list(line["losses"]) for line in rounds[0]] == [["pooled"]] * 2
    for line in rounds[1]:
        assert sorted(line["losses"]) == ["silo-00", "silo-01"]  # of as many images each
        assert sum(line["losses"].values()) / 2 == pytest.approx(line["loss"], rel=1e-6)


@pytest.mark.parametrize("loss", [ElasticFace(), SubCenterArcFace()])
def test_a_loss_that_is_not_over_plain_classes_is_not_split(loss: CosineLoss) -> None:
    with pytest.raises(ValueError, match="split by party"):
        PerPartyLoss(loss, torch.tensor([0, 1]))
