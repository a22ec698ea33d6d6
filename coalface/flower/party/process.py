"""A party's own process: plays one party of a recipe for the SuperNode that began it, message after message.

All that it writes below the party's `home` is its owner's alone, and encrypted where the node's configuration names a
`key`: see `coalface.engine.party.encryption`. It goes on with nothing that others can read or change.
"""

from __future__ import annotations

import functools
import json
import logging
import math
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
from coalface.experiments.recipe.sections import Privacy
from coalface.experiments.setup import party_data
from coalface.experiments.setup.parts import Parts
from coalface.flower.app.server import read
from coalface.flower.party import daemon, rekey
from coalface.flower.party.client import home
from coalface.flower.provision import certificates
from coalface.privacy.noise import keep_secret
from coalface.privacy.sanitised import sanitised
from coalface.privacy.secure import SecureSettings
from coalface.privacy.secure_sums import signatures
from coalface.privacy.secure_sums.keys import derive
from coalface.privacy.templates import TemplateRelease

SECRET = "sums.key"
"""In a party's folder of a run: what its keys of secure sums follow from."""
OPENED = ".opened"
"""In a party's home: over whom it has helped to open sums, in all runs, none of which can be called so."""

SUM_PINS, NOISE_PINS = ("secure", "dropouts", "corrupt"), ("noise_multiplier", "delta", "target_epsilon")
"""Words of a node's configuration: by any of them it takes part in secure sums alone, by the latter only with noise."""


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
    _check_pinned(loaded.privacy, node_config)
    file = node_config.get("data")
    with telling_passed_over(logging.getLogger(__name__).warning):
        data = party_data.party_data(loaded, name, Path(str(file)) if file else None)
    if name not in data.data:
        raise RecipeError(f"unknown party {name!r}; this run has {', '.join(sorted(data.data)[:8])}")
    folder = root / loaded.name
    permissions.make_folder(folder)
    permissions.check(root, (folder, root / "processes", root / OPENED))
    key = node_config.get("key")
    vault = rekey.vault(Path(str(key)), loaded.name, name) if key else None
    parts = Parts(loaded)
    hides: dict[str, Any] = {"secure": loaded.secure, "privacy": loaded.dp}
    setup = Setup(parts.method, lambda: data, parts.numerics(), loaded.seed, folder, **hides)
    setup.prepare()
    public = None if data.public is None else data.public.who
    context = replace(setup.context(data), flush=True, vault=vault)
    templates = loaded.privacy.templates
    if templates is not None or any(sanitised(declared.reply) for _, declared in parts.method.steps.values()):
        secret = keep_secret(folder, begun=(folder / "ledger" / f"{name}.jsonl").exists())  # which no seed tells
        noised = None if templates is None else TemplateRelease(templates, secret)
        context = replace(context, templates=noised, secret=secret)
    member = data.members()[name]
    if context.sums is not None:
        context, member = replace(context, sums=_sums(context.sums, folder, node_config)), member.untold
    return PartyService(name, member, context, loaded.name, public=public, code=provenance.code_digest(loaded))


class Unprotected(RecipeError):
    """A run hides less than its party's node is held to."""


def _check_pinned(privacy: Privacy, node_config: Mapping[str, Any]) -> None:
    """Raise Unprotected where a run hides less than the node's configuration asks for: the server changes recipes.

    Any of the words is a pin. Those of the noise need secure sums, and the parties' keys.
    """
    pins = {word: node_config[word] for word in (*SUM_PINS, *NOISE_PINS) if node_config.get(word, False) is not False}
    secure, dp, noised = privacy.secure, privacy.dp, pins.keys() & NOISE_PINS
    if not pins:
        return
    dropouts, corrupt = (float(pins.get(key, getattr(SecureSettings, key))) for key in ("dropouts", "corrupt"))
    if secure is None or secure.dropouts > dropouts or secure.corrupt < corrupt:
        raise Unprotected(
            f"this node takes part in secure sums alone, with dropouts up to {dropouts:g} and corrupt {corrupt:g} or "
            "more, and the run has others or none: have it run by the recipe that the parties agreed to, or begin the "
            f"node with another configuration ({', '.join(pins)})",
            where="privacy.secure",
        )
    if noised and not node_config.get("names"):
        raise Unprotected(
            "this node's vectors leave with noise, of which its own is a share, and without the parties' keys a server "
            "could take all others' places: begin the node with names=… and sign=… as its kit does",
            where="privacy.dp",
        )
    noise, delta = (float(pins.get(key, default)) for key, default in (("noise_multiplier", 0), ("delta", 1)))
    target = float(pins.get("target_epsilon", math.inf))
    if noised and (
        dp is None
        or dp.noise_multiplier < noise
        or dp.delta > delta
        or (target < math.inf and (dp.target_epsilon is None or dp.target_epsilon > target))
    ):
        ends = "" if target == math.inf else f", that ends at ε = {target:g} for δ = {delta:g}"
        raise Unprotected(
            f"this node's vectors leave with noise of {noise:g} or more times the clip{ends}, and the run has less or "
            "none: have it run by the recipe that the parties agreed to, or begin the node with another configuration "
            f"({', '.join(pins)})",
            where="privacy.dp",
        )


def _sums(sums: PartySums, folder: Path, node_config: Mapping[str, Any]) -> PartySums:
    """A party's part in secure sums at its own node: its secret is its own, and it signs with its node's key.

    Where its private state is encrypted the secret follows from the key of that, and lies on no disk by itself.
    Raises RecipeError where the keys cannot be read.
    """
    names = node_config.get("names")
    if key := node_config.get("key"):
        node_secret = certificates.secret(Path(str(key)).read_bytes())
        secret = derive(node_secret, "secure sums", folder.name, str(node_config["party"]))
    else:
        secret = disk.keep_secret(folder / SECRET)
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
