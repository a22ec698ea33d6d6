"""The command `coalface attack`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coalface.cli import completion
from coalface.cli.console import importing, print_json, stopping
from coalface.cli.data import AsJson, Quiet
from coalface.cli.runs import Changes

if TYPE_CHECKING:
    from coalface.experiments.recipe.schema import Recipe


def attack(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|RECIPE",
            help="A run folder, or a recipe, whose rounds are replayed under the attack.",
            autocompletion=completion.recipes,
        ),
    ],
    changes: Changes = None,
    kind: Annotated[
        str,
        typer.Option(
            help="The attack: linkage (whose is what leaves?), template-inversion and update-inversion (which faces "
            "does it show?), membership (who was trained on?) or poisoning (what do liars do?)."
        ),
    ] = "linkage",
    defence: Annotated[
        list[str] | None,
        typer.Option(help="Changes to the recipe to measure beside it, such as 'privacy.secure=true'; repeatable."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting of the attack; repeatable. template-inversion: judge, input, far, sheet; update-inversion: "
            "judge, input, iterations, parties; membership: parties, candidates; poisoning: how, share, factor, until. "
            "Their values: docs/trust.md."
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(min=0, help="A seed, of other synthetic people too; repeatable. By default the run's."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for cells and table; the run's own, or attacks/KIND.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Attack a run: replay it, and measure what an attacker of stated knowledge gets, beside chance and defences.

    The same command goes on where it was stopped.
    """
    with importing():
        from coalface.experiments.attacks import measure
        from coalface.experiments.callbacks.progress import Progress
        from coalface.experiments.recipe import loader

    is_run = (target / "config.yaml").exists()
    recipe = target / "config.yaml" if is_run else target

    def load(more: Sequence[str]) -> Recipe:
        return loader.load(recipe, [*(changes or ()), *more])

    folder = out or (target / "attacks" if is_run else Path("attacks")) / kind
    with stopping("the same command goes on"), Progress(quiet=quiet or as_json) as callback:
        cells = measure.measure(
            load,
            " ".join([target.name if is_run else str(target), *(changes or ())]),
            kind,
            folder,
            callback,
            run=target if is_run else None,
            defences=defence or (),
            seeds=seed or [load(()).seed],
            options=measure.read_options(option or ()),
        )
    if as_json:
        print_json([asdict(cell)["outcomes"] for cell in cells])
    else:
        typer.echo((folder / measure.TABLE).read_text("utf-8"))
    if not any(cell.outcomes for cell in cells):
        raise typer.Exit(1)  # why there is no figure stands in the table
