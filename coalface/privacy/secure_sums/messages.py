"""The messages of a secure sum: what each stage sends, as bytes that the codec knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from coalface.core.method import content, free, message
from coalface.privacy.secure_sums.context import SecureSumError

_LENGTH = 2
"""Bytes before each row that say how long it is; an absent one has length 0."""


@message
class Parties:
    """Down, the same for all, from stage 2 on."""

    names: Tensor = content("code")
    """Who has advertised."""
    sharers: Tensor | None = content("code", default=None)
    """Who has shared keys."""
    survivors: Tensor | None = content("code", default=None)
    """Whose vectors are in the sum."""


@message
class Neighbours:
    """Down, for each party its own, from stage 2 on: a row for each neighbour, in the order of their names."""

    adverts: Tensor = content("code")
    sealed: Tensor | None = content("code", default=None)
    """The shares that each has encrypted for this party."""
    confirmed: Tensor | None = content("code", default=None)
    """Their signatures of stage 4."""


@message
class Advert:
    """Up, stage 1: the party's public keys."""

    keys: Tensor = free("code")


@message
class Rows:
    """Up, stages 2 and 5: shares, a row for each holder of the party's own, in the order of their names."""

    shares: Tensor = free("code")


@message
class Masked:
    """Up, stage 3: the vector under its masks, which without them is uniform."""

    vector: Tensor = free("code")


@message
class Confirmation:
    """Up, stage 4: the party's signature under the survivors."""

    signature: Tensor = free("code")


def as_tensor(data: bytes) -> Tensor:
    """Bytes as a tensor."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def as_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor. Raises SecureSumError (`message`) for one of anything else."""
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise SecureSumError("message", f"{tensor.dtype}{list(tensor.shape)} came instead of bytes")
    return tensor.numpy().tobytes()


def pack_names(names: Iterable[str]) -> Tensor:
    """Names of parties, which have no line breaks."""
    return as_tensor("\n".join(names).encode())


def unpack_names(tensor: Tensor | None) -> list[str]:
    """What `pack_names` was given. Raises SecureSumError (`message`)."""
    if tensor is None:
        raise SecureSumError("message", "the names of parties are missing")
    try:
        return as_bytes(tensor).decode().split("\n")
    except UnicodeDecodeError:
        raise SecureSumError("message", "the names of parties are not text") from None


def pack_rows(order: Iterable[str], rows: Mapping[str, bytes]) -> Tensor:
    """A row for each name; where there is none it is empty."""
    present = (rows.get(name, b"") for name in order)
    return as_tensor(b"".join(len(row).to_bytes(_LENGTH, "big") + row for row in present))


def unpack_rows(order: Sequence[str], tensor: Tensor | None) -> dict[str, bytes]:
    """The rows that are not empty. Raises SecureSumError (`message`) unless there is one for each name."""
    data = b"" if tensor is None else as_bytes(tensor)
    rows, start = {}, 0
    for name in order:
        end = start + _LENGTH + int.from_bytes(data[start : start + _LENGTH], "big")
        rows[name] = data[start + _LENGTH : end]
        start = end
    if start != len(data):
        raise SecureSumError("message", f"{len(data)} bytes are no {len(order)} rows")
    return {name: row for name, row in rows.items() if row}
