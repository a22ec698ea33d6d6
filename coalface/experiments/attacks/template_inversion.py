"""Template inversion: which face does an embedding show that left a party, and does a judge know the person by it?

The attacker has the network that the run leaves and images of other people, who are public; of the parties it has what
passes. It learns to paint faces from public embeddings, paints those that passed, and gives the faces to a judge, a
network of which it knows nothing (`judge`). Judged against an image that the template was made of is the *type I* of G.
Mai et al., "On the reconstruction of face images from deep face templates" (NbNet, 2019), against another image of the
person *type II*.

- *The server* has each template that a party sends; where the party was sent one as well, the change of it, which is
  about the mean feature that was trained against; and of an update of one person's images the mean feature that
  `linkage.feature_by_update` finds. Of several rounds it takes the mean, which takes noise away.
- *A client* has FedFV's equivalent class embeddings as they are; the class embeddings restored from those of all rounds
  take several clients together (`linkage`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from coalface.core.disk import writing
from coalface.core.errors import RecipeError
from coalface.core.method import Models, generator
from coalface.data.faceset import FaceSet
from coalface.data.held_back import by_party
from coalface.evaluation.verification import Verification
from coalface.experiments.attacks.base import Attack, Attacker, Exchange, NotAttackable, Outcome
from coalface.experiments.attacks.fused_embeddings import SAME, Fused, restore
from coalface.experiments.attacks.judge import open_judge, threshold_at
from coalface.experiments.attacks.linkage import Person, feature_by_update
from coalface.experiments.attacks.updates import own_templates
from coalface.experiments.prepare import PreparedRun
from coalface.experiments.recipe.sections import Synthetic
from coalface.experiments.setup import splits
from coalface.methods.fedfv import FedFV
from coalface.models.embedding import embed
from coalface.privacy.templates import noised_rows

MOST_PEOPLE = 100
"""People who are judged: a judge looks at each of them a few times."""
MOST_PUBLIC = 2500
"""Public images that the decoder learns from."""
ROUNDING = 1e-5
"""A change of a direction that is no more than this is none."""
WIDTH, RIDGE = 1.0, 1.0
"""w and r, chosen on people of LFW of another draw than that of `attacks/lfw`; 12 of its 100 are in both."""
SHEET_PEOPLE, SHEET_NOISE = 8, (0.05, 0.2, 1.0)
"""Rows of a sheet of pictures, and the noise multipliers of its last columns."""


@dataclass(frozen=True, eq=False)
class Decoder:
    """Paints faces of templates (n, d) of length one at the most; a shorter one is painted nearer to the mean face.

    It is kernel ridge regression from the embeddings of public faces to their pixels:

        x(t) = x̄ + Σ_i k(t, t_i) a_i,    k(t, t') = exp((⟨t, t'⟩ − 1) / w²),    (K + r I) A = X − x̄

    Of templates of length one k is Gaussian, exp(−‖t − t'‖² / 2 w²):
    A. Mignon & F. Jurie, "Reconstructing faces from their signatures using RBF regression", BMVC 2013. Its form is
    closed: nothing is drawn, and a core has it in seconds, where a network of transposed convolutions (NbNet) takes
    hours.
    """

    templates: Tensor
    """(m, d) t_i, of the public faces."""
    factor: Tensor
    """(m, m) the Cholesky factor of K + r I."""
    faces: NDArray[np.uint8]
    """(m, height, width, channels) X."""

    @classmethod
    def fit(cls, network: nn.Module, public: FaceSet, device: str = "cpu") -> Decoder:
        """The decoder that an attacker with this network and these images has."""
        templates = torch.from_numpy(embed(network, public, device=device)).double()
        kernel = _kernel(templates, templates) + RIDGE * torch.eye(len(templates), dtype=torch.float64)
        return cls(templates, torch.linalg.cholesky(kernel), public.take(np.arange(len(public))))

    @property
    def mean_face(self) -> NDArray[np.uint8]:
        """(height, width, channels)."""
        return np.asarray(np.rint(self.faces.mean(0)), np.uint8)

    def __call__(self, templates: Tensor) -> NDArray[np.uint8]:
        """(n, height, width, channels) the faces that templates show."""
        # by (K + r I)⁻¹ k(t) in place of A, which has a column for each pixel
        shares = torch.cholesky_solve(_kernel(self.templates, templates.double()), self.factor).T.numpy()
        mean = self.faces.mean(0).ravel()
        pixels = mean + shares @ self.faces.reshape(len(self.faces), -1) - shares.sum(1, keepdims=True) * mean
        return np.asarray(np.rint(pixels).clip(0, 255), np.uint8).reshape(-1, *self.faces.shape[1:])

    def nearest(self, templates: Tensor) -> NDArray[np.uint8]:
        """The public faces of the nearest templates: what an attacker has who rebuilds nothing."""
        return self.faces[(templates.double() @ self.templates.T).argmax(1).numpy()]


def _kernel(left: Tensor, right: Tensor) -> Tensor:
    return torch.exp((left @ right.T - 1) / WIDTH**2)


class TemplateInversion(Attack):
    """Rebuilds faces of what passes, and has them judged.

    `judge` is an ONNX file or a model's folder, `input` what an ONNX file takes, as `model.input` of a recipe. A face
    is accepted from the cosine on at which the judge takes at most `far` of the pairs of held-out people for one
    person. `sheet` is a PNG to write, of synthetic faces alone: photograph, rebuilt face, and rebuilt of one template
    with noise.

    `MOST_PEOPLE` people are judged, of those whose templates passed. Chance is the share of rebuilt faces that is
    accepted as other people than their own. Rows of `nothing` are what an attacker has without a template, the last
    row what a photograph would give: the most that the judge can show.
    """

    kind, version = "template-inversion", 2

    def __init__(
        self, run: PreparedRun, seed: int, *, judge: str = "", input: Any = None, far: float = 0.001, sheet: str = ""
    ) -> None:
        super().__init__(run, seed)
        self._judge, self._sheet = open_judge(judge, input), sheet
        if sheet and not isinstance(getattr(run.recipe.data, "faces", None), Synthetic):
            raise RecipeError("it would show people; sheets are of synthetic faces alone", where="--option sheet")
        held = next((e.pairs[0].faces for e in run.evaluators if isinstance(e, Verification) and e.pairs), None)
        if run.recipe.private is None or held is None or run.test_images is None:
            raise NotAttackable(
                "a decoder learns from public people, a threshold needs people held out, and type II other images: use "
                "data.scenario=private-public, data.hold_out and data.test"
            )
        self._public = splits.of_side(run.recipe, splits.split(run.recipe).trainable, "public")
        self._threshold = threshold_at(far, self._judge, held, generator(seed, "attack", "threshold"))
        self._others = by_party(run.test_images, run.data.data)
        self._told: dict[tuple[str, Attacker], dict[Person, list[Tensor]]] = {}
        """(what, to whom) -> person -> directions of length one, (d,), as they were told."""
        self._fused = Fused()

    def watch(self, exchange: Exchange) -> None:
        request, reply = exchange.request, exchange.reply
        party = request.party
        common, each = exchange.sent
        if isinstance(self.run.method, FedFV) and common is not None:
            self._fused.note(request.round, common.others, party)
        if reply is None:
            return
        for field, rows in own_templates(exchange).items():
            before = getattr(each, field, None)
            for number, row in enumerate(F.normalize(rows.double(), dim=1)):
                self._tell(field, party, number, row)
                if before is not None and len(before) == len(rows) and before[number].any():
                    change = row - F.normalize(before[number].double(), dim=0)
                    if change.norm() > ROUNDING:
                        self._tell(f"{field}, its change", party, number, change)
        if (feature := feature_by_update(exchange)) is not None:
            self._tell("backbone", party, 0, feature)

    def _tell(self, what: str, party: str, number: int, direction: Tensor, to: Attacker = "server") -> None:
        people = self._told.setdefault((what, to), {})
        people.setdefault((party, number), []).append(F.normalize(direction.double(), dim=0))

    def outcomes(self, models: Models) -> list[Outcome]:
        self._tell_clients(models)
        if not self._told or models.shared is None:
            raise NotAttackable("neither a template nor the update of one person's images leaves a party")
        rng = generator(self.seed, "attack", "people")
        photographed = {name: faces.counts() for name, faces in self._others.items()}
        told_of = {person for told in self._told.values() for person in told}
        everybody = sorted((party, number) for party, number in told_of if photographed[party][number])
        drawn = [everybody[place] for place in rng.permutation(len(everybody))[:MOST_PEOPLE]]
        trained, others = (
            np.concatenate([of[party].only([number]).take(np.arange(1)) for party, number in drawn])
            for of in (self.run.data.data, self._others)
        )
        public = self._public.select(np.sort(rng.permutation(len(self._public))[:MOST_PUBLIC]))
        self.run.data.backbone.load(models.shared)
        decoder = Decoder.fit(self.run.data.backbone.module, public, self.run.numerics.device)
        photographs = {"type I": self._judge.embed(trained), "type II": self._judge.embed(others)}
        outcomes = []

        def judge(what: str, to: Attacker, faces: NDArray[np.uint8], places: Sequence[int]) -> None:
            features = self._judge.embed(faces)
            for which, of in photographs.items():
                share, chance = accepted(features, of[places], self._threshold)
                figure = f"accepted as the person ({which}), %"
                outcomes.append(Outcome(what, to, figure, 100 * share, 100 * chance, len(places)))
            share = first_share(features, photographs["type II"][places])
            figure = "people found by another photograph, %"
            outcomes.append(Outcome(what, to, figure, 100 * share, 100 / len(places), len(places)))

        for number, ((what, to), told) in enumerate(self._told.items()):
            places = [place for place, person in enumerate(drawn) if person in told]
            if not places:
                continue
            # not at length one: the less several releases agree, the nearer to the mean face it is painted
            directions = torch.stack([torch.stack(told[drawn[place]]).mean(0) for place in places])
            judge(what, to, decoder(directions), places)
            if number == 0:
                judge(f"{what}: nearest public face", to, decoder.nearest(directions), places)
                if self._sheet and self.run.recipe.privacy.templates is None:
                    write_sheet(Path(self._sheet), trained[places], directions, decoder)
        everybody_drawn = range(len(drawn))
        strangers = public.take(rng.permutation(len(public))[: len(drawn)])
        judge("nothing: mean face", "outsider", np.repeat(decoder.mean_face[None], len(drawn), 0), everybody_drawn)
        judge("nothing: public face", "outsider", strangers, everybody_drawn)
        judge("all: the photograph itself", "outsider", trained, everybody_drawn)
        return outcomes

    def _tell_clients(self, models: Models) -> None:
        """What a client has of FedFV's equivalent class embeddings; whose they are is known for counting alone.

        Counted are clients that some round asked.
        """
        method, parties = self.run.method, self.run.data.by_role().get("trainer", [])
        if not isinstance(method, FedFV) or not self._fused.rows or models.class_embeddings is None:
            return
        rounds, asked = sorted(self._fused.rows), self._fused.ever_asked
        others, fused = self._fused.drawn(rounds[-1], parties, method.fused, self.seed)
        for row, first in zip(self._fused.rows[rounds[-1]], others[fused[:, 0]], strict=True):
            name = parties[first]
            if name in asked and (name, 0) not in self._told.get(("others", "client"), {}):
                self._tell("others", name, 0, row, "client")
        seen = self._fused.of_rounds(rounds)
        directions = restore(seen, len(parties), method.fused, generator(self.seed, "attack", "restore"))
        for name in sorted(asked):
            cosines = directions @ F.normalize(models.class_embeddings[name][0].double(), dim=0)
            restored = directions[cosines.argmax()] * (cosines.max() >= SAME)  # else zero: the mean face, nearly
            self._tell("others, restored from all rounds", name, 0, restored, "client")


def accepted(rebuilt: NDArray[np.float32], photographs: NDArray[np.float32], threshold: float) -> tuple[float, float]:
    """(the share of rows whose cosine to their own row of the other is at least `threshold`, that to others' rows)."""
    accepts = rebuilt.astype(np.float64) @ photographs.T.astype(np.float64) >= threshold
    own = np.eye(len(accepts), dtype=bool)
    return float(accepts[own].mean()), float(accepts[~own].mean()) if len(own) > 1 else 0.0


def first_share(rebuilt: NDArray[np.float32], photographs: NDArray[np.float32]) -> float:
    """The share of rows whose nearest row of the other is their own; of rows equally near the first is taken."""
    return float(((rebuilt @ photographs.T).argmax(1) == np.arange(len(rebuilt))).mean())


def write_sheet(path: Path, photographs: NDArray[np.uint8], templates: Tensor, decoder: Decoder) -> None:
    """Write a PNG, a row for each of some people: photograph, rebuilt face, and rebuilt from templates with noise."""
    people = min(SHEET_PEOPLE, len(photographs))
    columns, rng = [photographs[:people], decoder(templates[:people])], generator(0, "attack", "sheet")
    for noise in SHEET_NOISE:
        drawn = torch.from_numpy(rng.standard_normal(templates[:people].shape))
        columns.append(decoder(noised_rows(templates[:people], noise, drawn)))
    picture = np.concatenate([np.concatenate(list(column)) for column in columns], axis=1)
    picture = picture[..., ::-1] if picture.shape[2] == 3 else picture
    _, encoded = cv2.imencode(".png", picture, [cv2.IMWRITE_PNG_COMPRESSION, 9])
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path):
        path.write_bytes(encoded.tobytes())
