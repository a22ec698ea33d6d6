"""Who a run trained on, as digests in its folder, and which of the people whom its model meets are among them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.data.faceset import FaceSet
from coalface.evaluation.npz import read_npz, whole_numbers

FILE = "trained_on.npz"
"""In a run's folder, not in that of the model, which is given on: `names` and `images`, 8 bytes for each, and `model`,
the SHA-256 of the run's `model/model.json`, which has those of the tensors."""

STRANGER, BY_NAME, BY_IMAGE = 0, 1, 2
"""What speaks for a person's having been trained on."""


@dataclass(frozen=True, eq=False)
class Members:
    """The people that a model was trained on: the first 8 bytes of a SHA-256 each, ascending, as little-endian numbers.

    Nothing is salted, since a salt would have to lie beside the digests: whoever has a name or an image can find out
    whether it is among them, and nobody can read names or images off them.
    """

    names: NDArray[np.uint64]
    """(k,) of the identities' names, as their source gives them."""
    images: NDArray[np.uint64]
    """(n,) of the images' pixels as trained on, before augmentation."""

    def beside(self, other: Members) -> Members:
        """The people of both."""
        return Members(np.union1d(self.names, other.names), np.union1d(self.images, other.images))

    def among(self, faces: FaceSet, people: NDArray[np.int64]) -> NDArray[np.int8]:
        """(len(faces.names),) for some identities of a set whether they are members, and by what; else `STRANGER`.

        A person is one `BY_IMAGE` if any image of theirs in the set was trained on, whatever they are called, and
        `BY_NAME` if nothing but the name says so. Numbers name nobody: record files number their identities.
        """
        membership_of = np.full(len(faces.names), STRANGER, dtype=np.int8)
        numbers = [number for number in people.tolist() if not faces.names[number].rpartition("/")[2].isdigit()]
        is_member = np.isin(_names([faces.names[number] for number in numbers]), self.names)
        membership_of[np.array(numbers, dtype=np.int64)[is_member]] = BY_NAME
        rows = np.flatnonzero(np.isin(faces.labels, people))
        was_trained_on = np.isin(_images(faces.pixels, faces.rows[rows]), self.images)
        membership_of[faces.labels[rows[was_trained_on]]] = BY_IMAGE
        return membership_of


def of_faces(sets: Iterable[FaceSet], parts: Collection[str] = ()) -> Members:
    """The people of some sets. Of a joined source, whose `parts` are given, they are called as in their part."""
    names, images = set[str](), [np.empty(0, dtype=np.uint64)]
    for faces in sets:
        for number in np.flatnonzero(faces.counts()).tolist():
            part, _, own_name = faces.names[number].partition("/")
            names.add(own_name if part in parts else faces.names[number])
        images.append(_images(faces.pixels, faces.rows))
    return Members(np.unique(_names(names)), np.unique(np.concatenate(images)))


def write(folder: Path, members: Members) -> None:
    """Put the digests into a run's folder, beside its model."""
    fresh = folder / f"new.{FILE}"
    np.savez(fresh, names=members.names, images=members.images, model=_model(folder / "model"))
    os.replace(fresh, folder / FILE)


def read_beside(model: Path) -> Members | None:
    """The digests of the run that a model's folder lies in; None where it has none, or they are of another model."""
    run = model.resolve().parent
    return read(run, model) if (model / "model.json").exists() else None


def read(folder: Path, model: Path | None = None) -> Members | None:
    """The digests of a run's folder; None where it has none, or none of the `model`, if one is given.

    Raises DataError where they are damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        arrays = read_npz(path)
        if model is not None and not np.array_equal(arrays["model"], _model(model)):
            return None
        return Members(*(whole_numbers(arrays[name], np.uint64) for name in ("names", "images")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the file is damaged ({error}): `coalface resume {quote(str(folder))}` writes it anew; without it the "
            "model can be evaluated, and nobody can tell who was trained on",
            where=path,
        ) from None


def _model(folder: Path) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.sha256((folder / "model.json").read_bytes()).digest(), dtype=np.uint8)


def _names(names: Iterable[str]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(hashlib.sha256(os.fsencode(name)).digest()[:8] for name in names), dtype="<u8")


def _images(pixels: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    store = np.asarray(pixels)  # a row of a memory map is a slow object
    return np.frombuffer(b"".join(hashlib.sha256(store[row]).digest()[:8] for row in rows.tolist()), dtype="<u8")
