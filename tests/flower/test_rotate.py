"""`coalface provision rotate`: a new key for one party, and nothing else is changed."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from commands import said
from federations import NOW, read_files, write_federation

from coalface.core.errors import RecipeError
from coalface.flower.app import server
from coalface.flower.provision import certificates, rotate, verify
from coalface.flower.provision import kits as provisioning


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    return provisioning.make(write_federation(tmp_path / "in"), tmp_path / "kits", NOW)


def test_one_party_has_a_new_key_everywhere_and_all_else_stays(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, umask = read_files(kits), os.umask(0)
    try:
        text = said("provision", "rotate", kits, "silo-01")
    finally:
        os.umask(umask)
    assert "1. silo-01 ends its node" in text
    after, kit = read_files(kits), "parties/silo-01"
    changed = {f"{kit}/node.key", f"{kit}/node.pub", "operator/keys/silo-01.pub"}
    changed |= {f"{place}/names.json" for place in ("superlink", "operator")}
    changed |= {f"parties/{name}/names.json" for name in ("silo-00", "silo-01", "clinic")}
    assert {name for name in after if after[name] != before.get(name)} == {*changed, f"{kit}/node.key.old"}
    assert before.keys() < after.keys() and after[f"{kit}/node.key.old"] == before[f"{kit}/node.key"]
    assert not [p for p in kits.rglob("*") if p.is_file() and stat.S_IMODE(p.stat().st_mode) & 0o077]
    monkeypatch.setenv("COALFACE_KEYS", str(kits / "superlink" / "names.json"))
    keys = server.read_keys(["silo-00", "silo-01", "clinic"])
    assert keys is not None and len(keys) == 3
    assert keys == {name: certificates.public_of_private(after[f"parties/{name}/node.key"]) for name in keys}
    (fault,) = verify.check(kits, NOW)  # a reminder
    assert fault.startswith("parties/silo-01/node.key.old has a private key") and fault.endswith("delete it")
    with pytest.raises(RecipeError) as error:
        rotate.rotate(kits, "silo-01")
    assert error.value.where == str(kits / kit / "node.key.old")
    assert read_files(kits) == after
    (kits / kit / "node.key.old").unlink()
    assert verify.check(kits, NOW) == []


def test_a_kit_that_was_handed_over_is_not_needed(kits: Path) -> None:
    shutil.rmtree(kits / "parties" / "clinic")
    rotate.rotate(kits, "clinic")
    known = [json.loads((kits / place / "names.json").read_bytes()) for place in ("superlink", "parties/clinic")]
    assert known[0] == known[1] and known[0].keys() == {"silo-00", "silo-01", "clinic"}
    assert {path.name for path in (kits / "parties" / "clinic").iterdir()} == {"node.key", "node.pub", "names.json"}
    key = certificates.public_of_private((kits / "parties" / "clinic" / "node.key").read_bytes())
    assert certificates.public_of_openssh((kits / "operator" / "keys" / "clinic.pub").read_bytes()) == key


def test_a_party_that_is_none_is_refused_with_the_nearest(kits: Path) -> None:
    before = read_files(kits)
    with pytest.raises(ValueError, match="silo-1.*silo-01"):
        rotate.rotate(kits, "silo-1")
    assert read_files(kits) == before
