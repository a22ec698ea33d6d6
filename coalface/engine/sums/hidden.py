"""What a secure sum hides of the replies to a call: one vector for each party, laid out alike at both ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.core import codec
from coalface.core.declarations import contents
from coalface.core.method import Mean
from coalface.core.steps import StepDeclaration
from coalface.privacy.secure import FEWEST_BITS, MOST_BITS, SecureSettings, too_few
from coalface.privacy.secure_sums.context import SumContext
from coalface.privacy.secure_sums.fixed_point import HiddenMean, Layout, Summand

IMAGES, PARTIES = "images", "parties"
"""The weights of hidden means: a party's images, and one for each party."""
LOSS, CUT_OFF = "loss", "(cut off)"
"""Numbers that are hidden beside the tensors: the loss, and which share of the party's numbers is beyond their clip."""
_LARGEST_LOSS = 1024.0

Asked = tuple[tuple[str, str], ...]
"""(field, weight) of each mean that is asked for."""


def asked_for(means: Sequence[Mean]) -> Asked:
    """What a request says of the means of a call: weights that the server chose are all equal."""
    return tuple(dict.fromkeys((mean.field, IMAGES if mean.by == IMAGES else PARTIES) for mean in means))


@dataclass(frozen=True)
class HiddenMeans:
    """The means of the replies to a call, as parts of one vector.

    A tensor is summed as its difference to what was sent, where it is a changed form of that. It has the weight that
    its mean asks for; the loss has both. `like` is what the replies must look like.
    """

    layout: Layout
    like: codec.Forms
    reply: type
    fields: tuple[str, ...]

    @classmethod
    def of(
        cls, settings: SecureSettings, declaration: StepDeclaration, asked: Asked, like: codec.Forms, parties: int
    ) -> HiddenMeans:
        """Those of a call that goes to so many parties. Raises ValueError where no ring holds the sum."""
        reply: Any = declaration.reply
        declared = codec.hints(reply)
        heaviest = {PARTIES: 1, **({IMAGES: settings.most_images} if IMAGES in declared else {})}
        bits = next(b for b in (32, 64) if b == 64 or _places(parties, max(heaviest.values()), b) >= FEWEST_BITS)
        numbers = {LOSS: _LARGEST_LOSS} if LOSS in declared else {}
        means = {}
        for weight, most in heaviest.items():
            places = _places(parties, most, bits)
            summands = {
                path: _summand(tensor.numel(), settings.clip_of(path), settings.bits_of(path), places)
                for field in (name for name, by in asked if by == weight)
                for path, tensor in like[field].tensors.items()
                if tensor.is_floating_point()
            }
            numbers_of = numbers | ({CUT_OFF: 1.0} if weight == PARTIES else {})
            summands |= {name: _summand(1, clip, None, places) for name, clip in numbers_of.items()}
            means[weight] = HiddenMean(summands, most)
        return cls(Layout(means, parties), like, reply, tuple(dict.fromkeys(name for name, _ in asked)))

    def context(self, settings: SecureSettings, run: str, stage: str, round_number: int, call: int) -> SumContext:
        """The sum of a call. Raises ValueError where so many parties are too few."""
        layout, (dropouts, corrupt) = self.layout, settings.bounds(self.layout.parties)
        if why := too_few(settings, layout.parties):  # the server says how many are asked
            raise ValueError(why)
        return SumContext(
            run,
            stage,
            round_number,
            call,
            asked=layout.parties,
            dropouts=dropouts,
            corrupt=corrupt,
            length=layout.length,
            bits=layout.bits,
            layout=layout.digest,
        )

    @property
    def rows(self) -> tuple[str, ...]:
        """The fields with rows that one party alone may change, so that the sum tells them: templates of people."""
        holds = contents(self.reply)
        return tuple(name for name in self.fields if holds[name] == "template")

    @property
    def error(self) -> float:
        """How far a number of a mean may be off by the rounding, at most: where each party has one image.

        So it tells nothing of how many they have.
        """
        return max(
            (
                self.layout.error(weight, path, 1, 1)
                for weight, mean in self.layout.means.items()
                for path in mean.tensors.keys() - {LOSS, CUT_OFF}
            ),
            default=0.0,
        )

    def encode(self, message: Any) -> NDArray[Any]:
        """A party's vector. Raises Refused, or SecureSumError, where the reply cannot be summed."""
        codec.validate(message, self.like)
        images = getattr(message, IMAGES, 1)
        if images < 1:
            raise codec.Refused(f"images is {images}; a party has 1 or more")
        changes = {path: change for field in self.fields for path, change in self._changes(field, message).items()}
        clips = {path: s.clip for mean in self.layout.means.values() for path, s in mean.tensors.items()}
        beyond = sum(int(np.count_nonzero(np.abs(change) > clips[path])) for path, change in changes.items())
        changes[CUT_OFF] = np.array([beyond / max(1, sum(change.size for change in changes.values()))])
        if LOSS in codec.hints(self.reply):
            changes[LOSS] = np.array([getattr(message, LOSS)])
        weights = {PARTIES: 1, IMAGES: images}
        vector, _ = self.layout.encode(
            {
                weight: (
                    {path: changes[path] for path in mean.tensors},
                    min(weights[weight], mean.heaviest),
                )
                for weight, mean in self.layout.means.items()
            }
        )
        return vector

    def _changes(self, field: str, message: Any) -> dict[str, NDArray[Any]]:
        starts = codec.by_path(field, self.like[field].start)
        tensors = codec.by_path(field, getattr(message, field))
        return {
            path: (tensor.double() - starts[path].double() if path in starts else tensor).numpy().reshape(-1)
            for path, tensor in tensors.items()
            if tensor.is_floating_point()
        }

    def decode(self, total: NDArray[Any]) -> Opened:
        """The means of the sum of some parties' vectors. Raises SecureSumError as `Layout.decode` does."""
        return Opened(self, self.layout.decode(total))


