"""The pickles of verification packs, read without pickle: loading a pickle runs it, and this machine runs nothing.

It knows the instructions that the three forms in use need, and no others:

- 8-bit strings of Python 2 (most packs in the field), read as bytes;
- bytes, in protocol 3 or later;
- NumPy arrays of uint8 with NumPy booleans, in protocol 4.

It imports nothing, calls nothing and copies no image: of an image it keeps where in the file it lies. What an
instruction means is said in the standard library's `pickletools`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from coalface.data.words import several

_STACK = 100_000
"""Values that may wait to be put into a list; picklers put them there 1,000 at a time."""
_MEMO = 4_000_000
"""Values that may be noted for a later mention; NumPy's form notes six an image."""
_MEMO_FEW = 100_000
"""So many may be noted whatever the length of the file; beyond, one for each 16 bytes of it: a note takes one byte in
the file and a hundred in memory."""


class Refused(Exception):
    """An instruction, or a use of one, that the three forms do not need."""


class Damaged(Exception):
    """Bytes that are no whole pack."""


class Span(NamedTuple):
    """Bytes of the file."""

    start: int
    length: int


class _Name(NamedTuple):
    """The name of a NumPy object that a pack may mention: a word, never the object."""

    module: str
    name: str


class _Dtype:
    """The type `code` of array elements; whole when its state has come."""

    def __init__(self, code: str) -> None:
        self.code, self.whole = code, False


class _Array:
    """A one-dimensional array of uint8; whole when it has its bytes."""

    def __init__(self) -> None:
        self.span: Span | None = None


_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
"""The module's name before and since NumPy 2."""
_RECONSTRUCT, _SCALAR = ({_Name(module, name) for module in _MULTIARRAY} for name in ("_reconstruct", "scalar"))
_NDARRAY, _DTYPE = _Name("numpy", "ndarray"), _Name("numpy", "dtype")
_NAMES = {*_RECONSTRUCT, *_SCALAR, _NDARRAY, _DTYPE}
_DTYPE_STATE = (3, "|", None, None, None, -1, -1, 0)


