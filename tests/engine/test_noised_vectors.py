"""What a party hides with its share of the noise: one noise for one vector, within the clip, in a ring with room."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from noised_runs import (
    FIVE,
    LOSE,
    NOISED,
    SECURE,
    SILENT,
    hide,
    moved,
    noise_of,
)
from toys import Moved, Moves, Values

from coalface.core import codec
from coalface.engine.local import InProcess
from coalface.engine.party.request import SumStage
from coalface.engine.sums.hidden import HiddenMeans
from coalface.engine.transport import RunFailed
from coalface.experiments.conformance.tiny_federation import run
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.secure import SecureSettings
from coalface.privacy.secure_sums.context import SecureSumError

pytestmark = pytest.mark.usefixtures("toy_steps")


def test_no_noise_is_used_for_two_vectors_and_no_vector_has_two_noises(tmp_path: Path) -> None:
    """Of the same work, whatever the run is called, the noise is the same; any other vector, round, call, message or
    secret has its own."""
    first = noise_of(tmp_path, 0.5)
    assert first == noise_of(tmp_path, 0.5) == noise_of(tmp_path, 0.5, run="b", base="0000001.001-" + "0" * 24)
    others = [
        noise_of(tmp_path, 0.500001),
        noise_of(tmp_path, 0.5, round=2),
        noise_of(tmp_path, 0.5, call=2),
        noise_of(tmp_path, 0.5, stage="other"),
        noise_of(tmp_path, 0.5, secret=b"b" * 32),
        noise_of(tmp_path, 0.5, sum=SumStage("advertise", 6, (("values", "parties"), ("delta", "parties")))),
    ]
    assert len({first, *others}) == 7
    wide = hide(tmp_path, moved(0.5), z=2.0)[1].vector.view("<i4") - hide(tmp_path, moved(0.5), z=0.0)[1].vector.view(
        "<i4"
    )
    assert tuple((wide / 2).round().tolist()) != first and not np.allclose(wide, 2 * np.array(first), rtol=0.01)


def test_the_same_work_is_not_opened_again_with_other_noise(tmp_path: Path) -> None:
    """A new run's secret is another, and the mean of the two sums would have less noise than either."""
    names = [f"silo-{place}" for place in range(5)]
    sums, hidden = hide(tmp_path, moved(0.5))
    sums.bind(hidden, "silo-1", names)
    sums.bind(hidden, "silo-1", names)
    sums, again = hide(tmp_path, moved(0.5), secret=b"b" * 32, run="b")
    with pytest.raises(SecureSumError) as caught:
        sums.bind(again, "silo-1", names)
    assert caught.value.code == "answered"


def test_a_server_cannot_have_less_noise_by_what_it_asks_for(tmp_path: Path) -> None:
    """Means by images, or of one field twice, are the sum that counts each party once. More parties than there are
    would make each share narrower: then the sum needs answers of so many."""
    twice = SumStage("advertise", 5, (("values", "images"), ("values", "parties"), ("delta", "images")))
    assert noise_of(tmp_path, 0.5) == noise_of(tmp_path, 0.5, sum=twice)

    class Boasting(InProcess):
        def exchange(self, requests: Any) -> Any:
            for request in requests:
                grown = request.sum._replace(asked=50)
                yield from super().exchange([dataclasses.replace(request, sum=grown)])

    with pytest.raises(RunFailed):
        run(
            Moves(rounds=1),
            tmp_path / "run",
            FIVE,
            transport=Boasting,
            secure=SECURE,
            privacy=NOISED,
            **LOSE | {"max_abandoned_rounds": 1},
        )
    assert not (tmp_path / "run" / "opened.jsonl").exists()


