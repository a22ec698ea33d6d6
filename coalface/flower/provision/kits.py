"""The kits of a federation: what the SuperLink, the operator and every party get, each with its own secrets only.

`ca/` stays where the kits are made; `superlink/`, `operator/` and `parties/NAME/` are handed out. The CA's key signs
the SuperLink's certificate and is then forgotten, unless a place outside the kits is named: nothing needs it again.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path

from coalface.core.disk import writing
from coalface.core.errors import RecipeError
from coalface.data import partition
from coalface.experiments.recipe import loader, party_file
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import domains
from coalface.experiments.setup.partition import POOLED
from coalface.flower.app import project as flowerproject
from coalface.flower.provision import certificates, project, templates
from coalface.flower.provision.project import ProvisionConfig
from coalface.methods import METHODS


def make(file: Path, out: Path, now: datetime.datetime, ca_key: Path | None = None) -> Path:
    """Write the kits of a federation into a new folder, whole or not at all; certificates hold from `now`.

    `ca_key` is a new file for the CA's key, outside the kits; None: it is not kept.

    Raises RecipeError where the file is wrong, the recipe does not fit it, or `out` or `ca_key` is there.
    """
    made = project.read(file)
    recipe = file.parent / made.recipe
    _check(made, recipe, file)
    out = Path(os.path.abspath(out))
    _check_free(out)
    if ca_key is not None:
        ca_key = Path(os.path.abspath(ca_key))
        if os.path.lexists(ca_key) or ca_key.is_relative_to(out):
            why = "lies in the kits, which are handed out" if ca_key.is_relative_to(out) else "is there"
            raise RecipeError(f"{ca_key} {why}: name a new file elsewhere for the CA's key")
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.parent / f".{out.name}.{uuid.uuid4().hex[:8]}"
    try:
        ca = certificates.authority(made.name, now, made.days)
        with writing(out, fresh):
            fresh.mkdir(mode=0o700)  # for the owner alone from the first byte
            _fill(fresh, made, recipe, now, out, ca)
            (fresh / "federation.yaml").write_bytes(file.read_bytes())
            _close(fresh)
            _check_free(out)
            if ca_key is not None:
                _write_key(ca_key, ca.key)
            fresh.rename(out)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return out


def _check(made: ProvisionConfig, recipe: Path, file: Path) -> None:
    """Raise RecipeError unless the recipe can be read and its parties are those of the federation."""
    if not recipe.is_file():
        raise RecipeError(
            f"{file}: recipe: {recipe} is not there; it is looked for from where the federation's file lies"
        )
    read = loader.load(recipe)
    validators, trainers = set(read.validators), set(read.own.parties if read.own is not None else ())
    for name, party in made.parties.items():
        if party.role == "validator" and name not in validators:
            raise RecipeError(f"{file}: parties.{name} is a validator, but the recipe's `validators` has no {name}")
        if party.role == "trainer" and name in validators:
            raise RecipeError(f"{file}: parties.{name}.role is trainer, but the recipe's `validators` names {name}")
        party_file.made(party.file(name), f"{file}: parties.{name}", file.parent)
        bringing = name in trainers or (name in validators and read.validators[name].own)
        if not bringing and (said := [key for key in ("faces", "pairs") if getattr(party, key) is not None]):
            raise RecipeError(
                f"{file}: parties.{name}.{said[0]}: by the recipe it brings no images of its own: leave it out (`data` "
                "is the root of the recipe's), or take a recipe with data.scenario own"
            )
        if trainers and party.role == "trainer" and name not in trainers:
            raise RecipeError(f"{file}: parties.{name} is a trainer, but the recipe's data.parties has no {name}")
    if missing := sorted(trainers - made.parties.keys()):
        raise RecipeError(f"{file}: the recipe's party {missing[0]} is none of the parties: add it, or take it out")
    if missing := sorted(validators - made.parties.keys()):
        raise RecipeError(f"{file}: the recipe's validator {missing[0]} is none of the parties: add it, or take it out")
    _check_dealt(made, read, file)


def _check_dealt(made: ProvisionConfig, recipe: Recipe, file: Path) -> None:
    """Raise RecipeError unless the trainers are those to whom the recipe deals images.

    `pooled` may be there, and the silos of a pooled method: one federation runs a recipe by several methods. Where the
    images tell who trains, nothing is known before a run.
    """
    method, assigned = METHODS[recipe.method], recipe.partition
    if method.domains:
        dealt, needed = [domains.NAMED_SOURCE, *domains.targets(recipe)], domains.parties(recipe)
    elif assigned is not None and assigned.kind in ("equal", "dirichlet", "shares"):
        shares = assigned.kind == "shares"
        dealt = sorted(assigned.shares) if shares else partition.names("silo", assigned.parties)
        needed = [POOLED] if method.pooled else dealt
    else:
        return
    if missing := [name for name in needed if name not in made.parties]:
        raise RecipeError(
            f"{file}: the recipe deals its images to {', '.join(needed)}, and {', '.join(missing)} is none of the "
            "parties: add it, or change `data` of the recipe"
        )
    known = {*dealt, POOLED, *recipe.validators}
    if extra := [name for name in made.parties if name not in known]:
        raise RecipeError(
            f"{file}: parties.{extra[0]} is a trainer to whom the recipe deals no images; it deals them to "
            f"{', '.join(dealt)}: take it out, or change `data` of the recipe"
        )


def _check_free(out: Path) -> None:
    if os.path.lexists(out):
        raise RecipeError(f"{out} is there: kits are not written over anything, name a new folder")


def _write_key(path: Path, key: bytes) -> None:
    """Write the CA's key, for its owner alone and over nothing; so is a folder that is made for it."""
    with writing(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)


