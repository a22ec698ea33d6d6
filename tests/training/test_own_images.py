"""Which of its own images a client trains on: labels against a loop, the easier half, sharpness by hand."""

from __future__ import annotations

from dataclasses import replace

import naive
import numpy as np
import pytest
import torch

from coalface.data.faceset import FaceSet
from coalface.experiments.conformance.tiny_federation import Tiny
from coalface.training.joint import own_images
from coalface.training.joint.own_images import Curriculum, confident_labels, easier_half, sharpness, with_labelled


def unit(n: int, seed: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.from_numpy(np.random.default_rng(seed).standard_normal((n, 4))))


@pytest.mark.parametrize("block", [3, 4096])
@pytest.mark.parametrize(("public", "threshold"), [(0, 0.5), (3, 0.5), (3, -1.0), (5, 0.9)])
def test_a_label_is_that_of_the_loop(
    public: int, threshold: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_images, "BLOCK", block)
    features, head = unit(30, 1), 7 * unit(6, 2)
    expected = []
    for feature in features:
        cosines = [float(feature @ row / row.norm()) for row in head]
        best = max(range(len(cosines)), key=cosines.__getitem__)
        expected.append(best - public if best >= public and cosines[best] > threshold else -1)
    assert confident_labels(features, head, public, threshold).tolist() == expected
    assert threshold < 0 or -1 in expected


def test_numbers_by_hand() -> None:
    """A public person at 0°, the client's own at 60° and 90°; cos 60° is not above ½, and the nearest must be own."""
    head = torch.tensor([[2.0, 0.0], [0.5, 3**0.5 / 2], [0.0, 3.0]], dtype=torch.float64)
    at = torch.tensor([10.0, 50.0, 80.0, 150.0, 200.0], dtype=torch.float64).deg2rad()
    features = torch.stack([at.cos(), at.sin()], dim=1)
    assert confident_labels(features, head, 1, 0.5).tolist() == [-1, 0, 1, -1, -1]
    assert confident_labels(features, head, 1, 0.49).tolist() == [-1, 0, 1, 1, -1]
    assert confident_labels(features, head, 0, 0.5).tolist() == [0, 1, 2, -1, -1]
    assert confident_labels(features[:0], head, 1, 0.5).tolist() == []


def test_those_with_a_label_come_after_the_known_ones_with_the_same_identities() -> None:
    pixels = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)
    known = FaceSet(pixels, np.array([4, 0]), np.array([1, 0]), ("a", "b"))
    others = FaceSet(pixels, np.array([5, 2, 3]), np.full(3, -1), ())
    both = with_labelled(known, others, np.array([1, -1, 0]))
    assert both.rows.tolist() == [4, 0, 5, 3] and both.labels.tolist() == [1, 0, 1, 0]
    assert both.names == ("a", "b") and both.pixels is pixels
    assert with_labelled(known, others, np.full(3, -1)).labels.tolist() == [1, 0]
    apart = with_labelled(known, replace(others, pixels=pixels.copy()), np.array([1, -1, 0]))  # of another store
    assert apart.take(np.arange(4)).ravel().tolist() == [4, 0, 5, 3] and apart.labels.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("ease", "easiest"), [([3.0, 1, 2, 4], [0, 3]), ([1.0, 2, 3], [1, 2]), ([1.0, 1, 1, 1, 0], [0, 1, 2]), ([5.0], [0])]
)
def test_the_easier_half_is_in_the_images_order_and_of_equals_the_first(ease: list[float], easiest: list[int]) -> None:
    assert easier_half(np.array(ease)).tolist() == easiest


def test_sharpness_by_hand_and_by_a_loop() -> None:
    """A flat image has 0; of 3 × 4 grey levels the two inside have Laplacians 8 and −4: variance 36."""
    flat = np.full((1, 3, 4, 1), 90, dtype=np.uint8)
    inner = np.zeros((3, 4), dtype=np.uint8)
    inner[1, 1], inner[1, 2] = 3, 2  # 4·3 − 2 = 10 and 4·2 − 3 = 5, less what lies above and below
    inner[0, 1], inner[2, 2] = 2, 9
    pixels = np.concatenate([flat, inner[None, :, :, None]])
    faces = FaceSet(pixels, np.arange(2), np.zeros(2, dtype=np.int64), ("a",))
    assert sharpness(faces).tolist() == [0.0, 36.0]  # 8 and −4, whose mean is 2
    random = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)
    colours, expected = FaceSet(random, np.arange(5), np.zeros(5, dtype=np.int64), ("a",)), []
    for image in random:
        grey, values = image.astype(float).mean(axis=2), []
        for y in range(1, 5):
            for x in range(1, 6):
                around = grey[y - 1, x] + grey[y + 1, x] + grey[y, x - 1] + grey[y, x + 1]
                values.append(4 * grey[y, x] - around)
        expected.append(sum((v - sum(values) / len(values)) ** 2 for v in values) / len(values))
    assert np.allclose(sharpness(colours), expected)


@pytest.mark.parametrize(
    ("rounds", "of", "share", "applies"), [(2, 4, 0.5, True), (3, 4, 0.5, False), (1, 3, 0.3, False)]
)
def test_a_curriculum_is_for_the_first_rounds(rounds: int, of: int, share: float, applies: bool) -> None:
    party = naive.party(round_=rounds, rounds=of)
    assert Curriculum("norm", share).applies(party) == applies


def test_by_the_norm_the_longer_embeddings_are_the_easier_ones() -> None:
    party = naive.party(build=Tiny(double=True))
    net, backbone = party.backbone.module.eval(), party.backbone.shared()
    with torch.no_grad():
        lengths = [float(net(party.compute.plain(party.data))[image].norm()) for image in range(len(party.data))]
    half = sorted(sorted(range(len(lengths)), key=lambda image: -lengths[image])[: (len(lengths) + 1) // 2])
    chosen = Curriculum("norm").easier(party, party.data, backbone, None)
    assert chosen.rows.tolist() == party.data.rows[half].tolist()
