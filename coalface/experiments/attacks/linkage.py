"""Linkage: whose is what leaves without a name, or is said to tell nothing of a person?

- *Templates that are sent up* carry their sender's name; by photographs of people the server finds out who it is, of
  the people of all parties where a party has several.
- *Updates of a party of one identity*, though no template is sent: the last layer's change is Σ g hᵀ, whose rows by the
  bias's change Σ g are a mean feature; where BatchNorm stands at the end, its running mean tells one, unless frozen.
- *Equivalent class embeddings* (FedFV): a client with photographs of all clients' people, who knows whom else the round
  asked, looks for the k that each was fused of. Without any the class embeddings are restored from those of many
  rounds: by one client, of the rounds in which it is asked, by clients who put together what they were sent, and by
  whoever has those of all rounds; and under their owners' names by each of these who knows the seed that the server
  draws by, as of a simulation. Fusing is in L. Liu et al., "FedFV" (2022), Eq. 5 and Section 4.4.
- *Codewords* (FedUV): a client's own change of W′ is v aᵀ, or nearly; its signs are v.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from coalface.core.method import Models, Tensors, generator
from coalface.data.held_back import by_party
from coalface.experiments.attacks.base import (
    Attack,
    Attacker,
    Exchange,
    NotAttackable,
    Outcome,
    RoundCounter,
    mean_features,
)
from coalface.experiments.attacks.fused_embeddings import (
    Fused,
    restore,
    restore_known,
    share_assigned,
    share_by_name,
    share_named,
    share_restored,
)
from coalface.experiments.attacks.updates import (
    LastLayer,
    batch_statistics_told,
    last_layer,
    own_templates,
    reading,
    to_images,
)
from coalface.experiments.prepare import PreparedRun
from coalface.methods.fedfv import FedFV
from coalface.methods.feduv import FedUV
from coalface.models.embedding import eval_mode
from coalface.training.bch_codes import Codebook

Person = tuple[str, int]
"""A party, and the number of one of its identities."""
TOGETHER = 10
"""Clients who put together what they were sent."""
ALONE = 5
"""Of these, those who are counted one by one as well."""
RECENT = 5
"""The last rounds, which tell whoever knows what was fused most: class embeddings go on changing."""
MOST_ROUNDS = 20
"""Rounds that are looked at with photographs, evenly over a run."""


class Linkage(Attack):
    """People are told apart by the mean features of photographs: of others of their images than those that are trained
    on where the recipe keeps some (`data.test`), else of those.
    """

    kind, version = "linkage", 4

    def __init__(self, run: PreparedRun, seed: int) -> None:
        super().__init__(run, seed)
        self._parties = run.data.by_role().get("trainer", [])
        held = {name: run.data.data[name] for name in self._parties}
        others = {} if run.test_images is None else by_party(run.test_images, held)
        self._photographs = {
            (party, number): faces.only([number])
            for party, faces in (others or held).items()
            for number in np.flatnonzero(faces.counts()).tolist()
        }
        self._which = "by other photographs" if others else "by the photographs trained on"
        rounds = sum(stage.rounds for stage in run.method.stages())
        evenly = np.linspace(0, rounds - 1, min(rounds, MOST_ROUNDS))
        self._rounds, self._looked_at = RoundCounter(), {1 + round(place) for place in evenly}
        self._features: tuple[int, dict[Person, Tensor]] = 0, {}
        self._hits: dict[tuple[str, Attacker, str], list[tuple[float, float]]] = defaultdict(list)
        """(what is found, what chance would find) of each look."""
        self._fused, self._open = Fused(), 0
        """`_open` is the round that is looked at, and not over."""
        self._enrolled: dict[str, tuple[Tensor, int]] = {}

    def watch(self, exchange: Exchange) -> None:
        request, method = exchange.request, self.run.method
        if isinstance(method, FedUV) and request.step == "enrol" and request.party not in self._enrolled:
            rng = generator(self.seed, "party", request.party, request.stage, request.round, request.call)
            number = exchange.sent[1]
            book = Codebook(method.code, number.users)
            self._enrolled[request.party] = book.codeword(number.user, rng), book.user_bits
        backbone: Tensors | None = getattr(exchange.sent[0], "backbone", None)
        if backbone is None:
            return
        if isinstance(method, FedFV):
            self._fused.note(request.round, exchange.sent[0].others, request.party)
        if self._rounds.count(request) not in self._looked_at:
            return
        if isinstance(method, FedFV) and self._open != request.round:
            self._conclude_round()
            self._open = request.round
            self._features_by(backbone)
        if exchange.reply is None:
            return
        if isinstance(method, FedUV) and request.party in self._enrolled and request.step == "train":
            change = exchange.reply.projection - exchange.sent[0].projection
            codeword, known = self._enrolled[request.party]
            chance = (1 + known / codeword.numel()) / 2  # the first bits are the client's number
            self._note("codeword", "server", "bits found", code_told(change, codeword, known), chance)
        self._identify(exchange, backbone)

    def outcomes(self, models: Models) -> list[Outcome]:
        self._conclude_round()
        if self._fused.rows and models.class_embeddings is not None and self.run.recipe.privacy.templates is None:
            self._restore(models.class_embeddings)
        if not self._hits:
            raise NotAttackable("neither a template, nor a code, nor the update of one person's images leaves a party")
        outcomes = []
        for (field, attacker, figure), hits in self._hits.items():
            value, chance = (100 * np.mean(hits, axis=0)).tolist()
            outcomes.append(Outcome(field, attacker, f"{figure}, %", value, chance, len(hits)))
        return outcomes

    def _note(self, field: str, attacker: Attacker, figure: str, hit: float, chance: float) -> None:
        self._hits[field, attacker, figure].append((hit, chance))

    def _identify(self, exchange: Exchange, backbone: Mapping[str, Tensor]) -> None:
        """Look for the party among all photographs, by what it has sent."""
        party = exchange.request.party
        features_told = own_templates(exchange)
        if (feature := feature_by_update(exchange)) is not None:
            features_told["backbone"] = feature[None]
        if not features_told:
            return
        features = self._features_by(backbone)
        persons, columns = list(features), torch.stack(list(features.values())).T
        for name, rows in features_told.items():
            for number, first in enumerate((rows.double() @ columns).argmax(1).tolist()):
                if (party, number) in features:
                    hit = float(persons[first] == (party, number))
                    self._note(name, "server", f"people found {self._which}", hit, 1 / len(persons))

    def _features_by(self, backbone: Mapping[str, Tensor]) -> dict[Person, Tensor]:
        """Person -> the mean feature of the photographs by the round's backbone, computed once a round."""
        if self._features[0] != self._rounds.number:
            self._features = self._rounds.number, mean_features(self.run, backbone, self._photographs)
        return self._features[1]

    def _conclude_round(self) -> None:
        """Assign the equivalent class embeddings of the round that was looked at last to people."""
        method, round_ = self.run.method, self._open
        if not isinstance(method, FedFV) or not round_:
            return
        equivalents = self._fused.rows[round_].double()
        others, fused = self._fused.drawn(round_, self._parties, method.fused, self.seed)
        features = torch.stack([self._features[1][self._parties[place], 0] for place in others])
        share = share_assigned(equivalents, features, fused)
        self._note("others", "client", f"parts assigned {self._which}", share, method.fused / len(others))
        self._open = 0

    def _restore(self, class_embeddings: Mapping[str, Tensor]) -> None:
        """Without a photograph, of what was sent: to each of some clients, to all of these, and to everybody.

        Blindly all rounds count; whoever knows what was fused takes the last ones. Counted are clients that some round
        asked.
        """
        method, rng = self.run.method, generator(self.seed, "attack", "restore")
        assert isinstance(method, FedFV)
        asked = self._fused.ever_asked
        places = [place for place, name in enumerate(self._parties) if name in asked]
        true = torch.cat([class_embeddings[self._parties[place]] for place in places]).double()
        features = torch.stack([self._features[1][name, 0] for name in self._parties])
        clients = [self._parties[place] for place in rng.permutation(len(self._parties))[:TOGETHER]]
        had = [("by one client", self._fused.rounds_of([client])) for client in clients[:ALONE]]
        had.append((f"by {len(clients)} clients together", self._fused.rounds_of(clients)))
        had.append(("from all rounds", sorted(self._fused.rows)))
        for how, rounds in had:
            rows, figure = self._fused.of_rounds(rounds), f"class embeddings restored {how}"
            directions = restore(rows, len(self._parties), method.fused, rng)
            self._note("others", "client", figure, share_restored(directions, true), share_restored(rows, true))
            named = share_named(directions, true, features, places)
            self._note("others", "client", f"people named {self._which} of {figure}", named, 1 / len(features))
            share = others_share = 0.0
            if last := rounds[-RECENT:]:
                drawn = [self._fused.drawn(number, self._parties, method.fused, self.seed) for number in last]
                parts = np.concatenate([others[fused] for others, fused in drawn])
                known = restore_known(self._fused.of_rounds(last), torch.from_numpy(parts), len(self._parties))
                share, others_share = (share_by_name(of[places], true) for of in (known, known.roll(1, 0)))
            figure = f"knowing the seed, {figure.replace('all', f'the last {RECENT}')} under the right name"
            self._note("others", "client", figure, share, others_share)


