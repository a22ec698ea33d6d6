"""Commands about runs: `coalface run`, `resume`, `demo`, `report` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from coalface.cli import completion, federation
from coalface.cli.console import importing, print_json, print_wide, stopping, stopping_run
from coalface.cli.data import AsJson, Quiet

Changes = Annotated[
    list[str] | None,
    typer.Argument(help="Changes to the recipe, such as local.lr=0.05.", autocompletion=completion.changes),
]
Workers = Annotated[int | None, typer.Option(help="Worker processes; the results are the same.")]


def run(
    recipe: Annotated[
        Path,
        typer.Argument(
            help="A recipe: a file, or the name of an included one such as lfw/silos.",
            autocompletion=completion.recipes,
        ),
    ],
    changes: Changes = None,
    out: Annotated[Path, typer.Option(help="The run folder to write.")] = Path("runs/run"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, bytes and memory, without a run.")
    ] = False,
    workers: Workers = None,
    party_data: Annotated[
        Path | None,
        typer.Option(help="A YAML file that names each party's party.yaml, for parties with their own images."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train by a recipe, and write the figures, the ledger, the model and a report into a run folder."""
    with importing():
        from coalface.experiments import run as experiment
        from coalface.experiments.callbacks.progress import Progress
        from coalface.experiments.recipe import loader

    loaded = loader.load(recipe, _with_workers(changes, workers))
    if party_data is not None:
        from coalface.experiments.recipe import party_file

        loaded = party_file.fill(loaded, party_file.read_all(party_data))
    if dry_run:
        from coalface.experiments.plan import preflight

        if as_json:
            print_json(preflight.as_dict(loaded))
        else:
            typer.echo(preflight.describe(loaded, lambda line: typer.echo(f"note: {line}", err=True)))
        return
    with stopping_run(out), Progress(quiet=quiet or as_json) as callback:
        experiment.run(loaded, out, callback)
    _end(out, as_json)


def _with_workers(changes: list[str] | None, workers: int | None) -> tuple[str, ...]:
    """The changes to a recipe, that of --workers among them."""
    return (*(changes or ()), *(() if workers is None else (f"engine.workers={workers}",)))


def _end(out: Path, as_json: bool) -> None:
    """Say where the report of a run is, or print its summary."""
    typer.echo((out / "summary.json").read_text("utf-8") if as_json else f"report: {out / 'report.html'}")


class ResumeCommand(TyperCommand):
    """Looks up the keys that may change only for its help: that takes a second."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from coalface.experiments.recipe import schema as config

        changes = next(parameter for parameter in self.params if parameter.name == "changes")
        changes.help = f"What may change: {', '.join(config.FREE + config.ADJUSTABLE)}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def resume(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    changes: Changes = None,
    changed_code: Annotated[
        bool,
        typer.Option("--changed-code", help="Resume even if the code of the method has changed since the run began."),
    ] = False,
    from_round: Annotated[int | None, typer.Option(help="Resume from the checkpoint after this round.")] = None,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Resume a run from its last checkpoint, and restart parts of a federation on this machine that ended."""
    with importing():
        from coalface.experiments import provenance, status
        from coalface.experiments import run as experiment
        from coalface.experiments.callbacks.progress import Progress

    changed = _with_workers(changes, workers)
    if changed_code and status.read_begins(run_folder).get("elsewhere"):
        provenance.accept_code(run_folder)
    if from_round is not None:
        experiment.go_back(run_folder, from_round)
        typer.echo(f"{run_folder} is back at the end of round {from_round}", err=True)
    if federation.goes_on(run_folder, changed, quiet):
        return
    with stopping_run(run_folder), Progress(quiet=quiet or as_json) as callback:
        experiment.resume(run_folder, callback, changed, changed_code=changed_code)
    _end(run_folder, as_json)


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again, over a finished demo.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train over several parties on synthetic faces: solo, FedAvg and centralised, compared on one page."""
    with importing():
        from coalface.experiments import demo as demonstration
        from coalface.experiments.callbacks.progress import Progress

    with stopping("the same command continues"), Progress(quiet=quiet or as_json) as callback:
        demonstrated = demonstration.run(out, callback, fresh=fresh)
    print_json(demonstrated.as_dict()) if as_json else typer.echo(demonstrated.text())


def report(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    share: Annotated[
        bool,
        typer.Option("--share", help="Leave out paths, names of parties, host, user, command and messages of errors."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The page to write; RUN/report.html, or RUN/shared.html, by default.")
    ] = None,
) -> None:
    """Write the report page of a run again, or one to pass on (`--share`)."""
    from coalface.experiments import sharing
    from coalface.experiments.report import page

    typer.echo(f"report: {(sharing.build if share else page.build)(run_folder, out)}")


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; differences are to the first.")],
    page: Annotated[Path | None, typer.Option("--report", help="Also write a page of all runs, with charts.")] = None,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print a LaTeX table (booktabs).")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a line for each run and figure.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs: their figures, differences and 95 % intervals (paired bootstrap over identities and seeds)."""
    from coalface.core.errors import RecipeError
    from coalface.experiments.comparison import latex, paired, table
    from coalface.experiments.comparison import page as pages

    if as_latex + as_csv + as_json > 1:
        raise RecipeError("choose one form to print", where="--latex, --csv, --json")
    compared = paired.compare_runs(runs)
    if page is not None:
        pages.build(compared, page)
    if as_json:
        print_json(table.as_dict(compared))
    elif as_latex or as_csv:
        typer.echo((latex.latex if as_latex else table.csv)(compared), nl=False)
    else:
        print_wide(table.rendered(compared), width=80)
