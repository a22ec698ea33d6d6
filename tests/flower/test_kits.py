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
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tinydomains
import yaml
from federations import DAY, FEDERATION, NOW, written
from typer.testing import CliRunner

from coalface.cli.main import app
from coalface.core.errors import RecipeError
from coalface.experiments.recipe import loader
from coalface.flower.app import server
from coalface.flower.provision import certificates, project, verify
from coalface.flower.provision import kits as provisioning


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return provisioning.make(written(folder), folder / "kits", NOW)


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


@pytest.mark.parametrize("host", ["fl.example.org", "10.0.0.7", "127.0.0.1", "localhost"])
def test_a_party_trusts_the_superlink_by_each_of_its_names(made: Path, host: str) -> None:
    assert greeted(made / "superlink", made / "parties" / "silo-00" / "ca.crt", host) is None


def test_other_names_other_authorities_and_old_certificates_are_refused(made: Path, tmp_path: Path) -> None:
    root = made / "parties" / "silo-01" / "ca.crt"
    assert "match" in str(greeted(made / "superlink", root, "elsewhere.example.org"))
    other = provisioning.make(written(tmp_path), tmp_path / "other", NOW)
    assert greeted(other / "superlink", root, "localhost") is not None
    old = provisioning.make(written(tmp_path), tmp_path / "old", NOW - 366 * DAY)
    assert "expired" in str(greeted(old / "superlink", old / "ca" / "ca.crt", "localhost"))


def test_flowers_own_loaders_take_the_keys_and_the_server_is_told_what_nodes_show(made: Path) -> None:
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.common.args import try_obtain_server_certificates
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

    names = json.loads((made / "superlink" / "names.json").read_text())
    assert names.keys() == FEDERATION["parties"].keys() and len(set(names.values())) == 3
    assert (made / "operator" / "names.json").read_text() == (made / "superlink" / "names.json").read_text()
    for name, key in names.items():
        given = argparse.Namespace(
            auth_supernode_private_key=str(made / "parties" / name / "node.key"), auth_supernode_public_key=None
        )
        pair = _try_setup_client_authentication(given)
        assert pair is not None and pair[0].curve.name == "secp384r1"
        shown = public_key_to_bytes(pair[1])  # what its requests carry, and the SuperLink compares and tells
        assert shown == try_load_public_key(made / "operator" / "keys" / f"{name}.pub") == bytes.fromhex(key)
    own = made / "superlink"
    files = {"ssl_ca_certfile": "ca.crt", "ssl_certfile": "superlink.crt", "ssl_keyfile": "superlink.key"}
    assert try_obtain_server_certificates(argparse.Namespace(**{key: str(own / file) for key, file in files.items()}))


STAND_IN = """#!{python}
import json, os, sys
kept = {{k: v for k, v in os.environ.items() if k.startswith(("FLWR_", "COALFACE_"))}}
umask = os.umask(0)
with open({log!r}, "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], kept, umask]) + "\\n")
"""


REFUSING = """#!/bin/sh
case $* in *{known}.pub*) echo "[code: 23] Public key already in use." >&2; exit 1 ;; *{bad}.pub*) {what} ;; esac
echo "SuperNode 77 registered successfully."
"""
"""Flower's command as it answers where one key is known, and another is not taken for another reason."""


