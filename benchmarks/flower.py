"""Seconds of an exchange over Flower, for a small and a large message, against the local engine; where they go.

    python benchmarks/flower.py                     # cnn-small (1 MB) and ir50 (about 175 MB)
    python benchmarks/flower.py --networks cnn-small --rounds 8
    python benchmarks/flower.py --networks ir50 --rounds 4 --updates int8

Two parties and a SuperLink are real processes over TLS on this machine, from provisioned kits. A round of `fedavg` with
one step of two images is one exchange; its time is from the server's asking to the last reply, the median of the rounds
after the first two. `each message alone` is Flower's own way, where the process that it starts for a message imports
torch and builds the party anew; else such a process hands the message to one that stays. The bytes are counted by a
relay between one party and the SuperLink, over all of the run's rounds; processors' seconds are those of the whole run,
by its rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from coalface.experiments import run as experiment
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.recipe import loader
from coalface.flower.poc import launcher, processes
from coalface.flower.poc.launcher import Loopback
from coalface.flower.provision import kits as provisioning

ALONE = """from pathlib import Path

from coalface.flower.party import process as partyprocess
from coalface.flower.app.client_app import client_app

recipe = Path(__file__).with_name("recipe.yaml")
app = client_app(lambda context: partyprocess.answers(recipe, context.node_config, context.run_config))
"""
TRACED = """import os
import time
from pathlib import Path

from coalface.flower.party import client as flowerclient

NOW = time.time()
ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
BEGAN = NOW - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks)
hand_on = flowerclient.forward


def forward(recipe, node_config, run_config, about, said, data):
    here = time.time()
    answer = hand_on(recipe, node_config, run_config, about, said, data)
    print("TRACE", about, BEGAN, here, time.time(), flush=True)
    return answer


flowerclient.forward = forward
app = flowerclient.client(Path(__file__).with_name("recipe.yaml"))
"""
NETWORKS = {"cnn-small": 64, "ir50": 112}
"""Network -> side of its images."""
RELAYED = "silo-00"
KINDS = {
    "flower-superlink": "the SuperLink",
    "flwr-serverapp": "the server",
    "flower-supernode": "both SuperNodes",
    "coalface.flower.party.process": "both parties' processes",
    "flwr-clientapp": "Flower's processes for messages",
}
"""In the command of a process -> what it is."""
SPANS = ("until Flower's process begins", "it imports flwr and the app", "the party's process answers", "the way back")


class Relay:
    """Passes connections on to a port, and counts what goes each way."""

    def __init__(self, port: int) -> None:
        self.up = self.down = 0
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:  # the SuperLink has ended before its node
                near.close()
                continue
            for source, sink, way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pass, args=(source, sink, way), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(1 << 20):
                sink.sendall(data)
                setattr(self, way, getattr(self, way) + len(data))
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Spent:
    """Seconds of processors by the kinds of a federation's processes, as they are seen from time to time."""

    def __init__(self) -> None:
        self._seen: dict[processes.Process, float] = {}

    def look(self, kits: Path) -> None:
        for process in processes.find_processes(kits):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                spent = process.handle.cpu_times()
                self._seen[process] = spent.user + spent.system

    def by_kind(self) -> dict[str, float]:
        totals = dict.fromkeys(KINDS.values(), 0.0)
        for process, seconds in self._seen.items():
            for word, kind in KINDS.items():
                if word in process.command:
                    totals[kind] += seconds
                    break
        return totals


def recipe(network: str, rounds: int, updates: str | None) -> dict[str, Any]:
    return {
        "name": network,
        "method": "fedavg",
        "rounds": rounds,
        "local": {"steps_per_round": 1, "batch_size": 2, "lr": 0.01},
        "data": {
            "faces": {"kind": "synthetic", "identities": 8, "images": 3},
            "size": NETWORKS[network],
            "partition": {"parties": 2},
        },
        "evaluation": {"pairs": {}},
        "model": {"name": network},
        "engine": {"threads": 1, "on_error": "exclude", "update_dtype": updates},
    }


def exchanges(run: Path) -> list[tuple[float, float]]:
    """When the server asked and had the last reply, of every round."""
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    asked_at = [line["time"] for line in lines if line["event"] == "asks"]
    answered_at = [line["time"] for line in lines if line["event"] == "answered"]
    return list(zip(asked_at, answered_at, strict=True))


