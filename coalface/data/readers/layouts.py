"""Folder layouts of the field's data sets, recognised and read as sources; `protocols.py` reads their pair lists.

What each looks like stands beside its entry in `LAYOUTS`. All are as distributed, or as the field commonly unpacks
them; of these sets, CFP and CPLFW's list were seen. Sources: Sengupta et al., WACV 2016 (CFP); Moschoglou et al.,
CVPRW 2017 (AgeDB); Zheng et al., arXiv:1708.08197 (CALFW); Zheng and Deng, 2018 (CPLFW); Wang et al., ICCV 2019 and
CVPR 2020 (RFW, BUPT-Balancedface); Cao et al., FG 2018 (VGGFace2); Yi et al., arXiv:1411.7923 (CASIA-WebFace).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from coalface.core.errors import DataError
from coalface.core.text import several, shown
from coalface.data.faceset import FaceSet
from coalface.data.joined import Joined
from coalface.data.pairs import PairList, files_of
from coalface.data.readers import protocols
from coalface.data.readers.bin import linked
from coalface.data.readers.folders import Faults, folders_in, images_in, list_images, read_folder
from coalface.data.readers.protocols import LISTED, Protocols
from coalface.data.source import Source

RACES = ("African", "Asian", "Caucasian", "Indian")
"""The four groups of RFW and BUPT-Balancedface, as their folders are called."""


@dataclass(frozen=True)
class Layout:
    """How a data set lies in its folder."""

    shape: str
    """What it looks like, for people."""
    fits: Callable[[Path], bool]
    """Whether a folder looks like that."""
    read: Callable[[Path, str, Faults], Source]
    """The images; of the part, empty for all that are read by default, and with a list for what cannot be read."""
    lists: Protocols = lambda root, faces: ()
    """The pair lists, their images looked up in a face set read from here."""
    parts: tuple[str, ...] = ()
    """What `part` may be."""


def recognise(root: str | os.PathLike[str]) -> str:
    """The name in `LAYOUTS` of the layout that `root` has.

    Raises FileNotFoundError if `root` is not a folder, DataError if it has none of them.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"{shown(root)} is not a folder; give the folder of a data set")
    for name, layout in LAYOUTS.items():
        if layout.fits(root):
            return name
    layouts = "; ".join(f"{name}: {layout.shape}" for name, layout in LAYOUTS.items())
    raise DataError(
        "unknown layout; give the folder with the files of a known one, or read it as identity folders. Known "
        f"are {layouts}",
        where=root,
    )


def read_layout(root: str | os.PathLike[str], *, part: str = "", faults: Faults = None) -> Source:
    """The images of a data set in one of the field's layouts.

    Sets of several races come as a `Joined` source, a domain per race; `part` picks one. Of VGGFace2, `part` picks
    `train` (the default where it is there) or `test`; of CFP one of the poses. `files` are paths below `root`, or
    below the part of a `Joined`.

    Raises DataError for an unknown layout or part, where an image lies where the layout has no place for it, and where
    there is none; and for what cannot be read, unless there are `faults` to note it in.
    """
    root = Path(root)
    layout = LAYOUTS[recognise(root)]
    if part and part not in layout.parts:
        parts = ", ".join(layout.parts) or "none, it is one whole"
        raise DataError(f"it has no part {part!r}: choose from {parts}", where=root)
    source = layout.read(root, part, faults)
    if not len(source.files):
        raise DataError(
            f"it has no image where this layout expects one: {layout.shape}; put the images there", where=root
        )
    return source


def read_lists(root: str | os.PathLike[str], faces: FaceSet) -> dict[str, PairList]:
    """The pair lists of a data set by name, their images looked up in `faces`, which `read_layout` read of it.

    Empty for sets that have none (BUPT-Balancedface, VGGFace2, CASIA-WebFace). Raises DataError with file and line
    where a list is malformed or names an image that is not in `faces`.
    """
    return {protocol.name: protocol.read() for protocol in pair_lists(root, faces)}


def read_list(root: str | os.PathLike[str], faces: FaceSet, *, name: str | None = None) -> PairList:
    """One of them: that of the name, or the only one. Raises DataError where there is none, or several to choose."""
    lists = {protocol.name: protocol for protocol in pair_lists(root, faces)}
    if not lists:
        raise DataError("it has no pair list of its own; give one as a file, or draw pairs", where=Path(root))
    if name is None and len(lists) == 1:
        (name,) = lists
    if name not in lists:
        has = f"has {len(lists)} pair lists" if name is None else f"has no pair list {name[:80]!r}"
        raise DataError(f"it {has}: choose one by --list {', --list '.join(lists)}", where=Path(root))
    return lists[name].read()


def pair_lists(root: str | os.PathLike[str], faces: FaceSet) -> list[protocols.Protocol]:
    """The pair lists of a data set, not yet read."""
    files_of(faces)
    return list(LAYOUTS[recognise(root)].lists(Path(root), faces))


# CFP: Data/Images/001/{frontal,profile}/01.jpg.


def _read_cfp(root: Path, part: str, faults: Faults) -> Source:
    images = root / "Data" / "Images"
    return list_images(
        root,
        [
            (person, f"Data/Images/{person}/{pose}/{file}")
            for person in folders_in(images, faults)
            for pose in folders_in(images / person, faults)
            if part in ("", pose)
            for file in images_in(images / person / pose, faults)
        ],
        faults,
    )


# CALFW and CPLFW: flat images NAME_0001.jpg or NAME_1.jpg.


