"""The cross-client softmax: by a naive double sum, by torch's own gradients, and by hand; in bounded memory."""

from __future__ import annotations

import itertools
import math
import threading
import time

import psutil
import pytest
import torch
from largest_tensor import Largest
from torch import Tensor

from coalface.training.losses import cross_client
from coalface.training.losses.cross_client import Correction, gradient
from coalface.training.losses.spreadout import spread_out


def rows_of(c: int = 30, d: int = 6, seed: int = 0) -> Tensor:
    """Of any length, around a few centres, so that many classes are near each other."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, d, generator=generator, dtype=torch.float64)
    return centres.repeat(-(-c // 5), 1)[:c] + 0.4 * torch.randn(c, d, generator=generator, dtype=torch.float64)


def clients_of(c: int, count: int, seed: int = 1) -> Tensor:
    """In no order."""
    return torch.randint(count, (c,), generator=torch.Generator().manual_seed(seed))


def naive(weights: Tensor, clients: Tensor, scale: float) -> tuple[float, Tensor]:
    """The double sum as it is written, and its gradient by the unit rows where û has none."""
    rows = (weights / weights.norm(dim=1, keepdim=True)).requires_grad_()
    fixed, total = rows.detach(), torch.zeros((), dtype=torch.float64)
    for i in range(len(rows)):
        own = torch.exp(scale * fixed[i] @ rows[i])
        foreign = [torch.exp(scale * fixed[i] @ rows[j]) for j in range(len(rows)) if clients[j] != clients[i]]
        total = total - torch.log(own / (own + sum(foreign)))
    total.backward()
    assert rows.grad is not None
    return total.item(), rows.grad


@pytest.mark.parametrize("block", [1, 7, 2048])
@pytest.mark.parametrize(("count", "scale"), [(4, 1.0), (4, 16.0), (30, 64.0), (2, 5.0), (1, 16.0)])
def test_it_is_the_naive_double_sum(count: int, scale: float, block: int) -> None:
    weights, clients = rows_of(), clients_of(30, count)
    value, slopes = gradient(weights, clients, scale=scale, block=block)
    expected, expected_slopes = naive(weights, clients, scale)
    assert value == pytest.approx(expected, abs=1e-10)
    assert (slopes - expected_slopes).abs().max() <= 1e-10
    assert (count == 1) == (float(slopes.abs().max()) == 0)


def test_three_classes_by_hand() -> None:
    """u_1 = (1, 0) and u_2 = (0, 1) of client a, u_3 = (3/5, 4/5) of client b; s = 5.

    E_13 = e^{5 (3/5 − 1)} = e^{−2}, E_23 = e^{5 (4/5 − 1)} = e^{−1}, and E_12 = 0, which is within a client.
    """
    weights = torch.tensor([[2.0, 0.0], [0.0, 0.1], [3.0, 4.0]], dtype=torch.float64)
    value, slopes = gradient(weights, torch.tensor([0, 0, 1]), scale=5.0)
    e13, e23 = math.exp(-2), math.exp(-1)
    z1, z2, z3 = 1 + e13, 1 + e23, 1 + e13 + e23
    assert value == pytest.approx(math.log(z1) + math.log(z2) + math.log(z3), abs=1e-14)
    by_hand = [
        [5 * (e13 / z3 * 0.6 - (1 - 1 / z1)), 5 * (e13 / z3 * 0.8)],
        [5 * (e23 / z3 * 0.6), 5 * (e23 / z3 * 0.8 - (1 - 1 / z2))],
        [5 * (e13 / z1 - (1 - 1 / z3) * 0.6), 5 * (e23 / z2 - (1 - 1 / z3) * 0.8)],
    ]
    torch.testing.assert_close(slopes, torch.tensor(by_hand, dtype=torch.float64), rtol=0, atol=1e-14)
    moved = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=torch.float64) - 0.3 * slopes
    _, after = Correction(scale=5.0, step=0.3)(weights, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(after, moved / moved.norm(dim=1, keepdim=True), rtol=0, atol=1e-14)


def test_classes_of_one_client_do_not_push_each_other_and_others_do() -> None:
    """That is what it adds to spreadout, which pushes all: only the angle between clients opens."""
    weights = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [1.0, 0.0, 0.1]], dtype=torch.float64)
    alone = Correction(step=1.0)(weights[:2], torch.tensor([0, 0]))
    assert alone[0] == 0
    torch.testing.assert_close(alone[1], torch.nn.functional.normalize(weights[:2]))
    _, after = Correction(step=0.01)(weights, torch.tensor([0, 0, 1]))
    before = torch.nn.functional.normalize(weights)
    assert after[2] @ after[0] < before[2] @ before[0] and after[2] @ after[1] < before[2] @ before[1]


def test_a_tight_cluster_opens_where_spreadout_turns_it_round() -> None:
    """250 classes of cosine 0.98: a step of spreadout goes through the origin, and leaves them nearer or as near."""
    centre = torch.randn(1, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = centre + 0.15 * torch.randn(250, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = torch.nn.functional.normalize(weights)
    _, after = Correction()(weights, torch.arange(250))
    assert (after * before).sum(1).min() > 0.5  # no class turns by more than 60 degrees
    assert 1 - after.mean(0).norm() > 3 * (1 - before.mean(0).norm())
    assert (spread_out(weights, step=0.01) * before).sum(1).max() < 0


def test_a_row_that_would_vanish_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.eye(2, dtype=torch.float64)
    monkeypatch.setattr(cross_client, "gradient", lambda w, c, scale: (0.0, torch.tensor([[1.0, 0.0], [0.0, 0.0]])))
    _, after = Correction(step=1.0)(weights, torch.tensor([0, 1]))
    torch.testing.assert_close(after, weights, check_dtype=False)


def test_it_leaves_what_it_is_given_and_works_in_its_dtype() -> None:
    weights, clients = rows_of().float(), clients_of(30, 3)
    copy = weights.clone()
    _, after = Correction()(weights, clients)
    _, exact = Correction()(weights.double(), clients)
    assert torch.equal(weights, copy) and after.dtype == torch.float32
    torch.testing.assert_close(after.double(), exact, rtol=0, atol=1e-5)


def test_no_tensor_grows_with_the_square() -> None:
    with Largest() as largest:
        gradient(rows_of(600, 4), clients_of(600, 20), scale=16.0, block=32)
    assert 600 * 4 <= largest.entries <= 2 * max(600 * 4, 32 * 32)  # 600² would be 360,000


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [pytest.param(20, marks=pytest.mark.ci), None])
def test_a_hundred_thousand_classes_stay_within_a_gibibyte_above_them(
    pairs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C = 100,000, d = 512; a C × C matrix would be 37 GiB. Of 20 of the 1,225 pairs of blocks, in whose memory all
    others are computed; or of all of them, in ten minutes of a core."""
    blocks = cross_client.cosine_blocks
    monkeypatch.setattr(cross_client, "cosine_blocks", lambda rows, size: itertools.islice(blocks(rows, size), pairs))
    weights = torch.randn(100_000, 512, generator=torch.Generator().manual_seed(0))
    clients = torch.arange(100_000) // 2800  # 36 clients, as the paper has them
    process = psutil.Process()
    before, most, done = process.memory_info().rss, [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            most[0] = max(most[0], process.memory_info().rss)
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        value, after = Correction()(weights, clients)
    finally:
        done.set()
        watcher.join()
    assert weights.nbytes < most[0] - before < 1 << 30
    assert math.isfinite(value) and after.norm(dim=1).sub(1).abs().max() < 1e-5


@pytest.mark.parametrize("settings", [{"scale": 0.0}, {"scale": math.inf}, {"step": -1.0}, {"step": math.nan}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="scale above 0"):
        Correction(**settings)


def test_clients_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="number of its client"):
        gradient(rows_of(), torch.zeros(29, dtype=torch.int64), scale=1.0)
    with pytest.raises(ValueError, match="rows 3"):
        gradient(rows_of().index_fill(0, torch.tensor([3]), 0.0), torch.zeros(30, dtype=torch.int64), scale=1.0)
