"""The server's side of a recipe's Flower app: what a ServerApp imports, with the recipe that the app brings.

A run's configuration changes the recipe, key by key, and says where the server keeps the run (`out`). Which key each
party has is said by the file that `COALFACE_KEYS` names at the SuperLink, as `coalface provision` writes it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from coalface.core.errors import RecipeError
from coalface.engine.party.setup import FederatedData, Setup
from coalface.experiments import provenance
from coalface.experiments import run as experiment
from coalface.experiments.callbacks.progress import Progress
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.flower.app import transport
from coalface.privacy.secure_sums import signatures

RUN_KEYS = ("out", "join-seconds", "step-seconds")
"""Keys of a run's configuration that are none of the recipe's."""


def server(recipe: Path) -> Any:
    """The ServerApp: runs the recipe over the grid, or goes on with it where its folder has begun."""

    def serve(grid: Any, run_config: Mapping[str, Any]) -> None:
        loaded = read(recipe, run_config)
        out = Path(str(run_config.get("out") or Path(os.environ.get("COALFACE_RUNS", "runs")) / loaded.name))
        if loaded.starts_trained and loaded.model.policy != "average":
            raise RecipeError(
                f"with {loaded.model.batchnorm!r} parties keep BatchNorm's tensors of the pre-trained model, which "
                "over Flower they do not have; use average",
                where="model.batchnorm",
            )
        if loaded.starts_trained and not preflight.plan(loaded).leaves_shared:
            raise RecipeError(
                f"the server sends the parties of {loaded.method} no model to begin from, and over Flower they have "
                "none that is pre-trained: leave it out, or use a method that sends one, such as fedavg",
                where="model.weights" if loaded.pretrain is None else "pretrain",
            )
        patience = transport.Patience(
            join=float(run_config.get("join-seconds", 300)), step=float(run_config.get("step-seconds", 3600))
        )
        carrier = Nodes(grid, patience, run_config, provenance.code_digest(loaded))
        if (out / "config.yaml").exists():
            check_begun(out, loaded)
            experiment.resume(out, Progress(), carrier=carrier)
        else:
            experiment.run(loaded, out, Progress(), carrier=carrier)

    return transport.server_app(serve)


@dataclass(frozen=True)
class Nodes:
    """Makes a run's transport of the nodes of a grid; see `coalface.experiments.run.Carrier`."""

    grid: Any
    patience: transport.Patience
    asked: Mapping[str, Any]
    code: str | None = None
    """What the code of the method is at the server."""

    def __call__(self, setup: Setup, here: FederatedData) -> transport.FlowerTransport:
        members = here.members()  # none of those with images of their own
        roles = {name: member.role for name, member in members.items()}
        counts = {name: (member.images, member.identities) for name, member in members.items() if member.images}
        public = None if here.public is None else here.public.who
        return transport.FlowerTransport(
            self.grid,
            roles,
            self.patience,
            keys=read_keys(list(roles)),
            public=public,
            code=self.code,
            counts=counts,
            untold=setup.secure is not None,
        )


def read_keys(parties: Sequence[str]) -> dict[str, bytes] | None:
    """The parties' public keys as nodes show them, by the file that `COALFACE_KEYS` names; without one, None.

    Raises RecipeError where the file cannot be read or lacks one of `parties`: then nobody could play it.
    """
    if not (file := os.environ.get("COALFACE_KEYS")):
        return None
    try:
        keys = signatures.read_keys(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        raise RecipeError(f"the keys in {file} cannot be read: {error}", where="COALFACE_KEYS") from None
    if lacking := sorted(set(parties) - keys.keys()):
        raise RecipeError(f"no key of {', '.join(lacking[:8])}; provision a kit for each party", where=file)
    return keys


def check_begun(out: Path, recipe: Recipe) -> None:
    """Raise RecipeError where a run has begun with another recipe: the parties would train by this one already."""
    if differ := provenance.unlike(provenance.recipe_of(out), recipe):
        raise RecipeError(
            f"this run has begun with another recipe: {provenance.changes_text(differ)}. Go on with `coalface resume "
            f"{quote(str(out))}` or the same run-config, or start another run under another name",
            where=out,
        )


def read(recipe: Path, run_config: Mapping[str, Any]) -> Recipe:
    """The recipe with what the run's configuration changes; parties that fail are left out unless it says otherwise."""
    changes = [f"{key}={value}" for key, value in run_config.items() if key not in RUN_KEYS]
    return loader.load(recipe, ["engine.on_error=exclude", *changes])
