"""The cache: packs and pre-trained models on this machine, their owner's alone; what it holds, and clearing it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from coalface.core import disk

PRETRAINED = "pretrained"
"""The folder of pre-trained models, each of them the folder of a run."""
TEACHERS = "teachers"
"""The folder of teachers' embeddings, a folder for each teacher and set of images."""
LOCKS = "pretrained.locks"
"""A file for each pre-trained model: whoever trains it, or removes it, holds its lock."""
SOUND = "sound"
"""A note for each pack whose pixels were read and found as they were written."""

_FORMS = {
    "packs": re.compile(r"[0-9a-f]{24}-\d+-(grey|rgb)"),
    PRETRAINED: re.compile(r"[0-9a-f]{24}"),
    TEACHERS: re.compile(r"[0-9a-f]{24}"),
    "unfinished": re.compile(r"\.[0-9a-f]{24}(-\d+-(grey|rgb))?\.[0-9a-f]{8}\.partial"),
}
KINDS = tuple(_FORMS)
"""What the cache holds; unfinished is what a process left that was killed while it packed, or cleared."""
_ELSEWHERE = "name another folder by COALFACE_CACHE"


def default_cache() -> Path:
    """Where packs are kept unless told otherwise: `$COALFACE_CACHE`, else `~/.cache/coalface`."""
    chosen = os.environ.get("COALFACE_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "coalface"


def open_cache(cache: Path) -> Path:
    """Make the cache where it is missing, with mode 0700, and close to others what an older version left open.

    A folder that holds other things as well, such as /tmp, keeps its own mode: what the cache keeps in it is closed.
    Raises NotADirectoryError where a file is in its place.
    """
    _check_folder(cache)
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:  # perhaps of a folder above it
        error.filename = str(cache)
        raise
    if not stat.S_IMODE(cache.stat().st_mode) & 0o077:  # nobody else comes to what it holds, however much that is
        return cache
    names, forms = os.listdir(cache), (_FORMS["packs"], _FORMS["unfinished"])
    ours = [
        name
        for name in names
        if name in (PRETRAINED, TEACHERS, LOCKS, SOUND) or any(form.fullmatch(name) for form in forms)
    ]
    for path in [*([cache] if len(ours) == len(names) else []), *(cache / name for name in ours)]:
        _close(path)
    return cache


def _check_folder(cache: Path) -> None:
    if cache.exists() and not cache.is_dir():
        raise NotADirectoryError(f"{cache} is a file, and the cache must be a folder; move it away, or {_ELSEWHERE}")


def advice(path: Path) -> str:
    """What to do where something of the cache cannot be written; empty for what is not of the cache."""
    return f"It is in the cache: {_ELSEWHERE}" if path.absolute().is_relative_to(default_cache().absolute()) else ""


def use(entry: Path) -> None:
    """Note that something in the cache is used now, and close it to others."""
    with contextlib.suppress(OSError):  # another user's
        os.utime(entry)
        for path in (entry, *entry.iterdir()):
            _close(path)


def _close(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):  # gone meanwhile; another user's
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and stat.S_IMODE(mode) & 0o077:
            path.chmod(stat.S_IMODE(mode) & ~0o077)


def hold(file: IO[Any]) -> None:
    """Keep a file from being cleared until it is closed, and what is mapped of it; not where there are no locks."""
    with contextlib.suppress(OSError):
        disk.lock_shared(file)


@dataclass(frozen=True)
class Entry:
    """A pack, a pre-trained model, or an unfinished folder of the cache."""

    kind: str
    path: Path
    bytes: int
    made: float
    """Seconds since the epoch, as `used`, when it was last read."""
    used: float


def entries(cache: Path) -> list[Entry]:
    """What the cache holds, by `KINDS`, the longest unused first. What it did not make is not looked at.

    Raises NotADirectoryError where a file is in its place.
    """
    _check_folder(cache)
    listed = []
    for kind, form in _FORMS.items():
        folder = cache / kind if kind in (PRETRAINED, TEACHERS) else cache
        for path in folder.iterdir() if folder.is_dir() else ():
            if not form.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
                continue
            with contextlib.suppress(FileNotFoundError):  # another process has put it in its place, or cleared it
                statuses = [file.lstat() for file in path.rglob("*")]
                used = path.stat().st_mtime
                size = sum(status.st_size for status in statuses if stat.S_ISREG(status.st_mode))
                listed.append(Entry(kind, path, size, min([used, *(status.st_mtime for status in statuses)]), used))
    return sorted(listed, key=lambda entry: (KINDS.index(entry.kind), entry.used))


def clear(cache: Path, kind: str | None = None, older_than: float = 0.0) -> tuple[list[Entry], list[Entry]]:
    """Remove what the cache holds, of one kind or all, that was not used for so many days.

    Returns (what was removed, what was left since a process uses it). A process that has mapped a pack keeps it, and so
    does one that is training a model.
    """
    removed, in_use = list[Entry](), list[Entry]()
    for entry in entries(cache):
        if kind not in (None, entry.kind) or time.time() - entry.used < older_than * 86400:
            continue
        with _unused(cache, entry) as free:
            if free:
                away = entry.path
                if entry.kind != "unfinished":  # whole or gone for all who look, also where this process is killed
                    away = away.rename(cache / f".{entry.path.name}.{uuid.uuid4().hex[:8]}.partial")
                shutil.rmtree(away)
            (removed if free else in_use).append(entry)
    for note in (cache / SOUND).glob("*") if kind is None else ():  # a few bytes; a pack that has none is read again
        if time.time() - note.lstat().st_mtime >= older_than * 86400:
            note.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # younger notes are left in it, or it was never made
        (cache / SOUND).rmdir()
    return removed, in_use


@contextlib.contextmanager
def _unused(cache: Path, entry: Entry) -> Iterator[bool]:
    """Whether nobody uses an entry; while it lasts, nobody begins to."""
    with contextlib.ExitStack() as stack:
        try:
            locks = [path for path in (entry.path / "pixels.u8", entry.path / "run.lock") if path.exists()]
            if entry.kind == PRETRAINED:
                (cache / LOCKS).mkdir(mode=0o700, exist_ok=True)
                locks.append(cache / LOCKS / entry.path.name)
            for path in locks:
                stack.enter_context(disk.lock(path, timeout=0))
        except OSError:  # held by another, or there are no locks here
            yield False
            return
        yield True
