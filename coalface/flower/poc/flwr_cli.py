"""Flower's commands, and scripts that call them, as the operator of a federation on this machine gives them."""

from __future__ import annotations

import contextlib
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
    """The path of a command that was installed beside this one."""
    path = Path(sysconfig.get_path("scripts")) / name
    return str(path if path.exists() else Path(sys.executable).with_name(name))


def environment(kits: Path) -> dict[str, str]:
    """The environment of a command of the operator of `kits`."""
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    home = str(kits / "operator" / "flower")
    return os.environ | QUIET | {"PATH": path, "FLWR_HOME": home, "PYTHONUNBUFFERED": "1"}


def run_command(words: Sequence[str], kits: Path, timeout: float) -> str:
    """The output of a command. Raises Failed; after `timeout` seconds it ends the command and all that it began."""
    command, pipe, env = " ".join(words), subprocess.PIPE, environment(kits)
    with subprocess.Popen(words, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):  # all have ended: after Ctrl-C, Popen waits a moment for it
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(
                    f"{command} was not done within {timeout:g} s: the SuperLink may hang. `coalface down "
                    f"{quote(str(kits))}` ends it, `coalface up {quote(str(kits))}` starts it again and goes on with "
                    "the run"
                ) from None
            raise
    if process.returncode:
        raise Failed(f"{command} failed:\n{(output + errors).strip()}")
    return output


def run_json(words: Sequence[str], kits: Path, timeout: float) -> dict[str, Any]:
    """The JSON that a command of Flower's prints. Raises Failed where `success` is not true: its exit status is 0."""
    output = run_command(words, kits, timeout)
    answer: Any = None
    with contextlib.suppress(ValueError):
        answer = json.loads(output)
    if not isinstance(answer, dict) or answer.get("success") is not True:
        reason = answer.get("error-message", output) if isinstance(answer, dict) else output
        raise Failed(f"{' '.join(words)} failed:\n{str(reason).strip()}")
    return answer
