"""Update inversion: whose images, and which, made the change of a backbone?

The attacker has the recipe, the backbone before and after (the server of one party, who is sent the next of a round's
mean), photographs of all people who may be in it, and faces of other people (`data.hold_out`), to know what faces are
like. The network's own first model, or another by `judge`, says whom a rebuilt image shows.

- *Embeddings* by the last linear layer and by rows of class embeddings that are sent (`updates`): the people whose
  photographs are nearest to any of them are named, as many as there are.
- *Images* by gradient matching (`gradient_matching`); of an update of several local steps these are played, if all
  its images are rebuilt. In a first round whoever knows the recipe's seed knows the loss of one step too: class
  embeddings that parties keep begin as the seed draws them, and the order of batches follows from it.
"""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from coalface.core.method import Models, Tensors, generator
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.attacks.base import Attacker, NotAttackable, Outcome
from coalface.experiments.attacks.gradient_matching import (
    COMPONENTS,
    Eigenfaces,
    LocalSteps,
    assign,
    psnr,
    rebuild,
    ssim,
)
from coalface.experiments.attacks.judge import opening
from coalface.experiments.attacks.updates import (
    Change,
    UpdateAttack,
    batch_statistics_told,
    embeddings_told,
    embeddings_told_by_rows,
    last_layer,
    people_of,
    person_means,
    to_images,
    unit_embeddings,
)
from coalface.experiments.prepare import PreparedRun
from coalface.experiments.recipe.schema import Recipe
from coalface.methods.fedavg import FedAvg
from coalface.methods.fedrep import FedRep
from coalface.training.sgd import MOMENTUM, SGD

MOST_REBUILT = 8
"""Images that are rebuilt of a change; where more made it, as if they were so many."""


