"""Federated Validation: validators score candidate weightings of the trainers' backbones on pairs that are not sent.

Bai et al., "Federated Face Recognition", 2021, section 3.2 and Algorithm 2. A component: it composes with any method
whose aggregation is `Mean("backbone", by="images")`, as `pfm-fv` and `fedavg-fv` do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coalface.core.method import (
    Abandoned,
    Answer,
    Component,
    Federation,
    Mean,
    Party,
    Tensors,
    Ticket,
    content,
    message,
    state,
    step,
)
from coalface.evaluation.metrics.verification import pair_loss, score_pairs, tar_at_far, ten_fold_accuracy
from coalface.models.embedding import embed, images_needed

Weights = dict[str, float]
"""The weight of each trainer by name; they add up to 1."""


@message
class Candidates:
    """To the validators: Θ̂_1 … Θ̂_T, all of a validation in one message."""

    backbones: Tensors = content("aggregate")
    """Tensor name -> (T, …), the candidates' tensors one upon the other."""
    scores: Tensor = content("score")
    """(T,) float64 zeros: the form of the answer, so that an answer in another one is refused by name."""


@message
class Scores:
    """From a validator: all that leaves it."""

    scores: Tensor = content("score")
    """(T,) float64 S_i, higher is better; accuracy and TAR in percent."""


@state
class Open:
    """A validation under way."""

    ticket: Ticket
    round: int
    candidates: tuple[dict[str, float], ...]
    """ŵ_1 … ŵ_T; the first is the weighting that `round` averaged by."""


@state
class Weighting:
    """What the server keeps of Federated Validation."""

    weights: dict[str, float]
    """w, the weighting in use."""
    open: Open | None
    """The validation under way; the next begins when it has been collected."""
    mean: dict[str, float]
    """μ of each validator, for Moving Norm."""
    variance: dict[str, float]
    """ν of each validator, for Moving Norm."""


