"""A whole federation on this machine: its parts are started from their kits, in order, and their output is kept.

Each part is a process of its own, over TLS on the loopback, with its log in `KITS/logs`;
`coalface.flower.poc.processes` finds and ends them. What runs already is left as it is, so that a second start brings
back what has gone.
"""

from __future__ import annotations

import contextlib
import ipaddress
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

from filelock import Timeout

from coalface.core.disk import lock, write_json, write_text
from coalface.core.errors import DataError, RecipeError
from coalface.core.parsing import read_json
from coalface.core.text import told
from coalface.experiments.recipe import loader
from coalface.flower.app import run_config as runconfig
from coalface.flower.poc import flwr_cli, processes
from coalface.flower.provision import project
from coalface.flower.provision.kit_texts import render_flower_config
from coalface.flower.provision.project import PARTS, ProvisionConfig

SUPERLINK, RUN = PARTS
_LINK, _NODE = "flower-superlink", "flower-supernode"
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ONLINE = "SuperNode ID:"
"""In a SuperNode's log once the SuperLink has taken its key; the SuperLink itself takes a minute to miss a node."""
_REFUSED = "Failed to activate SuperNode"
_PLAINTEXT = "Option `--insecure` was set"
_ACTIVE = ("pending", "starting", "running")


class Down(RecipeError):
    """A part of the federation did not come up, or has ended; says why, by which log, and what to do."""


