"""Atomic writes and locks of files; errors of a disk with the file, the disk and what to do."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from coalface.core.errors import RunError
from coalface.core.text import shown

_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_WRITING = (*_REFUSED, errno.EFBIG)
GOES_ON = "what was written before is whole, and a run goes on from its last checkpoint with `coalface resume RUN`"
AGAIN = "then run the command again"


@contextmanager
def writing(path: Path, partial: Path | None = None) -> Iterator[None]:
    """Within, an OSError of a write that fails names the file, or the folder: Python names none that is open already.

    So it does where safetensors fails to write, whose own error is no OSError. What is written to `partial` first, to
    be renamed to `path` when it is whole, is named by its place in `path`: a person knows no other.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _WRITING:
            error.filename = str(path)
        elif partial is not None and (file := named_by(error)) is not None and file.is_relative_to(partial):
            error.filename = str(path / file.relative_to(partial))
        raise
    except Exception as error:
        if match := re.search(r"\(os error (\d+)\)", str(error)):
            number = int(match[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to, and to rename from when all is written; what is left there is removed.

    A process that is killed leaves nothing at `path`, only `.NAME.….partial` beside it, which may be deleted. Errors
    name what is written by its place in `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.partial"
    try:
        with writing(path, partial):
            yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # it is a file; or it was renamed, or never made
            partial.unlink()


def flush_folder(path: Path) -> None:
    """Flush a folder to the disk: which files it has, by which names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, data: bytes) -> None:
    """Write a file of its owner's alone beside its place, flush it and rename it there."""
    fresh = path.with_name(f"{path.name}.new")
    with writing(path):
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, path)


def keep_secret(path: Path) -> bytes:
    """32 random bytes in a file of their own, for its owner alone: made at the first call and read back later.

    Raises RunError where the file has another size.
    """
    if not path.exists():
        write_private(path, os.urandom(32))
        flush_folder(path.parent)
    secret = path.read_bytes()
    if len(secret) != 32:
        raise RunError(f"{path} has {len(secret)} bytes, and had 32. Restore it, or start a new run.")
    return secret


def check_free(path: Path) -> None:
    """Raise FileExistsError where something is at a path, be it not an empty folder."""
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{shown(path)} already exists; choose another name, or move it away")


def put_in_place(partial: Path, path: Path) -> None:
    """Rename what was written beside `path` to it; an empty folder that is there makes way."""
    if path.is_dir():
        path.rmdir()
    os.rename(partial, path)


def from_home(path: str | os.PathLike[str]) -> Path:
    """A path with `~` as the home of its user; as it stands where nobody has such a home."""
    try:
        return Path(os.path.expanduser(path))
    except ValueError:  # a NUL in the name: no file has one
        return Path(path)


def named_by(error: OSError) -> Path | None:
    """The file that an error is about; None where it names none."""
    return Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes | os.PathLike) else None


def refusal(error: BaseException | None) -> OSError | None:
    """What a disk has said that takes nothing more, be it the cause of another error; None where none has."""
    while error is not None and not (isinstance(error, OSError) and error.errno in _REFUSED):
        error = error.__cause__
    return error


def explained(error: Exception, then: str = GOES_ON) -> str:
    """What went wrong with which file, on which disk, and what to do: room, and `then`; of other errors their text."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    if error.filename is None and error.errno not in _WRITING:
        return error.strerror or str(error)
    if error.filename is None:  # on whose disk nobody knows: it may be the output
        return f"{error.strerror}, in the output or a file without a name. Make room where it goes; {then}"
    name = os.fsdecode(error.filename)
    file = name if name.isprintable() else repr(name)
    reasons = {
        errno.ENOENT: "does not exist; check the path",
        errno.EEXIST: "already exists; choose another name, or move it away",
        errno.EISDIR: "is a folder, and this takes a file",
        errno.ENOTDIR: "a part of this path is a file, not a folder",
        errno.EACCES: "permission denied; use a path that you may read and write, or change its permissions",
        errno.EPERM: "the system does not permit this; use another path",
        errno.ENAMETOOLONG: "the name is too long; use a shorter one",
        errno.ELOOP: "its links lead in a circle",
    }
    if error.errno not in _WRITING:
        reason = reasons.get(error.errno, error.strerror)
        return f"{file}{' ' if error.errno in (errno.ENOENT, errno.EEXIST, errno.EISDIR) else ': '}{reason}"
    disk, room = _disk(Path(name))
    match error.errno:
        case errno.ENOSPC:
            return f"{file}: no space is left on its disk ({disk}: {room}). Make room there; {then}"
        case errno.EDQUOT:
            return f"{file}: your quota on its disk ({disk}: {room}) is used up. Make room there; {then}"
        case errno.EFBIG:
            return (
                f"{file}: it would be larger than a file may be here. `ulimit -f` shows the limit of this shell; its "
                f"disk ({disk}: {room}) may have one too. Raise it; {then}"
            )
    return f"{file}: its disk ({disk}) can only be read: name a folder on another, or have it mounted writable"


def _disk(path: Path) -> tuple[str, str]:
    """Where the disk of a file is mounted, and the room on it."""
    import psutil  # nobody waits for it where no disk is full

    place = Path(os.path.realpath(path))
    mounts = {disk.mountpoint for disk in psutil.disk_partitions(all=True)}  # `ismount` knows of no bound folder
    while not os.path.lexists(place):
        place = place.parent
    about = os.statvfs(place)
    while str(place) not in mounts and not os.path.ismount(place):
        place = place.parent
    free, whole = (blocks * about.f_frsize for blocks in (about.f_bavail, about.f_blocks))
    files = ", but none for another file" if about.f_files and not about.f_favail else ""
    return str(place), f"{_amount(free)} of {_amount(whole)} are free now{files}"


def _amount(count: int) -> str:
    unit, name = (1e9, "GB") if count >= 1e9 else (1e6, "MB")
    return f"{count / unit:.3g} {name}"


def lock(path: Path, timeout: float = -1, *, mode: int = -1) -> FileLock:
    """An exclusive lock that ends with its process. Raises `filelock.Timeout` after `timeout` s; waits for ever if -1.

    `mode` is that of a new file; by the umask if -1.
    """
    return FileLock(path, timeout, mode, fallback_to_soft=False)  # a soft lock would outlive a process that was killed


def lock_shared(file: IO[Any], *, wait: bool = True) -> None:
    """A lock that several processes hold at once, until the file is closed or they end; meanwhile `lock` waits.

    It may be opened for reading alone. Raises BlockingIOError where `lock` has it and `wait` is false.
    """
    fcntl.flock(file, fcntl.LOCK_SH | (0 if wait else fcntl.LOCK_NB))  # `filelock` has none on a file with content


def write_json(path: Path, value: Any) -> None:
    """Write JSON beside its place and rename it there."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text beside its place and rename it there, so that it is there whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    with writing(path):
        fresh.write_text(text, encoding="utf-8")
    fresh.rename(path)