def spans(log: str, rounds: list[tuple[float, float]]) -> list[tuple[float, float, float, float]]:
    """Of every round at a party: the seconds of `SPANS`."""
    traced = [[float(word) for word in line.split()[2:]] for line in re.findall("^TRACE train.step .*", log, re.M)]
    whens = [(asked_at, *times, answered_at) for (asked_at, answered_at), times in zip(rounds, traced, strict=True)]
    return [(b - a, c - b, d - c, e - d) for a, b, c, d, e in whens]


def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def over_flower(folder: Path, tree: dict[str, Any], client: str) -> tuple[str, Relay, Path, Spent]:
    """(the log of the relayed party, its relay, the run, what was spent) of a run whose nodes import `client`."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    link = port()
    about = {"name": "bench", "superlink": {"hosts": "127.0.0.1", "port": link}, "recipe": "recipe.yaml"}
    about["parties"] = {name: {"role": "trainer"} for name in ("silo-00", "silo-01")}
    (folder / "federation.yaml").write_text(yaml.safe_dump(about))
    kits = provisioning.make(folder / "federation.yaml", folder / "kits", datetime.datetime.now(datetime.UTC))
    (kits / "operator" / "project" / "client.py").write_text(client)
    relay = Relay(link)
    start = kits / "parties" / RELAYED / "start.sh"
    start.write_text(start.read_text().replace(f"--superlink 127.0.0.1:{link}", f"--superlink 127.0.0.1:{relay.port}"))
    federation, spent = Loopback(kits), Spent()
    try:
        federation.start(folder / "runs")
        number = federation.run(None)
        while not (state := federation.state_of(number)[0]).startswith("finished"):
            spent.look(kits)
            time.sleep(0.5)
        if state != "finished:completed":
            raise SystemExit(f"the run ended as {state}: {federation.state_of(number)[1]}; see {kits / 'logs'}")
    finally:
        processes.end(kits)
    return launcher.log(kits, RELAYED).read_text(), relay, folder / "runs" / tree["name"], spent


def median(rounds: list[tuple[float, float]]) -> float:
    return statistics.median(end - begin for begin, end in rounds[2:])


def began(code: str) -> float:
    """Seconds of a process that imports something."""
    durations = []
    for _ in range(3):
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", code], check=True)
        durations.append(time.monotonic() - start)
    return statistics.median(durations)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=6, help="the first two are left out")
    parser.add_argument(
        "--updates", choices=["float16", "bfloat16", "int8"], help="the type of updates: engine.update_dtype"
    )
    options = parser.parse_args()
    light, heavy = began("import coalface.flower.party.client"), began("import coalface.flower.party.process")
    print(f"a process for a message: {light:.2f} s until it can hand it on, {heavy:.2f} s where it plays the party\n")
    for network in options.networks:
        tree = recipe(network, options.rounds, options.updates)
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary)
            experiment.run(loader.parse(tree), place / "local", Callback(), report=False)
            local = median(exchanges(place / "local"))
            before = median(exchanges(over_flower(place / "alone", tree, ALONE)[2]))
            log, relay, run, spent = over_flower(place / "stays", tree, TRACED)
            after, parts = median(exchanges(run)), zip(*spans(log, exchanges(run))[2:], strict=True)
            models = [folder / "model" / "backbone.safetensors" for folder in (run, place / "local")]
            same_model = models[0].read_bytes() == models[1].read_bytes()
            party = next(p for p in json.loads((run / "summary.json").read_text())["parties"] if p["name"] == RELAYED)
        print(f"{network}, {party['bytes_up'] / options.rounds / 1e6:.1f} MB up a round; same model: {same_model}")
        print(f"  local engine                      {local:8.2f} s an exchange")
        print(f"  Flower, each message alone        {before:8.2f} s")
        print(f"  Flower                            {after:8.2f} s ({before / after:.2f} times as fast); at one party")
        for span, seconds in zip(SPANS, map(statistics.median, parts), strict=True):
            print(f"    {span:32}{seconds:8.2f} s")
        print("  processors, seconds an exchange")
        for kind, seconds in spent.by_kind().items():
            print(f"    {kind:32}{seconds / options.rounds:8.2f} s")
        for way in ("up", "down"):
            payload, on_wire = party[f"bytes_{way}"], getattr(relay, way)
            print(f"  {way:4}: {payload:,} bytes of messages, {on_wire:,} on the wire ({on_wire / payload:.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
