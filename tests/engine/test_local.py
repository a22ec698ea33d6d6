from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import worlds
from toys import Deadly, Lagged, Moves

from coalface.data.faceset import FaceSet
from coalface.engine.faults import SimulatedFaults
from coalface.engine.party.request import Request
from coalface.engine.party.setup import FederatedData, Setup
from coalface.engine.transport import Reply, RunFailed
from coalface.engine.workers import Workers
from coalface.experiments.conformance.tiny_federation import Stop, Tiny, faces, run, stopping, workers
from coalface.privacy import ledger

pytestmark = pytest.mark.usefixtures("toy_steps")
SLOW = (pytest.mark.slow, pytest.mark.ci)
ROLES = Tiny(parties=6, roles=(("silo-4", "validator"), ("silo-5", "validator")))


# --- the world --------------------------------------------------------------------------------------------------------


def test_a_name_that_cannot_be_a_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="not a plain name"):
        FederatedData({"../a": faces(2, 4)}, Tiny()().backbone, None)


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_the_order_in_which_parties_join_does_not_matter(tmp_path: Path, name: str) -> None:
    method = worlds.recipe(name)[0]
    bytes_there = run(method, tmp_path / "there", Tiny(parties=4)).bytes()
    assert run(method, tmp_path / "back", Tiny(parties=4, reverse=True)).bytes() == bytes_there


# --- worker processes -------------------------------------------------------------------------------------------------


class Counting(Workers):
    """Counts the requests that are under way or whose reply was not aggregated yet."""

    most = 0
    under_way = 0

    def _submit(self, block: list[Request], pool: Any = None) -> Any:
        Counting.under_way += len(block)
        Counting.most = max(Counting.most, Counting.under_way)
        return super()._submit(block, pool)

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        for request, reply in super().exchange(requests):
            yield request, reply
            Counting.under_way -= 1


def counting(n: int, window: int) -> Any:
    Counting.most = Counting.under_way = 0
    return lambda setup, world: Counting(setup, world, n, window)


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize(("n", "window"), [(2, 2), *(pytest.param(*one, marks=SLOW) for one in ((1, 1), (3, 4)))])
def test_any_number_of_workers_gives_the_same_bits_within_the_window(tmp_path: Path, n: int, window: int) -> None:
    rules: dict[str, Any] = {"faults": SimulatedFaults(lost=0.2, dropout=0.1), "min_reply_fraction": 0.2}
    alone = run(Moves(rounds=4, note=True), tmp_path / "alone", ROLES, **rules)
    many = run(Moves(rounds=4, note=True), tmp_path / "many", ROLES, transport=counting(n, window), **rules)
    assert many.bytes() == alone.bytes()
    assert many.server.at.party_stats == alone.server.at.party_stats
    assert Counting.most == window


@pytest.mark.usefixtures("quick_workers")
def test_posted_work_runs_beside_the_rounds_with_the_same_bits(tmp_path: Path) -> None:
    method = Lagged(rounds=5, lag=2)
    alone = run(method, tmp_path / "alone", ROLES).bytes()
    assert run(method, tmp_path / "many", ROLES, transport=workers(2)).bytes() == alone
    with pytest.raises(Stop):  # while a ticket is open
        run(method, tmp_path / "both", ROLES, transport=stopping(9))
    assert run(method, tmp_path / "both", ROLES, transport=workers(2)).bytes() == alone


@pytest.mark.slow
@pytest.mark.ci
def test_spawned_workers_give_the_bits_of_one_process(tmp_path: Path) -> None:
    """The workers of a real run: with more parties than the first worker can serve before the second has started."""
    method, _ = worlds.recipe("fedavg")
    alone = run(method, tmp_path / "alone", Tiny(parties=9)).bytes()
    assert run(method, tmp_path / "many", Tiny(parties=9), transport=workers(2, window=8)).bytes() == alone


