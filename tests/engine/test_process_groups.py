from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import grouped_runs
import pytest
import torch
import worlds
from grouped_runs import EXACT, ONE, SHARDS, Tells, Trap, check_same, files, private_parts
from one_party import PARTY, data
from toys import Lagged, Moves

from coalface.core import codec
from coalface.core.method import Method
from coalface.engine.checkpoint import CheckpointError
from coalface.engine.local import InProcess
from coalface.engine.party import executor, sharding
from coalface.engine.party.commits import Commit
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.party.request import Request
from coalface.engine.party.sharding import ProcessGroups
from coalface.engine.transport import RunFailed
from coalface.experiments.conformance import tiny_federation
from coalface.experiments.conformance.tiny_federation import Stop, Tiny, run, stopping, workers
from coalface.methods import METHODS
from coalface.methods.fedavg import Global
from coalface.privacy import ledger
from coalface.training.classifier import HEAD
from coalface.training.losses.registry import LOSSES

pytestmark = pytest.mark.usefixtures("toy_steps", "quick_workers")
SLOW = (pytest.mark.slow, pytest.mark.ci)


# --- invisible to the method ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=SLOW)])
def test_pfm_with_one_of_three_parties_over_several_processes_is_the_run_over_one(tmp_path: Path, size: int) -> None:
    method, _ = worlds.recipe("pfm")
    one = run(method, tmp_path / "one", EXACT, numerics=ONE)
    many = run(
        method, tmp_path / "many", EXACT, numerics=dataclasses.replace(SHARDS, processes_per_party={PARTY: size})
    )
    check_same(many, one)
    assert not torch.equal(one.state.backbone["up.weight"], EXACT().backbone.shared()["up.weight"])
    parts, (whole,) = private_parts(many, size=size), private_parts(one, size=1)
    assert [len(part.head) for part in parts] == {2: [1, 1], 3: [0, 1, 1]}[size]  # of two identities
    assert (torch.cat([part.head for part in parts]) - whole.head).abs().max() < 1e-9
    moved = torch.cat([part.velocity[HEAD] for part in parts])
    assert (moved - whole.velocity[HEAD]).abs().max() < 1e-9


APART = {
    *("pfm", "dan", "dann", "moon", "fedfr-joint", "adafedfr", "ss-fedfr", "cl-fedfr", "finetune", "kd"),
    *("fedface-multi", "fedgc", "privacyface", "distill"),
}
SEVERAL = [name for name, cls in METHODS.items() if cls.scenario != "devices" and name not in APART]
"""Methods whose parties have class embeddings to share out; `pfm` is looked at more closely above, and neither batches
of two domains nor several losses over one batch are split, nor class embeddings that are sent, nor a softmax
with others' clusters; `distill` has none."""


PLACES = [(name, -1) for name in SEVERAL] + [("fedfr-uda", 0)]
"""Each with the place of the party that is split: of those for two domains a target, and once the source."""


@pytest.mark.parametrize(
    ("name", "place"), [pytest.param(*one, marks=() if one[0] == "mime" else SLOW) for one in PLACES]
)
def test_every_method_over_several_processes_is_the_run_over_one(tmp_path: Path, name: str, place: int) -> None:
    method, build = worlds.recipe(name, rounds=2)
    exact = not build.validators  # who evaluate in float32
    build = dataclasses.replace(build, norm=True, double=exact)
    numerics = dataclasses.replace(SHARDS, processes_per_party={list(build.data())[place]: 2})
    one = run(method, tmp_path / "one", build, numerics=ONE)
    many = run(method, tmp_path / "many", build, numerics=numerics)
    check_same(many, one, 1e-9 if exact else 1e-4)


@pytest.mark.slow
@pytest.mark.ci
def test_what_stays_at_a_party_is_made_by_all_its_processes(tmp_path: Path) -> None:
    build = dataclasses.replace(EXACT, policy="local")
    method, _ = worlds.recipe("pfm")
    one = run(method, tmp_path / "one", build, numerics=ONE).own_models()
    many = run(method, tmp_path / "many", build, numerics=SHARDS)
    models = many.own_models()
    many.server.transport.close()
    assert (
        all((models[p][n] - one[p][n]).abs().max() < 1e-9 for p in one for n in one[p]) and models.keys() == one.keys()
    )


