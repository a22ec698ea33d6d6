"""Differential privacy by party at the server: clipped sums, their noise, and what they add up to."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.core import codec
from coalface.core.method import Abandoned, Mean, Tensors
from coalface.core.steps import StepDeclaration
from coalface.engine.run_state import Call
from coalface.engine.sums.opened import Opened
from coalface.engine.sums.running import RunningMean
from coalface.privacy import noise
from coalface.privacy.accountant import Drawn, Mechanism, concentrated_epsilon, epsilon
from coalface.privacy.correlated import inverse
from coalface.privacy.dp import AdaptiveClip, Draws, PartyPrivacy, check_call, summed


class TargetReached(Exception):
    """The next sum would pass `target_epsilon`: the run ends before it."""


@dataclass
class PrivateSums:
    """The noised sums of a run, which `opened.jsonl` lists: C, and ε, follow from its lines alone.

    A sum that a resumed run repeats is the same sum with the same noise, and counts once; where it would be another one
    the round is abandoned, as by `coalface.engine.sums.opened`.
    """

    settings: PartyPrivacy
    opened: Opened
    stages: Sequence[str]
    """Of the method, in their order."""
    drawn_from: bytes | None
    """The secret that the noise is drawn from; None in a simulation, where the seed takes its place."""
    run_seed: int
    shares: bool = False
    """Whether the sums are secure ones, in which each party has put its share of the noise: a party has then spent ρ of
    the sums that it was asked for."""

    def __post_init__(self) -> None:
        key = self.drawn_from
        self.secret = noise.seeded_secret(self.run_seed) if key is None else key
        self.seed = self.run_seed if key is None else int.from_bytes(key, "little")
        """Of the server's other streams: who is drawn may not be known either."""
        self.draws = Draws(self.settings.sampling)

    @property
    def hides_draws(self) -> bool:
        """Whether ε counts on nobody knowing who was drawn in this round; a secure sum tells it to its parties."""
        return self.draws.are_secret and not self.shares

    def begin_round(self, number: int) -> None:
        """Forget the draws of the round before."""
        self.draws = Draws(self.settings.sampling, number, self.seed)

    def clipped(
        self, call: Call, declaration: StepDeclaration, means: Sequence[Mean], everyone: Sequence[str]
    ) -> ClippedSums | None:
        """The sums of a call that is about to be made, if it asks for means.

        Raises RecipeError where noise on its means does not protect the replies, and TargetReached.
        """
        check_call(call.step, declaration, means, everyone)
        if not means:
            return None
        reply: Any = declaration.reply
        common = call.common.message(declaration.common) if call.common and declaration.common else None
        draw = self.draws.of(call.to)
        self.settings.check_bands(draw and draw[1])
        line = {"stage": call.stage, "round": call.round, "call": call.call, "drawn": _as_line(draw)}
        if (call.stage, call.round, call.call) not in self.opened.entries:
            self._check_target([line])
        return ClippedSums(self, call, means, len(everyone), codec.forms(reply, [common]), line["drawn"])

    def admit(self, call: Call, rho: float) -> dict[str, Any]:
        """What the line of a secure sum of so much ρ says, before its vectors are asked for. Raises TargetReached."""
        line = {"drawn": _as_line(self.draws.of(call.to)), "asked": [*call.to], "rho": _number(rho)}
        if (call.stage, call.round, call.call) not in self.opened.entries:
            self._check_target([line])
        return line

    def check_round(self, stage: str, number: int) -> None:
        """Raise TargetReached where a round that asks for as many sums as the one before it would pass the target.

        Of drawn parties whose noise is in shares nobody knows whom it asks: then the sum itself is not asked for.
        """
        before = [entry for entry in self.opened.calls if (entry["stage"], entry["round"]) == (stage, number - 1)]
        if self.shares and any(entry["drawn"] for entry in before):
            return
        coming = [entry | {"round": number} for entry in before]
        self._check_target([e for e in coming if (stage, number, e["call"]) not in self.opened.entries])

    def clip(self, lines: Iterable[Mapping[str, Any]]) -> float:
        """C of the sum that follows those of some lines."""
        adaptive = self.settings.clip
        if not isinstance(adaptive, AdaptiveClip):
            return float(adaptive)
        return functools.reduce(lambda clip, line: adaptive.following(clip, line["within"]), lines, adaptive.initial)

    def before(self, call: Call) -> list[dict[str, Any]]:
        """The lines before that of a call; all, where it has none yet."""
        keys = list(self.opened.entries)
        key = (call.stage, call.round, call.call)
        return self.opened.calls[: keys.index(key) if key in self.opened.entries else None]

    def draw_noise(self, call: Call, content: str, count: int) -> NDArray[np.float64]:
        """(count,) standard normal z of a sum; with bands its row of C⁻¹ z, of `coalface.privacy.correlated`.

        They follow from the secret and the lines. Raises Abandoned where sums after this one took it for left out.
        """
        place = f"{call.stage}/{{}}/{call.call}"
        if self.settings.bands is None:
            return noise.normals(self.secret, f"{place.format(call.round)}/{content}", count)
        key = (call.stage, call.round, call.call)
        before = {e["round"]: e["noise"] for (s, _, c), e in self.opened.entries.items() if (s, c) == (key[0], key[2])}
        if key not in self.opened.entries and any(number > call.round for number in before):
            raise Abandoned(f"step {call.step}: sums after it were opened, whose noise counts with a round without it")
        contents = before | {call.round: content}
        drawn = np.zeros(count)
        for ago, share in enumerate(inverse(self.settings.bands, call.round - min(contents) + 1)):
            name = f"{place.format(call.round - ago)}/{contents.get(call.round - ago, '')}"
            drawn += share * noise.normals(self.secret, name, count)
        return drawn

    def epsilon(self) -> float:
        """ε of all sums so far."""
        return self._epsilon(self.opened.calls)

    def metrics(self, stage: str, number: int) -> dict[str, Any]:
        """What a round's line of the metrics says: ε, and C where it follows a quantile, after the round."""
        lines = self.opened.until(self.stages, stage, number)
        adaptive = isinstance(self.settings.clip, AdaptiveClip)
        return {"epsilon": _number(self._epsilon(lines))} | ({"clip": self.clip(lines)} if adaptive else {})

    def summary(self) -> dict[str, Any]:
        """What `summary.json` says."""
        return {
            "epsilon": _number(self.epsilon()),
            "delta": self.settings.delta,
            "noise_multiplier": self.settings.noise_multiplier,
            "clip": self.clip(self.opened.calls),
            "target_epsilon": self.settings.target_epsilon,
            "sampling": self.settings.sampling,
            "bands": self.settings.bands,
            "sums": sum(line.get("rho") != 0 for line in self.opened.calls),  # one without a mean has none
            "noise": "seed" if self.drawn_from is None else "shares" if self.shares else "secret",
        }

    def _epsilon(self, lines: Sequence[Mapping[str, Any]]) -> float:
        """ε of lines; sums over the parties of one draw are one mechanism, √k times as loud.

        Of shares that of the party with the most: whom a round asks follows from no images, and is known.
        """
        if self.shares:
            spent: defaultdict[str, float] = defaultdict(float)
            for line in lines:
                for party in line["asked"]:
                    spent[party] += math.inf if line["rho"] is None else line["rho"]
            return concentrated_epsilon(max(spent.values(), default=0.0), self.settings.delta)
        if self.settings.sampling == "cyclic":
            by_stage = ([line for line in lines if line["stage"] == stage] for stage in self.stages)
            return epsilon(dict(map(self._stage_mechanism, filter(None, by_stage))), self.settings.delta)
        sums = Counter((e["stage"], e["round"], tuple(e["drawn"])) if e["drawn"] else (i,) for i, e in enumerate(lines))
        z = self.settings.noise_multiplier
        mechanisms: Counter[Mechanism] = Counter()
        for key, count in sums.items():
            drawn = Drawn(*key[2][1:]) if len(key) == 3 else None
            mechanisms[Mechanism(z / math.sqrt(count), drawn)] += 1
        return epsilon(mechanisms, self.settings.delta)

    def _stage_mechanism(self, lines: Sequence[Mapping[str, Any]]) -> tuple[Mechanism, int]:
        """The mechanism of a stage with parties in turn, and how many rounds it has had, those left out with them."""
        rounds = Counter(line["round"] for line in lines)
        draws = [Drawn(*line["drawn"][1:]) if line["drawn"] else None for line in lines]
        mechanism = self.settings.stage_mechanism(lines[0]["stage"], draws, max(rounds.values()))
        return mechanism, max(rounds) - min(rounds) + 1

    def _check_target(self, coming: Sequence[Mapping[str, Any]]) -> None:
        target = self.settings.target_epsilon
        if target is None or not coming:
            return
        if (spent := self._epsilon([*self.opened.calls, *coming])) > target:
            raise TargetReached(
                f"ε is {self.epsilon():.4g} at δ = {self.settings.delta:g}; the next round would make it {spent:.4g}, "
                f"which is above privacy.dp.target_epsilon ({target:g})"
            )


