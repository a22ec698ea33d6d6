"""The commands `coalface party`, for a party of a federation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from coalface.cli.console import Commands, print_json
from coalface.cli.data import AsJson

party = typer.Typer(
    name="party",
    cls=Commands,
    no_args_is_help=True,
    help="For a party: check its file and images, or change the key of its private state.",
)


@party.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="PARTY.yaml", help="The party's own file, as in its kit.")],
    recipe: Annotated[Path | None, typer.Option(help="The recipe of the run that asks it to take part.")] = None,
    name: Annotated[str | None, typer.Option("--party", help="Its name, if the file does not have one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a party's file and images before its node starts. Exits with status 1 if it finds a fault.

    Prints what was read, and what the server would learn of it.

    Nothing is sent. Images are listed and not decoded: `coalface data inspect` looks into each.
    """
    from coalface.experiments.recipe import loader
    from coalface.flower.party import preflight

    report = preflight.check(file, None if recipe is None else loader.load(recipe), name)
    end = [] if report.faults else [f"{file}: no faults found"]
    print_json(dataclasses.asdict(report)) if as_json else typer.echo("\n".join([*report.lines, *report.faults, *end]))
    if report.faults:
        raise typer.Exit(1)


@party.command()
def rekey(
    home: Annotated[Path, typer.Argument(metavar="HOME", help="The node's home, as in its configuration.")],
    old: Annotated[
        Path | None, typer.Option("--from", help="The key that encrypts it now; none if it is in the clear.")
    ] = None,
    new: Annotated[
        Path | None, typer.Option("--to", help="The key to encrypt it with; none to write it in the clear.")
    ] = None,
) -> None:
    """Rewrite the party's private state under another key of its node; end the node first."""
    from coalface.flower.party import rekey as sealing

    if old is None and new is None:
        raise typer.BadParameter("give the present key (--from), the new one (--to), or both")
    count = sealing.rekey(home, old, new)
    files = f"{count} file was" if count == 1 else f"{count} files were"
    typer.echo(f"{home}: {files} rewritten; start the node with {f'key={new}' if new else 'no key'}")
