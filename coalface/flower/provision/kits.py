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
from coalface.experiments.recipe import included, loader, party_file
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import domains
from coalface.experiments.setup.partition import POOLED
from coalface.flower.app import project as flowerproject
from coalface.flower.provision import certificates, kit_texts, pins, project
from coalface.flower.provision.project import ProvisionConfig
from coalface.methods import METHODS


def make(file: Path, out: Path, now: datetime.datetime, ca_key: Path | None = None) -> Path:
    """Write the kits of a federation into a new folder, whole or not at all; certificates hold from `now`.

    `ca_key` is a new file for the CA's key, outside the kits; None: it is not kept.

    Raises RecipeError where the file is wrong, the recipe does not fit it, or `out` or `ca_key` exists.
    """
    file = included.locate(file)
    config = project.read(file)
    recipe = included.locate(config.recipe, file)
    loaded = _check(config, recipe, file)
    out = Path(os.path.abspath(out))
    _check_free(out)
    if ca_key is not None:
        ca_key = Path(os.path.abspath(ca_key))
        if os.path.lexists(ca_key) or ca_key.is_relative_to(out):
            fault = "lies in the kits, which others receive" if ca_key.is_relative_to(out) else "exists"
            raise RecipeError(f"{ca_key} {fault}; give a new file elsewhere", where="--ca-key")
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.parent / f".{out.name}.{uuid.uuid4().hex[:8]}"
    try:
        ca = certificates.authority(config.name, now, config.days)
        with writing(out, fresh):
            fresh.mkdir(mode=0o700)  # for the owner alone from the first byte
            _fill(fresh, config, loaded, now, out, ca)
            flowerproject.new(fresh / "operator" / "project", recipe)
            (fresh / "federation.yaml").write_bytes(file.read_bytes())
            for path in [fresh, *fresh.rglob("*")]:  # whatever the umask was
                path.chmod(0o700 if path.is_dir() or path.suffix == ".sh" else 0o600)
            _check_free(out)
            if ca_key is not None:
                _write_key(ca_key, ca.key)
            fresh.rename(out)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return out


def _check(config: ProvisionConfig, recipe: Path, file: Path) -> Recipe:
    """The recipe. Raises RecipeError unless it can be read and its parties are those of the federation."""
    loaded = loader.load(recipe)
    pins.check_bounded(loaded)
    validators, trainers = set(loaded.validators), set(loaded.own.parties if loaded.own is not None else ())
    for name, party in config.parties.items():
        where = f"{file}, parties.{name}"
        if party.role == "validator" and name not in validators:
            raise RecipeError("the recipe's `validators` does not name this validator", where=where)
        if party.role == "trainer" and name in validators:
            raise RecipeError("the recipe's `validators` names this trainer", where=f"{where}.role")
        party_file.parse(party.file(name), f"{file}, parties.{name}", file.parent)
        brings = name in trainers or (name in validators and loaded.validators[name].own)
        if not brings and (image_keys := [key for key in ("faces", "pairs") if getattr(party, key) is not None]):
            raise RecipeError(
                "the recipe has this party bring no images; remove this key (`data` is the root of the recipe's), or "
                "use a recipe with `data: {scenario: own}`",
                where=f"{where}.{image_keys[0]}",
            )
        if trainers and party.role == "trainer" and name not in trainers:
            raise RecipeError("the recipe's data.parties does not name this trainer", where=where)
    if missing := sorted((trainers | validators) - config.parties.keys()):
        raise RecipeError(f"the recipe's party {missing[0]} is missing; add it", where=f"{file}, parties")
    _check_assigned(config, loaded, file)
    return loaded


def _check_assigned(config: ProvisionConfig, recipe: Recipe, file: Path) -> None:
    """Raise RecipeError unless the trainers are those to whom the recipe deals images.

    `pooled` may be there, and the silos of a pooled method: one federation runs a recipe by several methods. Where the
    images tell who trains, nothing is known before a run.
    """
    method, partition = METHODS[recipe.method], recipe.partition
    if method.scenario == "domains":
        assigned, needed = [domains.NAMED_SOURCE, *domains.targets(recipe)], domains.parties(recipe)
    elif (names := partition.names() if partition is not None else None) is not None:
        assigned, needed = names, [POOLED] if method.pools else names
    else:
        return
    if missing := [name for name in needed if name not in config.parties]:
        raise RecipeError(
            f"the recipe assigns images to {', '.join(needed)}; add {', '.join(missing)}, or change `data` of the "
            "recipe",
            where=f"{file}, parties",
        )
    known_parties = {*assigned, POOLED, *recipe.validators}
    if extra := [name for name in config.parties if name not in known_parties]:
        raise RecipeError(
            f"the recipe assigns this trainer no images, but {', '.join(assigned)}; remove it, or change `data` of "
            "the recipe",
            where=f"{file}, parties.{extra[0]}",
        )


def _check_free(out: Path) -> None:
    if os.path.lexists(out):
        raise RecipeError("it already exists; name a new folder", where=out)


def _write_key(path: Path, key: bytes) -> None:
    """Write the CA's key, for its owner alone and over nothing; so is a folder that is made for it."""
    with writing(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)


def _fill(
    folder: Path,
    config: ProvisionConfig,
    recipe: Recipe,
    now: datetime.datetime,
    out: Path,
    ca: certificates.Pair,
) -> None:
    """Write all of it but the operator's project; `out` is where it will lie."""
    link = certificates.server(ca, config.name, config.superlink.names, now, config.days)
    keys = {name: certificates.node() for name in config.parties}
    names = json.dumps({name: key.public_pem.hex() for name, key in keys.items()}, indent=1).encode() + b"\n"
    root = ca.certificate
    files = {f"{place}/ca.crt": root for place in ("ca", "superlink", "operator")}
    files |= {"superlink/superlink.crt": link.certificate, "superlink/superlink.key": link.key}
    files |= {"superlink/names.json": names, "operator/names.json": names}
    for name, key in keys.items():
        files |= {f"operator/keys/{name}.pub": key.public, f"parties/{name}/ca.crt": root}
        files |= {f"parties/{name}/node.key": key.private, f"parties/{name}/node.pub": key.public}
        files[f"parties/{name}/names.json"] = names
    texts = kit_texts.render_kits(config, now, hashlib.sha256(root).hexdigest(), recipe)
    texts["operator/flower/config.toml"] = kit_texts.render_flower_config(config, str(out / "operator" / "ca.crt"))
    files |= {path: text.encode() for path, text in texts.items()}
    for path in kit_texts.folders(config):
        (folder / path).mkdir(parents=True)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with writing(folder / path):
            (folder / path).write_bytes(data)
