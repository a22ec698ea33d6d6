"""Commands that list methods, backbones and messages: `coalface methods`, `models` and `messages`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalface.cli import completion
from coalface.cli.console import print_json, print_lines, print_table
from coalface.cli.data import AsJson

if TYPE_CHECKING:
    from coalface.core.method import Method


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A method, for its details: a name or package.module:Class.", autocompletion=completion.methods
        ),
    ] = None,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="Print the papers to cite, in BibTeX.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods, or describe one: paper, setting, what leaves a party, what stays, its own settings."""
    from coalface.core.errors import PluginError
    from coalface.methods import METHODS, papers

    if name is not None:
        METHODS.find(name, "NAME")
    if bibtex:
        entries = papers.bibtex(name)
        typer.echo(entries or f"{name} names no paper", err=not entries)
        return
    if name is not None:
        from coalface.experiments.plan import preflight

        about = _about(name, METHODS[name])
        about = {**about, "secure sums": preflight.secure_sums(name)}
        print_json(about) if as_json else _print_method(about)
        return
    rows = []
    for method in METHODS:
        try:
            rows.append(_about(method, METHODS[method]))
        except PluginError as error:
            rows.append({"method": method, "what it is": str(error)})
    if as_json:
        print_json(rows)
        return
    print_lines({row["method"]: row["what it is"] for row in rows})
    typer.echo("\n`coalface methods NAME` says what leaves a party, what stays, and its settings")


def _about(name: str, cls: type[Method]) -> dict[str, Any]:
    from coalface.experiments.plan.messages import what_leaves, what_stays
    from coalface.experiments.recipe.objects import object_schema
    from coalface.experiments.recipe.schema import SHARED
    from coalface.methods import METHODS

    others = METHODS.known_as.items()
    own = [(known, *written.split()) for known, written in others if written.split()[0] == f"method={name}"]
    known_as = [" with ".join((known, *settings)) for known, _, *settings in own]
    schema = object_schema(cls)
    properties = {key: value for key, value in schema["properties"].items() if key not in SHARED}
    return {
        "method": name,
        "what it is": cls.title,
        "paper": cls.paper,
        **({"known as": ", ".join(known_as)} if known_as else {}),
        "setting": "pooled" if cls.pools else cls.setting,
        "scenario": cls.scenario,
        "leaves a party": ", ".join(
            dict.fromkeys(f"{field} ({holds})" for (_, field), holds in what_leaves(cls).items() if field != "header")
        ),
        "stays": ", ".join(what_stays(cls)),
        "class": f"{cls.__module__}:{cls.__qualname__}",
        "settings": list(_settings(properties, f"methods.{name}")),
    }


def _settings(properties: dict[str, Any], above: str) -> Iterator[dict[str, Any]]:
    """Each setting of a JSON schema with its key in a recipe, those of sections in it too."""
    for key, schema in properties.items():
        if "properties" in schema:
            yield from _settings(schema["properties"], f"{above}.{key}")
        else:
            setting = {
                "key": f"{above}.{key}",
                "default": schema.get("default"),
                "about": schema.get("description", ""),
            }
            choices = [value for kind in (schema, *schema.get("anyOf", ())) for value in kind.get("enum", ())]
            yield setting | ({"choices": choices} if choices else {})


def _print_method(about: dict[str, Any]) -> None:
    print_lines({key: str(about[key]) or "nothing" for key in about if key != "settings"})
    for setting in about["settings"]:
        typer.echo(f"\n{setting['key']}={json.dumps(setting['default'])}")
        typer.echo(textwrap.fill(setting["about"], 80, initial_indent="    ", subsequent_indent="    "))
        if "choices" in setting:
            typer.echo(f"    One of: {', '.join(map(str, setting['choices']))}.")


def models(
    names: Annotated[list[str] | None, typer.Argument(help="Backbones; all by default.")] = None,
    size: Annotated[int, typer.Option(help="Side of the square images in pixels.")] = 112,
    channels: Annotated[int, typer.Option(help="1 for grey, 3 for RGB.")] = 3,
    measure: Annotated[bool, typer.Option("--measure", help="Time training and inference on this CPU.")] = False,
    batch: Annotated[int, typer.Option(help="Images per batch, with --measure.")] = 8,
    threads: Annotated[int, typer.Option(help="CPU threads, with --measure.")] = 1,
    bfloat16: Annotated[bool, typer.Option("--bfloat16", help="Measure with engine.autocast=bfloat16.")] = False,
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="Measure with engine.channels_last=true.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the backbones: parameters, multiply-adds, message size, and when asked images and operations per second.

    Exits with status 1 if none of them can take images of this size.
    """
    import torch

    from coalface.core.text import size as in_bytes
    from coalface.models.catalogue import catalogue
    from coalface.models.speed import Arithmetic, processor

    arithmetic = Arithmetic(threads, "bfloat16" if bfloat16 else None, channels_last)
    entries = catalogue(
        names or (),
        size=size,
        channels=channels,
        measured=measure,
        batch=batch,
        arithmetic=arithmetic,
        begins=lambda name: typer.echo(f"measuring {name} …", err=True),
    )
    machine = {"processor": processor(), "torch": torch.__version__}
    if as_json:
        settings = {"size": size, "channels": channels, **(machine if measure else {})}
        print_json({**settings, "models": entries})
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
            row |= _rates("inference", entry["speed"]) | _rates("training", entry["speed"])
        rows.append(row)
    keys = max(rows, key=len)
    print_table([{key: row.get(key, "") for key in keys} for row in rows], numbers=set(keys) - {"model", "BatchNorm"})
    for reason in cannot:
        typer.echo(reason)
    typer.echo(f"\nOne image of {size}×{size}, {'grey' if channels == 1 else 'RGB'}; a message: its float32 tensors.")
    if measure:
        peaks = [entry["speed"]["peak_flops"] / 1e9 for entry in entries if "speed" in entry]
        typer.echo(f"Images per second: batches of {batch}, {arithmetic}, {', torch '.join(machine.values())}.")
        typer.echo(
            "FLOP/s: floating-point operations, two a multiply-add; in brackets their share of the peak, a product of "
            f"two 1024×1024 matrices with the same settings ({min(peaks):.3g} to {max(peaks):.3g} G)."
        )


def _rates(way: str, speed: dict[str, Any]) -> dict[str, str]:
    flops = speed[f"{way}_flops"]
    share = f"{flops / 1e9:.3g} G ({100 * flops / speed['peak_flops']:.0f} %)"
    return {f"{way}/s": f"{speed[way]:.3g}", f"{way} FLOP/s": share}


def messages(
    method: Annotated[
        str,
        typer.Argument(help="A method's name; `coalface methods` lists them.", autocompletion=completion.methods),
    ],
    recipe: Annotated[
        Path | None,
        typer.Option(help="A recipe that sets the model and the parties.", autocompletion=completion.recipes),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print who sends what to whom, its size in bytes, and what can be read from it, without a run."""
    from coalface.experiments.plan import preflight, text
    from coalface.experiments.plan.messages import what_can_be_read
    from coalface.experiments.recipe import loader

    loaded = loader.load(recipe, [f"method={method}", *([] if recipe else preflight.stand_in(method))])
    planned = preflight.plan(loaded)
    if as_json:
        readable = what_can_be_read(loaded.build_method(), planned, noise=loaded.privacy.templates)
        messages = {"sent": [vars(sent) for sent in planned.sent], "stays": planned.stays, "readable": readable}
        print_json(messages)
        return
    typer.echo(text.messages_text(loaded, planned))
