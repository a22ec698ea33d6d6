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
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from coalface.core.declarations import Tensors, Ticket, counterparts, kind_of, without_none
from coalface.core.header import FREE, SENT, TENSOR_HEADER, Table, most_tensors, read_tensors, table_of
from coalface.core.header import NAMES as NAMES
from coalface.core.header import Entry as Entry
from coalface.core.header import WireError as WireError
from coalface.core.header import hints as hints
from coalface.core.parsing import LARGEST, LONGEST

T = TypeVar("T")

_SINGLE = torch.finfo(torch.float32).max

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Of the tensors of a message by name, those that are written, or read, in their place."""


_second = concurrent.futures.ThreadPoolExecutor(1, "hashing")
_WORTH_A_THREAD = 1 << 18
_LARGE = 1 << 14  # bytes of a piece that the thread takes: for less it would wait longer for the interpreter's lock


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


@dataclass(frozen=True, eq=False)
class Encoded:
    """The bytes of one value. The entries follow each other in `data`, and their sizes add up to its length."""

    data: bytearray | memoryview
    entries: tuple[Entry, ...] = ()
    """Not known of bytes that were received."""
    hashes: Hashing | tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    """The `sums` where they are known, or under way."""
    _read: dict[type, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of all the bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @functools.cached_property
    def sums(self) -> tuple[str, ...]:
        """SHA-256 of the header and of every tensor, of bytes that are known to be an encoding."""
        return self.hashes if isinstance(self.hashes, tuple) else (self.hashes or Hashing(self.pieces())).result()

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoded, (bytearray(self.data),)

    def pieces(self) -> list[memoryview]:
        """The header and every tensor, of bytes that are known to be an encoding."""
        view = memoryview(self.data)
        if self.entries:
            ends = list(itertools.accumulate(entry.bytes for entry in self.entries))
        else:
            start = 8 + int.from_bytes(view[:8], "little")
            tensors = json.loads(bytes(view[8:start]))
            ends = [start, *(start + t["data_offsets"][1] for name, t in tensors.items() if name != "__metadata__")]
        return [view[begin:end] for begin, end in itertools.pairwise([0, *ends])]

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
        large = [i for i, piece in enumerate(pieces) if len(piece) >= _LARGE]
        self._left = sorted(large, key=lambda i: len(pieces[i]))  # the largest is taken first
        worth = sum(len(pieces[i]) for i in large) > _WORTH_A_THREAD
        self._other = _second.submit(self._share) if worth else None

    def _share(self) -> None:
        while self._left:
            with contextlib.suppress(IndexError):  # the other thread took the last one
                i = self._left.pop()
                self._sums[i] = hashlib.sha256(self._pieces[i]).hexdigest()

    def result(self) -> tuple[str, ...]:
        """The hashes in the order of the pieces."""
        for i, piece in enumerate(self._pieces):
            if len(piece) < _LARGE:
                self._sums[i] = hashlib.sha256(piece).hexdigest()
        self._share()
        if self._other is not None and not self._other.cancel():
            self._other.result()
        return tuple(self._sums)


def encode(message: Any, *, hashed: bool = False, change: Change | None = None) -> Encoded:
    """The bytes of a message. Raises WireError for anything that was not declared with @message.

    With `hashed` the hashing of the bytes begins at once, beside whatever comes until `sums` is read.
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
    start, _, table = _layout(message)
    return len(start) + table.size


def pack(value: Any, *, hashed: bool = False, change: Change | None = None) -> Encoded:
    """The bytes of any declared value, private and server state included (for files, never for the wire)."""
    start, tensors, table = _layout(value, change)
    first = Entry("header", "header", (), "JSON", len(start))
    memory = torch.empty(len(start) + table.size, dtype=torch.uint8)
    data, body = memory.numpy().data, memory[len(start) :]
    data[: len(start)] = start
    for dtype, names, begin, end in table.runs:
        flat = [tensors[name].detach().cpu().reshape(-1) for name in names]
        torch.cat(flat, out=body[begin:end].view(dtype))
    encoded = Encoded(data, (first, *table.entries))
    return replace(encoded, hashes=Hashing(encoded.pieces())) if hashed else encoded


