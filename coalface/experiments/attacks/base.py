"""What an attack is: it watches a run that is replayed, or lies in it, and says how far it came."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from coalface.core import codec, compression
from coalface.core.errors import CoalfaceError
from coalface.core.method import Models, Tensors
from coalface.core.steps import StepDeclaration
from coalface.data.faceset import FaceSet
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.party.setup import FederatedData
from coalface.engine.transport import Reply
from coalface.evaluation.metrics.verification import ACCURACY
from coalface.evaluation.verification import Verification
from coalface.experiments.prepare import PreparedRun
from coalface.experiments.recipe.schema import Recipe
from coalface.models.embedding import embed

K = TypeVar("K")
Attacker = Literal["server", "client", "outsider"]
"""Who attacks: the server, with all that the parties send it; a client, with what it is sent; or whoever has the model
that a run leaves."""


class NotAttackable(CoalfaceError):
    """The run gives this attack nothing to work on."""


@dataclass(frozen=True)
class Outcome:
    """One figure of an attack on one run."""

    target: str
    """What is attacked, such as `centre`, a field of the messages."""
    attacker: Attacker
    figure: str
    """What is counted, with its unit."""
    value: float
    chance: float
    """What the attacker would have without looking."""
    trials: int
    """Of how many people, images or messages the value is."""


@dataclass(frozen=True)
class Exchange:
    """A request to a party and its reply, as they pass."""

    run: PreparedRun
    request: Request
    answer: Reply

    @property
    def declared(self) -> StepDeclaration:
        """What the step says of its messages."""
        return self.run.method.steps[self.request.step][1]

    @functools.cached_property
    def sent(self) -> tuple[Any, Any]:
        """(common, each): what the party was sent; None for what it was not."""
        declared, common, each = self.declared, self.request.common, self.request.each
        return (
            common.message(declared.common) if common is not None and declared.common is not None else None,
            each.message(declared.each) if each is not None and declared.each is not None else None,
        )

    @functools.cached_property
    def reply(self) -> Any:
        """What the party answered; None where it failed, or where a secure sum hides it."""
        declared = self.declared
        if self.request.sum is not None or isinstance(self.answer, StepFailed) or declared.reply is None:
            return None
        forms = codec.forms(declared.reply, [message for message in self.sent if message is not None])
        change = compression.widening(forms, self.run.numerics.update_dtype)
        return codec.decode(self.answer.data, declared.reply, change=change, like=forms)

    @property
    def update(self) -> dict[str, Tensor] | None:
        """θ_p − θ of a reply with a backbone that is a changed form of the one that was sent."""
        after, before = getattr(self.reply, "backbone", None), getattr(self.sent[0], "backbone", None)
        if after is None or before is None:
            return None
        return {name: after[name] - before[name] for name in after if after[name].is_floating_point()}


class RoundCounter:
    """Numbers the rounds in which a backbone is sent, from 1: requests' ordinals count beginnings of stages too."""

    def __init__(self) -> None:
        self.number, self._ordinal = 0, -1

    def count(self, request: Request) -> int:
        """The round of a request, with which others of the same round came or will come."""
        if request.ordinal != self._ordinal:
            self.number, self._ordinal = self.number + 1, request.ordinal
        return self.number


class Attack(ABC):
    """An attack on one replay of a run. One is made for each; `run.data` has the truth, for counting alone."""

    kind: ClassVar[str]
    only_watches: ClassVar[bool] = True
    """Whether the replay leaves the model that the run has left."""
    version: ClassVar[int] = 1
    """Raised where the same recipe comes to other figures: cells of an earlier version are computed anew."""

    @classmethod
    def version_of(cls, recipe: Recipe) -> int:
        """That of the cells of a recipe, where not all have changed with it; never less than `version`."""
        return cls.version

    def __init__(self, run: PreparedRun, seed: int) -> None:
        self.run, self.seed = run, seed

    def poison(self, data: FederatedData) -> FederatedData:
        """The parties' data, changed where the attacker has them, or such that it records what is trained on."""
        return data

    def lie(self, exchanges: Sequence[Exchange]) -> Mapping[str, Reply]:
        """Party -> what it answers in place of its reply, of the replies to one call."""
        return {}

    def watch(self, exchange: Exchange) -> None:  # noqa: B027
        """A request and its reply pass."""

    @abstractmethod
    def outcomes(self, models: Models) -> list[Outcome]:
        """How far it came, once the run is over. Raises NotAttackable where there was nothing to work on."""


def accuracies(run: PreparedRun, first: Tensors, last: Tensors) -> list[Outcome]:
    """The accuracy on a run's pairs of the model that it leaves, beside that of the model that it began with."""
    outcomes = []
    for verification in (evaluator for evaluator in run.evaluators if isinstance(evaluator, Verification)):
        before, after = (verification.models([model]) for model in (first, last))
        for chosen in verification.pairs:
            if (accuracy := after[chosen.name].get(ACCURACY.name)) is not None:
                figure = f"accuracy on {chosen.name}, and before training, %"
                before_training = before[chosen.name][ACCURACY.name]
                outcomes.append(Outcome("the model", "outsider", figure, accuracy, before_training, len(chosen.pairs)))
    return outcomes


def mean_features(run: PreparedRun, backbone: Mapping[str, Tensor], faces: Mapping[K, FaceSet]) -> dict[K, Tensor]:
    """By whatever the sets are: the mean of the unit embeddings of a set's images, at length one."""
    run.data.backbone.load(dict(backbone))
    module, device = run.data.backbone.module, run.numerics.device
    with torch.no_grad():
        features = {n: torch.from_numpy(embed(module, own, device=device)) for n, own in faces.items() if len(own)}
        return {name: torch.nn.functional.normalize(rows.double().mean(0), dim=0) for name, rows in features.items()}
