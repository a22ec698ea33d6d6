"""The commands of a running federation: `coalface up`, `down`, `status`, `logs`."""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import sys
import time
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from coalface.cli.console import print_json, print_wide
from coalface.cli.data import AsJson, Quiet
from coalface.core.text import several

KITS = Annotated[Path, typer.Argument(metavar="KITS", help="A folder that `coalface provision` made.")]
RUN = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a folder of kits.")]


def up(
    kits: KITS,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the server's runs; KITS/superlink/runs by default.")
    ] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Also start the run.")] = True,
    run_config: Annotated[str | None, typer.Option(help="Changes to the recipe, such as 'rounds=3'.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the run to end.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the SuperLink and the nodes.")] = 300.0,
    yes: Annotated[bool, typer.Option("--yes", help="Start even if other users can reach its ports.")] = False,
    quiet: Quiet = False,
) -> None:
    """Start a whole federation on this machine, or restart its parts that ended; `coalface down` ends it."""
    from coalface.flower.poc import network

    def tell(text: str) -> None:
        if not quiet:
            typer.echo(text)

    if is_open := network.enter(kits):
        _consent(is_open, network.other_users(), yes)
    else:
        tell("the federation has its own network, which no other user of this machine can reach")

    from coalface.flower.app import run_config as runconfig
    from coalface.flower.poc import launcher, monitor
    from coalface.flower.provision import verify  # after that: these bring threads along

    typed = quote(str(kits))
    loopback = launcher.Loopback(kits, tell, timeout)
    runconfig.check(kits / "operator" / "project", run_config)
    for fault in verify.check(kits, datetime.datetime.now(datetime.UTC)):
        tell(f"kits: {fault}")  # it stops nothing: TLS or the SuperLink refuses what matters
    following = False
    try:
        loopback.start(out)
        if not run:
            by_hand = shlex.join([*([] if is_open else network.nsenter(kits)), str(kits / "operator" / "run.sh")])
            tell(f"`{by_hand}` starts a run, `coalface down {typed}` ends everything")
            return
        number, following = loopback.run(run_config), True
        folder = loopback.folder(run_config)
        tell(f"run {number}, in {folder}; logs in {kits / 'logs'}")
        tell("its first round begins once the server and the parties have loaded the recipe")
        if detach:
            tell(f"`coalface status {typed}` says how it goes, `coalface down {typed}` ends everything")
            return
        monitor.follow(loopback, number, folder, quiet=quiet)
    except KeyboardInterrupt:
        went = "the federation and its run continue" if following else "stopped; what was started still runs"
        typer.echo(f"{went}: `coalface status {typed}`, `coalface down {typed}` ends it", err=True)
        raise typer.Exit(0 if following else 1) from None  # at 130 it would be told that a run is to be resumed
    except launcher.Down as error:
        if "coalface down" in str(error):
            raise
        raise launcher.Down(f"{error}\nwhat was started still runs: `coalface down {typed}` ends it") from None
    tell(f"results: {folder}; the nodes wait for another run, `coalface down {typed}` ends them")


def _consent(is_open: str, users: list[str], yes: bool) -> None:
    """Ask whether to go on where others could reach the ports. Raises RecipeError without a terminal."""
    from coalface.core.errors import RecipeError

    if not users:
        return
    names = ", ".join(users[:4]) + (f" and {len(users) - 4} more" if len(users) > 4 else "")
    warning = (
        f"Others can log in to this machine: {names}. While the federation is up, each of them can reach its ports, "
        "which ask nobody who they are: start code as you, and so read and change all that you can, images too. Why it "
        f"is open: {is_open}."
    )
    if yes:
        typer.echo(warning, err=True)
    elif not sys.stdin.isatty():
        raise RecipeError(f"{warning} Nothing was started; use a machine of your own, or add --yes")
    else:
        typer.confirm(f"{warning} Go on?", abort=True)


def goes_on(run: Path, changes: tuple[str, ...], quiet: bool) -> bool:
    """Resume a run that kits on this machine started, with the same arguments; False for any other run.

    That is `coalface up`, which takes the place of this process.
    """
    from coalface.experiments import status as following
    from coalface.flower.app import run_config as runconfig
    from coalface.flower.poc import flwr_cli

    brought = following.brought_up(run)
    if brought is None:
        return False
    kits, run_config = brought
    if changes:
        raise typer.BadParameter(f"{run}: a run over Flower resumes unchanged; remove {changes[0]}")
    words = ["coalface", "up", str(kits), "--yes"]  # it was answered when the run was started
    if (text := runconfig.changed(kits / "operator" / "project", run_config)) is not None:
        words += ["--run-config", text]
    sys.stdout.flush()
    os.execv(flwr_cli.program("coalface"), [*words, *(["--quiet"] if quiet else [])])  # anew: threads are here by now


def down(
    kits: KITS,
    party: Annotated[str | None, typer.Option(help="End only the node of this party.")] = None,
    as_json: AsJson = False,
) -> None:
    """End all processes of a federation that `coalface up` started; its files stay."""
    from coalface.flower.poc import launcher, processes

    launcher.check_party(kits, party)
    ended = processes.end(kits, part=party)
    parts = sorted({process.part for process in ended})
    text = f"ended {several(len(ended), 'process', 'processes')} of {', '.join(parts)}"
    listed = [{"part": process.part, "pid": process.pid} for process in ended]
    print_json({"ended": listed}) if as_json else typer.echo(text if ended else f"{kits}: nothing is running")


def status(
    run: RUN,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until the run ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the state of a run: its round, and the rounds, failures, bytes and last contact of each party."""
    from coalface.flower.poc import monitor

    if as_json:
        print_json(monitor.read_status(run))
    elif watch:
        with contextlib.suppress(KeyboardInterrupt):
            monitor.watch(run)
    else:
        print_wide(monitor.render(monitor.read_status(run), time.time()))


def logs(
    run: RUN,
    party: Annotated[
        str | None, typer.Option(help="The party; without it, the logs of the server and the run.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Follow the log until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option(min=1, help="How many lines to print, from the end.")] = 40,
) -> None:
    """Print the log of a party, or of the server."""
    from coalface.flower.poc import monitor

    paths = monitor.logs(run, party)
    for path in paths:
        typer.echo(f"==> {path} <==", err=True)
        for line in monitor.tail(path, lines):
            typer.echo(line)
    if follow:
        last = paths[-1]
        with contextlib.suppress(KeyboardInterrupt):
            for path, line in monitor.growing(paths):
                if path != last:
                    typer.echo(f"==> {path} <==", err=True)
                typer.echo(line)
                last = path


COMMANDS: tuple[Any, ...] = (up, down, status, logs)
