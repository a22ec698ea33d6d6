"""Commands that list methods, backbones and messages: `coalface methods`, `models` and `messages`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coalface.cli.console import print_table
from coalface.cli.data import AsJson


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, with --bibtex; all by default.")] = None,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="Print the papers to cite, in BibTeX.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods: paper, setting, and what each sends."""
    import json

    from coalface.core.checks import nearest
    from coalface.experiments.plan import declared, what_stays
    from coalface.methods import METHODS, papers

    if bibtex:
        entries = papers.bibtex(name and nearest(name, METHODS, "--bibtex"))
        typer.echo(entries or f"{name} names no paper", err=not entries)
        return
    rows = []
    for name, cls in METHODS.items():
        steps = declared(cls)
        up = [f for _, _, _, fields in steps for f in fields]
        rows.append(
            {
                "method": name,
                "setting": "pooled" if cls.pools else cls.setting,
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


def models(
    names: Annotated[list[str] | None, typer.Argument(help="Backbones; all by default.")] = None,
    size: Annotated[int, typer.Option(help="Side of the square images in pixels.")] = 112,
    channels: Annotated[int, typer.Option(help="1 for grey, 3 for RGB.")] = 3,
    measure: Annotated[bool, typer.Option("--measure", help="Time training and inference on this CPU.")] = False,
    batch: Annotated[int, typer.Option(help="Images per batch, with --measure.")] = 8,
    threads: Annotated[int, typer.Option(help="CPU threads, with --measure.")] = 1,
    as_json: AsJson = False,
) -> None:
    """List the backbones: parameters, multiply-adds, message size, and images per second when asked.

    Ends with exit code 1 if none of them can take images of this size, else with 0.
    """
    import json

    from coalface.core.text import several
    from coalface.experiments.report.runs import size as in_bytes
    from coalface.models.catalogue import catalogue, processor

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
        settings = {"size": size, "channels": channels, **({"processor": processor()} if measure else {})}
        typer.echo(json.dumps({**settings, "models": entries}, indent=1))
    cannot = [str(entry["cannot"]) for entry in entries if "cannot" in entry]
    if len(cannot) == len(entries):
        for reason in cannot:
            typer.echo(f"coalface: {reason}", err=True)
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
    for reason in cannot:
        typer.echo(reason)
    typer.echo(f"\nOne image of {size}×{size}, {'grey' if channels == 1 else 'RGB'}; a message: its float32 tensors.")
    if measure:
        typer.echo(f"Images per second: batches of {batch}, float32, {several(threads, 'thread')}, {processor()}.")


def messages(
    method: Annotated[str, typer.Argument(help="A method's name; `coalface methods` lists them.")],
    recipe: Annotated[Path | None, typer.Option(help="A recipe that sets the model and the parties.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print who sends what to whom, its size in bytes, and what can be read from it, without a run."""
    import json

    from coalface.experiments import plan, preflight
    from coalface.experiments.recipe import loader

    loaded = loader.load(recipe, [f"method={method}", *([] if recipe else preflight.stand_in(method))])
    planned = preflight.plan(loaded)
    if as_json:
        readable = plan.what_can_be_read(loaded.build_method(), planned)
        messages = {"sent": [vars(sent) for sent in planned.sent], "stays": planned.stays, "readable": readable}
        typer.echo(json.dumps(messages, indent=1))
        return
    typer.echo(preflight.messages_text(loaded, planned))
