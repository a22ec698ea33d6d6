import numpy as np
import pytest
import torch
from torch import nn

from coalface.data.faceset import FaceSet
from coalface.models import embedding
from coalface.models.embedding import embed
from coalface.models.groups import Backbone
from coalface.training.compute import Compute


def faces(count=10, height=6, width=4, channels=3, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    rows = np.arange(count, dtype=np.int64)[::-1].copy()  # a view is not in the order of its store
    return FaceSet(pixels=pixels, rows=rows, labels=np.zeros(count, dtype=np.int64), names=("one",))


class Project(nn.Module):
    """A linear embedding, which a test can work out by itself."""

    def __init__(self, inputs=72, d=5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d, inputs, generator=torch.Generator().manual_seed(1)))
        self.batches = []

    def forward(self, images):
        self.batches.append(len(images))
        return images.flatten(1) @ self.weight.T


def by_hand(module, image, flip):
    def one(pixels):
        return module.weight.detach().double().numpy() @ ((pixels.astype(float) - 127.5) / 127.5).transpose(
            2, 0, 1
        ).reshape(-1)

    raw = one(image) + (one(image[:, ::-1]) if flip else 0)
    return raw / np.linalg.norm(raw)


@pytest.mark.parametrize("flip", [False, True])
def test_each_image_alone_gives_the_same_unit_vector(flip):
    module, view = Project(), faces()
    features = embed(module, view, flip=flip, batch=4)
    expected = np.stack([by_hand(module, view.pixels[view.rows[i]], flip) for i in range(10)])
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-6)


def test_only_the_images_named_are_read_in_their_order():
    module, view = Project(), faces()
    index = np.array([7, 2, 7])
    np.testing.assert_allclose(embed(module, view, index), embed(Project(), view)[index], atol=1e-6)
    assert module.batches == [3]


def test_batches_stream_and_do_not_change_the_answer():
    module = Project()
    features = embed(module, faces(), batch=4)
    assert module.batches == [4, 4, 2]
    np.testing.assert_allclose(features, embed(Project(), faces(), batch=100), atol=1e-6)


def test_a_batch_is_computed_in_parts_alike_in_size_and_put_together_in_order(monkeypatch):
    whole = embed(Project(), faces())
    monkeypatch.setattr(embedding, "PIXELS", 3 * faces().pixels[0, :, :, 0].size)
    module = Project()
    np.testing.assert_allclose(embed(module, faces()), whole, atol=1e-6)
    assert module.batches == [4, 3, 3]
    monkeypatch.setattr(embedding, "PIXELS", 1)
    module = Project()
    np.testing.assert_allclose(embed(module, faces()), whole, atol=1e-6)
    assert module.batches == [1] * 10


def test_every_part_is_back_in_its_own_mode_even_after_an_error():
    frozen = nn.BatchNorm1d(72)
    module = nn.Sequential(nn.Flatten(), frozen, nn.Dropout(0.9)).train()
    frozen.eval()
    before = frozen.running_mean.clone()
    once, again = embed(module, faces()), embed(module, faces())
    np.testing.assert_array_equal(once, again)  # dropout was off
    assert torch.equal(before, frozen.running_mean)
    assert (module.training, frozen.training, module[2].training) == (True, False, True)
    with pytest.raises(RuntimeError):
        embed(module, faces(width=9))
    assert (module.training, frozen.training, module[2].training) == (True, False, True)


def test_a_zero_embedding_stays_zero():
    class Zero(nn.Module):
        def forward(self, images):
            return images.new_zeros(len(images), 3)

    assert not embed(Zero(), faces()).any()


def test_what_is_not_finite_is_named():
    class Diverged(nn.Module):
        def forward(self, images):
            raw = images.flatten(1)[:, :3].clone()
            raw[1:3] = torch.nan
            return raw

    with pytest.raises(ValueError, match="2 of 5 embeddings are not finite, the first is that of image 8"):
        embed(Diverged(), faces(), np.array([9, 8, 7, 6, 5]))


def test_training_embeds_all_images_in_parts_and_in_order_too(monkeypatch):
    module, compute = Project(), Compute()
    whole = compute.embed(module, compute.plain(faces()))
    monkeypatch.setattr(embedding, "PIXELS", 3 * faces().pixels[0, :, :, 0].size)
    module = Project()
    torch.testing.assert_close(compute.embed_all(Backbone(module), faces()), whole.detach(), rtol=0, atol=1e-5)
    assert module.batches == [4, 3, 3]