@dataclass(frozen=True, kw_only=True)
class FederatedValidation(Component):
    """Every round T candidate weightings are scored beside training, and w ← (1 − φ) w + φ ŵ_t̂ for the best of them.

    A validation of round r uses the local backbones of round r; its scores are collected after the training of round
    r + `lag`, and the weighting that comes of them is in use from the round after that. Then the next one begins, with
    the backbones of that round. Its candidates were drawn before that round trained, and the first of them is the
    weighting by which it was averaged: the paper's "most recent applied weighting".
    """

    candidates: int = 3
    """T: the weighting in use, and T − 1 drawn uniformly from the simplex."""
    smoothing: float = 0.01
    """φ."""
    norm: Literal["local", "moving", "none"] = "local"
    """How scores are normalised per validator before they are summed: (8), (9) and (10), or not."""
    epsilon: float = 0.001
    """ε of (8), in squared percent."""
    forgetting: float = 0.01
    """γ of (9) and (10), for Moving Norm."""
    lag: int = 1
    """Rounds that a validation may take; 0: while no trainer trains."""
    fv: Literal["kept", "folded"] = "kept"
    """`kept`: the server is sent single backbones. `folded`: it asks for T weighted means of them and sees no single
    one; this needs more than T trainers, since T means of T backbones could be solved for each of them."""
    initial: Literal["images", "uniform"] = "images"
    """The first w: each trainer's share of the images, or equal weights."""
    score: Literal["accuracy", "tar", "loss"] = "accuracy"
    """`accuracy`: the mean over a validator's folds, the threshold of each chosen on its other folds. `tar`: TAR at
    `far`. `loss`: minus the mean loss of its pairs (`pair_loss`), times 100."""
    far: float = 0.01
    """The false accept rate of `tar`."""
    choice: Literal["blind"] | None = None
    """None: the candidate of the best scores (12). `blind`: any of them with probability 1/T, as if the scores told
    nothing: candidates, φ and rounds are the same, so what remains is what the scores are worth."""

    def __post_init__(self) -> None:
        if self.candidates < 2 or self.lag < 0:
            raise ValueError(f"validation needs candidates ≥ 2 and lag ≥ 0; got {self.candidates} and {self.lag}")
        for name in ("smoothing", "forgetting"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"validation.{name} is {getattr(self, name)}; give a share from 0 to 1")
        if not self.epsilon > 0:
            raise ValueError(f"validation.epsilon is {self.epsilon}; give a number above 0")
        if not 0 < self.far <= 1:
            raise ValueError(f"validation.far is {self.far}; give a rate above 0 and at most 1, such as 0.01")

    # --- at the server ------------------------------------------------------------------------------------------------

    def begin(self, fed: Federation, sample: int | None) -> Weighting:
        """The first weighting; `sample` trainers train in a round (None: all). Raises ValueError for what cannot be."""
        trainers = fed.parties("trainer")
        if not fed.parties("validator"):
            raise ValueError("there is no validator: give the recipe `validators`, parties with pairs of their own")
        if fed.policy != "average":
            raise ValueError(
                f"a validator needs every tensor of a backbone, and with model.batchnorm={fed.policy} some stay at "
                "their trainers: set model.batchnorm=average"
            )
        if self.fv == "folded" and self.candidates >= (training := sample or len(trainers)):
            fewer = f"ask for fewer candidates than trainers (at most {training - 1}), or " if training > 2 else ""
            raise ValueError(
                f"validation.fv=folded: {self.candidates} means of the backbones of {training} trainers can be solved "
                f"for each single one, so nothing would be hidden: {fewer}set validation.fv=kept"
            )
        sizes = fed.weights("trainer") if self.initial == "images" else dict.fromkeys(trainers, 1.0)
        whole = math.fsum(sizes.values())
        return Weighting(weights={p: n / whole for p, n in sizes.items()}, open=None, mean={}, variance={})

    def over(self, fed: Federation, weighting: Weighting) -> Validated:
        """The federation of one round, in which backbones are averaged by the weighting in use."""
        return Validated(fed, self, weighting)

    def draw(self, weights: Weights, rng: np.random.Generator) -> tuple[Weights, ...]:
        """ŵ_1 = w and ŵ_2 … ŵ_T ~ Dirichlet(1, …, 1)."""
        drawn = rng.dirichlet(np.ones(len(weights)), size=self.candidates - 1)
        return (weights, *(dict(zip(weights, map(float, row), strict=True)) for row in drawn))

    def choose(
        self, weighting: Weighting, validation: Open, scores: Mapping[str, Tensor], rng: np.random.Generator
    ) -> Weighting:
        """Normalise, sum over the validators that answered, take the best, and move w towards it (Alg. 2, 11 to 13).

        `rng` draws what a blind choice takes.
        """
        mean, variance, total = dict(weighting.mean), dict(weighting.variance), torch.zeros(self.candidates).double()
        for validator, row in scores.items():
            spread, new = float(row.var(correction=0)), self.forgetting
            if self.norm == "moving":  # from the second validation on; the first gives where they start
                centre = (1 - new) * mean.get(validator, float(row.mean())) + new * float(row.mean())  # (9)
                spread = float((row - centre).square().mean())
                spread = (1 - new) * variance.get(validator, spread) + new * spread  # (10)
                mean[validator], variance[validator] = centre, spread
            total += row if self.norm == "none" else row / math.sqrt(spread + self.epsilon)  # (8)
        chosen = int(total.argmax() if self.choice is None else rng.integers(self.candidates))  # of equals the first
        best = validation.candidates[chosen] if scores else weighting.weights
        share = self.smoothing if scores else 0.0
        weights = {p: (1 - share) * w + share * best[p] for p, w in weighting.weights.items()}
        return Weighting(weights=weights, open=None, mean=mean, variance=variance)

    # --- at a validator -----------------------------------------------------------------------------------------------

    @step(role="validator")
    def grade(self, party: Party, common: Candidates) -> Scores:
        pairs, scores = party.extra_data, []
        images, left, right = images_needed(pairs.left, pairs.right)
        for t in range(self.candidates):
            party.backbone.load({name: stacked[t] for name, stacked in common.backbones.items()})
            features = embed(party.backbone.module, party.data, images, device=party.device)
            scores.append(self.graded(score_pairs(features, left, right), pairs.same, pairs.fold))
        return Scores(scores=torch.tensor(scores, dtype=torch.float64))

    def graded(self, cosines: Any, same: Any, fold: Any) -> float:
        """S of one model, from the cosines of a validator's pairs."""
        if self.score == "accuracy":
            return 100 * ten_fold_accuracy(cosines, same, fold).mean
        if self.score == "tar":
            return 100 * tar_at_far(cosines, same, [self.far])[0].tar
        return -100 * pair_loss(cosines, same)


