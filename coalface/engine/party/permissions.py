"""Permissions of private folders and files, whatever the umask. Imports the standard library only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from shlex import quote


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, each with mode 0700; one that is there stays as it is."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """For `open(…, opener=…)`: a file that is made has mode 0600."""
    return os.open(path, flags, 0o600)


def check(home: Path, below: Iterable[Path]) -> None:
    """Raise PermissionError where others can get at a folder, or at what is below some folders in it.

    Modes are not changed here: `home` may be a folder that somebody keeps for more than this.
    """
    every = [home, *(path for folder in below for path in (folder, *folder.rglob("*")))]
    for path in every:
        if (mode := _mode(path)) & 0o077:
            raise PermissionError(
                f"others can read or change {path} (mode {mode:03o}), which holds the party's private data; "
                f"close it with `chmod -R go= {quote(str(home))}`, or use another folder as home"
            )


def _mode(path: Path) -> int:
    """0 of what has gone meanwhile, as a file that is renamed, and of a link, whose own mode says nothing."""
    try:
        about = path.lstat()
    except FileNotFoundError:
        return 0
    return 0 if stat.S_ISLNK(about.st_mode) else stat.S_IMODE(about.st_mode)
