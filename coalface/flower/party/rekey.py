"""The rewriting of a party's encrypted private state under another key.

Importing this file raises RecipeError where cryptography, which Flower brings, is not installed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from coalface.core.errors import RecipeError
from coalface.engine.party.commits import Commit, LockedCommit, write_commit
from coalface.engine.party.encryption import Vault
from coalface.flower.party import daemon
from coalface.flower.provision import certificates


def vault(key: Path, run: str, party: str) -> Vault:
    """What a party's private state of a run is encrypted with; `key` is the private key of the party's node.

    Raises RecipeError where it cannot be read.
    """
    try:
        return Vault.of(certificates.secret(key.read_bytes()), run, party)
    except OSError as error:
        raise RecipeError(f"cannot read it: {error.strerror}", where=key) from None
    except ValueError:
        raise RecipeError("not the private key of a node; give the key in its kit", where=key) from None


def rekey(home: Path, old: Path | None, new: Path | None) -> int:
    """Write all private state below a party's home as its node reads it with the key `new`; returns how many files.

    `old` is the key that it was written with; None: it is in the clear. None as `new` leaves it so. All of it is read
    before anything is written, and each file is replaced whole, so that after a stop the same call goes on.

    Raises RecipeError where the party's process is at work or there is nothing, LockedCommit where a file opens with
    neither key; then nothing was changed.
    """
    if at_work := daemon.serving(home / "processes"):
        raise RecipeError(f"the party is running (process {at_work[0]}); end its node first", where=home)
    files = sorted(path for kind in ("commit", "shard") for path in home.glob(f"*/parties/*/*.{kind}"))
    if not files:
        raise RecipeError(
            "the folder has no private state; give the home of a party's node, as in its configuration", where=home
        )

    def vaults(path: Path) -> list[Vault | None]:
        run, party = path.parts[-4], path.parts[-2]
        return [None if key is None else vault(key, run, party) for key in (old, new)]

    for path in files:
        commit, _ = _open(path, *vaults(path))
        for name in commit.spans:
            commit.read(name)
    count = 0
    for path in files:
        before, after = vaults(path)
        commit, is_done = _open(path, before, after)
        if not is_done:
            parts = {name: data for name in commit.spans if (data := commit.read(name)) is not None}
            write_commit(
                path, commit.base, commit.head, parts, over=None, flush=True, shards=commit.shards, vault=after
            )
            count += 1
    return count


def _open(path: Path, before: Vault | None, after: Vault | None) -> tuple[Commit, bool]:
    """A file, and whether it is written with the new key already."""
    try:
        return Commit.open(path, before), before == after
    except LockedCommit:
        with contextlib.suppress(LockedCommit):
            return Commit.open(path, after), True
        raise
