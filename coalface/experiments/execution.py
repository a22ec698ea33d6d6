"""The execution of a prepared run in its folder: rounds, evaluation, model, ledgers, summary and report."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from coalface.core.disk import write_text
from coalface.core.method import Models, plays
from coalface.core.parsing import strict_json
from coalface.engine.local import InProcess
from coalface.engine.party.setup import FederatedData, GpuArithmetic, Setup, set_gpu_arithmetic
from coalface.engine.server import Server
from coalface.engine.sums.opened import FILE as OPENED
from coalface.engine.sums.opened import Opened
from coalface.engine.transport import RunFailed, Transport
from coalface.engine.workers import Workers
from coalface.evaluation import membership
from coalface.experiments import model_folder, provenance, status, summary
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.plan import messages
from coalface.experiments.prepare import PreparedRun
from coalface.experiments.report import runs
from coalface.privacy import noise


class Carrier(Protocol):
    """Makes the transport of a run whose parties are elsewhere."""

    @property
    def asked(self) -> Mapping[str, Any]:
        """How the run was asked for: its run-config, by which it can be gone on with."""

    def __call__(self, setup: Setup, here: FederatedData) -> Transport: ...


def execute(
    run: PreparedRun,
    out: Path,
    callback: Callback,
    passed_over: Sequence[str] = (),
    *,
    began: float,
    adjusted: tuple[str, ...] = (),
    carrier: Carrier | None = None,
) -> dict[str, Any]:
    """Train and evaluate in the folder of a run that `began` then; returns its summary, which `finish` writes.

    `passed_over` comes to name the files of images that are left out.
    """
    with open_transport(run, out, carrier) as transport:
        readable = _begin(run, out, transport, callback, adjusted, carrier)
        evaluated = {k: v for e in run.evaluators for k, v in e.evaluate_start(run.first_model).items()}
        server = make_server(run, out, transport, callback, simulated=carrier is None)
        _start(server, callback, run.recipe.name)
        if carrier is None and run.recipe.engine.workers > 1:
            callback.doing(f"starting {run.recipe.engine.workers} worker processes, then training")
        entered = time.perf_counter()
        _, models = server.run()
        stopped = time.perf_counter()
        if server.ended:
            _note(callback, run.recipe.name, f"ended {server.ended}")
        callback.doing("evaluating the model that the run leaves, and checking the ledgers")
        evaluated |= _evaluate(run, server, models, callback)
        faults = server.check_ledgers()
        thresholds = evaluated.pop("thresholds", {})
        model_folder.write(run.recipe, server, models, out, evaluated["figures"], thresholds, readable)
        if (members := run.find_members()) is not None:
            membership.write(out, members)
    for fault in faults.values():
        callback.warn(fault)
    if share := server.at.seconds["checkpoint"] / max(1e-9, sum(server.at.seconds.values())):
        _note(callback, run.recipe.name, f"checkpoints took {100 * share:.1f} % of the rounds' time")
    evaluated |= {key: lines for key, lines in (("readable", readable), ("passed_over", passed_over)) if lines}
    whole = summary.of_run(run, server, models, evaluated) | {"ledger": summary.ledgers(out, server, faults)}
    beside = entered - began + time.perf_counter() - stopped
    return whole | {"seconds": {"total": beside + sum(server.at.seconds.values()), **server.at.seconds}}


def _begin(
    run: PreparedRun,
    out: Path,
    transport: Transport,
    callback: Callback,
    adjusted: tuple[str, ...],
    carrier: Carrier | None,
) -> str:
    """Record in the folder that the run begins, and say who takes part; returns what can be read from updates."""
    recipe = run.recipe
    (out / runs.DIGESTS).unlink(missing_ok=True)
    status.began(out, transport.members, asked=None if carrier is None else carrier.asked)
    trainers = [member for member in transport.members.values() if plays(member.role, "trainer")]
    held = [(member.images, member.identities) for member in trainers]
    templates = recipe.privacy.templates
    readable = messages.what_can_be_read(run.method, run.plan, held, templates) if recipe.secure is None else ""
    counts = status.image_counts(transport.members, run.policy.max_share) if recipe.own is not None else []
    _note(callback, recipe.name, *filter(None, [readable]), *counts)
    if adjusted:
        provenance.adjust(out, recipe, adjusted)
    if recipe.evaluation.pairs:
        callback.doing("evaluating the model that the run starts from")
    return readable


def _evaluate(run: PreparedRun, server: Server, models: Models, callback: Callback) -> dict[str, Any]:
    """What the evaluators say of the models that a run leaves. Raises RunFailed where no round counted."""
    if not any(stats.rounds for stats in server.at.party_stats.values()):
        reasons = Counter(why for line in runs.read_metrics(server.folder) for why in line["failed"].values())
        commonest = "; most often, ".join(["too few replies counted", *(why for why, _ in reasons.most_common(1))])
        raise RunFailed(
            f"{server.folder}: no round was accepted: {commonest} (metrics.jsonl has all reasons). The model has not "
            "changed"
        )
    evaluated: dict[str, Any] = {}
    for evaluator in run.evaluators:
        evaluated |= (added := evaluator.evaluate(server, models))
        _note(callback, run.recipe.name, *([evaluator.missing] if evaluator.missing and not added else []))
    return evaluated


def finish(out: Path, whole: dict[str, Any], callback: Callback, *, report: bool = True) -> None:
    """Write the summary of a run, the digests of what it leaves, and its page."""
    write_text(out / "summary.json", strict_json(whole, indent=1) + "\n")
    runs.keep_digests(out)
    if report:
        from coalface.experiments.report import page  # charts and templates: no round waits for their import

        page.build(out)
    callback.finish(summary.headlines(whole), out)
    if worse := runs.below_start(whole):
        callback.warn(f"{whole['name']}: {worse}")


def make_server(run: PreparedRun, out: Path, transport: Transport, callback: Callback, *, simulated: bool) -> Server:
    """Noise, and what no party may tell, of a secret, but in a simulation of the seed: it is run to be repeated."""
    privacy, secret = run.recipe.dp, None
    if not simulated:
        begun = privacy is not None and bool(Opened(out / OPENED).entries)
        secret = functools.partial(noise.keep_secret, out, begun=begun, shares=run.recipe.secure is not None)
    return Server(
        run.method,
        run.policy,
        run.numerics,
        transport,
        out,
        backbone=run.data.backbone,
        public=run.data.at_server,
        classifier=run.classifier,
        privacy=privacy,
        secret=secret,
        secure=run.recipe.secure,
        observers=[evaluator.evaluate_round for evaluator in run.evaluators],
        report=callback.round,
    )


def _note(callback: Callback, name: str, *lines: str) -> None:
    for line in lines:
        callback.note(f"{name}: {line}")


def _start(server: Server, callback: Callback, name: str) -> None:
    """Say from where the run goes on, and what of its folder is left out."""
    already, sent, passed_over = server.resumes_after()
    for why in passed_over:
        callback.warn(f"{name}: {why}; resuming from the one before")
    rounds = sum(stage.rounds for stage in server.method.stages())
    before = runs.read_metrics(server.folder)[:already] if already else ()
    for line in runs.read_events(server.folder)[1]:
        callback.warn(f"{name}: {line}; left out")
    callback.start(name, rounds, already, (sent["down"], sent["up"]), before)


@contextlib.contextmanager
def open_transport(run: PreparedRun, out: Path, carrier: Carrier | None) -> Iterator[Transport]:
    """The parties elsewhere, in this process, or in workers that end with the run; torch's settings are put back."""
    engine, threads, on_gpu = run.recipe.engine, torch.get_num_threads(), set_gpu_arithmetic(GpuArithmetic())
    privacy = run.recipe.privacy
    hides: dict[str, Any] = {"secure": privacy.secure, "privacy": privacy.dp, "templates": privacy.templates}
    setup = Setup(run.method, run.make_data, run.numerics, run.recipe.seed, out, engine.save_replies, **hides)
    try:
        if carrier is not None:
            setup.prepare()
            transport: Transport = carrier(setup, run.data)
        elif engine.workers == 1:
            transport = InProcess(setup, run.data)
        else:
            transport = Workers(setup, run.data, engine.workers, engine.max_in_flight or 4 * engine.workers)
        try:
            yield transport
        finally:
            transport.close()
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
        set_gpu_arithmetic(on_gpu)
