"""Commands about grids of settings, and about recipes from elsewhere: `coalface sweep` and `import-config`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from coalface.cli import completion
from coalface.cli.console import importing, print_json, stopping
from coalface.cli.data import AsJson, Quiet


def sweep(
    recipe: Annotated[
        Path,
        typer.Argument(
            help="A recipe, or a file with several grids over one, by path or name.", autocompletion=completion.recipes
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Keys with several values, such as method=solo,fedavg seed=0,1,2.", autocompletion=completion.changes
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the cells, the table and the page.")] = Path("sweeps/sweep"),
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="The setting to compare with: key=value of a swept key. May be repeated, for a table each."),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(help="The swept key on the x-axis; by default, each key with three numbers or more."),
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            help="A figure as LIST/FIGURE, such as devtest/eer: draw its differences to the first baseline, with their "
            "intervals, as figure.svg."
        ),
    ] = None,
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Keep the run folders of finished cells.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Cells at a time, each in a process; results are the same.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check every cell and print what is left to run.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a grid of recipes, and compare the cells in a table and a page of charts; the same command resumes it."""
    with importing():
        from coalface.experiments.callbacks.progress import Progress
        from coalface.experiments.sweep import cells
        from coalface.experiments.sweep import run as sweeping

    if dry_run:
        planned = sweeping.plan(recipe, changes or (), out, baselines=baseline or ())
        print_json(planned) if as_json else typer.echo(sweeping.plan_text(planned, out))
        return
    with stopping("the same command continues the sweep"), Progress(quiet=quiet or as_json) as callback:
        text = sweeping.sweep(
            recipe,
            changes or (),
            out,
            callback,
            baselines=baseline or (),
            axes=axis or (),
            drawn=figure,
            keep_runs=keep_runs,
            jobs=jobs,
        )
    if as_json:
        finished = cells.read_cells(out / "cells.jsonl").values()
        print_json([{key: cell[key] for key in cell if key != "evidence"} for cell in finished])
    else:
        typer.echo(text)


def import_config(
    config: Annotated[Path, typer.Argument(help="An insightface configuration, such as ms1mv3_r50.py.")],
    out: Annotated[Path | None, typer.Option(help="The recipe to write; printed by default.")] = None,
) -> None:
    """Turn an insightface configuration into a recipe, without running it."""
    from coalface.core import disk
    from coalface.experiments.recipe import import_insightface

    text = import_insightface.as_recipe(config)
    if out is None:
        typer.echo(text, nl=False)
        return
    with disk.writing(out), open(out, "x", encoding="utf-8") as file:
        file.write(text)
    typer.echo(f"wrote {out}; `coalface run {quote(str(out))} --dry-run` shows its plan")
