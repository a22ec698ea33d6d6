"""Flower's SuperExec, which starts a process for each task, without the tasks' tokens on command lines.

Who has a task's token can take what it is sent and answer for it, and every user of a machine can read command lines.
So a token goes by a file that has no name, on Linux in memory alone, and is open to the process that it is for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any


class _Silent(subprocess.Popen[bytes]):
    """A process as Flower starts it; of its arguments, `--token TOKEN` becomes `--token-file FILE`."""

    def __init__(self, args: Sequence[str], **options: Any) -> None:
        words = list(args)
        if "--token" not in words:
            super().__init__(words, **options)
            return
        place = words.index("--token")
        if hasattr(os, "memfd_create"):
            handle, folder = open(os.memfd_create("token"), "w+b"), "/proc/self/fd"
        else:  # macOS
            handle, folder = tempfile.TemporaryFile(), "/dev/fd"
        with handle as file:
            file.write(words[place + 1].encode())
            file.seek(0)
            words[place : place + 2] = ["--token-file", f"{folder}/{file.fileno()}"]
            super().__init__(words, pass_fds=(file.fileno(),), **options)


def run(words: Sequence[str]) -> None:
    """Be `flower-superexec` with these arguments, until it ends."""
    from flwr.supercore.cli.flower_superexec import flower_superexec

    subprocess.Popen = _Silent  # type: ignore[misc, assignment]
    sys.argv = ["flower-superexec", *words]
    flower_superexec()
