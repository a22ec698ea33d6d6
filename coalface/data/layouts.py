"""Folder layouts of the field's data sets, recognised and read as sources, and their pair lists.

What each looks like stands beside its entry in `LAYOUTS`. All are as distributed, or as the field commonly unpacks
them; none of the data sets is here. Sources: Sengupta et al., WACV 2016 (CFP); Moschoglou et al., CVPRW 2017 (AgeDB);
Zheng et al., arXiv:1708.08197 (CALFW); Zheng and Deng, 2018 (CPLFW); Wang et al., ICCV 2019 and CVPR 2020 (RFW,
BUPT-Balancedface); Cao et al., FG 2018 (VGGFace2); Yi et al., arXiv:1411.7923 (CASIA-WebFace).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from coalface.data.bins import folds_by_position, linked
from coalface.data.faces import FaceSet
from coalface.data.folder import Faults, folders_in, images_in, list_images, read_folder
from coalface.data.joined import Joined
from coalface.data.pairs import PairList, refuse_matlab
from coalface.data.source import Source
from coalface.data.words import several, shown

RACES = ("African", "Asian", "Caucasian", "Indian")
"""The four groups of RFW and BUPT-Balancedface, as their folders are called."""

_FLAT_IMAGES = ("", "images", "imgs", "aligned images")
"""Where flat images may lie beside their list."""
_LISTED = {"agedb-30": ("agedb_30_pair.txt", "agedb_30_ann.txt"), "cfp-fp": ("cfp_fp_pair.txt", "cfp_fp_ann.txt")}
"""Lists of lines `left right 1` or `1 left right`, as `.bin` packs are commonly unpacked."""


@dataclass(frozen=True)
class Layout:
    """How a data set lies in its folder."""

    shape: str
    """What it looks like, for people."""
    fits: Callable[[Path], bool]
    """Whether a folder looks like that."""
    read: Callable[[Path, str, Faults], Source]
    """The images; of the part, empty for all that are read by default, and with a list for what cannot be read."""
    lists: Callable[[Path, FaceSet], Iterator[PairList]]
    """The pair lists, their images looked up in a face set read from here."""
    parts: tuple[str, ...] = ()
    """What `part` may be."""


def recognise(root: str | os.PathLike[str]) -> str:
    """The name in `LAYOUTS` of the layout that `root` has.

    Raises FileNotFoundError if `root` is not a folder, ValueError if it has none of them.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"{shown(root)} is not a folder: give the folder of a data set")
    for name, layout in LAYOUTS.items():
        if layout.fits(root):
            return name
    known = "; ".join(f"{name}: {layout.shape}" for name, layout in LAYOUTS.items())
    raise ValueError(
        f"{shown(root)} has no known layout: give the folder that holds what is named here, or read it as identity "
        f"folders. Known are {known}"
    )


def read_layout(root: str | os.PathLike[str], *, layout: str = "", part: str = "", faults: Faults = None) -> Source:
    """The images of a data set in one of the field's layouts, recognised unless `layout` names it.

    Sets of several races come as a `Joined` source, a domain per race; `part` picks one. Of VGGFace2, `part` picks
    `train` (the default where it is there) or `test`. `files` are paths below `root`, or below the part of a `Joined`.

    Raises ValueError for an unknown part, where `root` has not the layout named, where an image lies where the layout
    has no place for it, and where there is none; and for what cannot be read, unless there are `faults` to note it in.
    """
    root = Path(root)
    found = _layout(root, layout)
    if part and part not in found.parts:
        raise ValueError(
            f"{shown(root)} has no part {part!r}: choose from {', '.join(found.parts) or 'none, it is one whole'}"
        )
    source = found.read(root, part, faults)
    if not len(source.files):
        raise ValueError(f"{shown(root)} holds no image where one is expected: {found.shape}; put the images there")
    return source