def _fill(
    folder: Path, made: ProvisionConfig, recipe: Path, now: datetime.datetime, out: Path, ca: certificates.Pair
) -> None:
    """Write all of it; `out` is where it will lie."""
    link = certificates.server(ca, made.name, made.superlink.names, now, made.days)
    keys = {name: certificates.node() for name in made.parties}
    names = json.dumps({name: key.seen.hex() for name, key in keys.items()}, indent=1).encode() + b"\n"
    root = ca.certificate
    files: dict[str, bytes] = {
        "ca/ca.crt": root,
        "superlink/ca.crt": root,
        "superlink/superlink.crt": link.certificate,
        "superlink/superlink.key": link.key,
        "superlink/names.json": names,
        "superlink/start.sh": templates.superlink(made).encode(),
        "operator/ca.crt": root,
        "operator/names.json": names,
        "operator/register.sh": templates.register(made).encode(),
        "operator/run.sh": templates.run(made).encode(),
        "operator/flower/config.toml": templates.config(made, str(out / "operator" / "ca.crt")).encode(),
    }
    files |= {f"superlink/{name}": text.encode() for name, text in templates.proxy(made).items()}
    for name, key in keys.items():
        files |= {
            f"operator/keys/{name}.pub": key.public,
            f"parties/{name}/ca.crt": root,
            f"parties/{name}/node.key": key.private,
            f"parties/{name}/node.pub": key.public,
            f"parties/{name}/start.sh": templates.party(made, name).encode(),
            f"parties/{name}/party.yaml": templates.party_file(made, name).encode(),
        }
    fingerprint = hashlib.sha256(root).hexdigest()
    files |= {path: text.encode() for path, text in templates.papers(made, now, fingerprint).items()}
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with writing(folder / path):
            (folder / path).write_bytes(data)
    flowerproject.new(folder / "operator" / "project", recipe)


def _close(folder: Path) -> None:
    """Take every right from all but the owner, whatever the umask was."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700 if path.is_dir() or path.suffix == ".sh" else 0o600)
