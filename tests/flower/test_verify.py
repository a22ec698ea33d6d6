"""What `coalface provision check` finds: each harm in a line of its own, and nothing where nothing is wrong."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from federations import DAY, FEDERATION, NOW, written
from typer.testing import CliRunner

from coalface.cli.main import app
from coalface.core.errors import RecipeError
from coalface.flower.provision import certificates, verify
from coalface.flower.provision import kits as provisioning


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return provisioning.make(written(folder), folder / "kits", NOW)


@pytest.fixture
def kits(made: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(made, tmp_path / "kits"))


def test_nothing_is_wrong_with_new_kits_and_dates_are_told(made: Path) -> None:
    assert verify.check(made, NOW) == []
    assert verify.check(made, NOW + 334 * DAY) == []
    soon, late = verify.check(made, NOW + 336 * DAY), verify.check(made, NOW + 366 * DAY)
    assert len(soon) == len(late) == 2
    assert all("expires on" in line and "in 28 days: make new kits" in line for line in soon), soon
    assert all(f"expired on {NOW + 365 * DAY:%Y-%m-%d}: make new kits" in line for line in late), late
    early = verify.check(made, NOW - DAY)
    assert len(early) == 2 and all("holds only from" in line for line in early)


def swap(a: Path, b: Path) -> None:
    ours, theirs = a.read_bytes(), b.read_bytes()
    a.write_bytes(theirs)
    b.write_bytes(ours)


def foreign(kits: Path) -> None:
    """The SuperLink's certificate by another CA of the same name, for its own key."""
    other = certificates.authority("hospitals", NOW, 365)
    made = certificates.server(other, "hospitals", ("fl.example.org", "10.0.0.7", "localhost", "127.0.0.1"), NOW, 365)
    (kits / "superlink" / "superlink.crt").write_bytes(made.certificate)
    (kits / "superlink" / "superlink.key").write_bytes(made.key)


def readdressed(kits: Path) -> None:
    tree = {**FEDERATION, "superlink": {"hosts": ["new.example.org"]}}
    (kits / "federation.yaml").write_text(yaml.safe_dump(tree))


def edited(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def renamed(kits: Path) -> None:
    (kits / "parties" / "silo-01").rename(kits / "parties" / "silo-02")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (
            lambda kits: shutil.copy(kits / "parties/clinic/node.key", kits / "superlink/superlink.key"),
            "superlink/superlink.crt is not of the key superlink/superlink.key",
        ),
        (foreign, "superlink/superlink.crt is not by this CA"),
        (readdressed, "superlink/superlink.crt is not good for new.example.org, but for fl.example.org"),
        (
            lambda kits: (kits / "superlink/superlink.key").chmod(0o640),
            "superlink/superlink.key can be read or changed by others: chmod 600",
        ),
        (lambda kits: (kits / "parties" / "clinic").chmod(0o755), "parties/clinic can be read .*: chmod 700"),
        (renamed, "silo-01 has no kit"),
        (renamed, "parties/silo-02 is the kit of no party"),
        (
            lambda kits: shutil.copy(kits / "parties/silo-00/node.key", kits / "parties/silo-01/spare.txt"),
            "parties/silo-01/spare.txt has a private key of silo-00 in it, which does not belong there: delete it",
        ),
        (
            lambda kits: (kits / "ca/ca.key").write_bytes(certificates.authority("hospitals", NOW, 365).key),
            "ca/ca.key has a private key in it, which does not belong there: delete it",
        ),
        (
            lambda kits: shutil.copy(kits / "parties/silo-00/node.key", kits / "parties/silo-01/node.key"),
            "parties/silo-01/node.key is also the key of silo-00",
        ),
        (
            lambda kits: swap(kits / "parties/silo-00/node.key", kits / "parties/silo-01/node.key"),
            "superlink/names.json has another key for silo-00",
        ),
        (
            lambda kits: swap(kits / "operator/keys/silo-00.pub", kits / "operator/keys/clinic.pub"),
            "operator/keys/silo-00.pub is not of the key parties/silo-00/node.key",
        ),
        (
            lambda kits: (kits / "parties/silo-00/node.key").write_text("gone"),
            "parties/silo-00/node.key cannot be read",
        ),
        (lambda kits: (kits / "superlink/superlink.key").unlink(), "superlink/superlink.key is missing"),
        (lambda kits: (kits / "superlink/superlink.crt").write_text("x"), "superlink/superlink.crt cannot be read"),
        (lambda kits: (kits / "superlink/names.json").write_text("[]"), "superlink/names.json cannot be read"),
        (lambda kits: (kits / "parties/clinic/ca.crt").write_text("x"), "parties/clinic/ca.crt is not this CA's"),
        (
            lambda kits: edited(kits / "superlink/start.sh", "--enable-supernode-auth", ""),
            "superlink/start.sh lacks --enable-supernode-auth",
        ),
        (
            lambda kits: edited(kits / "parties/clinic/start.sh", '--root-certificates "$here/ca.crt"', "--insecure"),
            "parties/clinic/start.sh lacks --root-certificates: put it back",
        ),
        (
            lambda kits: edited(kits / "parties/clinic/start.sh", "--isolation process", ""),
            "parties/clinic/start.sh lacks --isolation: put it back",
        ),
        (
            lambda kits: edited(kits / "parties/clinic/start.sh", '--root-certificates "$here/ca.crt"', "--insecure"),
            "parties/clinic/start.sh has --insecure, which switches TLS off: take it out",
        ),
    ],
)
def test_each_harm_is_told_and_ends_with_status_1(kits: Path, harm: Any, said: str) -> None:
    harm(kits)
    found = verify.check(kits, NOW)
    assert any(re.search(said, line) for line in found), found
    assert all("\n" not in line and ": " in line for line in found)
    told = CliRunner().invoke(app, ["provision", "check", str(kits)])
    assert told.exit_code == 1 and told.output.splitlines() == found


def test_what_has_been_handed_over_is_not_missed(kits: Path) -> None:
    shutil.rmtree(kits / "parties")
    assert verify.check(kits, NOW) == []


def test_the_commands_make_and_check_and_name_a_wrong_folder(tmp_path: Path) -> None:
    file = written(tmp_path)
    told = CliRunner().invoke(app, ["provision", str(file), "--out", str(tmp_path / "kits")])
    assert told.exit_code == 0 and "its README.md says who gets what" in told.output, told.output
    told = CliRunner().invoke(app, ["provision", "check", str(tmp_path / "kits")])
    assert told.exit_code == 0 and "nothing is wrong" in told.output
    with pytest.raises(RecipeError, match="has no federation.yaml: name the folder that"):
        verify.check(tmp_path / "empty", NOW)
