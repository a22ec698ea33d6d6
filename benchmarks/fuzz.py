"""Fuzzing of every reader and decoder, as long as you give it.

    python benchmarks/fuzz.py bin --minutes 60            # one reader
    python benchmarks/fuzz.py --minutes 5                 # each in turn, 5 minutes
    python benchmarks/fuzz.py bin --try build/fuzz/bin/found/crash-…    # what one input does, with its traceback
    python benchmarks/fuzz.py bin --keep                  # its smallest inputs that cover as much, for the tests

With atheris installed, mutation is guided by the lines that an input reaches; without it, inputs are mutated blindly.
`tests/fuzz/readers.py` has the readers, their sound inputs and the errors by which they may refuse. Anything else is
found: another error, an input of more than 5 s, and more than 3 GiB. It is written to `CORPUS/found/`, and the fuzzing
goes on. What was covered lies in `CORPUS` (`build/fuzz/NAME` by default), and a later call goes on from there. Minutes
are the processor's. With `--page FILE` a table of that page counts up what was done.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import hashlib
import importlib
import io
import os
import random
import re
import resource
import signal
import sys
import time
import traceback
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / folder) for folder in ("fuzz", "."))]
KEPT = ROOT / "tests" / "fuzz" / "corpus"
SECONDS, MEMORY = 5, 3 << 30
"""What one input may take."""
LONGEST = 1 << 14
"""Bytes of an input."""


def kept(name: str) -> list[bytes]:
    """The inputs that are kept of a reader."""
    path = KEPT / f"{name}.zip"
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as archive:
        return [archive.read(member) for member in archive.namelist()]


class Findings:
    """What readers raised that they may not, once for each place in the code."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: set[str] = set()

    def add(self, data: bytes, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/coalface/" in frame.filename] or frames
        place = f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"
        if place in self._places:
            return
        self._places.add(place)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"error-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        print(f"found: {place}: {str(error)[:200]!r}: {path}", flush=True)


def import_readers() -> Any:
    """(the table of readers, atheris or None); with atheris, what they are of is instrumented."""
    try:
        import atheris
    except ImportError:
        return importlib.import_module("readers").READERS, None
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["coalface", "pickletools"]):
        return importlib.import_module("readers").READERS, atheris


def fuzz_here(reader: Any, name: str, corpus: Path, seconds: float, atheris: Any) -> None:
    """Fuzz in this process, which ends with it."""
    with open(corpus / "log.txt", "ab", buffering=0) as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # what is set aside and not used counts as well
    if atheris is not None:
        fuzz_guided(atheris, reader, name, corpus, seconds)
    else:
        fuzz_blindly(reader, corpus, seconds)


def fuzz_guided(atheris: Any, reader: Any, name: str, corpus: Path, seconds: float) -> None:
    findings = Findings(corpus / "found")

    def read(data: bytes) -> None:
        try:
            reader.holds(data)
        except BaseException as error:
            findings.add(data, error)

    limits = {"max_total_time": int(seconds), "timeout": SECONDS, "rss_limit_mb": MEMORY >> 20, "max_len": LONGEST}
    options = [f"-{key}={value}" for key, value in limits.items()]
    options += [f"-artifact_prefix={corpus / 'found'}/", "-print_final_stats=1", "-use_value_profile=1"]
    atheris.Setup([name, str(corpus / "inputs"), *options], read)
    atheris.Fuzz()


def fuzz_blindly(reader: Any, corpus: Path, seconds: float) -> None:
    from damage import mutated

    findings, rng, executions = Findings(corpus / "found"), random.Random(time.time_ns()), 0
    faulthandler.enable()
    inputs = [path.read_bytes() for path in sorted((corpus / "inputs").iterdir())]
    end = time.monotonic() + seconds
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while time.monotonic() < end:
        data = mutated(rng.choice(inputs), rng, most=8)[:LONGEST]
        (corpus / "last").write_bytes(data)
        signal.alarm(SECONDS)  # it ends the process, whatever that is at
        try:
            reader.holds(data)
        except BaseException as error:
            findings.add(data, error)
        signal.alarm(0)
        executions += 1
    print(f"stat::number_of_executed_units: {executions}", flush=True)


