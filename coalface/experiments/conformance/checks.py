"""The checks: what every method must do in a tiny federation, and the table of them."""

from __future__ import annotations

import concurrent.futures
import json
import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from coalface.core import codec
from coalface.core.method import Tensors
from coalface.engine import processes
from coalface.engine.faults import COUNT_FAULTS, SimulatedFaults
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request
from coalface.engine.transport import Reply, RunFailed
from coalface.experiments.conformance.differences import private_states
from coalface.experiments.conformance.leaks import leaks
from coalface.experiments.conformance.learning import GAIN, LEARNING, ROUNDS, learned
from coalface.experiments.conformance.secure import check_secure_sums
from coalface.experiments.conformance.subject import Failure, Subject, require_same
from coalface.experiments.conformance.tiny_federation import (
    LOSS,
    MANY,
    NUMERICS,
    WORK,
    Stop,
    Tiny,
    raw,
    run,
    stopping,
    workers,
)
from coalface.experiments.conformance.traffic import Heard, all_tensors, listening
from coalface.experiments.plan import on_paper
from coalface.experiments.recipe.schema import BY_NAME
from coalface.methods import METHODS
from coalface.training.local_work import LocalTraining

BATCH_IMAGES = 40
"""Of a client batch: some parties of a tiny federation, and not all."""
TRIES = 8
"""Processes to start until one keeps sets in another order; the last is taken as it is."""


def check_plan(subject: Subject) -> None:
    """Two rounds of each stage can be played on paper, and the run comes to its end."""
    method, build = subject.build()
    method.check_frozen()
    world = build()
    on_paper.plan(method, world.by_role(), world.backbone, world.at_server)
    subject.unbroken  # noqa: B018 - what it raises is the answer


def check_settings(subject: Subject) -> None:
    """Settings come back from a recipe as they were, and NaN is refused."""
    method, _ = subject.build()
    name, settings = METHODS.name_of(subject.cls), BY_NAME.settings(method)
    top = {"local": WORK, "loss": LOSS, **vars(method)}
    mend = "Use numbers, texts, lists, or frozen dataclasses of such, with a default each."
    try:
        again = BY_NAME.build(name, json.loads(json.dumps(settings)), top)
    except (TypeError, ValueError) as error:
        raise Failure(f"a recipe cannot hold its settings: {error}", mend) from error
    for key, value in BY_NAME.settings(again).items():
        if value != settings[key]:
            raise Failure(f"{key} is {settings[key]!r}, and {value!r} when a recipe has been written and read", mend)
    for key, value in settings.items():
        if isinstance(value, float):
            try:
                BY_NAME.build(name, {**settings, key: math.nan}, top)
            except ValueError:
                continue
            raise Failure(f"{key} may be NaN", f"Refuse it in __post_init__: raise ValueError that names {key}.")


def check_own_fields(subject: Subject) -> None:
    """A run leaves the method as it was: hyper-parameters are no place to keep state."""
    before, after = subject.unbroken.fields
    for name in sorted(after):
        if before.get(name) != after[name]:
            raise Failure(
                f"{subject.cls.__name__}.{name} changes during a run, so it is kept on self",
                "At a party, return it as private state (@private); at the server, in the state (@state).",
            )


def check_chance(subject: Subject) -> None:
    """Nothing is drawn from the generators that torch, NumPy and Python have for all."""
    before, after = subject.unbroken.generators
    if drawn := [name for name, position in after.items() if position != before[name]]:
        raise Failure(
            f"a run draws from {drawn[0]}'s global generator",
            "Draw from party.rng in a step and from fed.rng at the server; torch.from_numpy makes tensors of that, and "
            "generator(seed) of coalface.core.method a generator of your own.",
        )


class Backwards(InProcess):
    """Asks the last party first; the replies come in the order of the requests all the same."""

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        yield from reversed(list(super().exchange(reversed(list(requests)))))


def check_order(subject: Subject) -> None:
    """The same bits whichever party is registered and trains first."""
    backwards = subject.run("order", build=replace(subject.variant[1], reverse=True), transport=Backwards)
    subject.require_same(backwards, "in another order of the parties")


