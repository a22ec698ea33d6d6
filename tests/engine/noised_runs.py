"""What the tests of sums with noise in shares have in common."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from scipy import optimize
from toys import Moved, Moves, Values

from coalface.core import codec
from coalface.core.steps import StepDeclaration
from coalface.engine.party.commits import Commit
from coalface.engine.party.request import Request, SumStage
from coalface.engine.party.sums import SUM, PartySums
from coalface.engine.sums.opened import Opened
from coalface.experiments.conformance.tiny_federation import Tiny
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.secure import SecureSettings

FIVE, TWENTY = Tiny(parties=5, each=3), Tiny(parties=20, each=3)
SECURE = SecureSettings(dropouts=0.3, corrupt=0.1)
"""Of five parties one may drop out and one be corrupt; of twenty six and two."""
NOISED = PartyPrivacy(noise_multiplier=1.0, clip=5.0)
SILENT = PartyPrivacy(noise_multiplier=0.0, clip=5.0)
LOSE: dict[str, Any] = {"on_error": "exclude", "min_reply_fraction": 0.0, "max_abandoned_rounds": 9}
BITS = 21
"""Of a clip of 5 in a ring of 32 bits: 5 · 2^21 < 2^24."""


def spent(folder: Path) -> list[dict[str, Any]]:
    """The sums whose vectors were asked for."""
    return [*Opened(folder / "opened.jsonl").entries.values()]


def opened(folder: Path) -> list[dict[str, Any]]:
    """Those of them that were about to be opened."""
    return [entry for entry in spent(folder) if "sha256" in entry]


def kept_layout(folder: Path) -> bytes:
    """The digest of the layout of the parties' last sum."""
    commit = Commit.open(max((folder / "parties" / "silo-0").glob("*.commit")))
    return bytes.fromhex(json.loads(bytes(commit.read(SUM) or b"{}"))["context"]["layout"])


def rho(parties: int, sigma: int, size: int) -> float:
    """½ (Δ₂ / √h σ)² where a third may drop out and one be corrupt: of a share as wide as these none is too narrow."""
    honest = parties - math.floor(0.3 * parties) - math.ceil(0.1 * parties)
    return 0.5 * ((5 * 2**BITS + math.sqrt(size) / 2) / (math.sqrt(honest) * sigma)) ** 2


def epsilon_by_hand(total: float, delta: float = 1e-5) -> float:
    """The least of ρ α + ln(1 − 1/α) − (ln δ + ln α) / (α − 1), of all α (Canonne et al. 2020, Proposition 12)."""
    return float(
        optimize.minimize_scalar(
            lambda a: total * a + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1),
            bounds=(1.01, 300),
            method="bounded",
        ).fun
    )


def asked(**changes: Any) -> tuple[Request, StepDeclaration, codec.Forms]:
    """A request to a party, its step, and what the reply looks like."""
    start = {"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.float64)}
    common = codec.encode(Values(values=start))
    stage = SumStage("advertise", 5, (("values", "images"), ("delta", "parties")))
    about: dict[str, Any] = {"run": "a", "party": "silo-1", "stage": "train", "round": 1, "rounds": 2, "ordinal": 1}
    about |= {"call": 1, "step": "move", "common": common, "each": None, "base": None, "horizon": (0, None)}
    request = Request(**about | {"sum": stage} | changes)
    return request, Moves().steps["move"][1], codec.forms(Moved, [Values(values=start)])


def hide(place: Path, reply: Moved, secret: bytes = b"a" * 32, z: float = 1.0, **changes: Any) -> Any:
    """What a party would keep of a reply; and the party's side."""
    privacy = PartyPrivacy(noise_multiplier=z, clip=5.0)
    sums = PartySums(SECURE, lambda party: secret, place, 0, place, privacy=privacy)
    request, declaration, like = asked(**changes)
    return sums, sums.hide(request, declaration, reply, like)


def moved(by: float) -> Moved:
    start = {"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.float64)}
    values = {name: tensor + by for name, tensor in start.items()}
    return Moved(values=values, delta=values, images=3, loss=0.0)


def noise_of(place: Path, by: float, **changes: Any) -> tuple[int, ...]:
    """The noise in a vector, and nothing else of it."""
    silent, noised = (hide(place, moved(by), **changes | {"z": z})[1].vector.view("<i4") for z in (0.0, 1.0))
    return tuple((noised - silent).tolist())
