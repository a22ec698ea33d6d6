"""Coalface beside its peers: pfl-research, Flower's simulation and plain PyTorch, on the same work in one run.

    python benchmarks/peers.py --cache FOLDER                        # all sizes; about 40 minutes on two free cores
    python benchmarks/peers.py --cache FOLDER --cases 200x5 --without flower   # a few minutes

FOLDER gets an environment of its own with the peers (1.7 GB) and Coalface from this checkout. Every simulator runs in a
process of its own (`benchmarks/peers/`), and they take turns of one round each. In the end all must have the global
model of plain PyTorch, else the exit status is 1. `--out` also keeps what a case gave, and goes on from it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
from same_work import TURN, Work, network  # noqa: E402

PACKAGES = ("torch==2.13.0", "pfl==0.6.0", "flwr[simulation]==1.41.0")
"""Flower 1.41.0 names the Ray that it is tested with."""
CASES = ("10x5", "200x5", "1000x5", "100x30")
RUNNERS = {
    "bare loop, no clients": ("run_plain", {"pooled": True}),
    "plain": ("run_plain", {}),
    "coalface": ("run_coalface", {}),
    "coalface, client batches": ("run_coalface", {"client_batch": 256}),
    "pfl": ("run_pfl", {}),
    "flower": ("run_flower", {}),
    "coalface, 2 workers": ("run_coalface", {"workers": 2}),
    "pfl, 2 workers": ("run_pfl", {"workers": 2}),
    "flower, 2 workers": ("run_flower", {"workers": 2}),
}
LIMIT = 0.01
"""Of the way that the model has gone: what it may differ from plain PyTorch's."""


def environment(folder: Path) -> Path:
    """The Python of the peers' environment, which is made where it is missing."""
    python, mark = folder / "env" / "bin" / "python", folder / "env" / "packages.txt"
    if not mark.exists() or mark.read_text() != "\n".join(PACKAGES):
        print(f"installing the peers (1.7 GB) in {folder / 'env'} …", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, "torch==2.13.0"], check=True)  # first, so that nothing else chooses a build of it
        subprocess.run([*pip, *PACKAGES, "--editable", str(ROOT)], check=True)
        mark.write_text("\n".join(PACKAGES))
    return python


class Peer:
    """A simulator in a process of its own, which waits between its turns."""

    def __init__(self, python: Path, runner: str, work: Work, log: Path) -> None:
        script = ROOT / "benchmarks" / "peers" / "same_work.py"
        command = [str(python), str(script), runner, json.dumps(dataclasses.asdict(work))]
        self._log = log
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},  # the environment may be of another checkout
        )
        self._read()

    def turn(self) -> float:
        """Seconds of a round."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def processes(self) -> list[psutil.Process]:
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def processor_seconds(self) -> float:
        """Of all its processes so far."""
        total = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:2])
        return total

    def memory_turn(self) -> float:
        """The most MB of its own that all its processes held in a round; files that they map do not count."""
        peak, over = 0, threading.Event()

        def sample() -> None:
            nonlocal peak
            while True:
                peak = max(peak, sum(anonymous(process.pid) for process in self.processes()))
                if over.wait(0.05):
                    return

        sampler = threading.Thread(target=sample)
        sampler.start()
        self.turn()
        over.set()
        sampler.join()
        return peak / 1e6

    def close(self) -> None:
        """Let it leave its model."""
        self._process.communicate("\n")
        if self._process.returncode:
            raise SystemExit(f"it failed:\n{self._log.read_text()[-4000:]}")

    def _read(self) -> float:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(TURN):
                return float(line.removeprefix(TURN))
        raise SystemExit(f"it ended too early:\n{self._log.read_text()[-4000:]}")


def anonymous(pid: int) -> int:
    """Bytes of a process that no file has, its share of what it shares with others."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return 0


@dataclass
class Measured:
    """What one simulator gave."""

    start: float
    """Seconds from its process's start to the end of the first round, less a median round."""
    seconds: list[float]
    """Of the timed rounds."""
    processor: list[float]
    """Processor seconds of these, of all its processes."""
    memory_mb: float
    difference: float | None
    """From plain PyTorch's model, of the way that this one has gone; None without clients."""


