"""The scripts and papers of the kits: how a SuperLink, a SuperNode and the operator's commands are started."""

from __future__ import annotations

import datetime
import json

import yaml

from coalface.experiments.recipe.schema import Recipe
from coalface.flower.app.templates import TEMPLATES, render
from coalface.flower.provision import pins
from coalface.flower.provision.project import LOOPBACK, LOOPBACK_6, PartyConfig, ProvisionConfig, bracketed

ANY, ANY_6 = "0.0.0.0", "::"
"""All addresses of a machine."""
TEMPLATES.filters["bracketed"] = bracketed


def render_kits(config: ProvisionConfig, now: datetime.datetime, fingerprint: str, recipe: Recipe) -> dict[str, str]:
    """Path in the kits -> text, of all scripts and papers but Flower's configuration.

    No party takes part in a run that hides less than the recipe does: see `coalface.flower.provision.pins`.
    """
    link, outside, in_containers = config.superlink, _outside(config), runs_in_containers(config)
    pinned = pins.words(recipe)
    bind = outside if link.loopback_port is None else "127.0.0.1"
    values = {
        "name": config.name,
        "link": link,
        "parties": config.parties,
        "made": f"{now:%Y-%m-%d}",
        "until": f"{now + datetime.timedelta(days=config.days):%Y-%m-%d}",
        "fingerprint": fingerprint,
        "bind": bind,
        "near": bracketed(LOOPBACK_6 if ":" in bind else "127.0.0.1"),
        "in_containers": in_containers,
        "listen": str(link.port) if outside == ANY else f"{bracketed(outside)}:{link.port}",
    }
    paths = ["README.md", "superlink/start.sh", "superlink/README.md"]
    paths += ["operator/register.sh", "operator/run.sh", "operator/README.md"]
    if link.loopback_port is not None:
        paths += ["superlink/nginx.conf", "superlink/proxy.sh"]
    paths += ["superlink/compose.yaml"] if in_containers else []
    texts = {path: render(f"kits/{path}", **values) for path in paths}
    images = {name: render(f"kits/{name.removeprefix('.')}") for name in ("Dockerfile", ".dockerignore")}
    texts |= {f"superlink/{name}": text for name, text in images.items() if in_containers}
    for number, (name, party) in enumerate(config.parties.items()):
        file = party.file(name)
        values |= {
            "party": name,
            "role": party.role,
            "data": party.data,
            "place": f"`{party.data}`" if party.data is not None else "what COALFACE_DATA names",
            "port": _port(config, number),
            "encrypts": config.encrypts(name),
            "pins": pinned,
            "secure": recipe.secure is not None,
            "noised": recipe.secure is not None and recipe.dp is not None,
            "targeted": recipe.dp is not None and recipe.dp.target_epsilon is not None,
            "released": any(word.startswith("release_") for word in pinned),
            "file": yaml.safe_dump(file, sort_keys=False, allow_unicode=True),
            "brings": "data" in file,
            "mounts": [json.dumps(path.replace("$", "$$")) for path in _places(party)],
            "asks_data": party.data is None and party.faces is None,
        }
        for path in ("start.sh", "party.yaml", "README.md", *(["compose.yaml"] if in_containers else [])):
            texts[f"parties/{name}/{path}"] = render(f"kits/party/{path}", **values)
        texts |= {f"parties/{name}/{path}": text for path, text in images.items() if in_containers}
    return texts


def runs_in_containers(config: ProvisionConfig) -> bool:
    """Whether its parts can be containers: not where they meet on the loopback, of which each container has its own."""
    return _outside(config) in (ANY, ANY_6)


def folders(config: ProvisionConfig) -> list[str]:
    """What containers write to below a kit that is read-only: a mount needs a folder to lie on."""
    if not runs_in_containers(config):
        return []
    at_superlink = ["flower", "runs", *(["proxy"] if config.superlink.loopback_port is not None else [])]
    of_parties = [f"parties/{name}/{folder}" for name in config.parties for folder in ("home", "flower")]
    return [*(f"superlink/{folder}" for folder in at_superlink), *of_parties]


def _places(party: PartyConfig) -> list[str]:
    """Where a party's data lies on its machine, outside its kit."""
    sources = [getattr(source, "path", None) for source in (party.faces, party.pairs)]
    paths = dict.fromkeys(str(path) for path in (party.data, *sources) if path is not None)
    return [path for path in paths if path.startswith("/")]


def render_flower_config(config: ProvisionConfig, root: str) -> str:
    """Flower's configuration; `root` is the path of the CA's certificate."""
    return render("kits/operator/flower/config.toml", name=config.name, link=config.superlink, root=root)


def _outside(config: ProvisionConfig) -> str:
    """Where parties are answered: at all addresses, unless only this machine can dial it; of the kind that they dial,
    as a socket for all of IPv6 takes no IPv4 in Flower's server.
    """
    link = config.superlink
    if set(link.hosts) <= {*LOOPBACK, LOOPBACK_6}:
        return LOOPBACK_6 if link.over_6 else "127.0.0.1"
    return ANY_6 if link.over_6 else ANY


def _port(config: ProvisionConfig, number: int) -> int:
    """Where a SuperNode speaks with its own processes: one of its own, so that several can run on a machine."""
    port = 9100 + number % 50000
    return port + 50000 if port in (config.superlink.port, config.superlink.loopback_port) else port
