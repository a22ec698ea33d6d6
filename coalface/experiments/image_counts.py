"""How many images parties say they have, as a person reads it before they count by them."""

from __future__ import annotations

from collections.abc import Mapping

from coalface.core.method import plays
from coalface.engine.replies import FEW as BOUND_FROM
from coalface.engine.rounds import FEW
from coalface.engine.transport import Member


def shares(members: Mapping[str, Member]) -> dict[str, float]:
    """Trainer -> its share of the images of all trainers."""
    images = {name: one.images for name, one in members.items() if plays(one.role, "trainer")}
    whole = sum(images.values())
    return {name: count / whole for name, count in images.items()} if whole else {}


def lines(members: Mapping[str, Member], most: float | None) -> list[str]:
    """What each party said when it joined, of up to `FEW`; then whose share is above the bound `most`."""
    share = shares(members)
    found = []
    for name, one in members.items() if len(members) <= FEW else ():
        of_all = f", {100 * share[name]:.0f} % of all" if name in share else ""
        found.append(f"{name} {one.role} {one.images:,} images of {one.identities:,} identities{of_all}")
    for name, part in share.items():
        if most is not None and len(share) >= BOUND_FROM and part > most:
            found.append(
                f"{name} has {100 * part:.4g} % of all images, as it says, and counts in a mean as if it had fewer "
                f"(engine.max_share is {most:g}); engine.max_share=1 has it count in full"
            )
    return found
