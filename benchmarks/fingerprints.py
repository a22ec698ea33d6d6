"""What the runs of every method come to, as hashes: the same before and after a change that moves no number.

    python benchmarks/fingerprints.py --demo --out docs/results/fingerprints.md      # every method, and `make demo`
    python benchmarks/fingerprints.py --demo --check docs/results/fingerprints.md    # again; exit code 1 if any differs
    python benchmarks/fingerprints.py --methods fedavg scaffold --workers 1          # a part of it

The script knows the command `coalface`, the recipes in fingerprints.yaml and the files of a run, and imports nothing of
the package. Its columns:

- model: names, types, shapes and bytes of the tensors in every file of weights that the run leaves
- figures: every float of `summary.json` and `metrics.jsonl`, sorted, clock times aside
- sent: round, shape, type and SHA-256 of every tensor in the ledgers, sorted
- records, chains: `summary.json` and `metrics.jsonl` whole, but for clock times and contents, and the ledgers. These
  have names of keys, steps and fields in them, and change with a name: `--renamed` shows that and does not fail.

`--out` replaces the lines of what was run, and keeps the rest of the file.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

COLUMNS = ("model", "figures", "sent", "records", "chains")
NAMED = ("records", "chains")
"""Columns that have names in them."""
HEAD = f"| run | workers | {' | '.join(COLUMNS)} |\n|---|---:|{'---|' * len(COLUMNS)}\n"

Rows = dict[tuple[str, str], tuple[str, ...]]
"""(run, workers) -> the columns."""


def merged(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The tree with a tree of changes laid over it."""
    nested = {
        k: merged(tree[k], v) for k, v in changes.items() if isinstance(v, dict) and isinstance(tree.get(k), dict)
    }
    return {**tree, **changes, **nested}


def recipes() -> dict[str, dict[str, Any]]:
    """The recipe of every run, by the run's name."""
    file, recipes_by_run = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")), {}
    for world in file["worlds"]:
        runs = {name: {"method": name} for name in world.get("methods", ())} | world.get("variants", {})
        for name, changes in runs.items():
            recipes_by_run[name] = merged(merged(file["base"], world["recipe"]), changes)
    return recipes_by_run


def coalface(*arguments: str) -> str:
    """What the command prints. SystemExit where it fails."""
    (command,) = entry_points(group="console_scripts", name="coalface")
    before, sys.argv = sys.argv, ["coalface", *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            command.load()()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.argv = before
    return printed.getvalue()


def digest(value: Any) -> str:
    """Sixteen digits of the SHA-256 of JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def weights(file: Path) -> list[list[Any]]:
    """Each tensor of a file: name, type, shape, and the SHA-256 of its bytes."""
    tensors = sorted(load_file(file).items())
    data = [tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for _, tensor in tensors]
    sums = [hashlib.sha256(tensor_bytes).hexdigest() for tensor_bytes in data]
    return [[n, str(t.dtype), list(t.shape), sha] for (n, t), sha in zip(tensors, sums, strict=True)]


def timeless(value: Any) -> Any:
    """JSON without the members that tell how many seconds something took, on which machine, and what a field holds,
    which follows from the method's source."""
    if isinstance(value, dict):
        left_out = {"environment", "content"}
        return {k: timeless(member) for k, member in value.items() if "seconds" not in k and k not in left_out}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def floats(value: Any) -> Iterator[float]:
    """Every float in JSON. Integers are counts and bytes, and the latter grow with names."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from floats(item)


def lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def fingerprint(run: Path) -> tuple[str, ...]:
    """The columns of a finished run."""
    records = timeless([json.loads((run / "summary.json").read_text(encoding="utf-8")), lines(run / "metrics.jsonl")])
    ledgers = [lines(file) for file in [*sorted((run / "ledger").glob("*.jsonl")), *run.glob("cohorts.jsonl")]]
    tensors = [[line for line in ledger if line["kind"] == "tensor"] for ledger in ledgers]
    sent = [
        sorted([line[key] for key in ("round", "shape", "dtype", "sha256")] for line in ledger) for ledger in tensors
    ]
    model = sorted(weights(file) for file in (run / "model").rglob("*.safetensors"))
    return tuple(map(digest, (model, sorted(set(floats(records))), sorted(sent), records, ledgers)))


def run_all(names: Iterable[str], workers: Iterable[int], demo: bool) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Each run, its number of workers, and its columns."""
    with tempfile.TemporaryDirectory() as place:
        os.environ["COALFACE_CACHE"] = f"{place}/cache"  # so that pre-trained models are made anew
        recipe_of, file = recipes(), Path(place, "recipe.yaml")
        for name in names:
            file.write_text(yaml.safe_dump(recipe_of[name]).replace("$RUNS", place), encoding="utf-8")
            for count in workers:
                out = Path(place, f"{name}-{count}")
                coalface("run", str(file), "--out", str(out), "--workers", str(count), "--quiet")
                yield name, str(count), fingerprint(out)
        if demo:
            coalface("demo", "--out", f"{place}/demo", "--quiet")
            for summary in sorted(Path(place, "demo").glob("*/summary.json")):
                yield f"demo-{summary.parent.name}", "2", fingerprint(summary.parent)


def read_rows(text: str) -> Rows:
    """The rows of the table in a text."""
    cells = [[c.strip("` ") for c in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    return {(name, workers): tuple(columns) for name, workers, *columns in cells}


def as_line(key: tuple[str, str], columns: Iterable[str]) -> str:
    return f"| `{key[0]}` | {key[1]} | {' | '.join(columns)} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", choices=(by_name := recipes()), default=list(by_name), metavar="NAME")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--renamed", action="store_true")
    options = parser.parse_args()
    if missing := {row["method"] for row in json.loads(coalface("methods", "--json"))} - set(by_name):
        parser.error(f"fingerprints.yaml has no run of {', '.join(sorted(missing))}")
    before = read_rows(options.check.read_text(encoding="utf-8")) if options.check else None
    torch.set_num_threads(1)
    context = multiprocessing.get_context("forkserver")  # workers start in 0.1 s: torch is imported once for all
    context.set_forkserver_preload(["torch"])
    multiprocessing.get_context = lambda method=None: context  # type: ignore[assignment]

    rows, differs = Rows(), False
    print(HEAD, end="")
    for name, workers, columns in run_all(options.methods, options.workers, options.demo):
        rows[name, workers] = columns
        print(as_line((name, workers), columns), end="", flush=True)
        old_columns = columns if before is None else before.get((name, workers), ("nothing",) * len(COLUMNS))
        for column, old, new in zip(COLUMNS, old_columns, columns, strict=True):
            if old != new:
                differs |= not (options.renamed and column in NAMED)
                print(f"{name}, {workers} workers: {column} was {old} and is {new}", file=sys.stderr)
    if options.out:
        text = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
        table = "".join(as_line(key, columns) for key, columns in sorted((read_rows(text) | rows).items()))
        options.out.write_text(text.partition(HEAD)[0] + HEAD + table, encoding="utf-8")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
