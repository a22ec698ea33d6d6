"""What a party is told before it takes part, and what its kit says: `coalface party check`, and `party.yaml`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import invoked
from federations import NOW
from ownparties import PEOPLE, write_parties, write_recipe

from coalface.core.errors import RecipeError
from coalface.experiments.recipe import loader, party_file
from coalface.experiments.setup import party_data
from coalface.flower.party import preflight, process
from coalface.flower.provision import kits as provisioning
from coalface.flower.provision import verify


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parties(tmp_path_factory.mktemp("parties"))


def check_party(file: Path, *options: str) -> tuple[int, str]:
    """Exit status and lines of `coalface party check`."""
    result = invoked("party", "check", file, *options)
    return result.exit_code, result.output


def test_a_party_is_told_what_is_found_before_it_starts(parties: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, data={"size": 48, "min_images": 3})
    shutil.copytree(parties / "silo-00", tmp_path / "silo-00")
    faces, file = tmp_path / "silo-00" / "faces", tmp_path / "silo-00" / "party.yaml"
    for number in (2, 3):
        (faces / "Cydonia" / f"Cydonia_{number:04d}.png").unlink()
    status, lines = check_party(file, "--recipe", str(path))
    assert status == 0 and "10 images of 3 identities" in lines
    assert "1 identity of fewer images than data.min_images=3 left out: Cydonia" in lines
    assert "shorter sides of 32 to 32 pixels, of 10 images looked at" in lines
    assert "10 of those are smaller than the recipe's 48 pixels" in lines
    assert "the server is told: silo-00, trainer, 8 images, 2 identities; no name and no image" in lines
    assert party_data.party_data(loader.load(path), "silo-00", file).members()["silo-00"].images == 8
    (faces / "Adalind" / "Adalind_0001.png").write_bytes(b"no image")
    status, lines = check_party(file)
    assert status == 1 and "Adalind_0001.png" in lines and "the server is told" not in lines


def test_a_party_is_told_what_of_its_folder_is_not_read(
    parties: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(parties / "silo-00", tmp_path / "silo-00")
    (tmp_path / "silo-00" / "faces" / "Adalind" / "1.heic").write_bytes(b"x")
    file, unread = tmp_path / "silo-00" / "party.yaml", "(.heic 1): Adalind/1.heic"
    status, lines = check_party(file)
    assert status == 0 and unread in lines
    process.take(write_recipe(tmp_path), {"party": "silo-00", "home": str(tmp_path / "home"), "data": str(file)}, {})
    assert [unread in record.getMessage() for record in caplog.records] == [True]


def test_what_keeps_a_party_from_taking_part_is_told_to_it(parties: Path, tmp_path: Path) -> None:
    path, file = write_recipe(tmp_path), tmp_path / "party.yaml"
    status, lines = check_party(parties / "clinic" / "party.yaml", "--recipe", str(path))
    assert status == 0 and "20 pairs of 16 images" in lines, lines
    for text in (
        "{data: {kind: folder, path: nowhere}}",
        "{name: silo-00, role: validator}",
        "{name: silo-00, role: trainer}",
        "{name: silo-09}",
    ):
        file.write_text(text)
        status, lines = check_party(file, "--recipe", str(path))
        assert status == 1 and re.search("nowhere|silo-0[09]", lines), lines
    file.write_text("{role: trainer}")
    with pytest.raises(RecipeError) as error:
        preflight.check(file, loader.load(path))
    assert error.value.where == str(file)


def test_images_that_everybody_can_read_are_a_fault(parties: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faces = parties / "silo-01" / "faces"
    # the folders of tests are their owner's alone
    monkeypatch.setattr(preflight, "_is_reachable", lambda path: True)
    faces.chmod(0o755)
    status, lines = check_party(parties / "silo-01" / "party.yaml")
    assert status == 1 and f"{faces} can be read by everybody on this machine: chmod o-rwx {faces}" in lines
    faces.chmod(0o750)
    assert check_party(parties / "silo-01" / "party.yaml")[0] == 0


# --- kits -------------------------------------------------------------------------------------------------------------


def federation(folder: Path, **changes: Any) -> Path:
    """A federation's file with a recipe of parties that bring their own images beside it."""
    write_recipe(folder)
    parties: dict[str, Any] = {
        "silo-00": {"role": "trainer", "faces": "/srv/hospital's faces"},
        "silo-01": {"role": "trainer"},
        "clinic": {"role": "validator", "pairs": {"kind": "bin", "path": "/srv/pairs.bin"}},
    }
    link = {"hosts": "127.0.0.1"}
    tree = {"name": "own", "superlink": link, "recipe": "recipe.yaml", "parties": loader.merged(parties, changes)}
    (folder / "federation.yaml").write_text(yaml.safe_dump(tree))
    return folder / "federation.yaml"


def test_a_kit_says_what_its_party_is_and_where_its_images_lie(tmp_path: Path) -> None:
    kits = provisioning.make(federation(tmp_path), tmp_path / "kits", NOW)
    files = {name: party_file.read(kits / "parties" / name / "party.yaml") for name in PEOPLE}
    first = files["silo-00"].data
    assert first is not None and (first.kind, first.path) == ("folder", "/srv/hospital's faces")
    assert (files["silo-01"].role, files["silo-01"].data) == ("trainer", None)
    clinic = files["clinic"]
    assert clinic.role == "validator" and clinic.pairs is not None and clinic.pairs.path == "/srv/pairs.bin"
    assert "# data: {kind: folder" in (kits / "parties" / "silo-01" / "party.yaml").read_text()
    assert not [path for path in (kits / "operator").rglob("*") if path.is_file() and b"/srv" in path.read_bytes()]
    assert verify.check(kits, NOW) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"silo-02": {"role": "trainer"}},
        {"silo-01": {"faces": {"kind": "folder", "paht": "x"}}},
        {"silo-01": {"faces": {"kind": "joined"}}},
        {"silo-01": {"pairs": {"kind": "bin", "path": "x"}}},
    ],
)
def test_a_federation_that_does_not_fit_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=f"parties.{next(iter(changes))}"):
        provisioning.make(federation(tmp_path, **changes), tmp_path / "kits", NOW)
    assert not (tmp_path / "kits").exists()
