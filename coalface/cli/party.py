"""The commands for a party of a federation: `coalface party …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

party = typer.Typer(no_args_is_help=True, help="At a party: its own file and images, and its private state.")


@party.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="PARTY.yaml", help="The party's own file, as in its kit.")],
    recipe: Annotated[Path | None, typer.Option(help="The recipe that it is asked to take part in.")] = None,
    name: Annotated[str | None, typer.Option("--party", help="Its name, where the file does not say it.")] = None,
) -> None:
    """Say what is found before the node starts, and what the server would be told; exit status 1 where all is not well.

    Nothing is sent. Images are listed and not decoded: `coalface data inspect` looks into each.
    """
    from coalface.experiments.recipe import loader
    from coalface.flower.party import preflight

    report = preflight.check(file, None if recipe is None else loader.load(recipe), name)
    for line in (*report.lines, *report.faults):
        typer.echo(line)
    if report.faults:
        raise typer.Exit(1)
    typer.echo(f"{file}: nothing is wrong")


@party.command()
def rekey(
    home: Annotated[Path, typer.Argument(metavar="HOME", help="What the node's configuration names as home.")],
    old: Annotated[
        Path | None, typer.Option("--from", help="The node's key that it is encrypted with; without it, none.")
    ] = None,
    new: Annotated[
        Path | None, typer.Option("--to", help="The key to encrypt it with; without it, it will be in the clear.")
    ] = None,
) -> None:
    """Write the party's private state anew under another key of its node, once the node has been ended."""
    from coalface.flower.party import rekey as sealing

    if old is None and new is None:
        raise typer.BadParameter("say the key that it is encrypted with (--from), the one that it shall be, or both")
    written = sealing.rekey(home, old, new)
    done = f"{written} file was" if written == 1 else f"{written} files were"
    typer.echo(f"{home}: {done} written anew; start the node with {f'key={new}' if new else 'no key'}")
