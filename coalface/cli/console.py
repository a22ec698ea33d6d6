"""Tables on a terminal, groups of commands of which one needs no name, and the imports of a command."""

from __future__ import annotations

import contextlib
import difflib
import gc
import json
import shutil
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import click
import typer
from typer.core import TyperGroup


class Commands(TyperGroup):
    """Offers what is near where a command does not exist, and the option of its name: `version` is `--version`.

    Whether click or typer does so as well depends on their versions.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            options = [option for parameter in self.params for option in parameter.opts]
            near = [option for option in options if option == f"--{name}"]
            names = self.list_commands(ctx)
            near = near or difflib.get_close_matches(name, names) or ["run"] * (name == "train" and "run" in names)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"{name}: unknown command{hint}", ctx)
        return super().resolve_command(ctx, args)


class FirstUnlessNamed(TyperGroup):
    """`GROUP ARGUMENT …` is its first command; a folder that is called as a command is named `./verify`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


STARTS_AGAIN = "the same command starts again"


class Stopped(Exception):
    """Ctrl-C ended a command; the text says how to go on."""


@contextlib.contextmanager
def stopping(then: str) -> Iterator[None]:
    """Within, Ctrl-C raises Stopped, which says `then`."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(then) from None


@contextlib.contextmanager
def stopping_run(out: Path) -> Iterator[None]:
    """The same of a run in a folder, which is resumed once it has begun."""
    try:
        yield
    except KeyboardInterrupt:
        begun = (out / "config.yaml").exists()
        raise Stopped(f"`coalface resume {quote(str(out))}` continues the run" if begun else STARTS_AGAIN) from None


def print_json(result: Any) -> None:
    """The result of a command for programs; paths are text."""
    typer.echo(json.dumps(result, indent=1, default=str))


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Within, no garbage is collected, and what is imported is never looked through for any afterwards.

    Collecting took an eighth of the time until the first round: torch alone makes a million objects, all of which stay.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def print_table(rows: Sequence[dict[str, Any]], numbers: Collection[str] = ()) -> None:
    """Rows under the keys of the first; the columns in `numbers` stand at the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for key in rows[0]:
        table.add_column(key, overflow="fold", justify="right" if key in numbers else "left")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    print_wide(table)


def print_lines(texts: Mapping[str, str]) -> None:
    """A name and its text a line, in 80 columns where there is no terminal."""
    left, columns = max(map(len, texts)) + 2, shutil.get_terminal_size().columns
    for name, text in texts.items():
        typer.echo(textwrap.fill(f"{name:{left}}{text}", columns, subsequent_indent=" " * left))


def print_wide(renderable: Any, width: int = 160) -> None:
    """What rich can draw, in the width of the terminal, and in `width` columns where there is none."""
    from rich.console import Console

    console = Console(highlight=False)
    Console(highlight=False, width=console.width if console.is_terminal else width).print(renderable)
