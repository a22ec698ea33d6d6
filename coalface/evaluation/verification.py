"""Verification: models are scored on lists of pairs, from outside the method."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalface.core.disk import write_json, writing
from coalface.core.errors import DataError
from coalface.core.local_results import OWN_MODEL
from coalface.core.method import Backbone, Models, Tensors
from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList, list_sha256
from coalface.engine.server import Server
from coalface.evaluation import embedding
from coalface.evaluation.base import Evaluator
from coalface.evaluation.hardest import FILE, LISTS, hardest_pairs
from coalface.evaluation.metrics import pair_figures
from coalface.evaluation.metrics.bootstrap import PairIdentities, bootstrap_of
from coalface.evaluation.metrics.curve_intervals import curve_intervals
from coalface.evaluation.metrics.evidence import accuracy_evidence, hits_evidence, tar_evidence
from coalface.evaluation.metrics.identification import identify
from coalface.evaluation.metrics.pair_figures import PairFigure
from coalface.evaluation.metrics.verification import (
    EER,
    TAR,
    auc,
    evaluate_pairs,
    histogram,
    roc,
    score_pairs,
    tar_at_far,
)
from coalface.evaluation.npz import read_npz, whole_numbers
from coalface.models.calibration import FARS as CALIBRATED
from coalface.models.calibration import Threshold
from coalface.models.embedding import embed, images_needed

FARS = (0.01, 0.001)
"""The false accept rates at which runs are evaluated unless a recipe names others."""

Figures = dict[str, dict[str, float]]
"""List name -> figure name -> percent."""


@dataclass(frozen=True)
class VerificationPairs:
    """One thing to evaluate on."""

    name: str
    faces: FaceSet
    pairs: PairList
    evaluated_folds: tuple[int, ...] | None = None
    """The folds whose pairs are evaluated; None: all."""
    queries: NDArray[np.int64] | None = None
    """(q,) images of `faces` that are looked up in `gallery`; None: none are."""
    gallery: NDArray[np.int64] | None = None
    pictured: bool = False
    """Whether a run keeps pictures of its hardest pairs."""

    @functools.cached_property
    def identities(self) -> PairIdentities:
        """Who is in each pair, as the paired comparison wants it."""
        labels, pairs = self.faces.labels, self.pairs
        identities = labels[pairs.left], labels[pairs.right]
        sha256 = list_sha256(pairs, self.faces)
        if self.queries is None or self.gallery is None:
            return PairIdentities(*identities, sha256, pairs.headline, pairs.fold)
        looked_up = np.concatenate([self.queries, [-1], self.gallery]).astype("<i8")
        sha256 = hashlib.sha256(sha256.encode() + looked_up.tobytes()).hexdigest()
        return PairIdentities(*identities, sha256, pairs.headline, pairs.fold, labels[self.queries])


@dataclass
class Verification(Evaluator):
    """Scores a shared model, or the parties' own ones, on lists of pairs."""

    pairs: Sequence[VerificationPairs]
    backbone: Backbone
    flip: bool = False
    device: str = "cpu"
    most: int = 16
    """Own models that are evaluated, the first by party name."""
    last_scores: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)
    """Of the last evaluation: each list's scores, model by model."""
    last_hits: dict[str, list[NDArray[np.bool_]]] = field(default_factory=dict)
    """Of the last evaluation: which queries of each list were right at rank 1, model by model; none without queries."""
    last_parties: dict[str, Figures] = field(default_factory=dict)
    """Of the last evaluation: the figures of each party's own model."""
    fars: tuple[float, ...] = ()
    """False accept rates of the TARs; none: those of the field."""
    pair_figures: Sequence[PairFigure] = ()
    """Figures of plug-ins."""

    def evaluate_start(self, model: Tensors) -> dict[str, Any]:
        """The figures of the model that the run starts from, under `untrained`."""
        return {"untrained": self.models([model])}

    def evaluate_round(self, server: Server, models: Models) -> Figures:
        """The figures of what a run has reached; the mean over parties where each has a model of its own."""
        if models.shared is not None:
            self.last_parties = {}
            return self.models([models.shared])
        local_models = list(itertools.islice(server.local_results(OWN_MODEL, models), self.most))
        self.last_parties = {party: self.models([tensors]) for party, tensors in local_models}
        return self.models([tensors for _, tensors in local_models])

    def evaluate(self, server: Server, models: Models) -> dict[str, Any]:
        """The `figures` and `curves` of what the run leaves, and those of each party's own model, under `judged`.

        Writes `judged/` and `evidence.json` into the run's folder, by which runs are compared later. `thresholds` are
        those of the shared model, under '', or of each party's own.
        """
        figures = self.evaluate_round(server, models)
        keep_lists(server.folder / "judged", self.pairs)
        write_json(server.folder / "evidence.json", self.evidence())
        if pictures := self.hardest():
            write_json(server.folder / FILE, pictures)
        else:
            (server.folder / FILE).unlink(missing_ok=True)
        own = {"own_figures": pair_figures.declarations(self.pair_figures)} if self.pair_figures else {}
        evaluated = {"figures": figures, "curves": self.curves(), "judged": self.last_parties, **own}
        return evaluated | {"thresholds": self.thresholds()}

    def models(self, models: Sequence[Tensors]) -> Figures:
        """The mean figures of some models, each with all tensors of the backbone; none where all are elsewhere."""
        means: Figures = {}
        self.last_scores, self.last_hits = {}, {}
        for chosen in self.pairs if models else ():
            figures = [self._figures(tensors, chosen) for tensors in models]
            means[chosen.name] = {name: float(np.mean([of[name] for of in figures])) for name in figures[0]}
        return means

    def _figures(self, tensors: Tensors, chosen: VerificationPairs) -> dict[str, float]:
        """Those of one model on one list; keeps its scores, and which queries were right."""
        embedding.load(self.backbone, tensors)
        pairs, none = chosen.pairs, np.empty(0, dtype=np.int64)
        queries = none if chosen.queries is None else chosen.queries
        gallery = none if chosen.gallery is None else chosen.gallery
        needed, first, second = images_needed(
            np.concatenate([pairs.left, queries]), np.concatenate([pairs.right, gallery])
        )
        features = embed(self.backbone.module, chosen.faces, needed, flip=self.flip, device=self.device)
        (left, probes), (right, enrolled) = (np.split(side, [len(pairs)]) for side in (first, second))
        scores = score_pairs(features, left, right)
        fars, folds = self.fars or FARS, chosen.evaluated_folds
        figures = evaluate_pairs(scores, pairs.same, pairs.fold, pairs.headline, fars, folds).figures()
        if self.pair_figures:
            figures |= pair_figures.values(self.pair_figures, scores, chosen.identities, folds)
        self.last_scores.setdefault(chosen.name, []).append(scores)
        if len(probes):
            people = chosen.faces.labels[needed]
            ranks = identify(features[probes], features[enrolled], people[probes], people[enrolled])
            figures |= ranks.figures()
            self.last_hits.setdefault(chosen.name, []).append(ranks.right())
        return figures

    def evidence(self) -> dict[str, list[dict[str, Any]]]:
        """What a paired comparison needs of the last evaluation: list name -> model by model."""
        evidence, fars = {}, self.fars or FARS
        for chosen in self._evaluated_last():
            identities, folds, all_scores = chosen.identities, chosen.evaluated_folds, self.last_scores[chosen.name]
            if identities.headline is not None:
                models = [tar_evidence(scores, identities, fars) for scores in all_scores]
            else:
                models = [accuracy_evidence(scores, identities, fars, folds) for scores in all_scores]
            for model, right in zip(models, self.last_hits.get(chosen.name, ()), strict=False):
                model |= hits_evidence(right)
            for model, scores in zip(models, all_scores if self.pair_figures else (), strict=False):
                model |= pair_figures.evidence(self.pair_figures, scores, identities, folds)
            evidence[chosen.name] = models
        return evidence

    def thresholds(self) -> dict[str, list[Threshold]]:
        """Of each model of the last evaluation: its thresholds at the false accept rates that the pairs carry.

        With `flip` there are none: whoever uses a model embeds an image alone.
        """
        thresholds: dict[str, list[Threshold]] = {}
        for chosen in [] if self.flip else self._evaluated_last():
            same = chosen.pairs.same
            for party, scores in zip(self.last_parties or [""], self.last_scores[chosen.name], strict=True):
                thresholds.setdefault(party, []).extend(
                    Threshold(tar.threshold, tar.far, on=chosen.name, count=len(same), impostors=tar.impostors)
                    for tar in tar_at_far(scores, same, CALIBRATED)
                    if tar.carried
                )
        return thresholds

    def hardest(self) -> dict[str, Any]:
        """The hardest pairs of the lists that may be pictured, by the mean score of the models last evaluated."""
        hardest = {}
        for chosen in [chosen for chosen in self._evaluated_last() if chosen.pictured][:LISTS]:
            pairs, places = chosen.pairs, chosen.identities.counted(chosen.evaluated_folds)
            scores = np.mean(self.last_scores[chosen.name], axis=0)[places]
            images = pairs.left[places], pairs.right[places]
            hardest[chosen.name] = hardest_pairs(scores, pairs.same[places], *images, chosen.faces)
        return hardest

    def _evaluated_last(self) -> list[VerificationPairs]:
        """The lists of the last evaluation: none where each party keeps its model to itself."""
        return [chosen for chosen in self.pairs if chosen.name in self.last_scores]

    def curves(self) -> dict[str, dict[str, Any]]:
        """ROC, similarity histograms and thresholds of the last evaluation, all models' pairs taken together.

        The thresholds are those at the false accept rates that the pairs carry, with the rate that each attains. The
        intervals, and the ends of the band about the ROC, hold 95 % of the draws of the list's identities.
        """
        return {chosen.name: self._curves(chosen) for chosen in self._evaluated_last()}

    def _curves(self, chosen: VerificationPairs) -> dict[str, Any]:
        models, pairs = self.last_scores[chosen.name], chosen.pairs
        counted = chosen.identities.counted(chosen.evaluated_folds)
        places = np.tile(counted, len(models))
        scores, same = np.concatenate([of_pairs[counted] for of_pairs in models]), pairs.same[places]
        curve: dict[str, list[float]] = roc(scores, same)
        fars = sorted({*(self.fars or FARS), *CALIBRATED}, reverse=True)
        tars = [at for at in tar_at_far(scores, same, fars) if at.carried]
        curves: dict[str, Any] = {
            "auc": 100 * auc(scores, same),
            "thresholds": [
                {"far": at.far, "attained": at.false_accepts / at.impostors, "tar": at.tar, "threshold": at.threshold}
                for at in tars
            ],
            "roc": curve,
            "histogram": histogram(scores, same),
        }
        points = len(curve["far"])
        drawn_fars = [*curve["far"], *(at.far for at in tars)]
        if (drawn := curve_intervals(scores, places, bootstrap_of(chosen.identities), drawn_fars)) is not None:
            low, high = drawn.tar.tolist()
            curves["roc"] |= {"low": low[:points], "high": high[:points]}
            curves["intervals"] = {"auc": _percent(*drawn.auc), EER.name: _percent(*drawn.eer)}
            curves["intervals"] |= {
                TAR.at(at.far): _percent(*ends) for at, *ends in zip(tars, low[points:], high[points:], strict=True)
            }
        return curves


