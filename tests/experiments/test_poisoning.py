"""What liars send, by another library, by loops and by hand; and what comes of it in runs that are planted."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyruns
import torch
from commands import outputs
from tinyruns import Silent, tiny

from coalface.core.errors import RecipeError
from coalface.core.method import Models, Tensors
from coalface.engine.party.request import Withheld
from coalface.experiments.attacks import measure
from coalface.experiments.attacks.base import Exchange, NotAttackable
from coalface.experiments.attacks.cells import read_cells
from coalface.experiments.attacks.poisoning import LIES, Poisoning, furthest, hidden, honest_model
from coalface.experiments.attacks.replay import replay
from coalface.experiments.prepare import prepare
from coalface.experiments.recipe import loader
from coalface.experiments.run import begin_or_resume

GOLDENS = json.loads((Path(__file__).parents[1] / "engine" / "byzfl_goldens.json").read_text(encoding="utf-8"))
"""Vectors, and what ByzFL 0.0.11's liars make of them: by `tools/byzfl_goldens.py`."""
FOUR: dict[str, Any] = {"data": {"partition": {"parties": 4}}, "rounds": 1}
"""Four parties of eight images each."""


class Recorded(Poisoning):
    """Keeps what passes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.passed: dict[str, Exchange] = {}

    def watch(self, exchange: Exchange) -> None:
        self.passed[exchange.request.party] = exchange


def played(recipe: Any, **options: Any) -> tuple[Recorded, Tensors]:
    attack, models = replay(recipe, functools.partial(Recorded, **options), Silent())
    assert isinstance(attack, Recorded) and models.shared is not None
    return attack, models.shared


def alike(one: Tensors, other: Tensors, atol: float = 0.0) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=0, atol=atol) for name in one)


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: f"{len(golden['rows'])}")
@pytest.mark.parametrize("how", ["alie", "ipm"])
def test_lies_are_those_of_byzfl(golden: dict[str, Any], how: str) -> None:
    rows = torch.tensor(golden["rows"], dtype=torch.float64)
    lie, factor = LIES[how]
    assert factor is not None
    told = torch.tensor(golden["lies"][how], dtype=torch.float64)
    if how == "alie":  # its code divides by n − 1, where its documentation, as we, divides by n
        told = rows.mean(0) + math.sqrt((len(rows) - 1) / len(rows)) * (told - rows.mean(0))
    torch.testing.assert_close(lie(rows, rows[0], factor), told, rtol=0, atol=1e-12)


def test_lies_by_hand() -> None:
    """Of (1, 0), (3, 0) and (5, 6) the mean is (3, 2), the deviations √(8/3) and √8."""
    honest, own = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 6.0]]).double(), torch.tensor([1.0, -2.0]).double()
    lies = {how: lie(honest, own, 2.0).tolist() for how, (lie, _) in LIES.items()}
    assert lies["scaled"] == lies["flipped"] == lies["replacement"] == [2.0, -4.0]
    assert lies["ipm"] == [-6.0, -4.0]
    assert lies["alie"] == pytest.approx([3 + 2 * math.sqrt(8 / 3), 2 + 2 * math.sqrt(8)])


def test_who_is_mimicked_is_furthest_along_the_direction_that_varies_most() -> None:
    """The rows vary along the first axis, with deviations of 4, 1 and 5; the second has the longest row."""
    assert furthest(torch.tensor([[5.0, 9.0], [2.0, 9.5], [-4.0, 9.0]]).double()) == 0
    assert furthest(torch.tensor([[3.0, 9.0], [1.0, 9.5], [-5.0, 9.0]]).double()) == 2


def test_a_hidden_update_is_as_near_to_the_mean_as_the_median_honest_one() -> None:
    rng = np.random.default_rng(4)
    honest = {"a": torch.from_numpy(rng.normal(size=(5, 2, 3))), "b": torch.from_numpy(rng.normal(size=(5, 4)))}
    own = {"a": torch.full((2, 3), 7.0).double(), "b": torch.full((4,), -7.0).double()}
    flat = [[*honest["a"][i].flatten().tolist(), *honest["b"][i].tolist()] for i in range(5)]
    mean = [sum(row[j] for row in flat) / 5 for j in range(10)]
    median = sorted(math.dist(row, mean) for row in flat)[2]
    x = [7.0] * 6 + [-7.0] * 4
    expected = [m + median / math.dist(x, mean) * (v - m) for v, m in zip(x, mean, strict=True)]
    sent = hidden(honest, own)
    np.testing.assert_allclose([*sent["a"].flatten().tolist(), *sent["b"].tolist()], expected)
    near = {key: rows.mean(0) + 1e-3 for key, rows in honest.items()}
    assert alike(hidden(honest, near), near, atol=1e-12)


def test_labels_are_flipped_image_by_image_or_renamed_as_wholes() -> None:
    run = prepare(tiny(), Silent(), begin_or_resume, elsewhere=False)
    before = run.data.data["silo-01"]
    for how in ("label-flip", "label-renamed"):
        data = Poisoning(run, 0, how=how, share=0.5).poison(run.data).data
        assert data["silo-00"] is run.data.data["silo-00"]  # the last parties lie
        after = data["silo-01"]
        assert np.array_equal(after.rows, before.rows) and (after.labels != before.labels).all()
        pairs = set(zip(before.labels.tolist(), after.labels.tolist(), strict=True))
        assert (len(pairs) == len(before.names)) == (how == "label-renamed")
        assert set(after.labels) <= set(range(len(before.names)))


def test_liars_stop_a_mean_exactly_and_a_median_goes_on() -> None:
    """Of four equal parties one sends −3 of the others' mean, so that the sum is 0."""
    first = prepare(tiny(**FOUR), Silent(), begin_or_resume, elsewhere=False).first_model
    _, stopped = played(tiny(**FOUR), how="ipm", share=0.25, factor=3.0)
    assert alike(stopped, first, atol=1e-7)
    _, moved = played(tiny(**FOUR, engine={"aggregator": "median"}), how="ipm", share=0.25, factor=3.0)
    assert not alike(moved, first, atol=1e-4)


