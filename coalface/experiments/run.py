"""One experiment, from a recipe to a run folder: model, metrics, ledger, summary and report."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

import torch
import yaml

from coalface.core.disk import writing
from coalface.core.json_text import strict_json
from coalface.core.method import plays
from coalface.data.stores import telling_passed_over
from coalface.engine import checkpoint, processes
from coalface.engine.local import InProcess, Workers
from coalface.engine.party.setup import FederatedData, Setup
from coalface.engine.rounds import RoundPolicy
from coalface.engine.server import Server
from coalface.engine.transport import RunFailed, Transport
from coalface.evaluation import clustering, enrolled, membership, personalised, verification
from coalface.evaluation.verification import Judge, write_json, write_text
from coalface.experiments import image_counts, model_folder, plan, preflight, pretraining, provenance, status
from coalface.experiments import summary as summing
from coalface.experiments.callbacks import tensorboard
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.recipe import loader, schema
from coalface.experiments.recipe.schema import Recipe, RecipeError
from coalface.experiments.recipe.sections import OWN
from coalface.experiments.report import page, runs
from coalface.experiments.setup import pair_lists, party_world, splits, world

RULES = ("max_update_norm", "oversized", "max_share", "retries")
"""Keys of `engine` that are as in `RoundPolicy` where they are not set, and then are no part of a recipe's digest."""

RETRIES = 1
"""Where three in ten of eight parties drop out each time, half of them answer in all but one round of 3,800."""
MAX_SHARE, MAX_UPDATE_NORM = 0.5, 5.0
"""Where each party brings its own images, and says itself how many: of a mean by images, and of an update's size."""


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
    with telling_passed_over(lambda said: callback.warn(f"{recipe.name}: {said}")) as passed:
        return _execute(recipe, recipe.resolved(), out, callback, passed, report=report, carrier=carrier)


def resume(
    out: Path,
    callback: Callback,
    changes: tuple[str, ...] = (),
    *,
    carrier: Carrier | None = None,
    changed_code: bool = False,
) -> Path:
    """Go on with a run from its last checkpoint; a finished one is only judged and reported again.

    Changes of `schema.ADJUSTABLE` go into `config.yaml` and, as a line, into `events.jsonl`.
    Raises RecipeError for other changes of what the result depends on, be they in `config.yaml`, and where the code of
    the method was changed since the run began, unless that is known: `changed_code`.
    """
    processes.check_may_start()
    begun = provenance.begun_with(out)
    if not (out / "config.yaml").exists():
        _write_config(out, begun.recipe.resolved())
    provenance.recipe_of(out, begun)
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
    with telling_passed_over(lambda said: callback.warn(f"{recipe.name}: {said}")) as passed:
        return _execute(recipe, recipe.resolved(), out, callback, passed, adjusted=tuple(differ), carrier=carrier)


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


def _write_config(out: Path, resolved: dict[str, Any]) -> None:
    write_text(out / "config.yaml", yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True))


