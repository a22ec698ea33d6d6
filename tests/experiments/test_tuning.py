"""`engine.threads`, `autocast` and `channels_last` as `auto`: chosen once, by a measure that is given here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import torch
import yaml

from coalface.core.errors import RecipeError
from coalface.experiments import run as experiment
from coalface.experiments.plan import preflight
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import party_data, tuning
from coalface.experiments.sweep.run import plan
from coalface.models.speed import Arithmetic

ALL = {"threads": "auto", "autocast": "auto", "channels_last": "auto"}


def rates(bfloat16: float = 1.0, channels_last: float = 1.0, thread: float = 1.0) -> tuning.Measure:
    """By how much each makes steps faster; a thread by so much each time their number doubles."""

    def measure(recipe: Recipe, candidates: Sequence[Arithmetic]) -> list[float]:
        return [
            100
            * (bfloat16 if c.autocast else 1)
            * (channels_last if c.channels_last else 1)
            * thread ** (c.threads.bit_length() - 1)
            for c in candidates
        ]

    return measure


def chosen(measure: tuning.Measure, **engine: Any) -> Arithmetic:
    recipe = tuning.tuned(tinyruns.tiny(engine=engine), lambda text: None, measure)
    assert not recipe.engine.to_measure
    return recipe.engine.arithmetic


@pytest.mark.parametrize(
    ("measure", "engine", "best"),
    [
        (rates(bfloat16=1.5), ALL, Arithmetic(autocast="bfloat16")),
        (rates(bfloat16=1.5, channels_last=1.2, thread=1.5), ALL, Arithmetic(8, "bfloat16", True)),
        (rates(bfloat16=1.05, channels_last=1.04, thread=1.09), ALL, Arithmetic()),
        (rates(bfloat16=0.9, channels_last=1.5), ALL, Arithmetic(channels_last=True)),
        (rates(bfloat16=2, channels_last=2, thread=2), {"autocast": "auto"}, Arithmetic(autocast="bfloat16")),
        (rates(thread=2), {"threads": "auto", "workers": 3}, Arithmetic(2)),
        (rates(channels_last=2), {"channels_last": "auto", "threads": 3}, Arithmetic(3, None, True)),
    ],
)
def test_what_makes_a_step_a_tenth_faster_is_chosen_of_what_is_left_open(
    measure: tuning.Measure, engine: dict[str, Any], best: Arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning.os, "sched_getaffinity", lambda process: range(8))
    assert chosen(measure, **engine) == best


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.usefixtures("quick_workers")
def test_workers_and_a_resume_compute_by_the_choice_that_the_run_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(*arguments: Any) -> list[float]:
        raise AssertionError("measured anew")

    given = {"threads": 2, "autocast": "bfloat16", "channels_last": True}
    by_hand = tinyruns.run(tmp_path / "by hand", engine=given)
    monkeypatch.setattr(tuning.os, "sched_getaffinity", lambda process: range(4))
    monkeypatch.setattr(tuning, "images_per_second", rates(bfloat16=2, channels_last=1.2, thread=2))
    out = tmp_path / "auto"
    with pytest.raises(tinyruns.Stop):
        experiment.run(tinyruns.tiny(engine={**ALL, "workers": 2}), out, tinyruns.Stops())
    assert given.items() <= yaml.safe_load((out / "config.yaml").read_text())["engine"].items()
    monkeypatch.setattr(tuning, "images_per_second", again)
    with pytest.raises(RecipeError) as error:
        experiment.resume(out, tinyruns.Silent(), ("engine.autocast=auto",))
    assert error.value.where == "engine.autocast"
    experiment.resume(out, tinyruns.Silent(), ("engine.workers=1",))
    assert tinyruns.model_bytes(out) == tinyruns.model_bytes(by_hand)
    assert given.items() <= json.loads((out / "summary.json").read_text())["numerics"].items()
    plain = tinyruns.run(tmp_path / "float32", engine={"threads": 2})
    assert tinyruns.model_bytes(out) != tinyruns.model_bytes(plain), "the choice makes no difference"


def stacks(speeds: Mapping[int, float]) -> tuning.Measure:
    """Images a second with so many parties at once; 1 where none is given."""

    def measure(recipe: Recipe, candidates: Sequence[Arithmetic]) -> list[float]:
        parties = [c.parties if isinstance(c, tuning.Stacked) else 0 for c in candidates]
        assert parties == [1, 4, 8]  # there are eight clients
        return [speeds.get(count, 1.0) for count in parties]

    return measure


@pytest.mark.parametrize(("speeds", "images"), [({8: 1.5, 4: 1.2}, 8 * 4), ({4: 1.2, 8: 1.1}, 4 * 4), ({8: 1.09}, 0)])
def test_as_many_clients_train_as_one_batch_as_is_fastest(speeds: dict[int, float], images: int) -> None:
    recipe = tinyruns.tiny(engine={"client_batch": "auto"}, local={"epochs": 2}, data={"scenario": "devices"})
    chosen_recipe = tuning.tuned(recipe, lambda text: None, stacks(speeds))
    assert chosen_recipe.engine.client_batch == images
    assert tuning.tuned(chosen_recipe, lambda text: None, stacks({8: 99.0})) == chosen_recipe


def test_where_a_backbone_cannot_be_stacked_clients_train_one_by_one() -> None:
    def measure(recipe: Recipe, candidates: Sequence[Arithmetic]) -> list[float]:
        raise RuntimeError("vmap: no\nmore of it")

    recipe = tinyruns.tiny(engine={"client_batch": "auto"}, local={"epochs": 2}, data={"scenario": "devices"})
    notes: list[str] = []
    assert tuning.tuned(recipe, notes.append, measure).engine.client_batch == 0
    assert notes[0].endswith("vmap: no")


def test_a_dry_run_says_what_a_run_will_measure() -> None:
    recipe = tinyruns.tiny(engine={"threads": "auto", "autocast": "auto"})
    assert "engine.threads, engine.autocast" in preflight.describe(recipe)


def test_where_several_must_compute_alike_nobody_chooses(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        party_data.check_elsewhere(tinyruns.tiny(engine={"autocast": "auto"}))
    assert error.value.where == "engine.autocast"
    path = tinyruns.write(tmp_path / "tiny.yaml", engine={"channels_last": "auto"})
    with pytest.raises(RecipeError) as error:
        plan(path, ["seed=0,1"], tmp_path)
    assert error.value.where == "engine.channels_last"
    assert len(plan(path, ["seed=0,1", "engine.channels_last=true"], tmp_path)) == 2
    path = tinyruns.write(tmp_path / "several steps.yaml", engine={"client_batch": "auto"}, local={"epochs": 2})
    with pytest.raises(RecipeError) as error:
        plan(path, ["seed=0,1"], tmp_path)
    assert error.value.where == "engine.client_batch"
    assert len(plan(path, ["seed=0,1", "local.epochs=1", "local.batch_size=64"], tmp_path)) == 2  # one step: no choice


def test_a_note_reads_as_a_sentence_with_plain_numbers() -> None:
    one, many = tuning.Stacked(), tuning.Stacked(parties=8)
    assert tuning._told({one: 1438.2, many: 86.24}, one) == (
        "trains party by party, measured here (images/s: party by party 1,438; 8 parties at once 86.2)"
    )
    assert tuning._told({many: 100.0}, many).startswith("trains 8 parties at once, ")
    assert tuning._told({Arithmetic(): 100.0}, Arithmetic()).startswith("trains with float32, ")


def test_the_measure_trains_every_candidate_and_leaves_torch_as_it_was() -> None:
    before = torch.get_num_threads()
    candidates = [Arithmetic(), Arithmetic(autocast="bfloat16"), Arithmetic(channels_last=True)]
    candidates += [tuning.Stacked(parties=3), tuning.Stacked(autocast="bfloat16", parties=2)]
    recipe = tinyruns.tiny(engine={"autocast": "auto", "channels_last": "auto"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "SECONDS", 1e-6)
        assert min(tuning.images_per_second(recipe, candidates)) > 0
    assert torch.get_num_threads() == before