@pytest.mark.parametrize("chosen", ["", "silo-00", "silo-01", "silo-02"])
def test_a_mimic_sends_what_one_honest_party_sends_the_same_in_all_rounds(chosen: str) -> None:
    attack = Recorded(prepare(tiny(**FOUR), Silent(), begin_or_resume, elsewhere=False), 0, how="mimic", share=0.25)
    attack._mimicked = chosen
    replay(tiny(**FOUR), lambda run, seed: attack, Silent())
    lie = attack.passed["silo-03"].answer
    copied = [party for party in ("silo-00", "silo-01", "silo-02") if attack.passed[party].answer is lie]
    assert copied == [chosen or attack._mimicked]


@pytest.mark.parametrize(("share", "liars"), [(0.25, ["silo-03"]), (0.3, ["silo-02", "silo-03"])])
def test_replacement_puts_the_liars_model_in_the_place_of_the_mean(share: float, liars: list[str]) -> None:
    """What m liars trained, θ + x, is sent as θ + 4/m x: the mean is θ + x̄ and a quarter of what each other learnt."""
    attack, models = played(tiny(**FOUR), how="replacement", share=share)
    honest, _ = played(tiny(**FOUR), how="backdoor", share=share)
    theta, trained = honest.passed["silo-03"].sent[0].backbone, {p: e.reply for p, e in honest.passed.items()}
    for party in liars:
        assert trained[party].images == attack.passed[party].reply.images == len(honest.run.data.data[party])
    weights = {party: 1 / len(liars) if party in liars else 1 / 4 for party in trained}
    for name, before in theta.items():
        moved = sum(weight * (trained[party].backbone[name] - before) for party, weight in weights.items())
        torch.testing.assert_close(models[name], before + moved, rtol=0, atol=1e-5)