def read_lists(root: str | os.PathLike[str], faces: FaceSet, *, layout: str = "") -> dict[str, PairList]:
    """The pair lists of a data set by name, their images looked up in `faces`, which `read_layout` read of it.

    Empty for sets that have none (BUPT-Balancedface, VGGFace2, CASIA-WebFace). Raises ValueError with file and line
    where a list is malformed or names an image that is not in `faces`.
    """
    root = Path(root)
    if faces.files is None:
        raise ValueError(
            "this face set does not know its files, so no pair list can be looked up in it: read a folder (in a "
            "recipe, give the list a source of kind folder)"
        )
    return {pairs.name: pairs for pairs in _layout(root, layout).lists(root, faces)}


def _layout(root: Path, name: str) -> Layout:
    """The layout of that name, or the one that is recognised."""
    found = LAYOUTS.get(name or recognise(root))
    if found is None:
        raise ValueError(f"{shown(root)}: there is no layout {name[:80]!r}; known: {', '.join(LAYOUTS)}")
    if name and not found.fits(root):
        raise ValueError(f"{shown(root)} has not the layout {name}: {found.shape}; give the folder that holds these")
    return found


# What a line of a list says, and where.


@dataclass(frozen=True)
class _Pair:
    left: str
    """The image's path in the face set."""
    right: str
    same: bool
    where: str
    """File and line, for errors."""
    fold: int = -1


