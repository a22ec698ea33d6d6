"""Experiments as a person makes them in Python: faces, a run, its tables, runs compared."""

from __future__ import annotations

import builtins
import traceback
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tinyruns
import torch
from numpy.typing import NDArray
from pages import Reader
from PIL import Image
from tinyruns import Linear
from torch import nn

import coalface as cf
from coalface.data.readers.bin import write_bin
from coalface.data.readers.records import write_rec
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.engine.transport import RunFailed
from coalface.experiments.report import page

TINY = cf.Synthetic(identities=8, images=4)
SMALL: dict[str, Any] = {"size": 32, "rounds": 1, "parties": 2, "threads": 1, "progress": False}


@pytest.fixture(scope="module")
def pixels() -> NDArray[np.uint8]:
    """(8, 32, 32, 3): four images of two people."""
    return SyntheticFaces(2, 4, 0, size=32, grey=False).generate().pixels


class Failing(Linear):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise ZeroDivisionError("a fault of its own")
        return super().forward(images)


def linear(size: int, channels: int, embedding_size: int = 8) -> nn.Module:
    return Linear(size, channels, embedding_size)


def test_images_in_every_form_are_the_same_faces(tmp_path: Path, pixels: NDArray[np.uint8]) -> None:
    people = [f"p{i // 4}" for i in range(8)]
    tensors = torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    paths, encoded = [], []
    for i, (person, image) in enumerate(zip(people, pixels, strict=True)):
        (tmp_path / "faces" / person).mkdir(parents=True, exist_ok=True)
        paths.append(tmp_path / "faces" / person / f"{i}.png")
        cv2.imwrite(str(paths[-1]), image[:, :, ::-1])
        encoded.append(paths[-1].read_bytes())
    write_rec([(i // 4, data) for i, data in enumerate(encoded)], tmp_path / "rec", size=(32, 32))
    write_bin(tmp_path / "pairs.bin", encoded, [True, True, False, False])
    dataset = torch.utils.data.TensorDataset(tensors, torch.arange(8) // 4)
    forms: list[cf.Faces] = [
        cf.load_faces(pixels, people, size=32),
        cf.load_faces(tensors, people, size=32),
        cf.load_faces([Image.fromarray(image) for image in pixels], people, size=32),
        cf.load_faces(paths, people, size=32),
        cf.load_faces(dataset, size=32),
        cf.load_faces(tmp_path / "faces", size=32),
        cf.load_faces(tmp_path / "rec", size=32),
    ]
    for faces in [*forms, cf.load_faces(forms[0].source.path)]:  # the last one is of a pack
        np.testing.assert_array_equal(faces.images.take(np.arange(8)), pixels)
        assert faces.images.labels.tolist() == [0] * 4 + [1] * 4
    assert len(cf.load_faces(tmp_path / "pairs.bin", size=32).images) == 8
    assert "8 face images of 2 people" in forms[0]._repr_html_()


def test_a_dataset_of_grey_images_of_pil_with_a_palette_and_other_sizes(pixels: NDArray[np.uint8]) -> None:
    palette = Image.fromarray(pixels[0]).convert("P")
    faces = cf.load_faces([(palette, 3), (Image.fromarray(pixels[1]).resize((64, 48)), 4)], size=32, grey=True)
    expected = cv2.cvtColor(np.asarray(palette.convert("RGB")), cv2.COLOR_RGB2GRAY)
    np.testing.assert_array_equal(faces.images.take(np.arange(1))[0, :, :, 0], expected)
    assert faces.images.shape == (32, 32, 1)


@pytest.mark.parametrize(
    ("faces", "labels", "where"),
    [
        ([np.zeros((3, 9, 9), np.uint8)], [1], "image 0"),
        ([np.full((9, 9, 3), -0.5)], [1], "image 0"),
        ([np.zeros((9, 9, 3), np.uint8)], None, "image 0"),
        ([np.zeros((9, 9, 3), np.uint8)], [1, 2], "labels"),
        (["nowhere.png"], [1], "image 0"),
        ([], [], "faces"),
        (None, None, "faces"),
    ],
)
def test_what_is_no_face_is_told_by_its_place(faces: Any, labels: Any, where: str) -> None:
    with pytest.raises(cf.DataError) as error:
        cf.load_faces(faces, labels, size=32)
    assert error.value.where == where


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"method": cf.FedProx(mu=0.3), "mu": 0.5}, ("methods", "fedprox", "mu"), 0.5),
        ({"method": cf.FedProx}, ("method",), "fedprox"),
        ({"alpha": 2.0, "partition": "dirichlet"}, ("data", "partition", "alpha"), 2.0),
        ({"partition": cf.Dirichlet, "parties": 2}, ("data", "partition", "kind"), "dirichlet"),
        ({"loss": cf.ArcFace(margin=0.2)}, ("loss", "margin"), 0.2),
        ({"loss": cf.ArcFace}, ("loss", "name"), "arcface"),
        ({"backbone": Linear}, ("model", "name"), f"{Linear.__module__}:Linear"),
        ({"backbone": linear, "engine": {"threads": 1}}, ("model", "name"), f"{__name__}:linear"),
    ],
)
def test_settings_are_names_classes_or_objects(
    tmp_path: Path, settings: dict[str, Any], key: tuple[str, ...], value: Any
) -> None:
    recipe: Any = cf.fit(TINY, out=tmp_path / "run", **{**SMALL, **settings}).recipe
    for part in key:
        recipe = recipe[part]
    assert recipe == value


