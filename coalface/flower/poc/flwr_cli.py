"""Flower's commands, and scripts that call them, as the operator of a federation on this machine gives them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from coalface.core.errors import RecipeError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


class Failed(RecipeError):
    """A command that has failed, with its reason, or that was not done in time."""


def program(name: str) -> str:
    """Where a command lies that was installed beside this one."""
    path = Path(sysconfig.get_path("scripts")) / name
    return str(path if path.exists() else Path(sys.executable).with_name(name))


def environment(kits: Path) -> dict[str, str]:
    """What a command of the operator of `kits` finds around it."""
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    home = str(kits / "operator" / "flower")
    return os.environ | QUIET | {"PATH": path, "FLWR_HOME": home, "PYTHONUNBUFFERED": "1"}


def output(words: Sequence[str], kits: Path, timeout: float) -> str:
    """What a command prints. Raises Failed; after `timeout` seconds it, and all that it began, is ended."""
    pipe = subprocess.PIPE
    begun = subprocess.Popen(words, env=environment(kits), stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    with begun:
        try:
            said, besides = begun.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(begun.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(
                    f"{' '.join(words)} was not done within {timeout:g} s: the SuperLink may hang. "
                    f"`coalface down {quote(str(kits))}` ends it, `coalface up {quote(str(kits))}` starts it again and "
                    "goes on with the run"
                ) from None
            raise
    if begun.returncode:
        raise Failed(f"{' '.join(words)} failed:\n{(said + besides).strip()}")
    return said


def told(words: Sequence[str], kits: Path, timeout: float) -> dict[str, Any]:
    """What a command of Flower's answers as JSON. Raises Failed, as `success` says it: its exit status is 0 anyway."""
    said = output(words, kits, timeout)
    try:
        found = json.loads(said)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("success") is not True:
        reason = found.get("error-message", said) if isinstance(found, dict) else said
        raise Failed(f"{' '.join(words)} failed:\n{str(reason).strip()}")
    return found
