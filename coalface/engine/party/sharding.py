"""A party that several processes play: the executor's own process, and helpers that it starts and gives requests to.

All run the same step with the same messages and the same random stream; `coalface.training` splits the work among them.
Only the first has an executor: it answers the server, writes the ledger and the commit, which names the helpers' parts
of the private state. They have written those by then, so that there is one commit or none.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coalface.core import codec
from coalface.core.method import Party
from coalface.engine import processes
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.party.request import Request
from coalface.engine.party.setup import Setup
from coalface.training.distributed.shards import PATIENCE, ShardLost, Shards

_LAST_WORDS = 10.0  # seconds that a helper has to say why it failed, once another process lost it


class ShardFailed(RuntimeError):
    """What went wrong in another process of a party, in its own words."""


class _ShardDied(ShardLost):
    """A helper is gone without a word."""


class ProcessGroups:
    """The helpers of the parties that this process plays; a party's are started when it is first asked."""

    def __init__(self, setup: Setup) -> None:
        """Raises RunFailed where helpers are needed, and what they need cannot be sent to them."""
        self._setup = setup
        self._given = processes.packed(setup) if setup.numerics.processes_per_party else b""
        self._groups: dict[str, ProcessGroup] = {}

    def of(self, party: str) -> ProcessGroup | None:
        """The party's; None where one process plays it. Raises NotBegun, ShardLost, OSError where they do not start."""
        size = self._setup.numerics.processes_per_party.get(party, 1)
        if size == 1:
            return None
        if party not in self._groups or self._groups[party].gone:
            self._groups[party] = ProcessGroup(self._setup, self._given, party, size)
        return self._groups[party]

    def close(self) -> None:
        """End all helpers."""
        for group in self._groups.values():
            group.close()


@dataclass(frozen=True)
class _Helper:
    rank: int
    process: Any
    pipe: Any


