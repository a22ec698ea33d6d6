"""Exact first neighbours against float64 brute force, rational arithmetic, and rows made to break the bound."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from coalface.evaluation.metrics.exact import inner
from coalface.training.clustering.neighbours import Precision, _Search, first_neighbours

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "auto")


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def halved(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """T as it is defined: products padded to a power of two, the second half added to the first."""
    products = left * right
    width = 1
    while width < products.shape[-1]:
        width *= 2
    products = np.pad(products, [(0, 0)] * (products.ndim - 1) + [(0, width - products.shape[-1])])
    while products.shape[-1] > 1:
        products = products[..., : products.shape[-1] // 2] + products[..., products.shape[-1] // 2 :]
    return products[..., 0]


def brute(rows: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """All T of every row; `argmax` gives the first of equal ones."""
    wide = rows.double().numpy()
    index, cosine = np.empty(len(wide), dtype=np.int64), np.empty(len(wide))
    for i in range(len(wide)):
        halves = halved(wide[i], wide)
        halves[i] = -np.inf
        index[i], cosine[i] = halves.argmax(), halves.max()
    return index, cosine


def near_ties(seed: int, count: int, d: int, noise: float) -> Tensor:
    """Groups of about thirty rows that differ by little, and each row of some twice or more."""
    rows = unit(randn(seed, count // 30 + 1, d)).repeat(30, 1)[:count]
    rows = unit(rows + noise * randn(seed + 1, count, d))
    rows[::7] = rows[3]
    rows[1::11] = rows[torch.randint(count, (len(rows[1::11]),), generator=torch.Generator().manual_seed(seed + 2))]
    return rows


CASES: dict[str, Callable[[], Tensor]] = {
    "random": lambda: unit(randn(0, 700, 32)),
    "float64": lambda: unit(randn(1, 300, 20).double()),
    "an odd width": lambda: unit(randn(2, 200, 37)),
    "half of them doubles": lambda: unit(randn(3, 200, 16))[randn(4, 900).mul(1e4).long().remainder(200)],
    "near ties, 1e-3": lambda: near_ties(5, 600, 24, 1e-3),
    "near ties, 1e-7": lambda: near_ties(6, 600, 24, 1e-7),
    "near ties in float64, 1e-15": lambda: unit(
        unit(randn(7, 10, 24).double()).repeat(40, 1) + 1e-15 * randn(8, 400, 24).double()
    ),
    "all the same": lambda: unit(torch.ones(130, 5)),
    "signs: many exact ties": lambda: unit((randn(9, 500, 9) > 0).float() * 2 - 1),
    "all at right angles": lambda: torch.eye(200),
    "antipodal": lambda: torch.cat([torch.eye(100), -torch.eye(100)]),
    "all below 0": lambda: unit(torch.eye(65) - 1 / 65),
    "collapsed": lambda: unit(randn(10, 1, 32) + 1e-3 * randn(11, 900, 32)),
    "one far from all others": lambda: torch.cat([unit(1 + 0.1 * randn(12, 300, 16)), -unit(torch.ones(1, 16))]),
    "one dimension": lambda: torch.tensor([[1.0], [-1.0], [1.0], [1.0]]),
    "lengths to 1e-3": lambda: unit(randn(13, 300, 8)) * (1 + 1e-3 * (torch.rand(300, 1) - 0.5)),
    "two": lambda: torch.tensor([[1.0, 0.0], [-1.0, 0.0]]),
    "signs of zeros": lambda: torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -0.0], [-0.0, -1.0]]),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_float64_brute_force(name: str) -> None:
    rows = CASES[name]()
    index, cosine = brute(rows)
    for precision, block in (*zip(PRECISIONS, (64, 192, None), strict=True), ("float32", None), ("bfloat16", 64)):
        neighbours = first_neighbours(rows, precision=precision, block=block)
        assert neighbours.index.tolist() == index.tolist(), (precision, block)
        assert neighbours.cosine.tolist() == cosine.tolist(), (precision, block)


def test_agrees_with_rational_arithmetic() -> None:
    rows = near_ties(20, 60, 8, 1e-4)
    exact = [[Fraction(float(value)) for value in row] for row in rows]
    neighbours = first_neighbours(rows)
    for i, cosines_of_row in enumerate(exact):
        products = [sum((a * b for a, b in zip(cosines_of_row, row, strict=True)), Fraction(0)) for row in exact]
        products[i] = Fraction(-2)
        best = max(products)
        assert best - products[neighbours.index[i]] <= Fraction(1, 10**15)
        assert abs(best - Fraction(float(neighbours.cosine[i]))) <= Fraction(1, 10**15)
        if sum(best - product <= Fraction(1, 10**15) for product in products) == 1:
            assert neighbours.index[i] == products.index(best)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_small_rows_of_few_values(data: st.DataObject) -> None:
    """Many equal and nearly equal products, in every arrangement."""
    d = data.draw(st.integers(1, 5))
    row = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.0 + 2.0**-8, 1.0 + 2.0**-20]), min_size=d, max_size=d)
    drawn = data.draw(st.lists(row.filter(any), min_size=2, max_size=40))
    rows = unit(torch.tensor(drawn, dtype=data.draw(st.sampled_from([torch.float32, torch.float64]))))
    neighbours = first_neighbours(rows, precision=data.draw(st.sampled_from(["float32", "bfloat16"])), block=64)
    index, cosine = brute(rows)
    assert neighbours.index.tolist() == index.tolist() and neighbours.cosine.tolist() == cosine.tolist()


def adversarial() -> dict[str, Tensor]:
    """Rows whose rounding errors all have one sign, cancel badly, or lie far apart in size."""
    down = torch.full((200, 256), (1 + 2.0**-8 - 2.0**-16) / 16)  # all but half way from 1/16 to the next bfloat16
    down[:, 254], down[:, 255] = (1 - 254 * down[0, 0] ** 2).sqrt(), 0
    return {
        "errors of one sign": down,
        "signs": down * randn(32, 200, 256).sign(),
        "spikes": unit(torch.eye(256)[:200] + 1e-3 * randn(33, 200, 256)),
        "sizes from 1e-30 to 1": unit(randn(34, 200, 256) * 10 ** (-30 * torch.rand(200, 256))),
        "random": unit(randn(35, 200, 256)),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", adversarial())
def test_low_precision_keeps_its_bound(name: str, dtype: torch.dtype) -> None:
    rows = adversarial()[name]
    search = _Search(rows, None, 256, "bfloat16" if dtype == torch.bfloat16 else "float32")
    low = search.low @ search.low.T
    assert low.dtype == dtype
    wide = rows.double().numpy()
    exact = torch.from_numpy(halved(wide[:, None], wide[None]))
    assert bool((search._lower(low.double()) <= exact).all() and (exact <= search._upper(low.double())).all())
    off = ((low.double() - exact).abs() / (search._upper(low.double()) - low.double())).max()
    if dtype == torch.bfloat16 and name == "errors of one sign":
        assert off > 0.5  # so the bound is no idle one


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of 176,000 pairs are candidates, more than may wait: T of the first is computed before the last are found."""
    waited = []
    decide = _Search._decide

    def watched(self: _Search, row: Tensor, column: Tensor) -> None:
        assert len(self.pending[0]) == self.limit == 2**17
        waited.append(self.waiting)
        decide(self, row, column)

    monkeypatch.setattr(_Search, "_decide", watched)
    neighbours = first_neighbours(torch.eye(420))
    assert neighbours.index.tolist() == [1] + [0] * 419
    assert set(waited) == {2**17, 420 * 419 - 2**17}


