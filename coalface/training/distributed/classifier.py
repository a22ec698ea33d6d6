"""The class embeddings of one party over several processes: each holds a block, and embeds a part of the batch.

With S processes, process r holds the rows `span(k)` of the (k, d) class embeddings, and of a batch of n images it
embeds those of `span(n)`. The n embeddings are gathered; each process makes the cosines of all of them against its own
block; maximum and sum of the softmax are reduced over the processes. The gradient of the class embeddings stays where
they are, that of the embeddings is summed over the blocks, that of the backbone over the parts of the batch. So all
processes have the same backbone, bit for bit, and together the class embeddings that one process would have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.method import Party
from coalface.training.losses.base import CosineLoss, MarginSoftmax, check_labels, unit, wide

PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others of its party before it gives up."""
_PIECE = 1 << 21  # class embeddings' numbers that are normalised at a time: their unit vectors are never held whole


class ShardLost(RuntimeError):
    """Another process of the party is gone, or does not answer."""


class Shards:
    """The processes among which a party's work is split: this one's `rank`, their number `size`, and their sums."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._group, self.rank, self.size = group, rank, size

    @classmethod
    def join(
        cls, meeting: Path, rank: int, size: int, *, device: torch.device | str = "cpu", patience: timedelta = PATIENCE
    ) -> Shards:
        """Meet the other processes at a file, which nobody has used before: over gloo, on GPUs over NCCL.

        The processes are on one machine: gloo listens on its loopback alone. Raises ShardLost where they do not come.
        """
        store = dist.FileStore(str(meeting), size)  # type: ignore[attr-defined]
        store.set_timeout(patience)
        group: Any
        try:
            if torch.device(device).type == "cuda":
                os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a lost process is an error here, not an abort
                nccl = dist.ProcessGroupNCCL.Options()
                nccl._timeout = patience
                group = dist.ProcessGroupNCCL(store, rank, size, nccl)
            else:
                gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
                gloo._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
                gloo._timeout = patience
                group = dist.ProcessGroupGloo(store, rank, size, gloo)
        except RuntimeError as error:
            raise ShardLost(f"the processes of the party did not meet: {error}") from error
        return cls(group, rank, size)

    def span(self, n: int) -> slice:
        """Which of n rows are this process's: as many as the others have, or one more or less.

        >>> [Shards(None, rank, 3).span(7) for rank in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
        """
        return slice(self.rank * n // self.size, (self.rank + 1) * n // self.size)

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, in place; the same bits at all of them."""
        return self._reduced(tensor, dist.ReduceOp.SUM)

    def max_(self, tensor: Tensor) -> Tensor:
        """The maximum over the processes, in place."""
        return self._reduced(tensor, dist.ReduceOp.MAX)

    def gather(self, own: Tensor, n: int) -> Tensor:
        """The n rows of which each process has those of `span(n)`."""
        whole = own.new_zeros(n, *own.shape[1:])
        whole[self.span(n)] = own
        return self.sum_(whole)

    def sum_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums over the processes of several tensors, each dtype in one message."""
        found = list(tensors)
        for dtype in dict.fromkeys(t.dtype for t in found):
            places = [i for i, t in enumerate(found) if t.dtype == dtype]
            summed = self.sum_(torch.cat([found[i].reshape(-1) for i in places]))
            for i, part in zip(places, summed.split([found[i].numel() for i in places]), strict=True):
                found[i] = part.view(found[i].shape)
        return found

    def _reduced(self, tensor: Tensor, how: Any) -> Tensor:
        options = dist.AllreduceOptions()
        options.reduceOp = how
        try:
            self._group.allreduce([tensor], options).wait()
        except RuntimeError as error:
            raise ShardLost(f"shard {self.rank} of {self.size} lost another one: {error}") from error
        return tensor


def check_shardable(loss: CosineLoss) -> None:
    """Raise ValueError for a loss that is more than a margin on the softmax over one cosine per class."""
    cls, plain = type(loss), MarginSoftmax
    whole = isinstance(loss, plain) and all(
        getattr(cls, name) is getattr(plain, name) for name in ("__call__", "logits", "cosines", "rows", "extra")
    )
    if not whole:
        raise ValueError(
            f"{cls.__name__} cannot be computed over several processes: its party must be played by one. Leave the "
            "party out of engine.processes_per_party, or take softmax, cosface or arcface"
        )


def batch(party: Party, index: NDArray[np.int64], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Augmented images, and the labels (n,) of the whole batch, on the device.

    The images are all n of them, or at a party of several processes those of `span(n)`, with the pixels that they would
    have in the whole batch.
    """
    if party.shards is None:
        images, labels = party.compute.batch(party.data, index, rng)
    else:
        images, _ = party.compute.batch(party.data, index, rng, part=party.shards.span(len(index)))
        labels = torch.from_numpy(party.data.labels[index]).to(party.device)
    return images, labels


def gradients(
    shards: Shards,
    loss: CosineLoss,
    embeddings: Tensor,
    backbone: Sequence[Tensor],
    rows: Tensor,
    labels: Tensor,
    *,
    first: int,
    classes: int,
) -> tuple[Tensor, list[Tensor], Tensor]:
    """(the mean loss of the batch, its gradient by the backbone's tensors, that by this process's class embeddings).

    `embeddings` are those of this process's part of the batch, with their graph; `labels` (n,) of the whole batch,
    below `classes`; `rows` the class embeddings `first`, `first` + 1, … of so many. Of the size of `rows` only their
    gradient is made. Raises ShardLost, and ValueError as the loss would.
    """
    check_shardable(loss)
    assert isinstance(loss, MarginSoftmax)  # as was just checked
    check_labels(labels, classes)
    n = len(labels)
    with torch.autocast(embeddings.device.type, enabled=False):
        part = unit(wide(embeddings, rows[:0])[0])
        with torch.no_grad():
            x = shards.gather(part.detach(), n)
            found = x.new_empty(n, len(rows))
            for piece in _pieces(rows):
                found[:, piece] = x @ unit(rows[piece].to(x.dtype)).T
            where = torch.nonzero((labels >= first) & (labels < first + len(rows)))[:, 0]
            here = (where, labels[where] - first)  # where the own class is in this block
            with torch.enable_grad():
                cosine = found[here][:, None].requires_grad_()
                target = loss.target(cosine)
            (slope,) = torch.autograd.grad(target, cosine, torch.ones_like(target))
            found[here] = target.detach()[:, 0]
            found.mul_(loss.scale)
            own = x.new_zeros(n)
            own[where] = found[here]
            top = found.amax(1) if len(rows) else x.new_full((n,), -torch.inf)
            found.sub_(shards.max_(top)[:, None]).exp_()
            total, own = shards.sum_(torch.stack([found.sum(1), own]))
            value = (total.log() + top - own).mean()
            found.div_(total[:, None])[here] -= 1  # dL/dlogit · n, and next dL/dcosine
            found.mul_(loss.scale / n)[here] *= slope[:, 0]
            by_x, by_rows = torch.zeros_like(x), torch.empty_like(rows)
            for piece in _pieces(rows):
                with torch.enable_grad():
                    weights = rows[piece].detach().requires_grad_()
                    units = unit(weights.to(x.dtype))
                by_x += found[:, piece] @ units.detach()
                (by_rows[piece],) = torch.autograd.grad(units, weights, found[:, piece].T @ x)
            shards.sum_(by_x)
        by_backbone = torch.autograd.grad(part, list(backbone), by_x[shards.span(n)]) if len(backbone) else ()
    return value, shards.sum_all(by_backbone), by_rows


def _pieces(rows: Tensor) -> Iterator[slice]:
    step = max(1, _PIECE // max(1, rows.shape[1]))
    return (slice(at, min(at + step, len(rows))) for at in range(0, len(rows), step))
