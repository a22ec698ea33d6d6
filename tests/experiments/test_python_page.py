"""The examples of docs/python.md and the notebook beside it run as they stand."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from field_layouts import people

DOCS = Path(__file__).parents[2] / "docs"


def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    people(tmp_path / "faces", [f"person {number:02d}" for number in range(14)], 4)
    names: dict[str, object] = {}
    for example in re.findall(r"^```python\n(.*?)^```", (DOCS / "python.md").read_text(), re.MULTILINE | re.DOTALL):
        exec(example, names)
    assert names["people"].images.names == ("0", "ann")  # type: ignore[attr-defined]
    assert len(list(filter(None, names["losses"].values))) == 2  # type: ignore[attr-defined]
    assert names["embeddings"].shape == (56, 128)  # type: ignore[attr-defined]
    assert "fedprox" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.ci
def test_the_notebook_runs(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(DOCS / "notebooks" / "first.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the outputs are stripped"
    method = (DOCS / "writing-a-method.md").read_text().split("```python\n")[1].split("```")[0]
    own = 'cf.fit(faces, method=Damped(rounds=1), parties=2, workers=2, progress=False, out="runs/own")'
    cells = [nbformat.v4.new_code_cell(f"from __future__ import annotations\n{method}"), nbformat.v4.new_code_cell(own)]
    notebook.cells += cells  # a method of a cell, over two workers
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [output["data"] for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert sum("image/svg+xml" in data for data in outputs) == 1
    assert sum("<table" in data.get("text/html", "") for data in outputs) >= 4
    assert "__main__:Damped" in outputs[-1]["text/plain"]
    averaged = json.loads((tmp_path / "runs" / "fedavg" / "summary.json").read_text())
    assert averaged["figures"]["unseen"]["accuracy"] > averaged["untrained"]["unseen"]["accuracy"] + 5
    summary = json.loads((tmp_path / "runs" / "own" / "summary.json").read_text())
    digest = hashlib.sha256(cells[0].source.encode()).hexdigest()
    assert summary["environment"]["plugins"]["method"]["sha256"] == digest
