"""Rounds that the server and a second party sign: what is written anew afterwards is found, even if all of it is."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import invoked
from toys import Moves, State

from coalface.core.method import Federation
from coalface.engine.local import InProcess
from coalface.engine.receipts import Countersigns
from coalface.experiments.conformance.tiny_federation import Stop, run, stopping
from coalface.privacy import countersign, ledger

pytest.importorskip("cryptography")

KEYS = ("server.key", "signing")
"""What a run keeps of its keys; nothing else of it is secret."""


def verified(*words: object) -> tuple[int, str]:
    result = invoked("ledger", "verify", *words)
    return result.exit_code, result.output


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (folder / countersign.FILE).read_text().splitlines()]


@pytest.fixture
def signed(tmp_path: Path, toy_steps: None) -> Path:
    run(Moves(rounds=3), tmp_path / "run", countersign=True)
    return tmp_path / "run"


def homes_of(folder: Path, home: Path) -> Path:
    """Take the parties' keys, and what they have signed, out of a run's folder to where its owner cannot write."""
    (home / "test").mkdir(parents=True)
    (folder / countersign.FOLDER).rename(home / "test" / countersign.FOLDER)
    return home


def test_each_round_is_signed_by_the_server_and_a_party_that_is_drawn(signed: Path) -> None:
    code, output = verified(signed)
    assert code == 0 and "the server signed 3 rounds" in output
    assert "signed by the server and a second party: 9 of 9 receipts" in output
    statements = [line for line in lines(signed) if "of" not in line]
    assert [(s["round"], s["lines"]) for s in statements] == [(1, 3), (2, 6), (3, 9)]
    assert [line["of"] for line in lines(signed) if "of" in line] == [s["line"] for s in statements]
    secrets = [signed / "server.key", *(signed / "signing").glob("*.key")]
    assert len(secrets) > 1 and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)
    report = json.loads(verified(signed, "--json")[1])
    assert report["signatures"]["covered"] == 9 and sum(report["signatures"]["signed"].values()) == 6


def test_signing_moves_no_other_byte_of_a_run(signed: Path, tmp_path: Path) -> None:
    run(Moves(rounds=3), tmp_path / "plain")
    added = {name for name in files(signed) if Path(name).parts[0] in (*KEYS, countersign.FILE)}
    assert files(signed).keys() - added == files(tmp_path / "plain").keys()
    for name in ("metrics.jsonl", "receipts.jsonl", *(n for n in files(signed) if n.startswith("ledger/"))):
        assert (signed / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


@pytest.mark.parametrize("after", [1, 4, 5, 7])
def test_a_run_that_was_killed_goes_on_to_the_same_signatures(signed: Path, tmp_path: Path, after: int) -> None:
    for key in KEYS:  # so that the signatures can be compared
        (tmp_path / "again").mkdir(exist_ok=True)
        (shutil.copytree if (signed / key).is_dir() else shutil.copy)(signed / key, tmp_path / "again" / key)
    for record in (tmp_path / "again" / "signing").glob("*.jsonl"):
        record.unlink()
    with pytest.raises(Stop):
        run(Moves(rounds=3), tmp_path / "again", transport=stopping(after), countersign=True, checkpoint_every=2)
    run(Moves(rounds=3), tmp_path / "again", countersign=True, checkpoint_every=2)
    assert (tmp_path / "again" / countersign.FILE).read_bytes() == (signed / countersign.FILE).read_bytes()
    assert verified(tmp_path / "again")[0] == 0


def test_a_run_that_was_killed_before_the_second_signature_gets_it(signed: Path, tmp_path: Path) -> None:
    class Killed(InProcess):
        def countersign(self, party: str, statement: Mapping[str, Any]) -> Mapping[str, Any]:
            if statement["round"] == 2:
                raise Stop
            return super().countersign(party, statement)

    with pytest.raises(Stop):
        run(Moves(rounds=3), tmp_path / "again", transport=Killed, countersign=True)
    assert "of" not in lines(tmp_path / "again")[-1]
    run(Moves(rounds=3), tmp_path / "again", countersign=True)
    assert [line.get("party") for line in lines(tmp_path / "again")] == [line.get("party") for line in lines(signed)]
    assert verified(tmp_path / "again")[0] == 0


# --- what is found ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Otherwise(Moves):
    """The same from other values."""

    def init(self, fed: Federation) -> State:
        begun = super().init(fed)
        return State(values={name: value + 1 for name, value in begun.values.items()}, control=begun.control)


def written_anew(folder: Path, tmp_path: Path, **rules: Any) -> None:
    """The run's folder as it would be had all of it happened otherwise, by somebody who has the server's key."""
    (tmp_path / "anew").mkdir()
    if rules.get("countersign"):
        shutil.copy(folder / "server.key", tmp_path / "anew")
    run(Otherwise(rounds=3), tmp_path / "anew", **rules)
    for path in list(folder.iterdir()):
        if path.name not in (*KEYS, countersign.FILE):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (tmp_path / "anew").iterdir():
        if path.name not in KEYS:
            (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.name)


def test_a_run_that_is_written_anew_whole_is_found_by_what_was_signed(signed: Path, tmp_path: Path) -> None:
    party = next(line["party"] for line in lines(signed) if "of" in line)
    written_anew(signed, tmp_path)
    assert ledger.verify(signed / "receipts.jsonl").lines == 9
    code, output = verified(signed)
    assert code == 1 and "was told" not in output and "checkpoint" not in output  # all else holds
    assert f"train round 1 is the first that does not hold: the server and {party} signed that line 3" in output


def test_signatures_that_are_written_anew_too_are_found_by_the_second_partys_key(signed: Path, tmp_path: Path) -> None:
    home, party = homes_of(signed, tmp_path / "home"), next(line["party"] for line in lines(signed) if "of" in line)
    written_anew(signed, tmp_path, countersign=True)  # with keys of the forger's for the parties
    code, output = verified(signed)
    assert code == 0 and "9 of 9 receipts" in output, "keys that nobody compares prove nothing"
    code, output = verified(signed, "--party-home", home)
    assert code == 1 and f"{party} has not signed train round 1 with the key" in output
    assert f"does not have train round 1 as the server signed it to {party}" in output


def test_signatures_that_were_removed_are_missed(signed: Path, tmp_path: Path) -> None:
    home = homes_of(signed, tmp_path / "home")
    (signed / countersign.FILE).unlink()
    assert verified(signed)[0] == 0  # nothing says that there were some, but a recipe does in a run's folder:
    (signed / "config.yaml").write_text("{method: fedavg, privacy: {countersign: true}}")
    assert verified(signed)[0] == 1 and "no round was signed, or the file was removed" in verified(signed)[1]
    assert "as the server signed it to" in verified(signed, "--party-home", home)[1]


def test_a_file_of_signatures_that_is_changed_is_told_with_its_line(signed: Path) -> None:
    path = signed / countersign.FILE
    whole = path.read_text()
    path.write_text(whole.replace('"round": 2', '"round": 7'))
    assert verified(signed)[0] == 1 and "countersigns.jsonl, line 3: the hash chain breaks" in verified(signed)[1]
    for old, new, told in (('"of": 2', '"of": 9', "line 4: it signs line 9"), ('"head"', '"tail"', "lacks 'head'")):
        members = [
            text[1:].partition(", ")[2].rpartition(', "chain"')[0].replace(old, new) for text in whole.split("\n")[:-1]
        ]
        path.write_text("".join(f"{line}\n" for line in ledger.chained(members, ledger.Head())))
        code, output = verified(signed)
        assert code == 1 and told in output


@pytest.mark.parametrize("party", ["../silo-1", "", "a" * 300, "a/b"])
def test_a_receipt_of_a_name_that_no_party_has_is_told_with_its_line(party: str, signed: Path) -> None:
    path = signed / "receipts.jsonl"
    members = [text[1:].partition(", ")[2].rpartition(', "chain"')[0] for text in path.read_text().split("\n")[:-1]]
    name = json.loads("{" + members[1] + "}")["party"]
    members[1] = members[1].replace(f'"party": "{name}"', f'"party": {json.dumps(party)}')
    path.write_text("".join(f"{line}\n" for line in ledger.chained(members, ledger.Head())))
    code, output = verified(signed)
    assert code == 1 and "receipts.jsonl, line 2: " in output and "is not a plain name" in output


@pytest.mark.parametrize("party", [[], {}, 5, None, "silo-9"])
def test_a_statement_is_the_servers_whatever_party_it_names(party: Any, signed: Path) -> None:
    path = signed / countersign.FILE
    members = [text[1:].partition(", ")[2].rpartition(', "chain"')[0] for text in path.read_text().split("\n")[:-1]]
    members[0] += f', "party": {json.dumps(party)}'
    path.write_text("".join(f"{line}\n" for line in ledger.chained(members, ledger.Head())))
    code, output = verified(signed)
    assert code == 0 and "silo-9" not in output


def test_a_last_signature_that_was_cut_is_found_by_what_its_party_keeps(signed: Path, tmp_path: Path) -> None:
    path, party = signed / countersign.FILE, lines(signed)[-1]["party"]
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    code, output = verified(signed)
    assert code == 1 and f"lacks the signature of {party} under train round 3: lines were removed" in output
    home = homes_of(signed, tmp_path / "home")
    assert verified(signed)[0] == 0 and "6 of 9 receipts" in verified(signed)[1]  # nobody at hand has signed more
    assert verified(signed, "--party-home", home)[0] == 1


def test_a_signature_that_did_not_arrive_is_no_fault(tmp_path: Path, toy_steps: None) -> None:
    """The party has signed and keeps what, and its answer is lost or late: the events say so, also after a resume."""

    class Lossy(InProcess):
        def countersign(self, party: str, statement: Mapping[str, Any]) -> Mapping[str, Any]:
            if statement["round"] == 3:
                raise Stop
            signature = super().countersign(party, statement)
            return {"failed": "no answer in time"} if statement["round"] == 2 else signature

    folder = tmp_path / "run"
    with pytest.raises(Stop):
        run(Moves(rounds=3), folder, transport=Lossy, countersign=True, checkpoint_every=3)
    run(Moves(rounds=3), folder, countersign=True, checkpoint_every=3)  # again from the beginning
    assert verified(folder) == (0, verified(folder)[1]) and "9 of 9 receipts" in verified(folder)[1]


# --- what a party signs -----------------------------------------------------------------------------------------------


def statement(folder: Path, count: int, head: str, name: str = "server") -> dict[str, Any]:
    key = countersign.SigningKey(folder / f"{name}.key")
    about = {"run": "r", "stage": "train", "round": 1, "lines": count, "head": head}
    return about | {"key": key.public, "signature": key.sign("server", countersign.text_of(about))}


def test_a_party_signs_one_word_of_one_server(tmp_path: Path) -> None:
    first = statement(tmp_path, 3, "a")
    signature = countersign.countersign(tmp_path, "p", first)
    assert countersign.is_signed(
        signature["key"], signature["signature"], "party", countersign.text_of(first), first["signature"]
    )
    assert countersign.countersign(tmp_path, "p", first) == signature  # asked again, as after a kill
    for other in (statement(tmp_path, 3, "b"), statement(tmp_path, 2, "a"), statement(tmp_path, 4, "a", "other")):
        with pytest.raises(ValueError, match="p does not sign what its server says"):
            countersign.countersign(tmp_path, "p", other)
    with pytest.raises(ValueError, match="p signs nothing that its server has not signed"):
        countersign.countersign(tmp_path, "p", statement(tmp_path, 4, "a") | {"head": "c"})
    countersign.countersign(tmp_path, "p", statement(tmp_path, 4, "c"))
    assert len((tmp_path / "signing" / "p.jsonl").read_text().splitlines()) == 2


def test_a_signature_that_does_not_hold_is_not_taken(tmp_path: Path) -> None:
    def forged(party: str, line: Mapping[str, Any]) -> Mapping[str, str]:
        wrong = {"key": key.public, "signature": key.sign("party", "another statement", line["signature"])}
        return wrong if party == "liar" else {"failed": "away"}

    signs, key = Countersigns(tmp_path, forged), countersign.SigningKey(tmp_path / "liar.key")
    about = {"run": "r", "stage": "train", "round": 1}
    assert signs.sign(about, ledger.Head(3, "a" * 64, 9), "liar") == "its signature does not hold"
    assert signs.sign({**about, "round": 2}, ledger.Head(6, "b" * 64, 18), "gone") == "away"
    assert [line.get("party") for line in lines(tmp_path)] == [None, None]
    holds = countersign.verify(tmp_path, ["0" * 64, *["x"] * 2, "a" * 64, *["x"] * 2, "b" * 64])
    assert not holds.faults and holds.signed == {"the server": 2} and holds.covered == 0
