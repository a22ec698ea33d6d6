"""The kits of a federation: that Flower and TLS take them, and that each holds only its own."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import tinydomains
import yaml
from federations import DAY, FEDERATION, NOW, run_script, write_federation
from flwr.common.config import parse_config_args

from coalface.core.errors import RecipeError
from coalface.experiments.recipe import loader
from coalface.flower.app import server
from coalface.flower.provision import certificates, project, verify
from coalface.flower.provision import kits as provisioning


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return provisioning.make(write_federation(folder), folder / "kits", NOW)


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


REFUSING = """#!/bin/sh
case $* in *{known}.pub*) echo "[code: 23] Public key already in use." >&2; exit 1 ;; *{bad}.pub*) {what} ;; esac
echo "SuperNode 77 registered successfully."
"""
"""Flower's command as it answers where one key is known, and another is not taken for another reason."""


def test_keys_that_are_known_already_are_no_failure_and_all_others_are(kits: Path, tmp_path: Path) -> None:
    def registered(response: str) -> tuple[int, str]:
        (tmp_path / "flwr").write_text(REFUSING.format(known="silo-00", bad="silo-01", what=response))
        (tmp_path / "flwr").chmod(0o700)
        path = f"{tmp_path}:{os.environ['PATH']}"
        script = Path(shutil.copytree(kits / "operator", tmp_path / "operator", dirs_exist_ok=True)) / "register.sh"
        process = subprocess.run([script], env={**os.environ, "PATH": path}, capture_output=True, text=True)
        return process.returncode, process.stdout + process.stderr

    code, printed = registered("true")
    assert code == 0 and "silo-00: its key is known already" in printed and "SuperNode 77" in printed, printed
    code, printed = registered("echo '[code: 22] It is bad.' >&2; exit 1")
    assert code == 1 and "[code: 22] It is bad.\nsilo-01: not registered" in printed, printed


def check_tasks(options: argparse.Namespace, beside: list[str], address: str, root: Path | None) -> None:
    """What starts tasks is another process, at the same port, and shows that it has the secret."""
    from flwr.supercore.cli.flower_superexec import _parse_args

    assert beside[:2] == ["flower", "superexec"]
    starts = _parse_args().parse_args(beside[2:])
    secret = Path(starts.superexec_auth_secret_file)
    assert options.isolation == "process" and options.superexec_auth_secret_file == str(secret)
    assert len(secret.read_bytes()) == 32 and stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert (starts.runtime_api_address, starts.insecure) == (address, root is None) and starts.parent_pid
    assert starts.root_certificates == (None if root is None else str(root))


def test_the_start_scripts_say_what_flowers_commands_take(kits: Path, tmp_path: Path) -> None:
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    kits = Path(shutil.copytree(kits, tmp_path / "moved kits"))  # a script finds its kit wherever that lies
    (arguments, settings, umask), (beside, _, _) = run_script(kits / "superlink" / "start.sh", tmp_path / "a")
    link = _parse_args_run_superlink().parse_args(arguments)
    assert link.enable_supernode_auth and not link.insecure and (link.host, link.port) == ("0.0.0.0", 9443)
    assert link.ssl_keyfile == str(kits / "superlink" / "superlink.key") and umask == 0o077
    assert link.database == str(kits / "superlink" / "state.db")
    assert settings["COALFACE_KEYS"] == str(kits / "superlink" / "names.json")
    check_tasks(link, beside, "127.0.0.1:9443", kits / "superlink" / "ca.crt")

    script = kits / "parties" / "silo-00" / "start.sh"
    (arguments, settings, umask), (beside, _, _) = run_script(script, tmp_path / "b", "--port", "77")
    node, kit = _parse_args_run_supernode().parse_args(arguments), kits / "parties" / "silo-00"
    assert (node.superlink, node.port, node.insecure, umask) == ("fl.example.org:9443", 77, False, 0o077)
    assert (node.root_certificates, node.auth_supernode_private_key) == (str(kit / "ca.crt"), str(kit / "node.key"))
    assert parse_config_args([node.node_config]) == {
        "party": "silo-00",
        "home": str(kit / "home"),
        "data": str(kit / "party.yaml"),
        "names": str(kit / "names.json"),
        "sign": str(kit / "node.key"),
    }
    assert (kit / "names.json").read_bytes() == (kits / "superlink" / "names.json").read_bytes()
    check_tasks(node, beside, "127.0.0.1:77", None)
    assert settings["COALFACE_DATA"] == "/srv/our faces" and (kit / "home").stat().st_mode & 0o777 == 0o700
    (_, settings, _), (beside, _, _) = run_script(kits / "parties" / "clinic" / "start.sh", tmp_path / "c")
    assert "COALFACE_DATA" not in settings and "127.0.0.1:9100" in beside


