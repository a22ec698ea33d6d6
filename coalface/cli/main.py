"""The command `coalface`: its commands in panels, and the one line of a command that fails."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Annotated, Any, NoReturn

import click
import typer

from coalface import __version__
from coalface.cli import attack, authoring, catalogue, evaluation, federation, ledger, runs, sweeps
from coalface.cli.cache import cache
from coalface.cli.console import STARTS_AGAIN, Commands, Stopped
from coalface.cli.data import data
from coalface.cli.party import party
from coalface.cli.provision import flower, provision
from coalface.cli.use import export, gallery
from coalface.core.errors import MissingExtra, RunError, raised_at

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train face recognition models over parties that may not pool their images, and compare methods.",
)
PANELS: dict[str, tuple[Any, ...]] = {
    "Train": (runs.run, runs.resume, runs.demo, sweeps.sweep),
    "Results": (runs.report, runs.compare, ledger.ledger, attack.attack, export.export_client),
    "Use a model": (gallery.embed, gallery.verify, gallery.gallery, export.export),
    "Evaluate a model": (evaluation.evaluate, evaluation.ijb, evaluation.megaface),
    "Look up": (catalogue.methods, catalogue.models, catalogue.messages),
    "Write your own": (authoring.new, authoring.check_method),
    "Data and recipes": (data, cache, sweeps.import_config),
    "Over many machines": (provision, *federation.COMMANDS, party, flower),
}
for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            cls = runs.ResumeCommand if command is runs.resume else None
            app.command(cls=cls, rich_help_panel=panel)(command)


def _print_version(asked: bool) -> None:
    if asked:
        import torch

        from coalface.models.speed import processor

        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
        typer.echo(f"coalface {__version__}\ntorch {torch.__version__}, {device}\n{processor()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print versions and the device."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error; may follow a command.")
    ] = False,
) -> None:
    """`main` takes `--debug` away, wherever it stands."""


_RUNS = ("run", "resume", "up", "demo")
"""Commands whose run goes on by another; a sweep goes on by the same."""


def _end_stopped(then: str = STARTS_AGAIN) -> NoReturn:
    """Say how to go on after Ctrl-C and exit with 130; one more while Python ends would change that status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    typer.echo(f"stopped; {then}", err=True)
    sys.exit(130)


def main() -> None:
    """Run the command; an error takes one line, and with `--debug` its traceback above it."""
    sys.path.append(os.getcwd())  # `package.module:Name` of a recipe is looked for in this folder too
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        status = app(arguments, prog_name="coalface", standalone_mode=False)
    except KeyboardInterrupt:  # a second Ctrl-C while typer answers the first
        _end_stopped()
    except Stopped as stopped:
        _end_stopped(str(stopped))
    except click.Abort:
        typer.echo("coalface: stopped: the question was not answered with yes", err=True)
        sys.exit(1)
    except Exception as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        if text := _explained(error, arguments):
            typer.echo(f"coalface: {text}", err=True)
        status = 2 if arguments[:1] == ["verify"] else 1  # where 1 says that two images show two people
        sys.exit(error.exit_code if isinstance(error, click.ClickException) else status)
    if status == 130:  # typer makes it of Ctrl-C
        _end_stopped()
    sys.exit(status)


def _explained(error: Exception, arguments: list[str]) -> str:
    """An error for a person, in one line unless it brings more."""
    if isinstance(error, click.UsageError):
        return _usage(error)
    if isinstance(error, MemoryError):
        reason = f"there is too little memory for this{f' ({error})' if str(error) else ''}"
        return f"{reason}: use smaller batches or images, fewer workers, or a larger machine"
    if isinstance(error, OSError):
        from coalface.core import disk  # not before: this takes a third of the time that `--help` takes
        from coalface.data import cache as caches

        path = disk.named_by(error)
        then = disk.GOES_ON if arguments[:1] and arguments[0] in _RUNS else disk.AGAIN
        return ". ".join(filter(None, [disk.explained(error, then), "" if path is None else caches.advice(path)]))
    if isinstance(error, RunError | MissingExtra | ValueError | click.ClickException):
        return str(error)
    from coalface.core.declarations import DeclarationError

    if isinstance(error, DeclarationError):
        return str(error)
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    place = raised_at(error)
    return f"{text}{place}" if place else f"{text}. This is a defect; the same command with --debug shows where"


def _usage(error: click.UsageError) -> str:
    """What is wrong with the words of a command, and which help shows the right ones."""
    if isinstance(error, click.NoSuchOption):
        near = f"; did you mean {' or '.join(error.possibilities)}?" if error.possibilities else ";"
        takes_changes = error.ctx is not None and any(p.name == "changes" for p in error.ctx.command.params)
        if takes_changes and not any(option.startswith(error.option_name) for option in error.possibilities or ()):
            near += " settings of a recipe are KEY=VALUE, such as local.lr=0.1."
        text = f"{error.option_name}: unknown option{near}"
    elif not (text := error.format_message()):  # no words were given, and help is printed by now
        return ""
    stop = "" if text.endswith((".", "?", ";")) else "."
    return f"{text}{stop} `{error.ctx.command_path if error.ctx else 'coalface'} -h` shows how it is written"


if __name__ == "__main__":
    main()
