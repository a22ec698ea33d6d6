"""The commands `coalface ledger`, for what left a party."""

from __future__ import annotations

import collections
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from coalface.cli import completion
from coalface.cli.console import FirstUnlessNamed, print_json, print_table
from coalface.cli.data import AsJson

MOST = 32
"""The most ledgers that get a line each."""
PROTECTED = {
    "dp": "for each party, from whoever gets the model; the server is trusted",
    "dp in shares": "for each party, from the server too",
    "templates": "for a template of the party that has released most, from the server too",
}
"""What ε is of, and from whom it protects."""


ledger = typer.Typer(
    name="ledger",
    cls=FirstUnlessNamed,
    no_args_is_help=True,
    help="Show and verify what left the parties; `coalface ledger PATH` shows it.",
)


@ledger.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A ledger's file, a run's folder, or a party's home.")],
    tensors: Annotated[
        bool, typer.Option("--tensors", help="Print a row for each tensor instead of each field.")
    ] = False,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A head noted earlier: check that it is still in the chain.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="The method of the run: what its fields hold.", autocompletion=completion.methods),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what left a party and check the hash chain. Exits with status 1 if it is broken."""
    from coalface.core.text import several, shown, size
    from coalface.experiments import ledger_summary, receipt_comparison
    from coalface.privacy.accountant import UNBOUNDED
    from coalface.privacy.secure import NOISED

    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise typer.BadParameter(
            f"{head!r} is not the head of a ledger, which has 64 digits 0-9a-f", param_hint="--head"
        )
    files, contents = ledger_summary.ledger_files(path), ledger_summary.contents_of(path, method)
    summary = ledger_summary.read_ledgers(files, by_tensor=tensors, head=head, contents=contents)
    ledgers, wrong = summary.ledgers, list[str]()
    spent = receipt_comparison.privacy_spent(path, wrong)
    if as_json:
        print_json(summary.as_dict() | {"privacy": spent})
    else:
        rows = [
            {
                **({"run": row["run"]} if len({entry.run for entry in summary.rows}) > 1 else {}),
                "step": row["step"],
                "what": shown(row["name"]) + (f" ({row['tensors']})" if row["tensors"] > 1 else ""),
                "content": row["content"] or row["kind"],
                "shape": ledger_summary.shown_shape(row["shapes"]),
                "type": ", ".join(row["dtypes"]),
                "times": f"{row['times']:,}",
                "bytes": size(row["bytes"]),
                "rounds": ledger_summary.shown_rounds(row["rounds"]),
                "to": row["to"],
                "protection": row["protection"] + (f", but not single rows of {row['rows']}" if "rows" in row else ""),
            }
            for row in (entry.as_dict() for entry in summary.rows)
        ]
        if rows:
            print_table(rows, numbers={"times", "bytes"})
            if not contents:
                typer.echo("\nThe ledger does not name its method: give --method to see what each field holds")
        lines = sum(entry.lines for entry in ledgers)
        typer.echo(
            f"\n{summary.bytes:,} bytes left, in {several(lines, 'line')} of {several(len(ledgers), 'ledger')}\n"
        )
        names = collections.Counter(entry.party for entry in ledgers)
        for entry in ledgers[:MOST]:
            of = f" of {shown(Path(entry.path).absolute().parents[1].name)}" if names[entry.party] > 1 else ""
            unfinished = "; the last line is cut off: it is being written, or a crash left it" if entry.cut_off else ""
            lines_and_bytes = f"{several(entry.lines, 'line')}, {entry.bytes:,} bytes"
            typer.echo(f"{shown(entry.party)}{of}: {lines_and_bytes}, head {entry.head}{unfinished}")
        if len(ledgers) > MOST:
            typer.echo(f"… and {len(ledgers) - MOST:,} more: use --json, or give the file of one")
        if head is None and ledgers:
            typer.echo("Note the head elsewhere: `--head` then checks that nothing before it has changed")
        shared = any(entry.protection == NOISED for entry in summary.rows)
        for key, so_far in spent.items():
            of_what = PROTECTED["dp in shares" if key == "dp" and shared else key]
            about = f"ε = {so_far['epsilon'] or 0:.4g} at δ = {so_far['delta']:g} after"
            promised = f"{about} {several(so_far['rounds'], 'round')} {of_what}"
            typer.echo(f"privacy.{key}: {UNBOUNDED if so_far['epsilon'] is None else promised}")
    wrong += [entry.fault for entry in ledgers if entry.fault] + receipt_comparison.missing_ledgers(path)
    if head is not None:
        for entry in ledgers:
            if entry.found is not None and not as_json:
                typer.echo(f"the given head ends line {entry.found:,} of {entry.lines:,} of {shown(entry.party)}")
        if all(entry.found is None for entry in ledgers):
            wrong.append(
                f"{path}: no line ends with the head {head}: lines before it have been changed or removed since it was "
                "noted, or it belongs to another ledger"
            )
    for why in wrong:
        typer.echo(f"coalface: {why}", err=True)
    if wrong:
        raise typer.Exit(1)


@ledger.command()
def verify(
    run: Annotated[Path, typer.Argument(help="The server's run folder, with receipts.jsonl.")],
    party_home: Annotated[list[Path] | None, typer.Option(help="The home of a party's node; may be repeated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare what the server accepted with the parties' ledgers, and check the signatures of a countersigned run.

    Exits with status 1 if they differ, or a signature does not hold or is missing.
    """
    from coalface.core.text import several
    from coalface.experiments import receipt_comparison

    comparison = receipt_comparison.compare_receipts(run, party_home or [])
    if as_json:
        print_json(asdict(comparison))
    else:
        parties = several(len(comparison.parties), "party", "parties")
        typer.echo(f"{several(comparison.replies, 'reply', 'replies')} of {parties} compared with the parties' ledgers")
        if comparison.absent:
            more_parties = f" and {len(comparison.absent) - MOST:,} more" if len(comparison.absent) > MOST else ""
            typer.echo(f"not compared (give --party-home): {', '.join(comparison.absent[:MOST])}{more_parties}")
        if comparison.untold:
            typer.echo(
                "by privacy.dp the parties keep no hash of the receipts: only the server's own files speak of them"
            )
        if (found := comparison.signatures) is not None:
            for who, count in found.signed.items():
                typer.echo(f"{who} signed {several(count, 'round')}, with the key {found.keys[who]}")
            of_all = f"{found.covered:,} of {several(found.receipts, 'receipt')}"
            source = ", by what the parties at hand keep: the run's file lacks it" if found.by_parties else ""
            typer.echo(f"signed by the server and a second party: {of_all}{source}")
    for why in comparison.faults:
        typer.echo(f"coalface: {why}", err=True)
    if comparison.faults:
        raise typer.Exit(1)