def _percent(low: float, high: float) -> list[float]:
    return [100 * low, 100 * high]


def keep_lists(folder: Path, lists: Sequence[VerificationPairs]) -> None:
    """Write who is in each pair of each list, so that runs can be compared later without the images."""
    folder.mkdir(parents=True, exist_ok=True)
    for chosen in lists:
        identities = chosen.identities
        columns = {name: getattr(identities, name) for name in ("left", "right", "headline", "fold", "queries")}
        arrays = {n: c if c.dtype == bool else c.astype(np.int32) for n, c in columns.items() if c is not None}
        with writing(path := folder / f"{chosen.name}.npz"):
            np.savez_compressed(path, sha256=np.array(identities.sha256), **arrays)


def read_lists(folder: Path) -> Iterator[tuple[str, PairIdentities]]:
    """What `keep_lists` wrote, by list name. Raises DataError for what is damaged."""
    for path in sorted(folder.glob("*.npz")):
        try:
            arrays = read_npz(path)
            optional = {n: arrays[n] for n in ("headline", "fold", "queries") if n in arrays}
            optional |= {n: whole_numbers(optional[n], np.int64) for n in ("fold", "queries") if n in optional}
            if "headline" in optional and (optional["headline"].ndim, optional["headline"].dtype.kind) != (1, "b"):
                raise ValueError("`headline` is no row of yes and no")
            left, right = (whole_numbers(arrays[name], np.int64) for name in ("left", "right"))
            identities = PairIdentities(left, right, str(arrays["sha256"]), **optional)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(f"it is damaged ({error}): evaluate the run again", where=path) from None
        yield path.stem, identities
