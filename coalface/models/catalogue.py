"""The backbones side by side: size, arithmetic, bytes, and speed where asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from coalface.models import BACKBONES, Backbone, describe, sketch
from coalface.models.counting import multiply_adds
from coalface.models.measuring import check_measure, measure


def catalogue(
    names: Sequence[str] = (),
    *,
    size: int,
    channels: int,
    measured: bool = False,
    batch: int = 8,
    threads: int = 1,
    begins: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """One entry a backbone, at its own embedding size; all of them where `names` is empty.

    Keys: `name`, `embedding_size`, `parameters` (fixed ones included), `multiply_adds` (of one image forward),
    `message_bytes` (the tensors of one message under `batchnorm: average`), `batchnorm` (whether it has any), and where
    `measured`, `speed` (as `measuring.Speed`; `begins` is told each name before it is measured). A backbone that cannot
    take the size has `name` and `cannot`, the reason.

    Raises ValueError for an unknown name, for channels that no backbone takes, and before all else where a batch or
    threads cannot be measured.
    """
    if measured:
        check_measure(batch, threads)
    entries: list[dict[str, Any]] = []
    for name in names or BACKBONES:
        try:
            module = sketch(name, size=size, channels=channels)
        except ValueError as error:
            if name not in BACKBONES or channels not in (1, 3):
                raise
            entries.append({"name": name, "cannot": str(error)})
            continue
        description = describe(name, size=size, channels=channels)
        entry: dict[str, Any] = {
            "name": name,
            "embedding_size": Backbone(module).embedding_size,
            "parameters": description.parameters,
            "multiply_adds": multiply_adds(module, size=size, channels=channels),
            "message_bytes": description.message_bytes,
            "batchnorm": bool(Backbone(module, "local").kept()),
        }
        if measured:
            if begins is not None:
                begins(name)
            entry["speed"] = asdict(measure(name, size=size, channels=channels, batch=batch, threads=threads))
        entries.append(entry)
    return entries
