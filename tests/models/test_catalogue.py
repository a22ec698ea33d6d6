"""`coalface models`, and what stands behind it."""

from __future__ import annotations

import json
import re

import pytest
import torch
from cases import by_default
from commands import invoked, said

from coalface.models import BACKBONES, catalogue, speed


def output(*arguments):
    return said("models", *arguments)


def settings(arithmetic):
    return {key: value for key, value in vars(arithmetic).items() if key != "device"}


@pytest.fixture
def hasty(monkeypatch):
    """Speeds without the clock: what is measured is another test's matter."""
    measured = []

    def measure(name, **how):
        measured.append((name, how))
        flops = {"inference_flops": 2e9, "training_flops": 6e9, "peak_flops": 1.2e10}
        return speed.Speed(123.4, 45.67, **flops, batch=how["batch"], **settings(how["arithmetic"]))

    monkeypatch.setattr(catalogue, "measure", measure)
    return measured


@pytest.mark.slow
@pytest.mark.ci
def test_every_backbone_in_a_table():
    text = output()
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.split()[:1]}
    assert [name for name in rows if name in BACKBONES] == list(BACKBONES)
    assert rows["mobilefacenet"] == ["mobilefacenet", "128", "1,003,136", "221.0", "M", "4.09", "MB", "yes"]
    assert rows["ir100"] == ["ir100", "512", "65,156,160", "12,089.6", "M", "261", "MB", "yes"]
    assert rows["vit-tiny"][-1] == rows["sphere64"][-1] == "no"
    assert "One image of 112×112, RGB" in text and "per second" not in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("names", [("ir18", "vit-tiny"), ("vit-tiny", "ir18")])
def test_a_backbone_that_cannot_take_the_size_says_so_in_its_row_and_beneath(names):
    text = output(*names, "--size", "100")
    rows = [line.split()[0] for line in text.splitlines() if line.split()[:1]]
    assert [row for row in rows if row in names] == list(names)
    assert re.search(r"^ir18 .*\d MB", text, re.M) and re.search(r"^vit-tiny +not at 100×100 *$", text, re.M)
    assert "'vit-tiny': images of 100×100 cannot be cut into patches of 8×8" in text
    models = json.loads(output(*names, "--size", "100", "--json"))["models"]
    assert {entry["name"]: "cannot" in entry for entry in models} == {"ir18": False, "vit-tiny": True}


@pytest.mark.parametrize("names", [("ir18",), ("cnn-small", "ir18")])
@pytest.mark.parametrize("size", by_default(1, [8, 0, -1]))
def test_where_nothing_can_be_listed_the_command_fails_and_says_why(names, size):
    arguments = ["models", *names, "--size", str(size)]
    result = invoked(*arguments)
    assert result.exit_code == 1 and result.stdout == ""
    assert [line.split("; ")[0] for line in result.stderr.splitlines()] == [
        f"coalface: backbone {name!r}: images of {size}×{size} are too small" for name in names
    ]
    as_json = invoked(*arguments, "--json")
    assert as_json.exit_code == 1
    assert [sorted(entry) for entry in json.loads(as_json.stdout)["models"]] == [["cannot", "name"]] * len(names)


def test_measured_figures_name_batch_threads_and_processor(hasty):
    text = output("cnn-small", "--measure", "--batch", "4", "--threads", "2", "--bfloat16")
    assert re.search(r"^cnn-small .* 123 +2 G \(17 %\) +45\.7 +6 G \(50 %\) *$", text, re.M)
    assert "Images per second: batches of 4, bfloat16, 2 threads, " in text and f"torch {torch.__version__}" in text
    arithmetic = speed.Arithmetic(threads=2, autocast="bfloat16")
    assert hasty == [("cnn-small", {"size": 112, "channels": 3, "batch": 4, "arithmetic": arithmetic})]
    report = json.loads(output("cnn-small", "--measure", "--json"))
    measured = report["models"][0]["speed"]
    assert (measured["training"], measured["batch"], measured["autocast"]) == (45.67, 8, None)
    assert report["processor"] == speed.processor()
    assert not hasty[2:], "one that was not asked for is not measured"


@pytest.mark.slow
@pytest.mark.ci
def test_measuring_runs_batches_and_puts_the_threads_back(monkeypatch):
    calls = []
    original = torch.nn.Module.__call__

    def watched(self, *arguments, **options):
        if type(self).__name__ == "CnnSmall":
            images = arguments[0]
            calls.append((tuple(images.shape), self.training, torch.is_grad_enabled(), torch.get_num_threads()))
        return original(self, *arguments, **options)

    monkeypatch.setattr(torch.nn.Module, "__call__", watched)
    before = torch.get_num_threads()
    how = speed.Arithmetic(threads=before + 1)
    measured = speed.measure("cnn-small", size=32, channels=1, batch=3, arithmetic=how, seconds=1e-9)
    assert torch.get_num_threads() == before
    assert calls == [((3, 1, 32, 32), True, True, before + 1)] * 3 + [((3, 1, 32, 32), False, False, before + 1)] * 3
    assert (measured.batch, measured.threads) == (3, before + 1) and measured.peak_flops > 0
    macs = catalogue.multiply_adds(catalogue.sketch("cnn-small", size=32, channels=1), size=32, channels=1)
    assert measured.inference_flops == pytest.approx(2 * macs * measured.inference)
    first = 2 * 16 * 16 * 16 * 9  # of the first convolution, whose input has no gradient
    assert measured.training_flops == pytest.approx((6 * macs - first) * measured.training)


@pytest.mark.slow
@pytest.mark.ci
def test_the_backward_pass_of_grouped_convolutions_counts_twice_the_forward_pass() -> None:
    measured = speed.measure("mobilefacenet", size=112, channels=3, batch=2, seconds=1e-9)
    macs = catalogue.multiply_adds(catalogue.sketch("mobilefacenet", size=112, channels=3), size=112, channels=3)
    first = 2 * 56 * 56 * 64 * 27  # of the first convolution, whose input has no gradient
    assert measured.training_flops == pytest.approx((6 * macs - first) * measured.training)
