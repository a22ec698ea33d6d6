import hashlib
import math

import numpy as np
import pytest
import torch
from torch import nn

from coalface.models import BACKBONES, Backbone, build, describe


def made(name, seed=0, size=64, channels=1, embedding_size=None):
    return build(
        name, size=size, channels=channels, embedding_size=embedding_size, generator=np.random.default_rng(seed)
    )


def digest(module):
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in module.state_dict().values())).hexdigest()


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize(("size", "channels", "embedding_size"), [(75, 1, None), (112, 3, 96)])
def test_images_become_embeddings_of_the_size_asked_for(name, size, channels, embedding_size):
    module = made(name, size=size, channels=channels, embedding_size=embedding_size)
    default = {"cnn-small": 128, "feduv-cnn": 512, "ir18": 512}[name]
    images = torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    embeddings = module(images)
    assert embeddings.shape == (2, embedding_size or default)
    assert embeddings.isfinite().all()
    embeddings.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_weights_come_from_the_generator_alone(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = digest(made(name, seed=7))
    assert torch.equal(torch.get_rng_state(), before), "torch's own random state is left as it was"
    torch.manual_seed(2)
    assert digest(made(name, seed=7)) == first
    assert digest(made(name, seed=8)) != first


def test_two_builds_from_one_generator_differ():
    generator = np.random.default_rng(0)
    first, second = (build("cnn-small", size=64, channels=1, generator=generator) for _ in range(2))
    assert digest(first) != digest(second)


def test_cnn_small_parameters_by_hand():
    widths = [1, 16, 32, 64, 128, 128]
    convolutions = sum(9 * a * b for a, b in zip(widths[:-1], widths[1:], strict=True))
    norms = 2 * sum(widths[1:])
    fc = 128 * 2 * 2 * 128 + 128
    assert describe("cnn-small", size=64, channels=1).parameters == convolutions + norms + fc == 310_768
    assert describe("cnn-small", size=64, channels=1).message_bytes == 4 * 310_768


def test_feduv_cnn_parameters_by_hand():
    widths = [3, 64, 128, 256, 512, 512]
    convolutions = sum(9 * a * b + b for a, b in zip(widths[:-1], widths[1:], strict=True))
    norms = 2 * sum(widths[1:])
    fc = 512 * 512 + 512
    assert describe("feduv-cnn", size=64, channels=3).parameters == convolutions + norms + fc == 4_176_384


def test_feduv_cnn_normalises_in_two_groups_after_the_pool():
    module = made("feduv-cnn")
    kinds = [type(layer).__name__ for layer in module.blocks]
    assert kinds == ["Conv2d", "ReLU", "MaxPool2d", "GroupNorm"] * 5
    assert [layer.num_groups for layer in module.blocks if isinstance(layer, nn.GroupNorm)] == [2] * 5
    assert [layer.kernel_size for layer in module.blocks if isinstance(layer, nn.MaxPool2d)] == [2, 2, 2, 2, 4]


def insightface_ir18(side):
    """Names and shapes of the state dict of insightface's iresnet18, written out in its order."""

    def norm(name, width):
        yield from ((f"{name}.{key}", (width,)) for key in ("weight", "bias", "running_mean", "running_var"))
        yield f"{name}.num_batches_tracked", ()

    yield "conv1.weight", (64, 3, 3, 3)
    yield from norm("bn1", 64)
    yield "prelu.weight", (64,)
    width = 64
    for stage, wider in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            at = f"layer{stage}.{block}"
            yield from norm(f"{at}.bn1", width)
            yield f"{at}.conv1.weight", (wider, width, 3, 3)
            yield from norm(f"{at}.bn2", wider)
            yield f"{at}.prelu.weight", (wider,)
            yield f"{at}.conv2.weight", (wider, wider, 3, 3)
            yield from norm(f"{at}.bn3", wider)
            if block == 0:
                yield f"{at}.downsample.0.weight", (wider, width, 1, 1)
                yield from norm(f"{at}.downsample.1", wider)
            width = wider
    yield from norm("bn2", 512)
    yield "fc.weight", (512, 512 * side * side)
    yield "fc.bias", (512,)
    yield from norm("features", 512)


@pytest.mark.parametrize(("size", "side"), [(112, 7), (64, 4), (100, 7)])
def test_ir18_has_the_names_shapes_and_order_of_insightface(size, side):
    with torch.device("meta"):
        module = BACKBONES["ir18"](size, 3)
    assert [(name, tuple(t.shape)) for name, t in module.state_dict().items()] == list(insightface_ir18(side))
    if size == 112:
        assert sum(p.numel() for p in module.parameters()) == 24_025_600  # the figure insightface's own module gives


def test_ir18_block_by_hand():
    from coalface.models.iresnet import IBasicBlock

    block = IBasicBlock(1, 1, 1).eval()
    with torch.no_grad():
        for conv in (block.conv1, block.conv2):
            conv.weight.zero_()
            conv.weight[0, 0, 1, 1] = 2  # a 3×3 convolution that doubles
        for norm in (block.bn1, block.bn2, block.bn3):
            norm.running_var.fill_(1 - norm.eps)
        block.bn1.running_mean.fill_(1)
        # 3: bn1 → 2, conv1 → 4, PReLU → 4, conv2 → 8, plus 3 → 11. −1: bn1 → −2, −4, PReLU (¼) → −1, −2, plus −1 → −3.
        maps = torch.tensor([[[[3.0, -1.0]]]])
        torch.testing.assert_close(block(maps), torch.tensor([[[[11.0, -3.0]]]]))


def test_the_scale_of_the_last_norm_of_ir18_is_fixed_at_one():
    module = made("ir18")
    assert (module.features.weight == 1).all()
    assert "features.weight" not in Backbone(module).parameters
    assert "features.weight" in Backbone(module).shared()


@pytest.mark.parametrize(
    ("policy", "shared", "kept"),
    [("average", 24_040_320, 0), ("parameters-only", 24_025_600, 14_720), ("local", 24_010_880, 29_440)],
)
def test_a_message_of_ir18_under_each_policy(policy, shared, kept):
    told = describe("ir18", size=112, channels=3, policy=policy)
    assert (told.shared, told.kept, told.message_bytes) == (shared, kept, 4 * shared)
    norms = sum(math.prod(s) for n, s in insightface_ir18(7) if n.endswith("running_mean"))
    assert norms == 7_360 and told.parameters == 24_025_600


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(ValueError, match="no backbone 'cnn_smal'; did you mean 'cnn-small'"):
        made("cnn_smal")
    with pytest.raises(ValueError, match="no backbone 'ir50'; did you mean 'ir18'"):
        describe("ir50", size=112, channels=3)


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("cnn-small", 16, "'cnn-small': images of 16×16 are too small; give size 32 or more"),
        ("feduv-cnn", 63, "'feduv-cnn': images of 63×63 vanish .* give size 64 or more"),
        ("ir18", 15, "'ir18': images of 15×15 are too small; give size 16 or more"),
    ],
)
def test_a_size_that_cannot_be_is_refused_with_the_fix(name, size, says):
    with pytest.raises(ValueError, match=says):
        made(name, size=size)


def test_channels_and_embedding_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="2 channels; images are grey"):
        made("ir18", channels=2)
    with pytest.raises(ValueError, match="an embedding of 0 numbers"):
        made("ir18", embedding_size=0)
