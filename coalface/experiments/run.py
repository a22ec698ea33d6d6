"""One experiment, from a recipe to a run folder: model, metrics, ledger, summary and report."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

import torch
import yaml
from filelock import Timeout

from coalface.core import disk
from coalface.core.disk import write_text, writing
from coalface.core.errors import RecipeError
from coalface.core.json_text import strict_json
from coalface.core.method import plays
from coalface.core.yaml_text import parse_yaml
from coalface.data.stores import telling_passed_over
from coalface.engine import checkpoint, processes
from coalface.engine.local import InProcess, Workers
from coalface.engine.party.setup import FederatedData, Setup
from coalface.engine.server import Server
from coalface.engine.transport import RunFailed, Transport
from coalface.evaluation import membership
from coalface.experiments import experiment, model_folder, plan, provenance, status
from coalface.experiments import summary as summing
from coalface.experiments.callbacks import tensorboard
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.experiment import Experiment
from coalface.experiments.recipe import loader, schema
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report import page, runs
from coalface.experiments.setup import machine, party_data

_FIRST = {"checkpoints", *(f"{name}{end}" for name in (provenance.BEGUN, "config.yaml") for end in ("", ".new"))}
"""What a run writes first: where it was killed before it had `config.yaml`, the last of it, it begins anew."""


class Carrier(Protocol):
    """Makes the transport of a run, where its parties are elsewhere."""

    @property
    def asked(self) -> Mapping[str, Any]:
        """How the run was asked for: its run-config, by which it can be gone on with."""

    def __call__(self, setup: Setup, here: FederatedData) -> Transport: ...


def run(recipe: Recipe, out: Path, callback: Callback, *, report: bool = True, carrier: Carrier | None = None) -> Path:
    """Run a recipe into a new folder. Raises RecipeError where the folder already holds a run, or anything else.

    Without a `carrier` the parties are played here.
    """
    processes.check_may_start()
    if (out / "config.yaml").exists():
        raise RecipeError(
            f"{out} already holds a run: `coalface resume {quote(str(out))}` goes on with it, or give another --out"
        )
    if out.exists() and (not out.is_dir() or any(str(path.relative_to(out)) not in _FIRST for path in out.rglob("*"))):
        raise RecipeError(f"{out} holds something that is no run, and is left alone: give another --out")
    return _build_and_execute(recipe, out, callback, report=report, carrier=carrier)


def resume(
    out: Path,
    callback: Callback,
    changes: tuple[str, ...] = (),
    *,
    carrier: Carrier | None = None,
    changed_code: bool = False,
) -> Path:
    """Go on with a run from its last checkpoint; a finished one is only evaluated and reported again.

    Changes of `schema.ADJUSTABLE` go into `config.yaml` and, as a line, into `events.jsonl`.
    Raises RecipeError for other changes of what the result depends on, be they in `config.yaml`, and where the code of
    the method was changed since the run began, unless that is known: `changed_code`.
    """
    processes.check_may_start()
    begun = provenance.begun_with(out)
    if not (out / "config.yaml").exists():
        _write_config(out, begun.recipe.resolved())
    kept = provenance.recipe_of(out, begun)
    if carrier is None and status.is_elsewhere(out):
        raise RecipeError(
            f"{out}: the parties of this run are at nodes of their own, whose kits are not on this machine: go on by "
            "the operator's `run.sh` with the same run-config"
        )
    recipe = loader.load(out / "config.yaml", changes)
    differ = provenance.unlike(begun.recipe, recipe)
    if other := [key for key in differ if key not in schema.ADJUSTABLE]:
        raise RecipeError(
            f"{out} goes on with the recipe that it was begun with, and {', '.join(other)} would change it: start a "
            f"new run. A resume may change {', '.join(schema.FREE + schema.ADJUSTABLE)}"
        )
    if differ and (out / "summary.json").exists():
        raise RecipeError(
            f"{out} is a finished run, and {', '.join(differ)} would be told wrongly of it: leave it as is"
        )
    if (out / "summary.json").exists() and not any((out / "checkpoints").glob("[0-9]*")):
        raise RecipeError(
            f"{out} is a finished run whose checkpoints are gone: a resume would train it anew, over its results. Put "
            "them back from a copy, or leave the run as it is"
        )
    provenance.accept_code(out) if changed_code else provenance.check_code(out, begun, recipe)
    _complete_config(out, kept)
    return _build_and_execute(recipe, out, callback, adjusted=tuple(differ), carrier=carrier)


def go_back(out: Path, after: int) -> None:
    """Take a run back to the end of its round `after`, counted over all stages; a resume goes on from there.

    What parties have sent since stays in their ledgers. Raises RecipeError where no accepted checkpoint is kept of it.
    """
    recipe = provenance.recipe_of(out)
    if (out / "summary.json").exists():
        raise RecipeError(f"{out} is a finished run: nothing of it is left to go back to")
    folder, rounds = out / "checkpoints", [stage.rounds for stage in recipe.build_method().stages()]
    with alone(out):
        ends = checkpoint.accepted_ends(folder, rounds)
        if after not in ends:
            there = f"those after round {', '.join(map(str, sorted(ends)))}" if ends else "none"
            raise RecipeError(f"--from-round {after}: the accepted checkpoints that {out} keeps are {there}")
        checkpoint.go_back(folder, ends[after])
        provenance.note(out, {"event": "adjusted", "from_round": after})


def _adjust(out: Path, recipe: Recipe, adjusted: tuple[str, ...]) -> None:
    """Record in the run folder what a resume changes."""
    tree = loader.load(out / "config.yaml").resolved()
    begun = provenance.begun_with(out)
    before = begun.recipe.resolved()
    event: dict[str, Any] = {"event": "adjusted"}
    for section, key in (path.split(".") for path in adjusted):
        value = recipe.resolved()[section][key]
        event[f"{section}.{key}"] = {"from": before[section][key], "to": value}
        tree[section][key] = value
    provenance.note(out, event)
    _write_config(out, tree)
    provenance.keep(out, tree, begun.code)


def _complete_config(out: Path, recipe: Recipe) -> None:
    """Write `config.yaml` anew where it lacks keys, as one that was cut off does, and says the same all the same."""
    if parse_yaml((out / "config.yaml").read_text(encoding="utf-8")) != (whole := recipe.resolved()):
        _write_config(out, whole)


def _write_config(out: Path, resolved: dict[str, Any]) -> None:
    write_text(out / "config.yaml", yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True))


def _build_and_execute(recipe: Recipe, out: Path, callback: Callback, **given: Any) -> Path:
    """Run a recipe in a folder, from where it stands there."""
    carrier = given["carrier"]
    machine.check_device(recipe)
    tensorboard.check(recipe)
    party_data.check_here(recipe) if carrier is None else party_data.check_elsewhere(recipe)
    begun = time.perf_counter()
    with telling_passed_over(lambda said: callback.warn(f"{recipe.name}: {said}")) as passed:
        built = experiment.build(recipe, callback, _make, elsewhere=carrier is not None)
        return _execute(built, out, callback, passed, begun=begun, **given)


def _execute(
    experiment: Experiment,
    out: Path,
    callback: Callback,
    passed: list[str],
    *,
    begun: float,
    report: bool = True,
    adjusted: tuple[str, ...] = (),
    carrier: Carrier | None = None,
) -> Path:
    """Train, evaluate, and leave a run's folder; `passed` are the files of images that were passed over."""
    recipe, method, data = experiment.recipe, experiment.method, experiment.data
    if recipe.engine.tensorboard:
        callback = tensorboard.Tracked(callback, out)
    tell = functools.partial(_tell, callback, recipe.name)
    tell(*experiment.notes)
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "config.yaml").exists():
        provenance.keep(out, recipe.resolved(), provenance.code_behind(recipe))
        _write_config(out, recipe.resolved())
    setup = Setup(method, experiment.make_data, experiment.numerics, recipe.seed, out, recipe.engine.save_replies)
    with writing(out), alone(out), _transport(recipe, setup, data, carrier) as transport:
        (out / runs.DIGESTS).unlink(missing_ok=True)
        status.began(out, transport.members, asked=None if carrier is None else carrier.asked)
        readable = plan.what_can_be_read(method, experiment.plan, _images_and_identities(transport))
        tell(*filter(None, [readable]))
        if recipe.own is not None:
            tell(*status.image_counts(transport.members, experiment.policy.max_share))
        if adjusted:
            _adjust(out, recipe, adjusted)
        if recipe.evaluation.pairs:
            callback.doing("evaluating the model that the run starts from")
        evaluated = {k: v for e in experiment.evaluators for k, v in e.evaluate_start(experiment.first_model).items()}
        server = Server(
            method,
            experiment.policy,
            experiment.numerics,
            transport,
            out,
            backbone=data.backbone,
            public=data.public,
            classifier=experiment.classifier,
            observers=[one.evaluate_round for one in experiment.evaluators],
            report=callback.round,
        )
        _tell_start(server, callback, recipe, carrier)
        entered = time.perf_counter()
        _, models = server.run()
        left = time.perf_counter()
        callback.doing("evaluating the model that the run leaves, and checking the ledgers")
        if not any(stats.rounds for stats in server.at.party_stats.values()):
            raise RunFailed(
                f"{out}: no round counted: too few replies could be used (metrics.jsonl has the reasons), so the model "
                "is as it was at the start"
            )
        for evaluator in experiment.evaluators:
            evaluated |= (added := evaluator.evaluate(server, models))
            tell(*([evaluator.missing] if evaluator.missing and not added else []))
        faults = server.check_ledgers()
        model_folder.write(recipe, server, models, out, evaluated["figures"], readable)
        if (members := experiment.find_members()) is not None:
            membership.write(out, members)
    for fault in faults.values():
        callback.warn(fault)
    evaluated |= {key: lines for key, lines in (("readable", readable), ("passed_over", passed)) if lines}
    summary = summing.of_run(experiment, server, models, evaluated) | {"ledger": summing.ledgers(out, server, faults)}
    beside = entered - begun + time.perf_counter() - left
    summary["seconds"] = {"total": beside + sum(server.at.seconds.values()), **server.at.seconds}
    write_text(out / "summary.json", strict_json(summary, indent=1) + "\n")
    runs.keep_digests(out)
    if report:
        page.build(out)
    if share := server.checkpoint_share():
        tell(f"checkpoints took {100 * share:.1f} % of the rounds' time")
    callback.finish(summing.headlines(summary), out)
    return out


