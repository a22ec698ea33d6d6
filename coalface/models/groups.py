"""The tensors of a backbone in named groups: what crosses the wire, what a party keeps, what is only counted.

A module holds parameters, float buffers (the running mean and variance of BatchNorm) and counters (its
`num_batches_tracked`). Counters are neither sent nor kept nor averaged. For the rest, a run has a BatchNorm policy:

| policy | shared | kept |
|---|---|---|
| `average` | all parameters, float buffers | nothing |
| `parameters-only` | all parameters | float buffers |
| `local` | parameters outside BatchNorm layers | BatchNorm parameters, float buffers |

`local` is FedBN (Li et al., ICLR 2021) with the running statistics kept as well. Without BatchNorm all are the same.
A recipe's `frozen` is `average` with layers of which `freeze_batchnorm` took the statistics of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coalface.models.pretrained.input import WithInput

BatchNormPolicy = Literal["average", "local", "parameters-only"]


class Backbone:
    """A module under a BatchNorm policy: reads and writes its tensors by group.

    The module may be trained, moved or laid out anew between calls. Tensors handed out are detached, contiguous copies
    on the module's device, in the order of the module's state dict; training does not change them.

    Examples:
        >>> backbone = Backbone(nn.BatchNorm1d(2), "local")
        >>> list(backbone.shared()), list(backbone.kept())
        ([], ['weight', 'bias', 'running_mean', 'running_var'])
    """

    def __init__(self, module: nn.Module, policy: BatchNormPolicy = "average") -> None:
        if policy not in get_args(BatchNormPolicy):
            raise ValueError(f"unknown BatchNorm policy {policy!r}; known: {', '.join(get_args(BatchNormPolicy))}")
        self.module = module
        self.policy: BatchNormPolicy = policy
        shared, kept, counters = [], [], []
        for slot in _slots(module):
            if not slot.tensor().is_floating_point():
                counters.append(slot)
            elif policy == "average" or (slot.is_parameter and (policy == "parameters-only" or not slot.in_batch_norm)):
                shared.append(slot)
            else:
                kept.append(slot)
        self._shared, self._kept, self._counters = shared, kept, counters
        names = {name for name, _ in module.named_parameters()}  # a parameter of two layers has the name of the first
        self._parameters = [slot for slot in _slots(module) if slot.is_parameter and slot.name in names]
        self._fresh = _copies(kept)

    def shared(self) -> dict[str, Tensor]:
        """What crosses the wire: tensor name → a copy."""
        return _copies(self._shared)

    def kept(self) -> dict[str, Tensor]:
        """What a party keeps to itself across rounds: tensor name → a copy."""
        return _copies(self._kept)

    @property
    def embedding_size(self) -> int:
        """Numbers in an embedding."""
        return int(self.module.embedding_size)  # type: ignore[arg-type]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name, in order: the module's own tensors, for an optimiser."""
        parameters = {slot.name: slot.tensor() for slot in self._parameters}
        return {name: p for name, p in parameters.items() if isinstance(p, nn.Parameter) and p.requires_grad}

    def load(self, shared: Mapping[str, Tensor], kept: Mapping[str, Tensor] | None = None) -> None:
        """Copy both groups into the module, in place.

        `kept` None is a party that has kept nothing yet: it gets the values that the module had when this object was
        made. Counters go back to zero. So the module after `load` depends on the arguments alone, and one module
        can serve party after party without carrying anything from one to the next.

        Raises ValueError, with the module untouched, where names, shapes or dtypes differ from the module's.
        """
        kept = self._fresh if kept is None else kept
        _check(self._shared, shared, "shared", self.policy)
        _check(self._kept, kept, "kept", self.policy)
        slots = self._shared + self._kept
        tensors = [shared[slot.name] for slot in self._shared] + [kept[slot.name] for slot in self._kept]
        with torch.no_grad():
            if slots:
                torch._foreach_copy_([slot.tensor() for slot in slots], tensors)
            for slot in self._counters:
                slot.tensor().zero_()


def freeze_batchnorm(module: nn.Module) -> None:
    """Have every BatchNorm layer work by its running statistics from here on, in training as well.

    They stay as they are, and `module.train()` passes the layers by; scale and shift are trained. So an embedding is of
    its image alone, whatever else is in the batch.

    Examples:
        >>> layer = nn.BatchNorm1d(1, eps=0.0)
        >>> freeze_batchnorm(layer)
        >>> nn.Sequential(layer).train()(torch.tensor([[3.0], [5.0]])).flatten().tolist()
        [3.0, 5.0]
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()
            layer.train = _pass_by  # type: ignore[method-assign, assignment]


def _pass_by(mode: bool = True) -> None:
    """`train` of a frozen layer."""


def is_frozen(layer: nn.Module) -> bool:
    """Whether `freeze_batchnorm` had this layer."""
    return layer.__dict__.get("train") is _pass_by


def has_constant_buffers(layer: nn.Module) -> bool:
    """Whether the layer's buffers, if any, are no batch's to change: frozen, or what a network expects of its input."""
    return is_frozen(layer) or isinstance(layer, WithInput)


class _Slot:
    """The place of one tensor in a module: the tensor is looked up at each use, as `Module.to` may replace it."""

    def __init__(self, owner: nn.Module, prefix: str, key: str, is_parameter: bool) -> None:
        self.name = prefix + key
        self.is_parameter = is_parameter
        self.in_batch_norm = isinstance(owner, _BatchNorm)
        self._tensors: Mapping[str, Tensor | None] = owner._parameters if is_parameter else owner._buffers
        self._key = key

    def tensor(self) -> Tensor:
        tensor = self._tensors[self._key]
        assert tensor is not None  # _slots leaves out the empty ones
        return tensor


def _slots(module: nn.Module) -> Iterator[_Slot]:
    for path, owner in module.named_modules():
        prefix = f"{path}." if path else ""
        for key, parameter in owner._parameters.items():
            if parameter is not None:
                yield _Slot(owner, prefix, key, is_parameter=True)
        for key, buffer in owner._buffers.items():
            if buffer is not None and key not in owner._non_persistent_buffers_set:
                yield _Slot(owner, prefix, key, is_parameter=False)


def _copies(slots: list[_Slot]) -> dict[str, Tensor]:
    return {slot.name: slot.tensor().detach().clone(memory_format=torch.contiguous_format) for slot in slots}


def _check(slots: list[_Slot], tensors: Mapping[str, Tensor], group: str, policy: str) -> None:
    if len(tensors) == len(slots) and all(_fits(slot.tensor(), tensors.get(slot.name)) for slot in slots):
        return
    expected = {slot.name: _form(slot.tensor()) for slot in slots}
    forms = {name: _form(tensor) for name, tensor in tensors.items()}
    wrong = [name for name in {**expected, **forms} if forms.get(name) != expected.get(name)]
    faults = [f"{name} is {forms.get(name, 'missing')}, not {expected.get(name, 'expected')}" for name in wrong[:5]]
    raise ValueError(
        f"the {group} tensors do not fit the backbone under the BatchNorm policy {policy!r}: {'; '.join(faults)}"
        f"{f' and {len(wrong) - 5} more' if len(wrong) > 5 else ''}. Load what `{group}()` of the same backbone and "
        "policy gave"
    )


def _fits(tensor: Tensor, given: Tensor | None) -> bool:
    return given is not None and given.shape == tensor.shape and given.dtype == tensor.dtype


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