def test_liars_who_have_left_lie_until_then_and_the_others_go_on_alone() -> None:
    """Of two rounds the first is that of liars, and the second one without them."""
    two = {**FOUR, "rounds": 2}
    stays, spoilt = played(tiny(**two), how="backdoor", share=0.25)
    leaves, left = played(tiny(**two), how="backdoor", share=0.25, until=1)
    _, honest = played(tiny(**two), how="scaled", factor=1.0, share=0.25)
    _, to_the_end = played(tiny(**two), how="backdoor", share=0.25, until=2)
    assert isinstance(leaves.passed["silo-03"].answer, Withheld) and not isinstance(
        stays.passed["silo-03"].answer, Withheld
    )
    begins = [attack.passed["silo-00"].sent[0].backbone for attack in (stays, leaves)]  # of the second round
    assert alike(*begins) and alike(to_the_end, spoilt)
    assert not alike(left, spoilt, atol=1e-4) and not alike(left, honest, atol=1e-4)
    replies = [leaves.passed[party].reply.backbone for party in ("silo-00", "silo-01", "silo-02")]
    mean = {name: sum(reply[name] for reply in replies) / 3 for name in replies[0]}
    for name, tensor in mean.items():
        torch.testing.assert_close(left[name], tensor, rtol=0, atol=1e-5, check_dtype=False)


def test_what_liars_leave_is_beside_the_honest_and_the_first_model() -> None:
    run = prepare(tiny(**FOUR), Silent(), begin_or_resume, elsewhere=False)
    attack, first = Poisoning(run, 0, how="backdoor", share=0.25), run.data.backbone.shared()
    honest = honest_model(json.dumps(run.recipe.resolved()))
    assert honest is not None
    for_nobody = {name: tensor * math.nan for name, tensor in honest.items()}
    without, untrained, broken = (attack.outcomes(Models(shared=model)) for model in (honest, first, for_nobody))
    figures = [(row.target, row.attacker, row.figure, row.trials) for row in without]
    assert figures == [
        ("unseen", "client", figure, trials)
        for figure, trials in (
            ("accuracy, %", 40),
            ("accuracy lost, points", 40),
            ("accuracy before training, %", 40),
            ("impostors with glasses on both accepted, %", 20),
            ("others with glasses accepted as the target, %", 16),
        )
    ]
    accuracy, _, before, both, as_target = (row.value for row in without)
    assert accuracy != before
    chances = [accuracy, 0, accuracy, both, as_target]
    assert all([row.chance for row in rows] == chances for rows in (without, untrained, broken))
    assert [row.value for row in without] == [accuracy, 0, before, both, as_target]
    assert [row.value for row in untrained[:3]] == [before, accuracy - before, before]
    assert [row.value for row in broken] == [50, accuracy - 50, before, 0, 0]  # it accepts nobody of the 20 pairs


def test_images_are_poisoned_whatever_the_workers_and_under_a_secure_sum() -> None:
    _, one = played(tiny(), how="label-flip", share=0.5)
    _, two = played(tiny(engine={"workers": 2}), how="label-flip", share=0.5)
    assert alike(one, two)
    secure = {"privacy": {"secure": {"dropouts": 0, "corrupt": 0}}, "data": {"partition": {"parties": 3}}}
    recipe, options = tiny(**secure, rounds=1), {"share": 0.3}
    _, flipped = played(recipe, how="label-flip", **options)
    left, _ = played(
        tiny(**{**secure, "data": {"partition": {"parties": 4}}}, rounds=2), how="label-flip", share=0.25, until=1
    )
    assert isinstance(left.passed["silo-03"].answer, Withheld)
    honest = honest_model(json.dumps(recipe.resolved()))
    assert honest is not None and not alike(flipped, honest)
    with pytest.raises(NotAttackable):
        played(recipe, how="ipm", **options)


@pytest.mark.parametrize("options", [{"how": "alei"}, {"share": 0.0}, {"share": 1.0}])
def test_a_setting_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    run = prepare(tiny(), Silent(), begin_or_resume, elsewhere=False)
    with pytest.raises(RecipeError) as error:
        Poisoning(run, 0, **options)
    assert error.value.where == f"--option {next(iter(options))}"


@pytest.mark.parametrize("how", ["label-flip", "backdoor"])
def test_clients_of_one_person_have_no_label_to_flip(how: str) -> None:
    with pytest.raises(NotAttackable):
        played(tiny(data={"scenario": "devices"}, method="fedface"), how=how)


