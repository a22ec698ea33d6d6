"""Mean or highest cosine of several images of a person: `python benchmarks/several_images.py EMBEDDINGS.npz`.

The file is what `coalface embed` makes of identity folders. People with six images or more are enrolled by 1, 3 and 5
of them and looked for by the others, at most nine in all. Strangers are the people with one image, at most 1,500: of
the first half the thresholds at FARs are chosen, by pairs of two people; the second half is looked for. FPIR is the
share of these that are taken for somebody, TPIR that of the enrolled people's images that find whom they show.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def main(path: Path) -> None:
    rng = np.random.default_rng(0)
    with np.load(path) as stored:
        embeddings, files = stored["embeddings"], stored["files"]
    names = np.array([Path(file).parent.name for file in files])
    by_name = {name: rng.permutation(np.flatnonzero(names == name))[:9] for name in np.unique(names)}
    known = [rows for rows in by_name.values() if len(rows) >= 6]
    alone = embeddings[rng.permutation([rows[0] for rows in by_name.values() if len(rows) == 1])[:1500]]
    chosen_on, strangers = alone[: len(alone) // 2], alone[len(alone) // 2 :]
    impostors = np.sort((chosen_on @ chosen_on.T)[np.triu_indices(len(chosen_on), 1)])[::-1]
    print(f"{len(known)} people, {len(strangers)} strangers\n\nimages, by, FAR, FAR as measured, N · FAR, FPIR, TPIR")
    for count in (1, 3, 5):
        enrolled = np.stack([embeddings[rows[:count]] for rows in known])  # (people, count, d)
        probes = np.concatenate([embeddings[rows[count:]] for rows in known])
        people = np.concatenate([np.full(len(rows) - count, person) for person, rows in enumerate(known)])
        for name in ("mean", "highest"):
            scores = []
            for side in (probes, strangers):
                if name == "mean":
                    scores.append(side @ unit(enrolled.sum(axis=1)).T)
                else:
                    scores.append(np.max([side @ enrolled[:, k].T for k in range(count)], axis=0))
            genuine, impostor = scores
            for far in (1e-3, 1e-4):
                threshold = impostors[int(far * len(impostors))]
                fpir = (impostor.max(axis=1) >= threshold).mean()
                tpir = ((genuine.argmax(axis=1) == people) & (genuine.max(axis=1) >= threshold)).mean()
                measured, expected = (impostor >= threshold).mean(), len(known) * far
                print(f"{count}, {name}, {far:g}, {measured:.5f}, {expected:.3f}, {fpir:.3f}, {tpir:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
