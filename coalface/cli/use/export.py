"""The commands `coalface export-client` and `coalface export`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Literal

import typer

from coalface.cli.console import print_json
from coalface.cli.data import AsJson
from coalface.cli.use.options import Input, read_input


def export(
    place: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, its model folder, or a file of weights.")],
    to: Annotated[
        Literal["onnx", "torch", "safetensors", "insightface"],
        typer.Option(help="The format. Only ir18 to ir100 on RGB 112×112 go to insightface."),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("exported-model"),
    party: Annotated[
        str | None, typer.Option(help="The party whose own or personalised model to take, where each has one.")
    ] = None,
    uint8: Annotated[
        bool, typer.Option("--uint8", help="ONNX: take pixels, uint8 (n, side, side, channels), not scaled floats.")
    ] = False,
    licence: Annotated[
        str | None, typer.Option(help="The licence that the card names, such as cc-by-nc-4.0; unknown by default.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="The network of a file of weights, such as mobilefacenet; they are checked.")
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="The side in pixels of images that a file of weights takes.")] = 112,
    convention: Input = None,
    as_json: AsJson = False,
) -> None:
    """Export a model for other programs, with a card: ONNX, torch, safetensors or insightface's backbone.

    An ONNX file is compared with the model on 100 synthetic faces. A file of weights becomes a model's folder by
    --to safetensors and --backbone.
    """
    from coalface.experiments.export.model import export_model

    exported = export_model(
        place,
        to,
        out,
        party=party,
        uint8=uint8,
        licence=licence,
        backbone=backbone,
        size=size,
        convention=read_input(convention),
        note=functools.partial(typer.echo, err=True),
    )
    if as_json:
        print_json(vars(exported))
        return
    parity = "" if exported.parity is None else f"; its embeddings differ by {exported.parity:.1g} at most"
    typer.echo(f"wrote {exported.out / exported.file} and its card README.md{parity}")


def export_client(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a stopped or finished run.")],
    party: Annotated[str, typer.Option(help="The client, for example silo-00.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("own-model"),
    as_json: AsJson = False,
) -> None:
    """Export a client's own model, backbone and branch, with a gallery of its people."""
    from coalface.experiments.export import client
    from coalface.models.folder import read_about

    folder = client.export_client(run_folder, party, out)
    if as_json:
        print_json({"out": folder, **read_about(folder)})
    else:
        typer.echo(f"wrote {folder} with {client.GALLERY}; both belong to the client; keep them there")
