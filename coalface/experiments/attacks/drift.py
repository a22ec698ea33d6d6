"""What the server knows to have been added to the gradients of a party's local steps.

It has sent it, or it follows from what the party has answered. In the mean of all parties that of SCAFFOLD is zero. A
pull towards the backbone that was sent, as `fedprox` and `feddyn` have it, lies nearly along the update and is left in.
"""

from __future__ import annotations

import torch

from coalface.core.method import Tensors
from coalface.experiments.attacks.base import Exchange
from coalface.methods.feddyn import FedDyn
from coalface.methods.mime import Mime, MimeLite, Point
from coalface.methods.pfm import PFM
from coalface.methods.scaffold import Scaffold


def sent_drift(exchange: Exchange) -> Tensors:
    """Name -> what each local step adds by what all were sent.

    It is β M / K of PFM, β m of MimeLite, and c + β m − λ x of Mime, whose gradients at x have the weight decay too.
    """
    method, common = exchange.run.method, exchange.sent[0]
    if isinstance(method, PFM):
        share = method.local.momentum / method.local.count(_images(exchange))
        return {name: share * m for name, m in common.momentum.items()}
    if not isinstance(method, MimeLite) or isinstance(common, Point):
        return {}
    if isinstance(method, Mime):
        return {n: m - method.local.weight_decay * common.backbone[n] for n, m in common.momentum.items()}
    return {name: method.local.momentum * m for name, m in common.momentum.items()}


class KnownDrift:
    """The drift of single parties' updates in a run; every exchange of training has to pass, in its order."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensors] = {}
        """Party -> its c_i of SCAFFOLD, or g_i of FedDyn: zero before its first round."""

    def of(self, exchange: Exchange) -> Tensors:
        """Name -> the same as `sent_drift`, with what the party keeps: c − c_i of SCAFFOLD, −g_i of FedDyn."""
        method, party = exchange.run.method, exchange.request.party
        if not isinstance(method, Scaffold | FedDyn):
            return sent_drift(exchange)
        if (update := exchange.update) is None:
            return {}
        kept = self._kept.get(party) or {n: torch.zeros_like(moved) for n, moved in update.items()}
        if isinstance(method, FedDyn):
            self._kept[party] = {n: g_i - method.alpha * update[n] for n, g_i in kept.items()}
            return {n: -g_i for n, g_i in kept.items()}
        drift = {n: c - kept[n] for n, c in exchange.sent[0].control.items()}
        way = rate_times_steps(exchange)
        self._kept[party] = {n: -update[n] / way - added for n, added in drift.items()}
        return drift


class OwnDrift(KnownDrift):
    """The drift of updates as their parties know it, who in Mime subtract what they have sent before: the gradient."""

    def of(self, exchange: Exchange) -> Tensors:
        """Name -> the same as `KnownDrift` has it, but c + β m − ∇f_i(x) of Mime."""
        party, common = exchange.request.party, exchange.sent[0]
        if not isinstance(exchange.run.method, Mime):
            return super().of(exchange)
        if isinstance(common, Point):
            self._kept[party] = exchange.reply.gradient
            return {}
        return {n: m - self._kept[party][n] for n, m in common.momentum.items()}


def rate_times_steps(exchange: Exchange) -> float:
    """η K of the local steps behind a reply."""
    local, request = exchange.run.recipe.local, exchange.request
    return local.lr_at(request.round, request.rounds) * local.count(_images(exchange))


def _images(exchange: Exchange) -> int:
    return len(exchange.run.data.data[exchange.request.party])
