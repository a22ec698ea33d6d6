"""What a secure sum hides of the replies to a call: one vector for each party, laid out alike at both ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.noise_shares import NoiseShares, RandomBytes, noise_share, plan_shares
from coalface.privacy.secure import FEWEST_BITS, MOST_BITS, SecureSettings, check_shares, too_few
from coalface.privacy.secure_sums.context import SecureSumError, SumContext
from coalface.privacy.secure_sums.fixed_point import HiddenMean, Layout, Summand
from coalface.privacy.secure_sums.masks import signed

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

    With `noise` each party counts the same, and there is nothing but tensors: all of them, as one vector, are brought
    within `clip` and have noise in them, so that no loss, no number of images and no share that was cut off is told.
    """

    layout: Layout
    like: codec.Forms
    reply: type
    fields: tuple[str, ...]
    clip: float | None = None
    """C of `privacy.dp`, the norm that the whole of a reply is brought within."""
    noise: NoiseShares | None = None
    """Of each party; None without `privacy.dp`, where that is of z = 0, or no mean is asked for."""

    @classmethod
    def of(
        cls,
        settings: SecureSettings,
        declaration: StepDeclaration,
        asked: Asked,
        like: codec.Forms,
        parties: int,
        privacy: PartyPrivacy | None = None,
    ) -> HiddenMeans:
        """Those of a call that goes to so many parties. Raises ValueError where no ring holds the sum."""
        reply: Any = declaration.reply
        fields = tuple(dict.fromkeys(name for name, _ in asked))
        if privacy is not None:  # one scale for all tensors, since one clip holds for the vector of all
            check_shares(privacy)
            clip, (dropouts, corrupt) = float(privacy.clip), settings.bounds(parties)  # type: ignore[arg-type]  # checked
            sizes = _sizes(like, fields)
            honest = parties - dropouts - max(corrupt, 1)  # towards another party, which knows its own share
            bits, shares = plan_shares(privacy.noise_multiplier, clip, parties, honest, sum(sizes.values()))
            means = {PARTIES: HiddenMean({path: Summand(size, clip, bits) for path, size in sizes.items()}, 1)}
            noise = shares if sizes and privacy.noise_multiplier else None
            layout = Layout(means, parties, 0 if noise is None else noise.room(parties))
            return cls(layout, like, reply, fields, clip, noise)
        declared = codec.hints(reply)
        heaviest = {PARTIES: 1, **({IMAGES: settings.most_images} if IMAGES in declared else {})}
        bits = next(b for b in (32, 64) if b == 64 or _places(parties, max(heaviest.values()), b) >= FEWEST_BITS)
        numbers = {LOSS: _LARGEST_LOSS} if LOSS in declared else {}
        means = {}
        for weight, most in heaviest.items():
            places = _places(parties, most, bits)
            fields_of = [name for name, by in asked if by == weight]
            summands = {
                path: _summand(size, settings.clip_of(path), settings.bits_of(path), places)
                for path, size in _sizes(like, fields_of).items()
            }
            numbers_of = numbers | ({CUT_OFF: 1.0} if weight == PARTIES else {})
            summands |= {name: _summand(1, clip, None, places) for name, clip in numbers_of.items()}
            means[weight] = HiddenMean(summands, most)
        return cls(Layout(means, parties), like, reply, fields)

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
    def numbers(self) -> tuple[str, ...]:
        """Fields of a reply that are hidden beside the means."""
        return () if self.clip is not None else tuple(name for name in (IMAGES, LOSS) if name in contents(self.reply))

    @property
    def rho(self) -> float:
        """ρ of the concentrated differential privacy of one sum; infinite where nothing bounds it."""
        if self.noise is not None:
            return self.noise.rho
        return math.inf if any(mean.tensors for mean in self.layout.means.values()) else 0.0

    @property
    def share_deviation(self) -> float:
        """The standard deviation of a party's noise, in the units of the numbers that are summed."""
        (mean,) = self.layout.means.values()
        steps = (2.0**-summand.fraction_bits for summand in mean.tensors.values())
        return 0.0 if self.noise is None else self.noise.sigma * next(steps)

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

    def encode_noised(self, message: Any, stream: Callable[[memoryview], RandomBytes]) -> tuple[NDArray[Any], str]:
        """A party's vector, clipped and with its noise, and why the reply counts as zero; empty where it counts.

        A reply that cannot be summed is one of zero, as is a FloatingPointError in its place: whether a party answers
        must not depend on its images. `stream` gives the noise of a vector, by its bytes.
        """
        assert self.clip is not None
        (mean,) = self.layout.means.values()
        try:
            if isinstance(message, FloatingPointError):
                raise codec.Refused(f"numbers ran out of range: {message}")
            codec.validate(message, self.like)
            changes, why = {p: c for field in self.fields for p, c in self._changes(field, message).items()}, ""
            if infinite := [path for path, change in changes.items() if not np.isfinite(change).all()]:
                raise codec.Refused(f"{infinite[0]} is not finite, as a difference to what was sent")
        except (codec.Refused, KeyError) as error:
            changes, why = {path: np.zeros(summand.size) for path, summand in mean.tensors.items()}, str(error)
        with np.errstate(over="ignore"):  # squares of float64 numbers may be infinite: these are scaled to nothing
            norm = math.sqrt(sum(float(np.square(change, dtype=np.float64).sum()) for change in changes.values()))
        scale = min(1.0, self.clip / norm) if norm else 1.0
        vector, _ = self.layout.encode({PARTIES: ({p: c.astype(np.float64) * scale for p, c in changes.items()}, 1)})
        if self.noise is None:
            return vector, why
        whole, most = vector.view(signed(vector.dtype))[:-1].astype(np.int64), self.noise.sensitivity**2
        # what is proven of the noise rests on this alone; up to 2 `most` a sum of squares does not leave 64 bits
        if float(np.square(whole, dtype=np.float64).sum()) > 2 * most or int(whole @ whole) > most:
            raise SecureSumError("vector", f"its norm is above {self.clip:g} after it was clipped to that")
        share = noise_share(self.noise.size, self.noise.sigma, stream(vector.data.cast("B")))
        vector[:-1] += share.astype(vector.dtype)
        return vector, why

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
    def metrics(self) -> dict[str, float]:
        """What a round's line of the metrics says: how far a mean is off by the rounding at most, and, where that is
        told, which share of the parties' numbers lay beyond their clip.
        """
        cut_off = self.means[PARTIES][0].get(CUT_OFF)
        return ({} if cut_off is None else {"cut_off": float(cut_off[0])}) | {"sum_error": self.hidden.error}

    def loss(self) -> dict[str | None, float]:
        """The mean loss by its weight: `images`, or None where each party counts the same. NaN where none is told."""
        if self.hidden.clip is not None:
            return {None: math.nan, IMAGES: math.nan} if LOSS in codec.hints(self.hidden.reply) else {}
        return {
            weight if weight == IMAGES else None: float(tensors[LOSS][0])
            for weight, (tensors, _) in self.means.items()
            if LOSS in tensors
        }

    def mean(self, mean: Mean, everyone: float) -> Any:
        """What a mean asks for; `everyone` are the parties of the role, by which `over="all"` divides.

        With `privacy.dp` all divide by a number that is fixed: `over="arrived"` by those asked. Whoever is away counts
        as zero.
        """
        noised = self.hidden.clip is not None
        form, weight = self.hidden.like[mean.field], IMAGES if mean.by == IMAGES and not noised else PARTIES
        tensors, _ = self.means[weight]
        starts = codec.by_path(mean.field, form.start) if mean.of == "values" else {}
        arrived = self.parties / self.hidden.layout.parties if noised else 1.0
        share = arrived if mean.over == "arrived" else self.parties / everyone
        values: dict[str, Tensor] = {}
        for path, model in form.tensors.items():
            if model.is_floating_point():
                number = torch.from_numpy(tensors[path]).view(model.shape)
                start = starts[path].double() if path in starts else 0.0
                values[path] = (share * number + start if noised else share * (number + start)).to(model.dtype)
        if isinstance(form.model, Tensor):
            return values[mean.field]
        return {path[len(mean.field) + 1 :]: value for path, value in values.items()}


def _sizes(like: codec.Forms, fields: Sequence[str]) -> dict[str, int]:
    """The numbers of each tensor of floats in some fields."""
    tensors = {path: tensor for field in fields for path, tensor in like[field].tensors.items()}
    return {path: tensor.numel() for path, tensor in tensors.items() if tensor.is_floating_point()}


def _places(parties: int, heaviest: int, bits: int) -> int:
    """The most binary places below the clip that a sum of so many parties has room for, up to `MOST_BITS`."""
    room = (1 << bits - 1) - parties - (1 << 12)  # for half a step of each, and for what products are rounded by
    return min(MOST_BITS, (room // (parties * heaviest)).bit_length() - 1)


def _summand(size: int, clip: float, fraction_bits: int | None, places: int) -> Summand:
    return Summand(size, clip, places - math.ceil(math.log2(clip)) if fraction_bits is None else fraction_bits)
