"""What is wrong with a folder of kits: expired, mismatched, misplaced, readable by others; each with what to do."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from coalface.core.errors import RecipeError
from coalface.experiments.recipe import party_file
from coalface.flower.provision import certificates, project, templates
from coalface.flower.provision.project import ProvisionConfig

T = TypeVar("T")

SOON = datetime.timedelta(days=30)
LARGEST = 1 << 16
"""Bytes of the largest file that is looked into for a private key; one takes below a kilobyte."""
AGAIN = "make new kits and hand them out"
LINK_OPTIONS = ("--enable-supernode-auth", "--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile", "--isolation")
NODE_OPTIONS = ("--root-certificates", "--auth-supernode-private-key", "--isolation")


def check(kits: Path, now: datetime.datetime) -> list[str]:
    """One line for each thing that is wrong, none where all is well. Raises RecipeError for what is no folder of kits.

    It is not wrong that all of `parties/` is not there, once it has been handed out.
    """
    if not (kits / "federation.yaml").is_file():
        raise RecipeError(f"{kits} has no federation.yaml: name the folder that `coalface provision` made")
    made = project.read(kits / "federation.yaml")
    return [
        *_certificates(kits, made, now),
        *_members(kits, made),
        *_keys(kits, made),
        *_party_files(kits, made),
        *_scripts(kits, made),
        *_encryption(kits, made),
        *_strays(kits, made),
        *_modes(kits),
    ]


def _certificates(kits: Path, made: ProvisionConfig, now: datetime.datetime) -> Iterator[str]:
    faults: list[str] = []
    root = _read(kits, "ca/ca.crt", bytes, faults)
    link = _read(kits, "superlink/superlink.crt", bytes, faults)
    for name, data in (("ca/ca.crt", root), ("superlink/superlink.crt", link)):
        if data is not None and (held := _read(kits, name, certificates.times, faults)) is not None:
            yield from _time(name, *held, now)
    ours, public = _read(kits, "superlink/superlink.key", certificates.of_private, faults), None
    if link is not None:
        public = _read(kits, "superlink/superlink.crt", certificates.of_certificate, faults)
    if ours is not None and public is not None and ours != public:
        yield f"superlink/superlink.crt is not of the key superlink/superlink.key: {AGAIN}"
    yield from dict.fromkeys(faults)
    if root is None or link is None or faults:
        return
    if not certificates.issued(link, root):
        yield f"superlink/superlink.crt is not by this CA, so no party would trust it: {AGAIN}"
    good = certificates.names(link)
    if lacking := [host for host in made.superlink.names if host not in good]:
        yield f"superlink/superlink.crt is not good for {', '.join(lacking)}, but for {', '.join(good)}: {AGAIN}"
    for kit in ("superlink", "operator", *(f"parties/{name}" for name in made.parties)):
        own = kits / kit / "ca.crt"
        if own.parent.is_dir() and (not own.is_file() or own.read_bytes() != root):
            yield f"{kit}/ca.crt is not this CA's certificate: copy ca/ca.crt there"


def _time(name: str, begins: datetime.datetime, ends: datetime.datetime, now: datetime.datetime) -> Iterator[str]:
    if now < begins:
        yield f"{name} holds only from {begins:%Y-%m-%d %H:%M} UTC: set this machine's clock, or wait"
    elif now >= ends:
        yield f"{name} expired on {ends:%Y-%m-%d}: {AGAIN}"
    elif now >= ends - SOON:
        yield f"{name} expires on {ends:%Y-%m-%d}, in {(ends - now).days} days: {AGAIN}"


def _members(kits: Path, made: ProvisionConfig) -> Iterator[str]:
    """Kits without a party, and parties without a kit."""
    for kit in ("superlink", "operator"):
        if not (kits / kit).is_dir():
            yield f"{kit}/ is missing: {AGAIN}"
    if not (kits / "parties").is_dir():
        return
    there = {path.name for path in (kits / "parties").iterdir()}
    for name in sorted(made.parties.keys() - there):
        yield f"{name} has no kit: {AGAIN}, or take it out of federation.yaml"
    for name in sorted(there - made.parties.keys()):
        yield f"parties/{name} is the kit of no party: delete it, or name {name} in federation.yaml"


def _keys(kits: Path, made: ProvisionConfig) -> Iterator[str]:
    """A party's key, its public half at the operator's, and what the server is told must be the same."""
    faults: list[str] = []
    told = {place: _read(kits, place, _names, faults) for place in ("superlink/names.json", "operator/names.json")}
    whose: dict[bytes, str] = {}
    for name in made.parties:
        if not (kits / "parties" / name).is_dir():
            continue
        key = _read(kits, f"parties/{name}/node.key", certificates.of_private, faults)
        if key is None:
            continue
        if key in whose:
            yield f"parties/{name}/node.key is also the key of {whose[key]}: {AGAIN}"
        whose.setdefault(key, name)
        for place in (f"parties/{name}/node.pub", f"operator/keys/{name}.pub"):
            public = _read(kits, place, certificates.of_public, faults)
            if public is not None and public != key:
                yield f"{place} is not of the key parties/{name}/node.key: {AGAIN}"
        for place, names in told.items():
            if names is not None and names.get(name) != key:
                yield f"{place} has another key for {name}, or none, so the server would leave it alone: {AGAIN}"
    for place, names in told.items():
        for name in sorted((names or {}).keys() - made.parties.keys()):
            yield f"{place} names {name}, who is no party: take it out"
    yield from dict.fromkeys(faults)


def _party_files(kits: Path, made: ProvisionConfig) -> Iterator[str]:
    """What each party's node would read of itself must be of that party, and of its role."""
    for name, party in made.parties.items():
        if not (kits / "parties" / name).is_dir():
            continue
        try:
            said = party_file.read(kits / "parties" / name / "party.yaml")
        except (RecipeError, OSError) as error:
            yield f"parties/{name}/party.yaml cannot be read ({error}): copy it from where the kits were made"
            continue
        if said.name not in (None, name):
            yield f"parties/{name}/party.yaml is that of {said.name}: {AGAIN}"
        if said.role not in (None, party.role):
            yield f"parties/{name}/party.yaml says {said.role}, and federation.yaml {party.role}: mend one of them"


