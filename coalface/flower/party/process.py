"""A party's own process: plays one party of a recipe for the SuperNode that began it, message after message.

All that it writes below the party's `home` is its owner's alone, and encrypted where the node's configuration names a
`key`: see `coalface.engine.party.encryption`. It goes on with nothing that others can read or change.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coalface.core import disk
from coalface.core.errors import RecipeError
from coalface.data.stores import telling_passed_over
from coalface.engine.party import permissions, service
from coalface.engine.party.service import Data, PartyService, Said
from coalface.engine.party.setup import Setup
from coalface.engine.party.sums import PartySums
from coalface.experiments import provenance
from coalface.experiments.setup import party_data
from coalface.experiments.setup.parts import Parts
from coalface.flower.app.server import read
from coalface.flower.party import daemon, rekey
from coalface.flower.party.client import home
from coalface.flower.provision import certificates, pins
from coalface.privacy.noise import keep_secret
from coalface.privacy.sanitised import sanitised
from coalface.privacy.secure_sums import signatures
from coalface.privacy.secure_sums.keys import derive
from coalface.privacy.templates import TemplateRelease

SECRET = "sums.key"
"""In a party's folder of a run: what its keys of secure sums follow from."""
OPENED, SPENT = ".opened", ".spent"
"""In a party's home, for all runs, none of which can be called so: over whom it has helped to open sums, and the ρ of
what has left with a method's own noise."""


def answers(
    recipe: Path, node_config: Mapping[str, Any], run_config: Mapping[str, Any]
) -> Callable[[str, Said, Data], tuple[Said, Data]]:
    """Who answers for the party. It builds its service at the first message, and again as long as that fails."""
    return functools.partial(service.answer, functools.cache(lambda: take(recipe, node_config, run_config)))


def take(recipe: Path, node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> PartyService:
    """The service of the party that a node's configuration names.

    Raises ValueError where it names none, RecipeError where the recipe has no such party, hides less than that asks
    for, or the key cannot be used, PermissionError where others can get at what is the party's.
    """
    root, name = home(node_config), str(node_config["party"])
    loaded = read(recipe, run_config)
    pins.check(loaded, node_config)
    file = node_config.get("data")
    with telling_passed_over(logging.getLogger(__name__).warning):
        data = party_data.party_data(loaded, name, Path(str(file)) if file else None)
    if name not in data.data:
        raise RecipeError(f"unknown party {name!r}; this run has {', '.join(sorted(data.data)[:8])}")
    folder = root / loaded.name
    permissions.make_folder(folder)
    permissions.check(root, (folder, root / "processes", root / OPENED, root / SPENT))
    key = node_config.get("key")
    vault = rekey.vault(Path(str(key)), loaded.name, name) if key else None
    parts = Parts(loaded)
    secret = functools.partial(_secret, folder, node_config)
    own: dict[str, Any] = {"secure": loaded.secure, "privacy": loaded.dp, "secret": secret}
    setup = Setup(parts.method, lambda: data, parts.numerics(), loaded.seed, folder, **own)
    setup.prepare()
    public = None if data.public is None else data.public.who
    context = replace(setup.context(data), flush=True, vault=vault)
    templates = loaded.privacy.templates
    if templates is not None or any(sanitised(declared.reply) for _, declared in parts.method.steps.values()):
        drawn = secret(begun=(folder / "ledger" / f"{name}.jsonl").exists())
        noised = None if templates is None else TemplateRelease(templates, drawn)
        context = replace(context, templates=noised, secret=drawn, spent=root / SPENT)
    member = data.members()[name]
    if context.sums is not None:
        context, member = replace(context, sums=_sums(context.sums, folder, node_config)), member.untold
    return PartyService(name, member, context, loaded.name, public=public, code=provenance.code_digest(loaded))


def _secret(folder: Path, node_config: Mapping[str, Any], *, begun: bool = False) -> bytes:
    """What the party's noise, and what it alone may tell, is drawn from; no seed tells it. Raises as `keep_secret`."""
    return _derived(folder, node_config, "noise") or keep_secret(folder, begun=begun)


def _derived(folder: Path, node_config: Mapping[str, Any], purpose: str) -> bytes | None:
    """A secret of the party in a run that follows from the key by which its private state is encrypted, and so lies on
    no disk by itself; None where that is not encrypted.
    """
    if not (key := node_config.get("key")):
        return None
    return derive(certificates.secret(Path(str(key)).read_bytes()), purpose, folder.name, str(node_config["party"]))


def _sums(sums: PartySums, folder: Path, node_config: Mapping[str, Any]) -> PartySums:
    """A party's part in secure sums at its own node: its secret is its own, and it signs with its node's key.

    Raises RecipeError where the keys cannot be read.
    """
    names = node_config.get("names")
    secret = _derived(folder, node_config, "secure sums") or disk.keep_secret(folder / SECRET)
    sums = replace(sums, secret=lambda party: secret, every_run=folder.parent / OPENED, flush=True)
    if not names:
        logging.getLogger(__name__).warning(
            "the node's configuration names no file of the parties' keys (names=…): a server that lies could take all "
            "other parties' places, and read what this one hides"
        )
        return sums
    place = Path(str(names))
    try:
        keys = signatures.read_keys(place.read_bytes())
        number = int.from_bytes(certificates.secret(Path(str(node_config["sign"])).read_bytes()), "big")
        known, verify = frozenset(keys), signatures.verifier(keys)
        return replace(sums, sign=signatures.signer(number), verify=verify, known=known)
    except (OSError, KeyError, ValueError) as error:
        raise RecipeError(f"the keys of the parties, or of this node, cannot be read: {error}", where=place) from None


def main() -> None:
    """`python -m coalface.flower.party.process PLACE WORDS WATCHED`, as `coalface.flower.party.client` starts it."""
    place, words, watched = sys.argv[1:]
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.INFO)
    recipe, node_config, run_config = json.loads(words)
    os.umask(0o077)  # for what it keeps beside its home as well, such as decoded images
    daemon.serve(Path(place), answers(Path(recipe), node_config, run_config), watched=int(watched))


if __name__ == "__main__":
    main()
