"""Pair lists: which two images are compared, and whether they show one person. Read from files, or drawn."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.core.text import first_few, several, shown
from coalface.data.faceset import FaceSet
from coalface.data.readers.pair_lines import ListedPair, read_pair_lines


@dataclass(frozen=True, eq=False)
class PairList:
    """n pairs of images of one face set: genuine where `same`, else impostor."""

    name: str
    left: NDArray[np.int64]
    """(n,) an image of each pair, by its place in the face set (not in the pixel store)."""
    right: NDArray[np.int64]
    """(n,) the other image."""
    same: NDArray[np.bool_]
    """(n,) True for a genuine pair."""
    fold: NDArray[np.int64] | None = None
    """(n,) the fold of each pair, from 0; None where the list has none, and the evaluation makes them."""
    headline: NDArray[np.bool_] | None = None
    """(n,) True for the pairs that count in the headline figure: all impostor pairs, and so many genuine ones of each
    identity. None: all pairs count."""

    def __len__(self) -> int:
        return len(self.same)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """(n,) True for the pairs that count in the headline figure."""
        return np.ones(len(self), dtype=bool) if self.headline is None else self.headline | ~self.same


def read_pairs(path: str | os.PathLike[str], faces: FaceSet, *, root: Path | None = None) -> PairList:
    """Read a pair list in any form of `pair_lines.py`, its images looked up in `faces`.

    Paths are those of the face set's `files`, with the ending or without, and may be absolute where the `root` of these
    files is given. Raises DataError with file and line if the list is malformed, and if images of it are not in the
    face set.
    """
    places = places_of(faces)
    stems = {_stem(file): image for file, image in places.items()}
    roots = [] if root is None else list(dict.fromkeys([os.path.abspath(root), os.path.realpath(root)]))

    def find(name: str) -> int:
        below = _below(name, roots)
        return places.get(below, stems.get(below, -1))

    def hint(absent: str) -> str:
        ends = (absent.split("/", cut)[cut] for cut in range(1, absent.count("/") + 1))
        meant = next((f"write {end} for it" for end in ends if find(end) >= 0), "take the images from there")
        where = root or "the folder of the images"
        return f"paths count from {where}; {meant}, or leave such pairs out of the list"

    return pair_list(Path(path).stem, _listed(path), find, hint=hint)


def files_of(faces: FaceSet) -> list[str]:
    """(n,) the file of each image. Raises ValueError where the face set does not know its files."""
    if faces.files is None:
        raise ValueError(
            "this face set does not know its files, so a pair list cannot be resolved in it; read a folder (in a "
            "recipe, give the list a source of kind folder)"
        )
    return [faces.files[row] for row in faces.rows]


def places_of(faces: FaceSet) -> dict[str, int]:
    """The image of each file, the first where several have one."""
    return {file: image for image, file in reversed(list(enumerate(files_of(faces))))}


def pair_list(
    name: str,
    pairs: Sequence[ListedPair],
    find: Callable[[str], int],
    *,
    hint: Callable[[str], str] = lambda absent: "check that the list belongs to these images and that all are there",
) -> PairList:
    """The pairs of a list whose images `find` looks up, −1 for those that are not there.

    Raises DataError for these, with file and line and a `hint` about the first.
    """
    place = {file: find(file) for pair in pairs for file in (pair.left, pair.right)}
    if absent := [file for file in place if place[file] < 0]:
        incomplete = [pair for pair in pairs if place[pair.left] < 0 or place[pair.right] < 0]
        raise DataError(
            f"{len(incomplete):,} of {several(len(pairs), 'pair')} name images missing from the "
            f"face set, such as {', '.join(file[:200] for file in absent[:3])}: {hint(absent[0])}",
            where=incomplete[0].where,
        )
    folds = [pair.fold for pair in pairs if pair.fold is not None]
    return PairList(
        name=name,
        left=np.array([place[pair.left] for pair in pairs], dtype=np.int64),
        right=np.array([place[pair.right] for pair in pairs], dtype=np.int64),
        same=np.array([pair.same for pair in pairs], dtype=bool),
        fold=np.array(folds, dtype=np.int64) if folds else None,
    )


def named_identities(path: str | os.PathLike[str]) -> frozenset[str]:
    """The identities that a pair list names, so that they can be kept out of training.

    In a list of paths they are the folders. Raises ValueError for a path without one, and for an absolute one.
    """
    pairs = _listed(path)
    for pair in pairs:
        if "" in pair.names or pair.left[0] == "/" or pair.right[0] == "/":
            raise DataError(
                f"{pair.left[:80]} or {pair.right[:80]} does not name a person; write paths as IDENTITY/file",
                where=pair.where,
            )
    return frozenset(name for pair in pairs for name in pair.names)


def _listed(path: str | os.PathLike[str]) -> list[ListedPair]:
    refuse_matlab(Path(path))
    return read_pair_lines(Path(path))


def _below(name: str, roots: Sequence[str]) -> str:
    """A path from the first of the folders that it lies below; a relative path, and any other, as it is."""
    if name.startswith("/"):
        name = os.path.normpath(name)
    return next((name[len(root) + 1 :] for root in roots if name.startswith(f"{root}/")), name)


def _stem(file: str) -> str:
    """A path without the file's ending."""
    stem, dot, ending = file.rpartition(".")
    return stem if dot and "/" not in ending else file


