"""The margin softmax over several processes, each with a block of class embeddings and a part of the batch.

With S processes, process r holds the rows `span(k)` of the (k, d) class embeddings W, and of a batch of n images it
embeds those of `span(n)`. The n embeddings are gathered; each process makes the cosines of all of them against its own
block; maximum and sum of the softmax are reduced over the processes:

    L = mean over images of  log Σ_j e^{z_j} − z_y,  Σ_j = Σ over processes of Σ over the rows of its block.

The gradient of the class embeddings stays where they are, that of the embeddings is summed over the blocks, that of the
backbone over the parts of the batch. So all processes have the same backbone, bit for bit, and together the class
embeddings that one process would have. Source: An et al., "Partial FC: training 10 million identities on a single
machine" (ICCV workshops 2021), whose sums these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from coalface.training.distributed.shards import Shards
from coalface.training.losses.base import CosineLoss, MarginSoftmax, check_labels, unit, wide

_PIECE = 1 << 21  # class embeddings' numbers that are normalised at a time: their unit vectors are never held whole


def check_shardable(loss: CosineLoss) -> None:
    """Raise ValueError for a loss that is more than a margin on the softmax over one cosine per class."""
    cls, plain = type(loss), MarginSoftmax
    whole = isinstance(loss, plain) and all(
        getattr(cls, name) is getattr(plain, name)
        for name in ("__call__", "logits", "cosines", "rows", "extra", "state", "draw")
    )
    if not whole:
        raise ValueError(
            f"{cls.__name__} cannot be computed over several processes: its party must be played by one. Leave the "
            "party out of engine.processes_per_party, or take softmax, cosface or arcface"
        )


def sharded_gradients(
    shards: Shards,
    loss: MarginSoftmax,
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
    check_labels(labels, classes)
    n = len(labels)
    with torch.autocast(embeddings.device.type, enabled=False):
        part = unit(wide(embeddings, rows[:0])[0])
        with torch.no_grad():
            x = shards.gather(part.detach(), n)
            logits = x.new_empty(n, len(rows))
            for piece in _pieces(rows):
                logits[:, piece] = x @ unit(rows[piece].to(x.dtype)).T
            where = torch.nonzero((labels >= first) & (labels < first + len(rows)))[:, 0]
            owned = (where, labels[where] - first)  # where the own class is in this block
            with torch.enable_grad():
                cosine = logits[owned][:, None].requires_grad_()
                target = loss.target(cosine)
            (slope,) = torch.autograd.grad(target, cosine, torch.ones_like(target))
            logits[owned] = target.detach()[:, 0]
            logits.mul_(loss.scale)
            own_logits = x.new_zeros(n)
            own_logits[where] = logits[owned]
            top = logits.amax(1) if len(rows) else x.new_full((n,), -torch.inf)
            logits.sub_(shards.max_(top)[:, None]).exp_()
            total, own_logits = shards.sum_(torch.stack([logits.sum(1), own_logits]))
            value = (total.log() + top - own_logits).mean()
            logits.div_(total[:, None])[owned] -= 1  # dL/dlogit · n, and next dL/dcosine
            logits.mul_(loss.scale / n)[owned] *= slope[:, 0]
            by_x, by_rows = torch.zeros_like(x), torch.empty_like(rows)
            for piece in _pieces(rows):
                with torch.enable_grad():
                    weights = rows[piece].detach().requires_grad_()
                    units = unit(weights.to(x.dtype))
                by_x += logits[:, piece] @ units.detach()
                (by_rows[piece],) = torch.autograd.grad(units, weights, logits[:, piece].T @ x)
            shards.sum_(by_x)
        by_backbone = torch.autograd.grad(part, list(backbone), by_x[shards.span(n)]) if len(backbone) else ()
    return value, shards.sum_all(by_backbone), by_rows


def _pieces(rows: Tensor) -> Iterator[slice]:
    step = max(1, _PIECE // max(1, rows.shape[1]))
    return (slice(at, min(at + step, len(rows))) for at in range(0, len(rows), step))
