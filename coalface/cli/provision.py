"""The commands `coalface provision` and `coalface flower`: kits of a federation, and projects of `flwr run`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from coalface.cli.console import Commands, FirstUnlessNamed, print_json
from coalface.cli.data import AsJson

STEPS = """1. {party} ends its node, and gets parties/{party}/node.key over a private channel; where it encrypts, it
   runs `coalface party rekey home --from OLD/node.key --to node.key`, and then deletes the old key
2. superlink/names.json goes to the SuperLink's kit: a run that starts or goes on from then on asks for the new key
3. the operator withdraws the old key (`flwr supernode ls`, `flwr supernode unregister ID`), and registers the new one
   (`operator/register.sh`)
4. {party} starts its node; a run under way takes it in once it is resumed
5. with privacy.secure every party gets parties/{party}/names.json, by which it knows the others' keys, over a channel
   that you trust: with the old list it takes nothing of {party}"""
"""The steps that remain after a rotation."""


provision = typer.Typer(
    name="provision",
    cls=FirstUnlessNamed,
    no_args_is_help=True,
    help="Make and check the kits of a federation over Flower.",
)


@provision.command()
def make(
    federation: Annotated[
        Path, typer.Argument(metavar="FEDERATION.yaml", help="The federation: its parties and its SuperLink.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    ca_key: Annotated[
        Path | None, typer.Option(help="A new file outside the kits for the CA's key, which is otherwise discarded.")
    ] = None,
) -> None:
    """Write a CA, certificates, a key and a start script for each party. `make` may be omitted."""
    from coalface.flower.provision import kits as provisioning

    folder = provisioning.make(federation, out, datetime.datetime.now(datetime.UTC), ca_key)
    typer.echo(f"wrote {folder}; its README.md says what to hand to whom, and how")
    advice = "nothing needs it again" if ca_key is None else "keep it off every network"
    typer.echo(f"the CA's key is {'not kept' if ca_key is None else f'in {ca_key}'}: {advice}")


@provision.command()
def rotate(
    kits: Annotated[Path, typer.Argument(metavar="KITS", help="A folder that `coalface provision` made.")],
    party: Annotated[str, typer.Argument(help="The party whose node gets a new key.")],
) -> None:
    """Make a new key for one party's node; other keys and the certificates stay."""
    from coalface.flower.provision import rotate as rotating

    files = rotating.rotate(kits, party)
    typer.echo(f"{party} has a new key: wrote {', '.join(map(str, files))}")
    typer.echo(STEPS.format(party=party))


@provision.command()
def check(
    kits: Annotated[Path, typer.Argument(metavar="KITS", help="A folder that `coalface provision` made.")],
    as_json: AsJson = False,
) -> None:
    """Check kits for what is expired, mismatched, misplaced or readable by others. Exits with status 1 on a fault."""
    from coalface.flower.provision import verify

    faults = verify.check(kits, datetime.datetime.now(datetime.UTC))
    print_json({"faults": faults}) if as_json else typer.echo("\n".join(faults) or f"{kits}: no faults found")
    if faults:
        raise typer.Exit(1)


flower = typer.Typer(name="flower", cls=Commands, no_args_is_help=True, help="Run recipes over Flower.")


@flower.command()
def new(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    recipe: Annotated[Path, typer.Option(help="The recipe that the project runs.")],
) -> None:
    """Write a project for `flwr run`: the app, the recipe, and its plain values as run-config."""
    from coalface.flower.app import project

    project_folder = project.new(folder, recipe)
    typer.echo(f"wrote {project_folder}; its README.md says how to start its SuperNodes and run it")


@flower.command(
    hidden=True,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def superexec(context: typer.Context) -> None:
    """Be `flower-superexec`, with tokens off the command lines; the start scripts of kits begin it."""
    from coalface.flower.app import superexec

    superexec.run(context.args)