@pytest.mark.parametrize("noise", [1e-6, 10.0])
def test_threads_and_what_the_process_says_of_precision_do_not_matter(noise: float) -> None:
    rows = near_ties(60, 700, 32, noise)
    expected = first_neighbours(rows)
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        torch.set_num_threads(2)
        for precision_name in ("medium", "highest"):
            torch.set_float32_matmul_precision(precision_name)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision_name == "highest"):
                neighbours = first_neighbours(rows)
            assert torch.get_float32_matmul_precision() == precision_name
            assert torch.equal(neighbours.index, expected.index) and torch.equal(neighbours.cosine, expected.cosine)
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def test_precision_is_asked_for_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the search is done in; not every machine gives a process that asks for less any less."""
    places = [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]
    precisions = []
    run = _Search.run

    def watched(self: _Search) -> None:
        precisions.extend(place.fp32_precision for place in places)
        run(self)

    monkeypatch.setattr(_Search, "run", watched)
    before = [place.fp32_precision for place in places]
    try:
        for precision_name in ("bf16", "tf32"):
            places[0].fp32_precision = precision_name
            places[1].fp32_precision = "tf32"
            first_neighbours(torch.eye(3))
            assert [place.fp32_precision for place in places] == [precision_name, "tf32"]
    finally:
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value
    assert precisions == ["ieee"] * 4


def test_none_and_one() -> None:
    none = first_neighbours(torch.empty(0, 4))
    assert none.index.shape == none.cosine.shape == (0,)
    alone = first_neighbours(torch.ones(1, 1))
    assert alone.index.tolist() == [-1] and alone.cosine.tolist() == [-torch.inf]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 0.5])
def test_rows_that_are_not_of_length_one_are_named(bad: float) -> None:
    rows = unit(randn(65, 10, 4))
    rows[[3, 8]] = bad * torch.tensor([1.0, 0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="2 of 10 rows .*3, 8"):
        first_neighbours(rows)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1e-2, 1e-6])
def test_twenty_thousand_with_near_ties_and_doubles(noise: float) -> None:
    rows = near_ties(70, 20_000, 256, noise)
    neighbours = first_neighbours(rows)
    wide = rows.double()
    for start in range(0, len(rows), 1000):
        cosines = wide[start : start + 1000] @ wide.T
        places = torch.arange(len(cosines))
        cosines[places, start + places] = -9
        close = cosines >= cosines.amax(dim=1, keepdim=True) - 1e-13
        for i in range(len(cosines)):
            near = close[i].nonzero().view(-1)
            exact = halved(wide[start + i].numpy(), wide[near].numpy())
            assert neighbours.index[start + i] == near[int(exact.argmax())]
            assert neighbours.cosine[start + i] == exact.max()


MEMORY = r"""
import re, torch
from coalface.training.clustering.neighbours import first_neighbours
torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
first_neighbours(torch.nn.functional.normalize(torch.randn(6000, 256, generator=g)))
peak = lambda: int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read()).group(1))
before = peak()
rows = torch.empty(100_000, 256)
for part in rows.split(1000):
    part.copy_(torch.nn.functional.normalize(torch.randn(len(part), 256, generator=g)))
