"""The commands for a party of a federation: `coalface party …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

party = typer.Typer(no_args_is_help=True, help="At a party: what its own file and images come to.")


@party.callback()
def group() -> None:
    """Keeps `check` a command of its own while it is the only one."""


@party.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="PARTY.yaml", help="The party's own file, as in its kit.")],
    recipe: Annotated[Path | None, typer.Option(help="The recipe that it is asked to take part in.")] = None,
    name: Annotated[str | None, typer.Option("--party", help="Its name, where the file does not say it.")] = None,
) -> None:
    """Say what is found before the node starts, and what the server would be told; exit status 1 where all is not well.

    Nothing is sent. Images are listed and not decoded: `coalface data inspect` looks into each.
    """
    from coalface import config, partychecking

    found = partychecking.check(file, None if recipe is None else config.load(recipe), name)
    for line in (*found.told, *found.faults):
        typer.echo(line)
    if found.faults:
        raise typer.Exit(1)
    typer.echo(f"{file}: nothing is wrong")