@dataclass
class Loopback:
    """The federation of a folder of kits, on this machine. Raises RecipeError for what is not such a folder."""

    kits: Path
    tell: Callable[[str], None] = lambda text: None
    """Shows a person what is being done."""
    timeout: float = 300.0
    """Seconds that the SuperLink has to answer, and the nodes to be online."""
    config: ProvisionConfig = field(init=False)
    _from: dict[str, int] = field(default_factory=dict)
    """Part -> length of its log before this started it."""

    def __post_init__(self) -> None:
        self.kits = self.kits.resolve()
        self.config = project.read_kits(self.kits)

    @property
    def typed(self) -> str:
        """The folder of kits, as a shell takes it."""
        return quote(str(self.kits))

    # --- starting -----------------------------------------------------------------------------------------------------

    def start(self, runs: Path | None) -> None:
        """Start what does not run yet: the SuperLink, the parties' keys, the SuperNodes; until all nodes are online.

        `runs` is the folder of the server's runs; None: where it was before, else in the SuperLink's kit.
        """
        self._check_kits()
        (self.kits / "logs").mkdir(mode=0o700, exist_ok=True)
        try:
            starting = lock(self.kits / "logs" / ".lock", timeout=0).acquire()
        except Timeout:
            raise RecipeError("another process is starting this federation; wait for it", where=self.kits) from None
        with starting:
            self._check_proxy()
            operator = self.kits / "operator"  # the kits may have moved
            write_text(operator / "flower" / "config.toml", render_flower_config(self.config, str(operator / "ca.crt")))
            self._start_superlink(runs)
            if not read_state(self.kits)[1]:
                self._register()
            self._start_nodes()

    def _check_kits(self) -> None:
        host = self.config.superlink.hosts[0]
        if host != "localhost" and not (project.is_address(host) and ipaddress.ip_address(host).is_loopback):
            raise RecipeError(
                f"the SuperLink is at {host}, and this starts a federation on one machine alone: provision kits with "
                "`superlink: {hosts: 127.0.0.1}` to try it here, or start each kit on its machine",
                where=self.kits,
            )
        for place in (SUPERLINK, "operator", *(f"parties/{name}" for name in self.config.parties)):
            if not (self.kits / place / ("run.sh" if place == "operator" else "start.sh")).is_file():
                raise RecipeError("this kit is incomplete; make the kits again", where=self.kits / place)

    def _check_proxy(self) -> None:
        link = self.config.superlink
        if link.loopback_port is not None:
            try:
                socket.create_connection((link.hosts[0], link.port), timeout=5).close()
            except OSError as error:
                raise Down(
                    f"nothing listens at {link.address}, where the parties dial ({error}); by the kits a reverse proxy "
                    f"does. Start {quote(str(self.kits / SUPERLINK / 'proxy.sh'))}, and then this again"
                ) from None

    def _start_superlink(self, runs: Path | None) -> None:
        before, registered = read_state(self.kits)
        runs = runs.resolve() if runs is not None else before
        address = self.config.superlink.own_address
        if self._running(_LINK):
            if runs != before:
                raise RecipeError(
                    f"its SuperLink runs and keeps runs in {before}; end it with `coalface down {self.typed}` to give "
                    "another --out",
                    where=self.kits,
                )
            self._wait(
                self._answers,
                f"the SuperLink runs and does not answer within {self.timeout:g} s: `coalface down {self.typed}` "
                f"ends it, `coalface up {self.typed}` starts it again and goes on with the run",
                (),
            )
            self.tell(f"the SuperLink is there already, at {address}")
            return
        for part in (SUPERLINK, RUN):  # what a SuperLink that was killed has left
            processes.end(self.kits, part=part)
        with contextlib.suppress(OSError), self._dial():
            port = self.config.superlink.own[1]
            raise Down(f"port {port} is in use by another process; end that, or provision another port")
        self.tell(f"starting the SuperLink at {address}")
        self._write_state(runs, registered and (self.kits / SUPERLINK / "state.db").exists())
        process = self._spawn(SUPERLINK, self.kits / SUPERLINK / "start.sh", COALFACE_RUNS=str(runs))

        def is_up() -> bool:
            self._check_alive(SUPERLINK, process)
            return self._answers()

        self._wait(is_up, f"the SuperLink does not answer within {self.timeout:g} s", [SUPERLINK])

    def _register(self) -> None:
        """Make the parties' keys known; Flower takes none again that was withdrawn."""
        self.tell("registering the parties' keys")
        with self._reasons():
            flwr_cli.run_command([str(self.kits / "operator" / "register.sh")], self.kits, self.timeout)
        self._write_state(read_state(self.kits)[0], True)

    def _write_state(self, runs: Path, registered: bool) -> None:
        below = runs.relative_to(self.kits) if runs.is_relative_to(self.kits) else runs  # for a copy of the kits
        write_json(self.kits / "up.json", {"runs": str(below), "registered": registered})

    def _answers(self) -> bool:
        """Whether the SuperLink takes connections over TLS that the parties would trust."""
        trust = ssl.create_default_context(cafile=str(self.kits / "operator" / "ca.crt"))
        try:
            with self._dial() as plain, trust.wrap_socket(plain, server_hostname=self.config.superlink.own[0]):
                return True
        except ssl.SSLCertVerificationError as error:
            raise Down(
                f"the SuperLink's certificate is refused: {error.verify_message}. `coalface provision check "
                f"{self.typed}` names the fault; make new kits"
            ) from None
        except OSError:
            return False

    def _dial(self) -> socket.socket:
        return socket.create_connection(self.config.superlink.own, timeout=5)

    def _start_nodes(self) -> None:
        running = {process.part for process in self._running(_NODE)}
        started, offline, retried = dict[str, subprocess.Popen[bytes]](), list[str](), set[str]()
        registered = False
        for name in self.config.parties:
            if name in running:
                self.tell(f"{name} is there already")
                continue
            self.tell(f"starting {name}")
            processes.end(self.kits, part=name)  # what a node that was killed has left
            started[name] = self._start_node(name)

        def are_online() -> bool:
            nonlocal registered
            for name, process in started.items():
                if process.poll() is None or _REFUSED not in self._output(name):
                    self._check_alive(name, process)
                    continue
                if self._misses_none():
                    if name not in retried:
                        self.tell(f"{name}: it was killed, and the SuperLink takes it back within a minute")
                    retried.add(name)
                    time.sleep(5)
                elif name in retried:  # it was missed in between: once more
                    retried.remove(name)
                elif not registered:  # a SuperLink whose state is not that in which the keys were registered
                    self._register()
                    registered = True
                    retried.update(started.keys() - {name})
                else:
                    self._check_alive(name, process)
                started[name] = self._start_node(name)
            offline[:] = [name for name in started if _ONLINE not in self._output(name)]
            return not offline

        self._wait(are_online, f"not all nodes are online within {self.timeout:g} s", offline)
        self.tell(f"all {len(self.config.parties)} nodes are online")

    def _start_node(self, name: str) -> subprocess.Popen[bytes]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        return self._spawn(name, self.kits / "parties" / name / "start.sh", "--port", str(port))

    def _misses_none(self) -> bool:
        """Whether the SuperLink has yet to miss a node that was killed: until then it takes no other with its key."""
        words = ("supernode", "list", self.config.name, "--format", "json")
        nodes = self._ask(flwr_cli.program("flwr"), *words).get("nodes", ())
        return sum(node.get("status") == "online" for node in nodes) > len(self._running(_NODE))

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self, run_config: str | None) -> int:
        """Start a run, or find the one that is going on; returns its number at the SuperLink."""
        active = [run for run in self._runs() if run.get("status", "").partition(":")[0] in _ACTIVE]
        if active and self._running("flwr-serverapp"):
            if run_config is not None:
                raise RecipeError(
                    f"a run is in progress; wait for it, or `coalface down {self.typed}`", where=self.kits
                )
            self.tell("a run is going on already")
            number = int(active[0]["run-id"])
        else:
            self.tell("starting the run")
            script, options = str(self.kits / "operator" / "run.sh"), ["--run-config", run_config] if run_config else []
            number = int(self._ask(script, "--format", "json", *options)["run-id"])
            processes.end(self.kits, part=RUN)  # the log of an earlier run
        if not any(process.part == RUN for process in processes.find_processes(self.kits)):
            self._spawn(RUN, flwr_cli.program("flwr"), "log", str(number), self.config.name, "--stream")
        return number

    def state_of(self, number: int) -> tuple[str, str]:
        """What the SuperLink says of a run: `running`, `finished:completed` and the like; and why, where it failed."""
        if not self._running(_LINK):
            raise Down(
                f"the SuperLink has ended{self._reason(SUPERLINK)}\n`coalface up {self.typed}` starts it again, and "
                "goes on with the run from its last checkpoint"
            )
        for run in self._runs():
            if int(run["run-id"]) == number:
                return str(run["status"]), str(run.get("status-details") or "")
        return "", ""

    def folder(self, run_config: str | None) -> Path:
        """Where the server keeps the run that a run-config starts."""
        recipe = loader.load(self.kits / "operator" / "project" / "recipe.yaml")
        changes = runconfig.read(run_config)
        return Path(changes.get("out") or read_state(self.kits)[0] / changes.get("name", recipe.name))

    def _runs(self) -> list[dict[str, Any]]:
        words = ("list", self.config.name, "--format", "json")
        return list(self._ask(flwr_cli.program("flwr"), *words).get("runs", ()))

    # --- processes ----------------------------------------------------------------------------------------------------

    def _running(self, program: str) -> list[processes.Process]:
        return [process for process in processes.find_processes(self.kits) if program in process.command]

    def _spawn(self, part: str, program: Path | str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a process that outlives this one and its terminal."""
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

    def _ask(self, *words: str) -> dict[str, Any]:
        """The answer of one of Flower's commands. Raises Down where it fails, with its reason."""
        with self._reasons():
            return flwr_cli.run_json(words, self.kits, self.timeout)

    @contextlib.contextmanager
    def _reasons(self) -> Iterator[None]:
        try:
            yield
        except flwr_cli.Failed as error:
            raise Down(f"{plain(str(error))}{self._reason(SUPERLINK)}") from None

    def _check_alive(self, part: str, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is not None:
            name = "the SuperLink" if part == SUPERLINK else f"the SuperNode of {part}"
            raise Down(f"{name} has ended{self._reason(part)}{self._advice(part)}")

    def _wait(self, condition: Callable[[], bool], late: str, parts: Sequence[str]) -> None:
        ends = time.monotonic() + self.timeout
        while not condition():
            if time.monotonic() > ends:
                raise Down(late + "".join(self._reason(part) + self._advice(part) for part in parts))
            time.sleep(0.3)

    def _advice(self, part: str) -> str:
        if _PLAINTEXT in self._output(part):
            return (
                f"\n{part} dials without TLS (`--insecure`), and the SuperLink answers none but TLS: see its start.sh"
            )
        if _REFUSED in self._output(part):
            return (
                f"\nThe SuperLink does not take the key of {part}: it was withdrawn by `flwr supernode unregister`, or "
                "is not the one that was registered. `coalface provision check` compares the keys; for a new one, make "
                "new kits"
            )
        return ""

    def _output(self, part: str) -> str:
        """What a part's log has had since it was started."""
        path = log(self.kits, part)
        if not path.exists():
            return ""
        with open(path, "rb") as file:
            file.seek(self._from.get(part, 0))
            return plain(file.read().decode(errors="replace"))

    def _reason(self, part: str) -> str:
        """The reason in a part's log: from its last error on, else its last lines."""
        lines = [line for line in self._output(part).splitlines() if line.strip()]
        errors = [place for place, line in enumerate(lines) if "ERROR" in line or "Error" in line]
        reason = lines[errors[-1] :][:6] if errors else lines[-4:]
        return "".join([f"\n{log(self.kits, part)} says:", *(f"\n    {line.strip()}" for line in reason)])


def check_party(kits: Path, party: str | None) -> None:
    """Raise RecipeError where `kits` are not kits, or have no such party."""
    parties = project.read_kits(kits).parties
    if party is not None and party not in parties:
        raise RecipeError(f"unknown party {told(party, 80)!r}; this federation has {', '.join(parties)}", where=kits)


def read_state(kits: Path) -> tuple[Path, bool]:
    """What a start leaves for the next: the folder of the server's runs, and whether the keys were registered."""
    path, remedy = kits / "up.json", 'put {"registered": true} in its place, and give `up` its --out'
    state = read_json(path, remedy) if path.exists() else {}
    runs = state.get("runs", f"{SUPERLINK}/runs")
    if not isinstance(runs, str):
        raise DataError(f"damaged (`runs` is no path): {remedy}", where=path)
    return kits.resolve() / runs, bool(state.get("registered"))


def log(kits: Path, part: str) -> Path:
    """Where the output of a part is kept."""
    return kits / "logs" / f"{part}.log"


def plain(text: str) -> str:
    """Without colours."""
    return _COLOUR.sub("", text)
