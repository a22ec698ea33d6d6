"""What a gallery costs: `python benchmarks/gallery.py [PEOPLE]`, 100,000 by default, of one made-up embedding each.

The search for one probe and for 256, in turn with the bare float32 product (q, 512) @ (512, PEOPLE): medians and
least of both, and the median ratio; where faiss is installed, that of a search by it to ours. Then the time to open
the gallery, in the clear and encrypted, and to remove a person.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
from measuring import seconds

from coalface.experiments.gallery.file import Enrolled, GalleryFile
from coalface.experiments.gallery.gallery import Gallery

SIZE, ROUNDS = 512, 30


def main(people: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((people, SIZE), np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    enrolled = [Enrolled(f"person {i:07}", f"{i}.jpg", f"{i:064x}") for i in range(people)]
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        key.write_bytes(os.urandom(32))
        for name, secret in (("in the clear", None), ("encrypted", key)):
            path = Path(folder) / name
            about = {"model": "", "made_by": "", "embedding_size": SIZE, "thresholds": []}
            GalleryFile.create(path, about, None if secret is None else secret.read_bytes())
            gallery = Gallery(path, key=secret)
            enrolling = seconds(lambda gallery=gallery: gallery.add(enrolled, rows))
            opening = seconds(gallery.templates)
            print(f"{name}: {people:,} enrolled in {enrolling:.1f} s, opened in {opening:.2f} s")
            if secret is None:
                columns = np.ascontiguousarray(rows.T)
                for count in (1, 256):
                    probes = rng.standard_normal((count, SIZE), np.float32)
                    turns = [
                        (seconds(lambda p=probes, c=columns: p @ c), seconds(lambda p=probes, g=gallery: g.search(p)))
                        for _ in range(ROUNDS if count == 1 else 5)
                    ]
                    bare, search = (
                        f"{1000 * median(times):.1f} ms (least {1000 * min(times):.1f})"
                        for times in zip(*turns, strict=True)
                    )
                    ratio = median(search / bare for bare, search in turns)
                    print(f"{count} searched: {search}, bare product {bare}, ratio {ratio:.2f}")
                    if find_spec("faiss"):
                        indexed = Gallery(path, faiss=True)
                        building = seconds(lambda p=probes, g=indexed: g.search(p))
                        ratios = [
                            seconds(lambda p=probes, g=indexed: g.search(p))
                            / seconds(lambda p=probes, g=gallery: g.search(p))
                            for _ in turns
                        ]
                        print(
                            f"{count} searched by faiss: ratio to ours {median(ratios):.2f}; opened in {building:.2f} s"
                        )
            removing = seconds(lambda gallery=gallery: gallery.remove("person 0000007"))
            print(f"{name}: a person removed in {removing:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("people", type=int, nargs="?", default=100_000)
    main(parser.parse_args().people)