@pytest.mark.usefixtures("quick_workers")
def test_parties_that_go_to_a_worker_together_give_the_bits_of_one_process(tmp_path: Path) -> None:
    sizes: set[int] = set()

    class Blocks(Workers):
        def _submit(self, block: list[Request], pool: Any = None) -> Any:
            sizes.add(len(block))
            return super()._submit(block, pool)

    build = Tiny(parties=40)
    alone = run(Moves(rounds=2), tmp_path / "alone", build).bytes()
    many = run(Moves(rounds=2), tmp_path / "many", build, transport=lambda setup, world: Blocks(setup, world, 1, 6))
    assert many.bytes() == alone
    assert sizes == {1, 2}


@pytest.mark.usefixtures("quick_workers")
def test_the_message_for_all_stays_until_the_last_reply_and_no_longer(tmp_path: Path) -> None:
    left: list[list[int]] = []

    class Looking(Workers):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            seen = []
            for pair in super().exchange(requests):
                seen.append(sum("." not in name for name in os.listdir(self._mail)))  # replies have a request's id
                yield pair
            left.append([*seen, len(os.listdir(self._mail))])

    for window in (1, 8):
        looking = lambda setup, world, window=window: Looking(setup, world, 1, window)  # noqa: E731
        run(Moves(rounds=2), tmp_path / str(window), transport=looking)
    assert left == [[1, 1, 1, 0]] * 4


@pytest.mark.usefixtures("quick_workers")
def test_the_message_for_all_stays_for_who_has_not_begun_when_another_is_asked_again(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Again(Workers):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            replies = super().exchange(asked := [*requests])
            yield next(replies)
            not_begun = Future[Any]()
            self._under_way[not_begun] = letter = self._letter(asked[0])
            assert len([*super().exchange(asked[:1])]) == 1
            seen.append(letter.exists())
            not_begun.set_result(None)
            yield from replies
            seen.append(letter.exists())
            del self._under_way[not_begun]

    run(Moves(rounds=2), tmp_path, transport=lambda setup, world: Again(setup, world, 1, 8))
    assert seen == [True, False] * 2


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("window", [1, pytest.param(8, marks=SLOW)])
def test_a_worker_that_is_killed_ends_the_run_with_advice_and_a_resume_goes_on(tmp_path: Path, window: int) -> None:
    method = Deadly(marker=str(tmp_path / "killed"))
    with pytest.raises(
        RunFailed, match=r"a worker process died \(out of memory, killed, or crashed\).*resume the run, with fewer"
    ):
        run(method, tmp_path / "broken", transport=workers(1, window))
    resumed = run(method, tmp_path / "broken", transport=workers(1, window)).bytes()
    assert resumed == run(method, tmp_path / "unbroken").bytes()


@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_died_before_the_next_request_gives_the_same_advice(tmp_path: Path) -> None:
    class Late(Workers):
        """Hands the next request in when the pool has seen that the worker is gone."""

        def _submit(self, block: list[Request], pool: Any = None) -> Any:
            future = super()._submit(block, pool)
            if block[0].round == 2:
                while not future.done():
                    time.sleep(0.01)
            return future

    with pytest.raises(RunFailed, match="a worker process died"):
        method = Deadly(marker=str(tmp_path / "killed"), note=True)
        build = Tiny(parties=5)
        run(method, tmp_path / "run", build, transport=lambda setup, world: Late(setup, world, 1, 8))


def test_a_step_that_fails_in_a_worker_is_named(tmp_path: Path, quick_workers: None) -> None:
    method = Moves(rounds=1)

    def unreadable(setup: Setup, world: FederatedData) -> Workers:
        return Workers(Setup(setup.method, Unreadable(), setup.numerics, setup.seed, setup.folder), world, 1, 4)

    with pytest.raises(RunFailed, match=r"silo-0, step move, train round 1: TypeError"):
        run(method, tmp_path, transport=unreadable)


class Unreadable(Tiny):
    """A world whose first party's data cannot be counted."""

    def __call__(self) -> FederatedData:
        world = super().__call__()
        broken = Broken(**vars(world.data["silo-0"]))
        return FederatedData({**world.data, "silo-0": broken}, world.backbone, world.compute)


@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_cannot_begin_says_why_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"could not begin: ZeroDivisionError: division by zero.*engine.workers=1"):
        run(Moves(rounds=1), tmp_path / "built", Unbuildable(), transport=workers(1))


