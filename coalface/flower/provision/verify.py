"""Checks of a folder of kits: expired, mismatched, misplaced, readable by others; each with what to do."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from coalface.core import disk
from coalface.core.errors import RecipeError
from coalface.experiments.recipe import loader, party_file
from coalface.flower.provision import certificates, pins, project
from coalface.flower.provision.project import ProvisionConfig
from coalface.privacy import countersign, noise
from coalface.privacy.secure_sums import signatures

T = TypeVar("T")

SOON = datetime.timedelta(days=30)
LARGEST = 1 << 16
"""Bytes of the largest file that is looked into for a private key; one takes below a kilobyte."""
AGAIN = "make new kits and hand them out"
LINK_OPTIONS = ("--enable-supernode-auth", "--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile", "--isolation")
NODE_SIGNS = ("names=$here/names.json", "sign=$here/node.key")
"""What a node's configuration says of whose signatures count in secure sums, and by which key the node signs."""
NODE_KEY = "key=$here/node.key"
"""What else it says where the party encrypts its private state."""
PARTY_KEYS = ("node.key", "home/*/sums.key", f"home/*/{noise.FILE}", f"home/*/{countersign.FOLDER}/{{name}}.key")
"""Private keys that belong in a party's kit; those of a run are made in it, and nothing else can stand for them."""
SUPERLINK_KEYS = ("superlink.key", f"runs/*/{countersign.SERVER_KEY}", f"runs/*/{noise.FILE}")
NODE_OPTIONS = ("--root-certificates", "--auth-supernode-private-key", "--isolation")


def check(kits: Path, now: datetime.datetime) -> list[str]:
    """One line for each fault, none where all is well. Raises RecipeError for what is not a folder of kits.

    Without `parties/` the kits have been handed out, which is no fault.
    """
    config = project.read_kits(kits)
    return [
        *_certificates(kits, config, now),
        *_members(kits, config),
        *_keys(kits, config),
        *_party_files(kits, config),
        *_scripts(kits, config),
        *_strays(kits, config),
        *_modes(kits),
    ]


def _certificates(kits: Path, config: ProvisionConfig, now: datetime.datetime) -> Iterator[str]:
    faults: list[str] = []
    root = _read(kits, "ca/ca.crt", bytes, faults)
    link = _read(kits, "superlink/superlink.crt", bytes, faults)
    for name in ("ca/ca.crt", "superlink/superlink.crt"):
        if (kits / name).is_file() and (validity := _read(kits, name, certificates.validity, faults)):
            yield from _time(name, *validity, now)
    key = _read(kits, "superlink/superlink.key", certificates.public_of_private, faults)
    if link is not None:
        public = _read(kits, "superlink/superlink.crt", certificates.public_of_certificate, faults)
        if key is not None and public is not None and key != public:
            yield f"superlink/superlink.crt is not of the key superlink/superlink.key: {AGAIN}"
    yield from dict.fromkeys(faults)
    if root is None or link is None or faults:
        return
    if not certificates.is_issued(link, root):
        yield f"superlink/superlink.crt is not by this CA, so no party would trust it: {AGAIN}"
    names = certificates.host_names(link)
    if lacking := [host for host in config.superlink.names if host not in names]:
        yield f"superlink/superlink.crt is not good for {', '.join(lacking)}, but for {', '.join(names)}: {AGAIN}"
    for kit in ("superlink", "operator", *(f"parties/{name}" for name in config.parties)):
        copy = kits / kit / "ca.crt"
        if copy.parent.is_dir() and (not copy.is_file() or copy.read_bytes() != root):
            yield f"{kit}/ca.crt is not this CA's certificate: copy ca/ca.crt there"


def _time(name: str, begins: datetime.datetime, ends: datetime.datetime, now: datetime.datetime) -> Iterator[str]:
    if now < begins:
        yield f"{name} holds only from {begins:%Y-%m-%d %H:%M} UTC: set this machine's clock, or wait"
    elif now >= ends:
        yield f"{name} expired on {ends:%Y-%m-%d}: {AGAIN}"
    elif now >= ends - SOON:
        yield f"{name} expires on {ends:%Y-%m-%d}, in {(ends - now).days} days: {AGAIN}"