class Machine:
    """Reads the instructions of a pack: a stack, a memo and two lists, and nothing that reaches beyond them."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0
        """The byte after the last instruction that was understood."""
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.most = min(_MEMO, _MEMO_FEW + len(data) // 16)
        self.lists: list[list[Any]] = []
        u8, u16, u32, u64, i32 = (struct.Struct(form) for form in ("<B", "<H", "<I", "<Q", "<i"))
        self.codes: dict[int, Callable[[], None]] = {
            0x42: lambda: self.push(self.span(u32)),  # BINBYTES
            0x43: lambda: self.push(self.span(u8)),  # SHORT_BINBYTES
            0x54: lambda: self.push(self.span(i32)),  # BINSTRING
            0x55: lambda: self.push(self.span(u8)),  # SHORT_BINSTRING
            0x88: lambda: self.push(True),  # NEWTRUE
            0x89: lambda: self.push(False),  # NEWFALSE
            0x94: lambda: self.note(len(self.memo)),  # MEMOIZE
            0x71: lambda: self.note(self.number(u8)),  # BINPUT
            0x72: lambda: self.note(self.number(u32)),  # LONG_BINPUT
            0x68: lambda: self.recall(self.number(u8)),  # BINGET
            0x6A: lambda: self.recall(self.number(u32)),  # LONG_BINGET
            0x4A: lambda: self.push(self.number(i32)),  # BININT
            0x4B: lambda: self.push(self.number(u8)),  # BININT1
            0x4D: lambda: self.push(self.number(u16)),  # BININT2
            0x4E: lambda: self.push(None),  # NONE
            0x28: lambda: self.marks.append(len(self.stack)) if len(self.marks) < 8 else self.refuse("nested marks"),
            0x5D: self.empty_list,
            0x61: lambda: self.extend([self.pop()]),  # APPEND
            0x65: lambda: self.extend(self.since_mark()),  # APPENDS
            0x74: lambda: self.push(self.bundle(self.since_mark())),  # TUPLE
            0x85: lambda: self.push(self.bundle([self.pop()])),  # TUPLE1
            0x86: lambda: self.push(self.bundle([self.pop() for _ in range(2)][::-1])),  # TUPLE2
            0x87: lambda: self.push(self.bundle([self.pop() for _ in range(3)][::-1])),  # TUPLE3
            0x8C: lambda: self.push(self.text(self.span(u8))),  # SHORT_BINUNICODE
            0x58: lambda: self.push(self.text(self.span(u32))),  # BINUNICODE
            0x93: self.stack_global,
            0x52: self.reduce,
            0x62: self.build,
            0x95: lambda: self.room(self.number(u64)),  # FRAME: a hint for readers of streams
        }

    def run(self) -> tuple[Sequence[Span], Sequence[bool]]:
        """The images and truth values of the pack."""
        if bytes(self.data[:1]) != b"\x80" or len(self.data) < 2 or not 2 <= self.data[1] <= 5:
            raise Damaged("it does not begin as a pickle of protocol 2 to 5")
        self.at = 2
        while True:
            if self.at == len(self.data):
                raise Damaged("it ends there")
            code = self.data[self.at]
            if code == 0x2E:  # STOP
                break
            act = self.codes.get(code)
            if act is None:
                raise Refused(f"the instruction {bytes([code])!r}")
            self.at += 1
            act()
        pack = self.pop()
        if self.stack or self.at + 1 != len(self.data):
            raise Damaged("there is more after its end")
        return self.pack(pack)

    def images(self) -> int:
        """How many whole images were read."""
        waiting = self.stack if len(self.lists) < 2 else []
        found = [*(self.lists[0] if self.lists else []), *waiting]
        return sum(self.image(value) is not None for value in found)

    def pack(self, pack: Any) -> tuple[Sequence[Span], Sequence[bool]]:
        if not (isinstance(pack, tuple) and len(pack) == 2 and all(isinstance(part, list) for part in pack)):
            raise Refused("something other than two lists")
        spans = [self.image(value) for value in pack[0]]
        for number, span in enumerate(spans):
            if span is None or span.length == 0:
                raise Damaged(f"image {number:,} is {'empty' if span else 'no bytes'}")
        if not all(isinstance(value, bool) for value in pack[1]):
            raise Refused("something other than truth values in the second list")
        if not spans or len(spans) != 2 * len(pack[1]):
            raise Damaged(f"{several(len(spans), 'image')} for {several(len(pack[1]), 'pair')}")
        return [span for span in spans if span is not None], pack[1]

    @staticmethod
    def image(value: Any) -> Span | None:
        span = value.span if isinstance(value, _Array) else value
        return span if isinstance(span, Span) else None

    def refuse(self, what: str) -> None:
        raise Refused(what)

    def push(self, value: Any) -> None:
        if len(self.stack) >= _STACK:
            raise Refused(f"more than {_STACK:,} values at once")
        self.stack.append(value)

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise Damaged("a value is missing")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        if not self.marks:
            raise Damaged("a mark is missing")
        place = self.marks.pop()
        values = self.stack[place:]
        del self.stack[place:]
        return values

    def number(self, form: struct.Struct) -> int:
        end = self.at + form.size
        if end > len(self.data):
            raise Damaged("it ends there")
        (value,) = form.unpack_from(self.data, self.at)
        self.at = end
        return int(value)

    def span(self, form: struct.Struct) -> Span:
        length = self.number(form)
        self.room(length)
        self.at += length
        return Span(self.at - length, length)

    def room(self, length: int) -> None:
        left = len(self.data) - self.at
        if not 0 <= length <= left:
            raise Damaged(f"{length:,} bytes are announced, and {left:,} are left")

    def text(self, span: Span) -> str:
        if span.length > 64:
            raise Refused(f"a text of {span.length:,} bytes")
        return str(self.data[span.start : span.start + span.length], "utf-8", "replace")

    def note(self, place: int) -> None:
        if len(self.memo) >= self.most:
            raise Refused(f"more than {self.most:,} values noted")
        value = self.pop()
        self.stack.append(value)
        self.memo[place] = value

    def recall(self, place: int) -> None:
        if place not in self.memo:
            raise Damaged(f"value {place:,} was never noted")
        self.push(self.memo[place])

    def empty_list(self) -> None:
        if len(self.lists) == 2:
            raise Refused("a third list")
        self.lists.append([])
        self.push(self.lists[-1])

    def extend(self, values: list[Any]) -> None:
        target = self.pop()
        if not isinstance(target, list):
            raise Refused("an append to what is no list")
        if not all(isinstance(value, (Span, _Array, bool)) for value in values):
            raise Refused("a list of something other than images or truth values")
        target.extend(values)
        self.stack.append(target)

    @staticmethod
    def bundle(values: list[Any]) -> tuple[Any, ...]:
        if len(values) > len(_DTYPE_STATE):
            raise Refused(f"a tuple of {len(values):,}")
        return tuple(values)

    def stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise Refused("a name that is no text")
        if _Name(module, name) not in _NAMES:
            raise Refused(f"the name {module!r}.{name!r}")
        self.push(_Name(module, name))

    def reduce(self) -> None:
        arguments, what = self.pop(), self.pop()
        match what, arguments:
            case _Name(), (_Name() as kind, (0,), Span(start, 1)) if what in _RECONSTRUCT and kind == _NDARRAY:
                if self.data[start] == ord("b"):
                    return self.push(_Array())
            case _Name(), ("u1" | "b1" as code, False, True) if what == _DTYPE:
                return self.push(_Dtype(code))
            case _Name(), (_Dtype(code="b1", whole=True), Span(start, 1)) if what in _SCALAR and self.data[start] < 2:
                return self.push(self.data[start] == 1)
        # never the repr of a value: tuples of tuples can make it endless
        raise Refused(
            f"a call of {what.module}.{what.name}" if isinstance(what, _Name) else "a call of what is no name"
        )

    def build(self) -> None:
        state, what = self.pop(), self.pop()
        match what, state:
            case _Dtype(whole=False), tuple() if state == _DTYPE_STATE:
                what.whole = True
            case _Array(span=None), (
                1,
                (int() as n,),
                _Dtype(code="u1", whole=True),
                False,
                Span(_, length) as span,
            ) if n == length:
                what.span = span
            case _:
                raise Refused("a state for what has none, or not this one")
        self.push(what)
