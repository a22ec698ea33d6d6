"""The commands `coalface export-client` and `coalface export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coalface.cli.console import print_json
from coalface.cli.data import AsJson


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