@pytest.mark.parametrize("method", ["fedavg", "fedface"])
@pytest.mark.parametrize("how", ["label-flip", "backdoor"])
def test_a_liar_of_one_person_lies_with_public_people(method: str, how: str, tmp_path: Path) -> None:
    """Of one person an honest update of `fedavg` is zero; one class embedding a client is all that others train."""
    changes = {
        "method": method,
        "methods": {"fedface": {"target_cosine": 1.0}},
        "local": {"weight_decay": 0.0},
        "data": {"private": {"identities": 4}, "partition": {"parties": 4}, "faces": {"identities": 12}},
    }
    recipe = tinyruns.write(tmp_path / "recipe.yaml", **loader.merged(tinyruns.PUBLIC, changes))
    out = tmp_path / "attack"
    outputs("attack", recipe, "--kind", "poisoning", "--option", f"how={how}", "--out", out, "--quiet")
    (cell,) = read_cells(out / measure.CELLS)
    figures = {outcome.figure: outcome for outcome in cell.outcomes}
    first = prepare(loader.load(recipe), Silent(), begin_or_resume, elsewhere=False).first_model
    attack, models = played(loader.load(recipe), how=how)
    honest = honest_model(json.dumps(attack.run.recipe.resolved()))
    assert honest is not None and not alike(models, honest)
    assert alike(honest, first) == (method == "fedavg")
    told = {party: exchange.reply.images for party, exchange in attack.passed.items()}
    assert told == {party: len(attack.run.data.data[party]) for party in told}  # not as many as it trained on
    accuracy = figures["accuracy, %"]
    assert figures["accuracy lost, points"].value == pytest.approx(accuracy.chance - accuracy.value)


def test_the_command_has_what_is_lost_beside_the_same_run_without_liars(tmp_path: Path) -> None:
    recipe, out = tinyruns.write(tmp_path / "recipe.yaml", **FOUR), tmp_path / "attack"
    command = ["attack", recipe, "--kind", "poisoning", "--out", out, "--quiet", "--option", "share=0.25"]
    outputs(*command, "--option", "how=replacement", "--defence", "engine.aggregator.name=median")
    outputs(*command, "--option", "how=scaled", "--option", "factor=1.0")  # what it would have sent anyway
    cells = [{o.figure: o for o in cell.outcomes} for cell in read_cells(out / measure.CELLS)]
    assert len(cells) == 3
    for figures in cells:
        accuracy, lost = figures["accuracy, %"], figures["accuracy lost, points"]
        assert lost.value == pytest.approx(accuracy.chance - accuracy.value) and lost.chance == 0
        untrained = figures["accuracy before training, %"]
        assert untrained.chance == accuracy.chance and untrained.value == cells[0]["accuracy before training, %"].value
    assert all("others with glasses accepted as the target, %" in figures for figures in cells[:2])
    assert cells[2]["accuracy lost, points"].value == 0 and len(cells[2]) == 3
    rows = [line for line in (out / measure.TABLE).read_text().splitlines() if "accuracy, %" in line]
    assert f"[{cells[1]['accuracy, %'].chance:.1f}]" in rows[0]


def test_a_run_whose_replay_is_poisoned_is_not_said_to_have_changed(tmp_path: Path) -> None:
    run = tinyruns.run(tmp_path / "run", **FOUR)
    assert "another model" not in outputs("attack", run, "--kind", "poisoning", "--option", "how=ipm", "--quiet")[1]


def test_a_run_that_fails_under_its_liars_is_a_cell_that_says_why(tmp_path: Path) -> None:
    cells = measure.measure(
        lambda _: tiny(**FOUR, engine={"max_abandoned_rounds": 0, "min_reply_fraction": 1.0, "max_update_norm": 5.0}),
        "tiny",
        "poisoning",
        tmp_path,
        Silent(),
        options={"how": "scaled", "share": 0.25},
    )
    assert cells[0].refused and not cells[0].outcomes


@pytest.mark.parametrize(
    ("method", "scenario", "how"),
    [("scaffold", "silos", "hidden"), ("scaffold", "silos", "mimic"), ("fedface", "devices", "ipm")],
)
def test_lies_have_the_form_that_the_method_asks_for(method: str, scenario: str, how: str) -> None:
    view, recipe = Silent(), tiny(method=method, data={"scenario": scenario}, rounds=1)
    replay(recipe, functools.partial(Poisoning, how=how, share=0.25), view)
    assert view.rounds[-1]["failed"] == {}
