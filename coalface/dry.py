"""What a recipe would do, in words: the plan, the bytes and the memory, without running it."""

from __future__ import annotations

import math

from coalface import planning, world
from coalface.config import Recipe
from coalface.methods import METHODS
from coalface.planning import Plan
from coalface.report.runs import size


def plan(recipe: Recipe, parties: int | None = None) -> Plan:
    """One round's messages, with as many parties as the recipe would deal."""
    names = [f"party-{place:05d}" for place in range(parties or party_count(recipe))]
    first = world.backbone(recipe).shared()
    return planning.plan(recipe.build_method(), {"trainer": names}, first, recipe.model.batchnorm)


def party_count(recipe: Recipe) -> int:
    """Parties of a recipe; where each identity is one, that takes a look at the images."""
    if METHODS[recipe.method].pooled:
        return 1
    if recipe.data.partition.kind in ("equal", "dirichlet"):
        return recipe.data.partition.parties
    faces, _ = world.training_faces(recipe)
    return len(world.deal(recipe, faces))


def describe(recipe: Recipe) -> str:
    """The plan of a run: who takes part, what travels, what memory it takes."""
    parties, rounds, engine = party_count(recipe), recipe.rounds, recipe.engine
    planned = plan(recipe, parties)
    message = sum(s.bytes or 0 for s in planned.sent if s.direction == "up")
    model = sum(s.bytes or 0 for s in planned.sent if s.direction == "up" and s.kind.endswith("folded"))
    window = 1 if engine.workers == 1 else engine.window or 4 * engine.workers
    asked = max(planned.parties.values())
    over = several(parties, "party", "parties") + (f" ({asked:,} a round)" if asked < parties else "")
    lines = [
        f"{recipe.name}: {recipe.method} over {over}, {several(rounds, 'round')}, seed {recipe.seed}",
        "",
        wire_text(recipe, planned),
        "",
        f"bytes a round: {_both_ways(planned)}; in all: {_both_ways(planned, rounds)}",
        f"memory for messages: a window of {window} {'reply' if window == 1 else 'replies'} ({size(window * message)}) "
        f"and the sums of the folds ({size(4 * model)}); pixels are mapped, private state and replies lie on the disk",
        f"{several(engine.workers, 'process', 'processes')} of {several(engine.threads or 1, 'thread')}; a checkpoint "
        f"every {several(engine.checkpoint, 'round') if engine.checkpoint > 1 else 'round'}",
    ]
    return "\n".join(lines)


def _both_ways(planned: Plan, rounds: int = 1) -> str:
    ways = {"down": planned.down(), "up": planned.up()}
    return ", ".join(
        f"{way} {'about ' if planned.about(way) else ''}{size(rounds * count)}" for way, count in ways.items()
    )


def several(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    >>> several(1, "round"), several(2_000, "party", "parties")
    ('1 round', '2,000 parties')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def wire_text(recipe: Recipe, planned: Plan) -> str:
    """Who sends what to whom in a round, and what stays."""
    title = f"{recipe.method} with {recipe.model.name} at {recipe.data.size}×{recipe.data.size}"
    lines = [f"{title}, per party and round", ""]
    widths = "{:10} {:5} {:22} {:28} {:>7} {:>12}  {}"
    lines.append(widths.format("step", "way", "field", "kind", "tensors", "bytes", "to"))
    for s in planned.sent:
        to = s.to if s.direction == "up" else f"{s.role} ({s.to})"
        number = "?" if s.bytes is None else f"{s.bytes:,}" if s.tensors or s.field == "header" else "in header"
        number = f"about {number}" if s.about else number
        lines.append(widths.format(s.step, s.direction, s.field, s.kind, s.tensors or "", number, to))
    folded = [s for s in planned.sent if s.kind.endswith("folded")]
    lines += ["", f"stays at the party: {', '.join(planned.stays) or 'nothing'}"]
    if folded:
        lines.append(f"the server asks for sums only of: {', '.join(dict.fromkeys(s.field for s in folded))}")
    if METHODS[recipe.method].pooled:
        lines.append("pooled: one party holds everybody's images; this is a bound, not a federation")
    if any(s.about for s in planned.sent):
        lines.append("about: the digits of plain numbers are not known before; a header may be some 8 bytes off")
    total = math.fsum(s.bytes or 0 for s in planned.sent)
    lines.append(f"one party, one round, both ways: {size(total)}")
    return "\n".join(lines)
