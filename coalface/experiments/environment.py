"""The environment of a run: versions, machine and command line, and where its plug-ins are from."""

from __future__ import annotations

import datetime
import functools
import hashlib
import platform
import subprocess
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import coalface
from coalface.experiments.provenance import cell_of, command_line, module_of, plugins, source_of
from coalface.experiments.recipe.schema import Recipe
from coalface.models.speed import processor


def environment(recipe: Recipe) -> dict[str, Any]:
    """What a run is carried out with, for `summary.json`; no number depends on the date or the command line."""
    about: dict[str, Any] = {
        "coalface": coalface.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(terse=True),
        "processor": processor(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command_line(),
    }
    others = {key: plugin(name, thing) for key, name, thing in plugins(recipe)}
    return about | ({"plugins": others} if others else {})


def plugin(name: str, thing: Any) -> dict[str, str | None]:
    """Where a plug-in is from: its distribution and version if it is installed, and the SHA-256 of its module's file.

    Of what a notebook defines it is that of the cell.
    """
    module = module_of(thing)
    distribution = distribution_of(module.partition(".")[0])
    path = source_of(module)
    source = path.read_bytes() if path is not None else cell_of(thing)
    return {
        "name": name,
        "distribution": distribution,
        "version": version(distribution) if distribution else None,
        "sha256": hashlib.sha256(source).hexdigest() if source else None,
    }


@functools.cache
def distribution_of(package: str) -> str | None:
    """What a package was installed from. To find it, the files of everything installed are listed: half a second."""
    return next(iter(packages_distributions().get(package, ())), None)


@functools.cache
def commit() -> str | None:
    """The commit of the checkout that this is run from, with `+` where files differ from it; None without one."""
    root = Path(coalface.__file__).parents[1]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]
        return subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
