"""The processes that play one party together, and their sums.

The class embeddings, and the images of a batch, are split among them: with S processes, process r has `span(n)` of n.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others of its party before it gives up."""


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

    def gather(self, rows: Tensor, n: int) -> Tensor:
        """The n rows of which each process has those of `span(n)`."""
        whole = rows.new_zeros(n, *rows.shape[1:])
        whole[self.span(n)] = rows
        return self.sum_(whole)

    def sum_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums over the processes of several tensors, each dtype in one message."""
        sums = list(tensors)
        for dtype in dict.fromkeys(t.dtype for t in sums):
            places = [i for i, t in enumerate(sums) if t.dtype == dtype]
            summed = self.sum_(torch.cat([sums[i].reshape(-1) for i in places]))
            for i, part in zip(places, summed.split([sums[i].numel() for i in places]), strict=True):
                sums[i] = part.view(sums[i].shape)
        return sums

    def _reduced(self, tensor: Tensor, how: Any) -> Tensor:
        options = dist.AllreduceOptions()
        options.reduceOp = how
        try:
            self._group.allreduce([tensor], options).wait()
        except RuntimeError as error:
            raise ShardLost(f"shard {self.rank} of {self.size} lost another one: {error}") from error
        return tensor