def processor_seconds() -> float:
    """Of the processes that have ended: those beside them on the machine do not count as minutes of a reader."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def fuzz(reader: Any, name: str, corpus: Path, minutes: float, atheris: Any) -> tuple[int, int, int]:
    """Fuzz a reader in processes of its own, the next after one that died: (executions, coverage, findings)."""
    for folder in ("inputs", "found"):
        (corpus / folder).mkdir(parents=True, exist_ok=True)
    for data in (*reader.sound, *kept(name)):
        (corpus / "inputs" / hashlib.sha1(data).hexdigest()).write_bytes(data)
    log = corpus / "log.txt"
    log.write_bytes(b"")
    begun, processes = processor_seconds(), 0
    while (seconds := 60 * minutes - (processor_seconds() - begun)) > 5 and processes < 50:
        processes += 1
        if (process := os.fork()) == 0:
            try:
                fuzz_here(reader, name, corpus, seconds, atheris)
            finally:
                os._exit(1)
        status = os.waitpid(process, 0)[1]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGSEGV, signal.SIGABRT):
            if (corpus / "last").exists():
                path = corpus / "found" / f"crash-{time.time_ns()}"
                (corpus / "last").rename(path)
                with open(log, "a", encoding="utf-8") as file:
                    file.write(f"Test unit written to {path}\n")
    return told(log.read_text(encoding="utf-8", errors="replace"))


def told(log: str) -> tuple[int, int, int]:
    """(executions, coverage, findings) by the log of some processes; the findings are printed."""
    executions = sum(map(int, re.findall(r"^stat::number_of_executed_units: *(\d+)", log, re.M)))
    coverage = max(map(int, re.findall(r"^#\d+\s.*?cov: (\d+)", log, re.M)), default=0)
    errors = {match[1]: match[0] for match in re.finditer(r"^found: ([^:]*:\d+).*", log, re.M)}
    deaths = re.findall(r"Test unit written to .*", log)
    for line in (*errors.values(), *deaths):
        print(line, flush=True)
    return executions, coverage, len(errors) + len(deaths)


def keep(reader: Any, name: str, corpus: Path, most: int = 4096) -> None:
    """Keep, beside what is kept, the smallest inputs that each reach a line that those before do not.

    They take `most` bytes together.
    """
    before, seen, chosen = kept(name), set[tuple[str, int]](), list[bytes]()
    for data in (*reader.sound, *before):
        seen |= reached(reader, data)
    found = {path.read_bytes() for path in (corpus / "inputs").iterdir()}
    for data in sorted(found - {*reader.sound, *before}, key=lambda data: (len(data), data)):
        if sum(map(len, chosen)) + len(data) <= most and not (lines := reached(reader, data)) <= seen:
            seen |= lines
            chosen.append(data)
    write_kept(name, [*before, *chosen])


def reached(reader: Any, data: bytes) -> set[tuple[str, int]]:
    """The lines of the package that an input reaches."""
    lines: set[tuple[str, int]] = set()

    def trace(frame: Any, event: str, argument: object) -> Any:
        if "/coalface/" not in frame.f_code.co_filename:
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        reader.holds(data)
    finally:
        sys.settrace(None)
    return lines


def write_kept(name: str, inputs: list[bytes]) -> None:
    """The same inputs give the same bytes."""
    KEPT.mkdir(exist_ok=True)
    with zipfile.ZipFile(KEPT / f"{name}.zip", "w") as archive:
        for data in inputs:
            archive.writestr(zipfile.ZipInfo(hashlib.sha256(data).hexdigest()[:12]), data, zipfile.ZIP_DEFLATED, 9)


def count_up(page: Path, name: str, minutes: float, executions: int, coverage: int, findings: int) -> None:
    """Add to the line of a reader in the table of a page."""
    text = page.read_text(encoding="utf-8")
    line = re.search(rf"^\| `{name}` \| ([\d.]+) \| ([\d,]+) \| (\d+) \| (\d+) \|$", text, re.M)
    before = (float(line[1]), int(line[2].replace(",", "")), int(line[3]), int(line[4])) if line else (0.0, 0, 0, 0)
    fresh = (
        f"| `{name}` | {before[0] + minutes:g} | {before[1] + executions:,} | {max(before[2], coverage)} | "
        f"{before[3] + findings} |"
    )
    text = text.replace(line[0], fresh) if line else f"{text.rstrip()}\n{fresh}\n"
    page.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--try", dest="attempt", type=Path)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    readers, atheris = import_readers()
    if unknown := set(options.names) - readers.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(readers)}")
    total = 0
    for name in options.names or readers:
        corpus = options.corpus or ROOT / "build" / "fuzz" / name
        if options.attempt is not None:
            print("read" if readers[name].holds(options.attempt.read_bytes()) else "refused")
            continue
        if options.keep:
            keep(readers[name], name, corpus)
            continue
        executions, coverage, findings = fuzz(readers[name], name, corpus, options.minutes, atheris)
        total += findings
        print(f"{name}: {executions:,} inputs, {coverage} edges, {findings} found", flush=True)
        if options.page is not None:
            count_up(options.page, name, options.minutes, executions, coverage, findings)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
