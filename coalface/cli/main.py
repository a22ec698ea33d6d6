"""The command `coalface`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from coalface.cli import evaluation, federation, ledger
from coalface.cli.cache import cache
from coalface.cli.console import print_table, print_wide
from coalface.cli.data import AsJson, Quiet, data
from coalface.cli.flower import flower
from coalface.cli.party import party
from coalface.cli.provision import provision
from coalface.core import disk
from coalface.data import cache as caches

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(data, name="data")
app.add_typer(cache, name="cache")
app.add_typer(flower, name="flower")
app.add_typer(provision, name="provision")
app.add_typer(party, name="party")
app.add_typer(ledger.ledger, name="ledger")

Changes = Annotated[list[str] | None, typer.Argument(help="Changes to the recipe, such as local.lr=0.05.")]


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="A recipe, for example recipes/lfw/silos.yaml.")],
    changes: Changes = None,
    out: Annotated[Path, typer.Option(help="The run folder to make.")] = Path("runs/run"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, its bytes and memory, and stop.")] = False,
    workers: Annotated[int | None, typer.Option(help="Worker processes; the bits do not depend on it.")] = None,
    party_data: Annotated[
        Path | None, typer.Option(help="Where the images of parties lie that bring their own: party -> its party.yaml.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run one recipe."""
    from coalface.experiments import preflight
    from coalface.experiments import run as experiment
    from coalface.experiments.callbacks.progress import Progress
    from coalface.experiments.recipe import loader, party_file

    every = [*(changes or []), *([f"engine.workers={workers}"] if workers is not None else [])]
    loaded = loader.load(recipe, every)
    if party_data is not None:
        loaded = party_file.filled(loaded, party_file.read_all(party_data))
    if dry_run:
        typer.echo(preflight.describe(loaded))
        return
    with Progress(quiet=quiet) as callback:
        experiment.run(loaded, out, callback)
    typer.echo(f"report: {out / 'report.html'}")


