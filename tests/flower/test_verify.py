"""What `coalface provision check` finds: each harm in a line of its own, and nothing where nothing is wrong."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import invoked
from federations import DAY, FEDERATION, NOW, RECIPE, write_federation

from coalface.core import disk
from coalface.core.errors import RecipeError
from coalface.flower.party import process
from coalface.flower.provision import certificates, verify
from coalface.flower.provision import kits as provisioning


@pytest.fixture(scope="module")
def new_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return provisioning.make(write_federation(folder), folder / "kits", NOW)


@pytest.fixture
def kits(new_kits: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(new_kits, tmp_path / "kits"))


def test_nothing_is_wrong_with_new_kits_and_dates_are_told(new_kits: Path) -> None:
    assert verify.check(new_kits, NOW) == []
    assert verify.check(new_kits, NOW + 334 * DAY) == []
    soon, late = verify.check(new_kits, NOW + 336 * DAY), verify.check(new_kits, NOW + 366 * DAY)
    assert len(soon) == len(late) == 2
    assert all("expires on" in line and "in 28 days: make new kits" in line for line in soon), soon
    assert all(f"expired on {NOW + 365 * DAY:%Y-%m-%d}: make new kits" in line for line in late), late
    early = verify.check(new_kits, NOW - DAY)
    assert len(early) == 2 and all("holds only from" in line for line in early)


def foreign(kits: Path) -> None:
    """The SuperLink's certificate by another CA of the same name, for its own key."""
    authority = certificates.authority("hospitals", NOW, 365)
    pair = certificates.server(
        authority, "hospitals", ("fl.example.org", "10.0.0.7", "localhost", "127.0.0.1"), NOW, 365
    )
    (kits / "superlink" / "superlink.crt").write_bytes(pair.certificate)
    (kits / "superlink" / "superlink.key").write_bytes(pair.key)


def readdressed(kits: Path) -> None:
    tree = {**FEDERATION, "superlink": {"hosts": ["new.example.org"]}}
    (kits / "federation.yaml").write_text(yaml.safe_dump(tree))


def edited(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def copy(source: str, target: str) -> Callable[[Path], object]:
    return lambda kits: shutil.copy(kits / source, kits / target)


def put(place: str, text: str) -> Callable[[Path], object]:
    return lambda kits: (kits / place).write_text(text)


def edit(place: str, old: str, new: str = "") -> Callable[[Path], object]:
    return lambda kits: edited(kits / place, old, new)


PLAINTEXT = edit("parties/clinic/start.sh", '--root-certificates "$here/ca.crt"', "--insecure")


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (copy("parties/clinic/node.key", "superlink/superlink.key"), "superlink/superlink.crt is not of the key"),
        (foreign, "superlink/superlink.crt is not by this CA"),
        (readdressed, "superlink/superlink.crt is not good for new.example.org"),
        (lambda kits: (kits / "superlink/superlink.key").chmod(0o640), "superlink/superlink.key .*: chmod 600"),
        (lambda kits: (kits / "parties/clinic").chmod(0o755), "parties/clinic .*: chmod 700"),
        (lambda kits: (kits / "parties/silo-01").rename(kits / "parties/silo-02"), "silo-01 has no kit"),
        (
            copy("parties/silo-00/node.key", "parties/silo-01/spare"),
            "parties/silo-01/spare has a private key of silo-00",
        ),
        (copy("superlink/superlink.key", "ca/ca.key"), "ca/ca.key has a private key of the SuperLink"),
        (copy("parties/silo-00/node.key", "parties/silo-01/node.key"), "parties/silo-01/node.key is also the key of"),
        (copy("operator/keys/clinic.pub", "operator/keys/silo-00.pub"), "operator/keys/silo-00.pub is not of the key"),
        (put("parties/silo-00/node.key", "gone"), "parties/silo-00/node.key cannot be read"),
        (lambda kits: (kits / "superlink/superlink.key").unlink(), "superlink/superlink.key is missing"),
        (put("superlink/names.json", "[]"), "superlink/names.json cannot be read"),
        (put("superlink/names.json", "{}"), "superlink/names.json has another key for silo-00, or none"),
        (put("parties/clinic/ca.crt", "x"), "parties/clinic/ca.crt is not this CA's"),
        (edit("superlink/start.sh", "--enable-supernode-auth"), "superlink/start.sh lacks --enable-supernode-auth"),
        (PLAINTEXT, "parties/clinic/start.sh lacks --root-certificates"),
        (PLAINTEXT, "parties/clinic/start.sh has --insecure"),
        (edit("parties/clinic/start.sh", "--isolation process"), "parties/clinic/start.sh lacks --isolation"),
        (
            copy("parties/clinic/party.yaml", "parties/silo-00/party.yaml"),
            "parties/silo-00/party.yaml is that of clinic",
        ),
        (copy("parties/clinic/party.yaml", "parties/silo-00/party.yaml"), "parties/silo-00/party.yaml says validator"),
        (put("parties/silo-00/party.yaml", "{rol: x}"), "parties/silo-00/party.yaml cannot be read"),
    ],
)
def test_each_harm_is_a_line_that_begins_with_its_place(kits: Path, harm: Any, fault: str) -> None:
    harm(kits)
    faults = verify.check(kits, NOW)
    assert any(re.match(fault, line) for line in faults), faults
    assert all("\n" not in line and ": " in line for line in faults)


