"""The page of a run that is passed on holds nothing of where and by whom it was carried out."""

from __future__ import annotations

import getpass
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import yaml
from commands import said
from pages import Reader

from coalface.experiments import sharing
from coalface.experiments.report import page, runs

PARTIES = ["clinic-of-arnsberg", "clinic-of-arnsberg-2", "border_post.east"]
SECRETS = [
    "clinic-of-arnsberg",
    "border_post.east",
    "/srv/vault-of-faces/lfw",
    "vault-of-faces",
    "host-of-the-ministry",
    "user-of-the-ministry",
    "git@forge-of-the-ministry:faces.git",
    "weights-of-the-ministry.pt",
    "Traceback-of-a-party",
    "ministry-folder",
]


@pytest.fixture
def planted(write_run: Any) -> Path:
    """A run whose files hold each secret, wherever its kind may stand."""
    folder = Path(write_run("ministry-folder", method="pfm-fv", parties=3))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["data"] |= {
        "root": "/srv/vault-of-faces",
        "faces": {"kind": "folder", "path": "/srv/vault-of-faces/lfw"},
        "partition": {"kind": "file", "path": "vault-of-faces"},
    }
    config |= {
        "name": "silos",
        "model": {"name": "cnn-small", "weights": "weights-of-the-ministry.pt"},
        "local": {"lr": 0.02, "party_batch_size": {PARTIES[0]: 12}},
        "validators": {PARTIES[2]: {"path": "vault-of-faces"}},
        "faults": {"slow": {PARTIES[1]: 2.5}, "corrupt": {PARTIES[0]: "scaled"}},
        "engine": {"trackers": ["mlflow"], "aggregator": {"name": "median"}, "uri": "host-of-the-ministry"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    text = (folder / "summary.json").read_text()
    for number, party in enumerate(PARTIES):
        text = text.replace(f"silo-{number:02}", party)
    summary = json.loads(text)
    summary["parties"][0] |= {"host": "host-of-the-ministry"}
    summary["ledger"]["checked"] = {
        **{"heads": 3, "whole": 2},
        "faults": {PARTIES[0]: "/srv/vault-of-faces/lfw of user-of-the-ministry"},
    }
    summary["figures"][f"of-{PARTIES[0]}"] = {"eer": 12.5}
    summary["messages"][0]["to"] = f"{PARTIES[0]} and {PARTIES[1]}"
    summary |= {
        "name": "silos",
        "readable": f"an update of {PARTIES[0]} tells of 4 images",
        "environment": {
            "torch": "2.13.0",
            "command": "coalface run /srv/vault-of-faces/lfw.yaml",
            "host": "host-of-the-ministry",
            "user": "user-of-the-ministry",
            "remote": "git@forge-of-the-ministry:faces.git",
            "plugins": {"method": {"name": "user-of-the-ministry:Method"}},
        },
        "clusters": {PARTIES[1]: {"clusters": 1.0, "bcubed_f": 50.0}},
        "passed_over": ["/srv/vault-of-faces/lfw/a.png is damaged"],
        "privacy": {"ended": "at the word of user-of-the-ministry", "epsilon": 2.0, "delta": 1e-5},
        "of a later version": {PARTIES[0]: ["host-of-the-ministry", {"name": "vault-of-faces"}], "number": 7},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record |= {f"weight/{party}": 0.5 for party in PARTIES} | {f"score/{PARTIES[2]}": 61.0}
        record["failed"] = {PARTIES[0]: "Traceback-of-a-party: /srv/vault-of-faces/lfw"}
        record["large"] = {PARTIES[1]: "Traceback-of-a-party"}
        record["losses"] = dict.fromkeys(PARTIES, 1.5)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "events.jsonl").write_text(
        '{"event": "begins", "host": "host-of-the-ministry"}\nnot JSON of a user\n{}\n'
    )
    return folder


def test_no_secret_is_on_the_page_that_is_shared(planted: Path) -> None:
    whole = page.build(planted).read_bytes()
    held = [secret for secret in SECRETS if secret.encode() in whole]
    assert set(held) >= {*SECRETS[:4], "user-of-the-ministry", "weights-of-the-ministry.pt", "Traceback-of-a-party"}
    said("report", planted, "--share", "--out", planted / "out.html")
    shared = (planted / "out.html").read_bytes()
    assert [secret for secret in SECRETS if secret.encode() in shared] == []
    Reader(shared.decode()).check_offline()


def test_a_run_that_has_not_finished_a_round_names_no_party_either(planted: Path) -> None:
    (planted / "metrics.jsonl").write_text("")
    (planted / "summary.json").unlink()
    config = yaml.safe_load((planted / "config.yaml").read_text())
    config["data"]["partition"] = {"kind": "shares", "shares": {PARTIES[1]: 0.5}}
    (planted / "config.yaml").write_text(yaml.safe_dump(config))
    shared = sharing.build(planted).read_bytes()
    assert [secret for secret in SECRETS if secret.encode() in shared] == []


def test_parties_are_numbered_in_all_tables_and_charts(planted: Path) -> None:
    reader = Reader(sharing.build(planted).read_text(encoding="utf-8"))
    trainers = [row[:3] for row in reader.rows if row[1:2] == ["trainer"]]
    assert trainers == [[f"party {number}", "trainer", str(29 + number)] for number in (1, 2, 3)]
    series = {row.get("series") for chart in reader.charts for row in chart["data"]["values"]}
    assert {"party 1", "party 2", "party 3"} <= series
    assert ["train", "1", "party 1", sharing.LEFT_OUT] in reader.rows
    assert "party 1 and party 2" in reader.text and "update of party 1 tells of 4 images" in reader.text


def test_numbers_and_the_words_of_recipes_stay(planted: Path) -> None:
    run = sharing.shared(runs.read(planted))
    assert run.is_shared and list(run.figures.values()) == list(runs.read(planted).figures.values())
    assert run.config["local"] == {"lr": 0.02, "party_batch_size": {"party 1": 12}}
    assert run.config["model"] == {"name": "cnn-small", "weights": sharing.LEFT_OUT}
    assert run.config["data"]["faces"] == {"kind": "folder", "path": sharing.LEFT_OUT}
    assert run.config["engine"]["trackers"] == ["mlflow"]
    assert run.summary["environment"] == {"torch": "2.13.0"}
    assert run.summary["of a later version"] == {"party 1": [sharing.LEFT_OUT, {"name": sharing.LEFT_OUT}], "number": 7}
    assert yaml.safe_load(run.config_text) == run.config


def test_a_run_that_was_carried_out_here_tells_nothing_of_here(tmp_path: Path) -> None:
    """The page of a real run: all that the product itself writes into it."""
    run = tinyruns.run(tmp_path / "run", rounds=1)
    shared = sharing.build(run).read_text(encoding="utf-8")
    around = re.sub('<script type="text/plain".*?</script>', "", shared, flags=re.DOTALL)
    names = [party["name"] for party in json.loads((run / "summary.json").read_text())["parties"]]
    for secret in (str(tmp_path), str(Path.home()) + "/", socket.gethostname(), f"{getpass.getuser()}@", *names):
        assert secret not in around, secret
    assert run / "shared.html" == Path(said("report", run, "--share").removeprefix("report: ").strip())
