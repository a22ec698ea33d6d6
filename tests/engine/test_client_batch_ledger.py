"""The ledger of a run's client batches: what its lines say, and that nobody changes them unseen."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_client_batch import ELEVEN, EXACT, WORK, fedface, lines

from coalface.core import codec
from coalface.core.method import Party, batched, step
from coalface.engine.transport import RunFailed
from coalface.experiments.conformance.tiny_federation import Stop, run, stopping
from coalface.methods.fedface import Centre, FedFace, Global, Update


@dataclass(frozen=True, kw_only=True)
class Watched(FedFace):
    """Notes what its batched form gives."""

    @step(role="trainer")
    def train(self, party: Party, common: Global, each: Centre) -> Update:
        raise AssertionError("nobody is asked singly here")

    @batched("train")
    def train_batched(self, parties: Sequence[Party], common: Global, each: Sequence[Centre]) -> list[Update]:
        NOTED.append(FedFace.train_batched(self, parties, common, each))
        return NOTED[-1]


NOTED: list[list[Update]] = []


def test_a_line_says_what_would_have_been_sent_and_what_was_computed(tmp_path: Path) -> None:
    """Bytes are those of all of its parties; the hash is of their mean once, or of their own values in a row."""
    NOTED.clear()
    ran = run(Watched(rounds=1, local=WORK), tmp_path, EXACT, numerics=ELEVEN)
    assert len(NOTED) == 4
    names = [("silo-0", "silo-1"), ("silo-2", "silo-3"), ("silo-4", "silo-5"), ("silo-6", "silo-6")]
    for (first, last), replies in zip(names, NOTED, strict=True):
        by_name = {line["name"]: line for line in lines(ran) if line["first"] == first}
        count = len(replies)
        about = {(e["last"], e["parties"], e["step"], e["round"], e["stage"], e["to"]) for e in by_name.values()}
        assert about == {(last, count, "train", 1, "train", "server")}
        mean = replies[0].backbone
        for name, tensor in mean.items():
            entry = by_name[f"backbone/{name}"]
            assert entry["sha256"] == hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
            assert (entry["bytes"], entry["shape"]) == (count * tensor.numel() * 8, list(tensor.shape))
        centres = b"".join(reply.centre.numpy().tobytes() for reply in replies)
        assert by_name["centre"]["sha256"] == hashlib.sha256(centres).hexdigest()
        assert (by_name["centre"]["bytes"], by_name["centre"]["shape"]) == (len(centres), [1, 8])
        whole = sum(len(codec.encode(reply).data) for reply in replies)
        assert sum(line["bytes"] for line in by_name.values()) == whole
    assert not list((tmp_path / "ledger").glob("*.jsonl"))
    assert not list((tmp_path / "parties").rglob("*.commit"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda rows: [*rows[:2], rows[2].replace('"parties": 2', '"parties": 3'), *rows[3:]],
            "line 3: the hash chain",
        ),
        (lambda rows: rows[:3], "lines were removed. Restore the file, or start a new run"),
        (lambda rows: None, "0 bytes, and had .* lines were removed"),
    ],
)
def test_a_ledger_of_cohorts_that_was_changed_is_not_gone_on_with(tmp_path: Path, change: Any, says: str) -> None:
    rules: dict[str, Any] = {"numerics": ELEVEN, "checkpoint_every": 1}
    with pytest.raises(Stop):
        run(fedface(rounds=3), tmp_path, EXACT, transport=stopping(5), **rules)
    path = tmp_path / "cohorts.jsonl"
    rows = change(path.read_text().splitlines(keepends=True))
    path.write_text("".join(rows)) if rows else path.unlink()
    with pytest.raises(RunFailed, match=rf"cohorts.jsonl.*{says}"):
        run(fedface(rounds=3), tmp_path, EXACT, **rules)


def test_a_line_that_a_kill_cut_off_is_taken_back(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"numerics": ELEVEN, "checkpoint_every": 1}
    unbroken = run(fedface(rounds=3), tmp_path / "unbroken", EXACT, **rules).bytes()
    with pytest.raises(Stop):
        run(fedface(rounds=3), tmp_path / "broken", EXACT, transport=stopping(6), **rules)
    with (tmp_path / "broken" / "cohorts.jsonl").open("a") as file:
        file.write('{"line": 99, "cut')
    assert run(fedface(rounds=3), tmp_path / "broken", EXACT, **rules).bytes() == unbroken


def test_a_finished_run_tells_what_is_wrong_with_its_ledger(tmp_path: Path) -> None:
    ran = run(fedface(), tmp_path, EXACT, numerics=ELEVEN)
    path = tmp_path / "cohorts.jsonl"
    whole = path.read_text()
    assert ran.server.check_ledgers() == {}
    for changed in (whole.replace('"parties": 2', '"parties": 3', 1), "".join(whole.splitlines(keepends=True)[:-1])):
        path.write_text(changed)
        assert "cohorts.jsonl, line" in ran.server.check_ledgers()["cohorts"]
    path.unlink()
    assert "cohorts.jsonl" in ran.server.check_ledgers()["cohorts"]