first_neighbours(rows)
print((peak() - before) * 1024 / rows.nbytes)
"""


@pytest.mark.slow
def test_memory_is_at_most_three_times_the_rows() -> None:
    """The rows among it. (What was measured in all, blocks included, is in the page on speed.)"""
    process = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert 1 < float(process.stdout) < 3


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu_the_same(name: str) -> None:
    rows = CASES[name]()
    expected = first_neighbours(rows)
    for precision in PRECISIONS[:1] + PRECISIONS[2:]:
        neighbours = first_neighbours(rows.cuda(), precision=precision)
        assert torch.equal(neighbours.index.cpu(), expected.index)
        assert torch.equal(neighbours.cosine.cpu(), expected.cosine)


@pytest.mark.gpu
@pytest.mark.slow
def test_a_million_on_a_gpu() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(1_000_000, 256, generator=generator, device="cuda"))
    torch.cuda.reset_peak_memory_stats()
    neighbours = first_neighbours(rows)
    assert torch.cuda.max_memory_allocated() <= 3 * rows.nbytes
    for i in range(0, 1_000_000, 100_003):
        cosines = inner(rows, rows[i : i + 1])
        cosines[i] = -9
        assert neighbours.cosine[i] == cosines.max()
        assert neighbours.index[i] == int((cosines == cosines.max()).nonzero()[0])
