"""MegaFace's lists and insightface's noise lists, written by hand; and what is wrong with a list, told."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from coalface.core.errors import DataError
from coalface.data.readers import megaface

PROBES = {
    "path": ["Alec Baldwin/Alec Baldwin_2121.png", "Adam_McKay/Adam_McKay_468.jpg", "Alec Baldwin/Alec Baldwin_7.png"],
    "id": ["Alec Baldwin", "Adam McKay", "Alec Baldwin"],
}


def written(tmp_path, text, name="list"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_list_of_probes(tmp_path):
    probes = megaface.read_probes(written(tmp_path, json.dumps(PROBES)))
    assert probes.files == tuple(PROBES["path"])
    assert probes.names == ("Adam McKay", "Alec Baldwin") and probes.identity.tolist() == [1, 0, 1]
    # FG-NET's identities are numbers.
    probes = megaface.read_probes(written(tmp_path, json.dumps({"path": ["a", "b"], "id": [10, 9]})))
    assert probes.names == ("10", "9") and probes.identity.tolist() == [0, 1]


@pytest.mark.skipif("COALFACE_DATA" not in os.environ, reason="COALFACE_DATA is not set")
def test_the_kits_own_lists_are_read():
    lists = Path(os.environ["COALFACE_DATA"], "lists")
    probes = megaface.read_probes(lists / "facescrub_features_list.json")
    kept, _ = probes.without(megaface.read_noises(lists / "facescrub_noises.txt", "facescrub"))
    assert (len(probes.files), len(probes.names), len(kept.files)) == (3530, 80, 3506)
    assert all(file.startswith(f"{probes.names[k]}/") for file, k in zip(probes.files, probes.identity, strict=True))
    noises = megaface.read_noises(lists / "megaface_noises.txt", "megaface")
    by_size = {size: megaface.read_distractors(path) for size, path in megaface.distractor_lists(lists).items()}
    assert list(by_size) == [10, 100, 1000, 10_000, 100_000]
    assert [int(noises.among(files).sum()) for files in by_size.values()] == [0, 0, 0, 7, 80]


def test_lists_of_distractors_by_size(tmp_path):
    for size in (1000, 10, 100):
        for number in (1, 2):
            paths = [f"{size}/{number}@N00/{n}.jpg" for n in range(size)]
            written(tmp_path, json.dumps({"path": paths}), f"megaface_features_list.json_{size}_{number}")
    written(tmp_path, "{}", "megaface_features_list.json_10_1.bak")
    lists = megaface.distractor_lists(tmp_path, 2)
    assert list(lists) == [10, 100, 1000]
    assert megaface.read_distractors(lists[100]) == tuple(f"100/2@N00/{n}.jpg" for n in range(100))
    for folder, number in ((tmp_path, 3), (tmp_path / "none", 1)):
        with pytest.raises(FileNotFoundError, match=f"json_SIZE_{number}: give"):
            megaface.distractor_lists(folder, number)


@pytest.mark.parametrize(
    ("name", "count", "says"),
    [
        (
            "megaface_features_list.json_10_1",
            1,
            "json_10_1: it holds 1 distractor, but should hold 10, as its name says: fetch",
        ),
        ("megaface_features_list.json_10_1", 11, "json_10_1: it holds 11 distractors, but should hold 10, as"),
        ("megaface_features_list.json_10_1", 10, None),
        ("megaface_features_list.json_2_10", 2, None),
        ("my_list_5_1.json", 3, None),
    ],
)
def test_a_list_of_distractors_holds_as_many_as_its_name_says(tmp_path, name, count, says):
    files = [f"1/2@N00/{n}.jpg" for n in range(count)]
    path = written(tmp_path, json.dumps({"path": files}), name)
    if says is None:
        assert megaface.read_distractors(path) == tuple(files)
    else:
        with pytest.raises(DataError, match=says):
            megaface.read_distractors(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ("[]", "has no list 'path'"),
        ('{"path": ["a"]}', "has no list 'id'"),
        ('{"path": ["a", "b"], "id": ["x"]}', "has 2 paths and 1 id: fetch"),
        ('{"path": ["a", 2.5], "id": ["x", "y"]}', "entry 2 of 'path' is '2.5'"),
        ('{"path": ["a", "b"], "id": ["x", true]}', "entry 2 of 'id' is 'True'"),
        ('{"path": ["a", "b", "a"], "id": ["x", "y", "x"]}', "a appears more than once"),
    ],
)
def test_what_is_no_list(tmp_path, text, says):
    with pytest.raises(DataError, match=says):
        megaface.read_probes(written(tmp_path, text))
    with pytest.raises(FileNotFoundError, match="does not exist; fetch"):
        megaface.read_distractors(tmp_path / "none")


def test_noises_among_probes(tmp_path):
    text = "#Please follow the rules\nAdam_McKay_468.png\n\nAlec_Baldwin_2121.png\nRobert_Jr._1.png\n"
    noises = megaface.read_noises(written(tmp_path, text), "facescrub")
    assert noises.among(["x/Robert Jr._1.png", "Robert_Jr._1.jpg", "Robert_Jr._12.png", "Robert_Jr."]).tolist() == [
        True,
        True,
        False,
        False,
    ]
    probes = megaface.read_probes(written(tmp_path, json.dumps(PROBES), "probes"))
    clean, places = probes.without(noises)
    assert clean.files == ("Alec Baldwin/Alec Baldwin_7.png",) and places.tolist() == [2]
    assert clean.identity.tolist() == [1] and clean.names == probes.names


def test_noises_among_distractors(tmp_path):
    text = "# x\n375/37531198@N00/41_0.jpg\n7\t925/92596048@N00/39_2.jpg\n375/37531198@N00/41_0.jpg\n"
    noises = megaface.read_noises(written(tmp_path, text), "megaface")
    assert len(noises.names) == 2
    files = ["375/37531198@N00/41_0.jpg", "37531198@N00/41_0.jpg", "a/925/92596048@N00/39_2.jpg", "925/9@N00/39_2.jpg"]
    assert noises.among(files).tolist() == [True, False, True, False]
    assert noises.among([r"C:\375\37531198@N00\41_0.jpg"]).tolist() == [True]
    assert noises.among([]).dtype == np.bool_


@pytest.mark.parametrize(
    ("among", "text", "says"),
    [
        ("facescrub", "#\nAdam McKay/Adam_McKay_468.png\n", "line 2: .* is not an image, such as"),
        ("megaface", "a/b/c.jpg\na/b.jpg\n", "line 2: 'a/b.jpg' is not an image and the two"),
    ],
)
def test_a_line_that_is_no_image(tmp_path, among, text, says):
    with pytest.raises(DataError, match=says):
        megaface.read_noises(written(tmp_path, text), among)