def _scripts(kits: Path, made: ProvisionConfig) -> Iterator[str]:
    """Start scripts must ask for TLS and for the parties' keys: without, a run goes on and protects nobody."""
    wanted = {"superlink": LINK_OPTIONS} | {f"parties/{name}": NODE_OPTIONS for name in made.parties}
    for kit, options in wanted.items():
        script = kits / kit / "start.sh"
        if not script.is_file():
            continue
        words = script.read_text(encoding="utf-8", errors="replace").partition("exec flower-")[2].split()
        if lacking := [option for option in options if option not in words]:
            yield f"{kit}/start.sh lacks {', '.join(lacking)}: put it back, or {AGAIN}"
        if "--insecure" in words:
            yield f"{kit}/start.sh has --insecure, which switches TLS off: take it out"


def _encryption(kits: Path, made: ProvisionConfig) -> Iterator[str]:
    """A party that encrypts must be given its key, and no other: state begun the other way is refused."""
    for name in made.parties:
        script = kits / "parties" / name / "start.sh"
        if not script.is_file():
            continue
        given, wanted = templates.KEY in script.read_text(encoding="utf-8", errors="replace"), made.encrypts(name)
        if given != wanted:
            says = "encrypts the private state" if given else "leaves the private state in the clear"
            yield (
                f"parties/{name}/start.sh {says}, and federation.yaml has `encrypt` {str(wanted).lower()} for it: "
                "mend one of them"
            )


def _strays(kits: Path, made: ProvisionConfig) -> Iterator[str]:
    """Private keys where none belongs, or another's."""
    own = {"superlink/superlink.key": "the SuperLink"}
    own |= {f"parties/{name}/node.key": name for name in made.parties}
    places: dict[str, list[str]] = {}
    for path in sorted(_secrets(kits)):
        places.setdefault(_identity(path), []).append(str(path.relative_to(kits)))
    for found in places.values():
        home = next((place for place in found if place in own), None)
        for place in found:
            if place not in own:
                whose = f" of {own[home]}" if home else ""
                yield f"{place} has a private key{whose} in it, which does not belong there: delete it"
            elif place != home and not (place.startswith("parties/") and str(home).startswith("parties/")):
                yield f"{place} is the private key of {own[str(home)]}: {AGAIN}"


def _modes(kits: Path) -> Iterator[str]:
    """Secrets and the folders that they lie in must be their owner's alone."""
    wanted = {path: "600" for path in _secrets(kits)}
    folders = [kits, *(kits / name for name in ("ca", "superlink", "operator", "parties")), *kits.glob("parties/*")]
    folders += [path for path in kits.glob("parties/*/home")]
    wanted |= {path: "700" for path in folders if path.is_dir()}
    for path, mode in sorted(wanted.items()):
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
    try:
        data = certificates.of_private(data)
    except ValueError:
        pass
    return hashlib.sha256(data).hexdigest()


def _names(data: bytes) -> dict[str, bytes]:
    found = json.loads(data)
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found.values()):
        raise ValueError("it should map the parties' names to their keys")
    return {name: bytes.fromhex(key) for name, key in found.items()}


def _read(kits: Path, place: str, reader: Callable[[bytes], T], faults: list[str]) -> T | None:
    """What a file holds; where it cannot be read, None and a fault."""
    try:
        return reader((kits / place).read_bytes())
    except FileNotFoundError:
        faults.append(f"{place} is missing: copy it from where the kits were made, or {AGAIN}")
    except (ValueError, OSError) as error:
        faults.append(f"{place} cannot be read ({error}): {AGAIN}")
    return None