def _execute(
    recipe: Recipe,
    resolved: dict[str, Any],
    out: Path,
    callback: Callback,
    passed: list[str],
    *,
    report: bool = True,
    adjusted: tuple[str, ...] = (),
    carrier: Carrier | None = None,
) -> Path:
    begun = time.perf_counter()
    method = recipe.build_method()
    world.check_device(recipe)
    tensorboard.check(recipe)
    party_world.check_here(recipe) if carrier is None else party_world.check_elsewhere(recipe)
    initial, classifier, trained_before = (
        pretraining.pretrained(recipe, callback, _make) if recipe.pretrain is not None else (None, None, None)
    )
    callback.doing("reading the images")
    train, held = splits.training_faces(recipe, callback.packing)
    test = splits.testing(recipe, callback.packing)
    nobody = () if carrier is not None and recipe.data.source.kind == OWN else None
    build = functools.partial(world.build_world, resolved, initial, played=nobody)
    here = build()
    numerics = world.numerics(recipe, world.client_batch(recipe, here))
    setup = Setup(method, build, numerics, recipe.seed, out, recipe.engine.save_replies)
    judge = Judge(
        pair_lists.judged(recipe, train, held, callback.packing, here.public),
        here.backbone,
        recipe.judge.flip,
        recipe.engine.device,
        recipe.judge.parties,
        fars=recipe.judge.fars,
    )
    if not judge.lists:
        callback.note(f"{recipe.name}: judge.lists is empty, so nothing will be judged")
    first = {**here.backbone.shared(), **here.backbone.kept()}
    if recipe.pretrain is None and (wrong := method.untrained()):
        callback.note(f"{recipe.name}: {wrong}")
    if test is not None and recipe.judge.personalised is not None:
        _check_served(personalised.tested(world.clients(recipe, train), test))
    planned = preflight.planned(recipe, method, here)  # what cannot be run is found before anything is written
    if recipe.engine.tensorboard:
        callback = tensorboard.Tracked(callback, out)
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "config.yaml").exists():
        provenance.keep(out, resolved, provenance.code_behind(recipe))
        _write_config(out, resolved)
    with writing(out), alone(out), _transport(recipe, setup, here, carrier) as transport:
        (out / runs.DIGESTS).unlink(missing_ok=True)
        status.began(out, transport.members, asked=None if carrier is None else carrier.asked)
        trainers = [one for one in transport.members.values() if plays(one.role, "trainer")]
        readable = plan.what_can_be_read(method, planned, [(one.images, one.identities) for one in trainers])
        if readable:
            callback.note(f"{recipe.name}: {readable}")
        if recipe.data.source.kind == OWN:
            for line in image_counts.lines(transport.members, round_policy(recipe).max_share):
                callback.note(f"{recipe.name}: {line}")
        if adjusted:
            _adjust(out, recipe, adjusted)
        if judge.lists:
            callback.doing("judging the model that the run starts from")
        untrained = judge.models([first])
        server = Server(
            method,
            round_policy(recipe),
            numerics,
            transport,
            out,
            backbone=here.backbone,
            public=here.public,
            classifier=classifier,
            observers=[judge],
            report=callback.round,
        )
        already, sent, passed_over = server.resumes_after()
        for why in passed_over:
            callback.warn(f"{recipe.name}: {why}: it goes on from the one before")
        whole, before = sum(s.rounds for s in method.stages()), runs.read_metrics(out)[:already] if already else ()
        for line in runs.read_events(out)[1]:
            callback.warn(f"{recipe.name}: {line}: it is left out")
        callback.start(recipe.name, whole, already, (sent["down"], sent["up"]), before)
        if carrier is None and recipe.engine.workers > 1:
            callback.doing(f"starting {recipe.engine.workers} worker processes, then training")
        entered = time.perf_counter()
        _, models = server.run()
        left = time.perf_counter()
        callback.doing("judging the model that the run leaves, and checking the ledgers")
        if not any(stats.rounds for stats in server.at.party_stats.values()):
            raise RunFailed(
                f"{out}: no round counted: too few replies could be used (metrics.jsonl has the reasons), so the model "
                "is as it was at the start"
            )
        figures, summary = judge(server, models), dict[str, Any]()
        own, wanted = {}, recipe.judge.personalised
        if test is not None and wanted is not None:
            clients = world.clients(recipe, train)
            summary |= {"personalised": personalised.judge(server, models, here, clients, test, first, **dict(wanted))}
        elif test is not None:
            own = enrolled.judge(server, models, here, train, test)
        found = clustering.judge(server, models, world.truth(recipe, train)) if models.labels is not None else {}
        used = {party: given["images"].tolist() for party, given in server.used_public(models) if given}
        faults = server.check_ledgers()
        model_folder.write(recipe, server, models, out, figures, readable)
        if (members := world.members(recipe, train, here, trained_before)) is not None:
            membership.write(out, members)
    verification.keep_lists(out / "judged", judge.lists)
    write_json(out / "evidence.json", judge.evidence())
    summary = summing.of_run(recipe, method, server, planned, judge, figures, untrained) | summary
    if models.class_embeddings:
        summary["class_embeddings"] = summing.class_embeddings(torch.cat(list(models.class_embeddings.values())))
    if readable:
        summary["readable"] = readable
    if passed:
        summary["passed_over"] = passed
    if found:
        summary["clusters"] = found
    if used and here.public is not None:
        summary["public_images"] = {"held": len(here.public), "used": used}
    if own:
        summary["enrolled"] = own
    elif recipe.data.test is not None and test is None:
        callback.note(f"{recipe.name}: data.test: the test images are the parties' own, so nobody is verified on them")
    elif test is not None and "personalised" not in summary:
        callback.note(f"{recipe.name}: data.test: without a shared model nobody is verified on test images")
    summary["ledger"] = summing.ledgers(out, list(server.at.party_stats), faults)
    for fault in faults.values():
        callback.warn(fault)
    rounds = sum(server.at.seconds.values())  # of the rounds before a resume as well
    beside = entered - begun + time.perf_counter() - left
    summary["seconds"] = {"total": beside + rounds, **server.at.seconds}
    write_text(out / "summary.json", strict_json(summary, indent=1) + "\n")
    runs.keep_digests(out)
    if report:
        page.build(out)
    if share := server.checkpoint_share():
        callback.note(f"{recipe.name}: checkpoints took {100 * share:.1f} % of the rounds' time")
    said = {f"enrolled by {kind}": each for kind, each in enrolled.by_kind(own).items()}
    said |= {f"personalised {k}": each for k, each in personalised.by_kind(summary.get("personalised", {})).items()}
    callback.finish(figures | said, out)
    return out


def _make(recipe: Recipe, out: Path, callback: Callback) -> None:
    """Run a recipe in a folder of which it is known that it holds nothing else, or go on where it was begun there."""
    resume(out, callback) if (out / "config.yaml").exists() else run(recipe, out, callback)


def _check_served(clients: list[str]) -> None:
    """Raise RecipeError where no client could be told from others, which would be found when all have trained."""
    if len(clients) < 2:
        raise RecipeError(
            f"judge.personalised: a client's people are told from those of others, and {len(clients)} of the clients "
            "of data.partition has test images: deal to two or more, or take a smaller data.test.images"
        )


@contextlib.contextmanager
def alone(out: Path) -> Iterator[None]:
    """Hold the run folder. Raises RecipeError where another process is at it."""
    with open(out / "run.lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecipeError(f"{out}: this run is going on in another process; wait for it, or end that one") from None
        yield


def round_policy(recipe: Recipe) -> RoundPolicy:
    """How the run is conducted."""
    engine = recipe.engine
    given: dict[str, Any] = {"retries": RETRIES}
    given |= {key: value for key in RULES if (value := getattr(engine, key)) is not None}
    if recipe.data.source.kind == OWN:
        given.setdefault("max_share", MAX_SHARE)
        given.setdefault("max_update_norm", MAX_UPDATE_NORM)
    return RoundPolicy(
        run=recipe.name,
        seed=recipe.seed,
        quorum=engine.quorum,
        patience=engine.patience,
        checkpoint=engine.checkpoint,
        keep=engine.keep,
        judge=recipe.judge.every,
        on_error=engine.on_error,
        equal_steps=recipe.local.iterations is not None,
        trouble=recipe.trouble,
        **given,
    )


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
            carrier = Workers(setup, here, engine.workers, engine.window or 4 * engine.workers)
        try:
            yield carrier
        finally:
            carrier.close()
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