class ProcessGroup:
    """The helpers of one party: processes 1 to S − 1 beside this one, which is 0."""

    def __init__(self, setup: Setup, pickled_setup: bytes, party: str, size: int) -> None:
        self.gone = False
        self._party, self._size = party, size
        self._helpers: list[_Helper] = []
        self._sums: list[tuple[str, ...]] = []
        folder = tempfile.mkdtemp(prefix="coalface-")
        self._clear = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        context = processes.spawn_context()
        meeting = Path(folder) / "meeting"
        self._begun = False
        with self._ending():
            for rank in range(1, size):
                near_end, far_end = context.Pipe()
                arguments = (pickled_setup, setup.folder, party, rank, size, meeting, far_end)
                process = context.Process(target=_help, args=arguments, daemon=True)
                with processes.starting():
                    process.start()
                far_end.close()
                self._helpers.append(_Helper(rank, process, near_end))
            self._hear(None)  # that each has built its world, however long that takes
            self._begun = True
            self._tell("meet")
            self.shards = Shards.join(meeting, 0, size, device=setup.numerics.device, patience=PATIENCE)

    @contextlib.contextmanager
    def beside(self, request: Request) -> Iterator[None]:
        """Within, each helper runs the request's step too. Raises ShardFailed, or ShardLost where one died."""
        with self._ending():
            self._tell(replace(request, common=_bare(request.common), each=_bare(request.each)))
            yield
            self._sums = self._hear(PATIENCE.total_seconds())

    def agree(self, sums: tuple[str, ...]) -> None:
        """Raise ValueError unless the helpers' replies have the same hashes as this process's."""
        if ranks := [rank for rank, helper_sums in enumerate(self._sums, 1) if helper_sums != sums]:
            self.close()
            raise ValueError(
                f"shard {ranks[0]} of {self._size} came to another reply than shard 0: the step looks at class "
                f"embeddings that are split among them. Leave {self._party} out of engine.processes_per_party"
            )

    def keep(self, request: Request, *, flush: bool) -> tuple[str, ...]:
        """Each helper writes its part of the private state; the names of the files. Raises as `beside`."""
        with self._ending():
            self._tell(flush)
            return tuple(self._hear(PATIENCE.total_seconds()))

    def close(self) -> None:
        """End the helpers at once: they hold nothing that a commit does not."""
        self.gone = True
        for helper in self._helpers:
            helper.process.kill()
            helper.process.join()
            helper.pipe.close()
        self._helpers.clear()
        self._clear()

    def _tell(self, task: Any) -> None:
        for helper in self._helpers:
            try:
                helper.pipe.send(task)
            except OSError:
                raise self._died(helper) from None

    def _hear(self, patience: float | None) -> list[Any]:
        """What each helper answers."""
        return [self._answer(helper, patience) for helper in self._helpers]

    def _answer(self, helper: _Helper, patience: float | None) -> Any:
        if not multiprocessing.connection.wait([helper.pipe, helper.process.sentinel], patience):
            raise ShardLost(f"shard {helper.rank} of {self._size} has not answered for {patience:g} seconds")
        try:
            if not helper.pipe.poll():
                raise EOFError
            fine, result = helper.pipe.recv()
        except (EOFError, OSError):
            raise self._died(helper) from None
        if not fine:
            raise result
        return result

    def _died(self, helper: _Helper) -> RuntimeError:
        helper.process.join(_LAST_WORDS)
        code = helper.process.exitcode
        why = "killed, or out of memory" if code is None or code < 0 else "its own output may say why"
        died = f"shard {helper.rank} of {self._size} died (exit code {code}: {why})"
        if not self._begun and code == 1:  # Python's, where what it imports raises
            return processes.NotBegun(f"{self._party}, {died}. {processes.ADVICE}.")
        return _ShardDied(f"{died}. What was checkpointed is safe: resume the run")

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Within, an error ends the helpers; where another process was lost, what ended that one is raised instead."""
        try:
            yield
        except BaseException as error:
            try:
                if type(error) is ShardLost and (cause := self._last_words()) is not None:
                    raise cause from error
            finally:
                self.close()
            raise

    def _last_words(self) -> Exception | None:
        until, pipes = time.monotonic() + _LAST_WORDS, {h.pipe: h for h in self._helpers}
        while pipes and (ready := multiprocessing.connection.wait(list(pipes), max(0.0, until - time.monotonic()))):
            for pipe in ready:
                try:
                    self._answer(pipes[pipe], 0)
                except (ShardFailed, _ShardDied) as cause:
                    return cause
                except ShardLost:  # it lost another one too
                    del pipes[pipe]
        return None


def _bare(message: codec.Encoded | None) -> codec.Encoded | None:
    """The bytes of a message alone, to be sent."""
    return None if message is None else codec.Encoded(message.data)


def _help(pickled_setup: bytes, folder: Path, party: str, rank: int, size: int, meeting: Path, pipe: Any) -> None:
    """What a helper does: the step of each request that it is handed, then its part of the commit if there is one."""
    ready = False
    try:
        processes.join_run(folder)
        setup: Setup = processes.unpacked(pickled_setup)
        setup.prepare()
        if setup.numerics.device == "cuda":
            torch.cuda.set_device(rank)
        executor_context = setup.context(setup.build())
        pipe.send((True, None))
        ready = True
        pipe.recv()
        shards = Shards.join(meeting, rank, size, device=setup.numerics.device, patience=PATIENCE)

        def joined(request: Request) -> Party:
            return replace(executor_context.party(request), shards=shards)

        executor = PartyExecutor(replace(executor_context, party=joined, rank=rank), party)
        keep: Callable[[bool], str] | None = None
        while True:
            task = pipe.recv()
            if keep is not None and not isinstance(task, Request):
                result: Any = keep(task)
                keep = None  # with the private state that it would write
            else:
                keep = None
                result, keep = executor.share(task)
            pipe.send((True, result))
    except EOFError:  # the executor's process has closed its end
        return
    except Exception as error:
        if not ready:
            pipe.send((False, processes.not_begun(error, f"{party}, shard {rank} of {size}")))
            return
        cause = error.__cause__ or error
        why = f"shard {rank} of {size}: {type(cause).__name__}: {cause}"
        pipe.send((False, ShardLost(why) if isinstance(cause, ShardLost) else ShardFailed(why)))