def test_keys_that_are_known_already_are_no_failure_and_all_others_are(made: Path, tmp_path: Path) -> None:
    def registered(what: str) -> tuple[int, str]:
        (tmp_path / "flwr").write_text(REFUSING.format(known="silo-00", bad="silo-01", what=what))
        (tmp_path / "flwr").chmod(0o700)
        path = f"{tmp_path}:{os.environ['PATH']}"
        script = Path(shutil.copytree(made / "operator", tmp_path / "operator", dirs_exist_ok=True)) / "register.sh"
        done = subprocess.run([script], env={**os.environ, "PATH": path}, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, told = registered("true")
    assert code == 0 and "silo-00: its key is known already" in told and "SuperNode 77" in told, told
    code, told = registered("echo '[code: 22] It is bad.' >&2; exit 1")
    assert code == 1 and "[code: 22] It is bad.\nsilo-01: not registered" in told, told


def started(script: Path, tmp_path: Path, *more: str) -> list[tuple[list[str], dict[str, str], int]]:
    """The commands of a script, by stand-ins: arguments, settings, umask; what it begins besides Flower comes last."""
    log = tmp_path / "log.jsonl"
    (tmp_path / "bin").mkdir(parents=True)
    for name in ("flower-superlink", "flower-supernode", "flwr", "coalface"):
        (tmp_path / "bin" / name).write_text(STAND_IN.format(python=sys.executable, log=str(log)))
        (tmp_path / "bin" / name).chmod(0o700)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FLWR_", "COALFACE_"))}
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    subprocess.run([script, *more], env={**clean, "PATH": path}, check=True, cwd="/", capture_output=True)  # to the end
    lines = sorted([json.loads(line) for line in log.read_text().splitlines()], key=lambda line: line[0] == "coalface")
    quiet = ["TELEMETRY_ENABLED=0", "DISABLE_UPDATE_CHECK=1", "DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"]
    for _, _, settings, _ in lines:
        assert set(quiet) <= {f"{key.removeprefix('FLWR_')}={value}" for key, value in settings.items()}
    return [(arguments, settings, umask) for _, arguments, settings, umask in lines]


def check_tasks(given: argparse.Namespace, beside: list[str], address: str, root: Path | None) -> None:
    """What starts tasks is another process, at the same port, and shows that it has the secret."""
    from flwr.supercore.cli.flower_superexec import _parse_args

    assert beside[:2] == ["flower", "superexec"]
    starts = _parse_args().parse_args(beside[2:])
    secret = Path(starts.superexec_auth_secret_file)
    assert given.isolation == "process" and given.superexec_auth_secret_file == str(secret)
    assert len(secret.read_bytes()) == 32 and stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert (starts.runtime_api_address, starts.insecure) == (address, root is None) and starts.parent_pid
    assert starts.root_certificates == (None if root is None else str(root))


def test_the_start_scripts_say_what_flowers_commands_take(made: Path, tmp_path: Path) -> None:
    from flwr.common.config import parse_config_args
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    kits = Path(shutil.copytree(made, tmp_path / "moved kits"))  # a script finds its kit wherever that lies
    (arguments, settings, umask), (beside, _, _) = started(kits / "superlink" / "start.sh", tmp_path / "a")
    link = _parse_args_run_superlink().parse_args(arguments)
    assert link.enable_supernode_auth and not link.insecure and (link.host, link.port) == ("0.0.0.0", 9443)
    assert link.ssl_keyfile == str(kits / "superlink" / "superlink.key") and umask == 0o077
    assert link.database == str(kits / "superlink" / "state.db")
    assert settings["COALFACE_KEYS"] == str(kits / "superlink" / "names.json")
    check_tasks(link, beside, "127.0.0.1:9443", kits / "superlink" / "ca.crt")

    script = kits / "parties" / "silo-00" / "start.sh"
    (arguments, settings, umask), (beside, _, _) = started(script, tmp_path / "b", "--port", "77")
    node, own = _parse_args_run_supernode().parse_args(arguments), kits / "parties" / "silo-00"
    assert (node.superlink, node.port, node.insecure, umask) == ("fl.example.org:9443", 77, False, 0o077)
    assert (node.root_certificates, node.auth_supernode_private_key) == (str(own / "ca.crt"), str(own / "node.key"))
    assert parse_config_args([node.node_config]) == {
        "party": "silo-00",
        "home": str(own / "home"),
        "data": str(own / "party.yaml"),
    }
    check_tasks(node, beside, "127.0.0.1:77", None)
    assert settings["COALFACE_DATA"] == "/srv/our faces" and (own / "home").stat().st_mode & 0o777 == 0o700
    (_, settings, _), (beside, _, _) = started(kits / "parties" / "clinic" / "start.sh", tmp_path / "c")
    assert "COALFACE_DATA" not in settings and "127.0.0.1:9100" in beside


def test_the_operators_scripts_register_every_key_and_reach_the_superlink(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.cli.flower_config import read_superlink_connection

    monkeypatch.setenv("FLWR_HOME", str(made / "operator" / "flower"))
    assert read_superlink_connection().root_certificates == str(made / "operator" / "ca.crt")
    kit = Path(shutil.copytree(made / "operator", tmp_path / "moved kit"))
    calls = started(kit / "register.sh", tmp_path / "a")
    assert [call[0][2:] for call in calls] == [
        [str(kit / "keys" / f"{name}.pub"), "hospitals", "--name", name] for name in sorted(FEDERATION["parties"])
    ]
    [(arguments, settings, _)] = started(kit / "run.sh", tmp_path / "b", "--run-config", "rounds=3")
    assert arguments == ["run", str(kit / "project"), "hospitals", "--run-config", "rounds=3"]
    monkeypatch.setenv("FLWR_HOME", settings["FLWR_HOME"])
    connection = read_superlink_connection("hospitals")
    assert (connection.address, connection.insecure) == ("fl.example.org:9443", False)
    assert connection.root_certificates == str(kit / "ca.crt")
    assert loader.load(kit / "project" / "recipe.yaml").digest() == loader.load(made.parent / "recipe.yaml").digest()


# --- who holds what ---------------------------------------------------------------------------------------------------


def test_every_secret_lies_in_one_place_and_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = provisioning.make(written(tmp_path), tmp_path / "kits", NOW)
    finally:
        os.umask(before)
    secrets = {str(p.relative_to(made)) for p in made.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()}
    parties = {f"parties/{name}/node.key" for name in FEDERATION["parties"]}
    assert secrets == {"superlink/superlink.key", *parties}
    for path in [made, *made.rglob("*")]:
        wanted = 0o700 if path.is_dir() or path.suffix == ".sh" else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    text = (made / "README.md").read_text()
    until = f"{NOW + 365 * DAY:%Y-%m-%d}"
    assert until in text and all(f"`parties/{name}/`" in text for name in FEDERATION["parties"])
    assert all(until in (made / kit / "README.md").read_text() for kit in ("superlink", "operator", "parties/clinic"))


def test_the_key_of_the_ca_is_kept_outside_the_kits_where_that_is_asked_for_and_nowhere_else(tmp_path: Path) -> None:
    def made(out: str, *words: str) -> tuple[int, str]:
        told = CliRunner().invoke(app, ["provision", str(file), "--out", str(tmp_path / out), *words])
        return told.exit_code, told.output + str(told.exception)

    file, key = written(tmp_path / "in"), tmp_path / "safe" / "ca.key"
    code, said = made("plain")
    assert code == 0 and "the CA's key is not kept" in said
    assert not [path for path in tmp_path.rglob("*") if "ca.key" in path.name]
    before = os.umask(0)
    try:
        code, said = made("kits", "--ca-key", str(key))
    finally:
        os.umask(before)
    assert code == 0 and f"the CA's key is in {key}" in said
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    root = (tmp_path / "kits" / "ca" / "ca.crt").read_bytes()
    assert certificates.of_private(key.read_bytes()) == certificates.of_certificate(root)
    for place in (key, tmp_path / "more" / "ca" / "ca.key"):
        code, said = made("more", "--ca-key", str(place))
        assert code == 1 and "name a new file elsewhere for the CA's key" in said and not (tmp_path / "more").exists()


def test_nothing_is_written_over_and_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = written(tmp_path / "in"), tmp_path / "there"
    out.mkdir()
    with pytest.raises(RecipeError, match="there is there: kits are not written over anything"):
        provisioning.make(file, out, NOW)
    out.rmdir()

    def full(*arguments: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(provisioning.flowerproject, "new", full)
    with pytest.raises(OSError, match="no space left"):
        provisioning.make(file, out, NOW)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"superlink": {"hosts": "a", "prot": 1}},
            "superlink.prot is not a key of a federation; did you mean superlin",
        ),
        ({"party": {}}, "party is not a key of a federation; did you mean parties"),
        ({"parties": {"a": {"rol": "trainer"}}}, "parties.a.rol is not .* did you mean parties.a.role"),
        ({"parties": {"a": {}}}, "parties.a.role is missing"),
        ({"parties": {"a": None}}, "parties.a needs keys of its own, at least role; got None"),
        ({"superlink": "fl.example.org"}, "superlink needs keys of its own, at least hosts; got 'fl.example.org'"),
        ({"superlink": {"host": "fl.example.org"}}, "superlink.host is not .* did you mean superlink.hosts"),
        ({"parties": {"a": {"role": "trainer", "dta": 1}}}, "parties.a.dta is not .* did you mean parties.a.data"),
        ({"parties": {"a": {"role": "server"}}}, "parties.a.role is trainer or validator, and not 'server'"),
        ({"parties": {"a": {"role": "trainr"}}}, "and not 'trainr'; did you mean trainer"),
        ({"parties": {"a": {"role": 3}}}, "parties.a.role is trainer or validator, and not 3"),
        ({"parties": {"../a": {"role": "trainer"}}}, "'../a' cannot be the name of a party"),
        ({"name": 'x" y'}, "cannot be the name of a party"),
        ({"superlink": {"hosts": ["https://a"]}}, "'https://a' is no host"),
        ({"superlink": {"hosts": "10.0.0.256"}}, "'10.0.0.256' is no host"),
        (
            {"superlink": {"hosts": "a.org", "port": 9, "loopback_port": 9}},
            "loopback_port: the proxy listens",
        ),
        ({"days": 0}, "days: Input should be greater than or equal to 1"),
        ({"recipe": "none.yaml"}, "none.yaml is not there"),
        ({"parties": {"silo-00": {"role": "trainer"}}}, "the recipe's validator clinic is none of the parties"),
        ({"parties": {"clinic": {"role": "trainer"}}}, "clinic.role is trainer, but the recipe's `validators` names"),
        ({"parties": {"silo-00": {"role": "validator"}}}, "parties.silo-00 is a validator, but the recipe's"),
        ({"parties": {"superlink": {"role": "trainer"}}}, "parties.superlink: a part of every federation that is no"),
        ({"parties": {"Run": {"role": "trainer"}}}, "parties.Run: a part of every federation that is no party"),
        (
            {"parties": {name: role for name, role in FEDERATION["parties"].items() if name != "silo-01"}},
            "deals its images to silo-00, silo-01, and silo-01 is none of the parties: add it",
        ),
        (
            {"parties": {**FEDERATION["parties"], "bob": {"role": "trainer"}}},
            "parties.bob is a trainer to whom the recipe deals no images; it deals them to silo-00, silo-01: take it",
        ),
    ],
)
def test_a_wrong_federation_is_refused_with_what_is_right(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        provisioning.make(written(tmp_path / "in", **changes), tmp_path / "kits", NOW)
    assert not (tmp_path / "kits").exists()


def test_one_host_may_stand_by_itself_and_ipv6_is_dialled_in_brackets(tmp_path: Path) -> None:
    read = project.read(written(tmp_path, superlink={"hosts": "2001:DB8::0:1"}))
    assert read.superlink.address == "[2001:db8::1]:8000"
    assert read.superlink.names == ("2001:db8::1", "localhost", "127.0.0.1", "::1")
    kits = provisioning.make(tmp_path / "federation.yaml", tmp_path / "kits", NOW)
    assert verify.check(kits, NOW) == []
    assert "--host :: --port 8000" in (kits / "superlink" / "start.sh").read_text()
    assert "listens at [::]:8000" in (kits / "superlink" / "README.md").read_text()


@pytest.mark.parametrize(("host", "listens"), [("2001:db8::1", "[::]:8000"), ("::1", "[::1]:8000")])
def test_an_ipv6_host_is_answered_at_such_an_address(host: str, listens: str, tmp_path: Path) -> None:
    link = {"hosts": host, "loopback_port": 9444}
    kits = provisioning.make(written(tmp_path / "a", superlink=link), tmp_path / "proxied", NOW)
    proxy = (kits / "superlink" / "nginx.conf").read_text()
    assert f"listen {listens} ssl;" in proxy and f"server_name [{host}];" in proxy
    assert "--host 127.0.0.1 --port 9444" in (kits / "superlink" / "start.sh").read_text()
    kits = provisioning.make(written(tmp_path / "b", superlink={"hosts": host}), tmp_path / "kits", NOW)
    bound = listens.rpartition(":")[0].strip("[]")
    assert f"--host {bound} --port 8000" in (kits / "superlink" / "start.sh").read_text()


def test_who_trains_by_the_recipe_is_who_is_provisioned_for(tmp_path: Path) -> None:
    shares = {"kind": "shares", "shares": {"north": 2, "south": 1}}

    def kits(out: str, method: str, *names: str, **data: Any) -> Path:
        file = written(tmp_path, parties={name: {"role": "trainer"} for name in names})
        recipe = {"method": method, "data": {"faces": {"kind": "synthetic", "identities": 20}, **data}}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        return provisioning.make(file, tmp_path / out, NOW)

    kits("shares", "fedavg", "south", "north", partition=shares)
    kits("for both", "fedavg", "south", "north", "pooled", partition=shares)  # `--run-config method="centralized"`
    kits("pooled", "centralized", "pooled", partition=shares)
    kits("whom images tell", "fedface", "device-00", "device-19", partition={"kind": "one-identity"})
    with pytest.raises(RecipeError, match="deals its images to north, south, and south is none"):
        kits("one", "fedavg", "north", partition=shares)
    with pytest.raises(RecipeError, match="deals its images to pooled, and pooled is none"):
        kits("none", "centralized", "north", "south", partition=shares)
    domains = written(tmp_path, parties={name: {"role": "trainer"} for name in ("source", "target-00", "target-02")})
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tinydomains.TREE))
    with pytest.raises(RecipeError, match="deals its images to source, target-00, target-01, and target-01 is none"):
        provisioning.make(domains, tmp_path / "domains", NOW)
    assert not any((tmp_path / out).exists() for out in ("one", "none", "domains"))


