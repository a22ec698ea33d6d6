"""The identities behind a party's private state, so that one person is never taken for another."""

from __future__ import annotations

import json
from typing import Any

from coalface.core.method import Party
from coalface.training.joint.public_images import PublicImages


def data_identity(party: Party) -> bytes:
    """Who is in a party's images and in the public ones: private state has a row for each, by their numbers.

    Which image of a person is which is left out, so that a file may be mended.
    """
    about: dict[str, Any] = {}
    public = party.extra_data.faces if isinstance(party.extra_data, PublicImages) else None
    for whose, faces in (("its", party.data), ("the public", public)):
        if faces is not None:
            about[whose] = {"images": len(faces), "identities": len(faces.names), "digest": faces.who}
    return json.dumps(about).encode()


def difference(before: bytes | bytearray | memoryview, current: bytes) -> str:
    """What is different in the images that the private state was made from, of what `data_identity` gave."""
    then, now = json.loads(bytes(before)), json.loads(current)
    whose = next(owner for owner in {**then, **now} if then.get(owner) != now.get(owner))
    counts = [
        f"{sizes['images']} of {sizes['identities']} identities" if (sizes := about.get(whose)) else "none"
        for about in (then, now)
    ]
    change = (
        "the same numbers, but other identities" if counts[0] == counts[1] else f"then {counts[0]}, now {counts[1]}"
    )
    return (
        f"{whose} images are not those that the party's private state was made from ({change}), and what it knows of "
        "one person would be taken for another's: put the data back as it was, or start a new run"
    )
