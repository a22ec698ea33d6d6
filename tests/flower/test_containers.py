"""Kits as containers: the images hold no secret, and the containers may write where they must and nowhere else.

No engine is needed: the files are read as YAML and line by line. That the fields are those of the Compose Specification
was checked by its schema when the templates were written.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from federations import NOW, write_federation

from coalface.flower.provision import kits as provisioning
from coalface.flower.provision import verify

SERVICE = {
    *("build", "image", "command", "entrypoint", "user", "init", "read_only", "cap_drop", "security_opt", "restart"),
    *("ports", "profiles", "environment", "network_mode", "tmpfs", "volumes"),
}
"""The fields of a service that the templates use."""
WRITTEN: dict[str, set[str]] = {"superlink": {"/kit/flower", "/kit/runs"}, "node": {"/kit/home"}, "proxy": set()}
"""What is kept of what a service writes."""
KITS = ("superlink", "parties/silo-00", "parties/silo-01", "parties/clinic")


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("containers")
    superlink = {"hosts": "fl.example.org", "port": 9443, "loopback_port": 9444}
    faces = {"kind": "folder", "path": "/srv/faces of $5: all"}
    parties = {"silo-00": {"role": "trainer", "faces": faces, "data": "/srv/our faces"}, "silo-01": {"role": "trainer"}}
    parties["clinic"] = {"role": "validator", "data": "/srv/our faces"}
    recipe = {"name": "faces", "method": "fedavg-fv", "data": {"scenario": "own", "parties": ["silo-00", "silo-01"]}}
    recipe["validators"] = {"clinic": {"own": True}}
    file = write_federation(folder, superlink=superlink, parties=parties)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return provisioning.make(file, folder / "kits", NOW)


def services(kit: Path) -> dict[str, dict[str, Any]]:
    composed = yaml.safe_load((kit / "compose.yaml").read_text())
    assert set(composed) == {"services"}
    return dict(composed["services"])


@pytest.mark.parametrize("kit", KITS)
def test_no_container_has_more_rights_than_it_needs(kits: Path, kit: str) -> None:
    for name, service in services(kits / kit).items():
        assert set(service) <= SERVICE, name
        assert service["user"] == "${COALFACE_USER:-1000:1000}" and service["read_only"] is True
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
        assert ("build" in service) != ("image" in service) and service.get("build", ".") == "."
        assert ("ports" in service) == (name == "superlink")


@pytest.mark.parametrize("kit", KITS)
def test_the_kit_is_read_only_and_each_place_that_is_written_has_a_folder_to_lie_on(kits: Path, kit: str) -> None:
    for name, service in services(kits / kit).items():
        mounts = {volume["target"]: volume for volume in service["volumes"]}
        assert all(volume["type"] == "bind" for volume in mounts.values())
        if name == "operator":  # it holds no secret, and writes its configuration
            assert list(mounts) == ["/kit"]
            continue
        assert mounts["/kit"] == {"type": "bind", "source": ".", "target": "/kit", "read_only": True}
        written = {target for target, volume in mounts.items() if not volume.get("read_only")}
        assert written == WRITTEN[name]
        tmpfs = {place.partition(":")[0] for place in service["tmpfs"]} - {"/tmp"}
        for place in written | tmpfs:
            assert (kits / kit / place.removeprefix("/kit/")).is_dir(), place
        assert all(mounts[place]["source"] == f".{place.removeprefix('/kit')}" for place in written)


def test_data_is_mounted_read_only_where_it_lies(kits: Path) -> None:
    def data(kit: str, service: str) -> dict[str, str]:
        volumes = services(kits / kit)[service]["volumes"]
        outside = [volume for volume in volumes if not volume["target"].startswith("/kit")]
        assert all(volume["read_only"] and volume["bind"] == {"create_host_path": False} for volume in outside)
        return {volume["target"]: volume["source"] for volume in outside}

    own = "/srv/faces of $$5: all"  # a dollar twice is one to Compose
    assert data("parties/silo-00", "node") == {path: path for path in ("/srv/our faces", own)}
    assert data("parties/clinic", "node") == {"/srv/our faces": "/srv/our faces"}
    for kit, service in (("parties/silo-01", "node"), ("superlink", "superlink")):
        assert data(kit, service)["/data"].startswith("${COALFACE_DATA:?")
        assert services(kits / kit)[service]["environment"]["COALFACE_DATA"] == "/data"


def test_no_secret_goes_into_an_image(kits: Path) -> None:
    for kit in KITS:
        assert (kits / kit / ".dockerignore").read_text().split() == ["*", "!coalface-*.whl"]
        lines = [line for line in (kits / kit / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
        instructions = [line.partition(" ")[0] for line in lines]
        assert instructions == ["FROM", "COPY", "RUN", "USER", "WORKDIR", "CMD"]
        assert lines[1] == "COPY coalface-*.whl /wheels/" and lines[3] == "USER 1000:1000"
    assert verify.check(kits, NOW) == []


def test_images_are_pinned_and_come_from_docker_hub(kits: Path) -> None:
    named = [re.findall(r"^FROM (.*)$", (kits / kit / "Dockerfile").read_text(), re.MULTILINE) for kit in KITS]
    named.append([service["image"] for service in services(kits / "superlink").values() if "image" in service])
    assert {image.partition(":")[0] for images in named for image in images} == {"python", "nginx"}
    for image in (image for images in named for image in images):
        assert re.fullmatch(r"[a-z]+:\d+\.\d+\.\d+-[a-z-]+", image), image


def test_behind_a_proxy_only_the_proxys_port_is_published(kits: Path, tmp_path: Path) -> None:
    behind = services(kits / "superlink")
    assert set(behind) == {"superlink", "proxy", "operator"} and behind["superlink"]["ports"] == ["9443:9443"]
    assert {behind[name]["network_mode"] for name in ("proxy", "operator")} == {"service:superlink"}
    assert behind["operator"]["profiles"] == ["operator"]
    plain = provisioning.make(write_federation(tmp_path / "plain"), tmp_path / "plain" / "kits", NOW)
    assert set(services(plain / "superlink")) == {"superlink", "operator"}
    assert not (plain / "superlink" / "proxy").exists()


def test_a_federation_on_the_loopback_has_none(tmp_path: Path) -> None:
    file = write_federation(tmp_path / "near", superlink={"hosts": "127.0.0.1", "port": 9443})
    near = provisioning.make(file, tmp_path / "near" / "kits", NOW)
    assert not [
        path for path in near.rglob("*") if path.name in ("Dockerfile", "compose.yaml", ".dockerignore", "home")
    ]
