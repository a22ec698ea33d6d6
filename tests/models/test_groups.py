import copy
import pickle

import pytest
import torch
from torch import nn

from coalface.models.groups import Backbone, freeze_batchnorm


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(3))


def net(seed=0):
    module = small(seed)
    module(torch.randn(4, 1, 8, 8))
    return module


CONV_AND_FC = ["0.weight", "0.bias", "3.weight", "3.bias"]


@pytest.mark.parametrize(
    ("policy", "shared", "kept"),
    [
        (
            "average",
            ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "3.weight", "3.bias"],
            [],
        ),
        (
            "parameters-only",
            ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"],
            ["1.running_mean", "1.running_var"],
        ),
        ("local", CONV_AND_FC, ["1.weight", "1.bias", "1.running_mean", "1.running_var"]),
    ],
)
def test_each_policy_shares_and_keeps_what_it_says(policy, shared, kept):
    backbone = Backbone(net(), policy)
    assert list(backbone.shared()) == shared
    assert list(backbone.kept()) == kept
    state = backbone.module.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in (backbone.shared() | backbone.kept()).items())


def test_without_batch_norm_the_policies_are_the_same():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2))
    for policy in ("average", "local", "parameters-only"):
        assert list(Backbone(module, policy).shared()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
        assert Backbone(module, policy).kept() == {}


@pytest.mark.parametrize("policy", ["average", "local", "parameters-only"])
def test_loading_what_was_handed_out_restores_the_module(policy):
    backbone = Backbone(net(0), policy)
    shared, kept = backbone.shared(), backbone.kept()
    before = {name: t.clone() for name, t in backbone.module.state_dict().items() if t.is_floating_point()}
    places = [p.data_ptr() for p in backbone.module.parameters()]
    backbone.module(torch.randn(4, 1, 8, 8)).sum().backward()
    with torch.no_grad():
        for parameter in backbone.module.parameters():
            parameter -= 0.1
    assert not torch.equal(backbone.module.state_dict()["1.running_mean"], before["1.running_mean"])
    backbone.load(shared, kept)
    assert all(torch.equal(backbone.module.state_dict()[name], t) for name, t in before.items())
    assert places == [p.data_ptr() for p in backbone.module.parameters()], "the tensors themselves stay"


def test_a_party_that_kept_nothing_gets_the_fresh_values_and_not_its_predecessors():
    backbone = Backbone(net(), "local")
    shared, fresh = backbone.shared(), backbone.kept()
    with torch.no_grad():
        backbone.module[1].weight += 5  # one party trains …
    backbone.module(torch.randn(4, 1, 8, 8))
    backbone.load(shared)  # … and the next one comes for the first time
    assert all(torch.equal(t, fresh[name]) for name, t in backbone.kept().items())
    assert backbone.module[1].num_batches_tracked == 0


def test_parameters_are_the_trainable_ones_of_the_module_itself():
    module = net()
    module[3].bias.requires_grad_(False)
    backbone = Backbone(module, "local")
    assert list(backbone.parameters) == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight"]
    assert backbone.parameters["0.weight"] is module[0].weight
    assert "3.bias" in backbone.shared(), "a fixed parameter is part of the model all the same"


def test_a_module_moved_or_laid_out_anew_is_still_the_one():
    backbone = Backbone(net(), "average")
    backbone.module.to(memory_format=torch.channels_last)
    backbone.module.double()
    shared = backbone.shared()
    assert shared["1.running_mean"].dtype == torch.float64
    assert all(t.is_contiguous() for t in shared.values())
    backbone.load({name: t + 1 for name, t in shared.items()})
    torch.testing.assert_close(backbone.module[0].weight, shared["0.weight"] + 1)
    torch.testing.assert_close(backbone.module[1].running_mean, shared["1.running_mean"] + 1)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda s: {n: t for n, t in s.items() if n != "0.bias"}, "0.bias is missing"),
        (lambda s: s | {"4.weight": torch.zeros(1)}, "4.weight"),
        (lambda s: s | {"3.bias": torch.zeros(4)}, r"3.bias .*\(4,\), not .*\(3,\)"),
        (lambda s: s | {"3.bias": torch.zeros(3, dtype=torch.float64)}, "3.bias .*float64.* not .*float32"),
        (lambda s: {}, "0.weight .*and 3 more"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(change, names):
    backbone = Backbone(net(), "average")
    shared = backbone.shared()
    wrong = change({name: t + 1 for name, t in shared.items()})
    with pytest.raises(ValueError, match=f"shared tensors .*policy 'average'.*{names}"):
        backbone.load(wrong)
    assert all(torch.equal(t, shared[name]) for name, t in backbone.shared().items())


@pytest.mark.parametrize("made_again", [lambda module: module, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_frozen_network_embeds_an_image_by_itself_in_training_too_and_trains_scale_and_shift(made_again):
    module = net()
    before = {name: tensor.clone() for name, tensor in module[1].named_buffers()}
    freeze_batchnorm(module)
    module = made_again(module).train()
    images = torch.randn(4, 1, 8, 8)
    together = module(images)
    torch.testing.assert_close(together, torch.cat([module(image[None]) for image in images]))
    together.square().sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module[1].named_buffers())
    assert module[1].weight.grad.abs().sum() > 0 and module[1].bias.grad.abs().sum() > 0
    assert module.training and module[0].training and not module[1].training