@pytest.mark.parametrize(
    "method", [pytest.param(Moves(rounds=3, note=True), marks=SLOW), Lagged(rounds=4, lag=2)], ids=["asked", "posted"]
)
def test_steps_that_do_not_train_give_the_same_bytes(tmp_path: Path, method: Method) -> None:
    build = Tiny(parties=6, roles=(("silo-4", "validator"), ("silo-5", "validator")))
    one = run(method, tmp_path / "one", build, numerics=ONE).bytes()
    many = run(method, tmp_path / "many", build, numerics=SHARDS).bytes()
    assert {name: many[name] for name in one} == one
    assert {name.partition(" of shard")[0] for name in many} == set(one)


@pytest.mark.slow
@pytest.mark.ci
def test_workers_give_the_bytes_of_one_process_for_each_party(tmp_path: Path) -> None:
    method, _ = worlds.recipe("pfm")
    alone = run(method, tmp_path / "alone", EXACT, numerics=SHARDS).bytes()
    assert run(method, tmp_path / "many", EXACT, numerics=SHARDS, transport=workers(1)).bytes() == alone


def test_a_step_that_looks_at_a_part_of_what_is_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        RunFailed, match=r"silo-1, step tell, .*shard 1 of 2 came to another reply.*engine.processes_per_party"
    ):
        run(Tells(), tmp_path, EXACT, numerics=SHARDS)
    assert run(Tells(), tmp_path / "one", EXACT, numerics=ONE).state.total > 0


def test_a_loss_that_cannot_be_split_fails_by_name(tmp_path: Path) -> None:
    method, _ = worlds.recipe("pfm", loss=LOSSES["adaface"]())
    with pytest.raises(RunFailed, match=r"silo-1, step train, .*AdaFace cannot be computed over several processes"):
        run(method, tmp_path, EXACT, numerics=SHARDS)


# --- one commit -------------------------------------------------------------------------------------------------------


class Looking(InProcess):
    """Looks at the party's folder after each of its replies."""

    seen: list[list[str]] = []

    def exchange(self, requests: Any) -> Any:
        for request, reply in super().exchange(requests):
            if request.party == PARTY:
                folder = self._context.folder / "parties" / PARTY
                commits = [Commit.open(path) for path in folder.glob("*.commit")]
                shard_names = [name for commit in commits for name in commit.shards]
                assert [len(commit.shards) for commit in commits] == [1] * len(commits)
                assert sorted(shard_names) == sorted(path.name for path in folder.glob("*.shard"))  # no rubbish
                assert {commit.path.name.partition(".commit")[0] for commit in commits if commit.path} == {
                    name.rpartition(".1-")[0] for name in shard_names
                }
                Looking.seen.append(shard_names)
            yield request, reply


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("save_replies", [True, pytest.param(False, marks=SLOW)])
def test_one_commit_names_the_parts_of_all_and_goes_with_them(tmp_path: Path, save_replies: bool) -> None:
    Looking.seen = []
    method, _ = worlds.recipe("pfm", rounds=6)
    run(method, tmp_path, EXACT, numerics=SHARDS, transport=Looking, keep_checkpoints=1, save_replies=save_replies)
    assert len(Looking.seen) == 6 and max(map(len, Looking.seen)) <= 3  # what no resume can need is gone
    assert [name.partition(".")[2].rpartition(".")[2] for name in files(tmp_path)] == ["shard", "commit"]


@pytest.mark.parametrize(
    ("after", "save_replies"), [pytest.param(n, save, marks=SLOW) for save in (True, False) for n in (0, 1, 4, 5, 8)]
)
def test_stopped_anywhere_and_resumed_is_the_unbroken_run(tmp_path: Path, after: int, save_replies: bool) -> None:
    method, _ = worlds.recipe("pfm")
    settings: dict[str, Any] = {"numerics": SHARDS, "checkpoint_every": 2, "save_replies": save_replies}
    unbroken = run(method, tmp_path / "unbroken", EXACT, **settings).bytes()
    with pytest.raises(Stop):
        run(method, tmp_path / "broken", EXACT, transport=stopping(after), **settings)
    assert run(method, tmp_path / "broken", EXACT, **settings).bytes() == unbroken
    assert len(files(tmp_path / "broken")) == 2