class ClippedSums:
    """The sums of one call: every reply is brought within C, and counts as one of the `asked`."""

    def __init__(
        self, private: PrivateSums, call: Call, means: Sequence[Mean], everyone: int, like: codec.Forms, drawn: Any
    ) -> None:
        self._private, self._call, self._asked_for, self._like, self._drawn = private, call, means, like, drawn
        self._asked = {"arrived": drawn[2] if drawn else len(call.to), "all": everyone}
        self.means = summed(means, lambda field: like[field].start is not None)
        self.clip = private.clip(private.before(call))
        self._within = 0.0
        """Σ (b_p − ½), where b_p says whether the norm of p's update is up to C."""

    def weight(self, message: Any) -> float:
        """min(1, C / ‖Δ‖), by which a reply counts."""
        norm = math.hypot(*(float(torch.linalg.vector_norm(change)) for change in self._changes(message)))
        self._within += 0.5 if norm <= self.clip else -0.5
        return min(1.0, self.clip / norm) if norm else 1.0

    def _changes(self, message: Any) -> Iterator[Tensor]:
        for mean in self.means:
            start = codec.by_path(mean.field, self._like[mean.field].start)
            for path, tensor in codec.by_path(mean.field, getattr(message, mean.field)).items():
                if tensor.is_floating_point():
                    yield tensor.double() - start[path].double() if path in start else tensor.double()

    def noised(self, sums: Sequence[RunningMean], arrived: Sequence[str]) -> dict[str, Any]:
        """Every mean by its name; of no replies noise alone.

        The noise is drawn by the sums themselves: of other ones it would be another.

        Raises Abandoned where this call was noised before, over other replies.
        """
        private, call, asked = self._private, self._call, self._asked["arrived"]
        for running_sum in sums if not arrived else ():  # what they would have looked like
            form = self._like[running_sum.mean.field]
            assert form.model is not None  # no mean is of a field that is free
            running_sum.add("", 0, form.model, form.start, None, 0.0)
        totals = [running_sum.total() for running_sum in sums]
        place = f"{call.stage}/{call.round}/{call.call}"
        content = noise.digest(private.secret, place, repr(self.clip), *(t.numpy().data for t in totals if len(t)))
        sigma, count_sigma = private.settings.noise(asked)
        drawn = private.draw_noise(call, content, 1 + sum(len(total) for total in totals))
        within = 0.5 + (self._within + count_sigma * float(drawn[0])) / asked
        adaptive = isinstance(private.settings.clip, AdaptiveClip)
        private.opened.record(
            call,
            self._asked_for,
            arrived,
            content,
            drawn=self._drawn,
            **({"within": within} if adaptive else {}),
            **({"noise": content} if private.settings.bands is not None else {}),
        )
        parts = torch.from_numpy(drawn[1:]).split([len(total) for total in totals])
        for total, part in zip(totals, parts, strict=True):
            total.add_(part, alpha=sigma * self.clip)
        by_field = {running_sum.mean.field: running_sum for running_sum in sums}
        return {mean.key: self._mean(mean, by_field[mean.field]) for mean in self._asked_for}

    def _mean(self, mean: Mean, running_sum: RunningMean) -> Tensor | Tensors:
        change = running_sum.result(self._asked[mean.over])
        if mean.of == "differences" or (start := self._like[mean.field].start) is None:
            return change
        if isinstance(change, Tensor):
            return (start.double() + change.double()).to(change.dtype)
        return {name: (start[name].double() + moved.double()).to(moved.dtype) for name, moved in change.items()}


def _as_line(draw: tuple[int, Drawn] | None) -> list[Any] | None:
    return None if draw is None else [draw[0], draw[1].drawing, draw[1].asked, draw[1].of]


def _number(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
