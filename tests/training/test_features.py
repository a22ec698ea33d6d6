"""Features of a party's images as they are, and class embeddings at their means, against naive loops."""

from __future__ import annotations

from dataclasses import replace

import naive
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coalface.core.method import Party
from coalface.data.faceset import FaceSet
from coalface.experiments.conformance.tiny_federation import Tiny
from coalface.training import compute
from coalface.training.features import mean_head, unit_features

NORM = Tiny(norm=True, double=True)


@pytest.fixture
def party() -> Party:
    return naive.party("silo-1", NORM)


def one_by_one(net: nn.Module, faces: FaceSet) -> Tensor:
    embeddings_ = []
    for place in range(len(faces)):
        pixels = torch.from_numpy(faces.take(np.array([place])).astype(np.float32)).permute(0, 3, 1, 2)
        with torch.no_grad():
            embedding = net.eval()(((pixels - 127.5) / 127.5).double())[0]
        embeddings_.append(embedding / embedding.norm())
    return torch.stack(embeddings_)


@pytest.mark.parametrize("batch", [1, 4, 256])
def test_features_are_those_of_plain_images_one_by_one(
    party: Party, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In evaluation mode and without augmentation, which this world has for training."""
    monkeypatch.setattr(compute, "BATCH", batch)
    party.backbone.module.train()
    found = unit_features(party, party.data, party.initial)
    assert found.shape == (11, 8) and not found.requires_grad and NORM.flip
    assert torch.allclose(found, one_by_one(NORM().backbone.module, party.data), atol=1e-12)


def test_features_are_by_the_backbone_that_is_given_and_by_what_is_kept(party: Party) -> None:
    local = naive.party("silo-1", replace(NORM, policy="local"))
    shared = {n: 1.1 * t for n, t in local.backbone.shared().items()}
    kept = {n: t + 0.3 for n, t in local.backbone.kept().items()}
    features = unit_features(local, local.data, shared, kept)
    net = NORM().backbone.module
    net.load_state_dict({**net.state_dict(), **shared, **kept})
    assert torch.allclose(features, one_by_one(net, local.data), atol=1e-12)
    assert not torch.allclose(features, unit_features(local, local.data, shared), atol=1e-3)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_model_that_has_collapsed_or_diverged_is_told(party: Party, value: float) -> None:
    broken = {n: torch.full_like(t, value) if n.startswith("up") else t for n, t in party.initial.items()}
    with pytest.raises(
        ValueError, match="silo-1: the features of 11 of 11 images are zero or not finite, the first of"
    ):
        unit_features(party, party.data, broken)


def test_mean_embeddings_by_a_naive_loop() -> None:
    rng = np.random.default_rng(0)
    rows = nn.functional.normalize(torch.from_numpy(rng.standard_normal((20, 5)).astype(np.float32)))
    labels = torch.from_numpy(rng.integers(0, 4, 20))
    head = mean_head(rows, labels, 4)
    for k in range(4):
        mean = sum(row.double() for row, label in zip(rows, labels, strict=True) if label == k)
        assert isinstance(mean, Tensor)
        assert torch.allclose(head[k].double(), mean / mean.norm(), atol=1e-7)
    assert head.dtype == torch.float32


def test_a_class_without_images_or_whose_features_cancel_gets_zeros() -> None:
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    head = mean_head(rows, torch.tensor([0, 0, 2]), 4)
    assert head.tolist() == [[0, 0], [0, 0], [0, 1], [0, 0]]
