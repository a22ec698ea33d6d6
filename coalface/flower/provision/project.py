"""The file `federation.yaml`: the SuperLink, its parties and their roles, and how long the certificates hold."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from coalface.core.errors import RecipeError
from coalface.core.parsing import parse_yaml, read_text
from coalface.experiments.recipe.base import Section, first_error
from coalface.experiments.recipe.party_file import Pairs
from coalface.experiments.recipe.sections import OneSource, PartyName

HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62})(\.[A-Za-z0-9-]{1,63})*")
LOOPBACK = ("localhost", "127.0.0.1")
"""What the SuperLink's certificate is always good for: its own ServerApp reaches it there."""
LOOPBACK_6 = "::1"
"""And what it is where the SuperLink listens on IPv6."""
PARTS = ("superlink", "run")
"""The parts of a federation that are no party: the SuperLink with the server, and the log of the run."""


class SuperLink(Section):
    """Where the SuperLink is reached."""

    hosts: tuple[str, ...] = Field(min_length=1)
    """Names or addresses, one or a list; the first is the one that parties and the operator dial."""
    port: int = Field(8000, ge=1, le=65535)
    """Where the parties dial."""
    loopback_port: int | None = Field(None, ge=1, le=65535)
    """Where the SuperLink itself listens, on its own machine alone, if a reverse proxy stands at `port`; the operator
    works on that machine. None: no proxy, it listens at `port`, and whoever reaches it can start runs."""

    @model_validator(mode="after")
    def _are_two_ports(self) -> SuperLink:
        if self.loopback_port == self.port:
            raise ValueError("the proxy listens at `port`; give loopback_port another number")
        return self

    @field_validator("hosts", mode="before")
    @classmethod
    def _make_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("hosts")
    @classmethod
    def _are_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            numeric = host.rpartition(".")[2].isdigit()  # an address with a slip: no resolver takes it for a name
            if not is_address(host) and (numeric or not HOST.fullmatch(host)):
                raise ValueError(
                    f"{host!r} is not a host; give a name such as fl.example.org or an address, without a port"
                )
        return tuple(str(ipaddress.ip_address(host)) if is_address(host) else host for host in value)

    @property
    def address(self) -> str:
        """What the parties dial: `HOST:PORT`."""
        return f"{bracketed(self.hosts[0])}:{self.port}"

    @property
    def own(self) -> tuple[str, int]:
        """The host and port of the SuperLink itself, past any proxy."""
        return (self.hosts[0], self.port) if self.loopback_port is None else ("127.0.0.1", self.loopback_port)

    @property
    def own_address(self) -> str:
        """What the operator dials: `HOST:PORT`."""
        host, port = self.own
        return f"{bracketed(host)}:{port}"

    @property
    def names(self) -> tuple[str, ...]:
        """Every name and address that its certificate must hold."""
        return tuple(dict.fromkeys((*self.hosts, *LOOPBACK, *([LOOPBACK_6] if self.over_6 else []))))

    @property
    def over_6(self) -> bool:
        """Whether the parties dial an IPv6 address."""
        return ":" in self.hosts[0]


class PartyConfig(Section):
    """A party: what it does, and where its data lies on its own machine."""

    role: Literal["trainer", "validator"]
    data: str | None = None
    """The root of the data on the party's machine; None: what COALFACE_DATA says there."""
    faces: OneSource | None = None
    """Images of its own, where the recipe has parties bring them: on its machine, from its kit unless absolute. A path
    alone is one of identity folders. None: the party says it in its `party.yaml`."""
    pairs: Pairs | None = None
    """A validator's own list of pairs of them."""
    encrypt: bool | None = None
    """Whether its private state is encrypted on its disk, with the key of its node; None: what the federation says."""

    @field_validator("faces", mode="before")
    @classmethod
    def _read_path(cls, value: Any) -> Any:
        return {"kind": "folder", "path": value} if isinstance(value, str) else value

    def file(self, name: str) -> dict[str, Any]:
        """What its `party.yaml` says: see `coalface.experiments.recipe.party_file`."""
        content: dict[str, Any] = {"name": name, "role": self.role}
        if self.faces is not None:
            content["data"] = {"kind": self.faces.kind, **self.faces.model_dump(mode="json", exclude_defaults=True)}
        if self.pairs is not None:
            content["pairs"] = self.pairs.model_dump(exclude_defaults=True)
        return content


class ProvisionConfig(Section):
    """Who takes part, and over which SuperLink."""

    name: PartyName
    superlink: SuperLink
    days: int = Field(365, ge=1, le=3650)
    """How long the certificates hold."""
    recipe: str
    """The recipe that is run: a path from where this file lies, or the name of an included one."""
    encrypt: bool = False
    """Whether parties encrypt their private state, where they do not say it themselves."""
    parties: dict[PartyName, PartyConfig] = Field(min_length=1)

    @field_validator("parties")
    @classmethod
    def _have_folders_of_their_own(cls, value: dict[str, PartyConfig]) -> dict[str, PartyConfig]:
        if reserved := [name for name in value if name.lower() in PARTS]:
            raise ValueError(f"{reserved[0]!r} is reserved: every federation has a part of this name; rename the party")
        if len({name.lower() for name in value}) < len(value):
            raise ValueError("two names differ in case only and share a folder on some disks; rename one")
        return value

    def encrypts(self, party: str) -> bool:
        """Whether a party's private state is encrypted on its disk."""
        choice = self.parties[party].encrypt
        return self.encrypt if choice is None else choice


def read(path: Path) -> ProvisionConfig:
    """The federation of a file. Raises RecipeError for what is wrong, for an unknown key with the nearest known one."""
    try:
        tree = parse_yaml(read_text(path))
        if not isinstance(tree, dict):
            raise ValueError("a federation is a mapping of keys, such as `recipe: silos.yaml`")
        return ProvisionConfig.model_validate(tree)
    except ValidationError as error:
        fault = first_error(ProvisionConfig, error, "a federation")
        raise RecipeError(fault.text, where=f"{path}, {fault.where}" if fault.where else path) from None
    except ValueError as error:
        raise RecipeError(str(error), where=path) from None


def read_kits(kits: Path) -> ProvisionConfig:
    """The federation of a folder of kits. Raises RecipeError for what is not one."""
    if not (kits / "federation.yaml").is_file():
        raise RecipeError("it has no federation.yaml; give a folder that `coalface provision` made", where=kits)
    return read(kits / "federation.yaml")


def bracketed(host: str) -> str:
    """A host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def is_address(host: str) -> bool:
    """Whether it is an IP address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