def feature_by_update(exchange: Exchange) -> Tensor | None:
    """(d,) what a reply's backbone tells of a party of one identity; None of other replies, parties and networks."""
    run, party, update = exchange.run, exchange.request.party, exchange.update
    data = run.data.data[party]
    if update is None or len(data.names) != 1:
        return None
    before = exchange.sent[0].backbone
    layer = last_layer(update, before, run.data.backbone.module)
    if layer is not None:
        return mean_feature_told(layer)
    run.data.backbone.load(before)
    after = {name: before[name] + change for name, change in update.items()}
    statistics = batch_statistics_told(before, after, run.recipe.local.work(party, len(data))[0])
    image = torch.zeros_like(to_images(data.select(np.arange(1))))
    return embedding_by_statistics(run.data.backbone.module, statistics, image.to(run.numerics.device))


def mean_feature_told(layer: LastLayer) -> Tensor:
    """(d,) the embedding that the change of a backbone's last linear layer tells, through the layer as it was sent.

    ΔW ∝ Σ g hᵀ and Δb ∝ Σ g, so h is about Σ_o Δb_o ΔW_o / Σ_o Δb_o².
    """
    change = layer.bias_change
    h = change @ layer.weight_change / change.square().sum().clamp_min(1e-30)
    return layer.weight @ h + layer.bias


