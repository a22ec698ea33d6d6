"""The commands `coalface flower`, for projects of `flwr run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coalface.cli.console import Commands

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