class _Resume(TyperCommand):
    """Reads which keys may change where its help is asked for: to read them for every command takes a second."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from coalface.experiments.recipe import schema as config

        changes = next(each for each in self.params if each.name == "changes")
        changes.help = f"What may change: {', '.join(config.FREE + config.ADJUSTABLE)}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


@app.command(cls=_Resume)
def resume(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    changes: Changes = None,
    changed_code: Annotated[
        bool, typer.Option("--changed-code", help="Go on although the code of the method was changed since it began.")
    ] = False,
    from_round: Annotated[
        int | None, typer.Option(help="Go back to an earlier accepted checkpoint: that after so many rounds.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Go on with a run from its last checkpoint; of a federation on this machine, after what of it has gone is back."""
    from coalface.experiments import provenance, status
    from coalface.experiments import run as experiment
    from coalface.experiments.callbacks.progress import Progress

    if changed_code and status.is_elsewhere(run_folder):
        provenance.accept_code(run_folder)
    if from_round is not None:
        experiment.go_back(run_folder, from_round)
        typer.echo(f"{run_folder} is back at the end of round {from_round}", err=True)
    if federation.goes_on(run_folder, tuple(changes or ()), quiet):
        return
    with Progress(quiet=quiet) as callback:
        experiment.resume(run_folder, callback, tuple(changes or ()), changed_code=changed_code)
    typer.echo(f"report: {run_folder / 'report.html'}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to make.")] = Path("demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Train anew where a finished demo lies.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train over several parties on synthetic faces: solo, FedAvg and centralised, compared on one page."""
    from coalface.experiments import demo as demonstration
    from coalface.experiments.callbacks.progress import Progress

    with Progress(quiet=quiet) as callback:
        typer.echo(demonstration.run(out, callback, fresh=fresh))


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods: paper, setting, and what they send."""
    import json

    from coalface.experiments.plan import declared, what_stays
    from coalface.methods import METHODS

    rows = []
    for name, cls in METHODS.items():
        steps = declared(cls)
        up = [f for _, _, _, fields in steps for f in fields]
        rows.append(
            {
                "method": name,
                "setting": "pooled" if cls.pooled else cls.setting,
                "paper": cls.paper,
                "leaves a party": ", ".join(dict.fromkeys(up)),
                "stays": ", ".join(what_stays(cls)),
                "what it is": cls.title,
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    print_table(rows)


@app.command()
def models(
    names: Annotated[list[str] | None, typer.Argument(help="Backbones; all of them where none is named.")] = None,
    size: Annotated[int, typer.Option(help="Side of the square images in pixels.")] = 112,
    channels: Annotated[int, typer.Option(help="1 for grey, 3 for RGB.")] = 3,
    measure: Annotated[bool, typer.Option("--measure", help="Also time training and inference on this CPU.")] = False,
    batch: Annotated[int, typer.Option(help="Images a batch where measured.")] = 8,
    threads: Annotated[int, typer.Option(help="Threads where measured.")] = 1,
    as_json: AsJson = False,
) -> None:
    """List the backbones: parameters, multiply-adds, message size, and images per second when asked.

    Ends with exit code 1 if none of them can take images of this size, else with 0.
    """
    import json

    from coalface.core.text import several
    from coalface.experiments.report.runs import size as in_bytes
    from coalface.models.catalogue import catalogue
    from coalface.models.measuring import processor

    entries = catalogue(
        names or (),
        size=size,
        channels=channels,
        measured=measure,
        batch=batch,
        threads=threads,
        begins=lambda name: typer.echo(f"measuring {name} …", err=True),
    )
    if as_json:
        asked = {"size": size, "channels": channels, **({"processor": processor()} if measure else {})}
        typer.echo(json.dumps({**asked, "models": entries}, indent=1))
    cannot = [str(entry["cannot"]) for entry in entries if "cannot" in entry]
    if len(cannot) == len(entries):
        for said in cannot:
            typer.echo(f"coalface: {said}", err=True)
        raise typer.Exit(1)
    if as_json:
        return
    rows = []
    for entry in entries:
        if "cannot" in entry:
            rows.append({"model": entry["name"], "embedding": f"not at {size}×{size}"})
            continue
        row = {
            "model": entry["name"],
            "embedding": entry["embedding_size"],
            "parameters": f"{entry['parameters']:,}",
            "multiply-adds": f"{entry['multiply_adds'] / 1e6:,.1f} M",
            "message": in_bytes(entry["message_bytes"]),
            "BatchNorm": "yes" if entry["batchnorm"] else "no",
        }
        if measure:
            row["inference/s"] = f"{entry['speed']['inference']:.3g}"
            row["training/s"] = f"{entry['speed']['training']:.3g}"
        rows.append(row)
    keys = max(rows, key=len)
    print_table([{key: row.get(key, "") for key in keys} for row in rows], numbers=set(keys) - {"model", "BatchNorm"})
    for said in cannot:
        typer.echo(said)
    typer.echo(f"\nOne image of {size}×{size}, {'grey' if channels == 1 else 'RGB'}; a message: its float32 tensors.")
    if measure:
        typer.echo(f"Images per second: batches of {batch}, float32, {several(threads, 'thread')}, {processor()}.")


@app.command()
def messages(
    method: Annotated[str, typer.Argument(help="A method's name; `coalface methods` lists them.")],
    recipe: Annotated[Path | None, typer.Option(help="A recipe with the model and the parties.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print who sends what to whom, in how many bytes, and what can be read of it, without running."""
    import json

    from coalface.experiments import plan, preflight
    from coalface.experiments.recipe import loader

    loaded = loader.load(recipe, [f"method={method}", *([] if recipe else preflight.stand_in(method))])
    planned = preflight.plan(loaded)
    if as_json:
        readable = plan.what_can_be_read(loaded.build_method(), planned)
        said = {"sent": plan.as_dicts(planned.sent), "stays": planned.stays, "readable": readable}
        typer.echo(json.dumps(said, indent=1))
        return
    typer.echo(preflight.messages_text(loaded, planned))


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="A run folder, or its model folder.")],
    on: Annotated[
        Path, typer.Option("--on", help="A pair list (with --images), a .bin, a pack, or folders of images.")
    ],
    images: Annotated[Path | None, typer.Option(help="The identity folders or pack that a pair list names.")] = None,
    party: Annotated[str | None, typer.Option(help="Whose model, where each party has its own.")] = None,
    threshold_from: Annotated[
        Path | None, typer.Option(help="A second list that the threshold is chosen on (View 1).")
    ] = None,
    flip: Annotated[bool, typer.Option("--flip", help="Add the embedding of the mirrored image.")] = False,
    pairs: Annotated[
        int | None,
        typer.Option(help="Draw so many genuine pairs; 3000, or all, where --on is a pack or folders without a list."),
    ] = None,
    own: Annotated[
        str | None, typer.Option("--list", help="One of the pair lists that --on, a layout such as RFW, brings along.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Judge a model on pairs: ten-fold accuracy, TAR at FARs with the threshold named, EER.

    Where people in them were trained on, the figures on the pairs of others stand beside.
    """
    import functools
    import json

    from coalface.data.stores import telling_passed_over
    from coalface.data.tools.progress_bar import counting
    from coalface.evaluation.finished_model import judge_model

    show = functools.partial(counting, quiet=quiet or as_json)
    with telling_passed_over(lambda said: typer.echo(f"note: {said}", err=True)):
        figures = judge_model(
            model,
            on,
            images=images,
            party=party,
            threshold_from=threshold_from,
            flip=flip,
            pairs=pairs,
            own=own,
            show=show,
        )
    for said in evaluation.remarks(figures, asked=pairs):
        typer.echo(said, err=True)
    if as_json:
        typer.echo(json.dumps(figures, indent=1))
        return
    evaluation.print_figures(figures)


app.command()(evaluation.ijb)
app.command()(evaluation.megaface)
for command in federation.COMMANDS:
    app.command()(command)


@app.command()
def export(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a stopped or finished run.")],
    party: Annotated[str, typer.Option(help="The client, for example silo-00.")],
    out: Annotated[Path, typer.Option(help="The folder to make.")] = Path("own-model"),
) -> None:
    """Write a client's own model by itself: backbone, branch, the gallery of its people, and thresholds."""
    from coalface.experiments import export as exporting

    typer.echo(f"wrote {exporting.export(run_folder, party, out)}; it is the client's own: keep it there")


@app.command()
def identify(
    model: Annotated[Path, typer.Argument(help="A folder that `coalface export` has made.")],
    images: Annotated[Path, typer.Argument(help="Identity folders of images, or a pack.")],
    fpir: Annotated[float, typer.Option(help="The share of strangers that may be taken for somebody.")] = 0.01,
    as_json: AsJson = False,
) -> None:
    """Tell who of a client's people is in images, or that it is a stranger."""
    import dataclasses
    import json

    from coalface.data.stores import telling_passed_over
    from coalface.experiments import export as exporting

    with telling_passed_over(lambda said: typer.echo(f"note: {said}", err=True)):
        found = [dataclasses.asdict(one) for one in exporting.identify(model, images, fpir)]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    print_table(
        [{**one, "cosine": f"{one['cosine']:.3f}", "accepted": "yes" if one["accepted"] else "no"} for one in found]
    )


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders; differences are to the first.")],
    page: Annotated[Path | None, typer.Option(help="Also write a report page of them all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: their figures, differences and 95 % intervals (paired bootstrap over identities)."""
    from coalface.experiments import compare as comparing
    from coalface.experiments.report import page as pages
    from coalface.experiments.report import table

    intervals = comparing.intervals(runs)
    compared = table.compare(runs, intervals, comparing.left_out(runs))
    if page is not None:
        pages.build(runs[0], *runs[1:], intervals=intervals, to=page)
    if as_json:
        typer.echo(table.as_json(compared))
        return
    print_wide(table.rendered(compared))


@app.command()
def sweep(
    recipe: Annotated[Path, typer.Argument(help="A recipe, or a file of several grids over one.")],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Keys with several values, such as method=solo,fedavg seed=0,1,2.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the cells, the table and the page.")] = Path("sweeps/sweep"),
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="What differences are to: key=value of one swept key. Repeated, each has a table."),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(help="A swept key to draw the figures over. Without it: each that takes three numbers or more."),
    ] = None,
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Keep the run folders of finished cells.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check every cell and say what is left to run.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run a grid of recipes, resumable, into one table with paired differences and a page with drawings."""
    from coalface.experiments.callbacks.progress import Progress
    from coalface.experiments.sweep import run as sweeping

    if dry_run:
        typer.echo(sweeping.describe(recipe, changes or (), out, baselines=baseline or ()))
        return
    with Progress(quiet=quiet) as callback:
        text = sweeping.sweep(
            recipe, changes or (), out, callback, baselines=baseline or (), axes=axis or (), keep_runs=keep_runs
        )
        typer.echo(text)


@app.command()
def import_config(
    config: Annotated[Path, typer.Argument(help="An insightface configuration, such as ms1mv3_r50.py.")],
    out: Annotated[Path | None, typer.Option(help="The recipe to write; without it, the recipe is printed.")] = None,
) -> None:
    """Turn an insightface configuration into a recipe, without running it."""
    from coalface.experiments.recipe import import_insightface

    text = import_insightface.as_recipe(config)
    if out is None:
        typer.echo(text, nl=False)
        return
    with disk.writing(out), open(out, "x", encoding="utf-8") as file:
        file.write(text)
    typer.echo(f"wrote {out}; `coalface run {quote(str(out))} --dry-run` shows what it would do")


@app.command()
def weighting_grid(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a stopped or finished run.")],
    step: Annotated[float, typer.Option(help="Between two weights; it divides 1. 0.1 makes 66 weightings.")] = 0.1,
    parties: Annotated[str | None, typer.Option(help="Three of more, as a,b,c; the others get weight 0.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score the average of three parties' backbones over a grid of weightings, as the run's validators do.

    Writes weighting-grid.json, .csv and .html into RUN.
    """
    import json

    from coalface.data.tools.progress_bar import counting
    from coalface.experiments import weighting_grid as grids
    from coalface.experiments.report import weightings

    steps, names = grids.steps_of(step), tuple(parties.split(",")) if parties is not None else ()
    with counting("scoring", grids.models(steps), quiet or as_json) as count:
        found = grids.build(run_folder, steps=steps, parties=names, progress=count).as_dict()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    table = weightings.table(found)
    typer.echo("\n".join([*weightings.said(found), ""]))
    print_table([dict(zip(table.header, row, strict=True)) for row in table.rows], numbers=set(table.header[1:]))
    typer.echo(f"\nwrote {run_folder / grids.NAME}.html, .json and .csv")


_RUNS = ("run", "resume", "up", "demo")
"""Commands whose run goes on by another; a sweep goes on by the same."""


def _end_stopped() -> NoReturn:
    """Say how to go on after Ctrl-C and exit with 130; one more while Python ends would change that status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    typer.echo("stopped; where a run was going on, `coalface resume RUN` takes it up again", err=True)
    sys.exit(130)


def main() -> None:
    """Run the command; what a person can mend is said in one line, without a traceback."""
    try:
        app()
    except KeyboardInterrupt:  # a second Ctrl-C while typer answers the first
        _end_stopped()
    except SystemExit as ended:
        if ended.code == 130:  # typer makes it of Ctrl-C
            _end_stopped()
        raise
    except MemoryError as error:
        what = f"there is too little memory for this{f' ({error})' if str(error) else ''}"
        typer.echo(f"coalface: {what}: take smaller batches or images, fewer workers, or a larger machine", err=True)
        sys.exit(1)
    except Exception as error:
        from coalface.engine.checkpoint import CheckpointError  # not before: it takes a second, and brings threads
        from coalface.engine.transport import RunFailed

        if not isinstance(error, (CheckpointError, RunFailed, OSError, ValueError)):
            raise
        then = disk.GOES_ON if sys.argv[1:2] and sys.argv[1] in _RUNS else disk.AGAIN
        said = str(error)
        if isinstance(error, OSError):
            named = disk.named_by(error)
            said = ". ".join(filter(None, [disk.explained(error, then), "" if named is None else caches.advice(named)]))
        typer.echo(f"coalface: {said}", err=True)
        sys.exit(1)
