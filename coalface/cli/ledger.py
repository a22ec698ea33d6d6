"""The commands about what left a party: `coalface ledger`."""

from __future__ import annotations

import collections
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from coalface.cli.data import AsJson

MOST = 32
"""Ledgers of which each has a line of its own."""


class _Ledger(TyperGroup):
    """`coalface ledger PATH` shows; a folder that is called as a command is named `./verify`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        shows = args and args[0] not in self.commands and args[0] != "--help"
        return super().parse_args(ctx, ["show", *args] if shows else args)


ledger = typer.Typer(
    cls=_Ledger,
    no_args_is_help=True,
    help="What left the parties: `coalface ledger PATH` is `coalface ledger show PATH`.",
)


@ledger.command()
def verify(
    run: Annotated[Path, typer.Argument(help="A run's folder at the server, whose receipts.jsonl is compared.")],
    party_home: Annotated[
        list[Path] | None, typer.Option(help="The home of a party's node; may be given more than once.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold what the server has accepted against the parties' ledgers; exit status 1 where the two differ."""
    from coalface.core.text import several
    from coalface.experiments import ledger_summary

    found = ledger_summary.compare(run, party_home or [])
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
    else:
        parties = several(len(found.parties), "party", "parties")
        typer.echo(f"{several(found.replies, 'reply', 'replies')} of {parties} held against the parties' ledgers")
        if found.absent:
            more = f" and {len(found.absent) - MOST:,} more" if len(found.absent) > MOST else ""
            typer.echo(f"not compared, give --party-home: {', '.join(found.absent[:MOST])}{more}")
    for why in found.faults:
        typer.echo(f"coalface: {why}", err=True)
    if found.faults:
        raise typer.Exit(1)


@ledger.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A ledger's file, a run's folder, or a party's home.")],
    tensors: Annotated[bool, typer.Option("--tensors", help="A row for each tensor, not for each field.")] = False,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A head that was written down: is it still in the chain?")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Follow the hash chain of what left a party, and say what that was; exit status 1 where it does not hold."""
    from coalface.cli.console import print_table
    from coalface.core.text import several, shown
    from coalface.experiments import ledger_summary
    from coalface.experiments.report.runs import size

    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise typer.BadParameter(f"{head!r} is no head of a ledger, which has 64 of the digits 0-9a-f")
    read = ledger_summary.read(ledger_summary.files(path), each=tensors, head=head)
    if as_json:
        typer.echo(json.dumps(read.as_dict(), indent=1))
    else:
        rows = [
            {
                **({"run": row["run"]} if len({one.run for one in read.rows}) > 1 else {}),
                "step": row["step"],
                "what": shown(row["name"]) + (f" ({row['tensors']})" if row["tensors"] > 1 else ""),
                "kind": row["kind"],
                "shape": ledger_summary.shown_shape(row["shapes"]),
                "type": ", ".join(row["dtypes"]),
                "times": f"{row['times']:,}",
                "bytes": size(row["bytes"]),
                "rounds": ledger_summary.shown_rounds(row["rounds"]),
                "to": row["to"],
                "protection": row["protection"],
            }
            for row in (one.as_dict() for one in read.rows)
        ]
        if rows:
            print_table(rows, numbers={"times", "bytes"})
        lines = sum(one.lines for one in read.ledgers)
        typer.echo(
            f"\n{read.bytes:,} bytes left, in {several(lines, 'line')} of {several(len(read.ledgers), 'ledger')}\n"
        )
        names = collections.Counter(one.party for one in read.ledgers)
        for one in read.ledgers[:MOST]:
            of = f" of {shown(Path(one.path).absolute().parents[1].name)}" if names[one.party] > 1 else ""
            more = "; a last line is cut off: it is being written, or a crash has left it" if one.cut_off else ""
            typer.echo(
                f"{shown(one.party)}{of}: {several(one.lines, 'line')}, {one.bytes:,} bytes, head {one.head}{more}"
            )
        if len(read.ledgers) > MOST:
            typer.echo(f"… and {len(read.ledgers) - MOST:,} more: --json has them, or name one's file")
        if head is None and read.ledgers:
            typer.echo("Write the head down elsewhere: `--head` tells whether what was before it is still as it was")
    wrong = [one.fault for one in read.ledgers if one.fault] + ledger_summary.missing(path)
    if head is not None:
        for one in read.ledgers:
            if one.found is not None and not as_json:
                typer.echo(f"the head that was given ends line {one.found:,} of {one.lines:,} of {shown(one.party)}")
        if all(one.found is None for one in read.ledgers):
            wrong.append(
                f"{path}: no line ends with the head {head}: lines before it were changed or removed since it was "
                "written down, or it is of another ledger"
            )
    for why in wrong:
        typer.echo(f"coalface: {why}", err=True)
    if wrong:
        raise typer.Exit(1)
