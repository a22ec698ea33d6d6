"""A process that stays at a party between messages, and how a message reaches it.

Flower starts a process for every message. What such a process would do anew each time (import torch, open the data,
build the network) costs seconds; so it hands its message, over a socket that only its owner can open, to a process that
was begun by the first and stays. It ends with the one that it serves, or when nothing has come for a while; whatever it
has not committed by then is asked for again. Imports nothing heavy.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, NoReturn

import psutil

from coalface.core.disk import lock
from coalface.engine.party import permissions

log = logging.getLogger(__name__)

IDLE = 120.0
"""Seconds without a message after which a resident ends."""
STARTS = 120.0
"""Seconds that a resident may take until it listens."""

Values = Mapping[str, Any]
Data = Mapping[str, bytes | bytearray | memoryview]


class Absent(RuntimeError):
    """No resident is there, and none could be started."""


# --- who asks ---------------------------------------------------------------------------------------------------------


def ask(
    place: Path, start: Sequence[str], about: str, values: Values, data: Data
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Hand a message to the resident of `place`, and return its answer; where none is there, start one.

    `start` is the command that runs one; it calls `serve` with the same `place`. Raises Absent where it does not, and
    OSError or EOFError where the resident ends while it works.
    """
    with _reach(place, start) as connection:
        _send(connection, [about, dict(values)], data)
        return _receive(connection)


def _reach(place: Path, start: Sequence[str]) -> Connection[Any, Any]:
    if connection := _connected(place):
        return connection
    permissions.make_folder(place.parent)
    with lock(place.with_suffix(".lock"), mode=0o600):  # of several that come at once, one starts it
        if connection := _connected(place):
            return connection
        place.unlink(missing_ok=True)
        process = subprocess.Popen([*start], stdin=subprocess.DEVNULL)
        threading.Thread(target=process.wait, daemon=True).start()  # it outlives who asks, and is no zombie before
        ends = time.monotonic() + STARTS
        while time.monotonic() < ends:
            if place.exists() and (connection := _connected(place)):
                return connection
            if (status := process.poll()) is not None:
                raise Absent(f"the party's process ended with status {status} before it listened: its output says why")
            time.sleep(0.05)
        process.kill()
        raise Absent(f"the party's process did not listen within {STARTS:g} s")


def serving(folder: Path) -> list[int]:
    """The residents whose places are in a folder, by the numbers of their processes."""
    places = filter(None, map(_read_place, folder.glob("*.json")))
    return [number for _, number in places if find_process(number) is not None]


def _connected(place: Path) -> Connection[Any, Any] | None:
    if (about := _read_place(place)) is not None:
        with suppress(OSError, ValueError):
            return Client(about[0], "AF_UNIX")
    return None


def _read_place(place: Path) -> tuple[str, int] | None:
    """The socket of a resident and the number of its process; None where it ends just now, or the file is damaged."""
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        about = json.loads(place.read_text())
        socket, process = about["socket"], about["process"]
        if isinstance(socket, str) and isinstance(process, int) and process > 0:
            return socket, process
    return None


# --- who answers ------------------------------------------------------------------------------------------------------


def serve(
    place: Path,
    answer: Callable[[str, dict[str, Any], dict[str, bytes]], tuple[Values, Data]],
    *,
    watched: int,
    idle: float = IDLE,
) -> None:
    """Answer messages, one after the other, until the process `watched` is gone or `idle` seconds pass without one.

    `place` then says at which socket; socket and file are gone afterwards, also after SIGTERM, unless the process is
    killed.
    """
    with Listener(family="AF_UNIX") as listener:  # in a new folder of mode 0700
        fresh = place.with_name(f"{place.name}.{os.getpid()}")
        with open(fresh, "w", opener=permissions.opener) as file:
            json.dump({"socket": listener.address, "process": os.getpid()}, file)
        fresh.replace(place)
        worked, socket = [time.monotonic()], Path(str(listener.address))
        threading.Thread(target=_watch, args=(place, socket, watched, idle, worked), daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: _leave(place, socket))
        while True:
            with listener.accept() as connection:
                try:
                    (about, values), data = _receive(connection)
                    worked[0] = math.inf
                    replied, encoded = answer(about, values, data)
                    _send(connection, dict(replied), encoded)
                except Exception as error:  # who asked is gone, or what it sent is no message: others will come
                    log.warning("a message was broken off: %r", error)
                finally:
                    worked[0] = time.monotonic()


def _watch(place: Path, socket: Path, watched: int, idle: float, worked: list[float]) -> None:
    """End this process, in whatever it is, once nobody needs it any more; a commit is then whole, or not there at all.

    `worked` has the time when work on a message ended last, infinity during it.
    """
    process = find_process(watched)
    while process is not None and is_alive(process):
        if time.monotonic() - worked[0] >= idle:
            break
        time.sleep(min(1.0, idle / 4))
    _leave(place, socket)


def _leave(place: Path, socket: Path) -> NoReturn:
    """End this process, and leave nothing that says it is there."""
    with suppress(OSError):
        if (about := _read_place(place)) is not None and about[1] == os.getpid():
            place.unlink()
    with suppress(OSError):
        socket.unlink()
        socket.parent.rmdir()
    os._exit(0)


def find_process(number: int) -> psutil.Process | None:
    """The process of a number; None where it has ended."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(number)
        return process if is_alive(process) else None
    return None


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs: it has not ended, and its number is not another's by now.

    Of one that was killed the first thread may be dead alone, and its socket still be open.
    """
    with suppress(psutil.NoSuchProcess):
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) and process.num_threads() <= 1
        return process.is_running() and not ended
    return False


# --- frames -----------------------------------------------------------------------------------------------------------


def _send(connection: Connection[Any, Any], content: Any, data: Data) -> None:
    connection.send_bytes(json.dumps([content, list(data)]).encode())
    for value in data.values():
        connection.send_bytes(value)


def _receive(connection: Connection[Any, Any]) -> tuple[Any, dict[str, bytes]]:
    content, names = json.loads(connection.recv_bytes())
    return content, {name: connection.recv_bytes() for name in names}