def test_kits_hold_their_nodes_to_the_secure_sums_of_the_recipe(kits: Path, tmp_path: Path) -> None:
    file = write_federation(tmp_path)
    tree = yaml.safe_load((tmp_path / "recipe.yaml").read_text()) | {"privacy": {"secure": {"dropouts": 0.25}}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    held = provisioning.make(file, tmp_path / "kits", NOW)
    assert verify.check(held, NOW) == []
    for folder, pinned in ((kits, {}), (held, {"secure": True, "dropouts": 0.25, "corrupt": 0.1})):
        (arguments, _, _), *_ = run_script(folder / "parties" / "silo-00" / "start.sh", tmp_path / folder.parent.name)
        node = parse_config_args([arguments[arguments.index("--node-config") + 1]])
        assert {key: node[key] for key in ("secure", "dropouts", "corrupt") if key in node} == pinned
        assert ("secure sums" in (folder / "parties" / "silo-00" / "README.md").read_text()) is bool(pinned)


@pytest.mark.parametrize("target", [None, 8.0])
def test_the_paper_of_a_kit_says_what_bounds_the_noised_vectors_of_its_node(
    tmp_path: Path, target: float | None
) -> None:
    file = write_federation(tmp_path)
    privacy = {"secure": True, "dp": {"noise_multiplier": 2.0, "target_epsilon": target}}
    tree = yaml.safe_load((tmp_path / "recipe.yaml").read_text()) | {"privacy": privacy}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    kit = provisioning.make(file, tmp_path / "kits", NOW) / "parties" / "silo-00"
    assert ("target_epsilon=8.0" in (kit / "start.sh").read_text()) is bool(target)
    assert ("has no `target_epsilon`" in (kit / "README.md").read_text()) is not bool(target)


def test_kits_hold_their_nodes_to_the_noise_of_a_method_and_ask_for_its_target(tmp_path: Path) -> None:
    file = write_federation(tmp_path)
    tree = yaml.safe_load((tmp_path / "recipe.yaml").read_text()) | {"method": "privacyface"}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(RecipeError) as refused:
        provisioning.make(file, tmp_path / "kits", NOW)
    assert refused.value.where == "methods.privacyface" and not (tmp_path / "kits").exists()
    tree |= {"methods": {"privacyface": {"clustering": {"target_epsilon": 12.0}}}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    kit = provisioning.make(file, tmp_path / "kits", NOW) / "parties" / "silo-00"
    (arguments, _, _), *_ = run_script(kit / "start.sh", tmp_path)
    node = parse_config_args([arguments[arguments.index("--node-config") + 1]])
    pinned = {"release_noise_multiplier": 1.0, "release_delta": 1e-5, "release_target_epsilon": 12.0}
    assert {key: value for key, value in node.items() if key.startswith("release_")} == pinned
    assert "release_delta" in (kit / "README.md").read_text()


def test_the_operators_scripts_register_every_key_and_reach_the_superlink(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.cli.flower_config import read_superlink_connection

    monkeypatch.setenv("FLWR_HOME", str(kits / "operator" / "flower"))
    assert read_superlink_connection().root_certificates == str(kits / "operator" / "ca.crt")
    kit = Path(shutil.copytree(kits / "operator", tmp_path / "moved kit"))
    calls = run_script(kit / "register.sh", tmp_path / "a")
    assert [call[0][2:] for call in calls] == [
        [str(kit / "keys" / f"{name}.pub"), "hospitals", "--name", name] for name in sorted(FEDERATION["parties"])
    ]
    [(arguments, settings, _)] = run_script(kit / "run.sh", tmp_path / "b", "--run-config", "rounds=3")
    assert arguments == ["run", str(kit / "project"), "hospitals", "--run-config", "rounds=3"]
    monkeypatch.setenv("FLWR_HOME", settings["FLWR_HOME"])
    connection = read_superlink_connection("hospitals")
    assert (connection.address, connection.insecure) == ("fl.example.org:9443", False)
    assert connection.root_certificates == str(kit / "ca.crt")
    assert loader.load(kit / "project" / "recipe.yaml").digest() == loader.load(kits.parent / "recipe.yaml").digest()


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