def _tell(callback: Callback, name: str, *lines: str) -> None:
    for line in lines:
        callback.note(f"{name}: {line}")


def _images_and_identities(transport: Transport) -> list[tuple[int, int]]:
    trainers = [member for member in transport.members.values() if plays(member.role, "trainer")]
    return [(member.images, member.identities) for member in trainers]


def _tell_start(server: Server, callback: Callback, recipe: Recipe, carrier: Carrier | None) -> None:
    """Say from where the run goes on, and what of its folder is left out."""
    already, sent, passed_over = server.resumes_after()
    for why in passed_over:
        callback.warn(f"{recipe.name}: {why}: it goes on from the one before")
    rounds = sum(stage.rounds for stage in server.method.stages())
    before = runs.read_metrics(server.folder)[:already] if already else ()
    for line in runs.read_events(server.folder)[1]:
        callback.warn(f"{recipe.name}: {line}: it is left out")
    callback.start(recipe.name, rounds, already, (sent["down"], sent["up"]), before)
    if carrier is None and recipe.engine.workers > 1:
        callback.doing(f"starting {recipe.engine.workers} worker processes, then training")


def _make(recipe: Recipe, out: Path, callback: Callback) -> None:
    """Run a recipe in a folder of which it is known that it holds nothing else, or go on where it was begun there."""
    resume(out, callback) if (out / "config.yaml").exists() else run(recipe, out, callback)


@contextlib.contextmanager
def alone(out: Path) -> Iterator[None]:
    """Hold the run folder. Raises RecipeError where another process is at it."""
    try:
        held = disk.lock(out / "run.lock").acquire(timeout=1)  # `coalface status` holds it for an instant
    except Timeout:
        raise RecipeError("this run is going on in another process; wait for it, or end that one", where=out) from None
    with held:
        yield


@contextlib.contextmanager
def _transport(recipe: Recipe, setup: Setup, here: FederatedData, elsewhere: Carrier | None) -> Iterator[Transport]:
    """The parties elsewhere, in this process, or in workers that end with the run; torch's settings are put back."""
    threads = torch.get_num_threads()
    engine = recipe.engine
    try:
        if elsewhere is not None:
            setup.prepare()
            carrier: Transport = elsewhere(setup, here)
        elif engine.workers == 1:
            carrier = InProcess(setup, here)
        else:
            carrier = Workers(setup, here, engine.workers, engine.max_in_flight or 4 * engine.workers)
        try:
            yield carrier
        finally:
            carrier.close()
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
