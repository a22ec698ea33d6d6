"""Lists of landmarks: the forms of their lines, which image a line means, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from field_layouts import say

from coalface.core.errors import DataError
from coalface.data.align import TEMPLATE, align
from coalface.data.readers.landmarks import landmark_lists, read_landmarks

FILES = ("African/m.01/m.01_0001.jpg", "African/m.01/m.01_0002.jpg", "Asian/m.0x/m.0x_0001.jpg")


def face(number: int) -> np.ndarray:
    """Five points, others for every number, that float32 and three decimals both hold."""
    return np.round((TEMPLATE * (1 + number / 8) + number) * 8) / 8


def line(path: str, number: int, between: str = "\t0\t", separator: str = "\t") -> str:
    return f"{path}{between}{separator.join(f'{x:.3f}' for x in face(number).reshape(-1))}"


def listed(tmp_path: Path, *lines: str, name: str = "points.txt") -> Path:
    say(tmp_path, name, *lines)
    return tmp_path / name


@pytest.mark.parametrize(
    "form", ["/data/{}/{}/{}_000{}.jpg", "{}/{}/{}_000{}.jpg", "{}\\{}\\{}_000{}.JPG", "/{}/{}/{}_000{}"]
)
@pytest.mark.parametrize(
    ("between", "separator"), [("\t0\t", "\t"), (" ", " "), ("\t1 12 14 80 91\t", " "), (" ", ",")]
)
def test_the_path_may_be_longer_and_fields_may_lie_between(
    tmp_path: Path, form: str, between: str, separator: str
) -> None:
    images = [("African", "m.01", "m.01", 1), ("African", "m.01", "m.01", 2), ("Asian", "m.0x", "m.0x", 1)]
    lines = [line(form.format(*images[k]), k, between, separator) for k in (2, 0, 1)]
    landmarks = read_landmarks([listed(tmp_path, lines[0], "", *lines[1:])], FILES)
    assert landmarks.points.shape == (3, 5, 2) and landmarks.points.dtype == np.float32
    assert np.array_equal(landmarks.points, [face(0), face(1), face(2)]) and landmarks.unmatched == 0
    assert landmarks.known.all()


@pytest.mark.parametrize("form", ["{}/{}_{}.jpg", "{1}_{2}.jpg", "/{}/{}_{}"])
def test_a_shorter_path_means_the_only_image_that_ends_so(tmp_path: Path, form: str) -> None:
    lines = [line(form.format("m.0x", "m.0x", "0001"), 5), line(form.format("m.01", "m.01", "0002"), 7)]
    landmarks = read_landmarks([listed(tmp_path, *lines)], FILES)
    assert landmarks.known.tolist() == [False, True, True]
    assert np.array_equal(landmarks.points[1:], [face(7), face(5)]) and np.isnan(landmarks.points[0]).all()


@pytest.mark.parametrize(
    ("head", "form", "between", "separator"),
    [
        (["file x1 y1 x2 y2 x3 y3 x4 y4 x5 y5"], "{}", " ", " "),
        (["3", "lefteye_x lefteye_y righteye_x"], "{}", "  ", "  "),  # CelebA
        (["NAME_ID,P1X,P1Y,P2X"], '"{}"', ",", ","),  # VGGFace2
        ([], "1\t/data/{}.jpg", "\t7\t12\t14\t80\t91\t", "\t"),  # insightface's .lst
        ([], "0\t{}.jpg", "\t7\t12\t14\t80\t91\t", "\t"),
    ],
)
def test_a_head_a_flag_and_quotes_are_passed_over(
    tmp_path: Path, head: list[str], form: str, between: str, separator: str
) -> None:
    lines = [line(form.format(file.removesuffix(".jpg")), k, between, separator) for k, file in enumerate(FILES)]
    landmarks = read_landmarks([listed(tmp_path, *head, *lines)], FILES)
    assert np.array_equal(landmarks.points, [face(k) for k in range(3)]) and landmarks.unmatched == 0
    with pytest.raises(DataError, match="no line has an image"):
        read_landmarks([listed(tmp_path, "file x1 y1", "3")], FILES)


def test_all_x_before_all_y_is_told_by_the_faces(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    faces = TEMPLATE + rng.normal(0, 2, (40, 5, 2)) + rng.uniform(0, 300, (40, 1, 2))
    faces[7] = faces[7, :, ::-1]  # one lies on its side: the others decide
    files = [f"p/{k}.jpg" for k in range(40)]
    for turned in (faces, faces.swapaxes(1, 2)):
        lines = [f"p/{k}.jpg " + " ".join(map(repr, turned[k].reshape(-1).tolist())) for k in range(40)]
        assert np.allclose(read_landmarks([listed(tmp_path, *lines)], files).points, faces, atol=1e-4)


def test_the_name_of_the_list_says_the_race_that_its_paths_leave_out(tmp_path: Path) -> None:
    files = ("African/m.01/1.jpg", "Asian/m.01/1.jpg")
    lists = [
        listed(tmp_path, line("m.01/1.jpg", k), name=f"{race}_lmk.txt") for k, race in enumerate(("Asian", "African"))
    ]
    assert np.array_equal(read_landmarks(lists, files).points, [face(1), face(0)])
    with pytest.raises(DataError, match=r"points\.txt, line 1: m\.01/1\.jpg may mean African/m\.01/1\.jpg and Asian/"):
        read_landmarks([listed(tmp_path, line("m.01/1.jpg", 0))], files)


def test_an_image_that_is_not_there_lends_its_points_to_no_other(tmp_path: Path) -> None:
    files = ("Asian/m.01/1.jpg", "Asian/m.02/1.jpg")
    lines = [line("/data/African/m.01/1.jpg", 0), line("/data/Asian/m.02/1.jpg", 1), line("African/m.02/1.jpg", 2)]
    landmarks = read_landmarks([listed(tmp_path, *lines)], files)
    assert landmarks.known.tolist() == [False, True] and landmarks.unmatched == 2
    assert np.array_equal(landmarks.points[1], face(1))


def dlib(number: int) -> np.ndarray:
    """68 points whose eyes, nose tip and corners of the mouth are those of the face."""
    points = np.arange(136.0).reshape(68, 2)
    left, right, points[30], points[48], points[54] = face(number)
    points[36:42], points[42:48] = left + np.arange(-5, 7, 2)[:, None], right + np.arange(-5, 7, 2)[:, None]
    return points


def numbers(points: np.ndarray, separator: str = " ") -> str:
    return separator.join(f"{value:.3f}" for value in np.reshape(points, -1))


def test_a_score_may_follow_and_68_points_give_five(tmp_path: Path) -> None:
    scored = [f"{file} {numbers(face(k))} 0.9{k}" for k, file in enumerate(FILES)]  # as IJB's name_5pts_score.txt
    assert np.array_equal(read_landmarks([listed(tmp_path, *scored)], FILES).points, [face(k) for k in range(3)])
    lines = [f"{file} 1 {numbers(dlib(k))}" for k, file in enumerate(FILES)]
    assert np.allclose(read_landmarks([listed(tmp_path, *lines)], FILES).points, [face(k) for k in range(3)])


@pytest.mark.parametrize("form", ["mtcnn", "retinaface", "insightface", "list", "dlib"])
def test_detectors_json(tmp_path: Path, form: str) -> None:
    def entry(k: int) -> object:
        points = face(k).tolist()
        left, right, nose, left_mouth, right_mouth = points
        match form:
            case "mtcnn":
                names = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")
                small = dict(zip(names, (face(k) / 9).tolist(), strict=True))
                return [{"keypoints": small}, {"box": [1, 2, 3, 4], "keypoints": dict(zip(names, points, strict=True))}]
            case "retinaface":  # left is the person's
                eyes = {"right_eye": left, "left_eye": right, "nose": nose}
                mouth = {"mouth_right": left_mouth, "mouth_left": right_mouth}
                return {"face_1": {"score": 0.9, "facial_area": [1, 2, 3, 4], "landmarks": eyes | mouth}}
            case "insightface":
                return {"bbox": [1, 2, 3, 4], "kps": points, "det_score": 0.9}
            case "dlib":
                return dlib(k).tolist()
        return {"file": FILES[k], "landmark": points}

    entries = [entry(k) for k in range(3)]
    content = entries if form == "list" else dict(zip(FILES, entries, strict=True))
    (tmp_path / "faces.json").write_text(json.dumps(content))
    landmarks = read_landmarks([tmp_path / "faces.json"], FILES)
    assert np.allclose(landmarks.points, [face(k) for k in range(3)])


@pytest.mark.parametrize("text", ["[", "[1]", "{}", '{"a.jpg": {"kps": [[1, 2]]}}', '{"a.jpg": [[NaN]]}', "[" * 99999])
def test_json_without_points_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "faces.json").write_text(text)
    with pytest.raises(DataError):
        read_landmarks([tmp_path / "faces.json"], FILES)


def test_files_of_points_lie_in_folders_called_as_those_of_the_images(tmp_path: Path) -> None:
    for k, file in enumerate(FILES):
        head = ["version: 1", "n_points: 68", "{"]
        say(tmp_path, f"points/{file[:-4]}.pts", *head, *(f"{x + 1} {y + 1}" for x, y in dlib(k)), "}")
    landmarks = read_landmarks(landmark_lists(tmp_path / "points"), [f"images/{file}" for file in FILES])
    assert np.allclose(landmarks.points, [face(k) for k in range(3)])
    say(tmp_path, "points/Asian/m.0x/m.0x_0001.pts", "1 2", "3 4")
    with pytest.raises(DataError, match="2 lines") as error:
        read_landmarks(landmark_lists(tmp_path / "points"), FILES)
    assert error.value.where.endswith("m.0x_0001.pts")
    for number in (".", "1e999"):
        say(tmp_path, "points/Asian/m.0x/m.0x_0001.pts", f"{number} 2", *4 * ["3 4"])
        with pytest.raises(DataError) as error:
            read_landmarks(landmark_lists(tmp_path / "points"), FILES)
        assert error.value.where.endswith("m.0x_0001.pts")


def test_cfps_fiducials_are_three_points_of_one_side(tmp_path: Path) -> None:
    left, right, nose, left_mouth, right_mouth = face(1)
    for name, eye, mouth in (("01", left, left_mouth), ("02", right, right_mouth)):
        points = np.zeros((30, 2))
        points[12:18], points[21], points[25] = eye, nose, mouth
        say(tmp_path, f"Fiducials/001/profile/{name}.txt", *(f"{x},{y}" for x, y in points))
    files = ["001/profile/01.jpg", "001/profile/02.jpg", "001/profile/03.jpg"]
    landmarks = read_landmarks(landmark_lists(tmp_path / "Fiducials"), files)
    assert landmarks.known.tolist() == [True, True, False]
    assert np.allclose(landmarks.points[0, [0, 2, 3]], [left, nose, left_mouth])
    assert np.allclose(landmarks.points[1, [1, 2, 4]], [right, nose, right_mouth])
    assert np.isnan(landmarks.points[0, [1, 4]]).all() and np.isnan(landmarks.points[1, [0, 3]]).all()


@pytest.mark.skipif("COALFACE_DATA" not in os.environ, reason="COALFACE_DATA is not set")
def test_cfps_own_fiducials_bring_its_originals_to_the_aligned_set() -> None:
    cfp = Path(os.environ["COALFACE_DATA"], "cfp")
    files = [path.relative_to(cfp / "originals/Images").as_posix() for path in cfp.glob("originals/Images/*/*/*.jpg")]
    points = read_landmarks(landmark_lists(cfp / "originals" / "Fiducials"), files).points
    apart = []
    for file, five in zip(files, points, strict=True):
        face = align(cv2.imread(str(cfp / "originals" / "Images" / file)), five)
        apart.append(np.abs(face - cv2.imread(str(cfp / "Data" / "Images" / file)).astype(float)).mean())
    assert len(apart) == 70 and np.median(apart) < 3 and max(apart) < 6  # by a detector's five points it is 25


GOOD = line(FILES[0], 0)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([GOOD, FILES[1] + " 1 2 3 4 5 6 7 8 9"], r"points\.txt, line 2: African.* is not an image, at most 5 fields"),
        ([FILES[1] + " 1 2 3 4 5 6 7 8 9 nan"], "line 1: .* five points"),
        ([FILES[1] + " 5" * 134], "line 1: .* five points"),
        ([GOOD, line(FILES[0], 1)], r"line 2: the points of African/m\.01/m\.01_0001\.jpg differ .* line 1; keep one"),
        ([line("x/1.jpg", 0), line("y/1.jpg", 0)], r"none of the 2 lines .* one of the 3 images, .*line 1: x/1\.jpg"),
        ([FILES[0] + " 9 9 1 9 5 5 9 1 1 1"], r"points\.txt: the points of 1 line of 1 make no upright face"),
    ],
)
def test_what_is_no_list_of_these_images_is_refused(tmp_path: Path, lines: list[str], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_landmarks([listed(tmp_path, *lines)], FILES)
