"""`privacy.countersign` of a recipe; what is signed, and what is found by it, is in engine/test_countersigns.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import tinyruns
from commands import invoked

from coalface.core.errors import RecipeError
from coalface.experiments.plan import preflight
from coalface.experiments.recipe.schema import Recipe


def recipe(**changes: Any) -> Recipe:
    return tinyruns.tiny(privacy={"countersign": True}, **changes)


@pytest.mark.usefixtures("quick_workers")
def test_a_run_of_a_recipe_is_countersigned_and_verified(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    tinyruns.run(tmp_path / "run", privacy={"countersign": True}, engine={"workers": 2})
    result = invoked("ledger", "verify", tmp_path / "run")
    assert result.exit_code == 0 and "second party: 4 of 4 receipts\n" in result.output
    (tmp_path / "run" / "countersigns.jsonl").unlink()
    result = invoked("ledger", "verify", tmp_path / "run")
    assert result.exit_code == 1 and "second party: 4 of 4 receipts, by what the parties at hand keep" in result.output
    assert "the parties at hand keep what it had" in result.output and "no round was signed" not in result.output


def test_a_machine_that_cannot_sign_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(RecipeError, match=r"pip install 'coalface\[privacy\]'") as error:
        preflight.check(recipe())
    assert error.value.where == "privacy.countersign"
