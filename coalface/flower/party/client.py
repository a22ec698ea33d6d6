"""A party's side of a recipe's Flower app: what a SuperNode imports, for every message anew.

A node's configuration says which party it plays (`party`) and where it keeps what is the party's (`home`). The message
goes on to the party's own process, `coalface.flower.party.process`, which stays between messages; nothing heavy is
imported here.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coalface.flower.app.client_app import Answer, client_app
from coalface.flower.party import daemon

NODE_CONFIG = 'a SuperNode plays one party: start it with --node-config \'party="NAME" home="FOLDER"\''


def client(recipe: Path) -> Any:
    """The ClientApp: a party of the recipe at this node."""

    def player(context: Any) -> Answer:
        return functools.partial(forward, recipe, context.node_config, context.run_config)

    return client_app(player)


def forward(
    recipe: Path,
    node_config: Mapping[str, Any],
    run_config: Mapping[str, Any],
    about: str,
    values: Mapping[str, Any],
    data: Mapping[str, bytes],
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Have the party's process answer a message; where it cannot, why is printed here and its kind told."""
    try:
        words = json.dumps([str(recipe), dict(node_config), dict(run_config)], sort_keys=True)
        digest = hashlib.sha256(words.encode() + recipe.read_bytes()).hexdigest()[:16]
        place = home(node_config) / "processes" / f"{digest}.json"
        start = [sys.executable, "-m", "coalface.flower.party.process", str(place), words, str(os.getppid())]
        began = time.monotonic()
        answer = daemon.ask(place, start, about, values, data)
        print(f"{about}: answered in {time.monotonic() - began:.2f} s", flush=True)
        return answer
    except (ValueError, OSError, EOFError, daemon.Absent) as error:
        print(f"{about} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return {"failed": type(error).__name__}, {}


def home(node_config: Mapping[str, Any]) -> Path:
    """Where the party keeps what is its own. Raises ValueError where the node's configuration does not say."""
    if not node_config.get("party") or not node_config.get("home"):
        raise ValueError(NODE_CONFIG)
    return Path(str(node_config["home"])).absolute()
