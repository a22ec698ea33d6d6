"""The method of `docs/writing-a-method.md`, from the page's own text."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from coalface.methods import METHODS

PAGE = Path(__file__).parents[1] / "docs" / "writing-a-method.md"
SOURCE = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


def method(folder: Path, monkeypatch: pytest.MonkeyPatch, old: str = "", new: str = "") -> ModuleType:
    """The page's method with a mistake, imported from a file and registered."""
    assert old in SOURCE
    path = folder / "damped.py"
    path.write_text(SOURCE.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("damped", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "damped", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(METHODS.own, "damped", module.Damped)
    return module
