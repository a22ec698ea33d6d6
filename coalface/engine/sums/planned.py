"""What secure sums add to a planned run: neighbours, threshold, rounding, and the bytes of their stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from coalface.core import codec
from coalface.core.declarations import contents
from coalface.core.errors import RecipeError
from coalface.core.method import Mean
from coalface.core.steps import StepDeclaration
from coalface.core.text import several, size
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.secure import WHERE, SecureSettings, check_call, check_installed, too_few

if TYPE_CHECKING:
    from coalface.engine.sums.hidden import HiddenMeans


@dataclass(frozen=True)
class PlannedSum:
    """The secure sum of a call, where nobody drops out."""

    hidden: HiddenMeans
    asked: int
    dropouts: int
    corrupt: int
    neighbours: int
    threshold: int
    up: dict[str, int]
    """Bytes that a party sends, by stage."""
    down: dict[str, int]
    """Bytes that it is sent beside the step's own messages."""

    def sentence(self) -> str:
        """What a dry run says."""
        rows, bits = self.hidden.rows, self.hidden.layout.bits
        complete = self.neighbours == self.asked - 1
        sparse = "" if complete else "; not all are neighbours, so signatures prove no single set of survivors to all"
        named = f"; rows of {', '.join(rows)} that one party alone changes are no secret" if rows else ""
        return (
            f"secure sums: of {several(self.asked, 'party', 'parties')} asked {self.dropouts:,} may drop out and "
            f"{self.corrupt:,} help the server; each has {several(self.neighbours, 'neighbour')}, and "
            f"{self.threshold:,} open its secrets; {bits} bits a number, so a mean is off by "
            f"{self.hidden.error:.2g} at most; a party sends {size(sum(self.up.values()))} a round, and is sent "
            f"{size(sum(self.down.values()))} beside the model{sparse}{named}{self._noised()}"
        )

    def _noised(self) -> str:
        if (shares := self.hidden.noise) is None:
            return ""
        each = f"; each adds noise of {self.hidden.share_deviation:.3g} to every number"
        return f"{each}, and {several(shares.honest, 'share')} of it are counted on"

    def messages(self) -> Iterator[tuple[str, str, str, str, int]]:
        """(way, what, kind, content, bytes) of what its stages send, for each party."""
        holds = contents(self.hidden.reply)
        names = [*self.hidden.fields, *self.hidden.numbers]
        summed = dict.fromkeys(holds[name] for name in names)
        whats = {"advertise": "keys", "share": "shares", "mask": "vector", "unmask": "shares"}
        for stage, what in whats.items():
            if stage in self.down:
                sent = "names, neighbours' keys" + (", their shares" if stage == "unmask" else "")
                yield "down", sent, f"secure sum, {stage}", "", self.down[stage]
            kind = f"{', '.join(names)} under masks" if stage == "mask" else f"secure sum, {stage}"
            yield "up", what, kind, f"sum of {', '.join(summed)}" if stage == "mask" else "", self.up[stage]

    def as_dict(self) -> dict[str, Any]:
        numbers = {key: getattr(self, key) for key in ("asked", "dropouts", "corrupt", "neighbours", "threshold")}
        layout = self.hidden.layout
        return numbers | {"bits": layout.bits, "error": self.hidden.error, "rows": self.hidden.rows, "up": self.up}


def plan(
    settings: SecureSettings,
    step: str,
    declaration: StepDeclaration,
    means: Sequence[Mean],
    like: codec.Forms,
    names: Sequence[str],
    everyone: Sequence[str],
    privacy: PartyPrivacy | None = None,
) -> PlannedSum:
    """The sum of a call to the parties `names`. Raises RecipeError where it would not hide their replies."""
    check_installed()
    from coalface.engine.sums.hidden import HiddenMeans, asked_for
    from coalface.privacy.secure_sums import messages
    from coalface.privacy.secure_sums.keys import ADVERT, SEALED
    from coalface.privacy.secure_sums.neighbours import choose
    from coalface.privacy.secure_sums.shamir import SHARE

    check_call(step, declaration, means, everyone)
    if why := too_few(settings, len(names)):
        raise RecipeError(f"step {step}: {why}", where=WHERE)
    try:
        hidden = HiddenMeans.of(settings, declaration, asked_for(means), like, len(names), privacy)
    except ValueError as error:
        raise RecipeError(f"step {step}: {error}", where=WHERE) from error
    dropouts, corrupt = settings.bounds(len(names))
    degree, threshold = choose(len(names), dropouts, corrupt)
    neighbours = [f"{place}" for place in range(degree)]
    holders = [*neighbours, ""]

    def rows(order: Sequence[str], length: int) -> torch.Tensor:
        return messages.pack_rows(order, dict.fromkeys(order, bytes(length)))

    shares = messages.pack_rows(holders, dict.fromkeys(neighbours, bytes(SEALED + 64)) | {"": bytes(64)})
    kind = torch.int32 if hidden.layout.bits == 32 else torch.int64
    up = {
        "advertise": messages.Advert(keys=torch.zeros(ADVERT, dtype=torch.uint8)),
        "share": messages.Rows(shares=shares),
        "mask": messages.Masked(vector=torch.zeros(hidden.layout.length, dtype=kind)),
        "unmask": messages.Rows(shares=rows(holders, SHARE)),
    }
    packed = messages.pack_names(names)
    adverts, sealed = rows(neighbours, ADVERT), rows(neighbours, SEALED)
    empty = messages.pack_rows(neighbours, {})
    down = {
        "share": (messages.Parties(names=packed), messages.Neighbours(adverts=adverts)),
        "mask": (messages.Parties(names=packed, sharers=packed), messages.Neighbours(adverts=adverts)),
        "unmask": (
            messages.Parties(names=packed, sharers=packed, survivors=packed),
            messages.Neighbours(adverts=adverts, sealed=sealed, confirmed=empty),
        ),
    }
    return PlannedSum(
        hidden,
        len(names),
        dropouts,
        corrupt,
        degree,
        threshold,
        {stage: codec.size(message) for stage, message in up.items()},
        {stage: sum(map(codec.size, pair)) for stage, pair in down.items()},
    )