@pytest.mark.parametrize("z", [0.1, 1.0, 30.0])
@pytest.mark.parametrize(("parties", "size"), [(3, 10), (5, 310_768), (100, 310_768), (5_000, 44_000_000)])
def test_a_ring_has_room_for_the_sum_and_its_noise(z: float, parties: int, size: int) -> None:
    """All at the clip in one number, and ten standard deviations of the noise; rounding adds a hundredth at most."""
    start = {"a": torch.empty(size, device="meta")}
    like = codec.forms(Moved, [Values(values=start)])
    privacy = PartyPrivacy(noise_multiplier=z, clip=0.7)
    hidden = HiddenMeans.of(SECURE, Moves().steps["move"][1], (("values", "images"),), like, parties, privacy)
    assert hidden.noise is not None and list(hidden.layout.means) == ["parties"]
    (summand,) = hidden.layout.means["parties"].tensors.values()
    most = parties * 0.7 * 2.0**summand.fraction_bits + parties / 2 + 10 * math.sqrt(parties) * hidden.noise.sigma
    assert most < 2 ** (hidden.layout.bits - 1)
    assert hidden.layout.bits == 32 or parties > 100
    assert math.sqrt(size) / 2 < 0.011 * 0.7 * 2.0**summand.fraction_bits or hidden.layout.bits == 64
    honest = parties - math.floor(0.3 * parties) - math.ceil(0.1 * parties)
    total = hidden.noise.sigma * math.sqrt(honest) / 2.0**summand.fraction_bits
    assert z * 0.7 <= total < 1.03 * z * 0.7 + 2 * math.sqrt(honest) / 2.0**summand.fraction_bits


def test_a_vector_that_is_above_its_clip_after_all_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is proven of the noise rests on the norm of the whole numbers, so it is looked at."""
    from coalface.engine.sums import hidden as module

    monkeypatch.setattr(module.math, "sqrt", lambda number: 1.0)
    with pytest.raises(SecureSumError) as caught:
        hide(Path(), moved(100.0))
    assert caught.value.code == "vector"


def test_a_norm_whose_square_leaves_64_bits_is_above_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^16 numbers of 2^24: their squares add up to 2^64, which is 0 there."""
    from coalface.engine.sums import hidden as module

    size = 1 << 16
    like = codec.forms(Moved, [Values(values={"a": torch.zeros(size)})])
    means = HiddenMeans.of(SECURE, Moves().steps["move"][1], (("values", "images"),), like, 5, PartyPrivacy(clip=1.0))
    monkeypatch.setattr(module.math, "sqrt", lambda number: 1.0)
    values = {"a": torch.ones(size)}
    with pytest.raises(SecureSumError) as caught:
        means.encode_noised(Moved(values=values, delta=values, images=1, loss=0.0), np.random.default_rng)
    assert caught.value.code == "vector"


def test_a_change_that_no_number_can_hold_counts_as_zero() -> None:
    """1.7e308 is finite, and its difference to −1.7e308 is not. What can be held is scaled, however large."""
    start = {"a": torch.zeros(3), "b": torch.full((2, 2), -1.7e308, dtype=torch.float64)}
    like = codec.forms(Moved, [Values(values=start)])
    means = HiddenMeans.of(SECURE, Moves().steps["move"][1], (("values", "images"),), like, 5, SILENT)
    for number, void in ((1.7e308, True), (-1.6e308, False)):
        values = {"a": torch.ones(3), "b": torch.full((2, 2), number, dtype=torch.float64)}
        vector, why = means.encode_noised(Moved(values=values, delta=values, images=1, loss=0.0), np.random.default_rng)
        assert bool(why) is void and (not vector[:-1].any() or not void)


@pytest.mark.parametrize(("parties", "dropouts"), [(2, 0.0), (3, 0.0), (5, 0.3)])
def test_a_share_less_is_counted_on_where_no_party_helps_the_server(parties: int, dropouts: float) -> None:
    """Towards another party the ε is to hold as well, and that one can take its own share off."""
    like = codec.forms(Moved, [Values(values={"a": torch.zeros(7)})])
    secure = SecureSettings(dropouts=dropouts, corrupt=0.0)
    means = HiddenMeans.of(secure, Moves().steps["move"][1], (("values", "images"),), like, parties, NOISED)
    others = parties - math.floor(dropouts * parties) - 1
    assert means.noise is not None and means.noise.honest == others
    without_one = means.noise.sensitivity / (math.sqrt(others) * means.noise.sigma)
    assert 0.5 * without_one**2 <= 0.5 and means.rho == pytest.approx(0.5, rel=1e-6)
