"""The codec: messages, private state and server state to safetensors bytes and back, checked.

Every encoding is a valid safetensors file: the tensors under `field` or `field/name`, everything else as JSON in the
metadata key `coalface`. So what left a party can be opened with any safetensors reader. Decoding is directed by the
declared types: bytes that do not fit them raise `WireError`, and nothing is ever executed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from coalface.core.declarations import Tensors, Ticket, counterparts, kind_of, without_none
from coalface.core.header import DTYPES as DTYPES
from coalface.core.header import FREE, SENT, TENSOR_HEADER, most_tensors, read_tensors
from coalface.core.header import NAMES as NAMES
from coalface.core.header import WireError as WireError
from coalface.core.header import hints as hints
from coalface.core.parsing import LARGEST, LONGEST

T = TypeVar("T")

_SINGLE = torch.finfo(torch.float32).max

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Of the tensors of a message by name, those that are written, or read, in their place."""


_second = concurrent.futures.ThreadPoolExecutor(1, "hashing")
_WORTH_A_THREAD = 1 << 18


class Refused(ValueError):
    """A reply that does not fit what was asked; it is kept out of every sum."""


@dataclass(frozen=True, eq=False)
class Form:
    """What a field of tensors of a reply must look like."""

    field: str
    kind: Any
    """`Tensor` or `Tensors`."""
    is_change: bool
    """Whether the field is a changed form of what was sent; one that is only `like` another, as a gradient, is not."""
    model: Tensor | Tensors | None
    """What was sent; None where the field is `free()`."""

    @property
    def start(self) -> Any:
        """What the field is a changed form of, if it is one."""
        return self.model if self.is_change else None

    @functools.cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The model's tensors by their names in an encoding."""
        return by_path(self.field, self.model)

    @functools.cached_property
    def room(self) -> tuple[int, int]:
        """The most bytes that the field takes of a reply's header, and of its tensors."""
        if self.model is None:  # the server does not know its form
            return TENSOR_HEADER * (SENT if self.kind == Tensors else 1), FREE
        header = body = 0
        for path, tensor in self.tensors.items():
            scales = 4 * tensor.shape[0] if tensor.dim() else 0  # of one that is narrowed
            header += 4 * len(json.dumps(path)) + TENSOR_HEADER
            body += tensor.numel() * tensor.element_size() + scales
        return header, body


Forms = dict[str, Form]
"""By field, those that are `free()` or look like something that was sent."""


def forms(cls: type, sent: Sequence[Any]) -> Forms:
    """What a reply of class `cls` to the messages `sent` must look like, the first of which go before the others."""
    by_field: Forms = {}
    for field, name in counterparts(cls).items():
        models = [model for message in sent if (model := getattr(message, name or "", None)) is not None]
        if models or name is None:
            kind = without_none(hints(cls)[field])[0]
            by_field[field] = Form(field, kind, name == field, models[0] if models else None)
    return by_field


