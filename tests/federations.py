"""A federation of a few parties: as a file with its recipe beside it, and as real processes; and what a run left."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from coalface.core.method import Party
from coalface.engine.server import Server
from coalface.experiments import execution
from coalface.experiments.recipe import loader
from coalface.flower.app import project as flowerproject
from coalface.flower.poc import flwr_cli, network
from coalface.flower.poc import processes as marked
from coalface.flower.provision import kits as provisioning
from coalface.privacy import noise

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
RECIPE: dict[str, Any] = {
    "name": "faces",
    "method": "fedavg-fv",
    "data": {"size": 32, "faces": {"kind": "synthetic", "identities": 30, "images": 4}, "partition": {"parties": 2}},
    "validators": {"clinic": {"identities": 6, "pairs": 10}},
}
FEDERATION: dict[str, Any] = {
    "name": "hospitals",
    "superlink": {"hosts": ["fl.example.org", "10.0.0.7"], "port": 9443},
    "recipe": "recipe.yaml",
    "parties": {
        "silo-00": {"role": "trainer", "data": "/srv/our faces"},
        "silo-01": {"role": "trainer"},
        "clinic": {"role": "validator"},
    },
}


def write_federation(folder: Path, **changes: Any) -> Path:
    """A federation's file, and the recipe beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    (folder / "federation.yaml").write_text(yaml.safe_dump({**FEDERATION, **changes}))
    return folder / "federation.yaml"


STAND_IN = """#!{python}
import json, os, sys
settings = {{k: v for k, v in os.environ.items() if k.startswith(("FLWR_", "COALFACE_"))}}
umask = os.umask(0)
with open({log!r}, "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], settings, umask]) + "\\n")
"""


def run_script(script: Path, tmp_path: Path, *options: str) -> list[tuple[list[str], dict[str, str], int]]:
    """The commands of a script, by stand-ins: arguments, settings, umask; what it begins besides Flower comes last."""
    log = tmp_path / "log.jsonl"
    (tmp_path / "bin").mkdir(parents=True)
    for name in ("flower-superlink", "flower-supernode", "flwr", "coalface"):
        (tmp_path / "bin" / name).write_text(STAND_IN.format(python=sys.executable, log=str(log)))
        (tmp_path / "bin" / name).chmod(0o700)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FLWR_", "COALFACE_"))}
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    subprocess.run(
        [script, *options], env={**clean, "PATH": path}, check=True, cwd="/", capture_output=True
    )  # to the end
    lines = sorted([json.loads(line) for line in log.read_text().splitlines()], key=lambda line: line[0] == "coalface")
    quiet = ["TELEMETRY_ENABLED=0", "DISABLE_UPDATE_CHECK=1", "DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"]
    for _, _, settings, _ in lines:
        assert set(quiet) <= {f"{key.removeprefix('FLWR_')}={value}" for key, value in settings.items()}
    return [(arguments, settings, umask) for _, arguments, settings, umask in lines]


FACES: dict[str, Any] = {
    "name": "faces",
    "method": "fedavg",
    "rounds": 2,
    "local": {"epochs": 1, "batch_size": 8, "lr": 0.02},
    "data": {
        "size": 32,
        "faces": {"kind": "synthetic", "identities": 13, "images": 4},
        "partition": {"parties": 3},
        "hold_out": 4,
    },
    "evaluation": {"fars": [0.1], "pairs": {"unseen": {"kind": "balanced", "pairs": 10}}},
    "engine": {"threads": 1, "min_reply_fraction": 0.5, "max_abandoned_rounds": 5},
}
"""A recipe whose parties keep private state: class embeddings and their place in the data."""
SILOS: dict[str, str] = {f"silo-0{i}": "trainer" for i in range(3)}
"""Its parties, and their roles."""

TWO_SILOS: dict[str, Any] = loader.merged(FACES, {"data": {"faces": {"identities": 12}, "partition": {"parties": 2}}})


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def digests(run: Path, homes: Mapping[str, Path]) -> dict[str, str]:
    """Everything that a run left whose bytes are promised, each file by its SHA-256: model, metrics and evidence from
    the folder at the server, of each party its ledger and private state from its home; of a run here all are one."""
    paths = {path.relative_to(run): path for path in (run / "model").rglob("*") if path.is_file()}
    paths |= {Path(name): run / name for name in ("metrics.jsonl", "evidence.json")}
    for party, home in homes.items():
        files = [home / "ledger" / f"{party}.jsonl", *(home / "parties" / party).rglob("*")]
        paths |= {path.relative_to(home): path for path in files if path.is_file()}
    return {str(name): hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted(paths.items())}


