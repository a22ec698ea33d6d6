"""IJB's lists as they are passed on, written by hand; and what is wrong with a list, told with file and line."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from coalface.core.errors import DataError
from coalface.data.readers import ijb, text_lines

META = {
    "ijbc_face_tid_mid.txt": "1.jpg 1 69544\n2.jpg 1 3720\n3.jpg 1 3720\n4.jpg 2 9\n5.jpg 30 9\n6.jpg 41 1\n",
    "ijbc_name_5pts_score.txt": "".join(
        f"{n}.jpg 46.0 62.5 87.75 60 68.5 77 52 99 86 98.5 0.{n}\n" for n in range(1, 7)
    ),
    "ijbc_template_pair_label.txt": "1 30 1\n1 41 0\n2 41 1\n2 30 0\n",
    "ijbc_1N_gallery_G1.csv": "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID\n1,7,img/1.png,5\n1,7,img/2.png,6\n",
    "ijbc_1N_gallery_G2.csv": "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID\n2,8,img/4.png,5\n",
    "ijbc_1N_probe_mixed.csv": "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID\n41,8,a.png,1\n30,7,frames/b.png,2\n",
}


@pytest.fixture
def meta(tmp_path):
    for name, text in META.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def written(tmp_path, text, name="pairs.txt"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_lists_of_ijbc(meta):
    lists = ijb.read_ijb(meta)
    assert lists.images.files == tuple(f"{n}.jpg" for n in range(1, 7))
    assert lists.images.template.tolist() == [1, 1, 1, 2, 30, 41]
    assert lists.images.media.tolist() == [69544, 3720, 3720, 9, 9, 1]
    assert lists.faces.points.shape == (6, 5, 2)
    assert lists.faces.points[0].tolist() == [[46, 62.5], [87.75, 60], [68.5, 77], [52, 99], [86, 98.5]]
    np.testing.assert_allclose(lists.faces.score, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], rtol=1e-6)
    assert (lists.pairs.left.tolist(), lists.pairs.right.tolist()) == ([1, 1, 2, 2], [30, 41, 41, 30])
    assert lists.pairs.same.tolist() == [True, False, True, False] and len(lists.pairs) == 4
    assert {name: subjects.subject.tolist() for name, subjects in lists.galleries.items()} == {"G1": [7], "G2": [8]}
    assert (lists.probes.template.tolist(), lists.probes.subject.tolist()) == ([30, 41], [7, 8])  # ascending
    assert lists.probes.of(np.array([41, 30, 41])).tolist() == [8, 7, 8]


@pytest.mark.skipif("COALFACE_DATA" not in os.environ, reason="COALFACE_DATA is not set")
@pytest.mark.parametrize(("name", "templates"), [("G1", 1772), ("G2", 1759)])
def test_ijbcs_own_galleries_are_read(name, templates):
    path = Path(os.environ["COALFACE_DATA"], "lists", f"ijbc_1N_gallery_{name}.csv")
    gallery = ijb.read_subjects(path)
    assert len(gallery.template) == len(set(gallery.subject.tolist())) == templates
    with open(path, newline="") as file:
        subject_of = {int(row["TEMPLATE_ID"]): int(row["SUBJECT_ID"]) for row in csv.DictReader(file)}
    assert dict(zip(gallery.template.tolist(), gallery.subject.tolist(), strict=True)) == subject_of


def test_the_lists_of_ijbb_and_a_byte_order_mark(meta):
    (meta / "b").mkdir()
    for name, text in META.items():
        written(meta / "b", text, name.replace("ijbc", "ijbb").replace("_G", "_S"))
    assert sorted(ijb.read_ijb(meta / "b").galleries) == ["S1", "S2"]
    plain = ijb.read_ijb(meta)
    for path in meta.glob("ijbc*"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    marked = ijb.read_ijb(meta)
    assert marked.images.files == plain.images.files
    assert marked.pairs.left.tolist() == plain.pairs.left.tolist()
    assert marked.galleries["G1"].subject.tolist() == plain.galleries["G1"].subject.tolist()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "ijbc_name_5pts_score.txt",
            META["ijbc_name_5pts_score.txt"].replace("2.jpg", "9.jpg"),
            "image 2 is 9.jpg and 2.jpg in",
        ),
        ("ijbc_name_5pts_score.txt", META["ijbc_name_5pts_score.txt"].split("6.jpg")[0], "5 images and 6 in"),
        (
            "ijbc_template_pair_label.txt",
            "1 30 1\n1 77 0\n77 78 0\n",
            r"pair_label.txt: template 77 has no image \(so for",
        ),
        ("ijbc_template_pair_label.txt", "77 30 1\n", "pair_label.txt: template 77 has no image"),
        ("ijbc_1N_gallery_G2.csv", "TEMPLATE_ID,SUBJECT_ID\n5,8\n", "gallery_G2.csv: template 5 has no image"),
        ("ijbc_1N_probe_mixed.csv", "TEMPLATE_ID,SUBJECT_ID\n42,8\n", "probe_mixed.csv: template 42 has no image"),
    ],
)
def test_lists_that_do_not_belong_together(meta, name, text, says):
    (meta / name).write_text(text)
    with pytest.raises(DataError, match=says):
        ijb.read_ijb(meta)


@pytest.fixture
def unknown(meta):
    """The lists with templates 50 to 53 besides, whose subjects no gallery and no probe tells."""
    for name, line in (("face_tid_mid", "{0}.jpg {0} 1\n"), ("name_5pts_score", "{0}.jpg" + " 1" * 10 + " 0.5\n")):
        path = meta / f"ijbc_{name}.txt"
        path.write_text(path.read_text() + "".join(line.format(template) for template in range(50, 54)))
    return meta


@pytest.mark.parametrize("chunk", [8, 2**24])
@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ("1 41 1\n", "line 3: the label is 1, but templates 1 and 41 are of subjects 7 and 8"),
        ("30 1 0\n", "line 3: the label is 0, but templates 30 and 1 are of subjects 7 and 7"),
        ("1 1 0\n", "line 3: the label is 0, but template 1 is paired with itself; fetch the lists again"),
        ("50 50 0\n", "line 3: the label is 0, but template 50 is paired with itself; fetch"),
        (
            "50 51 1\n\n1 2 0\n50 51 0\n",
            "line 6: templates 50 and 51 have the label 0, and 1 in line 3; fetch the list",
        ),
        ("50 51 0\n1 2 0\n51 50 1\n50 51 0\n", "line 5: templates 51 and 50 have the label 1, and 0 in line 3; fetch"),
        ("1 52 0\n1 52 1\n", "line 4: templates 1 and 52 have the label 1, and 0 in line 3"),
    ],
)
def test_pairs_that_contradict_subjects_or_each_other(unknown, monkeypatch, chunk, pairs, says):
    monkeypatch.setattr(text_lines, "CHUNK", chunk)
    (unknown / "ijbc_template_pair_label.txt").write_text("1 2 0\n2 41 1\n" + pairs)
    with pytest.raises(DataError, match=f"pair_label.txt, {says}"):
        ijb.read_ijb(unknown)


def test_pairs_are_refused_exactly_where_a_naive_look_finds_a_contradiction(unknown):
    subject, rng = {1: 7, 30: 7, 2: 8, 41: 8}, np.random.default_rng(0)
    refused = 0
    for _ in range(100):
        sides = rng.choice([1, 2, 30, 41, 50, 51, 52, 53], size=(6, 2)).tolist()
        guess = rng.integers(2, size=6).tolist()
        lines = [  # mostly what is known
            (a, b, label if a not in subject or b not in subject or not n else int(subject[a] == subject[b]))
            for n, ((a, b), label) in enumerate(zip(sides, guess, strict=True))
        ]
        wrong = any(
            (a == b and not label)
            or (a in subject and b in subject and label != (subject[a] == subject[b]))
            or any({a, b} == {c, d} and label != opposite for c, d, opposite in lines)
            for a, b, label in lines
        )
        (unknown / "ijbc_template_pair_label.txt").write_text("".join(f"{a} {b} {c}\n" for a, b, c in lines))
        if wrong:
            refused += 1
            with pytest.raises(DataError, match="pair_label.txt, line .*label"):
                ijb.read_ijb(unknown)
        else:
            assert len(ijb.read_ijb(unknown).pairs) == 6
    assert 20 < refused < 80


def test_what_is_only_said_twice_is_taken(unknown):
    pairs = "1 30 1\n1 30 1\n30 1 1\n1 41 0\n1 41 0\n1 1 1\n50 51 0\n51 50 0\n50 52 1\n50 52 1\n53 53 1\n"
    (unknown / "ijbc_template_pair_label.txt").write_text(pairs)
    (unknown / "ijbc_1N_gallery_G2.csv").write_text("TEMPLATE_ID,SUBJECT_ID\n2,8\n30,7\n")  # a probe as well
    for name, lines in (
        ("face_tid_mid", "1.jpg 1 69544\n1.jpg 1 5\n"),  # another face in it, say
        ("name_5pts_score", "1.jpg" + " 3" * 10 + " 0.5\n1.jpg" + " 4" * 10 + " 0.5\n"),
    ):
        path = unknown / f"ijbc_{name}.txt"
        path.write_text(path.read_text() + lines)
    lists = ijb.read_ijb(unknown)
    assert len(lists.pairs) == 11 and lists.pairs.same.sum() == 7
    assert lists.images.files.count("1.jpg") == 3 and lists.images.template.tolist().count(1) == 5
    assert lists.galleries["G2"].template.tolist() == [2, 30]


@pytest.mark.parametrize(("name", "lines"), [("1N_probe_mixed", "41,8\n1,9\n"), ("1N_gallery_G2", "\n1,8\n")])
def test_a_template_of_two_subjects(meta, name, lines):
    (meta / f"ijbc_{name}.csv").write_text("TEMPLATE_ID,SUBJECT_ID\n" + lines)
    with pytest.raises(
        ValueError, match=f"ijbc_{name}.csv: template 1 is of subject [89], and of subject 7 in .*_G1.csv"
    ):
        ijb.read_ijb(meta)


@pytest.mark.parametrize(
    ("reader", "text", "says"),
    [
        (ijb.read_media, "1.jpg 1 2\n\n2.jpg 1\n", "line 3: '2.jpg 1' is not an image, its template"),
        (ijb.read_media, "1.jpg 1 2\n2.jpg 1 x\n", "line 2: 'x' should be a number"),
        (ijb.read_media, "1.jpg 1 1234567890\n", "'1234567890' should be"),
        (ijb.read_media, b"\xff\xfe\x00", "not a text file"),
        (ijb.read_faces, "1.jpg 1 2 3 4 5 6 7 8 9 10 0.9\n2.jpg 1 2 3 4 5 6 7 8 9 ten 0.9\n", "line 2: .* ten numbers"),
        (ijb.read_faces, "1.jpg 1 2 3 4 5 6 7 8 9 10 -1e-30\n", "line 1: the detector's score"),
        (ijb.read_faces, "1.jpg 1 2 3 4 5 6 7 8 9 10 inf\n", "line 1: the detector's score"),
        (ijb.read_subjects, "TEMPLATE_ID,SUBJECT\n1,2\n", "line 1: the header lacks the column SUBJECT_ID"),
        (ijb.read_subjects, "TEMPLATE_ID,SUBJECT_ID,FILENAME\n1,2,a\n1\n", "line 3: '1' is not a line of 3 columns"),
        (
            ijb.read_subjects,
            "TEMPLATE_ID,SUBJECT_ID\n1,2\n3,2\n1,4\n",
            "line 4: template 1 is of subject 4, and further up",
        ),
        (ijb.read_subjects, "TEMPLATE_ID,SUBJECT_ID\n", "empty after its header"),
        (ijb.read_template_pairs, "", "it is empty"),
    ],
)
def test_a_line_of_another_form(tmp_path, reader, text, says):
    with pytest.raises(DataError, match=says):
        reader(written(tmp_path, text))


@pytest.mark.parametrize(
    "line",
    ["1 2", "1 2 1 1", "1 2 2", "1 2 -1", "1 2.5 1", "1 2x 1", "1,2,1", "1 2 1\r3 4 0", "1\xa02 1", "1 2 10"]
    + ["9" * 20 + " 2 1", "1 1000000000 1", "1 2 1 3\n4 0", "1 2 1 " * 30],
)
@pytest.mark.parametrize("chunk", [16, 2**24])
@pytest.mark.parametrize("end", ["\n", ""])
def test_a_bad_pair_is_found_wherever_it_stands(tmp_path, monkeypatch, line, chunk, end):
    monkeypatch.setattr(text_lines, "CHUNK", chunk)
    monkeypatch.setattr(text_lines, "LONGEST", 64)
    good = "10 20 1\n\n30 400 0\r\n"
    for before, number in (("", 1), (good, 4), (good * 5, 16)):
        text = before + line + ("\n" + good if end else "")
        with pytest.raises(DataError, match=f"line {number}: .* is not two templates, and 1 if"):
            ijb.read_template_pairs(written(tmp_path, text))


@pytest.mark.parametrize("chunk", [9, 11, 64, 1000, 2**24])
def test_pairs_are_read_alike_in_any_chunks(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(text_lines, "CHUNK", chunk)
    rng = np.random.default_rng(chunk)
    rows = [
        (int(a), int(b), int(c))
        for a, b, c in zip(*rng.integers(2**14, size=(2, 300)), rng.integers(2, size=300), strict=True)
    ]
    rows += [(0, 999_999_999, 1), (999_999_999, 0, 0)]
    breaks = ["\n", "\r\n", "\n\n", " \n", "\n \t\n"]
    lines = [f"{a} {b}\t{c}" + breaks[rng.integers(5)] for a, b, c in rows]
    pairs = ijb.read_template_pairs(written(tmp_path, "".join(lines)))
    naive = [line.split() for line in "".join(lines).splitlines() if line.strip()]
    assert pairs.left.tolist() == [int(line[0]) for line in naive]
    assert pairs.right.tolist() == [int(line[1]) for line in naive]
    assert pairs.same.tolist() == [line[2] == "1" for line in naive]


def test_metadata_and_comparisons_of_ijba(tmp_path):
    meta = written(
        tmp_path,
        '"TEMPLATE_ID","SUBJECT_ID","FILE","MEDIA_ID","SIGHTING_ID"\n'
        '3,54,"img/1.jpg",10,1\n3,54,"frame/a,b.png",11,2\n4,60,"img/2.jpg",10,3\n9,54,"img/3.jpg",12,4\n',
        "meta.csv",
    )
    media, subjects = ijb.read_metadata(meta)
    assert media.files == ("img/1.jpg", "frame/a,b.png", "img/2.jpg", "img/3.jpg")
    assert media.template.tolist() == [3, 3, 4, 9] and media.media.tolist() == [10, 11, 10, 12]
    assert subjects.template.tolist() == [3, 4, 9] and subjects.subject.tolist() == [54, 60, 54]
    pairs = ijb.read_matches(written(tmp_path, "3,9\n3, 4\n\n4 ,9\n"), subjects)
    assert list(zip(pairs.left.tolist(), pairs.right.tolist(), pairs.same.tolist(), strict=True)) == [
        (3, 9, True),
        (3, 4, False),
        (4, 9, False),
    ]
    for text, says in [
        ("3,9\n3 4\n", "line 2: '3 4' is not two templates with a comma"),
        ("3,9\n3 4,\n", "line 2: '3 4,' is not"),
        ("3,9\n,3 4\n", "line 2: ',3 4' is not"),
        ("3,9,4\n", "line 1: '3,9,4' is not"),
        ("3,9\n3,5\n", "template 5 has no subject"),
    ]:
        with pytest.raises(DataError, match=says):
            ijb.read_matches(written(tmp_path, text), subjects)


@pytest.mark.parametrize("scale", [1, 10**8])  # by a table, and by a search
def test_places_of_templates(scale):
    known = np.array([0, 3, 5, 8]) * scale
    assert ijb.rows_of(np.array([8, 0, 3, 8]) * scale, known).tolist() == [3, 0, 1, 3]
    for lost in (-1, 1, 9, 10**6):
        with pytest.raises(ValueError, match=f"template {lost * scale} has no feature .so for 1 of 2 templates"):
            ijb.rows_of(np.array([3, lost, lost]) * scale, known)
    with pytest.raises(ValueError, match="template 1 has no"):
        ijb.rows_of(np.array([1]), np.array([], np.int64))