def _layout(value: Any, change: Change | None = None) -> tuple[bytes, dict[str, Tensor], Table]:
    """The header of an encoding, its tensors by name, and how they follow it."""
    tensors: dict[str, Tensor] = {}
    try:
        skeleton = _flatten(value, type(value), "", tensors)
        if change is not None:
            tensors = change(tensors)
        table = table_of(tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()))
    except WireError as error:
        raise WireError(f"{type(value).__name__}.{error}") from None
    plain = json.dumps(json.dumps(skeleton, separators=(",", ":")))
    text = f'{{"__metadata__":{{"coalface":{plain}}}{"," if tensors else ""}{table.text}}}'.encode()
    most = most_tensors(type(value))
    if len(tensors) > most or len(text) > most * TENSOR_HEADER:
        raise WireError(
            f"{type(value).__name__} holds {len(tensors):,} tensors and a header of {len(text):,} bytes: at most "
            f"{most:,} and {most * TENSOR_HEADER:,} are read back. Stack tensors that are alike."
        )
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, tensors, table


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a tensor as they are sent."""
    if not tensor.numel():
        return memoryview(b"")
    flat = tensor.detach().cpu().contiguous().view(-1)
    return (flat.view(torch.uint8) if tensor.dtype == torch.bfloat16 else flat).numpy().data.cast("B")


_PLAIN: dict[type, Any] = {int: int, float: (float, int), bool: bool, str: str}
"""A plain type -> what may stand for it."""


@functools.cache
def _plan(annotation: Any) -> tuple[Any, bool, Any, Any]:
    """(the annotation without None, whether None is allowed, what kind it is, what it holds)."""
    inner, optional = without_none(annotation)
    origin, args = typing.get_origin(inner), typing.get_args(inner)
    if inner is Tensor or inner in _PLAIN:
        return inner, optional, inner, None
    if origin is dict:
        return inner, optional, dict, args[1]
    if origin is tuple:
        return inner, optional, tuple, args[0]
    return inner, optional, "fields" if kind_of(inner) or inner is Ticket else None, None


def _flatten(value: Any, annotation: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The plain values of a declared value, with `true` in place of each tensor, which goes into `tensors`."""
    inner, optional, kind, item = _plan(annotation)
    if value is None and optional:
        return None
    if kind is Tensor:
        if isinstance(value, Tensor):
            if path in tensors:
                raise WireError(f"{path} names two tensors; rename a key so that it has no '/'.")
            tensors[path] = value
            return True
    elif kind in _PLAIN:
        if isinstance(value, _PLAIN[kind]) and (kind is bool or not isinstance(value, bool)):
            return value
    elif kind is dict and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {k: _flatten(v, item, f"{path}/{k}" if path else k, tensors) for k, v in value.items()}
    elif kind is tuple and isinstance(value, tuple | list):
        return [_flatten(v, item, f"{path}/{i}", tensors) for i, v in enumerate(value)]
    elif kind == "fields" and isinstance(value, inner):
        return {
            n: _flatten(getattr(value, n), a, f"{path}/{n}" if path else n, tensors) for n, a in hints(inner).items()
        }
    raise WireError(
        f"{path} holds a {type(value).__name__}, not the declared {annotation}, and only what is declared is sent or "
        "kept. Convert it, or declare the field as what it holds."
    )


def _restore(skeleton: Any, annotation: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    inner, optional, kind, item = _plan(annotation)
    if skeleton is None and optional:
        return None
    if kind is Tensor:
        if skeleton is True and path in tensors:
            return tensors.pop(path)
    elif kind in _PLAIN:
        if type(skeleton) is kind or (kind is float and type(skeleton) is int and abs(skeleton) < 1 << 1000):
            return kind(skeleton)
    elif kind is dict and isinstance(skeleton, dict):
        return {k: _restore(v, item, f"{path}/{k}" if path else k, tensors) for k, v in skeleton.items()}
    elif kind is tuple and isinstance(skeleton, list):
        return tuple(_restore(v, item, f"{path}/{i}", tensors) for i, v in enumerate(skeleton))
    elif kind == "fields" and isinstance(skeleton, dict) and set(skeleton) == set(hints(inner)):
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


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """The numbers of tensors of one type, one after the other: where they lie so already, as in an encoding, a view."""
    first, size = tensors[0], tensors[0].element_size()
    start = end = first.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or not tensor.is_contiguous():
            return torch.cat([tensor.reshape(-1) for tensor in tensors])
        end += size * tensor.numel()
    storage, count = first.untyped_storage(), (end - start) // size
    if end > storage.data_ptr() + storage.nbytes():  # beside each other by chance
        return torch.cat([tensor.reshape(-1) for tensor in tensors])
    return first.as_strided((count,), (1,))


def copied(value: Any) -> Any:
    """A field's value in memory of its own."""
    if isinstance(value, Tensor):
        return value.clone()
    return {name: tensor.clone() for name, tensor in value.items()} if isinstance(value, dict) else value


def validate(reply: Any, like: Forms, but: frozenset[str] = frozenset(), *, finite: bool = True) -> None:
    """Raise Refused unless a reply looks `like` what it must: names, shapes, dtypes, and finite values.

    The reason can stand in a report. The fields in `but` have been checked already; where `finite` is false the caller
    looks at the values of tensors.
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
        if finite:
            check_finite(tensors)


def check_finite(tensors: dict[str, Tensor]) -> None:
    """Raise Refused for a tensor, by its name in an encoding, that holds something that is not finite."""
    if (name := _first_not_finite(tensors)) is not None:
        raise Refused(f"{name} holds values that are not finite")


def not_finite(value: Any) -> str | None:
    """The name of a tensor of a declared value that holds something that is not finite; None where none does."""
    tensors: dict[str, Tensor] = {}
    _flatten(value, type(value), "", tensors)
    return _first_not_finite(tensors)


def _first_not_finite(tensors: dict[str, Tensor]) -> str | None:
    """A finite sum proves finite values; only a suspicious sum pays for the exact look."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    for _, alike in itertools.groupby(floats.values(), lambda tensor: (tensor.dtype, tensor.device)):
        if not math.isfinite(joined(list(alike)).sum().item()):
            return next((name for name, tensor in floats.items() if not torch.isfinite(tensor).all()), None)
    return None
