"""Distillation: its loss and rate against naive forms, the update against torch's AdamW, and teachers of every kind."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx_graphs import linear_graph
from safetensors.torch import save_file
from tinyruns import TINY, Silent, picture_folders, run, tiny
from unit_rows import unit

from coalface.core.errors import RecipeError
from coalface.core.method import generator
from coalface.experiments import run as experiment
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.api.faces import load_faces
from coalface.experiments.conformance.tiny_federation import Tiny
from coalface.experiments.conformance.tiny_federation import run as run_tiny
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.sections import Synthetic
from coalface.experiments.setup import teachers
from coalface.experiments.setup.parts import Parts
from coalface.methods.distill import Distill, distillation_loss, one_cycle
from coalface.models import build
from coalface.models.embedding import unit_features

TINY_FACES = Synthetic(**TINY["data"]["faces"])


def test_the_loss_is_that_of_a_loop_over_images() -> None:
    rng = np.random.default_rng(0)
    given, teacher = rng.normal(size=(5, 3)), rng.normal(size=(5, 3))
    teacher /= np.linalg.norm(teacher, axis=1, keepdims=True)
    away = 0.0
    for s, t in zip(given, teacher, strict=True):
        away += (1 - sum(a * b for a, b in zip(s, t, strict=True)) / math.sqrt(sum(x * x for x in s))) / 5
    assert float(distillation_loss(torch.from_numpy(given), torch.from_numpy(teacher))) == pytest.approx(
        away, abs=1e-12
    )
    opposite = torch.tensor([[-2.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    assert float(distillation_loss(*opposite)) == 2.0  # 1 − (−1)


@pytest.mark.parametrize("steps", [10, 33])
def test_the_rate_is_that_of_torch(steps: int) -> None:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1.0, total_steps=steps, cycle_momentum=False)
    for step in range(steps):
        assert one_cycle(step, steps) == pytest.approx(cycle.get_last_lr()[0], abs=1e-9)
        optimiser.step()
        if step < steps - 1:
            cycle.step()


def test_rounds_are_one_training_by_adamw(tmp_path: Path) -> None:
    method = Distill(rounds=3, batch_size=8, lr=0.02)
    build = Tiny(pooled=True, taught=True, flip=False)
    ran = run_tiny(method, tmp_path, build)
    world = build()
    module, images, teacher = world.backbone.module, world.data["all"], torch.from_numpy(world.taught["all"])
    optimiser = torch.optim.AdamW(module.parameters(), weight_decay=0.01)
    batches = [list(range(at, min(at + 8, 36))) for at in range(0, 36, 8)]
    step = 0
    for round_ in (1, 2, 3):
        order = generator(0, "party", "all", "epoch", round_).permutation(36)
        for batch in batches:
            pixels = (torch.from_numpy(images.take(order[batch])).permute(0, 3, 1, 2).float() - 127.5) / 127.5
            optimiser.param_groups[0]["lr"] = 0.02 * one_cycle(step, 15)
            s, t = F.normalize(module(pixels)), teacher[order[batch]]
            loss = 1 - (s * t).sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
    assert ran.models.shared is not None
    torch.testing.assert_close(ran.models.shared, world.backbone.shared(), rtol=0, atol=1e-6)


def taught(teacher: Path, **changes: object) -> Parts:
    """The parts of a distillation from a teacher."""
    return Parts(tiny(method="distill", methods={"distill": {"teacher": str(teacher), **changes}}))


def test_a_teacher_is_a_run_a_model_folder_or_weights(tmp_path: Path, fedavg_run: Path) -> None:
    model = FaceModel.from_run(fedavg_run)
    model.save_pretrained(tmp_path / "copy")
    save_file(model._tensors(), tmp_path / "weights.safetensors")
    for teacher in (fedavg_run, tmp_path / "copy"):
        parts = taught(teacher)
        (embeddings,) = parts.data.taught.values()
        larger = load_faces(TINY_FACES, size=model.size, grey=model.grey).images
        images = larger.only([larger.names.index(name) for name in parts.split.train.names])
        np.testing.assert_allclose(embeddings, model.embed(images), atol=1e-5)
    if not model.grey:  # weights alone are of a network for RGB
        parts = taught(tmp_path / "weights.safetensors", backbone="cnn-small", size=model.size)
        np.testing.assert_allclose(parts.data.taught["pooled"], embeddings, atol=1e-5)


@pytest.mark.slow
@pytest.mark.ci
def test_a_file_of_weights_that_lacks_a_setting_is_told_which(tmp_path: Path) -> None:
    network = build("cnn-small", size=48, channels=1, generator=generator(0, "weights"))
    save_file(network.state_dict(), file := tmp_path / "grey.safetensors")
    for settings, named in (
        ({}, "set methods.distill.backbone"),
        ({"backbone": "cnn-small"}, "set methods.distill.size=48 and methods.distill.input.channels=1"),
        ({"backbone": "cnn-small", "size": 48, "input": "imagenet"}, "methods.distill.input.channels"),
        ({"backbone": "cnn-small", "input": {"channels": 1}}, "set methods.distill.size=48"),
        ({"backbone": "vit-tiny"}, "Check methods.distill.backbone, methods.distill.size and methods.distill.input"),
    ):
        with pytest.raises(RecipeError) as error:
            taught(file, **settings).data  # noqa: B018
        assert error.value.where == "methods.distill.teacher" and named in error.value.text
    parts = taught(file, backbone="cnn-small", size=48, input={"channels": 1})
    larger = load_faces(TINY_FACES, size=48, grey=True).images
    images = larger.only([larger.names.index(name) for name in parts.split.train.names])
    expected = unit_features(network.eval(), images.take(np.arange(len(images))))
    np.testing.assert_allclose(parts.data.taught["pooled"], expected, atol=1e-5)


def test_settings_of_a_pretraining_are_named_where_they_stand(tmp_path: Path) -> None:
    network = build("cnn-small", size=32, channels=3, generator=generator(0, "weights"))
    save_file(network.state_dict(), file := tmp_path / "a.safetensors")
    pretrain = {"method": "distill", "teacher": str(file)}
    with pytest.raises(RecipeError) as error:
        experiment.run(tiny(pretrain=pretrain), tmp_path / "run", Silent())
    assert error.value.where == "pretrain.methods.distill.teacher"
    assert error.value.text.endswith(" set pretrain.methods.distill.backbone")
    with pytest.raises(RecipeError) as error:
        tiny(pretrain=pretrain, methods={"distill": {"backbone": "cnn-small"}})
    assert error.value.where == "methods.distill"


def test_a_teacher_may_add_what_it_gives_for_the_mirror_image(fedavg_run: Path) -> None:
    model = FaceModel.from_run(fedavg_run)
    parts = taught(fedavg_run, mirror=True)
    images = load_faces(TINY_FACES, size=model.size, grey=model.grey).images
    images = images.only([images.names.index(name) for name in parts.split.train.names])
    np.testing.assert_allclose(parts.data.taught["pooled"], model.embed(images, flip=True), atol=1e-5)
    assert np.abs(parts.data.taught["pooled"] - taught(fedavg_run).data.taught["pooled"]).max() > 1e-3


def test_an_onnx_file_teaches_at_its_size_and_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    matrix = np.random.default_rng(0).normal(size=(3 * 48 * 48, 128)).astype(np.float32)
    (tmp_path / "a.onnx").write_bytes(linear_graph(matrix, 48))
    settings = {"input": {"mean": 127.0, "std": (1.0, 2.0, 4.0), "order": "bgr"}}
    parts = taught(tmp_path / "a.onnx", **settings)
    larger = load_faces(TINY_FACES, size=48).images
    images = larger.only([larger.names.index(name) for name in parts.split.train.names])
    pixels = (images.take(np.arange(len(images)))[..., ::-1].astype(np.float64) - 127) / (1, 2, 4)
    expected = unit(pixels.transpose(0, 3, 1, 2).reshape(len(images), -1) @ matrix)
    embeddings = parts.data.taught["pooled"]
    np.testing.assert_allclose(embeddings, expected, atol=1e-5)
    monkeypatch.setattr(teachers, "raw_features", None)  # it would not answer
    np.testing.assert_array_equal(taught(tmp_path / "a.onnx", **settings).data.taught["pooled"], embeddings)
    shutil.rmtree(tmp_path / "cache" / "teachers")
    with pytest.raises(TypeError):
        taught(tmp_path / "a.onnx", **settings).data  # noqa: B018


def test_the_teacher_takes_the_engines_threads_and_says_how_far_it_is(
    tmp_path: Path, fedavg_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(teachers, "BATCH", 4)
    monkeypatch.setattr(teachers, "BLOCKS", 3)
    threads, notes = set(), []
    embed = teachers.raw_features

    def watched(*arguments: object, **keywords: object) -> object:
        threads.add((torch.get_num_threads(), cv2.getNumThreads()))
        return embed(*arguments, **keywords)

    class Listener(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    monkeypatch.setattr(teachers, "raw_features", watched)
    recipe = tiny(method="distill", methods={"distill": {"teacher": str(fedavg_run)}}, engine={"threads": 3}, rounds=1)
    before = torch.get_num_threads()
    for out, told in (("a", ["12 of 32", "24 of 32", "32 of 32"]), ("b", [])):  # the second finds them in the cache
        notes.clear()
        experiment.run(recipe, tmp_path / out, Listener())
        assert [note.rpartition(": ")[2] for note in notes if "teacher embeds" in note] == told
    torch.set_num_threads(before)
    assert threads == {(3, 3)}


def test_a_run_starts_from_a_student(tmp_path: Path, fedavg_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    pretrain = {"method": "distill", "teacher": str(fedavg_run), "rounds": 2}
    out = run(tmp_path / "a", pretrain=pretrain)
    moved = shutil.copytree(fedavg_run, tmp_path / "moved")
    recipes = [tiny(pretrain={**pretrain, "teacher": str(path)}) for path in (fedavg_run, moved)]
    assert recipes[0].digest() == recipes[1].digest() == loader.load(out / "config.yaml").digest()
    (start,) = (tmp_path / "cache" / "pretrained").iterdir()
    assert run(tmp_path / "b", pretrain={**pretrain, "teacher": str(moved)}).exists()
    assert [start] == list((tmp_path / "cache" / "pretrained").iterdir())  # it was not trained again
    losses = [json.loads(line)["loss"] for line in (start / "metrics.jsonl").read_text().splitlines()]
    assert losses[1] < losses[0]


def test_a_teacher_that_cannot_teach_is_refused(tmp_path: Path, fedavg_run: Path) -> None:
    for settings, where in (({}, "methods.distill.teacher"), ({"teacher": "none.onnx"}, "methods.distill.teacher")):
        with pytest.raises(RecipeError) as error:
            Parts(tiny(method="distill", methods={"distill": settings})).data  # noqa: B018
        assert error.value.where == where
    student = tiny(method="distill", teacher=str(fedavg_run), model={"embedding_size": 7})
    with pytest.raises(RecipeError) as error:
        Parts(student).data  # noqa: B018
    assert error.value.where == "model.embedding_size" and "set model.embedding_size=128" in error.value.text


class Watched(Silent):
    """Knows whether images were packed or embedded."""

    def __init__(self) -> None:
        super().__init__()
        self.worked = False

    def packing(self, done: int, total: int) -> None:
        self.worked = True

    teaching = packing


@pytest.mark.parametrize("as_pretraining", [False, True])
def test_what_is_wrong_is_said_before_images_are_packed_and_embedded(
    as_pretraining: bool, tmp_path: Path, fedavg_run: Path
) -> None:
    faces = {"kind": "folder", "path": str(picture_folders(tmp_path / "faces", [f"P{i}" for i in range(8)]))}
    save_file({"a": torch.zeros(1)}, tmp_path / "weights.safetensors")
    for teacher, pairs, where in (
        (str(fedavg_run), 10_000, "evaluation.pairs.unseen"),
        (str(tmp_path / "weights.safetensors"), 10, "methods.distill.teacher"),
    ):
        distill = {"method": "distill", "teacher": teacher}
        data = {"hold_out": 2, "faces": faces}
        evaluation = {"pairs": {"unseen": {"pairs": pairs}}}
        recipe = tiny(data=data, evaluation=evaluation, **({"pretrain": distill} if as_pretraining else distill))
        watched = Watched()
        with pytest.raises(RecipeError) as error:
            experiment.run(recipe, tmp_path / "run", watched)
        assert error.value.where.endswith(where) and not watched.worked
        Parts(recipe, watched.packing).split  # noqa: B018
        assert watched.worked or where != "evaluation.pairs.unseen"  # packed at its first use