@pytest.mark.slow
@pytest.mark.ci
def test_parts_without_a_commit_are_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, _ = worlds.recipe("pfm")
    unbroken = run(method, tmp_path / "unbroken", EXACT, numerics=SHARDS).bytes()
    write = executor.write_commit

    def crash(path: Path, *args: Any, **more: Any) -> None:
        if path.parent.name == PARTY and path.name.startswith("0000003"):
            raise Stop
        write(path, *args, **more)

    monkeypatch.setattr(executor, "write_commit", crash)
    with pytest.raises(Stop):
        run(method, tmp_path / "broken", EXACT, numerics=SHARDS)
    (shard,) = (tmp_path / "broken" / "parties" / PARTY).glob("0000003*.shard")  # written, and no commit names it
    assert not list(shard.parent.glob("0000003*.commit"))
    shard.write_bytes(b"rubbish")
    monkeypatch.setattr(executor, "write_commit", write)
    assert run(method, tmp_path / "broken", EXACT, numerics=SHARDS).bytes() == unbroken
    assert files(tmp_path / "broken") == files(tmp_path / "unbroken")


@pytest.mark.slow
@pytest.mark.ci
def test_a_part_that_is_missing_is_named(tmp_path: Path) -> None:
    method, _ = worlds.recipe("pfm")
    with pytest.raises(Stop):
        run(method, tmp_path, EXACT, numerics=SHARDS, transport=stopping(5))
    for path in (tmp_path / "parties" / PARTY).glob("0000002*.shard"):  # of what the server accepted
        path.unlink()
    with pytest.raises(RunFailed, match=r"\.shard: the private state .* is not here"):
        run(method, tmp_path, EXACT, numerics=SHARDS)


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    method, _ = worlds.recipe("pfm")
    assert len(private_parts(run(method, tmp_path, EXACT, numerics=SHARDS))) == 2
    (path,) = (tmp_path / "parties" / PARTY).glob("*.commit")
    (whole,) = (tmp_path / "parties" / "silo-0").glob("*.commit")
    for other, size in ((ONE, 1), (dataclasses.replace(SHARDS, processes_per_party={PARTY: 3}), 3)):
        with pytest.raises(CheckpointError, match=r"other numerics: processes_per_party \{'silo-1': 2\} \(now"):
            run(method, tmp_path, EXACT, numerics=other)
        with pytest.raises(ValueError, match=r"lies in 2 parts.*engine.processes_per_party"):
            Commit.open(path).part(0, size)
    with pytest.raises(ValueError, match=r"lies in 1 parts"):
        Commit.open(whole).part(1, 2)


def test_a_commit_from_another_base_has_parts_of_its_own(tmp_path: Path) -> None:
    setup = tiny_federation.setup(worlds.recipe("fedavg", momentum="keep")[0], tmp_path, EXACT, numerics=SHARDS)
    sent = codec.encode(Global(backbone=EXACT().backbone.shared()))
    first, second, third = (
        Request("test", PARTY, "train", n, 3, n, 1, "train", sent, None, None, (0, None)) for n in (1, 2, 3)
    )
    with contextlib.closing(ProcessGroups(setup)) as groups:
        party_executor = PartyExecutor(dataclasses.replace(setup.context(EXACT()), group=groups.of), PARTY)
        party_executor.answer(first)
        fresh = data(party_executor.answer(second))
        (part,) = party_executor.folder.glob(f"{second.id}*.shard")
        again = dataclasses.replace(second, base=first.id)  # a resume accepted the first after all
        later = data(party_executor.answer(again))
        assert later != fresh and data(party_executor.answer(again)) == later
        assert len(list(party_executor.folder.glob(f"{second.id}*.shard"))) == 2 and part.name not in named(
            party_executor, second
        )
        party_executor.answer(dataclasses.replace(third, base=second.id))
        assert not part.exists() and named(party_executor, second)[0] in files(tmp_path)
        party_executor.commits.finalize(third.id, 3)
        assert files(tmp_path) == sorted([f"{third.id}.commit", *named(party_executor, third)])


def named(party_executor: PartyExecutor, request: Request) -> tuple[str, ...]:
    return Commit.open(party_executor.folder / f"{request.id}.commit").shards


