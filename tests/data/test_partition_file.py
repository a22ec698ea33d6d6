"""A partition from a file: whose images are whose, and what is wrong with which line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tinyruns

from coalface.core.errors import DataError, RecipeError
from coalface.data.faceset import FaceSet
from coalface.data.partition_file import read_partition
from coalface.experiments.api.fit import resume
from coalface.experiments.setup.parts import Parts

PEOPLE = ("ann", "bob", "cem, jr", "dan")


def faces() -> FaceSet:
    files = [f"{name}/{number}.png" for name in PEOPLE for number in range(3)]
    labels = np.repeat(np.arange(4), 3)
    return FaceSet(np.zeros((12, 2, 2, 1), np.uint8), np.arange(12), labels, PEOPLE, files)


def written(folder: Path, *lines: str) -> Path:
    path = folder / "parties.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_identities_and_single_images_go_where_their_lines_say(tmp_path: Path) -> None:
    path = written(tmp_path, "ann, north", "bob , south", "", "bob/1.png,north", "cem, jr, south", "dan, -")
    partition = read_partition(path)
    partition.check(faces())
    train, held = partition.hold_out(faces())
    assert (train.names, held.names, len(held)) == (("ann", "bob", "cem, jr"), ("dan",), 3)
    parties = partition.assign(train)
    assert {name: (part.names, part.rows.tolist()) for name, part in parties.items()} == {
        "north": (("ann", "bob"), [0, 1, 2, 4]),
        "south": (("bob", "cem, jr"), [3, 5, 6, 7, 8]),
    }
    assert parties["north"].labels.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["ann, north", "bob"], 2),
        (["ann, north", "ann, south"], 2),
        (["ann, no rth"], 1),
        (["ann, north", "zoe, north"], 2),
        (["ann, north", "ann/7.png, north"], 2),
        (["ann, north", "ann/0.png, -"], 2),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, lines: list[str], line: int) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(DataError) as error:
        partition = read_partition(path)
        partition.check(faces())
        partition.hold_out(faces())
    assert error.value.where == f"{path}, line {line}"


def test_a_file_that_is_missing_or_leaves_somebody_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_partition(tmp_path / "none.txt")
    assert error.value.where == str(tmp_path / "none.txt")
    with pytest.raises(DataError) as error:
        read_partition(path := written(tmp_path, "ann, north", "dan, -")).assign(faces())
    assert error.value.where == str(path) and "bob" in error.value.text


def test_who_is_held_out_is_evaluated_and_the_file_is_below_the_data_root(tmp_path: Path) -> None:
    names = Parts(tinyruns.tiny(data={"hold_out": 0})).split.train.names
    written(tmp_path, *(f"{name}, {'-' if n < 5 else 'ab'[n % 2]}" for n, name in enumerate(names)))
    data = {"root": str(tmp_path), "hold_out": 0, "partition": {"kind": "file", "path": "parties.txt"}}
    parts = Parts(tinyruns.tiny(data=data))
    assert parts.split.held.names == names[:5] and list(parts.trainers) == ["a", "b"]
    assert set(parts.pairs[0].faces.names) == set(names[:5])
    pooled = tinyruns.tiny(data=data, pretrain={"method": "centralized", "rounds": 1}).pretrain
    assert pooled is not None and Parts(pooled.recipe).split.held.names == names[:5]
    with pytest.raises(RecipeError) as error:
        tinyruns.tiny(data=data | {"hold_out": 2})
    assert error.value.where == "data.hold_out"


def test_another_file_is_another_recipe_and_a_run_is_not_resumed_with_it(tmp_path: Path) -> None:
    names = Parts(tinyruns.tiny(data={"hold_out": 0})).split.train.names
    lines = [f"{name}, {'-' if n < 5 else 'ab'[n % 2]}" for n, name in enumerate(names)]
    path = written(tmp_path, *lines)
    partition = {"data": {"hold_out": 0, "partition": {"kind": "file", "path": str(path)}}}
    out = tinyruns.run(tmp_path / "run", **partition)
    before = tinyruns.tiny(**partition).digest()
    resume(out, progress=False)
    written(tmp_path, *reversed(lines))
    assert tinyruns.tiny(**partition).digest() != before
    with pytest.raises(DataError) as error:
        resume(out, progress=False)
    assert error.value.where == str(path)
