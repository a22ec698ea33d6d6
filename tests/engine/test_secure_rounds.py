"""Secure sums in a run: the same means, and nothing of a single party at the server."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import worlds
from server_runs import metrics

from coalface.experiments.conformance.tiny_federation import run
from coalface.privacy.secure import SecureSettings

pytestmark = pytest.mark.usefixtures("toy_steps")

WIDE = SecureSettings(clip=64.0, most_images=100)
"""Toys and tiny networks move far."""


def test_a_mean_is_that_without_secure_sums_but_for_the_rounding_that_is_told(tmp_path: Path) -> None:
    method, build = worlds.recipe("fedavg", rounds=1)
    plain = run(method, tmp_path / "plain", build)
    secure = run(method, tmp_path / "secure", build, secure=WIDE)
    (record,) = metrics(secure.folder)
    assert record["cut_off"] == 0 and 0 < record["sum_error"] < 1e-5
    for name, tensor in secure.state.backbone.items():
        torch.testing.assert_close(tensor, plain.state.backbone[name], rtol=1e-6, atol=record["sum_error"])
    assert record["loss"] == pytest.approx(metrics(plain.folder)[0]["loss"], abs=1e-3) and record["losses"] == {}
