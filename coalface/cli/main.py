"""The command `coalface`: its groups of commands, and the message of one that fails."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import typer
import typer.core

from coalface.cli import authoring, catalogue, evaluation, federation, ledger, runs, sweeps
from coalface.cli.cache import cache
from coalface.cli.data import data
from coalface.cli.flower import flower
from coalface.cli.party import party
from coalface.cli.provision import provision
from coalface.core import disk
from coalface.data import cache as caches

typer.core.HAS_RICH = False  # with rich, typer escapes the brackets of `[required]` in plain help too
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for name, group in {"data": data, "cache": cache, "flower": flower, "provision": provision, "party": party}.items():
    app.add_typer(group, name=name)
app.add_typer(authoring.new, name="new")
app.add_typer(ledger.ledger, name="ledger")
app.command()(runs.run)
app.command(cls=runs.ResumeCommand)(runs.resume)
for command in (
    runs.demo,
    catalogue.methods,
    catalogue.models,
    catalogue.messages,
    authoring.check_method,
    evaluation.evaluate,
    evaluation.ijb,
    evaluation.megaface,
    *federation.COMMANDS,
    runs.export,
    runs.identify,
    runs.compare,
    sweeps.sweep,
    sweeps.import_config,
):
    app.command()(command)


_RUNS = ("run", "resume", "up", "demo")
"""Commands whose run goes on by another; a sweep goes on by the same."""


def _end_stopped() -> NoReturn:
    """Say how to go on after Ctrl-C and exit with 130; one more while Python ends would change that status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    typer.echo("stopped; `coalface resume RUN` continues a run", err=True)
    sys.exit(130)


def main() -> None:
    """Run the command; an error that a person can mend takes one line, without a traceback."""
    sys.path.append(os.getcwd())  # `package.module:Name` of a recipe is looked for in this folder too
    try:
        app()
    except KeyboardInterrupt:  # a second Ctrl-C while typer answers the first
        _end_stopped()
    except SystemExit as ended:
        if ended.code == 130:  # typer makes it of Ctrl-C
            _end_stopped()
        raise
    except MemoryError as error:
        reason = f"there is too little memory for this{f' ({error})' if str(error) else ''}"
        typer.echo(f"coalface: {reason}: use smaller batches or images, fewer workers, or a larger machine", err=True)
        sys.exit(1)
    except Exception as error:
        from coalface.engine.checkpoint import CheckpointError  # not before: it takes a second, and brings threads
        from coalface.engine.transport import RunFailed

        if not isinstance(error, (CheckpointError, RunFailed, OSError, ValueError)):
            raise
        then = disk.GOES_ON if sys.argv[1:2] and sys.argv[1] in _RUNS else disk.AGAIN
        message = str(error)
        if isinstance(error, OSError):
            path = disk.named_by(error)
            advice = "" if path is None else caches.advice(path)
            message = ". ".join(filter(None, [disk.explained(error, then), advice]))
        typer.echo(f"coalface: {message}", err=True)
        sys.exit(1)
