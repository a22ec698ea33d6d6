"""A whole federation on this machine: its parts are started from their kits, in order, and what they say is kept.

Each part is a process of its own, over TLS on the loopback, with its log in `KITS/logs`;
`coalface.flower.poc.processes` finds and ends them. What is already there is left as it is, so that a second start
brings back what has gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from coalface.core.disk import write_json, write_text
from coalface.core.errors import RecipeError
from coalface.core.text import told
from coalface.experiments.recipe import loader
from coalface.flower.app import run_config as runconfig
from coalface.flower.poc import flwr_cli, processes
from coalface.flower.provision import project, templates
from coalface.flower.provision.project import PARTS, ProvisionConfig

SUPERLINK, RUN = PARTS
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ONLINE = "SuperNode ID:"
"""What a SuperNode says once the SuperLink has taken its key; the SuperLink itself takes a minute to miss a node."""
_REFUSED = "Failed to activate SuperNode"
_PLAINTEXT = "Option `--insecure` was set"
_ACTIVE = ("pending", "starting", "running")


class Down(RecipeError):
    """Something of the federation did not come up, or has ended; it says why, by which log, and what to do."""


@dataclass
class Loopback:
    """The federation of a folder of kits, on this machine. Raises RecipeError for what is no such folder."""

    kits: Path
    tell: Callable[[str], None] = lambda text: None
    """Says to a person what is being done."""
    timeout: float = 300.0
    """Seconds that the SuperLink has to answer, and the nodes to be there."""
    made: ProvisionConfig = field(init=False)
    _from: dict[str, int] = field(default_factory=dict)
    """Part -> length of its log before it was started here."""

    def __post_init__(self) -> None:
        self.kits = self.kits.resolve()
        self.made = kept(self.kits)

    @property
    def typed(self) -> str:
        """The folder of kits, as a shell takes it."""
        return quote(str(self.kits))

    # --- starting -----------------------------------------------------------------------------------------------------

    def start(self, runs: Path | None) -> None:
        """Start what is not there yet: the SuperLink, the parties' keys, the SuperNodes; until all nodes are online.

        `runs` is the folder of the server's runs; None: where it was before, else in the SuperLink's kit.
        """
        self._check_here()
        (self.kits / "logs").mkdir(mode=0o700, exist_ok=True)
        with _alone(self.kits):
            before = self._runs_folder()
            runs = runs.resolve() if runs is not None else before
            self._check_proxy()
            trusted = templates.config(self.made, str(self.kits / "operator" / "ca.crt"))  # the kits may have moved
            write_text(self.kits / "operator" / "flower" / "config.toml", trusted)
            self._superlink(runs, before)
            if not state(self.kits).get("registered"):
                self._register()
            self._nodes()

    def _check_here(self) -> None:
        host = self.made.superlink.hosts[0]
        if host != "localhost" and not (project.is_address(host) and ipaddress.ip_address(host).is_loopback):
            raise RecipeError(
                f"{self.kits}: the SuperLink is at {host}, and this starts a federation on one machine alone: "
                "provision kits with `superlink: {hosts: 127.0.0.1}` to try it here, or start each kit on its machine"
            )
        for place in (SUPERLINK, "operator", *(f"parties/{name}" for name in self.made.parties)):
            if not (self.kits / place / ("run.sh" if place == "operator" else "start.sh")).is_file():
                raise RecipeError(f"{self.kits}/{place} is not there whole: all kits are needed here, make them anew")

    def _runs_folder(self) -> Path:
        return Path(state(self.kits).get("runs", self.kits / SUPERLINK / "runs"))

    def _register(self) -> None:
        """Make the parties' keys known; Flower takes none again that was withdrawn."""
        self.tell("registering the parties' keys")
        with self._reasons():
            flwr_cli.output([str(self.kits / "operator" / "register.sh")], self.kits, self.timeout)
        write_json(self.kits / "up.json", _kept(self.kits) | {"registered": True})

    def _superlink(self, runs: Path, before: Path) -> None:
        mine = [one for one in processes.found(self.kits) if one.part == SUPERLINK]
        if any("flower-superlink" in one.command for one in mine):
            if runs != before:
                raise RecipeError(
                    f"{self.kits}: its SuperLink runs and keeps runs in {before}: end it with "
                    f"`coalface down {self.typed}` to give another --out"
                )
            self._until(
                self._answers,
                f"the SuperLink is there and does not answer within {self.timeout:g} s: `coalface down {self.typed}` "
                f"ends it, `coalface up {self.typed}` starts it again and goes on with the run",
                (),
            )
            self.tell(f"the SuperLink is there already, at {self.made.superlink.own_address}")
            return
        for part in (SUPERLINK, RUN):  # what a SuperLink that was killed has left
            processes.end(self.kits, part=part)
        with contextlib.suppress(OSError), self._dialled():
            raise Down(
                f"port {self.made.superlink.own[1]} is taken by another process: end that, or provision with another"
            )
        self.tell(f"starting the SuperLink at {self.made.superlink.own_address}")
        below = runs.relative_to(self.kits) if runs.is_relative_to(self.kits) else runs  # for a copy of the kits
        known = _kept(self.kits).get("registered", False) and (self.kits / SUPERLINK / "state.db").exists()
        write_json(self.kits / "up.json", {"runs": str(below), "registered": known})
        process = self._begin(SUPERLINK, self.kits / SUPERLINK / "start.sh", COALFACE_RUNS=str(runs))

        def up() -> bool:
            self._alive(SUPERLINK, process, "the SuperLink has ended")
            return self._answers()

        self._until(up, f"the SuperLink does not answer within {self.timeout:g} s", [SUPERLINK])

    def _answers(self) -> bool:
        """Whether the SuperLink takes connections over TLS that the parties would trust."""
        trust = ssl.create_default_context(cafile=str(self.kits / "operator" / "ca.crt"))
        try:
            with self._dialled() as plain, trust.wrap_socket(plain, server_hostname=self.made.superlink.own[0]):
                return True
        except ssl.SSLCertVerificationError as error:
            raise Down(
                f"the SuperLink's certificate is refused: {error.verify_message}. `coalface provision check "
                f"{self.typed}` says what is wrong with the kits; make new ones"
            ) from None
        except OSError:
            return False

    def _dialled(self) -> socket.socket:
        return socket.create_connection(self.made.superlink.own, timeout=5)

    def _check_proxy(self) -> None:
        link = self.made.superlink
        if link.loopback_port is not None:
            try:
                socket.create_connection((link.hosts[0], link.port), timeout=5).close()
            except OSError as error:
                raise Down(
                    f"nothing listens at {link.address}, where the parties dial ({error}): by the kits a reverse proxy "
                    f"does. Start {quote(str(self.kits / SUPERLINK / 'proxy.sh'))}, and then this again"
                ) from None

    def _nodes(self) -> None:
        there = {one.part for one in processes.found(self.kits) if "flower-supernode" in one.command}
        started, away, again = dict[str, subprocess.Popen[bytes]](), list[str](), set[str]()
        asked = False
        for name in self.made.parties:
            if name in there:
                self.tell(f"{name} is there already")
                continue
            self.tell(f"starting {name}")
            processes.end(self.kits, part=name)  # what a node that was killed has left
            started[name] = self._node(name)

        def online() -> bool:
            nonlocal asked
            for name, process in started.items():
                if process.poll() is not None and _REFUSED in self._new(name):
                    if self._misses_none():
                        if name not in again:
                            self.tell(f"{name}: it was killed, and the SuperLink takes it back within a minute")
                        again.add(name)
                        time.sleep(5)
                    elif name in again:  # it was missed in between: once more
                        again.remove(name)
                    elif not asked:  # a SuperLink whose state is not that in which the keys were registered
                        self._register()
                        asked = True
                        again.update(started.keys() - {name})
                    else:
                        self._alive(name, process, f"the SuperNode of {name} has ended")
                    started[name] = self._node(name)
                else:
                    self._alive(name, process, f"the SuperNode of {name} has ended")
            away[:] = [name for name in started if _ONLINE not in self._new(name)]
            return not away

        self._until(online, f"not all nodes are online within {self.timeout:g} s", away)
        self.tell(f"all {len(self.made.parties)} nodes are online")

    def _node(self, name: str) -> subprocess.Popen[bytes]:
        return self._begin(name, self.kits / "parties" / name / "start.sh", "--port", str(_free_port()))

    def _misses_none(self) -> bool:
        """Whether the SuperLink has yet to miss a node that was killed: until then it takes no other with its key."""
        words = ("supernode", "list", self.made.name, "--format", "json")
        found = self._told(flwr_cli.program("flwr"), *words).get("nodes", ())
        there = sum("flower-supernode" in one.command for one in processes.found(self.kits))
        return sum(node.get("status") == "online" for node in found) > there

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self, run_config: str | None) -> int:
        """Start a run, or find the one that is going on; returns its number at the SuperLink."""
        going = [one for one in self._runs() if one.get("status", "").partition(":")[0] in _ACTIVE]
        server = any("flwr-serverapp" in one.command for one in processes.found(self.kits))
        if going and server:
            if run_config is not None:
                raise RecipeError(f"{self.kits}: a run is going on: wait for it, or `coalface down {self.typed}`")
            self.tell("a run is going on already")
            number = int(going[0]["run-id"])
        else:
            self.tell("starting the run")
            script, given = str(self.kits / "operator" / "run.sh"), ["--run-config", run_config] if run_config else []
            number = int(self._told(script, "--format", "json", *given)["run-id"])
            processes.end(self.kits, part=RUN)  # the log of an earlier run
        if not any(one.part == RUN for one in processes.found(self.kits)):
            self._begin(RUN, flwr_cli.program("flwr"), "log", str(number), self.made.name, "--stream")
        return number

    def state_of(self, number: int) -> tuple[str, str]:
        """What the SuperLink says of a run: `running`, `finished:completed` and the like; and why, where it failed."""
        if not any("flower-superlink" in one.command for one in processes.found(self.kits)):
            raise Down(
                f"the SuperLink has ended{self._said(SUPERLINK)}\n`coalface up {self.typed}` starts it again, and goes "
                "on with the run from its last checkpoint"
            )
        for one in self._runs():
            if int(one["run-id"]) == number:
                return str(one["status"]), str(one.get("status-details") or "")
        return "", ""

    def folder(self, run_config: str | None) -> Path:
        """Where the server keeps the run that a run-config starts."""
        recipe = loader.load(self.kits / "operator" / "project" / "recipe.yaml")
        given = runconfig.read(run_config)
        return Path(given.get("out") or self._runs_folder() / given.get("name", recipe.name))

    def _runs(self) -> list[dict[str, Any]]:
        return list(self._told(flwr_cli.program("flwr"), "list", self.made.name, "--format", "json").get("runs", ()))

    # --- processes ----------------------------------------------------------------------------------------------------

    def _begin(self, part: str, program: Path | str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        """A process that outlives this one and its terminal."""
        path = log(self.kits, part)
        self._from[part] = path.stat().st_size if path.exists() else 0
        environment = flwr_cli.environment(self.kits) | processes.environment(self.kits, part) | variables
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            return subprocess.Popen(
                [str(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def _told(self, *words: str) -> dict[str, Any]:
        """What a command of Flower's answers. Raises Down where it fails, with its reason."""
        with self._reasons():
            return flwr_cli.told(words, self.kits, self.timeout)

    @contextlib.contextmanager
    def _reasons(self) -> Iterator[None]:
        try:
            yield
        except flwr_cli.Failed as error:
            raise Down(f"{plain(str(error))}{self._said(SUPERLINK)}") from None

    def _alive(self, part: str, process: subprocess.Popen[bytes], gone: str) -> None:
        if process.poll() is not None:
            raise Down(f"{gone}{self._said(part)}{self._advice(part)}")

    def _advice(self, part: str) -> str:
        if part == SUPERLINK:
            return ""
        if _PLAINTEXT in self._new(part):
            return (
                f"\n{part} dials without TLS (`--insecure`), and the SuperLink answers none but TLS: see its start.sh"
            )
        if _REFUSED in self._new(part):
            return (
                f"\nThe SuperLink does not take the key of {part}: it was withdrawn by `flwr supernode unregister`, or "
                "is not the one that was registered. `coalface provision check` compares the keys; for a new one, make "
                "new kits"
            )
        return ""

    def _until(self, there: Callable[[], bool], late: str, parts: Sequence[str]) -> None:
        ends = time.monotonic() + self.timeout
        while not there():
            if time.monotonic() > ends:
                raise Down(late + "".join(self._said(part) + self._advice(part) for part in parts))
            time.sleep(0.3)

    def _new(self, part: str) -> str:
        path = log(self.kits, part)
        if not path.exists():
            return ""
        with open(path, "rb") as file:
            file.seek(self._from.get(part, 0))
            return plain(file.read().decode(errors="replace"))

    def _said(self, part: str) -> str:
        """The reason in a part's log: from its last error on, else its last lines."""
        lines = [line for line in self._new(part).splitlines() if line.strip()]
        errors = [place for place, line in enumerate(lines) if "ERROR" in line or "Error" in line]
        reason = lines[errors[-1] :][:6] if errors else lines[-4:]
        return "".join([f"\n{log(self.kits, part)} says:", *(f"\n    {line.strip()}" for line in reason)])


def kept(kits: Path) -> ProvisionConfig:
    """The federation of a folder of kits. Raises RecipeError for what is none."""
    if not (kits / "federation.yaml").is_file():
        raise RecipeError(f"{kits} has no federation.yaml: name the folder that `coalface provision` made")
    return project.read(kits / "federation.yaml")


def check_party(kits: Path, party: str | None) -> None:
    """Raise RecipeError where `kits` are none, or have no such party."""
    parties = kept(kits).parties
    if party is not None and party not in parties:
        raise RecipeError(f"{kits}: {told(party, 80)} is none of its parties: {', '.join(parties)}")


def state(kits: Path) -> dict[str, Any]:
    """What a start has left for the next: where runs lie, and whether the keys were registered."""
    found = _kept(kits)
    return found | ({"runs": str(kits.resolve() / found["runs"])} if "runs" in found else {})


def _kept(kits: Path) -> dict[str, Any]:
    """The same as it is written: runs within the kits by their place in them."""
    path = kits / "up.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def log(kits: Path, part: str) -> Path:
    """Where what a part says is kept."""
    return kits / "logs" / f"{part}.log"


def plain(text: str) -> str:
    """Without colours."""
    return _COLOUR.sub("", text)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextlib.contextmanager
def _alone(kits: Path) -> Iterator[None]:
    with open(kits / "logs" / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecipeError(f"{kits}: it is being started by another process; wait for it") from None
        yield
