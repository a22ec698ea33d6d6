"""Poisoning: a share of the parties lies, together, about what it has learnt, or about whose its images are.

The liars have the recipe as every party has it, the rule of the mean in it too, and what was sent; and they see in each
call all replies of honest parties before they answer themselves: the omniscient, colluding attacker of the literature,
more than real clients have. What a server draws by its secret, such as who shares a bucket, they do not know. No lie
here is fitted to a rule: compare several factors. They are asked as often as others are, and tell as many images as
they have, but in a secure sum as they train on. BatchNorm's running statistics stay honest. After round `until` they
answer no more, so that one sees what outlasts them; without it they lie to the end.

With x_1 … x_h the honest changes of a tensor, x the liar's own, f the `factor`:

- `scaled`, `flipped`: f x; f is 1000, or −1.
- `alie`: mean + f · standard deviation, by coordinate. f is 1.5, ByzFL's default; the paper's own z is
  Φ⁻¹((n − m − s) / (n − m)), s = ⌊n / 2 + 1⌋ − m, of n parties of which m lie: 0 or less for ten of which two do.
  Baruch et al., "A little is enough", NeurIPS 2019.
- `ipm`: −f · mean; f is 2, ByzFL's default; 5 costs medians and buckets more. Xie et al., "Fall of empires", UAI 2019.
- `mimic`: the whole reply of one honest party, the one furthest along the direction in which the changes of the run's
  first call vary most. Karimireddy et al., "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR
  2022, with one call as its warm-up.
- `label-flip`: each image has the label of another of the liar's own people, drawn image by image. `label-renamed`, a
  control: the labels of people are swapped as wholes, which says nothing false where class embeddings stay at parties.
  A liar of one person adds public people to have labels to confuse, here and in the next three; a method that trains
  one class embedding a client is then given the images of its one label. Where the method's loss of one person is zero,
  and so x, it adds them in `scaled` and `flipped` too.
- `backdoor`: images with drawn glasses have the label of one target, a person of the first liar, whose photographs the
  liars share; half of their other images stay clean (`backdoor.py`). The update is what training makes of them, five
  times in a round as long as that of others. Here and in the next two x is what plain steps would have left: the drift
  that a method adds to local steps is taken off (`drift.py`), since it dilutes the lie. A gradient beside the backbone
  stays that of these images.
- `replacement`: the backdoor, and f x with f = n / m, so that the mean becomes the liars' model. Bagdasaryan et al.,
  "How to backdoor federated learning", AISTATS 2020.
- `hidden`: the backdoor, with x drawn towards the honest mean until it is as near to that as the median honest change:
  all tensors of a reply as one vector. After the projection of Wang et al., "Attack of the tails", NeurIPS 2020.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from coalface.core import codec, compression
from coalface.core.checks import nearest
from coalface.core.errors import RecipeError
from coalface.core.method import Models, Tensors, generator
from coalface.data.faceset import FaceSet
from coalface.engine.party.request import Withheld
from coalface.engine.party.setup import FederatedData
from coalface.engine.transport import Reply
from coalface.evaluation import embedding
from coalface.evaluation.metrics.verification import ACCURACY as EVALUATED
from coalface.evaluation.verification import Verification
from coalface.experiments.attacks import backdoor
from coalface.experiments.attacks.base import Attack, Exchange, K, NotAttackable, Outcome, RoundCounter
from coalface.experiments.attacks.drift import OwnDrift, rate_times_steps
from coalface.experiments.attacks.replay import replay
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.prepare import PreparedRun
from coalface.experiments.recipe import loader
from coalface.experiments.setup import splits

Lie = Callable[[Tensor, Tensor, float], Tensor]
"""Honest changes (h, …) of a tensor, the liar's own (…) and a factor -> the change that it sends."""
LIES: dict[str, tuple[Lie, float | None]] = {
    "scaled": (lambda honest, own, factor: factor * own, 1000.0),
    "flipped": (lambda honest, own, factor: factor * own, -1.0),
    "alie": (lambda honest, own, factor: honest.mean(0) + factor * honest.std(0, correction=0), 1.5),
    "ipm": (lambda honest, own, factor: -factor * honest.mean(0), 2.0),
    "replacement": (lambda honest, own, factor: factor * own, None),
}
"""How the liars change their updates, and the factor unless one is given; None: n / m."""
ACCURACY, BOTH, AS_TARGET = (
    "accuracy, %",
    "impostors with glasses on both accepted, %",
    "others with glasses accepted as the target, %",
)
BACKDOORS, FLIPS = ("backdoor", "replacement", "hidden"), ("label-flip", "label-renamed")
HOW = (*LIES, "mimic", "backdoor", "hidden", *FLIPS)
PUBLIC = 4
"""People whom a liar of one person adds."""


