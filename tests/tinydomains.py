"""Tiny recipes of two synthetic domains: ten people of a studio with names, nine of the street without."""

from __future__ import annotations

from typing import Any

from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe

METHODS = ("fedfr-uda", "finetune-pseudo", "source-only", "target-only", "merge", "dan", "dann")
"""Those for two domains."""

TREE: dict[str, Any] = {
    "name": "tiny-domains",
    "method": "fedfr-uda",
    "rounds": 1,
    "local": {"steps_per_round": 2, "batch_size": 6, "lr": 0.02},
    "data": {
        "faces": {
            "kind": "joined",
            "parts": {
                "studio": {"kind": "synthetic", "identities": 10, "images": 4},
                "street": {"kind": "synthetic", "identities": 9, "images": 4, "first": 100, "domains": ["street"]},
            },
        },
        "size": 32,
        "scenario": "domains",
        "source_domain": "studio",
        "target_domain": "street",
        "clients": 2,
        "hold_out": 3,
        "calibrate": 2,
    },
    "evaluation": {
        "fars": [0.1],
        "pairs": {
            "street": {"kind": "balanced", "part": "street", "pairs": 15, "rank1": "one-gallery"},
            "studio": {
                "kind": "balanced",
                "pairs": 15,
                "source": {"kind": "synthetic", "identities": 4, "images": 4, "first": 200},
            },
        },
    },
    "engine": {"threads": 1},
}


def two_domains(*changes: dict[str, Any]) -> Recipe:
    """The tiny recipe with trees of changes laid over it."""
    tree = TREE
    for change in changes:
        tree = loader.merged(tree, change)
    return loader.parse(tree)


def domains(**changes: Any) -> dict[str, Any]:
    """Changes of `data`."""
    return {"data": changes}
