"""How fast records are read: `python benchmarks/reading.py [--records 100000] [--turns 7] [--folder DIR]`.

Writes a record set of random bytes, 6 to 10 KB a record, into a temporary folder, then reads 100,000 random indices in
two ways that take turns (A B A B …), each touching the first and the last byte of every payload and adding up the
labels, which must agree:

    loop       seek, read the frame, read the record, unpack the header: plain Python on an open file
    read_many  one call, then the bytes fetched through the places in the map that it returns

The file is in the page cache, so that neither waits for a disk. Figures are medians over the turns, and the ratio is
taken within one run. `views` is read_many with a memoryview for every payload, for callers who decode one by one. The
map of each turn is opened anew, so that its page faults are counted.

Last, an index of 5,000,000 lines in random order is parsed, against a Python loop over its lines (once each).
"""

from __future__ import annotations

import argparse
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.data.readers.recordio import MAGIC, RecordFile, open_records, read_index
from coalface.data.readers.records import read_rec, write_rec

INDICES, LINES = 100_000, 5_000_000


def images(records: int, rng: np.random.Generator) -> Iterator[tuple[int, bytes]]:
    noise = rng.integers(0, 256, 1 << 22, dtype=np.uint8).tobytes()
    for i in range(records):
        start, length = rng.integers(1 << 21), rng.integers(6_000, 10_000)
        yield i // 50, noise[start : start + length]


def loop(path: Path, offsets: list[int]) -> tuple[float, int]:
    labels, touched = 0.0, 0
    with open(path, "rb") as file:
        for offset in offsets:
            file.seek(offset)
            magic, word = struct.unpack("<II", file.read(8))
            if magic != MAGIC or word >> 29:
                raise ValueError(f"no whole record at {offset}")
            record = file.read(word & 0x1FFFFFFF)
            flag, label, _, _ = struct.unpack_from("<IfQQ", record)
            payload = memoryview(record)[24 + 4 * flag :]
            labels += label if flag == 0 else struct.unpack_from("<f", record, 24)[0]
            touched += payload[0] + payload[-1]
    return labels, touched


def read_many(file: RecordFile, keys: NDArray[np.int64]) -> tuple[float, int]:
    batch = file.read_many(keys)
    if batch.starts.min() < 0:
        raise ValueError("a record of several parts has no place in the map: choose another seed")
    data = file.data
    ends = data[batch.starts].astype(np.int64).sum() + data[batch.starts + batch.lengths - 1].astype(np.int64).sum()
    return float(batch.label.sum(dtype=np.float64)), int(ends)


def views(file: RecordFile, keys: NDArray[np.int64]) -> tuple[float, int]:
    found = file.read_many(keys)
    touched = sum(payload[0] + payload[-1] for payload in map(found.payload, range(len(keys))))
    return float(found.label.sum(dtype=np.float64)), touched


def records(folder: Path, count: int, turns: int) -> None:
    start = time.perf_counter()
    write_rec(images(count, np.random.default_rng(0)), folder / "set")
    size = (folder / "set" / "train.rec").stat().st_size
    print(f"{count:,} records, {size / 1e6:,.0f} MB, written in {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    rec = read_rec(folder / "set")
    print(f"opened, with every header checked, in {time.perf_counter() - start:.2f} s")

    keys = rec.keys[np.random.default_rng(1).integers(len(rec.keys), size=INDICES)]
    path, index = rec.records.path, rec.records.index
    offsets = rec.records.offsets[np.searchsorted(rec.records.keys, keys)].tolist()
    ways: dict[str, Callable[[RecordFile], tuple[float, int]]] = {
        "loop": lambda file: loop(path, offsets),
        "read_many": lambda file: read_many(file, keys),
        "views": lambda file: views(file, keys),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results = set()
    for _ in range(turns):
        for name, way in ways.items():
            file = open_records(path, index)  # a new map, whose pages no earlier turn has touched
            start = time.perf_counter()
            results.add(way(file))
            seconds[name].append(time.perf_counter() - start)
    if len(results) != 1:
        raise ValueError(f"the ways disagree: {results}")
    base = statistics.median(seconds["loop"])
    for name, times in seconds.items():
        median = statistics.median(times)
        spread = f"{1000 * min(times):.0f} to {1000 * max(times):.0f}"
        print(
            f"{name:<10}{INDICES:,} indices in {1000 * median:6.1f} ms ({spread}, {turns} turns), "
            f"{base / median:5.1f} times the loop"
        )


def index_lines(folder: Path) -> None:
    keys = np.random.default_rng(2).permutation(LINES)
    path = folder / "many.idx"
    path.write_text("".join(f"{key}\t{8192 * key}\n" for key in keys.tolist()), encoding="ascii")
    start = time.perf_counter()
    index, _ = read_index(path)
    fast = time.perf_counter() - start
    start = time.perf_counter()
    table = {}
    with open(path, encoding="ascii") as lines:
        for line in lines:
            key, offset = line.strip().split("\t")
            table[int(key)] = int(offset)
    slow = time.perf_counter() - start
    if len(index) != len(table):
        raise ValueError("the two ways disagree about the index")
    print(f"index of {LINES:,} lines in random order: {fast:.2f} s, {slow / fast:.1f} times a loop over its lines")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made, for example a disk with room")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        records(Path(folder), arguments.records, arguments.turns)
        index_lines(Path(folder))


if __name__ == "__main__":
    main()