def _read_lfw_like(root: Path, part: str, faults: Faults) -> Source:
    stems = [(PurePosixPath(file).stem, file) for file in protocols.flat_images(root, faults)]
    return list_images(root, [(stem.rpartition("_")[0] or stem, file) for stem, file in stems], faults)


# AgeDB-30 and CFP-FP as unpacked from .bin: flat images, and a list of three fields a line.


def _read_listed(root: Path, part: str, faults: Faults, name: str) -> Source:
    pairs = protocols.three_fields(root, name)
    files = sorted({file for pair in pairs for file in (pair.left, pair.right)}, key=os.fsencode)
    place = {file: i for i, file in enumerate(files)}
    missing = {file for file in files if not os.path.isfile(root / file)}
    absent = [pair for pair in pairs if pair.left in missing or pair.right in missing]
    if absent and faults is None:
        raise DataError(
            f"an image is missing, {absent[0].left[:200]} or {absent[0].right[:200]} (so in "
            f"{several(len(absent), 'pair')}); put the images below {root}",
            where=absent[0].where,
        )
    if faults is not None:
        faults += [
            str(DataError("it is missing, and the list names it", where=root / file)) for file in sorted(missing)
        ]
    group = linked(len(files), [(place[pair.left], place[pair.right]) for pair in pairs if pair.same])
    images = [(_agedb_name(file) or f"{k:05}", file) for file, k in zip(files, group.tolist(), strict=True)]
    return list_images(root, [(name, file) for name, file in images if file not in missing], faults)


# AgeDB: flat images whose names say whom they show.


def _agedb_name(file: str) -> str | None:
    """Whom AgeDB's file names show, as `0_MariaCallas_35_f.jpg`; None for other names."""
    match = re.fullmatch(r"[0-9]+_(.+)_[0-9]+_[mf]", PurePosixPath(file).stem)
    return match and match[1]


def _read_agedb(root: Path, part: str, faults: Faults) -> Source:
    images = [(_agedb_name(file), file) for file in images_in(root, faults)]
    if odd := [file for name, file in images if name is None]:
        raise DataError("its name is not like AgeDB's 0_MariaCallas_35_f.jpg; move it away", where=root / odd[0])
    return list_images(root, [(str(name), file) for name, file in images], faults)


# RFW and BUPT-Balancedface: a folder per race, in it a folder per identity.


def _races(root: Path, faults: Faults) -> list[str]:
    return [race for race in RACES if os.path.isdir(root / race) and folders_in(root / race, faults)]


def _balanced(root: Path) -> Path | None:
    """Where the folders of the races lie: here, or one folder down; one race is enough where nothing else is."""
    for folder in (root, root / "race_per_7000", root / "images"):
        races = _races(folder, [])
        if len(races) > 1 or (races and folders_in(folder, []) == races and not images_in(folder / races[0], [])):
            return folder
    return None


def _read_races(root: Path, part: str, faults: Faults) -> Source:
    races = [race for race in _races(root, faults) if part in ("", race)]
    if not races:
        raise DataError("it has no identity folders; check that the data set is complete", where=root / part)
    return Joined({race: read_folder(root / race, faults) for race in races})


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
        protocols.of_cfp,
        parts=("frontal", "profile"),
    ),
    "calfw": Layout(
        "pairs_CALFW.txt, aligned images/NAME_0001.jpg",
        lambda root: os.path.isfile(root / "pairs_CALFW.txt"),
        _read_lfw_like,
        partial(protocols.of_two_lines, name="CALFW"),
    ),
    "cplfw": Layout(
        "pairs_CPLFW.txt, aligned images/NAME_1.jpg",
        lambda root: os.path.isfile(root / "pairs_CPLFW.txt"),
        _read_lfw_like,
        partial(protocols.of_two_lines, name="CPLFW"),
    ),
    **{
        name: Layout(
            f"{' or '.join(lists)} of lines `image image 1` or `1 image image`, and the images",
            lambda root, lists=lists: any(os.path.isfile(root / file) for file in lists),  # type: ignore[misc]
            partial(_read_listed, name=name),
            partial(protocols.of_three_fields, name=name),
        )
        for name, lists in LISTED.items()
    },
    "rfw": Layout(
        "data/African/NAME/NAME_0001.jpg, txts/African/African_pairs.txt, and so for the other races",
        lambda root: os.path.isdir(root / "txts") and bool(_races(root / "data", [])),
        lambda root, part, faults: _read_races(root / "data", part, faults),
        protocols.of_rfw,
        RACES,
    ),
    "bupt-balancedface": Layout(
        "African/IDENTITY/image.jpg, and so for the other races, perhaps below race_per_7000",
        lambda root: _balanced(root) is not None,
        lambda root, part, faults: _read_races(_balanced(root) or root, part, faults),
        parts=RACES,
    ),
    "vggface2": Layout(
        "train/n000002/0001_01.jpg, test/n000001/0001_01.jpg",
        lambda root: bool(_vggface2_parts(root)),
        lambda root, part, faults: read_folder(root / (part or _vggface2_parts(root)[0]), faults),
        parts=("train", "test"),
    ),
    "casia-webface": Layout(
        "0000045/001.jpg",
        lambda root: _all_called(root, "[0-9]{7}"),
        lambda root, part, faults: read_folder(root, faults),
    ),
    "agedb": Layout(
        "0_MariaCallas_35_f.jpg, all in one folder",
        lambda root: any(_agedb_name(file) for file in images_in(root, [])),
        _read_agedb,
        protocols.of_agedb,
    ),
}
"""The layouts by name, in the order in which they are tried."""
