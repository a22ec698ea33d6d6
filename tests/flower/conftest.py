from __future__ import annotations

from pathlib import Path

import pytest
from federations import NOW, write_federation


@pytest.fixture(scope="session")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kits of a federation; tests only read them."""
    from coalface.flower.provision import kits as provisioning

    folder = tmp_path_factory.mktemp("made")
    return provisioning.make(write_federation(folder), folder / "kits", NOW)