class UpdateInversion(UpdateAttack):
    """People and images in single parties' updates, and in the mean of a round."""

    kind, version = "update-inversion", 5

    @classmethod
    def version_of(cls, recipe: Recipe) -> int:
        """Since 6 several local steps are played."""
        return cls.version + (recipe.local.steps_per_round != 1)

    def __init__(
        self,
        run: PreparedRun,
        seed: int,
        *,
        parties: PositiveInt = 2,
        iterations: NonNegativeInt = 300,
        judge: str = "",
        input: Any = None,
    ) -> None:
        """`iterations` of either half of gradient matching, 0: no images are rebuilt; `judge` a run, a model's folder
        or an ONNX file that says whom an image shows, `input` what an ONNX file expects, as `model.input` of a recipe.
        """
        super().__init__(run, seed, parties=parties)
        photographs = run.test_images or people_of(run)
        self._names = tuple(name for name in photographs.names if name in self.owner)
        photographs = photographs.only([photographs.names.index(name) for name in self._names])
        self._photographs, self._shown = to_images(photographs), photographs.labels
        if run.held_out is None or len(run.held_out) < 2:
            raise NotAttackable("nobody is held out (data.hold_out), of whom the attacker knows what faces are like")
        self._others = to_images(run.held_out)
        self._iterations, self._faces = iterations, Eigenfaces.of(self._others, COMPONENTS)
        with opening():
            self._judge = Resized(FaceModel(judge, input=input)) if judge else copy.deepcopy(self.network.module)
        self._judged = self._templates(self._judge)
        self._values: dict[tuple[str, Attacker, str], list[tuple[float, float]]] = defaultdict(list)

    def study(self, change: Change) -> None:
        people = [place for place, name in enumerate(self._names) if name in change.names]
        if not people:
            return
        self.network.load(change.before)
        templates, gradient = self._templates(self.network.module), change.gradient(list(self.network.parameters))
        rows, told = change.row_gradient(), {}
        layer = last_layer(gradient, change.before, self.network.module)
        if layer is not None:
            told["last layer"] = embeddings_told(layer)
        if rows is not None and change.rows is not None:
            told["head rows"] = embeddings_told_by_rows(rows, change.rows[0])
        chance = 100 * len(people) / len(templates)
        for source, embeddings in told.items():
            named = share_named(embeddings, templates, people)
            self._note(change, f"people named by the {source}, %", 100 * named, chance)
        if self._iterations:
            self._rebuild(change, gradient, people, chance)

    def outcomes(self, models: Models) -> list[Outcome]:
        self.conclude(models)
        if not self._values:
            raise NotAttackable("no backbone of which an attacker has the one before leaves a party with own people")
        outcomes = []
        for about, pairs in self._values.items():
            value, chance = np.mean(pairs, axis=0).tolist()
            outcomes.append(Outcome(*about, value, chance, len(pairs)))
        return outcomes

    def _note(self, change: Change, figure: str, value: float, chance: float) -> None:
        self._values[change.target, change.attacker, figure].append((value, chance))

    def _templates(self, module: nn.Module) -> Tensor:
        """(people, d) of the photographs."""
        return person_means(unit_embeddings(module, self._photographs), self._shown, len(self._names))

    def _rebuild(self, change: Change, gradient: Tensors, people: list[int], chance: float) -> None:
        """Rebuild images, and count beside them what the mean face and faces of other people would have had."""
        rng = generator(self.seed, "attack", change.target, *change.parties, "rebuild")
        count = min(change.images, MOST_REBUILT)
        statistics = batch_statistics_told(change.before, change.after, change.steps)
        module = copy.deepcopy(self.network.module).train()  # running statistics move, and may be in no message
        steps = self._local_steps(change)
        is_exact = steps is not None or (change.steps == 1 and change.images == count)
        rebuild_by = functools.partial(
            rebuild, module, gradient, count, self._faces, rng, self._iterations, statistics, is_exact=is_exact
        )
        rebuilt = rebuild_by(steps=steps)
        others = self._others[torch.from_numpy(rng.choice(len(self._others), size=count))]
        mean_faces = self._faces.mean.expand_as(rebuilt)
        guesses = {"rebuilt": rebuilt, "mean face": mean_faces, "another's face": others}
        loss_of = self._first_loss(change) if change.steps == 1 else None
        if loss_of is not None and len(change.names) == count:
            guesses["rebuilt, class embeddings known by the seed"] = rebuild_by(loss_of)
        expected = nearness(mean_faces, change.trained_on)
        for name, images in guesses.items():
            self._judge_whom(change, name, images, people, chance)
            near = nearness(images, change.trained_on)
            for figure, value, of_mean in zip(("PSNR, dB", "SSIM, %"), near, expected, strict=True):
                self._note(change, f"{name}: {figure}", value, of_mean)
        self._judge_whom(change, "the photograph itself", change.photographs, people, chance)  # the most there can be

    def _local_steps(self, change: Change) -> LocalSteps | None:
        """The steps to play, where there are several and each image that made them is in one; else None."""
        local, method, (party, *others) = self.run.recipe.local, self.run.method, change.parties
        batch = local.party_batch_size.get(party, local.batch_size)
        if others or change.steps < 2 or batch * change.steps != change.images or change.images > MOST_REBUILT:
            return None
        beta = MOMENTUM[method.momentum].factor(local.momentum) if isinstance(method, FedAvg) else 0.0
        return LocalSteps(change.steps, SGD(change.lr, beta, change.weight_decay), change.drift)

    def _first_loss(self, change: Change) -> Callable[[Tensor], Tensor] | None:
        """The loss of a first round's images by their embeddings, in the order of `names`; None for other rounds.

        None too where class embeddings are sent, or trained first (FedRep), or there is one person. A party's images
        lie person by person, and how many each has is taken for known: the order of batches then says who is on which.
        """
        people = {party: self.run.data.data[party].names for party in change.parties}
        sent = change.rows is not None or change.class_embeddings is not None
        is_unknown = sent or isinstance(self.run.method, FedRep)
        if not change.begins or is_unknown or all(len(names) < 2 for names in people.values()):
            return None
        loss, size, parts = self.run.recipe.loss, self.run.data.backbone.embedding_size, []
        for party, names in people.items():
            rng = generator(self.seed, "party", party, change.begins, "head")  # as `fresh_head` draws it
            head = torch.from_numpy(rng.standard_normal((loss.rows(len(names)), size), dtype=np.float32)) * 0.01
            places = [place for place, name in enumerate(change.names) if self.owner[name] == party]
            labels = torch.tensor([names.index(change.names[place]) for place in places])
            beside = loss.extra(len(names)) | loss.state(len(names)) | loss.draw(len(places), rng)
            parts.append((places, head, labels, beside))

        def loss_of(embeddings: Tensor) -> Tensor:
            losses = [
                len(places) * loss(embeddings[places], head, labels, **beside) for places, head, labels, beside in parts
            ]
            return torch.stack(losses).sum() / len(embeddings)

        return loss_of

    def _judge_whom(self, change: Change, name: str, images: Tensor, people: list[int], chance: float) -> None:
        cosines = unit_embeddings(self._judge, images) @ self._judged.T
        share = torch.isin(cosines.argmax(1), torch.tensor(people)).double().mean()
        self._note(change, f"{name}: shows somebody in the update, %", 100 * float(share), chance)


class Resized(nn.Module):
    """A model that takes images of any side, and grey ones where it wants colour or the reverse."""

    def __init__(self, model: FaceModel) -> None:
        super().__init__()
        self.model, self._size, self._channels = model, model.size, 1 if model.grey else 3

    def forward(self, images: Tensor) -> Tensor:
        images = images.mean(1, keepdim=True) if self._channels == 1 else images.expand(-1, self._channels, -1, -1)
        resized = F.interpolate(images, (self._size, self._size), mode="bilinear", align_corners=False, antialias=True)
        embeddings: Tensor = self.model(resized)
        return embeddings


def share_named(told: Tensor, templates: Tensor, people: list[int]) -> float:
    """The share of the people who are among as many that any of the embeddings (r, d) is nearest to."""
    if not len(told):
        return 0.0
    nearest = (F.normalize(told, dim=1) @ templates.T).max(0).values
    return float(torch.isin(nearest.topk(len(people)).indices, torch.tensor(people)).double().mean())


def nearness(images: Tensor, true: Tensor) -> tuple[float, float]:
    """(PSNR in dB, SSIM in %), each image beside the true one that it is given, the nearest pair by PSNR first."""
    scores = torch.stack([psnr(image.expand_as(true), true) for image in images])
    partners = true[list(assign(scores))]
    return float(psnr(images, partners).mean()), 100 * float(ssim(images, partners).mean())