@dataclass
class Validated(Federation):
    """The federation of one round, whose backbones are averaged by FV's weighting."""

    fed: Federation
    validation: FederatedValidation
    weighting: Weighting
    candidates: tuple[Weights, ...] = field(init=False)
    """Drawn before the round, so that the means of `folded` can be asked for; the one in use alone where a validation
    is still under way when this round ends."""

    def __post_init__(self) -> None:
        for name in ("embedding_size", "extra_data", "initial", "parameters", "policy", "rng"):
            setattr(self, name, getattr(self.fed, name))
        self.candidates = (self.weighting.weights,)
        if self.weighting.open is None or self._due(self.weighting.open):
            self.candidates = self.validation.draw(self.weighting.weights, self.fed.secret_stream("validation"))
        self._means: list[Tensors] = []

    @property
    def round(self) -> int:
        return self.fed.round

    def parties(self, role: str) -> tuple[str, ...]:
        return self.fed.parties(role)

    def images(self, party: str) -> int:
        return self.fed.images(party)

    def weights(self, role: str) -> dict[str, float]:
        return self.fed.weights(role)

    def stream(self, *names: str | int) -> np.random.Generator:
        return self.fed.stream(*names)

    def secret_stream(self, *names: str | int) -> np.random.Generator:
        return self.fed.secret_stream(*names)

    def embed(self, faces: Any, backbone: Tensors) -> Tensor:
        return self.fed.embed(faces, backbone)

    def log(self, **metrics: float) -> None:
        self.fed.log(**metrics)

    def log_losses(self, losses: Mapping[str, float]) -> None:
        self.fed.log_losses(losses)

    def ask(
        self, step: Callable[..., Any], *, aggregate: Sequence[Mean] = (), at_least: int | None = None, **request: Any
    ) -> Answer:
        """As asked, but the mean of the backbones is weighted by w; the candidates' means are kept to be scored."""
        backbones = Mean("backbone", by="images")
        if backbones not in aggregate:
            return self.fed.ask(step, aggregate=aggregate, at_least=at_least, **request)
        other_means = [mean for mean in aggregate if mean != backbones]
        if self.validation.fv == "folded" and any(mean.field == "backbone" for mean in other_means):
            raise ValueError(
                "validation.fv=folded: the method asks for other means of the backbones beside the candidates', by "
                "which single ones could be solved for; set validation.fv=kept, or take that mean out of the method"
            )
        if self.validation.fv == "kept":
            answer = self.fed.ask(step, aggregate=other_means, at_least=at_least, **request)
            models = answer.each.pop("backbone")
            self._means = [weighted_mean(models, weights) for weights in self.candidates]
        else:
            many = [Mean("backbone", by=w, name=f"candidate {t}", once=True) for t, w in enumerate(self.candidates)]
            most = max(at_least or 0, len(many) + 1)  # of fewer, each could be solved for
            answer = self.fed.ask(step, aggregate=[*other_means, *many], at_least=most, **request)
            self._means = [answer.aggregated.pop(mean.key) for mean in many]
        answer.aggregated["backbone"] = self._means[0]  # (4)
        return answer

    def post(self, step: Callable[..., Any], **request: Any) -> Ticket:
        return self.fed.post(step, **request)

    def collect(self, ticket: Ticket, **request: Any) -> Answer:
        return self.fed.collect(ticket, **request)

    def validate(self) -> Weighting:
        """Collect the validations that are due, and post that of this round; call it once the round has trained."""
        if not self._means:
            raise ValueError(
                "Federated Validation weighs a method's Mean('backbone', by='images'), and this one asked "
                "for no such mean; write its aggregation so, or leave validation out"
            )
        weighting = self._collected(self.weighting)
        if weighting.open is None:
            stacked = {name: torch.stack([mean[name] for mean in self._means]) for name in self._means[0]}
            form = torch.zeros(len(self._means), dtype=torch.float64)
            ticket = self.fed.post(self.validation.grade, common=Candidates(backbones=stacked, scores=form))
            validation = Open(ticket=ticket, round=self.round, candidates=self.candidates)
            weighting = self._collected(replace(weighting, open=validation))  # at once with a lag of 0
        self.fed.log(**{f"weight/{party}": w for party, w in weighting.weights.items()})
        return weighting

    def _due(self, validation: Open) -> bool:
        return self.round >= validation.round + self.validation.lag

    def _collected(self, weighting: Weighting) -> Weighting:
        validation = weighting.open
        if validation is None or not self._due(validation):
            return weighting
        answer = self.fed.collect(validation.ticket, optional=True)  # validators that failed or were late are left out
        scores: dict[str, Tensor] = answer.each["scores"]
        self.fed.log(**{f"score/{validator}": float(row[0]) for validator, row in scores.items()})
        return self.validation.choose(weighting, validation, scores, self.fed.secret_stream("validation", "choice"))


def weighted_mean(models: Mapping[str, Tensors], weights: Mapping[str, float]) -> Tensors:
    """Σ w_i θ_i / Σ w_i over the models that there are, summed in float64, in the models' dtype.

    Raises Abandoned where their weights add up to nothing.
    """
    whole = sum(weights[p] for p in models)
    if not whole > 0:
        raise Abandoned("the trainers that answered have no weight")
    first = next(iter(models.values()))
    total = {name: torch.zeros(t.shape, dtype=torch.float64, device=t.device) for name, t in first.items()}
    for party, tensors in models.items():
        for name, t in tensors.items():
            total[name].add_(t, alpha=weights[party])
    return {name: (t / whole).to(first[name].dtype) for name, t in total.items()}
