"""What the server can read from an update, though no class embedding is sent; and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tinyruns import Silent, tiny
from torch import Tensor

from coalface.core import codec, compression
from coalface.core.compression import Updates
from coalface.core.method import generator
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.experiments import run as experiment
from coalface.experiments.plan import messages, preflight
from coalface.methods.fedavg import Global, Update
from coalface.models import build
from coalface.training.losses.hinge import PositiveHinge
from coalface.training.losses.margins import CosFace
from coalface.training.sgd import SGD


def strangers(count: int) -> Tensor:
    """Images of as many people."""
    return pixels(SyntheticFaces(count, 1, seed=0, size=32, grey=True))


def pixels(made: SyntheticFaces) -> Tensor:
    found = np.stack(list(made.images(size=32, grey=True)))
    return (torch.from_numpy(found).permute(0, 3, 1, 2).float() - 127.5) / 127.5


def nearest(batch: int, updates: Updates | None = None) -> float:
    """The mean cosine of 16 images' embeddings to the nearest that the update of their batch's one SGD step tells."""
    images, found = strangers(16), []
    for first in range(0, 16, batch):
        net = build("cnn-small", size=32, channels=1, generator=generator(0, "net"))
        weights = dict(net.named_parameters())
        down = Global(backbone={name: p.detach().clone() for name, p in weights.items()})
        head = torch.from_numpy(generator(first, "head").standard_normal((40, 128))).float()
        wanted = net(images[first : first + batch])
        loss = CosFace(scale=16.0, margin=0.1)(wanted, head, torch.arange(batch))
        slopes = torch.autograd.grad(loss, list(weights.values()))
        SGD(lr=0.05, weight_decay=5e-4).step(list(weights.values()), slopes, [])
        up = Update(backbone={name: p.detach() for name, p in weights.items()}, images=batch, loss=0.0)
        forms = codec.forms(Update, [down])
        data = codec.encode(up, change=compression.narrowing(forms, updates)).data
        came = codec.decode(data, Update, change=compression.widening(forms, updates))
        weight, bias = (came.backbone[f"fc.{n}"] - down.backbone[f"fc.{n}"] for n in ("weight", "bias"))
        given = (weight / bias[:, None])[bias != 0]  # h = Σ g h / Σ g, output by output
        told = given @ down.backbone["fc.weight"].T + down.backbone["fc.bias"]
        found.append((F.normalize(told) @ F.normalize(wanted.detach()).T).max(0).values)
    return float(torch.cat(found).mean())


@pytest.mark.parametrize("updates", [None, "int8"])
def test_an_update_of_one_step_tells_the_embeddings_of_its_images(updates: Updates | None) -> None:
    """No class embedding is sent. Strangers have a mean cosine of 0.70 to each other."""
    assert nearest(1, updates) == pytest.approx(1.0, abs=5e-5)
    assert 0.9 < nearest(messages.FEW, updates) < 0.98


def test_an_update_of_a_client_of_one_identity_tells_its_mean_feature() -> None:
    """After five steps with momentum, on images of one person each; the templates of others are at 0.91."""
    made = SyntheticFaces(4, 12, seed=0, size=32, grey=True)
    people = pixels(made).split(12)
    net = build("cnn-small", size=32, channels=1, generator=generator(0, "net"))
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    with torch.no_grad():
        templates = F.normalize(torch.stack([F.normalize(net(images)).mean(0) for images in people]))
    for number, images in enumerate(people):
        net.load_state_dict(start)
        weights, velocity = list(net.parameters()), [torch.zeros_like(p) for p in net.parameters()]
        own = F.normalize(torch.from_numpy(generator(number, "w").standard_normal((1, 128))).float())
        for _ in range(5):
            loss = PositiveHinge(0.9)(net(images), own, torch.zeros(len(images), dtype=torch.int64))
            slopes = torch.autograd.grad(loss, weights)
            SGD(lr=0.1, momentum=0.9, weight_decay=5e-4).step(weights, slopes, velocity)
        weight, bias = net.fc.weight.detach() - start["fc.weight"], net.fc.bias.detach() - start["fc.bias"]
        told = start["fc.weight"] @ (bias @ weight / bias.square().sum()) + start["fc.bias"]
        cosines = F.cosine_similarity(told[None], templates)
        assert cosines.argmax() == number and cosines[number] > 0.97


ONE = {"data": {"scenario": "devices"}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "fedface", **ONE}, ["one person's images", "class embeddings are sent"]),
        ({"method": "fedface-multi"}, ["class embeddings are sent"]),
        (
            {"local": {"steps_per_round": 1, "batch_size": 8}},
            ["as few as 8", "local.batch_size=8", "local.steps_per_round=1"],
        ),
        ({"local": {"steps_per_round": 3, "batch_size": 3}}, ["each step is on 3", "local.batch_size"]),
        ({}, []),
        ({"method": "solo", "local": {"steps_per_round": 1, "batch_size": 1}}, []),
    ],
)
def test_a_plan_says_what_its_settings_leave_to_be_read(changes: dict[str, Any], said: list[str]) -> None:
    text = preflight.describe(tiny(**changes))
    line = next((line for line in text.splitlines() if line.startswith("can be read from what leaves")), "")
    assert bool(line) == bool(said) and all(words in line for words in said)


def test_a_run_says_it_at_its_start_in_its_report_and_on_its_card(tmp_path: Path) -> None:
    notes: list[str] = []
    view = Silent()
    view.note = notes.append  # type: ignore[method-assign]
    out = experiment.run(tiny(rounds=1, local={"steps_per_round": 1, "batch_size": 2}), tmp_path / "run", view)
    line = "embeddings of single images, since as few as 2 make an update"
    assert any(line in note for note in notes)
    assert line in (out / "report.html").read_text() and line in (out / "model" / "README.md").read_text()