@dataclass(frozen=True)
class Entry:
    """One piece of an encoding: the header with its plain values, or one tensor."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, eq=False)
class Encoded:
    """The bytes of one value. The entries follow each other in `data`, and their sizes add up to its length."""

    data: bytearray | memoryview
    entries: tuple[Entry, ...] = ()
    """Not known of bytes that were received."""
    _hashing: Hashing | None = dataclasses.field(default=None, repr=False)
    _read: dict[type, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of all the bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @functools.cached_property
    def sums(self) -> tuple[str, ...]:
        """SHA-256 of the header and of every tensor, of bytes that are known to be an encoding."""
        if self._hashing is not None:
            return self._hashing.result()
        view = memoryview(self.data)
        start = 8 + int.from_bytes(view[:8], "little")
        header = json.loads(bytes(view[8:start]))
        ends = [start, *(start + entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")]
        return Hashing([view[begin:end] for begin, end in itertools.pairwise([0, *ends])]).result()

    def message(self, cls: type[T]) -> T:
        """Decoded as `cls`, once: what goes to many parties is read once in a process. Nobody may write to it."""
        if cls not in self._read:
            self._read[cls] = decode(self.data, cls)
        return typing.cast(T, self._read[cls])


class Hashing:
    """SHA-256 of some pieces, most of what a commit costs: a thread begins at once, the asker joins in."""

    def __init__(self, pieces: Sequence[bytearray | memoryview]) -> None:
        self._pieces = pieces
        self._sums = [""] * len(pieces)
        self._left = sorted(range(len(pieces)), key=lambda i: len(pieces[i]))  # the largest is taken first
        worth = sum(map(len, pieces)) > _WORTH_A_THREAD
        self._other = _second.submit(self._share) if worth else None

    def _share(self) -> None:
        while self._left:
            with contextlib.suppress(IndexError):  # the other thread took the last one
                i = self._left.pop()
                self._sums[i] = hashlib.sha256(self._pieces[i]).hexdigest()

    def result(self) -> tuple[str, ...]:
        """The hashes in the order of the entries."""
        self._share()
        if self._other is not None and not self._other.cancel():
            self._other.result()
        return tuple(self._sums)


def encode(message: Any, *, hashed: bool = False, change: Change | None = None) -> Encoded:
    """The bytes of a message. Raises WireError for anything that was not declared with @message.

    With `hashed` the hashing begins beside it; the message's tensors stay as they are until `sums` has been read.
    """
    kind = kind_of(type(message))
    if kind != "message":
        refusal = "private state, which never leaves a party" if kind == "private" else "not a message"
        raise WireError(
            f"{type(message).__name__} is {refusal}: only classes declared with @message can be sent. "
            "Copy the fields that may leave into a message."
        )
    return pack(message, hashed=hashed, change=change)


def decode(data: bytearray | memoryview, cls: type[T], *, change: Change | None = None, like: Forms | None = None) -> T:
    """The value of the declared class `cls` in writable bytes; its tensors are views of them. Raises WireError.

    What is larger than any reply that looks `like` what it must is refused before it is read.
    """
    longest = None
    if like is not None:
        headers, bodies = zip((LONGEST, 0), *(form.room for form in like.values()), strict=True)
        longest, body = sum(headers), sum(bodies)
        if len(data) > longest + body:
            raise WireError(f"{cls.__name__}: {len(data):,} bytes came, and what was asked for takes {body:,.0f}.")
    tensors, skeleton = read_tensors(data, cls, longest)
    if change is not None:
        tensors = change(tensors)
    value = _restore(skeleton, cls, "", tensors)
    if tensors:
        raise WireError(f"{cls.__name__}: it does not declare these tensors: {', '.join(sorted(tensors)[:5])}.")
    return typing.cast(T, value)


def size(message: Any) -> int:
    """Bytes of a message on the wire."""
    start, tensors = _layout(message)
    return len(start) + sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)


def pack(value: Any, *, hashed: bool = False, change: Change | None = None) -> Encoded:
    """The bytes of any declared value, private and server state included (for files, never for the wire)."""
    start, ordered = _layout(value, change)
    parts = [raw(tensor) for _, tensor in ordered]
    entries = [
        Entry(name, "tensor", tuple(tensor.shape), NAMES[tensor.dtype], len(part))
        for (name, tensor), part in zip(ordered, parts, strict=True)
    ]
    first = Entry("header", "header", (), "JSON", len(start))
    pieces: list[bytearray | memoryview] = [start, *parts]
    hashing = Hashing(pieces) if hashed else None  # of the tensors themselves, while they are copied
    data = bytearray(sum(map(len, pieces)))
    flat = [torch.frombuffer(piece, dtype=torch.uint8) for piece in pieces if len(piece)]
    torch.cat(flat, out=torch.frombuffer(data, dtype=torch.uint8))  # lets the hashing go on, as joining bytes does not
    return Encoded(data, (first, *entries), hashing)


def _layout(value: Any, change: Change | None = None) -> tuple[bytearray, list[tuple[str, Tensor]]]:
    """The header of an encoding, and its tensors by name in the order in which they follow."""
    tensors: dict[str, Tensor] = {}
    try:
        skeleton = _flatten(value, type(value), "", tensors)
    except WireError as error:
        raise WireError(f"{type(value).__name__}.{error}") from None
    if change is not None:
        tensors = change(tensors)
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # keeps every tensor aligned
    head: dict[str, Any] = {"__metadata__": {"coalface": json.dumps(skeleton, separators=(",", ":"))}}
    offset = 0
    for name, tensor in ordered:
        if tensor.dtype not in NAMES:
            raise WireError(
                f"{type(value).__name__}.{name}: {tensor.dtype} has no encoding; use one of {list(DTYPES)}."
            )
        end = offset + tensor.numel() * tensor.element_size()
        head[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text, most = json.dumps(head, separators=(",", ":")).encode(), most_tensors(type(value))
    if len(ordered) > most or len(text) > most * TENSOR_HEADER:
        raise WireError(
            f"{type(value).__name__} holds {len(ordered):,} tensors and a header of {len(text):,} bytes: at most "
            f"{most:,} and {most * TENSOR_HEADER:,} are read back. Stack tensors that are alike."
        )
    text += b" " * (-len(text) % 8)
    return bytearray(len(text).to_bytes(8, "little") + text), ordered


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a tensor as they are sent."""
    if not tensor.numel():
        return memoryview(b"")
    flat = tensor.detach().cpu().contiguous().view(-1)
    return (flat.view(torch.uint8) if tensor.dtype == torch.bfloat16 else flat).numpy().data.cast("B")


