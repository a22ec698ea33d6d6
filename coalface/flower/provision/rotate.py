"""A new key for one party's node, in kits whose other keys and certificates stay as they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

from coalface.core.checks import nearest
from coalface.core.disk import write_private
from coalface.core.errors import RecipeError
from coalface.core.parsing import read_json
from coalface.flower.provision import certificates, project

OLD = "node.key.old"
"""Beside a party's new key: the one before it, which opens what was encrypted with it."""


def rotate(kits: Path, party: str) -> list[Path]:
    """Give `party` a fresh key wherever the kits tell of it; returns the files that were written, from `kits`.

    A key that is still in the kits is kept as `node.key.old`. Files are replaced one by one, each whole; the server is
    told last, so that a call that was broken off can be repeated once the old key has been put back.

    Raises RecipeError for an unknown party, and where an old key of it has not been taken away yet.
    """
    config = project.read_kits(kits)
    nearest(party, config.parties, f"{kits}: the party")
    kit, lists = kits / "parties" / party, [kits / place / "names.json" for place in ("superlink", "operator")]
    if (kit / OLD).exists():
        raise RecipeError(
            "an earlier rotation left this key, and private state may be encrypted with it; delete it once `coalface "
            "party rekey` is done, or if nothing is encrypted, and rotate again",
            where=kit / OLD,
        )
    names = {path: read_json(path, "copy it from another kit, where it is the same") for path in lists}
    key = certificates.node()
    kit.mkdir(mode=0o700, exist_ok=True)
    if (kit / "node.key").exists():
        os.link(kit / "node.key", kit / OLD)
    files = {kit / "node.key": key.private, kit / "node.pub": key.public}
    files[kits / "operator" / "keys" / f"{party}.pub"] = key.public
    copies = {*kits.glob("parties/*/names.json"), kit / "names.json"}  # of kits that were not handed out
    for path, keys in [*((path, names[lists[0]]) for path in sorted(copies)), *names.items()]:
        files[path] = json.dumps({**keys, party: key.public_pem.hex()}, indent=1).encode() + b"\n"
    for path, data in files.items():
        write_private(path, data)
    return [path.relative_to(kits) for path in files]