@pytest.fixture(scope="module")
def hiding_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a recipe with secure sums, and of parties that encrypt."""
    folder = tmp_path_factory.mktemp("hiding")
    file = write_federation(folder, encrypt=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"method": "fedavg", "privacy": {"secure": True}}))
    return provisioning.make(file, folder / "kits", NOW)


@pytest.fixture(scope="module")
def noised_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a recipe whose parties add noise."""
    folder = tmp_path_factory.mktemp("noised")
    file = write_federation(folder)
    privacy = {"secure": True, "dp": {"noise_multiplier": 2.0, "delta": 1e-6, "target_epsilon": 8.0}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"method": "fedavg", "privacy": privacy}))
    return provisioning.make(file, folder / "kits", NOW)


@pytest.mark.parametrize(
    ("old", "new", "lacking"),
    [
        ("noise_multiplier=2.0", "noise_multiplier=0.2", ["noise_multiplier=2.0"]),
        ("delta=1e-06", "delta=1e-01", ["delta=1e-06"]),
        ("target_epsilon=8.0", "target_epsilon=80", ["target_epsilon=8.0"]),
        (" noise_multiplier=2.0 delta=1e-06 target_epsilon=8.0", "", ["noise_mult", "delta", "target_epsilon"]),
        (" noise_multiplier=2.0 delta=1e-06", " delta=1e-06 noise_multiplier=2.0", []),
    ],
)
def test_a_start_script_that_holds_its_node_to_less_noise_than_the_recipe_has_is_named(
    noised_kits: Path, tmp_path: Path, old: str, new: str, lacking: list[str]
) -> None:
    named = words_that_lack(noised_kits, tmp_path, old, new)
    assert len(named) == len(lacking) and all(map(str.startswith, named, lacking)), named


