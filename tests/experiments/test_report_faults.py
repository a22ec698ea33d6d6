from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import yaml
from commands import outputs

from coalface.experiments.comparison import page as comparison
from coalface.experiments.comparison.table import compare
from coalface.experiments.report import faults, page, runs


def troubled(folder: Path, trouble: dict[str, Any]) -> runs.Run:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"faults": trouble}, sort_keys=False))
    return runs.read(folder)


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        ({"dropout": 0.25}, "a party is not reached with probability 0.25"),
        ({"slow": {"silo-1": 4.5, "*": 2}, "deadline": 9}, "silo-1: a mean delay of 4.5 s; all others: a mean"),
        (
            {"corrupt": {"a": "nan", "b": "shape", "c": "nan"}},
            r"replies of a, c are corrupted \(nan\); .*b .*shape",
        ),
        (
            {"stages": {"mask": 0.2, "share": 0, "unmask": 0.125}},
            r"before mask of a secure sum with probability 0\.2; .*before unmask .*0\.125\.$",
        ),
        ({"corrupt": {f"p{i}": "nan" for i in range(12)}}, "p7 and 4 more are corrupted"),
    ],
)
def test_what_was_simulated_stands_at_the_head(write_run: Any, trouble: dict[str, Any], sentence: str) -> None:
    (first,) = [line for line in faults.at_the_head(troubled(write_run(), trouble)) if "Simulated" in line]
    assert re.search(f"Simulated faults: .*{sentence}", first)


@pytest.mark.parametrize("trouble", [{}, {"dropout": 0.0, "lost": 0.0, "deadline": None}, {"slow": {"*": 0}}, []])
def test_a_run_without_trouble_says_nothing_of_it(write_run: Any, trouble: Any) -> None:
    run = troubled(write_run(), trouble)
    assert faults.at_the_head(run) == [] and faults.not_counted(run) == ""
    assert "Simulated" not in page.render(run)


def test_targets_whose_images_are_all_in_one_cluster_stand_at_the_head(write_run: Any) -> None:
    folder = write_run()
    summary = json.loads((folder / "summary.json").read_text())
    clusters = {"target-00": {"clusters": 1.0, "nmi": 0.0}, "target-01": {"clusters": 4.0, "nmi": 60.0}}
    (folder / "summary.json").write_text(json.dumps(summary | {"clusters": clusters}))
    (sentence,) = faults.at_the_head(runs.read(folder))
    assert sentence.startswith("All images of target-00 went into one cluster: ") and "target-01" not in sentence


def test_parties_that_never_counted_and_abandoned_rounds_stand_at_the_head(write_run: Any) -> None:
    folder = write_run()
    summary = json.loads((folder / "summary.json").read_text())
    summary["parties"][1] |= {"rounds": 0, "failed": 6}
    summary["parties"][3] |= {"rounds": 0, "failed": 0}  # it was never asked
    (folder / "summary.json").write_text(json.dumps(summary))
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records[2]["abandoned"] = records[4]["abandoned"] = True
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert faults.at_the_head(runs.read(folder)) == [
        "No reply of silo-01 ever counted.",
        "2 of 6 rounds were abandoned: the model stayed as it was.",
    ]
    text = comparison.render(compare([folder, write_run("other")]))
    head = text[: text.index("</header>")]
    assert "demo-fedavg: No reply of silo-01 ever counted. 2 of 6 rounds were" in head and 'warn">other' not in head


