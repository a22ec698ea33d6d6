from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tinyruns import Silent, tiny

from coalface.core.errors import RecipeError
from coalface.experiments import run as experiment
from coalface.experiments.plan import preflight

FV: dict[str, Any] = {
    "method": "pfm-fv",
    "data": {"partition": {"parties": 4}, "faces": {"identities": 20}},
    "validators": {"v1": {"identities": 2, "pairs": 10}, "v2": {"identities": 2, "pairs": 10}},
}


def lines(fv: str = "kept", **changes: Any) -> list[str]:
    settings = {"validation": {"fv": fv, "candidates": 3}, **changes}
    return preflight.describe(tiny(**FV, methods={"pfm-fv": settings})).splitlines()


def test_validators_are_counted_beside_the_trainers() -> None:
    assert lines()[0] == "tiny: pfm-fv over 4 trainers and 2 validators, 2 rounds, seed 0"
    assert (
        lines(sample=3, fv="kept")[0] == "tiny: pfm-fv over 4 trainers (3 a round) and 2 validators, 2 rounds, seed 0"
    )
    assert preflight.describe(tiny(method="pfm", validators=FV["validators"])).startswith(
        "tiny: pfm over 2 parties, 2 "
    )


def test_each_role_has_its_own_sum() -> None:
    text = "\n".join(lines())
    assert "one trainer, one round, both ways: 3.15 MB" in text  # Θ and M down, θ up, of 1.05 MB each
    assert "one validator, one round, both ways: 3.14 MB" in text  # three candidates
    assert "one party, one round, both ways" in preflight.describe(tiny())


@pytest.mark.parametrize(
    ("fv", "sums", "validation"),
    [
        (
            "kept",
            "the sums of the means (0 B)",
            "4 models kept till they are averaged (4.19 MB), 3 candidates (3.14 MB",
        ),
        ("folded", "the sums of the means (12.6 MB)", "validation: 3 candidates (3.14 MB"),  # 3 · 4 · 1.05
    ],
)
def test_the_memory_of_the_server_counts_the_candidates(fv: str, sums: str, validation: str) -> None:
    text = "\n".join(lines(fv))
    assert sums in text and validation in text


# --- what a run refuses before its first round, a dry run refuses in the same words -----------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "pfm-fv"}, "there is no validator: give the recipe `validators`"),
        ({"method": "fedavg-fv"}, "there is no validator"),
        (FV | {"methods": {"pfm-fv": {"validation": {"fv": "folded", "candidates": 4}}}}, "of the backbones of 4 trai"),
        (FV | {"methods": {"pfm-fv": {"sample": 3, "validation": {"fv": "folded"}}}}, "of the backbones of 3 trainers"),
        (FV | {"model": {"batchnorm": "local"}}, "set model.batchnorm=average"),
        (FV | {"validators": {"silo-00": {"identities": 2, "pairs": 10}}}, "a trainer already has this name"),
        ({"methods": {"fedavg": {"sample": 3}}}, "cannot sample 3 of 2 parties"),
        ({"data": {"party_augment": {"silo-0": {"flip": False}}}}, "data.party_augment: 'silo-0' is not known"),
        ({"faults": {"corrupt": {"silo-0": "nan"}}}, "faults: the party: 'silo-0' is not known"),
        (
            FV | {"engine": {"processes_per_party": {"v": 2}}},
            "engine.processes_per_party: the party: 'v' is not known; did you mean 'v2'",
        ),
        ({"data": {"hold_out": 0}}, "evaluation.pairs.unseen: no identity is held out"),
        ({"data": {"partition": {"parties": 41}}}, "41 parties"),
        ({"data": {"exclude": ["/nowhere/pairs.txt"]}}, "/nowhere/pairs.txt"),
        ({"engine": {"device": "cuda:99"}}, "engine.device: 'cuda:99'"),
    ],
)
def test_what_a_run_refuses_before_its_first_round_a_dry_run_refuses(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    recipe = tiny(**changes)
    with pytest.raises((ValueError, OSError), match=re.escape(said)) as run:
        experiment.run(recipe, tmp_path / "out", Silent())
    assert not (tmp_path / "out").exists()
    for dryly in (preflight.check, preflight.describe):
        with pytest.raises((ValueError, OSError)) as refused:
            dryly(recipe)
        assert (str(refused.value), refused.type) == (str(run.value), run.type)


def test_a_pre_training_that_cannot_begin_is_refused_with_where_it_stands() -> None:
    recipe = tiny(pretrain={"method": "pfm-fv", "rounds": 1})
    with pytest.raises(RecipeError, match="^pretrain: there is no validator: give the recipe `validators`"):
        preflight.check(recipe)


def test_who_sends_what_is_shown_of_a_recipe_that_names_no_validator() -> None:
    steps = {sent.step for sent in preflight.plan(tiny(method="pfm-fv")).sent}
    assert steps == {"train", "validation.grade"}


def test_the_check_gives_the_trainers_alone() -> None:
    assert sorted(preflight.check(tiny(**FV))) == [f"silo-0{i}" for i in range(4)]
