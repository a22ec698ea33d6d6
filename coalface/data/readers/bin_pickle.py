"""A reader of the pickles of verification packs that executes nothing.

The standard library's `pickletools` takes the file apart into instructions. The machine knows those that the forms in
use need, in protocols 0 to 5, and no others:

- 8-bit strings of Python 2 (most packs in the field), read as bytes;
- bytes, which protocols 0 to 2 write as a text and a call of `_codecs.encode`;
- NumPy arrays of uint8, and NumPy booleans.

It imports nothing and calls nothing. Of an image it keeps where in the file it lies; where the file holds a text, its
bytes are put behind those of the file. `pickle.Unpickler` that lets through some names alone would run nothing either,
but six bytes of a file make it set aside 64 GiB, and it does not say where in the file it is.
"""

from __future__ import annotations

import pickletools
from collections.abc import Sequence
from mmap import mmap
from typing import IO, Any, NamedTuple, cast

from coalface.core.text import several

_VALUES = 4_000_000
"""Values that may wait, be noted for a later mention, or stand in a list; NumPy's form notes six an image."""
_FEW = 1_000
"""So many may whatever the length of the file."""
_A_NOTE, _A_VALUE = 32, 96
"""Beyond, one note for so many bytes of the file, and one value that waits or is in a list: it takes 120 in memory."""
_ABSENT = object()


class Refused(Exception):
    """An instruction, or a use of one, that the forms in use do not need."""


class Damaged(Exception):
    """Bytes that are no whole pack."""


class Span(NamedTuple):
    """Bytes of the file, or made from its texts and counted on from its end."""

    start: int
    length: int


class _Name(NamedTuple):
    """The name of an object that a pack may mention: a word, never the object."""

    module: str
    name: str


class _Dtype:
    """The type `code` of array elements; whole when its state has come."""

    __slots__ = ("code", "whole")

    def __init__(self, code: str) -> None:
        self.code, self.whole = code, False


class _Array:
    """A row of uint8; whole when it has its bytes."""

    __slots__ = ("content",)

    def __init__(self, content: Span | None = None) -> None:
        self.content = content


_CORE = ("numpy.core.", "numpy._core.")
"""Where NumPy keeps its parts, before and since NumPy 2."""
_RECONSTRUCT, _SCALAR = ({_Name(f"{core}multiarray", name) for core in _CORE} for name in ("_reconstruct", "scalar"))
_FROMBUFFER = {_Name(f"{core}numeric", "_frombuffer") for core in _CORE}
_NDARRAY, _DTYPE, _ENCODE = _Name("numpy", "ndarray"), _Name("numpy", "dtype"), _Name("_codecs", "encode")
_NAMES = {*_RECONSTRUCT, *_SCALAR, *_FROMBUFFER, _NDARRAY, _DTYPE, _ENCODE}
_DTYPE_STATE = (3, "|", None, None, None, -1, -1, 0)