def embedding_by_statistics(module: nn.Module, statistics: Mapping[str, Tensor], image: Tensor) -> Tensor | None:
    """(d,) the embedding of the mean that a BatchNorm layer was given (`batch_statistics_told`); None where none tells.

    It is the first layer that reads one number a channel. Those after it tell nothing, nor do gradients: of a batch of
    one person's images it takes off the mean, which is the person. The mean is put in its place for any image (1, …).
    """
    replaced: list[str] = []

    def replace(name: str, read: Tensor) -> Tensor:
        if replaced or read.numel() != statistics[name].shape[1]:
            return read
        replaced.append(name)
        return statistics[name][0].to(read).reshape(read.shape)

    with reading(module, statistics, replace), eval_mode(module), torch.no_grad():
        embedding: Tensor = module(image)[0].double().cpu()
    return embedding if replaced else None


def code_told(change: Tensor, codeword: Tensor, known: int) -> float:
    """The share of a codeword's bits that are the signs of the first left singular vector of a change (c, d) of W′.

    A singular vector has no sign of its own: the `known` first bits, which are the client's number and so the server's,
    give it.
    """
    signs = torch.linalg.svd(change.double(), full_matrices=False)[0][:, 0].sign()
    if (signs[:known] * codeword[:known]).sum() < 0:
        signs = -signs
    return float((signs == codeword).double().mean())