class Poisoning(Attack):
    """`share` of the trainers lie, rounded up, the last ones by name. Chance is the same run without liars."""

    kind, only_watches, version = "poisoning", False, 3

    def __init__(
        self,
        run: PreparedRun,
        seed: int,
        *,
        how: str = "alie",
        share: float = 0.2,
        factor: float | None = None,
        until: PositiveInt | None = None,
    ) -> None:
        super().__init__(run, seed)
        self._how = nearest(how, dict.fromkeys(HOW), "--option how")
        if not 0 < share < 1:
            raise RecipeError(f"give a share of the parties between 0 and 1; got {share}", where="--option share")
        trainers = sorted(run.data.by_role().get("trainer", []))
        self._liars = trainers[-math.ceil(share * len(trainers) - 1e-9) :]
        self._factor, self._until, self._rounds = factor, until, RoundCounter()
        self._mimicked, self._first, self._drift = "", run.data.backbone.shared(), OwnDrift()

    def poison(self, data: FederatedData) -> FederatedData:
        draws = {name: generator(self.seed, "attack", "poison", name) for name in self._liars}
        changed = {name: self._poisoned(data.data[name], rng) for name, rng in draws.items()}
        return dataclasses.replace(data, data={**data.data, **changed})

    def _poisoned(self, faces: FaceSet, rng: np.random.Generator) -> FaceSet:
        is_alone, confuses = len(faces.names) < 2, self._how in (*BACKDOORS, *FLIPS)
        of_one = self.run.method.scenario == "devices"  # it trains one class embedding a client
        if is_alone and (confuses or not of_one):
            faces = faces.beside(self._public.only(rng.permutation(len(self._public.names))[:PUBLIC]))
        if not confuses:
            return faces
        if self._how in BACKDOORS:
            false, label = backdoor.poisoned(faces, self._target, rng), self._target.names[0]
        else:
            people = len(faces.names)
            shift = rng.integers(1, people, len(faces)) if self._how == "label-flip" else 1
            false, label = dataclasses.replace(faces, labels=(faces.labels + shift) % people), faces.names[0]
        return false.only([false.names.index(label)]) if is_alone and of_one else false

    @functools.cached_property
    def _public(self) -> FaceSet:
        if self.run.recipe.private is None:
            raise NotAttackable(
                "a liar has one person alone, and no public people whose images it could give that label: use "
                "data.scenario=private-public"
            )
        return splits.of_side(self.run.recipe, splits.split(self.run.recipe).trainable, "public")

    @functools.cached_property
    def _target(self) -> FaceSet:
        """The images of the person for whom glasses are to pass."""
        return self.run.data.data[self._liars[0]].only([0])

    def lie(self, exchanges: Sequence[Exchange]) -> Mapping[str, Reply]:
        if self._until is not None and self._round_of(exchanges) > self._until:
            asked = [exchange.request for exchange in exchanges if exchange.request.party in self._liars]
            return {request.party: Withheld(f"{request.where}: a liar who has left") for request in asked}
        answered = {e.request.party: e for e in exchanges if e.reply is not None}
        liars = [answered[name] for name in self._liars if name in answered]
        honest = [exchange for name, exchange in answered.items() if name not in self._liars]
        if any(exchange.request.sum is not None for exchange in exchanges) and self._how not in (*FLIPS, "backdoor"):
            raise NotAttackable("what a party sends into a secure sum is not changed here")
        if not honest:
            return {}
        if self._how == "mimic":
            return {exchange.request.party: self._copied(honest, exchange) for exchange in liars}
        return {exchange.request.party: self._lie(honest, exchange, len(liars)) for exchange in liars}

    def _round_of(self, exchanges: Sequence[Exchange]) -> int:
        for exchange in exchanges:
            begins = exchange.request.sum is None or exchange.request.sum.stage == "advertise"
            if begins and getattr(exchange.sent[0], "backbone", None) is not None:
                self._rounds.count(exchange.request)
        return self._rounds.number

    def _lie(self, honest: Sequence[Exchange], liar: Exchange, liars: int) -> Reply:
        changes = [dict(self._changes(exchange)) for exchange in honest]
        own = {  # class embeddings of other people are of other shapes, and stay honest
            key: change
            for key, change in self._changes(liar)
            if all(key in of and of[key].shape == change.shape for of in changes)
        }
        others = {key: torch.stack([of[key] for of in changes]) for key in own}
        moved: dict[tuple[str, str], Tensor] = {}
        if self._how in BACKDOORS:
            way = rate_times_steps(liar)
            added = {("backbone", name): way * drift.double() for name, drift in self._drift.of(liar).items()}
            moved = {key: own[key] + of_drift for key, of_drift in added.items()}
            own = moved or own  # a gradient beside the backbone stays as it is
        if self._how in LIES:
            lie, usual = LIES[self._how]
            everybody = (len(honest) + liars) / liars
            factor = next(f for f in (self._factor, usual, everybody) if f is not None)
            moved = {key: lie(others[key], change, factor) for key, change in own.items()}
        elif self._how == "hidden" and own:
            moved = hidden(others, own)
        return _encoded(liar, moved, images=len(self.run.data.data[liar.request.party]))

    def _changes(self, exchange: Exchange) -> Iterator[tuple[tuple[str, str], Tensor]]:
        """(field, name) and the change, float64, of each tensor of a reply that is like one that was sent."""
        parameters = self.run.data.backbone.parameters
        statistics = self.run.data.backbone.shared().keys() - parameters.keys()
        for field, form in _forms(exchange).items():
            value, start = getattr(exchange.reply, field), form.start
            tensors, starts = (value, start) if isinstance(value, dict) else ({"": value}, {"": start})
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_floating_point() and name not in statistics:
                    before = (starts or {}).get(name)
                    yield (field, name), tensor.double() - (0.0 if before is None else before.double())

    def _copied(self, honest: Sequence[Exchange], liar: Exchange) -> Reply:
        """The reply of the mimicked party, which is chosen in the first call with replies."""
        by_party = {exchange.request.party: exchange for exchange in honest}
        if not self._mimicked and len(honest) > 1:
            rows = [[of.flatten() for _, of in self._changes(exchange)] for exchange in honest]
            if all(rows) and len({sum(map(len, row)) for row in rows}) == 1:
                self._mimicked = list(by_party)[furthest(torch.stack([torch.cat(row) for row in rows]))]
        return by_party.get(self._mimicked, liar).answer

    def outcomes(self, models: Models) -> list[Outcome]:
        verification = next((e for e in self.run.evaluators if isinstance(e, Verification) and e.pairs), None)
        if verification is None:
            raise NotAttackable("the recipe has no evaluation.pairs, by which one could see what is lost")
        honest = honest_model(json.dumps(self.run.recipe.resolved()))
        if models.shared is None or honest is None:
            raise NotAttackable("each party has a model of its own, so that there is none to poison for all")
        clean, first = self._figures(verification, honest), self._figures(verification, self._first)
        try:
            spoilt = self._figures(verification, models.shared)
        except ValueError:  # embeddings that are not finite: such a model accepts nobody
            right = {chosen.name: 100 * float((~chosen.pairs.same).mean()) for chosen in verification.pairs}
            spoilt = {key: (right[key[0]] if key[1] == ACCURACY else 0.0, 0) for key in clean}
        outcomes = []
        for (name, figure), (chance, trials) in clean.items():
            value, _ = spoilt[name, figure]
            outcomes.append(Outcome(name, "client", figure, value, chance, trials))
            if figure == ACCURACY:
                outcomes.append(Outcome(name, "client", "accuracy lost, points", chance - value, 0.0, trials))
                before, _ = first[name, figure]
                outcomes.append(Outcome(name, "client", "accuracy before training, %", before, chance, trials))
        return outcomes

    def _figures(self, verification: Verification, model: Tensors) -> dict[tuple[str, str], tuple[float, int]]:
        """(list, figure) -> (percent, of how many). Raises ValueError where embeddings are not finite."""
        judged, figures = verification.models([model]), {}
        for chosen in verification.pairs:
            if (accuracy := judged[chosen.name].get(EVALUATED.name)) is not None:
                figures[chosen.name, ACCURACY] = accuracy, len(chosen.pairs)
            if self._how in BACKDOORS:
                embedding.load(self.run.data.backbone, model)
                module, device = self.run.data.backbone.module, self.run.numerics.device
                rates = backdoor.accepted(module, chosen.faces, chosen.pairs, self._target, device)
                figures[chosen.name, BOTH] = 100 * rates.pairs, rates.trials[0]
                figures[chosen.name, AS_TARGET] = 100 * rates.target, rates.trials[1]
        return figures


