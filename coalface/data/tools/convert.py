"""From one form of a set of face images to another: identity folders, records, `.bin` packs of pairs, our packs.

The encoded bytes of an image are kept as they are, so that nothing is lost on the way; only our pack holds pixels,
which become PNG images, without loss, when they leave it.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coalface.core.checks import at_key
from coalface.core.disk import beside, check_free, put_in_place, writing
from coalface.core.errors import DataError, RecipeError
from coalface.core.text import several, shown
from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList, balanced_pairs, read_pairs
from coalface.data.readers.bin import read_bin, write_bin
from coalface.data.readers.headers import Header, read_header
from coalface.data.readers.layouts import pair_lists, read_list
from coalface.data.readers.pack import write_pack
from coalface.data.readers.records import check_room, write_rec
from coalface.data.source import in_order
from coalface.data.stores import IDENTITIES, Kind, Store, check_names, check_written, open_store
from coalface.data.tools.decode_check import all_whole
from coalface.data.tools.naming import NAMED, file_names

PAIRS = "pairs.txt"
"""Among identity folders that were made of a `.bin`: its pairs, in LFW's format."""

Progress = Callable[[int, int], None]
_ENDINGS = {"jpeg": ".jpg", "png": ".png", "bmp": ".bmp", "webp": ".webp", "pnm": ".pgm"}


@dataclass(frozen=True)
class Pairs:
    """Which pairs go into a `.bin`: those of a list, or so many drawn; nothing: the store's own, where it has one."""

    path: Path | None = None
    """A pair list, or the file of a layout's own list."""
    draw: int | None = None
    rng: np.random.Generator | None = None
    """For `draw`."""
    name: str | None = None
    """A layout's own list, by its name."""


def kind_of(out: Path, form: str | None) -> Kind:
    """The form to make: `form`, or that of the name. Raises RecipeError where neither says it."""
    kinds: tuple[Kind, ...] = typing.get_args(Kind)
    form = "bin" if form is None and out.suffix == ".bin" else form
    for kind in kinds:
        if kind == form:
            return kind
    unknown = "" if form is None else f"{form!r} is not a format; "
    raise RecipeError(f"{unknown}choose {', '.join(kinds)}; a name that ends in .bin makes a bin", where="--to")


def convert(
    store: Store,
    out: str | os.PathLike[str],
    kind: Kind,
    *,
    size: int = 112,
    grey: bool = False,
    pairs: Pairs = Pairs(),
    progress: Progress = lambda done, total: None,
) -> list[str]:
    """Write the images of `store` to `out` in another form; returns remarks on what could not be carried over.

    `size` and `grey` are for our pack. A `.bin` takes its pairs from `pairs`, or from the store if that is one.
    Everything is written beside `out` and renamed when it is whole.

    Raises FileExistsError if something is at `out`, and ValueError for a form that the images do not fit, and for the
    first image that is damaged: each is decoded once, so that no damage is handed on as if it were an image.
    """
    out = Path(out)
    check_free(out)
    if store.path.is_dir() and out.resolve().is_relative_to(store.path.resolve()):
        raise DataError(f"it lies in what is converted: choose a place outside {store.path}", where=out)
    remarks = [f"ignored: {sentence}" for sentence in store.passed_over()]
    if kind == "folder":
        return remarks + _to_folder(store, out, progress)
    if kind == "rec":
        return remarks + _to_rec(store, out, progress)
    if kind == "bin":
        return remarks + _to_bin(store, out, pairs, progress)
    return remarks + _to_pack(store, out, size, grey, progress)


_FOR: dict[str, Kind] = {"--size": "pack", "--grey": "pack", "--pairs": "bin", "--draw": "bin", "--list": "bin"}


def check_options(kind: Kind, options: Iterable[str]) -> None:
    """Raise RecipeError for options of the command that do nothing for this form, or that exclude each other."""
    options = list(options)
    if idle := next((option for option in options if _FOR.get(option, kind) != kind), None):
        needed = _FOR[idle]
        raise RecipeError(f"it is for a {needed}, and this makes a {kind}: use --to {needed}", where=idle)
    sources = [option for option in options if option in ("--pairs", "--list", "--draw")]
    if len(sources) > 1:
        raise RecipeError("pairs come from one place; keep one of them", where=" and ".join(sources))
    if "--seed" in options and "--draw" not in options:
        raise RecipeError("it is for drawn pairs: give --draw as well, or leave it out", where="--seed")