def check_workers(subject: Subject) -> None:
    """The same bits from two worker processes."""
    ran = subject.run("workers", transport=workers(2, window=3))
    subject.require_same(ran, "with two worker processes")


def check_kill(subject: Subject) -> None:
    """The same bits where the process of a run is killed (SIGKILL), and another one resumes it.

    The process that is killed keeps sets in another order than this one, if one of a few tries does.
    """
    answers = max(1, len(subject.unbroken.heard.replies) // 2)
    order = set_order(subject.variant[1])
    for hash_seed in range(1, TRIES + 1):  # forked processes have the hashes of their server, whatever the seed
        unlike = order if hash_seed < TRIES else None
        packed_run = processes.packed((*subject.variant, subject.folder / "killed", answers, unlike))
        with mock.patch.dict(os.environ, PYTHONHASHSEED=str(hash_seed)), processes.starting():
            pool = concurrent.futures.ProcessPoolExecutor(1, processes.spawn_context())
            killed = pool.submit(run_until_killed, packed_run)
        with pool:
            try:
                if killed.result():
                    break
            except concurrent.futures.BrokenExecutor:
                break
    resumed = subject.run("killed", checkpoint_every=1)
    subject.require_same(resumed, "after a kill and a resume in another process")


def set_order(build: Tiny) -> tuple[str, ...]:
    """The order in which this process keeps the set of a tiny world's parameters."""
    backbone = build().backbone
    return tuple(frozenset(backbone.shared()) & frozenset(backbone.parameters))


def run_until_killed(given: bytes) -> bool:
    """In a process of its own: run a tiny federation until so many requests are answered.

    False, and nothing is run, where this process keeps sets in the order that is given.
    """
    method, build, folder, answers, order = processes.unpacked(given)
    if set_order(build) == order:
        return False

    class Killed(stopping(answers)):  # type: ignore[misc]
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            try:
                yield from super().exchange(requests)
            except Stop:
                os.kill(os.getpid(), signal.SIGKILL)

    run(method, folder, build, checkpoint_every=1, transport=Killed)
    return True


def check_resume(subject: Subject, stops: Iterable[tuple[float, bool]] = ((0.3, False), (0.6, True))) -> None:
    """The same bits where a run stops after a share of the answers and goes on, with saved replies or not."""
    for share, saved in stops:
        name = f"stopped after {share:g} of the answers, {'with' if saved else 'without'} saved replies"
        how = {"checkpoint_every": 2, "save_replies": saved}
        try:
            subject.run(name, transport=stopping(int(share * len(subject.unbroken.heard.replies))), **how)
        except Stop:
            pass
        subject.require_same(subject.run(name, **how), f"in a run {name} and resumed")


def check_seed(subject: Subject) -> None:
    """Another seed gives another run."""
    if subject.run("seed", seed=1).bytes()["metrics"] == subject.unbroken.ran.bytes()["metrics"]:
        raise Failure("another seed gives the same metrics", "Draw from party.rng and fed.rng, and from no seed.")


def check_messages(subject: Subject) -> None:
    """Every message round-trips, and a step does not change the one that it was given."""
    method, heard = subject.variant[0], subject.unbroken.heard
    if heard.changed:
        raise Failure(
            f"a step changes the message that it was given: {heard.changed[0]}",
            "Copy a tensor before it is changed in place: t.clone(), or t + x in place of t.add_(x).",
        )
    declared = [(data, method.steps[r.step][1].common) for r, data, _ in heard.requests]
    declared += [(data, method.steps[r.step][1].each) for r, _, data in heard.requests]
    declared += [(data, method.steps[r.step][1].reply) for r, data in heard.replies]
    for data, cls in declared:
        if data and cls is not None and bytes(codec.encode(codec.decode(bytearray(data), cls)).data) != data:
            raise Failure(f"{cls.__name__} is not the same when it has been read", "Use tensors and plain values.")


def check_private(subject: Subject) -> None:
    """Images and private state never show in the bytes that are sent."""
    if found := sorted(leaks(subject.variant[0], subject.folder / "leaks", subject.variant[1], subject.sends)):
        raise Failure(
            f"{', '.join(found)} is found in what a party sends",
            "Take it out of the reply. Where the paper sends it, such as a party's own last reply, name it: "
            "--sends Class.field.",
        )


def check_ledger(subject: Subject) -> None:
    """The ledgers hold every byte that was sent, and no other."""
    method, ran, heard = subject.variant[0], subject.unbroken.ran, subject.unbroken.heard
    lines = [json.loads(t) for p in sorted((ran.folder / "ledger").iterdir()) for t in p.read_text().splitlines()]
    expected = []
    for request, data in sorted(heard.replies, key=lambda pair: pair[0].party):
        reply: Any = method.steps[request.step][1].reply
        sent = codec.encode(codec.decode(bytearray(data), reply))
        expected += [(request.step, request.round, e.name, s) for e, s in zip(sent.entries, sent.sums, strict=True)]
    listed = sum(line["bytes"] for line in lines)
    if (
        [(line["step"], line["round"], line["name"], line["sha256"]) for line in lines] != expected
        or listed != sum(len(data) for _, data in heard.replies)
        or ran.server.at.totals["up"] > listed  # a stage may begin with an ask
    ):
        raise Failure("the ledgers do not hold what was sent", "This is no fault of the method: tell the developers.")


ABANDONING: dict[str, Any] = {"max_abandoned_rounds": 99, "min_reply_fraction": 0.3}
ABSENT = "Take who answered from answer.arrived, not from those who were asked, and expect fewer replies than parties."


def check_nonsense(subject: Subject, kinds: Iterable[str] = ("nan", "absurd")) -> None:
    """A party that sends nonsense, and drops out at times, is refused by name, and the others go on."""
    for kind in kinds:
        _check_nonsense(subject, kind)


def _check_nonsense(subject: Subject, kind: str) -> None:
    sampled = getattr(subject.build()[0], "sample", None) is not None
    method, build = subject.build(**({"rounds": 6} if sampled else {}))  # until it is drawn
    bad, folder, heard = sorted(build().data)[-1], subject.folder / f"nonsense-{kind}", Heard()
    faults = SimulatedFaults(corrupt={bad: kind}, dropout=0.15)
    ran = run(method, folder, build, transport=listening(heard), faults=faults, **ABANDONING)
    if not all(map(_finite, (ran.state, *ran.own_models().values()))):
        raise Failure(
            f"values that are not finite came of a reply with {kind}", "Use answer.aggregated and answer.each."
        )
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    asked = {
        (r.stage, r.round) for r, _ in heard.replies if r.party == bad and _can_be(method.steps[r.step][1].reply, kind)
    }
    for record in records:
        reason = record["failed"].get(bad)
        if (record["stage"], record["round"]) in asked and reason in (None, "dropped out"):
            raise Failure(
                f"a reply with {kind} counted in round {record['round']}", "Declare the field without free()."
            )
    counted = sum(bad not in record["failed"] for record in records)
    alone = len(build().data) == 1 and any(_can_be(d.reply, kind) for _, d in method.steps.values())
    if ran.server.at.party_stats[bad].rounds > counted or all(r["abandoned"] for r in records) is not alone:
        raise Failure(f"with one party that sends {kind}, the others do not go on", ABSENT)
    if alone and raw(ran.models.shared or {}) != raw(build().backbone.shared()):
        raise Failure(f"the model changed, though every reply had {kind}", ABSENT)


def _can_be(reply: type | None, kind: str) -> bool:
    """Whether a reply has a field that this fault can spoil."""
    spoilt: set[Any] = {int} if kind in COUNT_FAULTS else {Tensors} if kind == "name" else {Tensor, Tensors}
    return reply is not None and any(annotation in spoilt for annotation in codec.hints(reply).values())


def _finite(value: Any) -> bool:
    return all(bool(t.isfinite().all()) for t in all_tensors(value) if t.is_floating_point())


def check_dropouts(subject: Subject) -> None:
    """Replies that are lost, in a run that stops and is resumed: the same as lost replies alone."""
    method, build = subject.build(rounds=5)
    rules: dict[str, Any] = {"faults": SimulatedFaults(lost=0.3, dropout=0.2), **ABANDONING}
    unbroken = run(method, subject.folder / "lost", build, **rules)
    folder = subject.folder / "lost, stopped and resumed"
    try:
        run(method, folder, build, transport=stopping(2), **rules)
    except Stop:
        pass
    require_same(method, unbroken, run(method, folder, build, **rules), "where replies are lost and the run resumed")


def check_failing_party(subject: Subject) -> None:
    """A party whose training fails ends the run by its name, and by its step and round."""
    if "local" not in subject.fields:
        return
    method, build = subject.build(local=LocalTraining(epochs=2, batch_size=4, lr=1e30))
    try:
        run(method, subject.folder / "failing", build)
    except RunFailed as error:
        if "step " in str(error) and "FloatingPointError" in str(error):
            return
        raise Failure(
            f"with lr=1e30 a run ends by: {error}", "Train by `learn` or `train` of local_training."
        ) from error
    raise Failure("with local.lr=1e30 a run comes to its end", "Train with self.local, by `learn` or `train`.")


def check_learning(subject: Subject) -> None:
    """From the images of its parties, the model comes to tell their people apart."""
    if not subject.cls.learns:
        return
    settings = {"rounds": ROUNDS, **({"local": LEARNING} if "local" in subject.fields else {}), **subject.settings}
    method, build = subject.build(**settings)
    before, after = learned(method, build, subject.folder / "learning")
    if not after >= before + GAIN:
        raise Failure(
            f"it does not learn: genuine pairs score above impostors in {before:.0%} before and {after:.0%} after "
            f"{method.rounds} rounds",
            "See whether the server takes up what the parties send. A slow method needs other settings, such as "
            "rounds=60; a baseline that must not learn says `learns: ClassVar[bool] = False`.",
        )


def check_client_batches(subject: Subject) -> None:
    """Many parties as one batch, where a step has a form for that, give what each gives by itself, to 1e-10."""
    method, build = subject.build()
    build = replace(build, double=True, parties=MANY)
    forms = [name for name, (_, declared) in method.steps.items() if declared.batched is not None]
    if not forms or method.unbatchable_reason(build().backbone):
        return
    folders = subject.folder / "party by party", subject.folder / "client batches"
    alone = run(method, folders[0], build)
    together = run(method, folders[1], build, numerics=replace(NUMERICS, client_batch=BATCH_IMAGES))
    expected, computed = (
        {"the state": ran.state} | {", ".join(key): kept for key, kept in private_states(method, ran.folder).items()}
        for ran in (alone, together)
    )
    for name, state in expected.items():
        for tensor, of_many in zip(all_tensors(state), all_tensors(computed[name]), strict=True):
            if tensor.shape != of_many.shape or not torch.allclose(tensor, of_many, rtol=0, atol=1e-10):
                raise Failure(
                    f"{name} differs by up to {float((tensor - of_many).abs().max()):.1g} where parties are one batch",
                    f"Let the batched form of {forms[0]} give each party's reply as its step does: the mean by images "
                    "of what the server aggregates, and each party's own values of the rest.",
                )


CHECKS: dict[str, Callable[[Subject], None]] = {
    "plan": check_plan,
    "settings": check_settings,
    "own fields": check_own_fields,
    "chance": check_chance,
    "order of the parties": check_order,
    "worker processes": check_workers,
    "kill and resume": check_kill,
    "stop and resume": check_resume,
    "seed": check_seed,
    "messages": check_messages,
    "private state": check_private,
    "ledger": check_ledger,
    "nonsense": check_nonsense,
    "lost replies": check_dropouts,
    "failing party": check_failing_party,
    "client batches": check_client_batches,
    "secure sums": check_secure_sums,
    "learning": check_learning,
}
"""Every check by its name; each raises Failure."""