@pytest.mark.usefixtures("quick_workers")
def test_a_method_that_no_module_has_goes_to_workers_and_one_that_a_worker_cannot_import_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(Moves):
        """Of this process alone."""

    alone = run(Mine(rounds=1), tmp_path / "alone").bytes()
    assert run(Mine(rounds=1), tmp_path / "workers", transport=workers(1)).bytes() == alone
    module = types.ModuleType("only_here")
    monkeypatch.setitem(sys.modules, "only_here", module)
    Mine.__module__, Mine.__qualname__ = "only_here", "Mine"
    module.Mine = Mine  # type: ignore[attr-defined]
    with pytest.raises(RunFailed, match=r"could not begin: ModuleNotFoundError: .*only_here.*where Python finds them"):
        run(Mine(rounds=1), tmp_path / "module", transport=workers(1))


@dataclass(frozen=True)
class Unbuildable(Tiny):
    """A world that a worker cannot build."""

    def __call__(self) -> FederatedData:
        if multiprocessing.parent_process() is not None:
            1 / 0  # noqa: B018
        return super().__call__()


def test_a_run_that_is_broken_off_does_not_wait_for_its_workers(tmp_path: Path, quick_workers: None) -> None:
    """They hear nothing of Ctrl-C, and would work on: the step of the second party never ends."""

    class Stopping(Workers):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for number, pair in enumerate(super().exchange(requests)):
                if number:
                    raise AssertionError("the second party has answered")
                yield pair
                raise Stop

    with pytest.raises(Stop):
        run(Moves(rounds=1), tmp_path, Endless(), transport=lambda setup, world: Stopping(setup, world, 1, 4))


class Endless(Tiny):
    """A world whose second party's data are counted for ever in a worker."""

    def __call__(self) -> FederatedData:
        world = super().__call__()
        endless = Uncounted(**vars(world.data["silo-1"]))
        return FederatedData({**world.data, "silo-1": endless}, world.backbone, world.compute)


class Uncounted(FaceSet):
    asked = 0

    def __len__(self) -> int:
        Uncounted.asked += 1
        while multiprocessing.parent_process() is not None and Uncounted.asked > 1:
            time.sleep(0.01)
        return 1


class Broken(FaceSet):
    asked = 0

    def __len__(self) -> int:
        Broken.asked += 1
        if Broken.asked > 1:  # the world itself asks once
            raise TypeError("no length")
        return 1


# --- kill -9 ----------------------------------------------------------------------------------------------------------


def killed_and_resumed(tmp_path: Path, delays: list[float]) -> None:
    method, build = worlds.killed()
    unbroken = run(method, tmp_path / "unbroken", build, checkpoint_every=2).bytes()
    paths = os.pathsep.join([str(Path(worlds.__file__).parent), os.environ.get("PYTHONPATH", "")])
    code = f"import pathlib, worlds; worlds.killed_in(pathlib.Path({str(tmp_path)!r}), {delays})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env={**os.environ, "PYTHONPATH": paths})
    reached = set()
    for place in range(len(delays)):
        folder = tmp_path / str(place)
        metrics_file = folder / "metrics.jsonl"
        reached.add(len(metrics_file.read_text().splitlines()) if metrics_file.exists() else 0)
        assert run(method, folder, build, checkpoint_every=2).bytes() == unbroken
        for path in (folder / "ledger").iterdir():
            ledger.verify(path)
    assert len(reached) > 1  # the kills came at several places of the run


@pytest.mark.slow
@pytest.mark.ci
def test_killed_at_any_instant_and_resumed_is_the_unbroken_run(tmp_path: Path) -> None:
    moments = np.random.default_rng(1).uniform(0.0, 0.5, 6).tolist()
    killed_and_resumed(tmp_path, [*moments, 1.0, 2.0, 4.0])  # a busy machine comes to its first round late