@pytest.mark.parametrize("quiet", [False, True])
def test_replies_much_larger_than_others_are_told_once_and_stand_at_the_head(tmp_path: Path, quiet: bool) -> None:
    changes: dict[str, Any] = {"engine": {"max_update_norm": 0}, "data": {"partition": {"parties": 4}}}
    recipe = tinyruns.write(tmp_path / "tiny.yaml", faults={"corrupt": {"silo-01": "scaled"}}, **changes)
    printed, warned = outputs("run", recipe, "--out", tmp_path / "run", *["--quiet"] * quiet)
    (line,) = [line for line in (warned if quiet else printed).splitlines() if "much larger" in line]
    assert "silo-01" in line and "in round 1 the norm of its backbone is " in line
    (sentence,) = [line for line in faults.at_the_head(runs.read(tmp_path / "run")) if "much larger" in line]
    assert line == f"tiny: {sentence.removesuffix('.')}" and sentence in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("sent", "listed", "sentence"),
    [
        ({"up": 900}, 900, ""),
        ({"up": 900}, 1000, "100 B more than the server counted as sent: what a party sent again"),
        ({"up": 900}, 800, "100 B less than the server counted as sent: lines are missing"),
    ],
)
def test_the_ledger_is_held_against_what_was_counted(
    write_run: Any, sent: dict[str, int], listed: int, sentence: str
) -> None:
    run = runs.read(write_run(bytes=sent, ledger={"lines": 3, "bytes": listed, "checked": {"heads": 4, "whole": 4}}))
    assert sentence in faults.ledger_difference(run) and bool(sentence) == bool(faults.ledger_difference(run))
    if listed < 900 and run.metrics:
        run.metrics[0]["abandoned"] = True
        assert "100 B less than the server counted as sent: a reply collected in a" in faults.ledger_difference(run)
    many = runs.read(write_run("many", bytes=sent, ledger={"bytes": 5, "checked": {"heads": 900, "whole": 200}}))
    assert faults.ledger_difference(many).startswith("The bytes are those of the first 200 of 900 ledgers")


@pytest.mark.parametrize(
    ("checked", "sentence", "well"),
    [
        ({"heads": 8, "whole": 8, "faults": {}}, "the chain of all 8 ledgers was followed from its", True),
        ({"heads": 900, "whole": 200, "faults": {}}, "all 900 ledgers had the heads .* of the first 200", True),
        (
            {"heads": 8, "whole": 8, "faults": {"silo-1": "x.jsonl, line 7: breaks"}},
            "of silo-1 does not hold: x",
            False,
        ),
        ({}, "", True),
    ],
)
def test_the_check_of_the_chains_is_told(checked: dict[str, Any], sentence: str, well: bool) -> None:
    text, fine = faults.checked_chains({"checked": checked})
    assert re.search(sentence, text) and fine == well and bool(text) == bool(sentence)


def test_the_report_of_a_troubled_run_agrees_with_its_ledgers(tmp_path: Path) -> None:
    trouble = {"corrupt": {"silo-01": "nan"}, "lost": 0.3}
    out = tinyruns.run(
        tmp_path / "run",
        report=True,
        rounds=6,
        faults=trouble,
        engine={"threads": 1, "min_reply_fraction": 0.5, "max_abandoned_rounds": 9},
    )
    summary = json.loads((out / "summary.json").read_text())
    lines = [json.loads(text) for path in (out / "ledger").glob("*.jsonl") for text in path.read_text().splitlines()]
    listed = sum(line["bytes"] for line in lines)
    sent, again = summary["bytes"]["up"], summary["bytes"]["again"]  # what was asked for again is listed once
    assert sent - again == listed == summary["ledger"]["bytes"] and sent == sum(
        p["bytes_up"] for p in summary["parties"]
    )
    assert again > 0 and faults.ledger_difference(runs.read(out)) == ""
    assert summary["bytes"]["refused"] > 0 and summary["bytes"]["lost"] > 0
    assert summary["ledger"]["checked"] == {"heads": 2, "whole": 2, "faults": {}}
    text = (out / "report.html").read_text(encoding="utf-8")
    assert text.index("the replies of silo-01 are corrupted (nan)") < text.index("Over the rounds")
    assert text.index("No reply of silo-01 ever counted.") < text.index("Over the rounds")
    assert "and did not count." in text and "more than the server counted" not in text
    assert "the chain of all 2 ledgers was followed from its first line and held" in text


def test_a_softmax_over_one_class_is_told_at_the_head(write_run: Any) -> None:
    def sentences_of(identities: int, loss: float) -> list[str]:
        folder = write_run(f"run-{identities}-{loss:g}", parties=2)
        summary = json.loads((folder / "summary.json").read_text())
        for party in summary["parties"]:
            party |= {"role": "trainer", "identities": identities}
        (folder / "summary.json").write_text(json.dumps(summary))
        records = [json.loads(line) | {"loss": 0.0} for line in (folder / "metrics.jsonl").read_text().splitlines()]
        records[3]["loss"] = loss
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return faults.at_the_head(runs.read(folder))

    (line,) = sentences_of(1, 0.0)
    assert line.startswith("Each party holds one identity: a softmax over its one class") and "`positive-only`" in line
    assert sentences_of(1, 0.1) == sentences_of(2, 0.0) == []