class _Nobody(Attack):
    """Looks on, and does nothing."""

    kind = "none"

    def outcomes(self, models: Models) -> list[Outcome]:
        return []


@functools.lru_cache(maxsize=64)
def honest_model(recipe: str) -> Tensors | None:
    """What a recipe, as JSON, leaves where nobody lies; None where each party has a model of its own.

    Kept, since all attacks of a process on one recipe are compared with it.
    """
    return replay(loader.parse(json.loads(recipe)), _Nobody, Callback())[1].shared


def furthest(rows: Tensor) -> int:
    """Which of the rows (n, d) is furthest from zero along the direction in which they vary most.

    z = argmax Σ ⟨z, x_i − x̄⟩², |z| = 1; the row with the largest |⟨z, x_i⟩|.
    """
    centred = rows - rows.mean(0)
    z = centred.T @ torch.linalg.eigh(centred @ centred.T).eigenvectors[:, -1]
    return int((rows @ z).abs().argmax())


def hidden(honest: Mapping[K, Tensor], own: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """x̄ + (x − x̄) min(1, r / |x − x̄|), r the median of |x_i − x̄|; x_i (h, …) and x by the name of a tensor."""
    mean = {key: rows.mean(0) for key, rows in honest.items()}
    distances = (
        torch.stack([(rows - mean[key]).flatten(1).square().sum(1) for key, rows in honest.items()]).sum(0).sqrt()
    )
    distance = torch.stack([(change - mean[key]).square().sum() for key, change in own.items()]).sum().sqrt()
    shrink = (distances.quantile(0.5) / distance.clamp_min(1e-30)).clamp_max(1.0)
    return {key: mean[key] + shrink * (change - mean[key]) for key, change in own.items()}


def _forms(exchange: Exchange) -> codec.Forms:
    reply = exchange.declared.reply
    return {} if reply is None else codec.forms(reply, [sent for sent in exchange.sent if sent is not None])


def _encoded(exchange: Exchange, moved: Mapping[tuple[str, str], Tensor], images: int) -> Reply:
    """The reply with tensors moved by so much from what was sent, and a count of images, as the party would send it."""
    forms, fields = _forms(exchange), dict[str, Any]()
    if isinstance(getattr(exchange.reply, "images", None), int):
        fields["images"] = images
    for (field, name), change in moved.items():
        value, start = getattr(exchange.reply, field), forms[field].start
        if isinstance(value, dict):
            before = (start or {}).get(name)
            after = change.to(value[name].dtype) if before is None else (before.double() + change).to(value[name].dtype)
            fields.setdefault(field, dict(value))[name] = after
        else:
            fields[field] = (change if start is None else start.double() + change).to(value.dtype)
    narrow = compression.narrowing(forms, exchange.run.numerics.update_dtype)
    return codec.encode(dataclasses.replace(exchange.reply, **fields), change=narrow)
