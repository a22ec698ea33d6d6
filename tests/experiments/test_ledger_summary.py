"""`coalface ledger`: what left a party, whether the chain holds, and whether a head that was written down is in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import worlds
from commands import invoked
from toys import Moves

from coalface.core.codec import Entry
from coalface.core.errors import RecipeError
from coalface.engine.faults import SimulatedFaults
from coalface.experiments import ledger_summary
from coalface.experiments.conformance import tiny_federation
from coalface.privacy import ledger


@dataclass(frozen=True)
class Message:
    entries: tuple[Entry, ...]

    @property
    def sums(self) -> tuple[str, ...]:
        return tuple(f"{place:064x}" for place, _ in enumerate(self.entries))


HEADER = Entry("header", "header", (), "JSON", 100)
MODEL = Message(
    (HEADER, Entry("backbone/a", "tensor", (3, 2), "F32", 24), Entry("backbone/b", "tensor", (5,), "F16", 10))
)
CENTRE = Message((HEADER, Entry("centre", "tensor", (4,), "F32", 16)))


def write_ledger(path: Path, sent: Iterable[tuple[Message, str, int]], **fields: Any) -> Path:
    """A ledger of some messages: what, at which stage, in which round."""
    head = ledger.Head()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    for message, stage, number in sent:
        step = "train" if message is MODEL else "look"
        about = {"run": "faces", "stage": stage, "round": number, "call": 1, "step": step, "to": "server"}
        lines = ledger.lines_for(message.entries, message.sums, {**about, "protection": "none", **fields}, head)
        ledger.append(path, lines, head)
        head = head.after(lines)
    return path


def ledger_command(*words: object) -> tuple[int, str]:
    result = invoked("ledger", *words)
    return result.exit_code, result.output


def by_name(path: Path, **options: Any) -> dict[str, dict[str, Any]]:
    return {
        f"{row.step} {row.name}": row.as_dict()
        for row in ledger_summary.read_ledgers(ledger_summary.ledger_files(path), **options).rows
    }


ROUNDS = [(MODEL, "train", n) for n in (1, 2, 3, 5, 6, 3)] + [(CENTRE, "last", 1)]  # a resume has sent 3 again


def test_what_left_is_counted_by_step_and_field(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "silo.jsonl", ROUNDS)
    rows = by_name(path)
    assert {name: (row["tensors"], row["times"], row["bytes"]) for name, row in rows.items()} == {
        "train header": (1, 6, 600),
        "train backbone/*": (2, 6, 6 * 34),
        "look header": (1, 1, 100),
        "look centre": (1, 1, 16),
    }
    model = rows["train backbone/*"]
    assert model["shapes"] == [[3, 2], [5]] and model["dtypes"] == ["F16", "F32"]
    assert model["rounds"] == {"train": [[1, 3], [5, 6]]} and rows["look centre"]["rounds"] == {"last": [[1, 1]]}
    by_tensor = by_name(path, by_tensor=True)
    assert by_tensor["train backbone/b"]["bytes"] == 60 and by_tensor["train backbone/b"]["shapes"] == [[5]]
    code, text = ledger_command(path)
    assert code == 0 and "backbone/* (2)" in text and "train 1–3, 5–6" in text and "3×2" not in text
    assert "3×2" in ledger_command(path, "--tensors")[1]
    (reading,) = ledger_summary.read_ledgers([path]).ledgers
    assert reading.bytes == sum(row["bytes"] for row in rows.values()) == 920 and f"head {reading.head}" in text


def test_the_figures_are_those_of_a_run(tmp_path: Path) -> None:
    method, build = worlds.recipe("fedavg")
    tiny_federation.run(method, tmp_path, build)
    lines = [json.loads(text) for path in tmp_path.glob("ledger/*") for text in path.read_text().splitlines()]
    code, text = ledger_command(tmp_path, "--json")
    summary = json.loads(text)
    assert code == 0 and summary["bytes"] == sum(line["bytes"] for line in lines) == sum(
        r["bytes"] for r in summary["left"]
    )
    metrics = [json.loads(text) for text in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert summary["bytes"] == sum(record["bytes_up"] for record in metrics)
    assert {entry["party"] for entry in summary["ledgers"]} == {path.stem for path in tmp_path.glob("ledger/*")}
    assert {row["parties"] for row in summary["left"]} == {len(summary["ledgers"])}


def test_a_run_says_what_its_fields_hold_and_a_ledger_elsewhere_with_the_method(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "home" / "faces" / "ledger" / "silo.jsonl", ROUNDS[:1])
    scales = Message((HEADER, Entry("scales of backbone/a", "tensor", (3,), "F32", 12)))  # beside int8
    narrowed = write_ledger(tmp_path / "narrowed.jsonl", [(scales, "look", 1)], step="train")

    def held(path: Path, *words: str) -> dict[str, str]:
        return {row["name"]: row["content"] for row in json.loads(ledger_command(path, "--json", *words)[1])["left"]}

    assert set(held(path).values()) == {""} and "give --method" in ledger_command(path)[1]
    assert held(path, "--method", "fedavg") == {"header": "score, count", "backbone/*": "weight"}
    assert held(narrowed, "--method", "fedavg")["scales of backbone/*"] == "weight"
    assert "weight" in ledger_command(path, "--method", "fedavg")[1]
    (tmp_path / "home" / "faces" / "config.yaml").write_text("method: fedprox")
    assert held(path) == held(tmp_path / "home" / "faces") == {"header": "score, count", "backbone/*": "weight"}
    (tmp_path / "home" / "faces" / "config.yaml").write_text("method: no.such.module:Method")  # nor is it imported
    assert set(held(path).values()) == {""}


def test_a_partys_home_has_the_ledgers_of_all_its_runs(tmp_path: Path) -> None:
    write_ledger(tmp_path / "home" / "one" / "ledger" / "silo.jsonl", ROUNDS[:2], run="one")
    write_ledger(tmp_path / "home" / "two" / "ledger" / "silo.jsonl", ROUNDS[:1], run="two")
    code, text = ledger_command(tmp_path / "home")
    assert code == 0 and "402 bytes left, in 9 lines of 2 ledgers" in text
    assert "silo of one: 6 lines" in text and "silo of two: 3 lines" in text
    with pytest.raises(RecipeError) as error:
        ledger_summary.ledger_files(tmp_path)
    assert error.value.where == str(tmp_path)


def test_a_cohorts_lines_count_for_all_its_parties(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "cohorts.jsonl", ROUNDS[:1], parties=40)
    assert ledger_summary.ledger_files(tmp_path) == [path] and by_name(path)["train backbone/*"]["times"] == 40


def test_a_head_that_was_written_down_is_found_or_not(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "silo.jsonl", ROUNDS[:2])
    early = ledger_summary.read_ledgers([path]).ledgers[0].head
    write_ledger(path.with_name("longer.jsonl"), ROUNDS)
    path.write_bytes(path.with_name("longer.jsonl").read_bytes())  # it went on
    code, text = ledger_command(path, "--head", early)
    assert code == 0 and "the given head ends line 6 of 20 of silo" in text
    assert ledger_command(path, "--head", ledger.START)[0] == 0  # nothing had left yet
    forged = write_ledger(tmp_path / "forged.jsonl", ROUNDS[1:])  # a chain that holds, and is another
    code, text = ledger_command(forged, "--head", early)
    assert code == 1 and f"no line ends with the head {early}: lines before it have been changed or removed" in text
    code, text = ledger_command(path, "--head", "abc")
    assert code == 2 and "64" in text


@pytest.mark.parametrize("as_json", [False, True])
def test_a_chain_that_breaks_is_told_with_its_line(as_json: bool, tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "silo.jsonl", ROUNDS)
    good = path.read_bytes().splitlines(keepends=True)
    for lines, where in (
        ([*good[:4], good[4].replace(b'"bytes": 24', b'"bytes": 25'), *good[5:]], 5),
        ([*good[:4], *good[5:]], 5),
        ([*good[:4], b"nonsense\n", *good[4:]], 5),
        ([*good, b"{}\n"], 21),
    ):
        path.write_bytes(b"".join(lines))
        code, text = ledger_command(path, *["--json"] * as_json)
        assert code == 1 and f"line {where}: the hash chain breaks here" in text
        assert f'"lines": {where - 1}' in text or f"silo: {where - 1} lines" in text


def test_a_line_that_is_being_written_is_not_counted(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "silo.jsonl", ROUNDS)
    for torn in (b'{"line": 20, "run"', bytes(30)):
        path.write_bytes((whole := path.read_bytes()) + torn)
        code, text = ledger_command(path)
        assert code == 0 and "silo: 20 lines" in text and "the last line is cut off" in text
        path.write_bytes(whole)


# --- both sides -------------------------------------------------------------------------------------------------------


@pytest.fixture
def both_sides(tmp_path: Path, toy_steps: None) -> tuple[Path, Path]:
    """(the server's folder, the home of silo-1) of a run; the other parties' ledgers lie at the server."""
    folder, home = tmp_path / "run", tmp_path / "home"
    tiny_federation.run(Moves(rounds=3), folder)
    for kind, name in (("ledger", "silo-1.jsonl"), ("parties", "silo-1")):
        (home / "test" / kind).mkdir(parents=True)
        (folder / kind / name).rename(home / "test" / kind / name)
    return folder, home


def test_both_sides_are_compared(both_sides: tuple[Path, Path]) -> None:
    folder, home = both_sides
    code, output = ledger_command("verify", folder, "--party-home", home)
    assert code == 0 and "9 replies of 3 parties" in output and "not compared" not in output
    code, output = ledger_command("verify", folder)
    assert code == 0 and "not compared (give --party-home): silo-1" in output
    assert json.loads(ledger_command("verify", folder, "--json")[1])["absent"] == ["silo-1"]


def test_a_chain_that_is_cut_between_two_lines_or_written_anew_is_told_by_the_server(
    both_sides: tuple[Path, Path],
) -> None:
    folder, home = both_sides
    path = home / "test" / "ledger" / "silo-1.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:10]))
    ledger.verify(path)
    code, output = ledger_command("verify", folder, "--party-home", home)
    assert code == 1 and "silo-1.jsonl ends after line 10, and the reply of step move, train round 3" in output
    anew = ledger.chained((text[1:].partition(", ")[2].rpartition(', "chain"')[0] for text in lines), ledger.Head())
    assert "".join(f"{line}\n" for line in anew) == "".join(lines)
    anew = ledger.chained(
        (text[1:].partition(", ")[2].rpartition(', "chain"')[0].replace('"round": 2', '"round": 7') for text in lines),
        ledger.Head(),
    )
    path.write_text("".join(f"{line}\n" for line in anew))
    ledger.verify(path)
    code, output = ledger_command("verify", folder, "--party-home", home)
    assert code == 1 and "silo-1.jsonl, line 10: it is not the line that" in output


def test_receipts_that_are_cut_or_written_anew_are_told_by_the_parties(both_sides: tuple[Path, Path]) -> None:
    folder, home = both_sides
    path = folder / "receipts.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 9
    path.write_text("".join(lines[:3]))
    code, output = ledger_command("verify", folder, "--party-home", home)
    assert code == 1 and output.count("silo-0, silo-1, silo-2 were told that line 6 ends with") == 1
    path.write_text("".join(lines).replace('"round": 1', '"round": 4', 1))
    code, output = ledger_command("verify", folder, "--party-home", home)
    assert code == 1 and "receipts.jsonl, line 1: the hash chain breaks here" in output
    path.write_text("")
    assert ledger_command("verify", folder, "--party-home", home)[0] != 0


@pytest.mark.parametrize("kept_lines", [3, 6, 8])
def test_receipts_that_are_cut_after_what_the_parties_were_told_are_told_by_the_checkpoint_and_the_rounds(
    both_sides: tuple[Path, Path], kept_lines: int
) -> None:
    folder, home = both_sides
    path = folder / "receipts.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept_lines]))
    code, output = ledger_command("verify", folder, "--party-home", home)
    assert code == 1 and "the 9 lines that it had at the last checkpoint" in output
    assert f"train round 3 has receipts of {max(0, kept_lines - 6)} parties, and metrics.jsonl counts 3" in output
    assert ("round 2" in output.replace("silo", "")) == (kept_lines < 6)
    shutil.rmtree(folder / "checkpoints")
    code, output = ledger_command("verify", folder, "--party-home", home)
    assert code == 1 and "checkpoint" not in output and "train round 3 has receipts of" in output


def test_a_damaged_checkpoint_is_told_and_replies_that_did_not_come_are_not_missed(
    tmp_path: Path, toy_steps: None
) -> None:
    faults = SimulatedFaults(dropout=0.4)
    tiny_federation.run(Moves(rounds=4), tmp_path, faults=faults, min_reply_fraction=0.1, max_abandoned_rounds=4)
    records = [json.loads(text) for text in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert any(0 < record["arrived"] < record["asked"] for record in records)
    assert ledger_command("verify", tmp_path)[0] == 0
    (last,) = sorted(tmp_path.glob("checkpoints/*/checkpoint.json"))[-1:]
    last.write_text(last.read_text().replace('"round":4', '"round":3'))
    code, output = ledger_command("verify", tmp_path)
    assert code == 1 and "checkpoint.json is not what was written" in output


def test_a_ledger_that_was_removed_where_the_parties_are_played_is_told(both_sides: tuple[Path, Path]) -> None:
    folder, home = both_sides
    (folder / "ledger" / "silo-0.jsonl").unlink()
    for words in ((folder,), ("verify", folder, "--party-home", home)):
        code, output = ledger_command(*words)
        assert code == 1 and "silo-0.jsonl does not exist" in output and "silo-1.jsonl" not in output
    shutil.rmtree(folder / "parties" / "silo-0")
    assert ledger_command(folder)[0] == 0  # it may be elsewhere
    for elsewhere, faulty in ((True, 0), (False, 1)):
        with open(folder / "events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": "begins", "elsewhere": elsewhere}) + "\n")
        assert ledger_command(folder)[0] == ledger_command("verify", folder)[0] == faulty
    code, output = ledger_command("verify", folder, "--party-home", home)
    assert code == 1 and "silo-0.jsonl does not exist" in output and "silo-1.jsonl" not in output