def draw_from_secrets(run: Path, home: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run here has no secrets: it is given those of a federation's run, of its server and of each party's home."""
    make, drawn = execution.make_server, Party.__dict__["secret_rng"].func

    def server(*arguments: Any, **settings: Any) -> Server:
        made = make(*arguments, **settings)
        made.secret = (run / noise.FILE).read_bytes
        return made

    def secret_rng(party: Party) -> np.random.Generator:
        rng: np.random.Generator = drawn(replace(party, secret=(home(party.name) / noise.FILE).read_bytes))
        return rng

    monkeypatch.setattr(execution, "make_server", server)
    monkeypatch.setattr(Party, "secret_rng", property(secret_rng))


LOOKS = """#!{python}
import sys, time, types
from flwr.supernode import start_client_internal as node
from flwr.supernode.cli.flower_supernode import flower_supernode

hurry = dict(vars(time), sleep=lambda seconds: time.sleep(min(seconds, 0.1)))
node.time = types.SimpleNamespace(**hurry)
sys.exit(flower_supernode())
"""
"""`flower-supernode`, which looks for messages ten times a second; Flower's own waits 3 s where there was none."""


@dataclass
class Standing:
    """A federation of real processes over TLS on this machine, from its kits."""

    kits: Path
    parties: tuple[str, ...]
    commands: list[subprocess.Popen[str]] = field(default_factory=list)
    """Those that were started."""

    @classmethod
    def build(
        cls,
        folder: Path,
        date: datetime.datetime = NOW,
        recipe: dict[str, Any] = FACES,
        roles: Mapping[str, str] = SILOS,
        proxied: bool = False,
        **changes: Any,
    ) -> Standing:
        """The kits of parties with their roles; `changes` are the federation's. Nothing is started."""
        folder.mkdir(exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
            port, inside = first.getsockname()[1], second.getsockname()[1]
        parties = {name: {"role": role} for name, role in roles.items()}
        link = {"hosts": "127.0.0.1", "port": port} | ({"loopback_port": inside} if proxied else {})
        file = write_federation(folder, name="here", superlink=link, parties=parties, **changes)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        return cls(provisioning.make(file, folder / "kits", date), tuple(roles))

    def look_often(self) -> None:
        """Have the nodes look for messages without Flower's wait, which a test of many exchanges would sum up."""
        program = self.kits / "flower-supernode"
        program.write_text(LOOKS.format(python=sys.executable))
        program.chmod(0o700)
        for party in self.parties:
            script = self.kits / "parties" / party / "start.sh"
            text = script.read_text()
            assert "exec flower-supernode " in text
            script.write_text(text.replace("exec flower-supernode ", f"exec {shlex.quote(str(program))} "))

    def use_recipe(self, recipe: Path) -> Path:
        """The operator's project is that of another recipe from now on; returns where the recipe lies in it."""
        project = self.kits / "operator" / "project"
        shutil.rmtree(project)
        return flowerproject.new(project, recipe) / "recipe.yaml"

    def coalface(self, *words: str) -> subprocess.Popen[str]:
        """A command of its own, that hears Ctrl-C: tests in the background ignore it, and so would what they start."""
        hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        command = [sys.executable, "-c", f"{hear}; from coalface.cli.main import main; main()", *words]
        self.commands.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return self.commands[-1]

    @contextlib.contextmanager
    def taken_down(self) -> Iterator[Standing]:
        """The federation for a block; after it no process of it is left."""
        try:
            yield self
        finally:
            for command in self.commands:  # those that a test which failed has left
                command.kill()
                command.communicate()
            self.down()
        assert not self.processes()

    def down(self, *words: str) -> str:
        """What `down` prints."""
        code, printed = self.finish(self.coalface("down", str(self.kits), *words))
        assert code == 0, printed
        return printed

    def up(self, *words: str) -> subprocess.Popen[str]:
        return self.coalface("up", str(self.kits), "--yes", *words)

    def inside(self, words: list[str]) -> list[str]:
        """A command that is given in the network of the federation, wherever that is."""
        networks = [os.readlink(f"/proc/{process.pid}/ns/net") for process in self.processes()[:1]]
        apart = networks != [os.readlink("/proc/self/ns/net")]
        return [*(network.nsenter(self.kits) if apart else []), *words]

    def operator_words(self, *words: str) -> list[str]:
        """A command of the operator's: one of Flower's, or a script of the kit."""
        program = str(self.kits / "operator" / words[0]) if words[0].endswith(".sh") else flwr_cli.program(words[0])
        return self.inside([program, *words[1:]])

    def finish(self, process: subprocess.Popen[str], within: float = 300) -> tuple[int, str]:
        """The exit status of a command, and all that it printed."""
        printed, _ = process.communicate(timeout=within)
        return process.returncode, printed

    def run(self, name: str) -> Path:
        """The folder of a run at the server."""
        return self.kits / "superlink" / "runs" / name

    def digests(self, name: str) -> dict[str, str]:
        """The digests of all that a run left, at the server and at the parties."""
        return digests(self.run(name), {party: self.home(party, name) for party in self.parties})

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        path = self.run(name) / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    def metrics(self, name: str) -> list[dict[str, Any]]:
        path = self.run(name) / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, condition: Callable[[], Any], within: float = 180) -> None:
        """Until something is so; what it is not after `within` seconds fails the test."""
        ends = time.monotonic() + within
        while not condition():
            assert time.monotonic() < ends, f"not within {within:g} s; the logs are in {self.kits / 'logs'}"
            time.sleep(0.05)

    def wait_for_round(self, name: str, number: int) -> None:
        """Wait until the server has asked the parties for a round, and awaits their replies."""
        self.wait(lambda: any(event["round"] == number for event in self.events(name, "asks")))

    def send(self, part: str, number: signal.Signals) -> None:
        """A signal to all processes of a part."""
        for process in self.processes(part):
            os.kill(process.pid, number)

    def processes(self, part: str | None = None) -> list[marked.Process]:
        return [process for process in marked.find_processes(self.kits) if part in (None, process.part)]

    def log(self, part: str) -> str:
        return (self.kits / "logs" / f"{part}.log").read_text()

    def home(self, party: str, name: str) -> Path:
        """Where a party keeps what is its own of a run."""
        return self.kits / "parties" / party / "home" / name