def _members(kits: Path, config: ProvisionConfig) -> Iterator[str]:
    """Kits without a party, and parties without a kit."""
    for kit in ("superlink", "operator"):
        if not (kits / kit).is_dir():
            yield f"{kit}/ is missing: {AGAIN}"
    if not (kits / "parties").is_dir():
        return
    kit_names = {path.name for path in (kits / "parties").iterdir()}
    for name in sorted(config.parties.keys() - kit_names):
        yield f"{name} has no kit: {AGAIN}, or take it out of federation.yaml"
    for name in sorted(kit_names - config.parties.keys()):
        yield f"parties/{name} has no party: delete it, or name {name} in federation.yaml"


def _keys(kits: Path, config: ProvisionConfig) -> Iterator[str]:
    """A party's key, its public half at the operator's, and the server's list of keys must agree."""
    faults: list[str] = []
    places = [f"{kit}/names.json" for kit in ("superlink", "operator", *(f"parties/{name}" for name in config.parties))]
    lists = {
        place: _read(kits, place, signatures.read_keys, faults) for place in places if (kits / place).parent.is_dir()
    }
    whose: dict[bytes, str] = {}
    for name in config.parties:
        if not (kits / "parties" / name).is_dir():
            continue
        key = _read(kits, f"parties/{name}/node.key", certificates.public_of_private, faults)
        if key is None:
            continue
        if key in whose:
            yield f"parties/{name}/node.key is also the key of {whose[key]}: {AGAIN}"
        whose.setdefault(key, name)
        for place in (f"parties/{name}/node.pub", f"operator/keys/{name}.pub"):
            public = _read(kits, place, certificates.public_of_openssh, faults)
            if public is not None and public != key:
                yield f"{place} is not of the key parties/{name}/node.key: {AGAIN}"
        for place, names in lists.items():
            if names is not None and names.get(name) != key:
                yield f"{place} has another key for {name}, or none, so the server would leave it alone: {AGAIN}"
    for place, names in lists.items():
        for name in sorted((names or {}).keys() - config.parties.keys()):
            yield f"{place} names {name}, who is not a party: remove it"
    yield from dict.fromkeys(faults)


def _party_files(kits: Path, config: ProvisionConfig) -> Iterator[str]:
    """A party's own file must name that party and its role."""
    for name, party in config.parties.items():
        if not (kits / "parties" / name).is_dir():
            continue
        try:
            file = party_file.read(kits / "parties" / name / "party.yaml")
        except (RecipeError, OSError) as error:
            reason = disk.explained(error)
            yield f"parties/{name}/party.yaml cannot be read ({reason}): copy it from where the kits were made"
            continue
        if file.name not in (None, name):
            yield f"parties/{name}/party.yaml is that of {file.name}: {AGAIN}"
        if file.role not in (None, party.role):
            yield f"parties/{name}/party.yaml says {file.role}, and federation.yaml {party.role}: mend one of them"


def _scripts(kits: Path, config: ProvisionConfig) -> Iterator[str]:
    """Start scripts must ask for TLS and for the parties' keys, and hold a node to the secure sums and the noise that
    were agreed to: without, a run goes on and protects nobody.

    A party that encrypts must be given its key, and no other: state begun the other way is refused.
    """
    faults: list[str] = []
    pinned = _pins(kits, faults)
    options = {"superlink": LINK_OPTIONS} | {f"parties/{name}": NODE_OPTIONS for name in config.parties}
    for kit, needed in options.items():
        if not (kits / kit).is_dir() or (words := _read(kits, f"{kit}/start.sh", _command, faults)) is None:
            continue
        if lacking := [option for option in needed if option not in words]:
            yield f"{kit}/start.sh lacks {', '.join(lacking)}: put it back, or {AGAIN}"
        if "--insecure" in words:
            yield f"{kit}/start.sh has --insecure, which switches TLS off: remove it"
        name = kit.removeprefix("parties/")
        if name in config.parties:
            yield from _node_config(kit, words, config.encrypts(name), pinned)
    yield from faults


