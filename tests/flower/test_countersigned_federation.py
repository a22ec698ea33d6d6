"""Countersigned rounds over TLS: nodes sign with keys of their own, which the server does not have."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from commands import invoked
from federations import FACES, Standing

from coalface.privacy import countersign

pytest.importorskip("cryptography")


@pytest.mark.slow
def test_nodes_sign_what_the_server_has_accepted_and_a_forger_has_not_their_keys(tmp_path: Path) -> None:
    with Standing.build(tmp_path, recipe={**FACES, "privacy": {"countersign": True}}).taken_down() as federation:
        code, printed = federation.finish(federation.up())
        assert code == 0, printed
    run, homes = federation.run("faces"), {party: federation.home(party, "faces") for party in federation.parties}
    words = [word for home in homes.values() for word in ("--party-home", home.parent)]
    result = invoked("ledger", "verify", run, *words, "--json")
    report = json.loads(result.output)
    assert result.exit_code == 0 and report["replies"] == 6 and report["absent"] == []
    signatures = report["signatures"]
    assert (signatures["covered"], signatures["by_parties"], sum(signatures["signed"].values())) == (6, False, 4)
    second = set(signatures["keys"]) - {countersign.SERVER}
    assert second and second == {party for party, home in homes.items() if (home / countersign.FOLDER).exists()}
    for party in second:
        folder = homes[party] / countersign.FOLDER
        assert (folder / f"{party}.pub").read_text() == signatures["keys"][party]
        assert stat.S_IMODE((folder / f"{party}.key").stat().st_mode) == 0o600
    assert not (run / countersign.FOLDER).exists()

    path = run / countersign.FILE
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    path.unlink()
    forged = countersign.Signed(path)
    for line in lines:  # by whoever has the server's folder, with keys of their own making for the parties
        statement = lines[line.get("of", line["line"])]
        key = countersign.SigningKey(run / countersign.SERVER_KEY if "of" not in line else tmp_path / "forged.key")
        role, parts = "server", (countersign.text_of(statement),)
        if "of" in line:
            role, parts = "party", (*parts, statement["signature"])
        about = {name: value for name, value in line.items() if name not in ("line", "chain")}
        forged.append(about | {"key": key.public, "signature": key.sign(role, *parts)})
    assert invoked("ledger", "verify", run).exit_code == 0, "keys that nobody compares prove nothing"
    result = invoked("ledger", "verify", run, *words)
    assert result.exit_code == 1 and f"{min(second)} has not signed train round" in result.output