def measure(python: Path, case: str, names: list[str], turns: int, folder: Path) -> dict[str, Measured]:
    """A first round each, then `turns` timed rounds in turn, then one for the memory."""
    clients, images = map(int, case.split("x"))
    peers: dict[str, Peer] = {}
    measured: dict[str, Measured] = {}
    models = {name: folder / f"{name}.pt" for name in names}
    for name in names:
        runner, options = RUNNERS[name]
        work = Work(clients, images, turns + 2, **{"out": str(models[name]), **options})
        began = time.perf_counter()
        peers[name] = Peer(python, runner, work, folder / f"{name}.log")
        peers[name].turn()
        measured[name] = Measured(time.perf_counter() - began, [], [], 0.0, None)
        print(f"{case} {name}: first round after {measured[name].start:.1f} s", file=sys.stderr, flush=True)
    for _ in range(turns):
        for name, peer in peers.items():
            before = peer.processor_seconds()
            measured[name].seconds.append(peer.turn())
            measured[name].processor.append(peer.processor_seconds() - before)
    for name, peer in peers.items():
        measured[name].start -= statistics.median(measured[name].seconds)
        measured[name].memory_mb = peer.memory_turn()
        peer.close()
    first = flat(network().state_dict())
    plain = flat(torch.load(models["plain"]))
    for name in names:
        if name != "bare loop, no clients":
            measured[name].difference = float((flat(torch.load(models[name])) - plain).norm() / (plain - first).norm())
    return measured


def flat(model: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([model[name].double().flatten() for name in sorted(model)])


def table(case: str, measured: dict[str, Measured]) -> str:
    """Medians; ratios are those of the same turn."""

    def ratio(key: str, name: str, other: str) -> str:
        if name == other or other not in measured:
            return ""
        pairs = zip(getattr(measured[name], key), getattr(measured[other], key), strict=True)
        return f"{statistics.median(a / max(b, 0.01) for a, b in pairs):.2f}"

    clients, images = case.split("x")
    lines = [
        f"| {clients} clients × {images} images | s a round | processor s | s to plain | s to pfl | processor s to pfl "
        "| s to flower | MB | start, s | model differs by |",
        "|---|" + 9 * "---:|",
    ]
    for name, m in measured.items():
        pfl, flower = ("pfl, 2 workers", "flower, 2 workers") if "2" in name else ("pfl", "flower")
        cells = [
            f"{statistics.median(m.seconds):.3f}", f"{statistics.median(m.processor):.2f}",
            ratio("seconds", name, "plain"), ratio("seconds", name, pfl), ratio("processor", name, pfl),
            ratio("seconds", name, flower),
            f"{m.memory_mb:,.0f}", f"{m.start:.1f}", "" if m.difference is None else f"{m.difference:.0e}",
        ]  # fmt: skip
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="Folder for the peers' environment, models and logs.")
    parser.add_argument("--cases", nargs="+", default=list(CASES), help="CLIENTSxIMAGES of each.")
    parser.add_argument("--without", nargs="*", default=[], help="Simulators to leave out: pfl, flower.")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON file for the figures; cases that it has are not run again.")
    options = parser.parse_args()
    python = environment(options.cache.resolve())
    names = [name for name in RUNNERS if name.split(",")[0] not in options.without]
    figures = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    print(f"{', '.join(PACKAGES)}, Python {platform.python_version()}, {os.cpu_count()} cores\n")
    for case in options.cases:
        if case not in figures:
            measured = measure(python, case, names, options.turns, options.cache.resolve())
            figures[case] = {name: dataclasses.asdict(m) for name, m in measured.items()}
            if options.out:
                options.out.write_text(json.dumps(figures, indent=1) + "\n")
        print(table(case, {name: Measured(**fields) for name, fields in figures[case].items()}), flush=True)
    others = [f"{c} {n}" for c in options.cases for n, m in figures[c].items() if (m["difference"] or 0) > LIMIT]
    if others:
        raise SystemExit(f"another model than plain PyTorch's: {', '.join(others)}")


if __name__ == "__main__":
    main()
