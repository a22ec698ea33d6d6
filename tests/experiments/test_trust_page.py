"""`docs/trust.md`: its table is what the declarations of every method say.

To write the table anew: `REWRITE_TEXTS=1 .venv/bin/python -m pytest tests/experiments/test_trust_page.py`
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path

import coalface
from coalface.core.declarations import CONTENTS
from coalface.experiments.plan import messages, preflight
from coalface.experiments.plan.messages import Sent
from coalface.experiments.recipe import loader
from coalface.methods import METHODS

PAGE = Path(coalface.__file__).parents[1] / "docs" / "trust.md"
HEADER = "| method | the server sees of each party | all are sent | each is sent for itself |\n|---|---|---|---|\n"


def cell(sent: Iterable[Sent]) -> str:
    """Fields by what they hold, the most personal first; those of other parties than trainers behind their role."""
    by_role: dict[str, dict[str, dict[str, None]]] = {}
    for field in sent:
        name = f"`{field.field}`{'*' if field.kind.endswith('aggregated') else ''}"
        by_role.setdefault(field.role.partition("/")[0], {}).setdefault(field.content, {})[name] = None
    parts = []
    for role, contents in by_role.items():
        ordered = [f"{c} ({', '.join(contents[c])})" for c in CONTENTS if c in contents]
        parts.append(f"{'' if role == 'trainer' else f'{role}s: '}{', '.join(ordered)}")
    return "; ".join(parts) or "–"


@functools.cache
def planned(method: str) -> tuple[Sent, ...]:
    return preflight.plan(loader.load(None, [f"method={method}", *preflight.stand_in(method)])).sent


def row(method: str) -> str:
    fields = [field for field in planned(method) if field.field != "header"]
    up, down = ([f for f in fields if f.direction == way] for way in ("up", "down"))
    cells = [cell(up), cell(f for f in down if f.to == "all alike"), cell(f for f in down if f.to == "each its own")]
    pooled = f", one party with all {METHODS[method].pools}" if METHODS[method].pools else ""
    return f"| `{method}`{pooled} | {' | '.join(cells)} |\n"


def test_the_table_is_what_the_declarations_say() -> None:
    table = HEADER + "".join(row(method) for method in METHODS.own)
    text = PAGE.read_text(encoding="utf-8")
    before, begins, rest = text.partition(HEADER)
    assert begins, "the table has another header, or is gone"
    after = rest[rest.index("\n\n") + 1 :]
    if os.environ.get("REWRITE_TEXTS"):
        PAGE.write_text(before + table + after, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == before + table + after


def test_what_leaves_by_declaration_is_what_a_plan_says() -> None:
    for method in METHODS.own:
        leaves = messages.what_leaves(METHODS[method])
        assert {
            (s.step, s.field): s.content for s in planned(method) if s.direction == "up"
        }.items() <= leaves.items(), method