def _node_config(kit: str, words: list[str], encrypts: bool, pinned: list[str]) -> Iterator[str]:
    """What a node is told of its party, which no server changes."""
    node = shlex.split(dict(zip(words, words[1:], strict=False)).get("--node-config", ""))
    if lacking := [word for word in (*NODE_SIGNS, *pinned) if word not in node]:
        yield (
            f"{kit}/start.sh lacks {' '.join(lacking)} in its --node-config, by which the node is held to the recipe's "
            f"secure sums and noise: put it back, or {AGAIN}"
        )
    if (NODE_KEY in node) != encrypts:
        does = "leaves the private state in the clear" if encrypts else "encrypts the private state"
        yield (
            f"{kit}/start.sh {does}, and federation.yaml has `encrypt` {str(encrypts).lower()} for it: mend one of them"
        )


def _pins(kits: Path, faults: list[str]) -> list[str]:
    """What the operator's recipe promises the parties; nothing as well where the operator's kit has been handed out."""
    recipe = kits / "operator" / "project" / "recipe.yaml"
    if not (kits / "operator").is_dir():
        return []
    try:
        return pins.words(loader.load(recipe))
    except (RecipeError, OSError) as error:
        faults.append(f"operator/project/recipe.yaml cannot be read ({disk.explained(error)}): {AGAIN}")
        return []


def _command(script: bytes) -> list[str]:
    """The words of the command that a start script ends in."""
    _, begins, command = script.decode().replace("\\\n", "").partition("exec flower-")
    if not begins:
        raise ValueError("it starts no part of Flower")
    return shlex.split(command, comments=True)


def _strays(kits: Path, config: ProvisionConfig) -> Iterator[str]:
    """Private keys where none belongs, or another's."""
    belongs = {f"superlink/{key}": "the SuperLink" for key in SUPERLINK_KEYS}
    belongs |= {f"parties/{name}/{key.format(name=name)}": name for name in config.parties for key in PARTY_KEYS}
    owners: dict[str, str] = {}
    places: dict[str, list[str]] = {}
    for path in sorted(_secrets(kits)):
        below = path.relative_to(kits)
        places.setdefault(_identity(path), []).append(str(below))
        owners |= {str(below): owner for pattern, owner in belongs.items() if below.match(pattern)}
    for places_of_key in places.values():
        home = next((place for place in places_of_key if place in owners), "")
        for place in places_of_key:
            if place not in owners:
                whose = f" of {owners[home]}" if home else ""
                yield f"{place} has a private key{whose} in it, which does not belong there: delete it"
            elif place != home and not (place.startswith("parties/") and home.startswith("parties/")):
                yield f"{place} is the private key of {owners[home]}: {AGAIN}"


def _modes(kits: Path) -> Iterator[str]:
    """Secrets and the folders that they lie in must be their owner's alone."""
    modes = {path: "600" for path in _secrets(kits)}
    folders = [kits, *(kits / name for name in ("ca", "superlink", "operator", "parties")), *kits.glob("parties/*")]
    modes |= {path: "700" for path in [*folders, *kits.glob("parties/*/home")] if path.is_dir()}
    for path, mode in sorted(modes.items()):
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield f"{path.relative_to(kits)} can be read or changed by others: chmod {mode} {path}"


def _secrets(kits: Path) -> Iterator[Path]:
    """Every file with a private key in it, and those that should have one."""
    for folder, _, files in os.walk(kits):
        for name in files:
            path = Path(folder) / name
            if path.is_file() and path.stat().st_size <= LARGEST:
                if path.suffix == ".key" or b"PRIVATE KEY-----" in path.read_bytes():
                    yield path


def _identity(path: Path) -> str:
    """Which key a file holds; of one that cannot be read, its bytes."""
    data = path.read_bytes()
    with contextlib.suppress(ValueError):
        data = certificates.public_of_private(data)
    return hashlib.sha256(data).hexdigest()


def _read(kits: Path, place: str, reader: Callable[[bytes], T], faults: list[str]) -> T | None:
    """What a file holds; where it cannot be read, None and a fault."""
    try:
        return reader((kits / place).read_bytes())
    except FileNotFoundError:
        faults.append(f"{place} is missing: copy it from where the kits were made, or {AGAIN}")
    except (ValueError, OSError) as error:
        faults.append(f"{place} cannot be read ({disk.explained(error)}): {AGAIN}")
    return None
