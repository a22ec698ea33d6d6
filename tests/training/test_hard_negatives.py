"""Public images that every party holds: hard negatives against a double loop, and features that are made once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import torch
from torch import Tensor

from coalface.core.method import Party
from coalface.engine.party.setup import FederatedData
from coalface.experiments.conformance.tiny_federation import LOSS, WORK, Tiny, run
from coalface.methods.fedfr_joint import FedFRJoint
from coalface.training.joint import public_images
from coalface.training.joint.public_images import PublicImages, digest, hard_negatives, public_features

BUILD = Tiny(public=3)


def unit(n: int, d: int = 5, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d))))


# --- hard negatives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 7, 4096])
@pytest.mark.parametrize(("many", "own", "threshold"), [(40, 6, 0.6), (40, 1, 0.2), (1, 6, -0.5), (22, 3, 0.95)])
def test_hard_negatives_are_those_of_the_double_loop(block: int, many: int, own: int, threshold: float) -> None:
    public, local = unit(many, seed=1), unit(own, seed=2)
    near = [p for p in range(many) if any(sum((public[p] * local[n]).tolist()) > threshold for n in range(own))]
    chosen = hard_negatives(public, local, threshold, block)
    assert chosen.dtype == np.int64 and chosen.tolist() == near
    assert many == 1 or 0 < len(near) < many or threshold == 0.95


def test_a_cosine_at_the_threshold_is_not_above_it() -> None:
    own = torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    public = torch.tensor([[0.6, 0.8], [0.8, 0.6], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    assert hard_negatives(public, own, 0.6).tolist() == [1, 3]
    assert hard_negatives(public, own, float(np.nextafter(0.6, 0))).tolist() == [0, 1, 3]
    assert hard_negatives(public, own, 1.0).tolist() == []
    assert hard_negatives(public, own[:1], -1.0).tolist() == [0, 1, 3]  # the third is opposite, at −1 itself


# --- features once ----------------------------------------------------------------------------------------------------


def counting(build: Callable[[], FederatedData], passes: list[int]) -> Callable[[], FederatedData]:
    """The world, whose network notes the images of every batch that goes through it while it is not in training."""

    def made() -> FederatedData:
        world = build()
        world.backbone.module.register_forward_hook(
            lambda module, arguments, _: None if module.training else passes.append(len(arguments[0]))
        )
        return world

    return made


def of_public(passes: list[int]) -> int:
    """How often the public images were embedded: nothing else comes in batches of that size."""
    public = BUILD.public_faces()
    assert public is not None
    return passes.count(len(public))


def test_parties_of_one_process_share_them_for_one_model() -> None:
    passes: list[int] = []
    world = counting(BUILD, passes)()
    shared = naive.party("silo-0", BUILD).extra_data
    parties = [replace(naive.party(name, BUILD), backbone=world.backbone, extra_data=shared) for name in world.data]
    first = world.backbone.shared()
    second = {name: tensor + 0.01 for name, tensor in first.items()}
    for model, after in ((first, 1), (second, 2), (first, 3)):  # of several models the last is remembered
        features = [public_features(party, model) for party in parties]
        assert of_public(passes) == after and all(feature is features[0] for feature in features)
        assert features[0].equal(public_features(alone(parties[0]), model))
        passes.remove(len(shared.faces))


def alone(party: Party) -> Party:
    """The party, which remembers no features."""
    return replace(party, extra_data=PublicImages(party.extra_data.faces))


def test_what_a_party_keeps_of_the_model_tells_models_apart() -> None:
    build = replace(BUILD, norm=True, policy="local")
    party = naive.party("silo-0", build)
    shared, kept = party.backbone.shared(), party.backbone.kept()
    moved_kept = {name: tensor + 1 for name, tensor in kept.items()}
    first, second = public_features(party, shared, kept), public_features(party, shared, moved_kept)
    assert not first.equal(second) and second.equal(public_features(alone(party), shared, moved_kept))


def test_a_digest_tells_names_shapes_dtypes_and_numbers_apart_and_not_their_order() -> None:
    a, b = torch.arange(4.0), torch.ones(2)
    digest_ = digest({"a": a, "b": b})
    assert digest({"b": b, "a": a.clone()}) == digest_
    assert digest({"a": torch.stack([a, a], 1)[:, 0], "b": b}) == digest_
    variants = [
        {"a": a, "c": b},
        {"a": a.view(2, 2), "b": b},
        {"a": a.view(torch.int32), "b": b},
        {"a": a, "b": b + 1e-7},
        {"a": b, "b": a},
        {"a": a},
    ]
    assert len({digest_, *(digest(variant) for variant in variants)}) == 7


def method(**changes: Any) -> FedFRJoint:
    return FedFRJoint(**{"rounds": 3, "local": WORK, "loss": LOSS, "threshold": 0.9, **changes})


def test_a_round_embeds_them_once_whatever_the_number_of_clients(tmp_path: Path) -> None:
    passes: list[int] = []
    run(method(), tmp_path / "average", counting(BUILD, passes))
    assert of_public(passes) == 3  # three rounds of three clients, a new model each
    passes.clear()
    run(method(rounds=2), tmp_path / "local", counting(replace(BUILD, norm=True, policy="local"), passes))
    assert of_public(passes) == 1 + 3  # from the second round on every client has a model of its own
    passes.clear()
    run(method(public="all", contrastive=0.0), tmp_path / "all", counting(BUILD, passes))
    assert not passes  # nobody looks for hard negatives


def test_sharing_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = run(method(), tmp_path / "shared", BUILD).bytes()
    numbers = itertools.count()
    monkeypatch.setattr(public_images, "digest", lambda tensors: str(next(numbers)))  # no model is like another
    passes: list[int] = []
    assert run(method(), tmp_path / "anew", counting(BUILD, passes)).bytes() == shared
    assert of_public(passes) == 9