def _to_folder(store: Store, out: Path, progress: Progress) -> list[str]:
    """`IDENTITY/IDENTITY_0001.jpg`, as LFW; a store that has file names of its own keeps them."""
    remarks: list[str] = []
    with beside(out) as partial:
        partial.mkdir()
        files = []
        sound = _sound(store, range(len(store)))
        for i, (stem, (data, header)) in enumerate(zip(file_names(store), sound, strict=True)):
            ending = "" if store.kind in NAMED else _ENDINGS[header.kind]
            name = Path(f"{stem}{ending}")
            (partial / name.parent).mkdir(parents=True, exist_ok=True)
            with writing(out / name), open(partial / name, "xb") as file:
                file.write(data)
            files.append(name)
            progress(i + 1, len(store))
        check_written(partial, out, {str(file): os.path.dirname(file) for file in files})
        if store.pairs is not None:
            text, remarks = _pair_lines(store.pairs, files)
            if text:
                with writing(out / PAIRS):
                    (partial / PAIRS).write_text(text, encoding="utf-8")
        put_in_place(partial, out)
    return remarks


def _to_rec(store: Store, out: Path, progress: Progress) -> list[str]:
    order = np.argsort(store.labels, kind="stable")
    present, labels = np.unique(store.labels, return_inverse=True)
    check_room(len(order), len(present))
    check_names(store.names, shown(store.path))
    first = read_header(store.encoded(int(order[0])), store.where(int(order[0])))
    other_sizes = 0

    def images() -> Iterator[tuple[int, bytes]]:
        nonlocal other_sizes
        for count, (i, (data, header)) in enumerate(zip(order, _sound(store, order.tolist()), strict=True), start=1):
            other_sizes += (header.width, header.height) != (first.width, first.height)
            yield int(labels[i]), bytes(data)
            progress(count, len(order))

    with beside(out) as partial:
        write_rec(images(), partial, size=(first.height, first.width))
        names = [store.names[k] for k in present.tolist()]
        with writing(out / IDENTITIES):
            text = "".join(f"{name}\n" for name in names)
            (partial / IDENTITIES).write_text(text, encoding="utf-8", errors="surrogateescape")
        again = open_store(partial)
        if list(again.names) != names or not np.array_equal(again.labels, labels[order]):
            raise DataError("it is not made, since it would not be read again as it was meant", where=out)
        put_in_place(partial, out)
    remarks = []
    if other_sizes or (first.width, first.height) != (112, 112):
        sizes = f"{first.width}×{first.height}"
        if other_sizes:
            are = "is of another size" if other_sizes == 1 else "are of other sizes"
            sizes += f", and {several(other_sizes, 'image')} {are}"
        remarks.append(f"the images are {sizes}: insightface's loader wants all of them to be 112×112")
    if store.pairs is not None:
        remarks.append("records hold no pairs: those of the .bin are left out")
    return remarks


def _to_bin(store: Store, out: Path, choice: Pairs, progress: Progress) -> list[str]:
    listed = _pairs_of(store, choice)
    places = np.stack([listed.left, listed.right], axis=1).reshape(-1)

    def images() -> Iterator[bytes | memoryview]:
        for count, (data, _) in enumerate(_sound(store, places.tolist()), start=1):
            yield data
            progress(count, len(places))

    with beside(out) as partial:
        write_bin(partial, images(), listed.same.tolist())
        if not np.array_equal(read_bin(partial).same, listed.same):
            raise DataError("it is not made, since it would not be read again as it was meant", where=out)
        put_in_place(partial, out)
    remarks = []
    unpaired = len(store) - len(np.unique(places))
    if unpaired:
        remarks.append(
            f"{several(unpaired, 'image')} {'is' if unpaired == 1 else 'are'} in no pair, so a .bin has no place for "
            f"{'it' if unpaired == 1 else 'them'}"
        )
    if listed.fold is not None and not np.array_equal(listed.fold, np.sort(listed.fold)):
        remarks.append("the pairs are not in the order of their folds, and a .bin cuts folds by position")
    return remarks


