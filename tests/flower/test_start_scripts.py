"""What the scripts of kits start, and what they hold their nodes to."""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml
from federations import FEDERATION, NOW, run_script, write_federation
from flwr.common.config import parse_config_args

from coalface.core.errors import RecipeError
from coalface.experiments.recipe import loader
from coalface.flower.provision import kits as provisioning
from coalface.flower.provision import verify

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