def refuse_matlab(path: Path) -> None:
    """Raise ValueError if a file is MATLAB's, by its ending or its first bytes, as AgeDB's protocols are."""
    with open(path, "rb") as file:
        begins = file.read(7)
    if begins == b"MATLAB " or path.suffix.lower() == ".mat":
        raise DataError(
            "MATLAB files cannot be read; export the pairs to a text in LFW's format, or, for "
            "AgeDB's protocol of 30 years, use agedb_30.bin",
            where=path,
        )


def devtest_all(faces: FaceSet, names: Collection[str]) -> PairList:
    """Every genuine and 200,000 impostor pairs of the named identities: LFW's pairsDevTest, evaluated finely.

    It is `all_pairs` with 20 genuine pairs per identity in the headline and `numpy.random.default_rng(2048)`.
    """
    rng = np.random.default_rng(2048)
    return all_pairs(faces, impostors=200_000, per_identity=20, rng=rng, names=names, title="devtest-all")


def all_pairs(
    faces: FaceSet,
    *,
    impostors: int,
    per_identity: int,
    rng: np.random.Generator,
    names: Collection[str] | None = None,
    title: str = "all-pairs",
) -> PairList:
    """Every genuine pair of the identities in `names` (None: of all) and so many different impostor pairs, drawn.

    The n images are numbered by identity name, then file name, both compared as bytes. Genuine pairs (i, j), i < j,
    come first, in the order of these numbers. Then the impostor pairs, as they are drawn: `rng.integers(n, size=2)`
    gives (left, right), and the draw is rejected if it shows one identity or has been accepted before in either order,
    until there are enough. Last, identity by identity, `rng.choice(m, per_identity, replace=False)` says which of its
    m genuine pairs count in the headline, where m is more than `per_identity`.

    If more than half of all impostor pairs are wanted, they are a `rng.choice` from the list of all of them instead.
    The result depends on names and files, not on the order of the face set.

    Raises ValueError if a name is unknown, or if there are not so many impostor pairs.
    """
    order = _sorted_images(faces, names)
    labels = faces.labels[order]
    starts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    counts = np.diff(np.r_[starts, len(labels)])
    totals = counts * (counts - 1) // 2
    genuine = _genuine_pairs(starts, counts, np.arange(totals.sum()))
    drawn = _draw_impostors(labels, impostors, rng)
    headline = np.ones(len(genuine) + impostors, dtype=bool)
    for first, total in zip(np.cumsum(totals) - totals, totals, strict=True):
        if total > per_identity:
            headline[first : first + total] = False
            headline[first + rng.choice(total, per_identity, replace=False)] = True
    pairs = order[np.concatenate([genuine, drawn])]
    same = np.arange(len(pairs)) < len(genuine)
    return PairList(title, left=pairs[:, 0], right=pairs[:, 1], same=same, headline=headline)


