"""What every test stands on. The process that deals tests to workers reads this too, so torch is imported within."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays to the end: looking through it for garbage took a tenth of the time."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()
    return result


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test begins with one thread and exact small numbers, as runs set these; without a GPU its tests are skipped.

    A fixture for every test would take as long as most tests.
    """
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device here")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Packs and pre-trained models of tests are made once a session, and never in the cache of the person."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COALFACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_flushing() -> Iterator[None]:
    """Flushing is for power cuts, which no test can make; `os.sync` waits for every other process of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sync", lambda: None)
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def cheap_sums() -> Iterator[None]:
    """Commands and sketches of networks are made once, what is installed is listed once; comparisons have 200 draws,
    not 2,000, and ε is rounded to 1e-3, not to 1e-4."""
    import typer.main
    import typer.testing

    from coalface.evaluation.metrics import bootstrap
    from coalface.experiments import environment
    from coalface.experiments.setup import weights
    from coalface.privacy import accountant

    build = functools.cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", build)
        patch.setattr(typer.testing, "_get_command", build)
        patch.setattr(environment, "packages_distributions", functools.cache(environment.packages_distributions))
        patch.setattr(bootstrap, "DRAWS", 200)
        patch.setattr(weights, "sketch", functools.cache(weights.sketch))
        patch.setattr(accountant, "_STEP", 1e-3)
        yield


@pytest.fixture(scope="session", autouse=True)
def charts_not_drawn() -> Iterator[None]:
    """Charts are specified but not drawn: a page of a run has a dozen, and most tests do not look at it."""
    from coalface.experiments.report import vega

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vega, "draw", lambda text: "<svg></svg>")
        patch.setattr(vega, "_library", lambda: "// Vega")
        yield


@pytest.fixture(scope="session")
def fedavg_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished tiny run with one model for all; tests only read it."""
    import tinyruns

    return tinyruns.run(tmp_path_factory.mktemp("runs") / "fedavg", report=True, name="tiny-fedavg")


@pytest.fixture(scope="session")
def solo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished tiny run with a model for each party, evaluated on those pairs; tests only read it."""
    import tinyruns

    return tinyruns.run(tmp_path_factory.mktemp("runs") / "solo", report=True, name="tiny-solo", method="solo")


@pytest.fixture
def toy_steps() -> Iterator[None]:
    """Toy steps note their calls anew, and hooks end with the test."""
    import toys

    toys.CALLS.clear()
    toys.HOOKS.clear()
    yield
    toys.CALLS.clear()
    toys.HOOKS.clear()
    assert not multiprocessing.active_children(), "a worker process was left running"


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes fork off a server that has imported torch already."""
    import forked

    context = forked.forkserver()
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
