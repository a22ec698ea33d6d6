"""What a dry run says of a plan: messages, traffic, memory and disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coalface.core.text import several, size
from coalface.data.faceset import FaceSet
from coalface.experiments.plan.footprint import footprint
from coalface.experiments.plan.messages import Plan, what_can_be_read
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.parts import VALIDATOR, Parts
from coalface.methods import METHODS
from coalface.training.federated_validation import FederatedValidation


def images_text(parties: Mapping[str, FaceSet]) -> str:
    counts = [len(faces) for faces in parties.values()]
    if not max(counts):
        return f"{several(len(counts), 'trainer')} with images of their own, whose number they say when they join"
    low, high = min(counts), max(counts)
    spread = "" if len(counts) == 1 else f", {low:,} a party" if low == high else f", {low:,} to {high:,} a party"
    return f"{several(sum(counts), 'training image')}{spread}"


def together_text(recipe: Recipe, parties: Mapping[str, FaceSet], parts: Parts) -> str:
    """What is computed as one batch, and the memory that it takes: one backbone, or a copy for each of its parties."""
    need, batch = footprint(recipe, parties), parts.client_batch
    images = min(batch, sum(map(len, parties.values())))
    copies = 1 if parts.one_step else max(1, images // max(1, parts.most_images))
    memory = size(copies * need.training + need.activations * images // need.batch)
    return f"parties are computed together, {batch} images at a time (engine.client_batch), in about {memory}"


def footprint_lines(recipe: Recipe, parties: Mapping[str, FaceSet], planned: Plan, asked: int) -> list[str]:
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


def traffic_lines(planned: Plan) -> list[str]:
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
    if not planned.sums and (
        readable := what_can_be_read(recipe.build_method(), planned, trainers, recipe.privacy.templates)
    ):
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