def balanced_pairs(
    faces: FaceSet, *, pairs: int, rng: np.random.Generator, folds: int = 10, title: str = "balanced"
) -> PairList:
    """So many genuine and as many impostor pairs in folds, as LFW's View 2: within a fold, genuine pairs come first.

    Identities are shuffled and dealt to the folds by their number of images, largest first, so that no identity is in
    two folds. Each fold draws its pairs uniformly, without repeats, from all that its identities can make. Where some
    fold's identities cannot make its share, all the folds draw from one pool, and identities are in several folds.

    Raises ValueError if the whole set cannot make so many pairs.
    """
    if not 1 <= folds <= pairs:
        most = most_pairs(faces)
        enough = f"ask for {folds:,} to {most:,} of each kind" if folds <= most else f"they make no more than {most:,}"
        raise ValueError(
            f"{pairs:,} genuine and as many impostor pairs of these images cannot be spread over {folds} folds, of "
            f"which each needs one of each kind: {enough}"
        )
    order = _sorted_images(faces, None)
    present = rng.permutation(np.flatnonzero(faces.counts()))
    by_size = present[np.argsort(-faces.counts()[present], kind="stable")]
    sizes = np.array([len(part) for part in np.array_split(np.arange(pairs), folds)])
    fold_of = np.zeros(len(faces.names), dtype=np.int64)
    fold_of[by_size] = np.arange(len(by_size)) % folds
    pools = [order[fold_of[faces.labels[order]] == f] for f in range(folds)]
    if all(min(_capacity(faces.labels[pool])) >= size for pool, size in zip(pools, sizes, strict=True)):
        parts = [_draw_both(faces.labels[pool], size, rng) for pool, size in zip(pools, sizes, strict=True)]
        genuine = [pool[part[0]] for pool, part in zip(pools, parts, strict=True)]
        drawn = [pool[part[1]] for pool, part in zip(pools, parts, strict=True)]
    else:
        drawn_pairs = _draw_both(faces.labels[order], pairs, rng)
        genuine, drawn = (np.split(order[part], np.cumsum(sizes)[:-1]) for part in drawn_pairs)
    blocks = [block for pair in zip(genuine, drawn, strict=True) for block in pair]
    joined = np.concatenate(blocks)
    return PairList(
        name=title,
        left=joined[:, 0],
        right=joined[:, 1],
        same=np.repeat(np.tile([True, False], folds), np.repeat(sizes, 2)),
        fold=np.repeat(np.arange(folds), 2 * sizes),
    )


def across_pairs(
    faces: FaceSet, *, folders: tuple[str, str], each: int, rng: np.random.Generator, folds: int = 10, title: str
) -> PairList:
    """So many genuine and as many impostor pairs of `each` identity between two folders, as CFP's protocol has them.

    The left image of a pair lies in the first folder, the right one in the second, which may be the same. Identities
    are shuffled and dealt to folds of equal size, and an identity's impostor pairs are with others of its fold; within
    a fold genuine pairs come first, and no pair comes twice. An identity with fewer genuine pairs has all of them.

    Raises ValueError where a folder has no images, or a fold's identities cannot make the impostor pairs.
    """
    order = _sorted_images(faces, None)
    folder_of = np.array([os.path.basename(os.path.dirname(file)) for file in files_of(faces)])
    lefts, rights = (order[folder_of[order] == folder] for folder in folders)
    for folder, images in zip(folders, (lefts, rights), strict=True):
        if len(images) == 0:
            raise ValueError(
                f"no image lies in a folder {folder!r}; they lie in {first_few(sorted(set(folder_of)), 5)}"
            )
    people = rng.permutation(np.intersect1d(faces.labels[lefts], faces.labels[rights]))
    pairs, same, fold = list[tuple[int, int]](), list[bool](), list[int]()
    for number, members in enumerate(np.array_split(people, folds)):
        genuine, impostor = dict[tuple[int, int], None](), dict[tuple[int, int], None]()
        others = rights[np.isin(faces.labels[rights], members)]
        for person in members:
            own, ends = lefts[faces.labels[lefts] == person], others[faces.labels[others] == person]
            possible = [(a, b) for a in own.tolist() for b in ends.tolist() if a < b or folders[0] != folders[1]]
            chosen = rng.permutation(len(possible))[:each]
            genuine |= dict.fromkeys(possible[k] for k in np.sort(chosen).tolist())
            others_here = others[faces.labels[others] != person]
            candidates = [(a, b) for a in own.tolist() for b in others_here.tolist() if (b, a) not in impostor]
            if len(candidates) < each:
                raise ValueError(
                    f"fold {number} has {len(members)} identities, which cannot make {each} impostor pairs each; hold "
                    "out more people, or ask for fewer pairs"
                )
            impostor |= dict.fromkeys(candidates[k] for k in rng.choice(len(candidates), each, replace=False).tolist())
        pairs += [*genuine, *impostor]
        same += [True] * len(genuine) + [False] * len(impostor)
        fold += [number] * (len(genuine) + len(impostor))
    left, right = np.array(pairs, dtype=np.int64).T
    return PairList(title, left=left, right=right, same=np.array(same), fold=np.array(fold))


def most_pairs(faces: FaceSet) -> int:
    """How many genuine and as many impostor pairs the images can make."""
    return min(_capacity(faces.labels))


