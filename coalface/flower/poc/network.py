"""A private network for a federation on this machine, out of reach of other users.

Flower's ports ask nobody who they are, so nobody else may reach them. Linux lets root make a network namespace, and any
user together with a user namespace, unless the system forbids that (as containers often do). It ends with the last
process in it. Imports nothing heavy: only a process of one thread can enter a user namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pwd
import socket
import struct
import sys
from pathlib import Path
from shlex import quote
from typing import Any

import psutil

from coalface.core.errors import RecipeError
from coalface.core.parsing import parse_yaml
from coalface.flower.poc import processes

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_SET_FLAGS, _IS_UP = 0x8914, 0x1
"""SIOCSIFFLAGS and IFF_UP of Linux."""
_FIRST_PERSON, _NOBODY = 1000, 65534
"""Numbers of users: the first of a person, and the one of nobody."""
_NO_LOGIN = ("nologin", "false")


def enter(kits: Path) -> str:
    """Move this process, and all that it starts from now on, into the network of `kits`; where not, returns why.

    Where something of the federation runs, that is where it runs. Raises RecipeError where this cannot be joined.
    """
    if sys.platform != "linux":
        return "networks of their own are Linux's"
    running = processes.find_processes(kits)
    if apart := [process.pid for process in running if _name(process.pid, "net") != _name("self", "net")]:
        try:
            _join(apart[0])
        except OSError as error:
            raise RecipeError(
                f"its network cannot be joined ({error.strerror}): end it with `coalface down {quote(str(kits))}`, as "
                "the user who started it, and start it again",
                where=kits,
            ) from None
        return ""
    if running:
        return f"it was started so; `coalface down {quote(str(kits))}` ends it"
    if _is_proxied(kits):
        return "its kits have a reverse proxy before the SuperLink, which stands in this machine's network"
    if number := find_fault():
        return f"this system gives it no network of its own ({os.strerror(number)})"
    _make()
    return ""


def nsenter(kits: Path) -> list[str]:
    """The words before a command that is to reach the federation of `kits`, which has a network of its own."""
    as_user = ["--user", "--preserve-credentials"] if os.geteuid() != 0 else []
    running = processes.find_processes(kits)
    return ["nsenter", "--target", str(running[0].pid), *as_user, "--net"] if running else []


def other_users() -> list[str]:
    """The names of other people who can log in to this machine, or have processes on it; root is none of them."""
    accounts = {account.pw_uid: account for account in pwd.getpwall()}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, KeyError):  # it has ended; or is of a container's user
            if (owner := process.uids().effective) not in accounts:  # one whom a directory service knows
                accounts[owner] = pwd.getpwuid(owner)
    return sorted(
        account.pw_name
        for account in accounts.values()
        if account.pw_uid >= _FIRST_PERSON
        and account.pw_uid not in (_NOBODY, os.geteuid())
        and Path(account.pw_shell).name not in _NO_LOGIN
    )


def _is_proxied(kits: Path) -> bool:
    """Whether the kits are for a proxy; a wrong file is refused by those who read it whole."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        federation: Any = parse_yaml((kits / "federation.yaml").read_text(encoding="utf-8"))
        return federation["superlink"].get("loopback_port") is not None
    return False


def find_fault() -> int:
    """The number of the error that making a network ends with, 0 for none. A child tries it: it cannot be undone."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _make()
            status = 0
        except OSError as error:
            status = error.errno or 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _make() -> None:
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_NET if user == 0 else _NEW_NET | _NEW_USER)
    if user != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, _SET_FLAGS, struct.pack("16sH22x", b"lo", _IS_UP))


def _join(pid: int) -> None:
    kinds = ["user", "net"] if _name(pid, "user") != _name("self", "user") else ["net"]
    with contextlib.ExitStack() as opened:
        for file in [opened.enter_context(open(f"/proc/{pid}/ns/{kind}")) for kind in kinds]:
            _call("setns", file.fileno(), 0)


def _name(pid: int | str, kind: str) -> str:
    """Which namespace a process is in; one that has ended is in none."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    return os.readlink(f"/proc/self/ns/{kind}")


def _call(name: str, *arguments: int) -> None:
    if ctypes.CDLL(None, use_errno=True)[name](*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
