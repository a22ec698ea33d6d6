"""A federation of three parties, as a file with its recipe beside it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import yaml

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
RECIPE: dict[str, Any] = {
    "name": "faces",
    "method": "fedavg-fv",
    "data": {"size": 32, "source": {"kind": "synthetic", "identities": 30, "images": 4}, "partition": {"parties": 2}},
    "validators": {"clinic": {"identities": 6, "pairs": 10}},
}
FEDERATION: dict[str, Any] = {
    "name": "hospitals",
    "superlink": {"hosts": ["fl.example.org", "10.0.0.7"], "port": 9443},
    "recipe": "recipe.yaml",
    "parties": {
        "silo-00": {"role": "trainer", "data": "/srv/our faces"},
        "silo-01": {"role": "trainer"},
        "clinic": {"role": "validator"},
    },
}


def written(folder: Path, **changes: Any) -> Path:
    """A federation's file, and the recipe beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    (folder / "federation.yaml").write_text(yaml.safe_dump({**FEDERATION, **changes}))
    return folder / "federation.yaml"
