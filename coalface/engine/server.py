"""The server's side of a run, the same for every engine: stages, rounds, accepting, checkpoints, observers."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from coalface.core import codec
from coalface.core.calls import check_state
from coalface.core.method import Abandoned, Models, Stage, Tensors, generator
from coalface.core.steps import LocalResult
from coalface.core.text import told
from coalface.engine import checkpoint
from coalface.engine.federation import ServerFederation
from coalface.engine.receipts import Countersigns
from coalface.engine.rounds import Round
from coalface.engine.run_state import PartyStats, check_same
from coalface.engine.sums.private import TargetReached
from coalface.engine.transport import RunFailed
from coalface.privacy.ledger import Head
from coalface.training.server_optimizers import Moments

READ = 200
"""Ledgers whose chain is followed from the start where a run is resumed or ends; of the others the head is checked."""


Observer = Callable[["Server", Models], dict[str, Any]]
"""Evaluates models outside the method, by a generator of its own; its answer is the round's `judged`."""


@dataclasses.dataclass(eq=False, repr=False)
class Server(ServerFederation):
    """Runs a method over a transport; leaves `checkpoints/`, `metrics.jsonl` and `events.jsonl` in its folder."""

    _: dataclasses.KW_ONLY
    observers: Sequence[Observer] = ()
    report: Callable[[dict[str, Any]], None] = lambda record: None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._countersigns: Countersigns | None = None
        self._metrics = hashlib.sha256()
        """Of the lines of the metrics so far."""
        self._advanced = False
        """Whether a round was accepted since the last checkpoint."""
        self._held: dict[str, str] | None = None
        """Accepted commits that were found whole at their parties."""
        self._first_faults: dict[str, str] = {}
        """What was wrong at parties by the last checkpoint; a look by an earlier one drops commits that are damaged."""
        self.ended = ""
        """Why the run ended before all of its rounds, if it did."""
        self._late: dict[str, int] = {}
        """What the transport has counted by the last line of the events."""

    def run(self) -> tuple[Any, Models]:
        """Run all stages, from the last checkpoint if there is one; returns the last state and what the run leaves.

        A stage ends before the round whose sums would pass `target_epsilon`. Raises RunFailed after
        `max_abandoned_rounds` in a row, or at a failed step if `on_error` is `stop`.
        """
        state = self._restore()
        for index in range(self.at.stage, len(self._stages)):
            if self.at.stage != index or state is None:
                self.at.stage, self.at.round = index, 0
                state = self._begin(state)
            while self.at.round < self._stage.rounds:
                self.at.round += 1
                try:
                    if self.private is not None:
                        self.private.check_round(self._stage.name, self.at.round)
                    state = self._one_round(state, last=self.at.round == self._stage.rounds)
                except TargetReached as error:
                    self._end(state, str(error))
                    break
            active = [party for party, stats in self.at.party_stats.items() if stats != PartyStats()]
            self.transport.finalize({party: self.at.accepted.get(party) for party in active}, self.at.ordinal)
        return state, self.method.models(self, state)

    def local_results(self, kind: LocalResult, models: Models, each: Any = None) -> Iterator[tuple[str, Tensors]]:
        """(party, what it tells) of a kind, from the method's step that gives it; `each` is what the kind puts to them.

        Nothing where the method has no such step, or `models` has not the message that it needs. Nothing of it is a
        message, a commit or a line of a ledger, and no method asks for it: it is for the lab's evaluators.
        """
        if (step := self.method.local_step(kind)) is None:
            return iter(())
        declaration = self.method.find(step)[1]
        common = models.common if declaration.common is not None else None
        if common is None and declaration.common is not None and "common" not in declaration.optional:
            return iter(())
        messages = None if kind.each is None else dict.fromkeys(self.parties(declaration.role), each)
        return self.transport.local_results(self._requests(self._call(step, None, common, messages, None), None))

    def resumes_after(self) -> tuple[int, Mapping[str, int], tuple[str, ...]]:
        """Rounds that a resume of this folder need not repeat, and the bytes that they sent down and up.

        And why later checkpoints cannot be gone on from, if there are any.
        """
        last = self._last_checkpoint()
        if last is None:
            return 0, self.at.totals, ()
        rounds = sum(s.rounds for s in self._stages[: last.stage]) + last.round
        return rounds, last.record["totals"], last.passed_over

    def check_ledgers(self) -> dict[str, str]:
        """What is wrong with ledgers, by party: their heads are held against the accepted commits, as `READ` says."""
        parties = {party: self.at.accepted.get(party) for party in self.at.party_stats}
        return self._client_batches.check() | self.transport.check(parties, READ)

    def _end(self, state: Any, why: str) -> None:
        """End a stage before the round that was about to begin, or had just."""
        self.at.round -= 1
        self.ended = f"after round {self.at.round} of {self._stage.rounds}: {why}"
        if self._advanced:
            self._checkpoint(state, keep=1)
        self._write_line("events.jsonl", {"event": "ended", "why": self.ended, "time": time.time()})

    @property
    def _stage(self) -> Stage:
        return self._stages[self.at.stage]

    def _start(self) -> None:
        self.at.ordinal += 1
        self._now = Round()
        if self.private is not None:
            self.private.begin_round(self.at.round)
        self.rng = generator(self._seed, "server", self._stage.name, self.at.round)

    def _optimized(self, before: Any, after: Any) -> tuple[Any, Moments | None]:
        """The state after a round with its backbone as the server optimiser moves it, and the optimiser's moments.

        A round that leaves the backbone alone, such as one that labels images, is no step.
        """
        optimizer = self.round_policy.server_optimizer
        if optimizer is None or after.backbone is before.backbone:
            return after, self.at.moments
        moments = self.at.moments or optimizer.start(self.zeros())
        backbone, moments = optimizer.step(before.backbone, after.backbone, moments)
        if (name := codec.not_finite(moments)) is not None:
            raise Abandoned(f"the server optimiser's moments are not finite: {name}")
        return dataclasses.replace(after, backbone=backbone), moments

    def _accept(self, state: Any, *, beginning: bool = False) -> Any:
        """Take up a state and the replies that it came of. Raises Abandoned where nobody could train from it."""
        check_state(self.method, self._stage, state, beginning=beginning)
        if (name := codec.not_finite(state)) is not None:
            raise Abandoned(f"what came of the replies is not finite: {name}")
        self.at.accepted |= self._now.accepted
        head = self._receipts.write(self._now.receipts, flush=self.round_policy.countersign)
        if self.round_policy.countersign and self._now.receipts:
            self._countersign(head)
        return state

    def _countersign(self, head: Head) -> None:
        """Sign the receipts so far, and have one of the round's parties sign them, which a stream of its own draws."""
        assert self._countersigns is not None
        parties = sorted({receipt["party"] for receipt in self._now.receipts})
        stage = self._stage.name
        drawn = generator(self.round_policy.seed, "countersign", stage, self.at.round).integers(len(parties))
        about = {"run": self.round_policy.run, "stage": stage, "round": self.at.round}
        if why := self._countersigns.sign(about, head, party := parties[drawn]):
            event = {"event": "not countersigned", **about, "party": party, "why": told(why), "time": time.time()}
            self._write_line("events.jsonl", event)

    def _count(self) -> None:
        for kind, count in self._now.bytes.items():
            self.at.totals[kind] = self.at.totals.get(kind, 0) + count

    def _begin(self, before: Any) -> Any:
        self._start()
        self.at.moments = None
        try:
            state = self._accept(self._stage.begin(self, before), beginning=True)
        except (Abandoned, TargetReached) as error:
            raise RunFailed(f"stage {self._stage.name} could not begin: {error}") from error
        if not self._stage.rounds:
            self._drain(list(self.at.posted))
        self._count()
        return state

    def _one_round(self, state: Any, *, last: bool) -> Any:
        self._start()
        started, abandoned, kept_open = time.perf_counter(), None, dict(self.at.posted)
        try:
            moved, moments = self._optimized(state, self._stage.round(self, state))
            state = self._accept(moved)
            self.at.moments, self.at.abandoned, self._advanced = moments, 0, True
        except Abandoned as error:
            abandoned, self.at.abandoned = str(error), self.at.abandoned + 1
            self._drain(t for t in list(self.at.posted) if t not in kept_open)  # they start from what was accepted
            self._now.accepted.clear()
            self.at.posted = kept_open
        if last:
            self._drain(list(self.at.posted))
        trained = time.perf_counter()
        for party in self._now.arrived:
            self.at.party_stats[party].rounds += abandoned is None
        self._count()
        if self.private is not None:
            self._now.metrics |= self.private.metrics(self._stage.name, self.at.round)
        if self.templates is not None:
            self._now.metrics |= self.templates.metrics(self._stage.name, self.at.round)
        record = self._now.record(self._stage.name, self.at.round, abandoned)
        if self.round_policy.evaluate_every and (self.at.round % self.round_policy.evaluate_every == 0 or last):
            models = self.method.models(self, state)
            record["judged"] = {k: v for observe in self.observers for k, v in observe(self, models).items()}
        evaluated = time.perf_counter()
        self.at.seconds["training"] += trained - started
        self.at.seconds["judging"] += evaluated - trained
        self._metrics.update(self._write_line("metrics.jsonl", record))
        in_a_row = self.at.abandoned
        over = abandoned is not None and in_a_row >= self.round_policy.max_abandoned_rounds
        if over:  # a resume goes on from here and counts anew; one after a kill in the row goes on counting
            self.at.abandoned = 0
        if last or over or self.at.ordinal % self.round_policy.checkpoint_every == 0:
            self._checkpoint(state, keep=1 if last else self.round_policy.keep_checkpoints)
        ended = time.perf_counter()
        self.at.seconds["checkpoint"] += ended - evaluated
        clock = {"seconds": ended - started, "checkpoint_seconds": ended - evaluated}
        event = {"event": "round", "stage": record["stage"], "round": self.at.round, **clock, **self._now.clock()}
        if late := {p: new for p, n in self.transport.late.items() if (new := n - self._late.get(p, 0))}:
            self._late, event["late"] = dict(self.transport.late), late
        if self._now.apart:
            event["apart"] = dict(self._now.apart)
        self._write_line("events.jsonl", event)
        self.report({**record, **clock, "apart": dict(self._now.apart)})
        if over:
            row = "a round was abandoned" if in_a_row == 1 else f"{in_a_row} rounds in a row were abandoned; the last"
            raise RunFailed(
                f"{row}: {abandoned}. The model is as it was before. Mend the parties and resume, or resume with a "
                f"lower engine.min_reply_fraction (now {self.round_policy.min_reply_fraction:g}), or raise "
                f"engine.max_abandoned_rounds (now {self.round_policy.max_abandoned_rounds}).{self._ways_back()}"
            )
        return state

    def _ways_back(self) -> str:
        """What to do where what was accepted before is why no round can be any more."""
        rounds = [stage.rounds for stage in self._stages]
        if len(ends := sorted(checkpoint.accepted_ends(self.folder / "checkpoints", rounds))) < 2:
            return ""
        *earlier, last = map(str, ends)
        return (
            f" If the model itself is spoilt: accepted checkpoints are those after round {', '.join(earlier)} and "
            f"{last}; `coalface resume {quote(str(self.folder))} --from-round {quote(earlier[-1])}` goes back to one."
        )

    # --- what a resume needs ------------------------------------------------------------------------------------------

    @property
    def _row_policy(self) -> dict[str, float]:
        return {"quorum": self.round_policy.min_reply_fraction, "patience": self.round_policy.max_abandoned_rounds}

    def _checkpoint(self, state: Any, *, keep: int) -> None:
        at = self.at
        length = (self.folder / "metrics.jsonl").stat().st_size
        record, posted = at.record(self.numerics, self.round_policy.seed, length)
        record["metrics_sha256"] = self._metrics.hexdigest()
        record["rules"], record["cohorts"] = self._row_policy, self._client_batches.size
        record["receipts"] = vars(self._receipts.head)
        if self.private is not None:
            record["noised"] = self.private.opened.record_lines() | {"ended": self.ended}
        if self.templates is not None:
            record["released"] = self.templates.listed.record_lines() | {"ended": self.ended}
        packed = bytes(codec.pack(state).data)
        current = checkpoint.Checkpoint(at.ordinal, at.stage, at.round, packed, record, posted)
        os.sync()  # the parties' commits of these rounds before the checkpoint that names them
        checkpoint.save(self.folder / "checkpoints", current, keep=keep, advanced=self._advanced)
        if self._advanced:
            at.horizons = [*at.horizons, at.horizon][-keep:]
        self._advanced = False

    def _refuse_faults(self) -> None:
        """Raise RunFailed where what a party keeps does not hold; with `on_error=exclude` it is left out from here,
        unless nobody is left.
        """
        looked = self._held == self.at.accepted  # for the checkpoint, an instant ago
        faults = self._client_batches.check() if looked else self.check_ledgers()
        faults |= {party: why for party, why in self._first_faults.items() if party in faults}
        if self.round_policy.on_error == "exclude" and len(faults) < len(self.at.party_stats):
            self._left_out |= faults
            for party, why in faults.items():
                event = {"event": "left out", "party": party, "why": told(why), "time": time.time()}
                self._write_line("events.jsonl", event)
        elif faults:
            elsewhere = f" (so it is at {len(faults) - 1} other parties)" if len(faults) > 1 else ""
            raise RunFailed(f"{next(iter(faults.values()))}{elsewhere}")

    def _last_checkpoint(self) -> checkpoint.Checkpoint | None:
        """The last checkpoint whose private states are whole at their parties too, if there is one; else the last."""
        folder = self.folder / "checkpoints"
        if self.round_policy.on_error == "stop":  # else the party is left out
            with contextlib.suppress(checkpoint.CheckpointError):  # `_refuse_faults` says what is wrong
                return checkpoint.load(folder, self._read_parties)
        return checkpoint.load(folder, self._read_metrics)

    def _read_parties(self, record: Mapping[str, Any]) -> None:
        """As `_read_metrics`; and raises ValueError where a party does not hold what was accepted of it."""
        self._read_metrics(record)
        accepted = record["accepted"]
        if accepted == self._held:
            return
        faults = self.transport.check({party: accepted.get(party) for party in self.at.party_stats}, READ)
        if faults:
            self._first_faults = self._first_faults or faults
            raise ValueError(next(iter(faults.values())))
        self._held = accepted

    def _read_metrics(self, record: Mapping[str, Any]) -> None:
        """Begin the digest with the lines of a checkpoint. Raises ValueError where these are not in the file."""
        path, size = self.folder / "metrics.jsonl", record["metrics"]
        with open(path, "rb") as file:
            lines = file.read(size)
        self._metrics = hashlib.sha256(lines)
        if len(lines) < size:
            raise ValueError(f"{path} has {len(lines)} bytes, and had {size}: lines were removed")
        if record.get("metrics_sha256", self._metrics.hexdigest()) != self._metrics.hexdigest():
            raise ValueError(f"{path} is not as it was written, its SHA-256 is another")

    def _restore(self) -> Any:
        last = self._last_checkpoint()
        metrics = self.folder / "metrics.jsonl"
        try:  # before its chain is followed: a kill may have cut off the last line
            self._client_batches.cut(0 if last is None else last.record.get("cohorts", 0))
            self._receipts.restore(None if last is None else last.record.get("receipts"))
            if self.round_policy.countersign:
                self._countersigns = Countersigns(self.folder, self.transport.countersign)
            if self.private is not None and last is not None:
                self.private.opened.check(last.record.get("noised"))
            if self.templates is not None and last is not None:
                self.templates.listed.check(last.record.get("released"))
        except ValueError as error:
            raise RunFailed(str(error)) from error
        if last is None:
            self._refuse_faults()
            metrics.write_bytes(b"")
            return None
        for why in last.passed_over:
            self._write_line("events.jsonl", {"event": "passed over", "why": why, "time": time.time()})
        check_same(last.record, self.numerics, self.round_policy.seed)
        self.ended = (last.record.get("noised") or last.record.get("released", {})).get("ended", "")
        self.at.ordinal, self.at.stage, self.at.round = last.ordinal, last.stage, last.round
        self.at.restore(last.record, last.posted, self.method, self.round_policy.keep_checkpoints)
        if last.record.get("rules") != self._row_policy:  # other rules: a row of abandoned rounds begins anew
            self.at.abandoned = 0
        self._refuse_faults()  # before any party is at work again
        os.truncate(metrics, last.record["metrics"])
        for ticket, call in self.at.posted.items():
            self.transport.post(ticket, list(self._requests(call, {})))
        return checkpoint.unpack_state(last.state, self._stage.state)
