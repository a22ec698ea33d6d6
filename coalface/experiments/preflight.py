"""The dry run of a recipe: its checks, plan, bytes, memory and disk."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coalface.core import disk
from coalface.core.checks import nearest
from coalface.core.errors import RecipeError
from coalface.core.method import Method, plays
from coalface.core.text import several, size
from coalface.data.faceset import FaceSet
from coalface.data.stores import telling_passed_over
from coalface.engine.robust.aggregators import Aggregator
from coalface.experiments import plan as planning
from coalface.experiments import privacy_budget
from coalface.experiments.callbacks.tracker import trackers_of
from coalface.experiments.plan import Plan
from coalface.experiments.recipe import loader, validate
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import domains, machine, party_data, sources
from coalface.experiments.setup.parts import VALIDATOR, Parts, imported_weights, network_options
from coalface.methods import METHODS
from coalface.models import Backbone, sketch
from coalface.privacy import countersign
from coalface.training.federated_validation import FederatedValidation

NOTHING_EVALUATED = (
    "evaluation.pairs is empty, so nothing will be evaluated; in Python, fit(…, hold_out=20) keeps 20 people out of "
    "training and evaluates on pairs of them"
)


def check(recipe: Recipe) -> dict[str, FaceSet]:
    """The trainers that a run would have, after what it checks before it writes: images, deal, lists, method and all.

    Images are listed and none is decoded: one that is damaged does not show. A pre-training is checked as well.
    Raises RecipeError, ValueError or OSError as a run would.
    """
    return _checked(recipe)[0]


def _checked(recipe: Recipe) -> tuple[dict[str, FaceSet], Plan, Parts]:
    """(a run's trainers, a round's messages among all parties, the recipe's parts), checked as a run is."""
    machine.check_device(recipe)
    trackers_of(recipe)  # their packages are installed
    if recipe.pretrain is not None:
        inner = recipe.pretrain.recipe
        check_leaves_shared(inner)
        try:
            check(inner)
        except RecipeError as error:
            raise loader.within_pretrain(error) from None
        except (OSError, ValueError) as error:
            raise RecipeError(disk.explained(error), where="pretrain") from None
    elif recipe.model.weights is not None:
        imported_weights(recipe)
    nobody = () if recipe.own is not None and party_data.lacking(recipe) else None
    parts = Parts(recipe, sources.unseen, played=nobody)
    messages, members = planned(parts), parts.data.members()
    _ = parts.pairs  # they are checked as they are read
    _ = parts.client_batch  # which may be refused
    training = [name for name, member in members.items() if plays(member.role, "trainer")]
    return {name: parts.data.data[name] for name in sorted(training)}, messages, parts


def planned(parts: Parts) -> Plan:
    """The messages of a round. Raises RecipeError or ValueError for what cannot be carried out."""
    recipe, faults = parts.recipe, parts.recipe.faults
    for party in [] if parts.method.pools else [*faults.corrupt, *(name for name in faults.slow if name != "*")]:
        nearest(party, parts.data.data, "faults: the party")
    machine.check_shards(parts)
    if recipe.privacy.countersign:
        countersign.check_installed()
    messages = planning.plan(
        parts.method,
        parts.data.by_role(),
        parts.backbone,
        parts.public,
        recipe.engine.update_dtype,
        recipe.dp,
        recipe.secure,
    )
    validate.check_secure(recipe)
    validate.check_private(recipe)
    privacy_budget.check(recipe, messages)
    if recipe.privacy.templates is not None:
        privacy_budget.check_templates(recipe.privacy.templates, messages)
    if recipe.engine.aggregator is not None:
        _check_aggregator(recipe, parts.method, messages, recipe.engine.aggregator)
    return messages


def _check_aggregator(recipe: Recipe, method: Method, messages: Plan, aggregator: Aggregator) -> None:
    """Raise RecipeError where a robust mean has nothing to do, would undo what the method does, or has too few parties.

    A call whose parties depend on the round is checked with those of the second one.
    """
    where, why, name = "engine.aggregator", "", recipe.method
    if recipe.dp is not None:
        why = "privacy.dp adds noise for what a party can change of a sum, and a robust mean is none"
    elif any(isinstance(part, FederatedValidation) for part in vars(method).values()):
        why = f"{name} finds a weight for each party, and a robust mean counts all the same"
    elif not messages.means:
        why = f"{name} asks for no mean over parties"
    if why:
        raise RecipeError(f"{why}; remove this key, or use another method", where=where)
    for step in {s.step for s in messages.sent if s.kind.endswith("aggregated")}:
        try:
            aggregator.liars(messages.parties[step])
        except ValueError as error:
            raise RecipeError(f"step {step}: {str(error).removeprefix(f'{where}: ')}", where=where) from None


def plan(recipe: Recipe) -> Plan:
    """One round's messages, with as many parties as the recipe would deal, and nothing else checked.

    For `coalface messages`: where the recipe names no validator, one stands in.
    """
    parts, validators = Parts(recipe, sources.unseen), tuple(recipe.validators) or ("validator-0",)
    roles: dict[str, Sequence[str]] = {VALIDATOR: validators}
    if parts.method.scenario == "domains" and recipe.domains is not None:
        kinds = domains.roles(recipe, domains.parties(recipe))
        for name in domains.parties(recipe):
            role = kinds.get(name, "trainer")
            roles[role] = [*roles.get(role, ()), name]
    else:
        roles["trainer"] = [f"party-{place:05d}" for place in range(_party_count(parts))]
    updates = recipe.engine.update_dtype
    return planning.plan(parts.method, roles, parts.backbone, parts.public, updates, recipe.dp, recipe.secure)


def _party_count(parts: Parts) -> int:
    """Parties of a recipe; where each identity is one, that takes a look at the images."""
    if parts.method.pools:
        return 1
    if parts.own_parties:
        return len(parts.own_parties)
    names = parts.recipe.partition.names() if parts.recipe.partition is not None else None
    return len(parts.trainers if names is None else names)


def stand_in(method: str) -> list[str]:
    """Changes that give a method the data that it cannot be planned without, where no recipe is given."""
    scenario = METHODS.find(method, "METHOD").scenario
    if scenario == "private-public":
        return ["data={scenario: private-public, private: {identities: 80}}"]
    if scenario == "devices":
        return ["data.scenario=devices"]
    if scenario != "domains":
        return []
    parts = "{source: {domains: [studio]}, target: {domains: [street], first: 400}}"
    faces = f"{{kind: joined, parts: {parts}}}"
    return [f"data={{scenario: domains, source_domain: source, target_domain: target, clients: 4, faces: {faces}}}"]


def secure_sums(method: str) -> str:
    """Whether secure sums can hide what parties send by a method, or why not; and what they do not hide."""
    try:
        recipe = loader.load(None, [f"method={method}", *stand_in(method), "privacy.secure=true"])
        planned = plan(recipe)
    except RecipeError as error:
        return f"no: {error.text.partition('; choose')[0]}"
    rows = dict.fromkeys(row for planned_sum in planned.sums.values() for row in planned_sum.hidden.rows)
    return f"yes, but not rows of {', '.join(rows)} that one party alone changes" if rows else "yes"


def check_leaves_shared(pretraining: Recipe) -> None:
    """Raise RecipeError for a pre-training that would leave no model to start from, before anybody trains."""
    if not plan(pretraining).leaves_shared:
        policy = pretraining.model.batchnorm
        norm = "" if policy == "average" else f", with pretrain.model.batchnorm=average in place of {policy}"
        raise RecipeError(
            f"{pretraining.method!r} leaves no global model to start from; use centralized{norm}",
            where="pretrain.method",
        )


def as_dict(recipe: Recipe) -> dict[str, Any]:
    """The plan of a run as plain values: parties, messages, what stays, rounds and bytes. Raises as `check` does."""
    parties, messages, parts = _checked(recipe)
    return {
        **{key: getattr(recipe, key) for key in ("name", "method", "seed")},
        "parties": {name: {"images": len(faces), "identities": len(faces.names)} for name, faces in parties.items()},
        "stages": [vars(stage) for stage in messages.stages],
        "sent": [vars(sent) for sent in messages.sent],
        "stays": messages.stays,
        "bytes": {way: messages.in_all(way) for way in ("down", "up")},
        "client_batch": parts.client_batch,
        **({"privacy": privacy_budget.as_dict(recipe.dp, messages)} if recipe.dp is not None else {}),
        **({"secure": {step: s.as_dict() for step, s in messages.sums.items()}} if messages.sums else {}),
    }


def describe(recipe: Recipe) -> str:
    """The plan of a run: who takes part, what travels, what memory and disk it takes. Raises as `check` does."""
    with telling_passed_over(lambda line: None) as passed_over:
        parties, messages, parts = _checked(recipe)
    engine, batch, left_open = recipe.engine, parts.client_batch, parts.left_open
    rounds = several(messages.rounds, "round")
    if len(messages.stages) > 1:
        rounds += f" ({', '.join(f'{stage.name} {stage.rounds}' for stage in messages.stages)})"
    roles = {s.step: s.role for s in messages.sent}
    asked = max(count for step, count in messages.parties.items() if roles[step] != VALIDATOR)
    validators = len(recipe.validators) if VALIDATOR in roles.values() else 0
    over = several(len(parties), "trainer") if validators else several(len(parties), "party", "parties")
    over += f" ({asked:,} a round)" if asked < len(parties) else ""
    over += f" and {several(validators, 'validator')}" if validators else ""
    every = several(engine.checkpoint_every, "round") if engine.checkpoint_every > 1 else "round"
    lines = [
        f"{recipe.name}: {recipe.method} over {over}, {rounds}, seed {recipe.seed}",
        "",
        messages_text(recipe, messages, [(len(faces), len(faces.names)) for faces in parties.values()]),
        "",
        *_traffic(messages),
        *([privacy_budget.sentence(recipe, messages)] if recipe.dp is not None else []),
        *dict.fromkeys(planned_sum.sentence() for planned_sum in messages.sums.values()),
        *([privacy_budget.templates_sentence(noised, messages)] if (noised := recipe.privacy.templates) else []),
        f"{several(engine.workers, 'process', 'processes')} of "
        f"{'as many threads as pay' if engine.threads == 'auto' else several(engine.threads, 'thread')}; a checkpoint "
        f"every {every}",
        *([f"measured when the run begins: engine.{', engine.'.join(left_open)}"] if left_open else []),
        *([_together(recipe, parties, parts)] if batch else []),
        *(
            ["many small parties: engine.client_batch=auto computes them together, which is faster"]
            if parts.would_batch
            else []
        ),
        "",
        *_takes(recipe, parties, messages, asked),
        "",
        f"checked as a run does before it begins: {_images(parties)}, "
        f"{several(len(recipe.evaluation.pairs), 'list')} to evaluate on, the device {engine.device}",
        "not checked: whether every image can be decoded, which shows when they are packed",
    ]
    lines += passed_over
    if not recipe.starts_trained and (wrong := recipe.build_method().untrained()):
        lines.append(wrong)
    if not recipe.evaluation.pairs and recipe.test is None:
        lines.append(NOTHING_EVALUATED)
    return "\n".join(lines)


def _images(parties: Mapping[str, FaceSet]) -> str:
    counts = [len(faces) for faces in parties.values()]
    if not max(counts):
        return f"{several(len(counts), 'trainer')} with images of their own, whose number they say when they join"
    low, high = min(counts), max(counts)
    spread = "" if len(counts) == 1 else f", {low:,} a party" if low == high else f", {low:,} to {high:,} a party"
    return f"{several(sum(counts), 'training image')}{spread}"


def _together(recipe: Recipe, parties: Mapping[str, FaceSet], parts: Parts) -> str:
    """What is computed as one batch, and the memory that it takes: one backbone, or a copy for each of its parties."""
    need, batch = footprint(recipe, parties), parts.client_batch
    images = min(batch, sum(map(len, parties.values())))
    copies = 1 if parts.one_step else max(1, images // max(1, parts.most_images))
    memory = size(copies * need.training + need.activations * images // need.batch)
    return f"parties are computed together, {batch} images at a time (engine.client_batch), in about {memory}"


def _takes(recipe: Recipe, parties: Mapping[str, FaceSet], planned: Plan, asked: int) -> list[str]:
    """Memory and disk."""
    engine, need = recipe.engine, footprint(recipe, parties)
    trains = [s for s in planned.sent if s.role != VALIDATOR]
    message = sum(s.bytes or 0 for s in trains if s.direction == "up")
    aggregated = sum(s.values for s in trains if s.direction == "up" and s.kind.endswith("aggregated"))
    sums, candidates = _candidates(recipe, planned, asked)
    in_flight = min(asked, 2 if engine.workers == 1 else engine.max_in_flight or 4 * engine.workers)
    training = f"{size(need.training)} for weights, gradients and momentum, about {size(need.activations)} for the "
    training += f"activations of a batch of {need.batch}"
    versions = min(planned.rounds, engine.keep_checkpoints * engine.checkpoint_every + 1)
    saved = message if engine.save_replies else 0
    stored = f"{size(need.private)} of private state" + (f" and {size(saved)} of saved replies" if saved else "")
    if engine.save_replies == "auto":
        stored += " (those that take half a second or more to make)"
    unknown = f"; {', '.join(need.uncounted)} on top, whose size only the method knows" if need.uncounted else ""
    held = f"the sums of the means ({size(16 * sums * aggregated)})"
    if planned.sums:
        held = f"the sum of a round's vectors ({size(max(s.up['mask'] for s in planned.sums.values()))})"
    if engine.aggregator is not None:
        held = f"up to three times all that engine.aggregator looks at ({size(3 * 4 * asked * aggregated)})"
    return [
        f"memory of {'the process' if engine.workers == 1 else f'each of the {engine.workers} processes'}"
        f"{'' if engine.device == 'cpu' else f' (on {engine.device})'}: {training}",
        f"memory for messages: {several(in_flight, 'reply', 'replies')} in flight ({size(in_flight * message)}) "
        f"and {held}",
        *candidates,
        *(["  left out: class embeddings, as many as a party has identities"] if not need.classes else []),
        "  left out: Python and torch themselves, evaluation, what a layer needs for the moment; pixels are mapped",
        f"on disk, for each party and version: {stored}{unknown}, and some kB",
        f"  up to {several(versions, 'version')} a party (back to the oldest checkpoint that is kept), so up to "
        f"{size(len(parties) * versions * (need.private + saved))} in all",
    ]


def _candidates(recipe: Recipe, planned: Plan, asked: int) -> tuple[int, list[str]]:
    """Means that are asked for of each field, and what Federated Validation keeps in memory besides."""
    validations = [part for part in vars(recipe.build_method()).values() if isinstance(part, FederatedValidation)]
    if not validations:
        return 1, []
    count, folds = validations[0].candidates, validations[0].fv == "folded"
    stacked = sum(s.bytes or 0 for s in planned.sent if s.role == VALIDATOR and s.direction == "down")
    waiting = (
        "" if folds else f"{several(asked, 'model')} kept till they are averaged ({size(asked * stacked / count)}), "
    )
    line = f"memory for validation: {waiting}{count} candidates ({size(stacked)}, and as much again as a message)"
    return count if folds else 1, [line]


def _traffic(planned: Plan) -> list[str]:
    """Bytes a round, stage by stage where there are several, and in all."""

    def both_ways(down: int, up: int) -> str:
        ways = {"down": down, "up": up}
        return ", ".join(f"{way} {'about ' if planned.about(way) else ''}{size(n)}" for way, n in ways.items())

    lines = []
    for stage in planned.stages:
        of = f" of {stage.name}" if len(planned.stages) > 1 else ""
        lines.append(f"bytes a round{of}: {both_ways(planned.bytes('down', stage), planned.bytes('up', stage))}")
    lines[-1] += f"; in all: {both_ways(planned.in_all('down'), planned.in_all('up'))}"
    return lines


def messages_text(recipe: Recipe, planned: Plan, trainers: Sequence[tuple[int, int]] = ()) -> str:
    """Who sends what to whom in a round, what stays, and what can be read of it all the same.

    `trainers` are the images and identities of each, where they are known.
    """
    title = f"{recipe.method} with {recipe.model.name} at {recipe.data.size}×{recipe.data.size}"
    rows = [("step", "way", "field", "kind", "content", "tensors", "bytes", "to")]
    for s in planned.sent:
        to = s.to if s.direction == "up" else f"{s.role} ({s.to})"
        number = "?" if s.bytes is None else f"{s.bytes:,}" if s.tensors or s.field == "header" else "in header"
        number = f"about {number}" if s.about else number
        rows.append((s.step, s.direction, s.field, s.kind, s.content, str(s.tensors or ""), number, to))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{title}, per party and round", ""]
    for row in rows:
        cells = (c.rjust(w) if n in (5, 6) else c.ljust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True)))
        lines.append("  ".join(cells).rstrip())
    lines += ["", f"stays at the party: {', '.join(planned.stays) or 'nothing'}"]
    roles = dict.fromkeys(s.role for s in planned.sent)
    if VALIDATOR in roles:
        lines.append("stays at a validator: its images and its pairs; their scores are all that leaves it")
    if planned.sums:
        lines.append(
            "the server learns the sum over a round's parties alone, and who they are; others learn what it does"
        )
    elif any(s.direction == "up" and s.tensors for s in planned.sent):
        lines.append("not sent is not unknown: an update tells of the images that it was made of")
    if not planned.sums and (readable := planning.what_can_be_read(recipe.build_method(), planned, trainers)):
        lines.append(readable)
    alone = {s.field for s in planned.sent if s.content == "template" and s.kind.endswith("aggregated")}
    if alone := alone.union(*(planned_sum.hidden.rows for planned_sum in planned.sums.values())):
        lines.append(
            f"a row of {', '.join(sorted(alone))} that one party alone changes is that party's in a mean as well"
        )
    if planned.means:
        means = (field if name == field else f"{field} (as {name})" for field, name in planned.means)
        lines.append(f"the server asks for means only of: {', '.join(means)}")
        if recipe.engine.aggregator is not None:
            lines.append("engine.aggregator keeps every single reply for them until all are in")
    if METHODS[recipe.method].pools:
        lines.append("pooled: one party holds everybody's images; this is a bound, not a federation")
    if any(s.about for s in planned.sent):
        lines.append("about: the digits of plain numbers are not known before; a header may be some 8 bytes off")
    for stage in planned.stages:
        sent = [s for s in planned.sent if s.step in stage.parties]
        of = f" of {stage.name}" if len(planned.stages) > 1 else ""
        for role in dict.fromkeys(s.role for s in sent):
            total = sum(s.bytes or 0 for s in sent if s.role == role)
            lines.append(f"one {role if len(roles) > 1 else 'party'}, one round{of}, both ways: {size(total)}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Footprint:
    """Bytes, of the party that takes most."""

    training: int
    """Weights, gradients and momentum of the backbone and the class embeddings, with one copy that a step makes."""
    activations: int
    """What the backbone's backward pass needs of a batch, in float32; about, and less with autocast."""
    batch: int
    """Images in that batch."""
    private: int
    """Private state on disk, one version."""
    classes: int
    """Identities of that party; 0 where they are not known here."""
    uncounted: tuple[str, ...]
    """Private fields whose size only the method knows."""


def footprint(recipe: Recipe, parties: Mapping[str, FaceSet]) -> Footprint:
    """What the largest party takes in a step, and keeps."""
    channels, size = 1 if recipe.data.grey else 3, recipe.data.size
    module = sketch(recipe.model.name, **network_options(recipe))
    backbone, method = Backbone(module, recipe.model.batchnorm), recipe.build_method()
    loss, work = recipe.loss, recipe.local
    classes = max(len(faces.names) for faces in parties.values())
    most = max(len(faces) for faces in parties.values())
    batch = min(work.batch_size, most or work.batch_size)
    trained = 4 * sum(p.numel() for p in module.parameters() if p.requires_grad)
    head = 4 * loss.rows(classes) * backbone.embedding_size
    extra = _bytes(loss.extra(classes) | loss.state(classes))
    velocity = trained + head + extra if getattr(method, "momentum", "keep") == "keep" and work.momentum else 0
    sizes = {"head": head, "extra": extra, "kept": _bytes(backbone.kept()), "backbone": _bytes(backbone.shared())}
    sizes |= {"velocity": velocity, "epoch": 8, "offset": 8}
    fields = {path: path.rpartition(".")[2] for path in planning.what_stays(method)}
    return Footprint(
        training=(4 if work.momentum else 3) * (trained + head + extra),
        activations=activations(module, torch.empty(batch, channels, size, size, device="meta")),
        batch=batch,
        private=sum(sizes.get(name, 0) for name in fields.values()),
        classes=classes,
        uncounted=tuple(path for path, name in fields.items() if name not in sizes),
    )


def activations(module: nn.Module, images: Tensor) -> int:
    """Bytes that the backward pass of a batch needs beside the parameters: each stored tensor once.

    On the meta device nothing is computed. What a layer needs for the moment only is not in it.
    """
    parameters = {p.untyped_storage()._cdata for p in [*module.parameters(), *module.buffers()]}
    stored: dict[int, tuple[Any, int]] = {}  # the storages are held, so that no second one takes the place of a first

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters:
            stored[storage._cdata] = storage, storage.nbytes()
        return tensor

    modes = {part: part.training for part in module.modules()}
    module.train()
    try:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            module(images)
    finally:
        for part, training in modes.items():
            part.training = training
    return sum(count for _, count in stored.values())


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(math.prod(t.shape) * t.element_size() for t in tensors.values())