def _flatten(value: Any, annotation: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The plain values of a declared value, with `true` in place of each tensor, which goes into `tensors`."""
    inner, optional = without_none(annotation)
    if value is None and optional:
        return None
    origin, args = typing.get_origin(inner), typing.get_args(inner)
    if inner is Tensor:
        if isinstance(value, Tensor):
            if path in tensors:
                raise WireError(f"{path} names two tensors; rename a key so that it has no '/'.")
            tensors[path] = value
            return True
    elif inner in (int, float, bool, str):
        fitting = (float, int) if inner is float else inner
        if isinstance(value, fitting) and (inner is bool or not isinstance(value, bool)):
            return value
    elif origin is dict and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {k: _flatten(v, args[1], f"{path}/{k}" if path else k, tensors) for k, v in value.items()}
    elif origin is tuple and isinstance(value, tuple | list):
        return [_flatten(v, args[0], f"{path}/{i}", tensors) for i, v in enumerate(value)]
    elif (kind_of(inner) or inner is Ticket) and isinstance(value, inner):
        return {
            n: _flatten(getattr(value, n), a, f"{path}/{n}" if path else n, tensors) for n, a in hints(inner).items()
        }
    raise WireError(
        f"{path} holds a {type(value).__name__}, not the declared {annotation}, and only what is declared is sent or "
        "kept. Convert it, or declare the field as what it holds."
    )


def _restore(skeleton: Any, annotation: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    inner, optional = without_none(annotation)
    if skeleton is None and optional:
        return None
    origin, args = typing.get_origin(inner), typing.get_args(inner)
    if inner is Tensor:
        if skeleton is True and path in tensors:
            return tensors.pop(path)
    elif inner in (int, float, bool, str):
        if type(skeleton) is inner or (inner is float and type(skeleton) is int and abs(skeleton) < 1 << 1000):
            return inner(skeleton)
    elif origin is dict and isinstance(skeleton, dict):
        return {k: _restore(v, args[1], f"{path}/{k}" if path else k, tensors) for k, v in skeleton.items()}
    elif origin is tuple and isinstance(skeleton, list):
        return tuple(_restore(v, args[0], f"{path}/{i}", tensors) for i, v in enumerate(skeleton))
    elif (kind_of(inner) or inner is Ticket) and isinstance(skeleton, dict) and set(skeleton) == set(hints(inner)):
        return inner(
            **{n: _restore(skeleton[n], a, f"{path}/{n}" if path else n, tensors) for n, a in hints(inner).items()}
        )
    raise WireError(
        f"{path or 'the value'}: the bytes do not hold {annotation}; sender and receiver must run one version."
    )


def by_path(field: str, value: Any) -> dict[str, Tensor]:
    """The tensors of a field by their names in an encoding; none of a plain value."""
    if isinstance(value, dict):
        return {f"{field}/{name}": tensor for name, tensor in value.items()}
    return {field: value} if isinstance(value, Tensor) else {}


def copied(value: Any) -> Any:
    """A field's value in memory of its own."""
    if isinstance(value, Tensor):
        return value.clone()
    return {name: tensor.clone() for name, tensor in value.items()} if isinstance(value, dict) else value


def validate(reply: Any, like: Forms, but: frozenset[str] = frozenset()) -> None:
    """Raise Refused unless a reply looks `like` what it must: names, shapes, dtypes, and finite values.

    The reason can stand in a report. The fields in `but` have been checked already.
    """
    for field, value in vars(reply).items():
        if isinstance(value, float) and not abs(value) <= _SINGLE or isinstance(value, int) and abs(value) > LARGEST:
            raise Refused(f"{field} is {value:.6g}" if isinstance(value, float) else f"{field} is beyond {LARGEST}")
        if not isinstance(value, Tensor | dict) or field in but:
            continue
        if field not in like:
            raise Refused(f"{field} came back, but nothing that it could be checked against was sent")
        tensors = by_path(field, value)
        models = tensors if like[field].model is None else like[field].tensors
        if list(tensors) != list(models):
            missing, extra = sorted(set(models) - set(tensors))[:3], sorted(set(tensors) - set(models))[:3]
            how = f"missing {missing}, unexpected {extra}" if missing or extra else "the same in another order"
            raise Refused(f"{field} has other tensors than were sent ({how})")
        for path, tensor in tensors.items():
            if tensor.shape != models[path].shape or tensor.dtype != models[path].dtype:
                came, declared = (f"{NAMES[t.dtype]} {tuple(t.shape)}" for t in (tensor, models[path]))
                raise Refused(f"{path} is {came}, not {declared}")
            if not _is_finite(tensor):
                raise Refused(f"{path} holds values that are not finite")


def not_finite(value: Any) -> str | None:
    """The name of a tensor of a declared value that holds something that is not finite; None where none does."""
    tensors: dict[str, Tensor] = {}
    _flatten(value, type(value), "", tensors)
    return next((name for name, tensor in tensors.items() if not _is_finite(tensor)), None)


def _is_finite(tensor: Tensor) -> bool:
    """A finite sum proves finite values; only a suspicious sum pays for the exact look."""
    if not tensor.is_floating_point() or math.isfinite(tensor.sum().item()):
        return True
    return bool(torch.isfinite(tensor).all())
