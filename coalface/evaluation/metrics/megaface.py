"""MegaFace: probes against very many distractors, rank-1 and TAR at FAR, exact, and streamed in bounded memory.

For an ordered pair of two images of one identity, a probe and its mate, the gallery is the mate and all distractors:
the probe is right if its mate is more like it than every distractor. So an identity of m images counts m (m − 1) times.
Genuine pairs of the verification are those of two images of one identity, impostors each probe with each distractor.
(Kemelmacher-Shlizerman et al., CVPR 2016; `coalface.data.readers.megaface` reads the lists.)

Scores are T of `exact`. `docs/figures.md` has the definitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coalface.evaluation.metrics.exact import BLOCK, Floats, Places, check_unit, exactly, scan
from coalface.evaluation.metrics.identification import TIE
from coalface.evaluation.metrics.verification import TarAtFar, allowed, genuine_pairs, ranks_asked, tars_of_ranked


@dataclass(frozen=True, eq=False)
class MegaFace:
    """What a list of distractors says of a model."""

    pairs: int
    """Ordered pairs of a probe and a mate."""
    right: int
    """Of these, those of rank 1."""
    tars: tuple[TarAtFar, ...]
    distractors: int

    def figures(self) -> dict[str, float]:
        """`rank-1` and `tar@far=1e-06`, … in percent, unrounded; without a TAR that the pairs cannot carry."""
        tars = {f"tar@far={tar.far:g}": 100 * tar.tar for tar in self.tars if tar.carried}
        return {"rank-1": 100 * self.right / self.pairs} | tars


def evaluate_probes(
    probes: Floats,
    identities: Places,
    distractors: Floats,
    *,
    fars: Sequence[float] = (1e-6,),
    block: tuple[int, int] = BLOCK,
) -> MegaFace:
    """Evaluate unit features of probes (p, d), with their identities (p,), against those of distractors (n, d).

    `distractors` may be mapped from a file (`np.memmap`): it is read once, a block at a time.

    A pair of probe i and mate j is right if T_ij > max_k T_ik + `TIE` over the distractors k: ties go against it, as
    in `identify`. TAR is that of `verification.tar_at_far` over all T, with p × n impostors.

    Time and memory are those of `scan`.

    Raises ValueError where the shapes do not fit, for features of another length than 1 or 0, for a FAR that is not
    between 0 and 1, and if no identity has two probes.
    """
    check_unit(probes, "probe", identities)
    if distractors.ndim != 2 or distractors.shape[1] != probes.shape[1]:
        raise ValueError(f"distractors {distractors.shape} for probes {probes.shape}: give (n, d) by the same model")
    if not len(distractors):
        raise ValueError("there are no distractors: pass at least one")
    if len(np.unique(identities)) == len(identities):
        raise ValueError("no identity has two probes, so that none has a mate: pass identities with two or more")
    impostors = len(probes) * len(distractors)
    if any(allowed(far, impostors) >= impostors for far in fars):
        raise ValueError(f"among FARs {list(fars)} one allows all impostors: give FARs below 1")
    ranks = ranks_asked(fars, impostors)
    scanned = scan(probes, distractors, nearest=True, ranks=ranks, check=_check_distractors, block=block)
    left, right = genuine_pairs(identities)
    genuine = exactly(probes, left, probes, right)  # T is the same of a probe and its mate and of the mate as a probe
    tars = tars_of_ranked(scanned.ranked, impostors, genuine, fars)
    first = sum(int((genuine > scanned.nearest[probe] + TIE).sum()) for probe in (left, right))
    return MegaFace(2 * len(genuine), first, tuple(tars), len(distractors))


def _check_distractors(places: slice, features: Floats) -> None:
    try:
        check_unit(features, "distractor")
    except ValueError as error:
        raise ValueError(f"distractors {places.start:,} to {places.stop:,}: {error}") from None