@pytest.mark.parametrize("flush", [True, False])
def test_a_part_is_flushed_where_the_site_says_so(tmp_path: Path, flush: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    context = tiny_federation.setup(worlds.recipe("fedavg")[0], tmp_path, EXACT, numerics=SHARDS).context(EXACT())
    sent = codec.encode(Global(backbone=EXACT().backbone.shared()))
    request = Request("test", PARTY, "train", 1, 3, 1, 1, "train", sent, None, None, (0, None))
    (tmp_path / "parties" / PARTY).mkdir(parents=True)
    sums, keep = PartyExecutor(dataclasses.replace(context, rank=1), PARTY).share(request)
    assert sums and not flushed
    part = Commit.open(tmp_path / "parties" / PARTY / keep(flush))
    assert list(part.spans) == ["Learner"]
    assert len(flushed) == (2 if flush else 0)  # the file, and the folder that names it


# --- processes that die -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("die", r"shard 1 of 2 died .*exit code -9.*resume the run"),
        pytest.param("fail", "shard 1 of 2: OSError: the disk is gone", marks=SLOW),
    ],
)
@pytest.mark.parametrize("after", [2, pytest.param(7, marks=SLOW)])
def test_one_process_that_fails_ends_the_run_with_its_reason_and_a_resume_goes_on(
    tmp_path: Path, how: str, said: str, after: int
) -> None:
    method, _ = worlds.recipe("pfm")
    unbroken = run(method, tmp_path / "unbroken", EXACT, numerics=SHARDS).bytes()
    trap = Trap(double=True, norm=True, how=how, after=after, marker=str(tmp_path / "sprung"))
    with pytest.raises(RunFailed, match=rf"silo-1, step train, train round \d: .*{said}"):
        run(method, tmp_path / "broken", trap, numerics=SHARDS)
    assert Path(trap.marker).exists() and not multiprocessing.active_children()
    assert run(method, tmp_path / "broken", trap, numerics=SHARDS).bytes() == unbroken


@pytest.mark.slow
@pytest.mark.ci
def test_a_process_that_stands_still_does_not_hang_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "PATIENCE", timedelta(seconds=1))
    monkeypatch.setattr(sharding, "_LAST_WORDS", 0.5)
    method, _ = worlds.recipe("pfm")
    trap = Trap(double=True, norm=True, how="stop", after=2, marker=str(tmp_path / "sprung"))
    with pytest.raises(RunFailed, match=r"silo-1, step train, .*shard 0 of 2 lost another one"):
        run(method, tmp_path / "run", trap, numerics=SHARDS)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("on_error", ["stop", pytest.param("exclude", marks=SLOW)])
def test_a_world_that_a_helper_cannot_build_ends_the_run_and_is_said(tmp_path: Path, on_error: str) -> None:
    method, _ = worlds.recipe("pfm")
    with pytest.raises(
        RunFailed, match=r"silo-1, shard 1 of 2 could not begin: ZeroDivisionError.*no engine.processes_per_party"
    ):
        run(method, tmp_path, Unbuildable(double=True, norm=True), numerics=SHARDS, on_error=on_error)


class Unbuildable(Tiny):
    """A world that only the first process can build."""

    def __call__(self) -> Any:
        return super().__call__() if multiprocessing.parent_process() is None else 1 / 0


def killed(tmp_path: Path, kills: list[tuple[int, float]], whole: bool) -> None:
    """Begin a run, kill -9 it so many seconds after so many rounds, the whole group or the first process; resume."""
    unbroken = run(grouped_runs.long(), tmp_path / "unbroken", EXACT, numerics=SHARDS, checkpoint_every=2).bytes()
    paths = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    reached = []
    for place, (rounds, delay) in enumerate(kills):
        folder = tmp_path / str(place)
        begins = f"grouped_runs.begin(pathlib.Path({str(folder)!r}))"
        code = f"import grouped_runs, pathlib\nif __name__ == '__main__': {begins}"
        script = tmp_path / f"{place}.py"
        script.write_text(code)
        started = subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": paths})
        metrics_file, until = folder / "metrics.jsonl", time.monotonic() + 240
        try:
            while not metrics_file.exists() or metrics_file.read_text().count("\n") < rounds:
                assert started.poll() is None and time.monotonic() < until, "the run ended before it could be killed"
                time.sleep(0.002)
            time.sleep(delay)
        finally:
            (os.killpg if whole else os.kill)(started.pid, signal.SIGKILL)
            started.wait()
        reached.append(metrics_file.read_text().count("\n"))
        assert run(grouped_runs.long(), folder, EXACT, numerics=SHARDS, checkpoint_every=2).bytes() == unbroken
        for path in (folder / "ledger").iterdir():
            ledger.verify(path)
        assert len(files(folder)) == 2
    assert min(reached) < 12


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("whole", [True, False], ids=["group", "executor"])
def test_killed_in_a_round_and_resumed_is_the_unbroken_run(tmp_path: Path, whole: bool) -> None:
    killed(tmp_path, [(3, 0.01)], whole)
