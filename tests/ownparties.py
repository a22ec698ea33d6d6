"""Parties that bring images of their own: their folders and files, a recipe that names none, and nodes that see one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from flwr.app import Context, RecordDict
from grids import InProcessGrid, played_here
from tinyruns import picture_folders

from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.flower.app import server

UNSEEN = {"kind": "synthetic", "identities": 6, "images": 4, "first": 900}
TREE: dict[str, Any] = {
    "name": "own",
    "method": "fedavg-fv",
    "rounds": 2,
    "local": {"epochs": 1, "batch_size": 8, "lr": 0.02},
    "data": {"size": 32, "scenario": "own", "parties": ["silo-01", "silo-00"]},
    "validators": {"clinic": {"own": True, "pairs": 10}},
    "evaluation": {"fars": [0.1], "pairs": {"unseen": {"pairs": 10, "source": UNSEEN}}},
}
PEOPLE = {
    "silo-00": ["Adalind", "Beatrix", "Cydonia"],
    "silo-01": ["Adalind", "Dorothea"],
    "clinic": ["Evelina", "Fayette", "Gustavina", "Haldora"],
}
"""Whose folders lie at each party. Adalind of silo-00 is not Adalind of silo-01."""


def recipe(**changes: Any) -> Recipe:
    return loader.parse(loader.merged(TREE, changes))


def write_recipe(folder: Path, **changes: Any) -> Path:
    (folder / "recipe.yaml").write_text(yaml.safe_dump(loader.merged(TREE, changes)))
    return folder / "recipe.yaml"


def write_parties(root: Path) -> Path:
    """A folder for each party with its images and its party.yaml, and own.yaml, which names them all."""
    for number, (party, names) in enumerate(PEOPLE.items()):
        picture_folders(root / party / "faces", names, images=4, seed=number)
        role = "validator" if party == "clinic" else "trainer"
        content = {"name": party, "role": role, "data": {"kind": "folder", "path": "faces"}}
        (root / party / "party.yaml").write_text(yaml.safe_dump(content))
    (root / "own.yaml").write_text(yaml.safe_dump({party: f"{party}/party.yaml" for party in PEOPLE}))
    return root


def over_flower(
    path: Path, folders: Path, home: Path, out: Path, *, recipes: Mapping[str, Path] = {}, **own_files: Path
) -> InProcessGrid:
    """The server's side to its end, over a node for each party that is given its own file alone.

    `own_files` are files in place of those in `folders`, and `recipes` those of parties that have another.
    """
    files = {party: folders / party / "party.yaml" for party in PEOPLE} | own_files
    grid = InProcessGrid([played_here(recipes.get(party, path)) for party in files])
    for node, (party, file) in zip(grid.apps, files.items(), strict=True):
        node_config = {"party": party, "home": str(home / party), "data": str(file)}
        grid.contexts[node] = Context(
            run_id=1, node_id=node, node_config=node_config, state=RecordDict(), run_config={}
        )
    run_config = {"out": str(out), "join-seconds": 0.01}
    server.server(path)(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config))
    return grid
