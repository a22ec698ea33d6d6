"""The file of a gallery: what is removed leaves its bytes, damage and other keys are found, several processes write."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit_rows import unit

from coalface.core.errors import DataError, RecipeError
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.gallery import file as gallery_file
from coalface.experiments.gallery.file import Enrolled
from coalface.experiments.gallery.gallery import Gallery


@pytest.mark.parametrize("sealed", [False, True])
def test_nothing_of_who_was_removed_is_left(sealed: bool, model: FaceModel, key: Path, tmp_path: Path) -> None:
    key_of = key if sealed else None
    rows = unit(np.random.default_rng(1).standard_normal((300, 128)))
    names = [f"Somebody {i % 3}" for i in range(300)]
    folder = tmp_path / "alone"
    folder.mkdir()
    gallery = Gallery.create(folder / "g", model, key=key_of, threshold=0.0)
    gallery.add([Enrolled(name, f"photo of {name}", "ab" * 32) for name in names], rows)
    with sqlite3.connect(folder / "g") as database:
        stored = database.execute("SELECT about, embedding FROM images").fetchall()
    assert (b"Somebody 1" in (folder / "g").read_bytes()) == (not sealed)
    assert gallery.remove("Somebody 1") == 100
    assert [path.name for path in folder.iterdir()] == ["g"]
    content = (folder / "g").read_bytes()
    assert b"Somebody 1" not in content and all(rows[i].tobytes() not in content for i in range(300)[1::3])
    for i, values in enumerate(stored):  # as they were stored: sealed, or in the clear
        for value in values:
            assert (value[:64] in content) == (i % 3 != 1) or (not sealed and value is values[0])
    assert Gallery(folder / "g", key=key_of).people == {"Somebody 0": 100, "Somebody 2": 100}
    with pytest.raises(RecipeError):
        gallery.remove("Somebody 1")


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"P7")] ^= 1
    path.write_bytes(data)


def foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE images (id INTEGER, about BLOB, embedding BLOB)")


@pytest.mark.parametrize(
    "change",
    [
        damaged,
        foreign,
        lambda path: path.write_bytes(path.read_bytes()[:9000]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("people"),
    ],
)
def test_what_is_no_whole_gallery_is_refused(change: Any, model: FaceModel, tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", model, threshold=0.0)
    rows = unit(np.random.default_rng(1).standard_normal((40, 128)))
    gallery.add([Enrolled(f"P{i}") for i in range(40)], rows)
    change(tmp_path / "g")
    with pytest.raises(DataError) as error:
        _ = Gallery(tmp_path / "g").people
    assert error.value.where == str(tmp_path / "g")


def test_only_its_key_opens_it(model: FaceModel, key: Path, tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", model, key=key, threshold=0.5)
    gallery.add([Enrolled("Ann"), Enrolled("Bob")], unit(np.eye(2, 128)))
    content = (tmp_path / "g").read_bytes()
    assert b"Ann" not in content and np.eye(2, 128, dtype=np.float32)[0].tobytes()[:100] not in content
    other = tmp_path / "other.key"
    other.write_bytes(bytes(40))
    short = tmp_path / "short.key"
    short.write_bytes(b"secret")
    for wrong in (None, other, short):
        with pytest.raises(RecipeError) as error:
            Gallery(tmp_path / "g", key=wrong)
        assert error.value.where == "--key"
    with sqlite3.connect(tmp_path / "g") as database:  # Ann's embedding under Bob's name
        database.execute("UPDATE images SET embedding = (SELECT embedding FROM images WHERE id = 1) WHERE id = 2")
    with pytest.raises(DataError):
        _ = Gallery(tmp_path / "g", key=key).people
    (tmp_path / "g").write_bytes(content.replace(b'"cosine": 0.5', b'"cosine": 0.1'))
    with pytest.raises(RecipeError):
        Gallery(tmp_path / "g", key=key)


ENROLLS = """
import sys
from pathlib import Path
import numpy as np
from coalface.experiments.gallery.file import Enrolled, GalleryFile
gallery = GalleryFile(Path(sys.argv[1]))
for i in range(40):
    gallery.add([Enrolled(f"{sys.argv[2]} {i}")], np.eye(1, 128, i, dtype=np.float32))
"""


def test_two_processes_enroll_at_once(model: FaceModel, tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", model, threshold=0.0)
    gallery.add([Enrolled("first")], unit(np.eye(1, 128)))
    assert gallery.search(unit(np.eye(1, 128))) == [[("first", 1.0)]]
    processes = [subprocess.Popen([sys.executable, "-c", ENROLLS, tmp_path / "g", name]) for name in ("a", "b")]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert len(gallery.people) == 81 and len(gallery.search(unit(np.eye(1, 128)), top=100)[0]) == 81


def test_who_waits_too_long_is_told(model: FaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = Gallery.create(tmp_path / "g", model, threshold=0.0)
    monkeypatch.setattr(gallery_file, "WAIT", 0.01)
    database = sqlite3.connect(tmp_path / "g")
    database.execute("BEGIN IMMEDIATE")
    with pytest.raises(DataError, match="another process is writing to it"):
        gallery.add([Enrolled("Ann")], unit(np.eye(1, 128)))
    database.close()
    gallery.add([Enrolled("Ann")], unit(np.eye(1, 128)))


@pytest.mark.parametrize("other", ["nan", "zero", "long", "narrow", "row", "complex", "objects"])
def test_what_are_no_embeddings_of_its_model_is_neither_added_nor_searched(
    other: str, model: FaceModel, tmp_path: Path
) -> None:
    gallery, rows = Gallery.create(tmp_path / "a.gallery", model, threshold=0.3), unit(np.eye(2, 128))
    people = [Enrolled(str(number), "a.jpg", f"{number:064}") for number in range(2)]
    gallery.add(people, rows)
    bad = {"nan": rows * np.nan, "zero": rows * 0, "long": 5 * rows, "narrow": rows[:, :64], "row": rows[0]}
    bad |= {"complex": rows * 1j, "objects": np.full((2, 128), None)}
    with pytest.raises(ValueError, match="embedding"):
        gallery.add(people, bad[other])
    with pytest.raises(ValueError, match="embedding"):
        gallery.search(bad[other])
    assert gallery.search(rows) == [[("0", 1.0)], [("1", 1.0)]] and gallery.people == {"0": 1, "1": 1}
    with pytest.raises(ValueError, match="top is 0"):
        gallery.search(rows, top=0)