@pytest.mark.parametrize(
    ("settings", "where", "nearest"),
    [
        ({"partys": 2}, "partys", "parties"),
        ({"learning_rate": 2}, "learning_rate", r"did you mean lr\?"),
        ({"backbone": "ir81"}, "model.name", "'ir18'"),
        ({"lr": "x"}, "local.lr", "a number"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_nearest(
    tmp_path: Path, settings: dict[str, Any], where: str, nearest: str
) -> None:
    with pytest.raises(cf.RecipeError, match=nearest) as error:
        cf.fit(TINY, out=tmp_path / "run", **{**SMALL, **settings})
    assert error.value.where == where and not (tmp_path / "run").exists()


@pytest.mark.parametrize("settings", [{"method": 3}, {"callbacks": [print]}])
def test_an_object_of_another_kind_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="give"):
        cf.fit(TINY, out=tmp_path / "run", **SMALL, **settings)


def test_a_folder_with_a_run_is_refused_and_resumed_to_the_same_run(tmp_path: Path) -> None:
    seen = tinyruns.Silent()
    run = cf.fit(TINY, out=tmp_path / "run", callbacks=seen, backbone=nn.Sequential(Linear(32, 3)), **SMALL)
    with pytest.raises(cf.RecipeError, match=r"coalface\.resume") as error:
        cf.fit(TINY, out=tmp_path / "run", **SMALL)
    again = cf.resume(tmp_path / "run", progress=False)
    assert error.value.where == "out" and len(seen.rounds) == 1
    assert type(again) is type(run) and again.metrics.equals(run.metrics) and again.path == run.path


@pytest.mark.slow
@pytest.mark.ci
def test_an_exception_in_a_worker_keeps_its_text_and_traceback(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="ZeroDivisionError: a fault of its own") as error:
        cf.fit(TINY, out=tmp_path / "run", backbone=Failing, workers=2, **SMALL)
    printed = "".join(traceback.format_exception(error.value))
    assert "in forward" in printed and printed.count("ZeroDivisionError: a fault of its own") > 1


def test_a_run_has_tables_with_pandas_and_lists_without(fedavg_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = cf.FinishedRun(fedavg_run)
    assert len(run.metrics) == 2 and run.metrics["loss"].notna().all()
    assert {"pairs", "figure", "value", "se", "unit"} == set(run.figures.columns)
    assert run.parties["name"].tolist() == ["silo-00", "silo-01"]
    assert "<td>fedavg</td>" in run._repr_html_()
    without(monkeypatch, "pandas")
    rows = cf.FinishedRun(fedavg_run).figures
    assert isinstance(rows, list) and rows[0]["figure"] == "accuracy" and rows[0]["pairs"] == "unseen"


def test_a_run_is_plotted(fedavg_run: Path) -> None:
    run = cf.FinishedRun(fedavg_run)
    chart = run.plot("loss")
    assert [row["y"] for row in chart.rows] == pytest.approx(run.metrics["loss"].tolist(), rel=1e-5)
    assert chart.title == "loss"
    for metric in ("los", "unseen/eer"):  # unknown; evaluated at the end alone
        with pytest.raises(cf.RecipeError):
            run.plot(metric)


def test_a_run_has_the_charts_of_its_page(fedavg_run: Path) -> None:
    run = cf.FinishedRun(fedavg_run)
    drawn = Reader(page.build(fedavg_run).read_text(encoding="utf-8")).charts
    assert [chart.rows for chart in run.charts] == [spec["data"]["values"] for spec in drawn]
    assert any("ROC" in chart.title for chart in run.charts)


def test_runs_are_compared_as_a_table_text_and_html(fedavg_run: Path, solo_run: Path) -> None:
    comparison = cf.compare([fedavg_run, cf.FinishedRun(solo_run)])
    frame = comparison.to_frame()
    accuracy = frame[frame.figure == "accuracy"].set_index("run")
    first, second = accuracy.loc["fedavg"], accuracy.loc["solo"]
    assert np.isnan(first.difference) and second.difference == pytest.approx(second.value - first.value)
    assert second.low <= second.difference <= second.high
    assert "unseen accuracy" in repr(comparison) and "<th>unseen accuracy</th>" in comparison._repr_html_()
    assert repr(cf.compare(fedavg_run, solo_run)) == repr(comparison)
    with pytest.raises(TypeError):
        cf.compare(fedavg_run)


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """From here on the package cannot be imported."""
    load = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return load(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