def _pairs_of(store: Store, choice: Pairs) -> PairList:
    pixels = np.zeros((len(store), 1, 1, 1), np.uint8)
    faces = FaceSet(pixels, np.arange(len(store)), store.labels, store.names, tuple(store.files))
    if choice.path is not None:
        lists = pair_lists(store.path, faces) if store.layout else []
        named = [protocol for protocol in lists if protocol.file and protocol.file.resolve() == choice.path.resolve()]
        return named[0].read() if named else read_pairs(choice.path, faces, root=store.path)
    if choice.draw is not None:
        assert choice.rng is not None, "drawn pairs need a generator"
        with at_key(f"--draw {choice.draw}"):
            return balanced_pairs(faces, pairs=choice.draw, rng=choice.rng)
    if choice.name is None and store.pairs is not None:
        return store.pairs
    if store.layout and (choice.name is not None or pair_lists(store.path, faces)):
        return read_list(store.path, faces, name=choice.name)
    if choice.name is not None:
        text = f"{shown(store.path)} has no pair lists of its own with names"
        raise RecipeError(text, where=f"--list {choice.name[:80]}")
    raise RecipeError("a .bin holds pairs: give a pair list (--pairs FILE), or how many to draw (--draw N)")


def _to_pack(store: Store, out: Path, size: int, grey: bool, progress: Progress) -> list[str]:
    if store.pairs is None:
        write_pack(store, out, size=size, grey=grey, progress=progress)
        return []
    files = [f"{name}.jpg" for name in file_names(store)]  # called as LFW's, so that a list can name them
    text, remarks = _pair_lines(store.pairs, [Path(file) for file in files])
    write_pack(dataclasses.replace(store, files=files), out, size=size, grey=grey, progress=progress)
    if not text:
        return remarks
    beside = out.with_name(f"{out.name}.{PAIRS}")
    with writing(beside):
        beside.write_text(text, encoding="utf-8")
    return [f"its pairs are in {beside}", *remarks]


def _pair_lines(pairs: PairList, files: list[Path]) -> tuple[str, list[str]]:
    """A pair list in LFW's format, of View 2 where every fold has its genuine pairs first, and as many impostor pairs.

    Other lists become View 1, which has no folds: all genuine pairs, then all impostor pairs, as many of each; what is
    more of one kind is left out, with a remark. Where all pairs are of one kind, which the format has no list for, the
    text is empty. Raises ValueError where an impostor pair shows one identity.
    """
    half = len(pairs) // 20
    blocks = np.tile(np.repeat([True, False], half), 10)
    whole = half > 0 and len(pairs) == 20 * half and np.array_equal(pairs.same, blocks)
    remarks = []
    if whole:
        order, head = np.arange(len(pairs)), f"10 {half}"
    else:
        genuine, impostor = np.flatnonzero(pairs.same), np.flatnonzero(~pairs.same)
        count = min(len(genuine), len(impostor))
        if count == 0:
            return "", [f"there is no {PAIRS}: the pairs are all of one kind, and LFW's format wants as many of each"]
        order, head = np.concatenate([genuine[:count], impostor[:count]]), str(count)
        if 2 * count < len(pairs):
            surplus = len(pairs) - 2 * count
            remarks.append(
                f"{several(surplus, 'pair')} {'is' if surplus == 1 else 'are'} left out: LFW's format wants as many of "
                "each kind"
            )
        if not np.array_equal(order, np.arange(len(pairs))):
            remarks.append(
                "the pairs are in another order than in the .bin, without folds: LFW's format has no such mix"
            )
    lines = [head]
    for left, right, same in zip(pairs.left[order], pairs.right[order], pairs.same[order], strict=True):
        left_file, right_file = files[left], files[right]
        if not same and left_file.parent == right_file.parent:
            raise DataError(
                f"an impostor pair of {left_file} and {right_file} is one identity by other pairs: the .bin "
                "contradicts itself, and LFW's format cannot say so"
            )
        numbers = [int(file.stem.rpartition("_")[2]) for file in (left_file, right_file)]
        name, second = left_file.parent.name, right_file.parent.name
        lines.append(f"{name}\t{numbers[0]}\t{numbers[1]}" if same else f"{name}\t{numbers[0]}\t{second}\t{numbers[1]}")
    return "\n".join(lines) + "\n", remarks


def _sound(store: Store, places: Sequence[int]) -> Iterator[tuple[bytes | memoryview, Header]]:
    """These images in turn, encoded, and their headers; ValueError names the first that is damaged.

    Each is decoded to see that, but for a pack's, which were encoded a moment ago.
    """

    def read(k: int) -> tuple[bytes | memoryview, str]:
        return store.encoded(places[k]), store.where(places[k])

    try:
        if store.kind == "pack":
            yield from in_order(lambda k: (read(k)[0], read_header(*read(k))), len(places))
        else:
            yield from all_whole(read, len(places))
    except DataError as error:
        text = str(error).removeprefix(f"{error.where}: ")
        raise DataError(f"{text}. `coalface data inspect` lists all that is damaged", where=error.where) from None
