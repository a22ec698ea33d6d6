"""The status of a run as text: a head, and a line for each party."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coalface.core.method import plays
from coalface.core.text import clean, size
from coalface.evaluation.figures import figure_name, figure_text
from coalface.experiments.report.runs import duration, mapping, number


def rendered(status: Mapping[str, Any], now: float, *, live: bool = False) -> RenderableType:
    """A run's status (`coalface.experiments.status.Status.as_dict`) at the time `now`."""
    ended, rounds = int(status["round"]), int(status["rounds"])
    head = [clean(status["name"]), clean(status["state"]), f"round {ended}/{rounds}", clean(status["stage"])]
    parts: list[RenderableType] = [Text("  ".join(part for part in head if part), style="bold")]
    if live:
        bar = Table.grid()  # which ends its line
        bar.add_row(ProgressBar(total=max(rounds, ended, 1), completed=ended, width=60))
        parts.append(bar)
    if status["doing"]:
        since = number(status["since"])
        parts.append(Text(f"{clean(status['doing'])}{'' if since is None else f', for {duration(now - since)}'}"))
    sent = [f"down {size(status['bytes_down'])} up {size(status['bytes_up'])}"]
    if status["abandoned"]:
        sent.append(f"{status['abandoned']} abandoned")
    evaluated = mapping(status["judged"])
    sent += [f"{clean(figure_name(key))} {figure_text(evaluated, key)}" for key in list(evaluated)[:1]]
    parts.append(Text("  ".join(sent)))
    if status["parties"]:
        parts += [Text(""), _parties(status["parties"], now)]
    if status["state"] != "finished" and status["counted"]:
        parts.append(
            Text(f"rounds and bytes as counted by the checkpoint after round {status['counted']}", style="dim")
        )
    return Group(*parts)


def _parties(parties: Sequence[Mapping[str, Any]], now: float) -> Table:
    table, some_late = Table(box=None, pad_edge=False), any(party["late"] for party in parties)
    counted = ("failed", "came late") if some_late else ("failed",)
    whole = sum(party.get("images") or 0 for party in parties if plays(str(party["role"]), "trainer"))
    sizes = ("images", "identities", "of all") if any(party.get("images") for party in parties) else ()
    for name in ("party", "role", *sizes, "rounds", "last seen", "down", "up", *counted, "last failure"):
        table.add_column(name, justify="right" if name in ("rounds", "down", "up", *sizes, *counted) else "left")
    for party in parties:
        table.add_row(
            clean(party["name"]),
            clean(party["role"]),
            *(_sizes(party, whole) if sizes else ()),
            str(party["rounds"]),
            ago(number(party["seen"]), now),
            size(party["bytes_down"]),
            size(party["bytes_up"]),
            str(party["failed"]),
            *([str(party["late"])] if some_late else []),
            Text(clean(party["reason"]), overflow="fold"),
        )
    return table


def _sizes(party: Mapping[str, Any], whole: int) -> tuple[str, str, str]:
    images, identities = party.get("images"), party.get("identities")
    if images is None or identities is None:
        return "", "", ""
    share = f"{100 * images / whole:.0f} %" if whole and plays(str(party["role"]), "trainer") else ""
    return f"{images:,}", f"{identities:,}", share


def ago(then: float | None, now: float) -> str:
    """How long ago; on another day, when.

    >>> ago(None, 10), ago(100.0, 165.0)
    ('', '1:05 ago')
    """
    if then is None:
        return ""
    if now - then < 86_400:
        return f"{duration(now - then)} ago"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(then))
