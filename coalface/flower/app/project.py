"""A project that `flwr run` takes: a recipe, the app that imports it, its plain values as keys of the run-config."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coalface.core.disk import write_text
from coalface.core.errors import RecipeError
from coalface.core.yaml_text import parse_yaml
from coalface.experiments.recipe import loader
from coalface.experiments.setup import party_data

CLIENT = '''"""A party's side: what its SuperNode imports."""

from pathlib import Path

from coalface.flower.party import client

app = client.client(Path(__file__).with_name("recipe.yaml"))
'''

SERVER = '''"""The server's side: what the SuperLink's ServerApp imports."""

from pathlib import Path

from coalface.flower.app import server

app = server.server(Path(__file__).with_name("recipe.yaml"))
'''

PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = {name}
version = "0.1.0"
description = {about}
license = {{ file = "LICENSE" }}
dependencies = ["coalface[flower]", "flwr>=1.41"]

[tool.flwr.app]
publisher = "coalface"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "server:app"
clientapp = "client:app"

# Each can be changed for one run: flwr run . --run-config 'rounds=3'. Lists stand in recipe.yaml alone.
[tool.flwr.app.config]
out = ""
join-seconds = 300
step-seconds = 3600
{values}
"""

README = """# {name}

Trains by the recipe in `recipe.yaml` over Flower. Every SuperNode plays one party:

    flower-supernode --superlink HOST:PORT --root-certificates ca.crt \\
        --node-config 'party="silo-00" home="/var/lib/coalface"'

`home` is where the party keeps what is its own; nobody else should be able to read it. Images are looked for below
`COALFACE_DATA`, which each node, and the SuperLink's machine, sets for itself. `COALFACE_RUNS` at the SuperLink is
where the server keeps its runs; `COALFACE_KEYS` names a file that says which key each party has, and without it a node
may claim any name: `coalface provision` makes one, and all of the above with it. Set both where the SuperLink starts.

Then, with the SuperLink's address and certificate in Flower's configuration as `federation`:

    flwr run . federation

The server keeps the run in the folder that `out` names, or in `$COALFACE_RUNS/{name}`; the same command goes on with a
run that stopped.
"""

LICENSE = "Put the licence of your choice here: Flower wants this file to be there.\n"


def new(folder: Path, recipe: Path) -> Path:
    """Write the project of a recipe into a new folder. Raises RecipeError where it is there, or the recipe is wrong."""
    if folder.exists() and any(folder.iterdir()):
        raise RecipeError(f"{folder} is there and not empty: name a new folder")
    made, text = loader.load(recipe), recipe.read_text(encoding="utf-8")
    party_data.check_elsewhere(made)
    name = re.sub(r"[^a-z0-9-]+", "-", made.name.lower()).strip("-") or "faces"
    values = "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in leaves(parse_yaml(text)))
    about = f"{made.method} by recipe.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "recipe.yaml", text)
    write_text(folder / "client.py", CLIENT)
    write_text(folder / "server.py", SERVER)
    write_text(folder / "LICENSE", LICENSE)
    write_text(folder / "README.md", README.format(name=name))
    filled = PYPROJECT.format(name=json.dumps(name), about=json.dumps(about), values=values)
    write_text(folder / "pyproject.toml", filled)
    return folder


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, int | float | str | bool]]:
    """The plain values of a recipe, each by its dotted key."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        elif isinstance(value, int | float | str | bool):
            yield f"{above}{key}", value
