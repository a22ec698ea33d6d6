"""The commands `coalface cache`, for decoded images and pre-trained models on this machine."""

from __future__ import annotations

import collections
import dataclasses
import os
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from coalface.cli.console import Commands, print_json, print_table
from coalface.cli.data import AsJson
from coalface.core.text import several
from coalface.data import cache as caches
from coalface.data.cache import Entry

cache = typer.Typer(
    name="cache", cls=Commands, help="Show or clear the decoded images and pre-trained models kept on this machine."
)


@cache.callback(invoke_without_command=True)
def show(context: typer.Context, as_json: AsJson = False) -> None:
    """Print where the cache is, what it holds, how large that is, and when it was last used."""
    from coalface.core.text import size

    if context.invoked_subcommand is not None:
        return
    place = caches.default_cache()
    entries = caches.entries(place)
    if as_json:
        print_json({"cache": place, "entries": list(map(dataclasses.asdict, entries))})
        return
    is_set = bool(os.environ.get("COALFACE_CACHE"))
    typer.echo(f"{place} ({'as COALFACE_CACHE says' if is_set else 'COALFACE_CACHE would name another folder'})")
    rows = []
    for kind in caches.KINDS:
        if of_kind := [entry for entry in entries if entry.kind == kind]:
            row = {"kind": kind, "number": f"{len(of_kind):,}", "size": size(sum(entry.bytes for entry in of_kind))}
            row |= {"oldest made": _ago(min(entry.made for entry in of_kind)), "longest unused": _ago(of_kind[0].used)}
            rows.append(row | {"last used": _ago(of_kind[-1].used)})
    if not rows:
        typer.echo("the cache is empty")
        return
    print_table(rows, numbers={"number", "size"})


@cache.command()
def clear(
    kind: Annotated[
        str | None, typer.Argument(help="packs, pretrained, teachers or unfinished; all by default.")
    ] = None,
    older_than: Annotated[
        float, typer.Option(metavar="DAYS", min=0, help="Keep what was used in the last DAYS days.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Remove entries of the cache that no process uses; runs make what they need again."""
    from coalface.core.checks import nearest
    from coalface.core.text import size

    chosen = None if kind is None else nearest(kind, dict.fromkeys(caches.KINDS), "KIND")
    removed, in_use = caches.clear(caches.default_cache(), chosen, older_than)
    text = f"removed {_counted(removed)}: {size(sum(entry.bytes for entry in removed))} freed"
    if in_use:
        text += f"\nleft {_counted(in_use)}: a process uses {'it' if len(in_use) == 1 else 'them'}"
    entries = {"removed": list(map(dataclasses.asdict, removed)), "in_use": list(map(dataclasses.asdict, in_use))}
    print_json(entries) if as_json else typer.echo(text)


def _ago(moment: float) -> str:
    days = int((time.time() - moment) // 86400)
    return f"{several(days, 'day')} ago" if days > 0 else "today"


def _counted(entries: Sequence[Entry]) -> str:
    names = {
        "packs": "pack",
        "pretrained": "pre-trained model",
        "teachers": "set of a teacher's embeddings",
        "unfinished": "unfinished folder",
    }
    counts = collections.Counter(names[entry.kind] for entry in entries)
    return ", ".join(several(count, name) for name, count in counts.items()) or "nothing"