def list_sha256(pairs: PairList, faces: FaceSet) -> str:
    """SHA-256 of the list as text, so that two people can know that they evaluate on the same pairs.

    A pair is a line of five fields, each ended by a tab, the last by a newline: both files, `same`, the fold and
    `headline`; 1 and 0 for true and false, `-` where the list has no folds or no headline.
    """
    files = files_of(faces)
    none = ["-"] * len(pairs)
    fold = none if pairs.fold is None else pairs.fold.tolist()
    headline = none if pairs.headline is None else pairs.headline.astype(int).tolist()
    columns = (pairs.left.tolist(), pairs.right.tolist(), pairs.same.astype(int).tolist(), fold, headline)
    text = "".join(f"{files[a]}\t{files[b]}\t{s}\t{f}\t{h}\n" for a, b, s, f, h in zip(*columns, strict=True))
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def _sorted_images(faces: FaceSet, names: Collection[str] | None) -> NDArray[np.int64]:
    """The images of the named identities, by identity name and then file name, as bytes; by place without files."""
    included = np.ones(len(faces.names), dtype=bool)
    if names is not None:
        chosen = frozenset(names)
        unknown = sorted(chosen - set(faces.names))
        if unknown:
            raise ValueError(
                f"{len(unknown)} of the {len(chosen)} named identities are not in the face set, such as "
                f"{shown(', '.join(unknown[:3]))}: check that the names belong to these images"
            )
        included = np.array([name in chosen for name in faces.names])
    images = np.flatnonzero(included[faces.labels])
    if len(images) == 0:
        raise ValueError("there are no images to make pairs of; the face set or the list of names is empty")
    files = [""] * len(faces) if faces.files is None else files_of(faces)
    keys = {i: (os.fsencode(faces.names[faces.labels[i]]), os.fsencode(files[i])) for i in images.tolist()}
    return np.array(sorted(keys, key=keys.__getitem__), dtype=np.int64)


def _genuine_pairs(starts: NDArray[np.int64], counts: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """(len(ranks), 2) the genuine pairs of the given ranks in the list of all of them.

    The list goes through the identities, images starts[k] to starts[k] + counts[k] − 1, and for m images through
    (0, 1), (0, 2), …, (0, m − 1), (1, 2), …. Row i of that triangle begins at rank i (2m − i − 1) / 2, so rank r is in
    row ⌊((2m − 1) − √((2m − 1)² − 8r)) / 2⌋. The root is exact at a row's beginning, so the floor is right.
    """
    ends = np.cumsum(counts * (counts - 1) // 2)
    identity = np.searchsorted(ends, ranks, side="right")
    m = counts[identity]
    rank = ranks - (ends - counts * (counts - 1) // 2)[identity]
    i = ((2 * m - 1 - np.sqrt((2 * m - 1) ** 2 - 8 * rank)) // 2).astype(np.int64)
    j = rank - i * (2 * m - i - 1) // 2 + i + 1
    return np.stack([starts[identity] + i, starts[identity] + j], axis=1)


def _draw_impostors(labels: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(count, 2) different impostor pairs of the images whose identities are `labels`, as `all_pairs` says.

    Each round draws just as many pairs as are missing. It can never draw one too many, so what is accepted, and where
    the generator stands at the end, is the same as when the pairs are drawn one at a time.
    """
    n, available = len(labels), _available(labels, "impostor", count)
    if 2 * count > available:
        every = np.stack(np.triu_indices(n, 1), axis=1)
        every = every[labels[every[:, 0]] != labels[every[:, 1]]]
        return every[rng.choice(available, count, replace=False)]
    accepted = np.empty((0, 2), dtype=np.int64)
    while len(accepted) < count:
        drawn = rng.integers(n, size=(count - len(accepted), 2))
        accepted = np.concatenate([accepted, drawn[labels[drawn[:, 0]] != labels[drawn[:, 1]]]])
        _, first = np.unique(accepted.min(axis=1) * n + accepted.max(axis=1), return_index=True)
        accepted = accepted[np.sort(first)]
    return accepted


def _draw_both(
    labels: NDArray[np.int64], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """So many genuine and so many impostor pairs of images in identity order, each (count, 2)."""
    available = _available(labels, "genuine", count)
    starts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    counts = np.diff(np.r_[starts, len(labels)])
    genuine = _genuine_pairs(starts, counts, rng.choice(available, count, replace=False))
    return genuine, _draw_impostors(labels, count, rng)


def _available(labels: NDArray[np.int64], kind: str, count: int) -> int:
    """How many pairs of a kind the images can make. Raises ValueError where that is less than `count`."""
    available = _capacity(labels)[kind == "impostor"]
    if not available and kind == "genuine":
        raise ValueError("each of these people has one image, and a genuine pair needs two; give people with more")
    if count > available:
        most = several(available, f"{kind} pair")
        raise ValueError(f"the images make {most}, not {count:,}; set `pairs` to {available:,} or fewer")
    return available


def _capacity(labels: NDArray[np.int64]) -> tuple[int, int]:
    """How many genuine and how many impostor pairs the images can make."""
    counts = np.bincount(labels)
    genuine = int((counts * (counts - 1) // 2).sum())
    return genuine, len(labels) * (len(labels) - 1) // 2 - genuine