class Machine:
    """Reads the instructions of a pack: a stack, a memo and three lists, and nothing that reaches beyond them."""

    def __init__(self, data: mmap) -> None:
        self.data = data
        self.at = 0
        """The byte after the last instruction that was understood."""
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.notes, self.values = (min(_VALUES, _FEW + len(data) // size) for size in (_A_NOTE, _A_VALUE))
        self.lists: list[list[Any]] = []
        self.made = bytearray()
        """Bytes that were made from texts."""

    def run(self) -> tuple[Sequence[Span], Sequence[bool]]:
        """The images and truth values of the pack."""
        self.data.seek(0)
        instructions = pickletools.genops(cast(IO[bytes], self.data))
        while True:
            try:
                instruction, argument, _ = next(instructions)
            except StopIteration:
                break
            except UnicodeError:
                raise Refused("a text in an unknown coding") from None
            except ValueError as error:
                raise Damaged(str(error)[:200]) from None
            self.execute(instruction.name, argument)
            self.at = self.data.tell()
        pack = self.pop()
        if self.stack or self.at != len(self.data):
            raise Damaged("there is more after its end")
        return self.pack(pack)

    def execute(self, name: str, argument: Any) -> None:
        match name:
            case "PROTO":
                if argument > 5:
                    raise Damaged(f"it is of protocol {argument}, and there are 0 to 5")
            case "STOP" | "FRAME":  # a frame is a hint for readers of streams
                pass
            case "MARK":
                if len(self.marks) == 8:
                    raise Refused("nested marks")
                self.marks.append(len(self.stack))
            case "BINBYTES" | "SHORT_BINBYTES" | "BINBYTES8" | "BYTEARRAY8" | "BINSTRING" | "SHORT_BINSTRING":
                self.push(Span(self.data.tell() - len(argument), len(argument)))
            case "UNICODE" | "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8":
                self.push(argument)
            case "INT" | "BININT" | "BININT1" | "BININT2" | "LONG" | "LONG1" | "NONE":
                self.push(argument)
            case "NEWTRUE" | "NEWFALSE":
                self.push(name == "NEWTRUE")
            case "MEMOIZE":
                self.note(len(self.memo))
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.note(argument)
            case "GET" | "BINGET" | "LONG_BINGET":
                if not 0 <= argument < len(self.memo) or self.memo[argument] is _ABSENT:
                    raise Damaged(f"value {argument:,} was never noted")
                self.push(self.memo[argument])
            case "EMPTY_LIST" | "LIST":
                self.new_list(self.since_mark() if name == "LIST" else [])
            case "APPEND" | "APPENDS":
                self.extend(self.since_mark() if name == "APPENDS" else [self.pop()])
            case "EMPTY_TUPLE" | "TUPLE":
                self.bundle(self.since_mark() if name == "TUPLE" else [])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.bundle([self.pop() for _ in range(int(name[-1]))][::-1])
            case "GLOBAL":
                self.name(*argument.split(" ", 1))
            case "STACK_GLOBAL":
                self.name(*[self.pop() for _ in range(2)][::-1])
            case "REDUCE":
                self.reduce()
            case "BUILD":
                self.build()
            case _:
                raise Refused(f"the instruction {name}")

    def images(self) -> int:
        """How many whole images were read; a single byte that waits is no image, but a part of NumPy's form."""
        contents = (self.content(value) for values in (*self.lists, self.stack) for value in values)
        return sum(content is not None and content.length > 1 for content in contents)

    def pack(self, pack: Any) -> tuple[Sequence[Span], Sequence[bool]]:
        if not (_is_sequence(pack) and len(pack) == 2 and all(map(_is_sequence, pack))):
            raise Refused("something other than two lists")
        contents = [self.content(value) for value in pack[0]]
        for number, content in enumerate(contents):
            if content is None or content.length == 0:
                raise Damaged(f"image {number:,} is {'no bytes' if content is None else 'empty'}")
        if not all(isinstance(value, bool) for value in pack[1]):
            raise Refused("something other than truth values in the second list")
        if not contents or len(contents) != 2 * len(pack[1]):
            raise Damaged(f"{several(len(contents), 'image')} for {several(len(pack[1]), 'pair')}")
        return [content for content in contents if content is not None], pack[1]

    @staticmethod
    def content(value: Any) -> Span | None:
        """Where the bytes of an image lie; None for what is no whole image."""
        content = value.content if isinstance(value, _Array) else value
        return content if isinstance(content, Span) else None

    def word(self, value: Any) -> Any:
        """One or two bytes as the text that they are: Python 2 wrote its texts so."""
        if not isinstance(value, Span) or value.length > 2:
            return value
        behind = value.start - len(self.data)
        source, start = (self.data, value.start) if behind < 0 else (self.made, behind)
        return source[start : start + value.length].decode("latin-1")

    def push(self, value: Any) -> None:
        if len(self.stack) >= self.values:
            raise Refused(f"more than {self.values:,} values at once")
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

    def note(self, place: int) -> None:
        if place < 0:
            raise Damaged(f"a value noted as number {place:,}")
        if max(place, len(self.memo)) >= self.notes:
            raise Refused(f"more than {self.notes:,} values noted")
        value = self.pop()
        self.stack.append(value)
        if self.memo and value is self.memo[-1]:
            raise Refused("a value noted twice")
        self.memo += [_ABSENT] * (place + 1 - len(self.memo))
        self.memo[place] = value

    def new_list(self, values: list[Any]) -> None:
        if len(self.lists) == 3:
            raise Refused("a fourth list")
        self.lists.append([])
        self.push(self.lists[-1])
        self.extend(values)

    def extend(self, values: list[Any]) -> None:
        target = self.pop()
        if not isinstance(target, list):
            raise Refused("an append to what is no list")
        together = len(target) + len(values)
        if together > self.values:
            raise Refused(f"more than {self.values:,} values in a list")
        for value in values:
            if not (isinstance(value, (Span, _Array, bool)) or (_is_sequence(value) and together <= 2)):
                raise Refused("a list of something other than images or truth values")
        target.extend(values)
        self.stack.append(target)

    def bundle(self, values: list[Any]) -> None:
        """A tuple, and of many values a list: only images and truth values come in so many."""
        if len(values) > len(_DTYPE_STATE):
            self.new_list(values)
        elif any(type(inner) is tuple for value in values if type(value) is tuple for inner in value):
            raise Refused("nested tuples")  # each would take one byte in the file and fifty in memory
        else:
            self.push(tuple(values))

    def name(self, module: Any, name: Any = "") -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise Refused("a name that is no text")
        if _Name(module, name) not in _NAMES:
            raise Refused(f"the name {module[:80]!r}.{name[:80]!r}")
        self.push(_Name(module, name))

    def reduce(self) -> None:
        arguments, callee = self.pop(), self.pop()
        match callee, arguments:
            case _Name(), (_Name() as kind, (0,), form) if callee in _RECONSTRUCT and kind == _NDARRAY:
                if self.word(form) == "b":
                    return self.push(_Array())
            case _Name(), (code, 0, 1) if callee == _DTYPE and self.word(code) in ("u1", "b1"):
                return self.push(_Dtype(self.word(code)))
            case _Name(), (_Dtype(code="b1", whole=True), value) if callee in _SCALAR:
                if (truth := self.word(value)) in ("\0", "\1"):
                    return self.push(truth == "\1")
            case _Name(), (Span() as content, _Dtype(code="u1", whole=True), shape, "C") if callee in _FROMBUFFER:
                if _fits(shape, content):
                    return self.push(_Array(content))
            case _Name(), (str() as text, "latin1") if callee == _ENCODE:
                return self.push(self.encode(text))
        # never the repr of a value: it can be very long
        raise Refused(
            f"a call of {callee.module}.{callee.name}" if isinstance(callee, _Name) else "a call of what is no name"
        )

    def encode(self, text: str) -> Span:
        start = len(self.data) + len(self.made)
        if start + len(text) > 2 * len(self.data):  # one text can be named often
            raise Refused("more bytes in its texts than in itself")
        try:
            self.made += text.encode("latin-1")
        except UnicodeError:
            raise Refused("a text that stands for no bytes") from None
        return Span(start, len(text))

    def build(self) -> None:
        state, target = self.pop(), self.pop()
        match target, state:
            case _Dtype(whole=False), tuple() if tuple(map(self.word, state)) == _DTYPE_STATE:
                target.whole = True
            case _Array(content=None), (1, shape, _Dtype(code="u1", whole=True), 0, Span() as content) if _fits(
                shape, content
            ):
                target.content = content
            case _:
                raise Refused("a state for what has none, or not this one")
        self.push(target)


def _fits(shape: Any, content: Span) -> bool:
    """Whether an array of this shape has all the bytes in a row; OpenCV 3 gave encoded images as (n, 1)."""
    return shape in ((content.length,), (content.length, 1))


def _is_sequence(value: Any) -> bool:
    return type(value) in (list, tuple)
