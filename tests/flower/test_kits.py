"""The kits of a federation: that Flower and TLS take them, and that each holds only its own."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import ssl
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import tinydomains
import yaml
from federations import DAY, FEDERATION, NOW, write_federation

from coalface.core.errors import RecipeError
from coalface.flower.app import server
from coalface.flower.provision import certificates, project, verify
from coalface.flower.provision import kits as provisioning

# --- what Flower and TLS make of them ---------------------------------------------------------------------------------


def greeted(superlink: Path, root: Path, host: str) -> str | None:
    """Why a client with `root` refuses a server of the kit `superlink` on loopback; None where it does not."""
    serving, dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(root))
    serving.load_cert_chain(superlink / "superlink.crt", superlink / "superlink.key")
    dialling.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 has it by itself
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(20)
                try:
                    with serving.wrap_socket(connection, server_side=True) as secured:
                        secured.sendall(b"hello")
                except OSError:
                    pass  # the client has refused

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with socket.create_connection(listening.getsockname(), timeout=20) as plain:
                with dialling.wrap_socket(plain, server_hostname=host) as secured:
                    assert secured.recv(5) == b"hello"
            return None
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        finally:
            thread.join()


def test_a_party_trusts_the_superlink_by_each_of_its_names(kits: Path) -> None:
    root = kits / "parties" / "silo-00" / "ca.crt"
    for host in ("fl.example.org", "10.0.0.7", "127.0.0.1", "localhost"):
        assert greeted(kits / "superlink", root, host) is None


def test_other_names_other_authorities_and_old_certificates_are_refused(kits: Path, tmp_path: Path) -> None:
    root = kits / "parties" / "silo-01" / "ca.crt"
    assert "match" in str(greeted(kits / "superlink", root, "elsewhere.example.org"))
    foreign_kits = provisioning.make(write_federation(tmp_path), tmp_path / "other", NOW)
    assert greeted(foreign_kits / "superlink", root, "localhost") is not None
    old_kits = provisioning.make(write_federation(tmp_path), tmp_path / "old", NOW - 366 * DAY)
    assert "expired" in str(greeted(old_kits / "superlink", old_kits / "ca" / "ca.crt", "localhost"))


def test_flowers_own_loaders_take_the_keys_and_the_server_is_told_what_nodes_show(kits: Path) -> None:
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.common.args import try_obtain_server_certificates
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

    names = json.loads((kits / "superlink" / "names.json").read_text())
    assert names.keys() == FEDERATION["parties"].keys() and len(set(names.values())) == 3
    assert (kits / "operator" / "names.json").read_text() == (kits / "superlink" / "names.json").read_text()
    for name, key in names.items():
        arguments = argparse.Namespace(
            auth_supernode_private_key=str(kits / "parties" / name / "node.key"), auth_supernode_public_key=None
        )
        pair = _try_setup_client_authentication(arguments)
        assert pair is not None and pair[0].curve.name == "secp384r1"
        public_key = public_key_to_bytes(pair[1])  # what its requests carry, and the SuperLink compares and tells
        assert public_key == try_load_public_key(kits / "operator" / "keys" / f"{name}.pub") == bytes.fromhex(key)
    kit = kits / "superlink"
    files = {"ssl_ca_certfile": "ca.crt", "ssl_certfile": "superlink.crt", "ssl_keyfile": "superlink.key"}
    assert try_obtain_server_certificates(argparse.Namespace(**{key: str(kit / file) for key, file in files.items()}))


# --- who holds what ---------------------------------------------------------------------------------------------------


def test_every_secret_lies_in_one_place_and_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        kits = provisioning.make(write_federation(tmp_path), tmp_path / "kits", NOW)
    finally:
        os.umask(before)
    secrets = {str(p.relative_to(kits)) for p in kits.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()}
    parties = {f"parties/{name}/node.key" for name in FEDERATION["parties"]}
    assert secrets == {"superlink/superlink.key", *parties}
    for path in [kits, *kits.rglob("*")]:
        mode = 0o700 if path.is_dir() or path.suffix == ".sh" else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == mode, path
    text = (kits / "README.md").read_text()
    until = f"{NOW + 365 * DAY:%Y-%m-%d}"
    assert until in text and all(f"`parties/{name}/`" in text for name in FEDERATION["parties"])
    assert all(until in (kits / kit / "README.md").read_text() for kit in ("superlink", "operator", "parties/clinic"))


def test_the_key_of_the_ca_is_kept_only_outside_the_kits_and_where_that_is_asked_for(tmp_path: Path) -> None:
    file, key = write_federation(tmp_path / "in"), tmp_path / "safe" / "ca.key"
    plain = provisioning.make(file, tmp_path / "plain", NOW)
    root = certificates.public_of_certificate((plain / "ca" / "ca.crt").read_bytes())
    keys = [path for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert keys and root not in [certificates.public_of_private(path.read_bytes()) for path in keys]
    before = os.umask(0)
    try:
        kits = provisioning.make(file, tmp_path / "kits", NOW, key)
    finally:
        os.umask(before)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    root = certificates.public_of_certificate((kits / "ca" / "ca.crt").read_bytes())
    assert certificates.public_of_private(key.read_bytes()) == root
    for place in (key, tmp_path / "more" / "ca" / "ca.key"):
        with pytest.raises(RecipeError) as error:
            provisioning.make(file, tmp_path / "more", NOW, place)
        assert error.value.where == "--ca-key" and not (tmp_path / "more").exists()


def test_nothing_is_written_over_and_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = write_federation(tmp_path / "in"), tmp_path / "there"
    out.mkdir()
    with pytest.raises(RecipeError) as error:
        provisioning.make(file, out, NOW)
    assert error.value.where == str(out)
    out.rmdir()

    def full(*arguments: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(provisioning.flowerproject, "new", full)
    with pytest.raises(OSError, match="no space left"):
        provisioning.make(file, out, NOW)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


TRAINER = {"role": "trainer"}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"superlink": {"hosts": "a", "prot": 1}}, "superlink.prot"),
        ({"superlink": {"hosts": "10.0.0.256"}}, "superlink.hosts"),
        ({"superlink": {"hosts": "a.org", "port": 9, "loopback_port": 9}}, "superlink"),
        ({"parties": {"a": {}}}, "parties.a.role"),
        ({"parties": {"a": None}}, "parties.a"),
        ({"parties": {"../a": TRAINER}}, "parties"),
        ({"parties": {"Run": TRAINER}}, "parties"),
        ({"name": 'x" y'}, "name"),
        ({"recipe": "none.yaml"}, "recipe"),
        ({"parties": {"silo-00": TRAINER}}, "parties"),
        ({"parties": {"clinic": TRAINER}}, "parties.clinic.role"),
        ({"parties": {"silo-00": {"role": "validator"}}}, "parties.silo-00"),
    ],
)
def test_a_wrong_federation_is_refused_with_its_key(tmp_path: Path, changes: dict[str, Any], where: str) -> None:
    file = write_federation(tmp_path / "in", **changes)
    with pytest.raises(RecipeError) as error:
        provisioning.make(file, tmp_path / "kits", NOW)
    assert error.value.where == f"{file}, {where}" and not (tmp_path / "kits").exists()


def test_an_unknown_key_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="parties.a.rol: .* did you mean parties.a.role"):
        project.read(write_federation(tmp_path, parties={"a": {"rol": "trainer"}}))


@pytest.mark.parametrize(("host", "listens"), [("2001:DB8::0:1", "[::]:8000"), ("::1", "[::1]:8000")])
def test_an_ipv6_host_is_dialled_in_brackets_and_answered_at_such_an_address(
    host: str, listens: str, tmp_path: Path
) -> None:
    link = {"hosts": host, "loopback_port": 9444}
    kits = provisioning.make(write_federation(tmp_path / "a", superlink=link), tmp_path / "proxied", NOW)
    address = project.read_kits(kits).superlink.address
    proxy = (kits / "superlink" / "nginx.conf").read_text()
    assert f"listen {listens} ssl;" in proxy and f"server_name {address.removesuffix(':8000')};" in proxy
    assert "--host 127.0.0.1 --port 9444" in (kits / "superlink" / "start.sh").read_text()
    kits = provisioning.make(write_federation(tmp_path / "b", superlink={"hosts": host}), tmp_path / "kits", NOW)
    link = project.read_kits(kits).superlink
    assert link.address in ("[2001:db8::1]:8000", "[::1]:8000") and {"localhost", "127.0.0.1", "::1"} <= {*link.names}
    bound = listens.rpartition(":")[0].strip("[]")
    assert f"--host {bound} --port 8000" in (kits / "superlink" / "start.sh").read_text()
    assert verify.check(kits, NOW) == []


def test_who_trains_by_the_recipe_is_who_is_provisioned_for(tmp_path: Path) -> None:
    shares = {"kind": "shares", "shares": {"north": 2, "south": 1}}

    def kits(out: str, method: str, *names: str, **data: Any) -> Path:
        file = write_federation(tmp_path, parties={name: {"role": "trainer"} for name in names})
        recipe = {"method": method, "data": {"faces": {"kind": "synthetic", "identities": 20}, **data}}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        return provisioning.make(file, tmp_path / out, NOW)

    kits("shares", "fedavg", "south", "north", partition=shares)
    kits("for both", "fedavg", "south", "north", "pooled", partition=shares)  # `--run-config method="centralized"`
    kits("pooled", "centralized", "pooled", partition=shares)
    kits("whom images tell", "fedface", "device-00", "device-19", partition={"kind": "one-identity"})
    with pytest.raises(RecipeError, match="assigns images to north, south; add south,"):
        kits("one", "fedavg", "north", partition=shares)
    with pytest.raises(RecipeError, match="assigns images to pooled; add pooled,"):
        kits("none", "centralized", "north", "south", partition=shares)
    domains = write_federation(
        tmp_path, parties={name: {"role": "trainer"} for name in ("source", "target-00", "target-02")}
    )
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tinydomains.TREE))
    with pytest.raises(RecipeError, match="assigns images to source, target-00, target-01; add target-01,"):
        provisioning.make(domains, tmp_path / "domains", NOW)
    assert not any((tmp_path / out).exists() for out in ("one", "none", "domains"))


def test_behind_a_proxy_parties_dial_it_and_the_operator_the_superlink_itself(kits: Path, tmp_path: Path) -> None:
    assert not (kits / "superlink" / "proxy.sh").exists()
    link = {"hosts": "fl.example.org", "port": 9443, "loopback_port": 9444}
    kits = provisioning.make(write_federation(tmp_path / "in", superlink=link), tmp_path / "kits", NOW)
    assert verify.check(kits, NOW) == []
    assert "--superlink fl.example.org:9443" in (kits / "parties" / "silo-00" / "start.sh").read_text()
    for file in ("flower/config.toml", "run.sh"):
        assert 'address = "127.0.0.1:9444"' in (kits / "operator" / file).read_text()
    proxy = (kits / "superlink" / "nginx.conf").read_text()
    assert "listen 9443 ssl;" in proxy and "server_name fl.example.org;" in proxy
    assert re.findall(r"location (\S+) ", proxy) == ["/v1/fleet/", "/"] and "https://127.0.0.1:9444;" in proxy
    assert os.access(kits / "superlink" / "proxy.sh", os.X_OK)


# --- the server's app -------------------------------------------------------------------------------------------------


def test_the_server_is_given_the_keys_that_the_environment_names(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COALFACE_KEYS", raising=False)
    assert server.read_keys(["silo-00"]) is None
    monkeypatch.setenv("COALFACE_KEYS", str(kits / "superlink" / "names.json"))
    keys = server.read_keys(["silo-00", "clinic"])
    key = certificates.public_of_private((kits / "parties" / "clinic" / "node.key").read_bytes())
    assert keys is not None and keys["clinic"] == key
    with pytest.raises(RecipeError, match="silo-02"):
        server.read_keys(["silo-02"])
    monkeypatch.setenv("COALFACE_KEYS", str(tmp_path / "bad.json"))
    for text in ("[]", '{"silo-00": "xy"}', '{"silo-00": 1}', "{"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(RecipeError) as error:
            server.read_keys(["silo-00"])
        assert error.value.where == "COALFACE_KEYS"
