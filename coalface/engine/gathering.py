"""The replies to the calls of a run: gathered, asked for again, bounded, counted, and accepted or abandoned."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from coalface.core import codec
from coalface.core.errors import RecipeError
from coalface.core.method import Abandoned, Answer, Backbone, Federation, Mean, Method, Tensors, plays
from coalface.data.faceset import FaceSet
from coalface.engine.client_batch import CLIENT_BATCHES, Apart, ClientBatch, ClientBatchLedger
from coalface.engine.party.request import Request, StepFailed, Unanswered
from coalface.engine.receipts import FILE, Receipts
from coalface.engine.replies import Lost, Replies, ReplyAggregator
from coalface.engine.rounds import Round, RoundPolicy
from coalface.engine.run_state import Call, Numerics, PartyStats, RunState
from coalface.engine.sums.opened import FILE as OPENED
from coalface.engine.sums.opened import Opened
from coalface.engine.sums.private import PrivateSums
from coalface.engine.sums.running import heaviest
from coalface.engine.sums.templates import TemplateReleases
from coalface.engine.transport import Reply, Transport
from coalface.engine.update_bounds import FEW, LARGE
from coalface.privacy import secure as secure_settings
from coalface.privacy.dp import BATCHED, COUNTERSIGNED, QUORUM, SAID, PartyPrivacy, check_tensors
from coalface.privacy.secure import SecureSettings
from coalface.privacy.templates import TOGETHER
from coalface.training.compute import Compute
from coalface.training.features import loaded_features
from coalface.training.joint.public_images import PublicImages

BELIEVED = 4.0
"""How many times the median number of images a party is believed to have where it is asked how far it may go."""


@dataclasses.dataclass(eq=False, repr=False)
class Gathering(Federation):
    """A run's requests to its parties, and what comes of their replies."""

    method: Method
    round_policy: RoundPolicy
    numerics: Numerics
    transport: Transport
    folder: Path
    _: dataclasses.KW_ONLY
    backbone: Backbone
    public: FaceSet | None = None
    classifier: Tensor | None = None
    privacy: PartyPrivacy | None = None
    secret: Callable[[], bytes] | None = None
    """What the noise of `privacy`, and what no party may tell, is drawn from; None in a simulation: the run's seed."""
    secure: SecureSettings | None = None
    """With it the server learns the sums of replies alone."""

    def __post_init__(self) -> None:
        method, round_policy, numerics = self.method, self.round_policy, self.numerics
        privacy, secure, folder = self.privacy, self.secure, self.folder
        if privacy is not None or secure is not None:
            if numerics.client_batch:
                raise RecipeError(BATCHED if secure is None else secure_settings.BATCHED, where="engine.client_batch")
            # by these a party's reply would change whether, and how much, another's counts
            self.round_policy = dataclasses.replace(round_policy, max_update_norm=0.0, max_share=None)
        self.initial = {name: tensor.cpu() for name, tensor in self.backbone.shared().items()}  # where replies arrive
        self.policy = self.backbone.policy
        self.extra_data = None if self.public is None else PublicImages(self.public, self.classifier)
        self.parameters = frozenset(self.initial) & frozenset(self.backbone.parameters)
        self.embedding_size = self.backbone.embedding_size
        self.at = RunState({name: PartyStats() for name in sorted(self.transport.members)})
        self._stages = method.stages()
        self._now = Round()
        folder.mkdir(parents=True, exist_ok=True)
        self._opened = Opened(folder / OPENED)
        self.private: PrivateSums | None = None
        if privacy is not None:
            if round_policy.countersign:
                raise RecipeError(COUNTERSIGNED, where="privacy.countersign")
            check_tensors(self.parameters, self.initial)
            seed, names = round_policy.seed, [stage.name for stage in self._stages]
            if secure is not None:
                secure_settings.check_shares(privacy)
            shares = secure is not None
            key = None if self.secret is None else self.secret()
            self.private = PrivateSums(privacy, self._opened, names, key, seed, shares)
        self.templates: TemplateReleases | None = None
        if round_policy.templates is not None:
            if numerics.client_batch:
                raise RecipeError(TOGETHER, where="engine.client_batch")
            self.templates = TemplateReleases(round_policy.templates, folder, [stage.name for stage in self._stages])
        self._seed = round_policy.seed if self.private is None else self.private.seed
        self._client_batches = ClientBatchLedger(folder / f"{CLIENT_BATCHES}.jsonl")
        self._receipts = Receipts(folder / FILE)
        self._left_out: dict[str, str] = {}
        """Parties of which what they keep did not hold when the run went on, and why: they are asked nothing."""

    @property
    def round(self) -> int:
        return self.at.round

    def parties(self, role: str) -> tuple[str, ...]:
        return tuple(name for name in self.at.party_stats if plays(self.transport.members[name].role, role))

    def images(self, party: str) -> int:
        return self.transport.members[party].images if self.secure is None else self.secure.most_images

    def embed(self, faces: FaceSet, backbone: Tensors) -> Tensor:
        how, weights = self.numerics, next(iter(backbone.values()))
        compute = Compute(
            device=how.device, autocast=how.autocast, channels_last=how.channels_last, dtype=weights.dtype
        )
        self.backbone.load(backbone)
        return loaded_features("the server", self.backbone, compute, faces).cpu()

    def _admit(self, call: Call, aggregate: Sequence[Mean]) -> None:
        """Have the templates counted that a call will bring."""
        if self.templates is not None:
            bases = {party: self._base(party) for party in call.to}
            self.templates.admit(call, self.method.steps[call.step][1], aggregate, bases)

    def _base(self, party: str) -> str | None:
        return self._now.accepted.get(party, self.at.accepted.get(party))

    def _requests(
        self, call: Call, failed: dict[str, str] | None, to: Sequence[str] | None = None
    ) -> Iterator[Request]:
        """The requests of a call, each made when it is dispatched, so that memory does not grow with the parties.

        `failed` takes the parties that are not reached; with None every party is. With `to` those to some parties.
        """
        ordinal, checkpointed = self.at.horizons[0]
        when = (call.stage, call.round, call.call)
        shared = {f.name: getattr(call, f.name) for f in dataclasses.fields(call) if f.name not in ("to", "each")}
        before, encoded, tries = None, None, self.round_policy.retries + 1
        for party in call.to if to is None else to:
            if failed is not None:
                dropped = self.round_policy.faults.before(self.round_policy.seed, party, when, tries)
                if why := self._left_out.get(party) or dropped:
                    failed[party] = why
                    continue
            if call.each is not None and call.each[party] is not before:  # one object for all is encoded once
                before, encoded = call.each[party], codec.encode(call.each[party])
            yield Request(
                run=self.round_policy.run,
                party=party,
                each=encoded,
                base=self._base(party),
                horizon=(ordinal, checkpointed.get(party)),
                **shared,
            )

    def _gather(
        self,
        aggregator: ReplyAggregator,
        replies: Iterator[tuple[Request, Reply] | ClientBatch | Apart],
        at_least: int | None,
        optional: bool = False,
    ) -> Answer:
        round_, call = self._now, aggregator.call
        for item in replies:
            if isinstance(item, Apart):
                round_.apart[str(item)] += 1
                continue
            for request, reply in self._take_batch(aggregator, item) if isinstance(item, ClientBatch) else (item,):
                self._take(aggregator, request, reply)
        aggregator = self._bounded(aggregator)
        self._count_call(aggregator)
        self._check_quorum(aggregator, at_least, optional)
        if self.private is None and aggregator.arrived and any(mean.once for mean in aggregator.means):
            self._opened.record(call, aggregator.means, aggregator.arrived)
        try:
            aggregated = aggregator.aggregated() if aggregator.arrived or self.private is not None else {}
        except ValueError as error:  # those with a weight are among those that failed
            raise Abandoned(str(error)) from error
        round_.losses |= aggregator.each.get("loss", {})
        answer = self._accept_replies(aggregator, aggregated, aggregator.each)
        return answer if self.private is None else answer.without_singles(SAID)

    def _ask_for_sums(
        self,
        secure: SecureSettings,
        call: Call,
        requests: Iterator[Request],
        means: Sequence[Mean],
        failed: dict[str, str],
        at_least: int | None,
    ) -> Answer:
        from coalface.engine.sums.secure import SecureReplies  # cryptography, which it needs, is an extra

        replies = SecureReplies(
            *self._of_call(call, means, failed), settings=secure, verify=self.transport.verify, privacy=self.privacy
        )
        noised = None if self.private is None else self.private.admit(call, replies.rho)

        def spend() -> None:
            if noised is not None:
                self._opened.spend(call, **noised)

        def settle() -> None:
            self._check_quorum(replies, at_least)
            self._opened.record(call, means, replies.arrived)

        try:
            for stage_requests in replies.stages(requests, spend, settle):
                for request, reply in self.transport.exchange(stage_requests):
                    self._take(replies, request, reply)
        finally:
            self._count_call(replies)
        self._now.metrics |= replies.opened.metrics
        return dataclasses.replace(self._accept_replies(replies, replies.aggregated(), {}), hidden=replies.hidden())

    def _count_call(self, replies: Replies) -> None:
        self._now.bytes.update(replies.bytes)
        self._now.asked |= set(replies.call.to)
        self._now.failed |= replies.failed
        for party in replies.failed:
            self.at.party_stats[party].failed += 1

    def _check_quorum(self, replies: Replies, at_least: int | None, optional: bool = False) -> None:
        """Raise Abandoned where too few replies count, before any sum is opened.

        Not in a round of secret draws, since it would tell who was drawn: of no replies noise alone is released. There
        `at_least` raises RecipeError.
        """
        if self.private is not None and self.private.hides_draws:
            if at_least:
                raise RecipeError(QUORUM, where="privacy.dp")
            return
        asked, failed, arrived = replies.call.to, replies.failed, replies.arrived
        share = self.round_policy.min_reply_fraction * len(asked)
        need = 0 if optional else max(1, at_least or 0, math.ceil(share - 1e-9))  # 0.55 · 100 is above 55 in floats
        if len(arrived) < need:
            reasons = "; ".join(f"{party}: {why}" for party, why in list(failed.items())[:3])
            raise Abandoned(f"{len(arrived)} of {len(asked)} replies count, {need} are needed ({reasons})")

    def _accept_replies(self, replies: Replies, aggregated: dict[str, Any], each: dict[str, Any]) -> Answer:
        self._now.accepted |= replies.accepted
        self._now.receipts += replies.receipts
        return Answer(aggregated, each, dict(sorted(replies.failed.items())), tuple(replies.arrived))

    def _take(self, aggregator: Replies, request: Request, reply: Reply, *, again: bool = False) -> None:
        """Take in a reply; of one that did not come whole, what comes when the same is asked again, in its place.

        A party trains once, and answers with what it has saved: so a reply that a simulation loses is in hand. None is
        lost when it comes `again`.
        """
        retries = self.round_policy.retries
        for attempt in range(retries + 1):
            last = attempt == retries
            failed: Exception | None = reply if isinstance(reply, Unanswered) else None
            if last or failed is None:
                if not isinstance(reply, StepFailed):
                    self._now.seen[request.party] = time.time()
                    aggregator.bytes["again"] += len(reply.data) if again or attempt else 0
                failed = aggregator.take(request, reply, None if again else attempt)
                if failed is None and not isinstance(reply, StepFailed):
                    aggregator.note(request, reply, self.transport.heads.get(request.party))
            if last or not isinstance(failed, Lost | Unanswered | codec.WireError):
                return
            if not isinstance(failed, Lost):
                ((_, reply),) = self.transport.exchange([request])

    def _bounded(self, aggregator: ReplyAggregator) -> ReplyAggregator:
        """What was gathered, or where a reply is too large beside the others, the same call gathered again.

        The median, and who answers at all, are known when all are in, and by then they are summed. So the same requests
        are asked again, which the parties answer with the replies that they have saved; the sums are those of a round
        in which a refused party did not answer, or sent a smaller update, and in which nobody else was asked.
        """
        ratio, clip = self.round_policy.max_update_norm, self.round_policy.oversized == "clip"
        bounds, images, replies = aggregator.bounds, aggregator.images, len(aggregator.arrived)
        limits = bounds.limits(ratio, replies) if ratio else {}
        beyond = bounds.beyond(limits)
        if not 0 < ratio <= LARGE:
            self._now.large |= bounds.beyond(bounds.limits(LARGE, replies), "what others sent would have it below")
        to = [party for party in aggregator.arrived if clip or party not in beyond]
        heaviest = min(aggregator.heaviest, self._heaviest([images[p] for p in to]))  # the absent hold nobody down
        weighs = self.round_policy.aggregator is None and any(isinstance(mean.by, str) for mean in aggregator.means)
        by_images = heaviest < math.inf and weighs
        held_down = by_images and any(min(images[party], aggregator.heaviest) > heaviest for party in to)
        if not limits and not held_down:
            return aggregator
        call, failed = aggregator.call, aggregator.failed
        again = self._aggregator(
            call, aggregator.means, failed, heaviest, first=bounds.norms, limits=limits if clip else {}
        )
        again.bytes.update(aggregator.bytes)
        if clip:
            self._now.clipped |= beyond
        else:
            failed |= beyond
            again.bytes["refused"] += sum(aggregator.sizes[party] for party in beyond)
        for request, reply in self.transport.exchange(self._requests(call, None, to)):
            self._take(again, request, reply, again=True)
        return again

    def _take_batch(self, aggregator: ReplyAggregator, batch: ClientBatch) -> Iterator[tuple[Request, Reply]]:
        """Take in a client batch; where that cannot be, the replies of its parties, each asked by itself."""
        try:
            aggregator.take_batch(batch)
        except Apart as error:
            self._now.apart[str(error)] += 1
            return self.transport.exchange(batch.requests)
        self._client_batches.write(batch)
        return iter(())

    def _most(self, party: str) -> int:
        """The most images that a party can say it has trained on."""
        shared = self.extra_data is not None and not self.method.public_at_server
        return self.images(party) + (len(self.extra_data.faces) if shared else 0)

    def _heaviest(self, images: Sequence[int]) -> float:
        """The most that a number of images may weigh, by the `_most` of the parties, not what they send.

        Of two parties nobody can tell whose number is wrong.
        """
        share = self.round_policy.max_share
        return math.inf if share is None or len(images) < FEW else heaviest(images, share)

    def _lengths(self, to: Sequence[str]) -> dict[str, float]:
        """How far each may be expected to go: the root of its images, where these say how many steps it takes.

        A number that is the party's word alone counts up to `BELIEVED` times the median, or a lie would go as far.
        """
        if self.round_policy.equal_steps:
            return dict.fromkeys(to, 1.0)
        images = {party: max(1, self.images(party)) for party in to}
        most = math.inf if self.round_policy.max_share is None else BELIEVED * statistics.median_low(images.values())
        return {party: math.sqrt(min(number, most)) for party, number in images.items()}

    def _of_call(self, call: Call, means: Sequence[Mean], failed: dict[str, str]) -> tuple[Any, ...]:
        """What all `Replies` to a call begin with."""
        declaration = self.method.steps[call.step][1]
        everyone = self.parties(declaration.role)
        return call, declaration, means, failed, self.round_policy, self.at.party_stats, everyone

    def _aggregator(
        self, call: Call, aggregate: Sequence[Mean], failed: dict[str, str], heaviest: float | None = None, **again: Any
    ) -> ReplyAggregator:
        declaration, images = self.method.steps[call.step][1], {party: self._most(party) for party in call.to}
        if self.private is not None:
            again["clipped"] = self.private.clipped(call, declaration, aggregate, self.parties(declaration.role))
        return ReplyAggregator(
            *self._of_call(call, aggregate, failed),
            numerics=self.numerics,
            buckets=functools.partial(self.secret_stream, "buckets", call.call),
            images=images,
            heaviest=self._heaviest([*images.values()]) if heaviest is None else heaviest,
            lengths=self._lengths(call.to),
            running_statistics=frozenset(self.initial) - self.parameters,
            **again,
        )