@dataclass(frozen=True)
class Opened:
    """The means of an opened sum."""

    hidden: HiddenMeans
    means: Mapping[str, tuple[Mapping[str, NDArray[Any]], int]]

    @property
    def parties(self) -> int:
        return self.means[PARTIES][1]

    @property
    def cut_off(self) -> float:
        """The share of the parties' numbers that lay beyond their clip."""
        return float(self.means[PARTIES][0][CUT_OFF][0])

    def loss(self) -> dict[str | None, float]:
        """The mean loss by its weight: `images`, or None where each party counts the same."""
        return {
            weight if weight == IMAGES else None: float(tensors[LOSS][0])
            for weight, (tensors, _) in self.means.items()
            if LOSS in tensors
        }

    def mean(self, mean: Mean, everyone: float) -> Any:
        """What a mean asks for; `everyone` are the parties of the role, by which `over="all"` divides."""
        form, (tensors, _) = self.hidden.like[mean.field], self.means[IMAGES if mean.by == IMAGES else PARTIES]
        starts = codec.by_path(mean.field, form.start) if mean.of == "values" else {}
        share = 1.0 if mean.over == "arrived" else self.parties / everyone
        values: dict[str, Tensor] = {}
        for path, model in form.tensors.items():
            if model.is_floating_point():
                number = torch.from_numpy(tensors[path]).view(model.shape)
                number = number + starts[path].double() if path in starts else number
                values[path] = (share * number).to(model.dtype)
        if isinstance(form.model, Tensor):
            return values[mean.field]
        return {path[len(mean.field) + 1 :]: value for path, value in values.items()}


def _places(parties: int, heaviest: int, bits: int) -> int:
    """The most binary places below the clip that a sum of so many parties has room for, up to `MOST_BITS`."""
    room = (1 << bits - 1) - parties - (1 << 12)  # for half a step of each, and for what products are rounded by
    return min(MOST_BITS, (room // (parties * heaviest)).bit_length() - 1)


def _summand(size: int, clip: float, fraction_bits: int | None, places: int) -> Summand:
    return Summand(size, clip, places - math.ceil(math.log2(clip)) if fraction_bits is None else fraction_bits)
