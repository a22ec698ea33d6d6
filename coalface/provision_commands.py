"""The commands about the kits of a federation: `coalface provision …`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class _MakeUnlessNamed(TyperGroup):
    """`coalface provision FILE …` is `coalface provision make FILE …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = ["make", *args]
        return super().parse_args(ctx, args)


provision = typer.Typer(
    cls=_MakeUnlessNamed, no_args_is_help=True, help="Make and check the kits of a federation over Flower."
)


@provision.command()
def make(
    federation: Annotated[
        Path, typer.Argument(metavar="FEDERATION.yaml", help="Who takes part, over which SuperLink.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
) -> None:
    """Write a CA, certificates, a key and a start script for each party. The word `make` may be left out."""
    from coalface import provisioning

    made = provisioning.make(federation, out, datetime.datetime.now(datetime.UTC))
    typer.echo(f"wrote {made}; its README.md says who gets what, and over which channel")


@provision.command()
def check(kits: Annotated[Path, typer.Argument(metavar="KITS", help="A folder that `provision` made.")]) -> None:
    """Say what is expired, mismatched, misplaced or readable by others; exit status 1 where anything is."""
    from coalface import kitchecking

    found = kitchecking.check(kits, datetime.datetime.now(datetime.UTC))
    for fault in found:
        typer.echo(fault)
    if found:
        raise typer.Exit(1)
    typer.echo(f"{kits}: nothing is wrong")