@pytest.fixture(scope="module")
def releasing_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a recipe whose method puts noise of its own on what its parties send."""
    folder = tmp_path_factory.mktemp("releasing")
    file = write_federation(folder)
    method = {"method": "privacyface", "methods": {"privacyface": {"clustering": {"target_epsilon": 12.0}}}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | method))
    return provisioning.make(file, folder / "kits", NOW)


@pytest.mark.parametrize(
    ("old", "new", "lacking"),
    [
        ("release_noise_multiplier=1.0", "release_noise_multiplier=0.1", ["release_noise_multiplier=1.0"]),
        (" release_target_epsilon=12.0", "", ["release_target_epsilon=12.0"]),
        (" release_noise_multiplier=1.0 release_delta=1e-05", "", ["release_noise", "release_delta=1e-05"]),
    ],
)
def test_a_start_script_that_lost_what_bounds_the_releases_of_its_node_is_named(
    releasing_kits: Path, tmp_path: Path, old: str, new: str, lacking: list[str]
) -> None:
    named = words_that_lack(releasing_kits, tmp_path, old, new)
    assert len(named) == len(lacking) and all(map(str.startswith, named, lacking)), named


@pytest.mark.parametrize(
    ("old", "new", "lacking"),
    [
        ("secure=true dropouts=0.3 corrupt=0.1", "", ["secure=true", "dropouts=0.3", "corrupt=0.1"]),
        ("secure=true", "secure=false", ["secure=true"]),
        ("dropouts=0.3", "dropouts=0.33", ["dropouts=0.3"]),
        ("corrupt=0.1", "corrupt=0.01", ["corrupt=0.1"]),
        ("--node-config", '--node-config "" #', ["names=", "sign=", "secure=true", "dropouts=0.3", "corrupt=0.1"]),
        (r" names=\"$here/names.json\"", "", ["names="]),
        (r"sign=\"$here/node.key\"", r"sign=\"/tmp/other.key\"", ["sign="]),
        ('"$@"', '--node-config "secure=true" "$@"', ["names=", "sign=", "dropouts=0.3", "corrupt=0.1"]),
        ("secure=true dropouts=0.3 corrupt=0.1", "corrupt=0.1 secure=true dropouts=0.3", []),
    ],
)
def test_a_start_script_that_holds_its_node_to_less_than_the_recipe_hides_is_named(
    hiding_kits: Path, tmp_path: Path, old: str, new: str, lacking: list[str]
) -> None:
    named = words_that_lack(hiding_kits, tmp_path, old, new)
    assert len(named) == len(lacking) and all(map(str.startswith, named, lacking)), named


def words_that_lack(made: Path, tmp_path: Path, old: str, new: str) -> list[str]:
    """Those that `check` names of the configuration of clinic's node, once its script is edited."""
    kits = Path(shutil.copytree(made, tmp_path / "kits"))
    assert verify.check(kits, NOW) == []
    edited(kits / "parties/clinic/start.sh", old, new)
    lines = [line for line in verify.check(kits, NOW) if "--node-config" in line]
    if not lines:
        return []
    (line,) = lines
    assert line.startswith("parties/clinic/start.sh lacks ")
    return line.partition(" lacks ")[2].partition(" in its --node-config")[0].split()


def test_pins_of_a_recipe_that_cannot_be_read_are_not_called_right(kits: Path) -> None:
    (kits / "operator/project/recipe.yaml").write_text("rounds: many")
    (line,) = verify.check(kits, NOW)
    assert line.startswith("operator/project/recipe.yaml cannot be read")


def test_the_command_prints_the_faults_and_ends_with_status_1(kits: Path) -> None:
    assert invoked("provision", "check", kits).exit_code == 0
    (kits / "parties/silo-00/node.key").unlink()
    result = invoked("provision", "check", kits)
    assert result.exit_code == 1 and result.output.splitlines() == verify.check(kits, NOW)


KEYS_OF_RUNS = (
    *(f"parties/silo-00/home/faces/{key}" for key in (process.SECRET, "noise.key", "signing/silo-00.key")),
    *(f"superlink/runs/faces/{key}" for key in ("server.key", "noise.key")),
)


def test_keys_that_runs_have_made_belong_where_they_lie(kits: Path) -> None:
    """Without them no run could go on: nobody is advised to delete one."""
    for place in KEYS_OF_RUNS:
        (kits / place).parent.mkdir(parents=True, exist_ok=True)
        disk.keep_secret(kits / place)
    assert verify.check(kits, NOW) == []
    shutil.copy(kits / KEYS_OF_RUNS[0], kits / "operator" / "sums.key")
    shutil.copy(kits / KEYS_OF_RUNS[2], kits / KEYS_OF_RUNS[2].replace("silo-00.key", "clinic.key"))
    faults = verify.check(kits, NOW)
    assert len(faults) == 2 and all("a private key of silo-00 in it, which does not belong there" in f for f in faults)


def test_what_has_been_handed_over_is_not_missed(kits: Path) -> None:
    shutil.rmtree(kits / "parties")
    assert verify.check(kits, NOW) == []


def test_a_folder_that_is_not_one_of_kits_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        verify.check(tmp_path, NOW)
    assert error.value.where == str(tmp_path)