def test_behind_a_proxy_parties_dial_it_and_the_operator_the_superlink_itself(made: Path, tmp_path: Path) -> None:
    link = {"hosts": "fl.example.org", "port": 9443, "loopback_port": 9444}
    kits = provisioning.make(written(tmp_path / "in", superlink=link), tmp_path / "kits", NOW)
    assert verify.check(kits, NOW) == []
    assert "--superlink fl.example.org:9443" in (kits / "parties" / "silo-00" / "start.sh").read_text()
    assert 'address = "127.0.0.1:9444"' in (kits / "operator" / "flower" / "config.toml").read_text()
    assert 'address = "127.0.0.1:9444"' in (kits / "operator" / "run.sh").read_text()
    assert "--host 127.0.0.1 --port 9444" in (kits / "superlink" / "start.sh").read_text()
    proxy = (kits / "superlink" / "nginx.conf").read_text()
    assert "listen 9443 ssl;" in proxy and "server_name fl.example.org;" in proxy
    assert re.findall(r"location (\S+) ", proxy) == ["/v1/fleet/", "/"] and "https://127.0.0.1:9444;" in proxy
    assert os.access(kits / "superlink" / "proxy.sh", os.X_OK)
    assert "127.0.0.1:9444, for all users" in (kits / "README.md").read_text()
    assert not (made / "superlink" / "proxy.sh").exists()
    assert "--host 0.0.0.0 --port 9443" in (made / "superlink" / "start.sh").read_text()


# --- the server's app -------------------------------------------------------------------------------------------------


def test_the_server_is_given_the_keys_that_the_environment_names(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COALFACE_KEYS", raising=False)
    assert server.keys(["silo-00"]) is None
    monkeypatch.setenv("COALFACE_KEYS", str(made / "superlink" / "names.json"))
    found = server.keys(["silo-00", "clinic"])
    own = certificates.of_private((made / "parties" / "clinic" / "node.key").read_bytes())
    assert found is not None and found["clinic"] == own
    with pytest.raises(RecipeError, match="names.json has no key of silo-02: provision a kit"):
        server.keys(["silo-02"])
    for text in ("[]", '{"silo-00": "xy"}', '{"silo-00": 1}', "{"):
        (tmp_path / "bad.json").write_text(text)
        monkeypatch.setenv("COALFACE_KEYS", str(tmp_path / "bad.json"))
        with pytest.raises(RecipeError, match="whose keys cannot be read"):
            server.keys(["silo-00"])
