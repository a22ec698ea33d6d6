"""Commands for who writes a method: `coalface new method` and `coalface check-method`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coalface.cli import completion
from coalface.cli.console import Commands, print_json
from coalface.cli.data import AsJson

new = typer.Typer(name="new", cls=Commands, no_args_is_help=True, help="Write a method of your own from a template.")


@new.command("method")
def new_method(
    name: Annotated[str, typer.Argument(help="What to call it, such as my-method.")],
    folder: Annotated[Path, typer.Option(help="Where to write its two files.")] = Path("."),
) -> None:
    """Write a method that works, and the test of its formula."""
    from coalface.experiments.conformance.new_method import class_of, write_method

    file, test = write_method(name, folder)
    typer.echo(f"wrote {file} and {test}. Next{'' if folder == Path('.') else f', in {folder}'}:")
    written = f"{file.stem}:{class_of(name)}"
    typer.echo(f"  python -m pytest {test.name}\n  coalface check-method {written}")
    typer.echo(f"  coalface run synthetic/silos method={written}")


def check_method(
    method: Annotated[
        str,
        typer.Argument(
            help="package.module:Class, or a name of `coalface methods`.", autocompletion=completion.methods
        ),
    ],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Settings that it needs in tiny federations, such as rounds=60.")
    ] = None,
    sends: Annotated[
        list[str] | None, typer.Option(help="Class.field of private state that the method sends on purpose.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a method in tiny federations: same bits, resume, private state, faults, learning.

    Takes under a minute. Exits with status 1 if a check fails.
    """
    import tempfile

    from coalface.experiments.conformance.suite import check_all, find_subject

    with tempfile.TemporaryDirectory() as folder:
        results = []
        for result in check_all(find_subject(method, changes or (), Path(folder), frozenset(sends or ()))):
            results.append(vars(result))
            if not as_json:
                typer.echo(f"{'ok   ' if result.ok else 'WRONG'}  {result.check}: {result.wrong or result.holds}")
                if result.mend:
                    typer.echo(f"       How to mend it: {result.mend}")
    if as_json:
        print_json(results)
    if not all(result["ok"] for result in results):
        raise typer.Exit(1)
