"""How long a run takes to begin: `python benchmarks/starting.py [run] [pack] [resume] [--turns 5] [--before FOLDER]`.

Whole processes, from their start to the moment at which the server asks parties for the first time, as `events.jsonl`
has it; they are ended then. Beside each turn stands the time of `python -c "import torch"`, which no start is below.
Also in processor time, which is steadier on a busy machine.

    run       `coalface run` on a pack of 20,000 images, 8 silos; limit 1.5 s
    pack      opens a pack of 5,000,000 images (`--images`), whose index is real and whose pixels are a hole in the
              disk; limits 1 s and 200 MB, Python with NumPy and OpenCV included
    resume    `coalface resume` of a run of 10,000 parties (`--parties`), killed after its first round; limit 5 s

With `--before` each turn does the same with the package in another folder, such as an older checkout.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coalface.data.readers import pack

HERE = Path(__file__).resolve().parents[1]
COMMAND = "from coalface.cli.main import main; main()"
OPEN = """
import json, sys, time
from measuring import resident
from coalface.data.readers.pack import read_pack
start, processor = time.perf_counter(), time.process_time()
faces = read_pack(sys.argv[1])
seconds = time.perf_counter() - start, time.process_time() - processor
print(json.dumps([seconds, resident(peak=True) / 1e6, len(faces), faces.files[len(faces) - 1]]))
"""


class Seconds(NamedTuple):
    clock: float
    processor: float


@dataclass(frozen=True)
class Noise:
    """A source of images of noise."""

    identities: int
    each: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"person-{number:07d}" for number in range(self.identities))

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(self.identities), self.each)

    @property
    def files(self) -> list[str]:
        return [f"{name}/{image:04d}.jpg" for name in self.names for image in range(self.each)]

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        rng = np.random.default_rng(0)
        for _ in range(self.identities * self.each):
            yield rng.integers(0, 256, (size, size, 1 if grey else 3), dtype=np.uint8)

    def fingerprint(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()


def sparse(source: Noise, folder: Path, size: int = 112) -> None:
    """A pack of the source whose pixels are zeros that no disk holds, noted as looked through already."""
    labels = io.BytesIO()
    np.save(labels, source.labels)
    index = json.dumps({"names": source.names, "files": source.files}).encode()
    folder.mkdir()
    (folder / "labels.npy").write_bytes(labels.getvalue())
    (folder / "index.json").write_bytes(index)
    shape = [len(source.labels), size, size, 3]
    with open(folder / "pixels.u8", "wb") as file:
        file.truncate(int(np.prod(shape)))
    sums = {"labels.npy": hashlib.sha256(labels.getvalue()), "index.json": hashlib.sha256(index)}
    sha256 = {"pixels.u8": "0" * 64, **{name: digest.hexdigest() for name, digest in sums.items()}}
    meta = {"format": pack.FORMAT, "version": pack.VERSION, "shape": shape, "sha256": sha256}
    (folder / "meta.json").write_text(json.dumps(meta | {"fingerprint": "", "size": size, "grey": False}))
    note, stamp = pack._sound_note(folder / "pixels.u8", sha256["pixels.u8"])
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_bytes(stamp)


def recipe(folder: Path, parties: int, **engine: object) -> list[str]:
    """The words of a recipe on a pack."""
    changes = {"data.faces": f"{{kind: pack, path: {folder}}}", "data.partition.parties": parties, "rounds": 2}
    changes |= {"data.size": 32, **{f"engine.{key}": value for key, value in engine.items()}}
    return [f"{key}={value}" for key, value in changes.items()]


def until_asked(words: list[str], out: Path, package: Path) -> Seconds:
    """The start of a process up to its first question to parties; it is ended then."""
    events = out / "events.jsonl"
    before = asked(events)
    environment = os.environ | {"PYTHONPATH": str(package)}
    start = time.time()
    with open(out.with_suffix(".log"), "w") as log:
        process = subprocess.Popen([sys.executable, "-c", COMMAND, *words], cwd=package, env=environment, stderr=log)
        while len(times := asked(events)) == len(before):
            if process.poll() is not None:
                raise SystemExit(f"it ended: {out.with_suffix('.log').read_text()}")
            time.sleep(0.02)
        process.kill()
        return Seconds(times[len(before)] - start, processor_time(process))


def processor_time(process: subprocess.Popen[bytes]) -> float:
    """Of a process that ends."""
    _, process.returncode, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime


def asked(events: Path) -> list[float]:
    lines = events.read_text().splitlines() if events.exists() else []
    return [json.loads(line)["time"] for line in lines if '"event": "asks"' in line and line.endswith("}")]


def torch_alone() -> Seconds:
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", "import torch"])
    return Seconds(processor=processor_time(process), clock=time.perf_counter() - start)


def measure_run(folder: Path, packages: dict[str, Path], turns: int) -> None:
    pack.write_pack(Noise(2_000, 10), folder / "pack", size=32, grey=True)
    words = recipe(folder / "pack", 8)
    recipe_file = folder / "recipe.yaml"
    recipe_file.write_text("method: fedavg\n")

    def begin(name: str, turn: int) -> Seconds:
        out = folder / f"run-{name}-{turn}"
        return until_asked(["run", str(recipe_file), *words, "--quiet", "--out", str(out)], out, packages[name])

    report("run until the first round", packages, turns, begin, 1.5)


def measure_resume(folder: Path, packages: dict[str, Path], turns: int, parties: int) -> None:
    pack.write_pack(Noise(2 * parties, 2), folder / "many", size=32, grey=True)
    out, recipe_file = folder / "resumed", folder / "many.yaml"
    recipe_file.write_text("method: fedavg\nmodel: {name: cnn-small, embedding_size: 8}\nlocal: {epochs: 1}\n")
    words = ["run", str(recipe_file), "--quiet", "--out", str(out)]
    words += recipe(folder / "many", parties, save_replies="false")
    process = subprocess.Popen([sys.executable, "-c", COMMAND, *words], stderr=subprocess.DEVNULL)
    while not (out / "checkpoints").exists() or not list((out / "checkpoints").glob("[0-9]*")):
        time.sleep(0.1)
    process.kill()
    process.wait()

    def resume(name: str, turn: int) -> Seconds:
        return until_asked(["resume", str(out), "--quiet", "--changed-code"], out, packages[name])

    report(f"resume with {parties:,} parties", packages, turns, resume, 5.0)


def measure_pack(folder: Path, packages: dict[str, Path], turns: int, images: int) -> None:
    sparse(Noise(images // 50, 50), folder / "large")
    peaks: dict[str, float] = {}

    def opened(name: str, turn: int) -> Seconds:
        environment = os.environ | {"PYTHONPATH": f"{packages[name]}:{HERE / 'benchmarks'}"}
        command = [sys.executable, "-c", OPEN, str(folder / "large")]
        done = subprocess.run(command, cwd=packages[name], env=environment, check=True, capture_output=True, text=True)
        seconds, peaks[name], _, _ = json.loads(done.stdout)
        return Seconds(*seconds)

    report(f"open a pack of {images:,} images", packages, turns, opened, 1.0)
    for name, peak in peaks.items():
        print(f"  {name}: {peak:.0f} MB at most, Python and its modules included (limit 200)")


def report(
    what: str, packages: dict[str, Path], turns: int, measure: Callable[[str, int], Seconds], limit: float
) -> None:
    taken: dict[str, list[Seconds]] = {name: [] for name in [*packages, "import torch"]}
    for turn in range(turns + 1):
        for name in packages:
            taken[name].append(measure(name, turn))
        taken["import torch"].append(torch_alone())
    print(f"{what} (limit {limit:g} s)")
    for name, times in taken.items():
        clock, processor = (statistics.median(column) for column in zip(*times[1:], strict=True))  # the first warms up
        ratio = statistics.median(
            a.processor / b.processor for a, b in list(zip(times, taken["import torch"], strict=True))[1:]
        )
        print(f"  {name}: {clock:.2f} s, processor {processor:.2f} s, {ratio:.2f} of that of importing torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["run", "pack", "resume"], help="run, pack, resume")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--images", type=int, default=5_000_000)
    parser.add_argument("--parties", type=int, default=10_000)
    parser.add_argument("--before", type=Path, help="a folder that holds another coalface to measure beside this one")
    arguments = parser.parse_args()
    packages = {"now": HERE} | ({"before": arguments.before.resolve()} if arguments.before else {})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["COALFACE_CACHE"] = str(folder / "cache")
        if "run" in arguments.what:
            measure_run(folder, packages, arguments.turns)
        if "pack" in arguments.what:
            measure_pack(folder, packages, arguments.turns, arguments.images)
        if "resume" in arguments.what:
            measure_resume(folder, packages, arguments.turns, arguments.parties)


if __name__ == "__main__":
    main()
