"""Renamed keys of recipes: an old one is refused with its new name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coalface.core.errors import RecipeError

RENAMED = {
    "judge": "evaluation",
    "evaluation.lists": "evaluation.pairs",
    "trouble": "faults",
    "half_split": "fold_split",
    "validators.*.half_of": "validators.*.validates",
    "local.batch": "local.batch_size",
    "local.party_batch": "local.party_batch_size",
    "local.decays": "local.lr_milestones",
    "local.milestones": "local.lr_milestone_shares",
    "local.iterations": "local.steps_per_round",
    "local.steps": "local.total_steps",
    "engine.quorum": "engine.min_reply_fraction",
    "engine.patience": "engine.max_abandoned_rounds",
    "engine.window": "engine.max_in_flight",
    "engine.block": "engine.sum_block",
    "engine.keep": "engine.keep_checkpoints",
    "engine.checkpoint": "engine.checkpoint_every",
    "engine.shards": "engine.processes_per_party",
    "engine.updates": "engine.update_dtype",
    "engine.cohorts": "engine.client_batch",
    "engine.tensorboard": "engine.trackers",
    "data.source": "data.faces",
    "data.faces.parties": "data.parties",
    "data.domains.source": "data.source_domain",
    "data.domains.target": "data.target_domain",
    "data.domains.clients": "data.clients",
    "data.domains.hold_out": "data.hold_out",
    "data.domains.calibrate": "data.calibrate",
    "data.private.dealt": "data.private.assigned",
    "loss.wanted": "loss.target_cosine",
    "methods.*.batch": "methods.*.batch_size",
    "methods.*.wanted": "methods.*.target_cosine",
    "methods.*.start": "methods.*.head_init",
    "methods.*.branch_start": "methods.*.branch_init",
    "methods.*.tuning": "methods.*.tuning_epochs",
    "methods.*.softness": "methods.*.distillation_temperature",
    "methods.*.labelling.smallest": "methods.*.labelling.min_cluster_size",
    "methods.*.labelling.core": "methods.*.labelling.min_samples",
}
"""Old key -> new key; `*` stands for any name."""


def check_names(tree: Mapping[str, Any]) -> None:
    """Raise RecipeError where a tree of keys has some under their old names; it gives all the new ones."""
    renamed = []
    for old, new in RENAMED.items():
        for names in _matches(tree, old.split(".")):
            starred = dict(zip(old.split("."), names, strict=True)).get("*", "*")
            renamed.append((".".join(names), new.replace("*", starred)))
    if renamed:
        (first, new_name), *later = renamed
        also = "".join(f"; {key} is now called {name}" for key, name in later)
        raise RecipeError(f"this key is now called {new_name}{also}", where=first)


def _matches(tree: Any, path: list[str]) -> Iterator[tuple[str, ...]]:
    """The names by which a tree has a key at a path."""
    if not path:
        yield ()
        return
    if isinstance(tree, Mapping):
        for name in tree if path[0] == "*" else [path[0]] if path[0] in tree else []:
            yield from ((str(name), *names_below) for names_below in _matches(tree[name], path[1:]))