def _pair_list(name: str, pairs: Sequence[_Pair], faces: FaceSet, fold: NDArray[np.int64] | None) -> PairList:
    files = faces.files or ()
    place: dict[str, int] = {}
    for image, row in enumerate(faces.rows):
        place.setdefault(files[row], image)
    missing = [(pair.where, file) for pair in pairs for file in (pair.left, pair.right) if file not in place]
    if missing:
        raise ValueError(
            f"{missing[0][0]}: {shown(missing[0][1][:200])} is not in the face set (so for {len(missing):,} of "
            f"{2 * len(pairs):,} images of the list): check that the list belongs to these images and that none is "
            "missing"
        )
    left = np.array([place[pair.left] for pair in pairs], np.int64)
    right = np.array([place[pair.right] for pair in pairs], np.int64)
    return PairList(name, left, right, np.array([pair.same for pair in pairs], bool), fold)


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """File and line number, and the fields, of each line that is not blank."""
    if not path.is_file():
        raise FileNotFoundError(f"{shown(path)} is missing: fetch the data set's protocol again")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{shown(path)} is no text ({error}): fetch it again") from None
    lines = [(f"{shown(path)}, line {n}", line.split()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{shown(path)} is empty: fetch it again")
    yield from lines


def _number(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{where}: {text[:80]!r} is where a number belongs; fetch the list again")
    return int(text)


def _bad(where: str, fields: Sequence[str], wanted: str) -> ValueError:
    return ValueError(f"{where}: {' '.join(fields)[:80]!r} is not {wanted}; fetch the list again")


def _no_lists(root: Path, faces: FaceSet) -> Iterator[PairList]:
    return iter(())


# CFP: Data/Images/001/{frontal,profile}/01.jpg, and Protocol/ with numbered images and folds of pairs of numbers.


def _read_cfp(root: Path, part: str, faults: Faults) -> Source:
    images = root / "Data" / "Images"
    return list_images(
        root,
        [
            (person, f"Data/Images/{person}/{pose}/{file}")
            for person in folders_in(images, faults)
            for pose in folders_in(images / person, faults)
            for file in images_in(images / person / pose, faults)
        ],
        faults,
    )


def _cfp_lists(root: Path, faces: FaceSet) -> Iterator[PairList]:
    protocol = root / "Protocol"
    numbered = {kind: _cfp_images(protocol / f"Pair_list_{kind}.txt") for kind in "FP"}
    for kinds in ("FF", "FP"):
        if not (protocol / "Split" / kinds).is_dir():
            continue
        pairs: list[_Pair] = []
        for fold, name in enumerate(folders_in(protocol / "Split" / kinds)):
            for file, same in (("same.txt", True), ("diff.txt", False)):
                for where, fields in _lines(protocol / "Split" / kinds / name / file):
                    numbers = "".join(fields).split(",")
                    if len(numbers) != 2:
                        raise _bad(where, fields, "two numbers with a comma between them")
                    ends = []
                    for kind, number in zip(kinds, numbers, strict=True):
                        image = numbered[kind].get(_number(number, where))
                        if image is None:
                            raise ValueError(
                                f"{where}: Pair_list_{kind}.txt has no image {number}; fetch the lists again"
                            )
                        ends.append(image)
                    pairs.append(_Pair(ends[0], ends[1], same, where, fold))
        if pairs:
            yield _pair_list(f"cfp-{kinds.lower()}", pairs, faces, np.array([pair.fold for pair in pairs], np.int64))


def _cfp_images(path: Path) -> dict[int, str]:
    """Image by number; the list gives its path from the folder Protocol, as `../Data/Images/001/frontal/01.jpg`."""
    found = {}
    for where, fields in _lines(path):
        if len(fields) != 2:
            raise _bad(where, fields, "a number and a path")
        parts = PurePosixPath(fields[1].replace("\\", "/")).parts[-3:]
        found[_number(fields[0], where)] = "/".join(("Data", "Images", *parts))
    return found


# CALFW and CPLFW: flat images NAME_0001.jpg or NAME_1.jpg, and a list in which two lines make a pair.


def _flat(root: Path, faults: Faults = None) -> list[str]:
    """The flat images beside a list, as paths below `root`."""
    for folder in _FLAT_IMAGES:
        if (root / folder).is_dir() and (found := images_in(root / folder, faults)):
            return [f"{folder}/{file}" if folder else file for file in found]
    raise ValueError(
        f"{shown(root)} holds no images: put them there, or into {', '.join(filter(None, _FLAT_IMAGES))} below it"
    )


def _read_lfw_like(root: Path, part: str, faults: Faults) -> Source:
    found = [(PurePosixPath(file).stem.rpartition("_")[0] or file, file) for file in _flat(root, faults)]
    return list_images(root, found, faults)


def _two_line_lists(name: str) -> Callable[[Path, FaceSet], Iterator[PairList]]:
    def lists(root: Path, faces: FaceSet) -> Iterator[PairList]:
        folder = _flat(root)[0].rpartition("/")[0]
        lines = list(_lines(root / f"pairs_{name}.txt"))
        if len(lines) % 2:
            raise ValueError(f"{lines[-1][0]}: the last image has no second one; fetch the list again")
        pairs = []
        for (where, left), (_, right) in zip(lines[::2], lines[1::2], strict=True):
            if len(left) != 2 or len(right) != 2 or left[1] != right[1]:
                raise _bad(where, [*left, "/", *right], "two lines of an image and the same number")
            token = _number(left[1], where)  # 0 for an impostor pair; above it, often the fold of a genuine one
            files = [str(PurePosixPath(folder, fields[0])) for fields in (left, right)]
            pairs.append(_Pair(files[0], files[1], token > 0, where))
        yield _pair_list(name.lower(), pairs, faces, None)

    return lists


# AgeDB-30 and CFP-FP as unpacked from .bin: flat images, and a list of three fields a line.


def _holds_any(files: Sequence[str]) -> Callable[[Path], bool]:
    return lambda root: any(os.path.isfile(root / file) for file in files)


def _three_fields(root: Path, name: str) -> list[_Pair]:
    path = next(root / file for file in _LISTED[name] if os.path.isfile(root / file))
    pairs = []
    for where, fields in _lines(path):
        flags = [fields[i] for i in (0, -1) if fields[i] in ("0", "1")]
        if len(fields) != 3 or len(flags) != 1:
            raise _bad(where, fields, "two images and, before or after them, 0 or 1")
        left, right = fields[1:] if fields[0] == flags[0] else fields[:2]
        if any(PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts for file in (left, right)):
            raise _bad(where, fields, "two images below the folder of the list")
        pairs.append(_Pair(_below(root, left), _below(root, right), flags[0] == "1", where))
    return pairs


def _below(root: Path, file: str) -> str:
    """An image's path below `root`: lists give it from there, or from the folder of the images."""
    for folder in _FLAT_IMAGES:
        if os.path.isfile(root / folder / file):  # False, where Path.is_file() raises, for a name of 300 letters
            return str(PurePosixPath(folder, file))
    return str(PurePosixPath(file))


def _read_listed(name: str) -> Callable[[Path, str, Faults], Source]:
    def read(root: Path, part: str, faults: Faults) -> Source:
        pairs = _three_fields(root, name)
        files = sorted({file for pair in pairs for file in (pair.left, pair.right)}, key=os.fsencode)
        place = {file: i for i, file in enumerate(files)}
        gone = {file for file in files if not os.path.isfile(root / file)}
        absent = [pair for pair in pairs if pair.left in gone or pair.right in gone]
        if absent and faults is None:
            either = shown(f"{absent[0].left[:200]} or {absent[0].right[:200]}")
            raise ValueError(
                f"{absent[0].where}: an image is missing, {either} (so in {several(len(absent), 'pair')}); "
                f"put the images below {shown(root)}"
            )
        if faults is not None:
            faults += [f"{shown(root / file)} is missing, and the list names it: put it there" for file in sorted(gone)]
        group = linked(len(files), [(place[pair.left], place[pair.right]) for pair in pairs if pair.same])
        named = [(_agedb_name(file) or f"{k:05}", file) for file, k in zip(files, group.tolist(), strict=True)]
        return list_images(root, [(name, file) for name, file in named if file not in gone], faults)

    return read


def _listed(name: str) -> Callable[[Path, FaceSet], Iterator[PairList]]:
    def lists(root: Path, faces: FaceSet) -> Iterator[PairList]:
        pairs = _three_fields(root, name)
        yield _pair_list(name, pairs, faces, folds_by_position(len(pairs)))

    return lists


def _agedb_name(file: str) -> str | None:
    """Whom AgeDB's file names show, as `0_MariaCallas_35_f.jpg`; None for other names."""
    found = re.fullmatch(r"[0-9]+_(.+)_[0-9]+_[mf]", PurePosixPath(file).stem)
    return found and found[1]


def _read_agedb(root: Path, part: str, faults: Faults) -> Source:
    found = [(_agedb_name(file), file) for file in images_in(root, faults)]
    if odd := [file for name, file in found if name is None]:
        raise ValueError(f"{shown(root / odd[0])} has no name as AgeDB's 0_MariaCallas_35_f.jpg: move it away")
    return list_images(root, [(str(name), file) for name, file in found], faults)


def _agedb_lists(root: Path, faces: FaceSet) -> Iterator[PairList]:
    """None are read: AgeDB's protocols are MATLAB files. Whoever asks for a list while they lie there is told so."""
    for file in sorted(root.glob("*.[mM][aA][tT]")):
        refuse_matlab(file)
    return iter(())


# RFW and BUPT-Balancedface: a folder per race, in it a folder per identity.


def _races(root: Path, faults: Faults) -> list[str]:
    return [race for race in RACES if os.path.isdir(root / race) and folders_in(root / race, faults)]


def _balanced(root: Path) -> Path:
    """Where the folders of the races lie: here, or one folder down."""
    return next(
        (folder for folder in (root, root / "race_per_7000", root / "images") if len(_races(folder, [])) > 1), root
    )


def _read_races(root: Path, part: str, faults: Faults) -> Source:
    races = [race for race in _races(root, faults) if part in ("", race)]
    if not races:
        raise ValueError(f"{shown(root / part)} holds no folder of an identity: check that the data set is whole")
    return Joined({race: read_folder(root / race, faults) for race in races})


def _rfw_lists(root: Path, faces: FaceSet) -> Iterator[PairList]:
    files = [] if faces.files is None else [faces.files[row] for row in faces.rows]
    by_stem = {file.rpartition(".")[0]: file for file in reversed(files)}
    for race in {file.partition("/")[0]: None for file in files}:
        pairs = []
        for where, fields in _lines(root / "txts" / race / f"{race}_pairs.txt"):
            if len(fields) not in (3, 4):
                raise _bad(where, fields, "`name a b` or `name a name b`")
            ends = (fields[0], fields[1]), (fields[-2] if len(fields) == 4 else fields[0], fields[-1])
            stems = [f"{race}/{name}/{name}_{_number(number, where):04}" for name, number in ends]
            pairs.append(
                _Pair(by_stem.get(stems[0], stems[0]), by_stem.get(stems[1], stems[1]), len(fields) == 3, where)
            )
        yield _pair_list(f"rfw-{race.lower()}", pairs, faces, folds_by_position(len(pairs)))


# VGGFace2 and CASIA-WebFace: identity folders.


def _all_called(folder: Path, pattern: str) -> bool:
    names = folders_in(folder, []) if os.path.isdir(folder) else []
    return bool(names) and all(re.fullmatch(pattern, name) for name in names)


def _vggface2_parts(root: Path) -> list[str]:
    return [part for part in ("train", "test") if _all_called(root / part, "n[0-9]{6}")]


LAYOUTS: dict[str, Layout] = {
    "cfp": Layout(
        "Data/Images/001/frontal/01.jpg, …/profile/01.jpg, Protocol/Pair_list_F.txt, Protocol/Split/FP/01/same.txt",
        lambda root: os.path.isfile(root / "Protocol" / "Pair_list_F.txt") and os.path.isdir(root / "Data" / "Images"),
        _read_cfp,
        _cfp_lists,
    ),
    "calfw": Layout(
        "pairs_CALFW.txt, aligned images/NAME_0001.jpg",
        lambda root: os.path.isfile(root / "pairs_CALFW.txt"),
        _read_lfw_like,
        _two_line_lists("CALFW"),
    ),
    "cplfw": Layout(
        "pairs_CPLFW.txt, aligned images/NAME_1.jpg",
        lambda root: os.path.isfile(root / "pairs_CPLFW.txt"),
        _read_lfw_like,
        _two_line_lists("CPLFW"),
    ),
    **{
        name: Layout(
            f"{' or '.join(lists)} of lines `image image 1` or `1 image image`, and the images",
            _holds_any(lists),
            _read_listed(name),
            _listed(name),
        )
        for name, lists in _LISTED.items()
    },
    "rfw": Layout(
        "data/African/NAME/NAME_0001.jpg, txts/African/African_pairs.txt, and so for the other races",
        lambda root: os.path.isdir(root / "txts") and bool(_races(root / "data", [])),
        lambda root, part, faults: _read_races(root / "data", part, faults),
        _rfw_lists,
        RACES,
    ),
    "bupt-balancedface": Layout(
        "African/IDENTITY/image.jpg, and so for the other races, perhaps below race_per_7000",
        lambda root: len(_races(_balanced(root), [])) > 1,
        lambda root, part, faults: _read_races(_balanced(root), part, faults),
        _no_lists,
        RACES,
    ),
    "vggface2": Layout(
        "train/n000002/0001_01.jpg, test/n000001/0001_01.jpg",
        lambda root: bool(_vggface2_parts(root)),
        lambda root, part, faults: read_folder(root / (part or _vggface2_parts(root)[0]), faults),
        _no_lists,
        ("train", "test"),
    ),
    "casia-webface": Layout(
        "0000045/001.jpg",
        lambda root: _all_called(root, "[0-9]{7}"),
        lambda root, part, faults: read_folder(root, faults),
        _no_lists,
    ),
    "agedb": Layout(
        "0_MariaCallas_35_f.jpg, all in one folder",
        lambda root: any(_agedb_name(file) for file in images_in(root, [])),
        _read_agedb,
        _agedb_lists,
    ),
}
"""The layouts by name, in the order in which they are tried."""
