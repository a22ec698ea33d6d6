from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyruns
from commands import said
from paired_runs import naive_interval, paired

import coalface as cf
from coalface.core.errors import DataError
from coalface.evaluation.metrics.bootstrap import bootstrap_of
from coalface.evaluation.metrics.evidence import accuracy_evidence
from coalface.evaluation.verification import read_lists
from coalface.experiments.comparison import page, table
from coalface.experiments.comparison import paired as compare
from coalface.experiments.report import runs


def accuracy(run: Path) -> float:
    return float(json.loads((run / "summary.json").read_text())["figures"]["unseen"]["accuracy"])


def test_the_difference_is_that_of_the_figures_and_lies_in_its_interval(fedavg_run: Path, solo_run: Path) -> None:
    differences = compare.intervals([fedavg_run, solo_run])
    assert set(differences) == {
        (solo_run, "unseen/accuracy"),
        (solo_run, "unseen/eer"),
    }  # 20 impostors carry no FAR of 0.01
    difference, low, high, seeds = differences[solo_run, "unseen/accuracy"]
    assert seeds == 1
    # The paired figure takes one threshold over all pairs, the evaluation one a fold: points apart with 40 pairs.
    assert difference == pytest.approx(accuracy(solo_run) - accuracy(fedavg_run), abs=8)
    assert low <= high and low > -100 and high < 100


def test_the_other_way_round_the_signs_are_turned(fedavg_run: Path, solo_run: Path) -> None:
    forth = compare.intervals([fedavg_run, solo_run])
    back = compare.intervals([solo_run, fedavg_run])
    assert forth.keys() == {(solo_run, figure) for _, figure in back}
    for (_, figure), (difference, low, high, seeds) in back.items():
        assert forth[solo_run, figure] == pytest.approx((-difference, -high, -low, seeds))


def test_a_run_that_came_out_the_same_differs_by_nothing(fedavg_run: Path, tmp_path: Path) -> None:
    shutil.copytree(fedavg_run, tmp_path / "copy")
    assert set(compare.intervals([fedavg_run, tmp_path / "copy"]).values()) == {(0, 0, 0, 1)}


def test_a_run_without_figures_has_no_difference_either(fedavg_run: Path, solo_run: Path, tmp_path: Path) -> None:
    """It was stopped in its evaluation, after that had written what differences are made of."""
    stopped = tmp_path / "stopped"
    shutil.copytree(solo_run, stopped, ignore=shutil.ignore_patterns("summary.json"))
    assert (stopped / "evidence.json").exists()
    assert compare.intervals([fedavg_run, stopped]) == compare.intervals([stopped, fedavg_run]) == {}


def test_runs_evaluated_on_other_pairs_have_no_difference_and_are_told_why(fedavg_run: Path, tmp_path: Path) -> None:
    lists = {"unseen": {"pairs": 18}}
    with_other_pairs = tinyruns.run(tmp_path / "other", evaluation={"pairs": lists}, rounds=1)
    assert compare.intervals([fedavg_run, with_other_pairs]) == {}
    compared = table.compare([fedavg_run, with_other_pairs], {})
    assert "unseen/accuracy" in compared.rows[1].run.figures and compared.rows[1].differences == {}
    (reason,) = compared.left_out
    assert reason.startswith("unseen: other was evaluated on other pairs than fedavg")
    assert reason in page.render(compared)


def test_the_difference_of_the_eer_is_exactly_that_of_the_figures(fedavg_run: Path, solo_run: Path) -> None:
    difference, low, high, _ = compare.intervals([fedavg_run, solo_run])[solo_run, "unseen/eer"]
    eers = [
        json.loads((run / "summary.json").read_text())["figures"]["unseen"]["eer"] for run in (fedavg_run, solo_run)
    ]
    assert difference == pytest.approx(eers[1] - eers[0], abs=1e-9) and low <= difference <= high


def test_figures_without_an_interval_are_told_why(fedavg_run: Path, solo_run: Path, tmp_path: Path) -> None:
    assert compare.left_out([fedavg_run, solo_run]) == []
    large = tmp_path / "large"
    shutil.copytree(solo_run, large)
    (large / runs.DIGESTS).unlink()
    evidence = json.loads((large / "evidence.json").read_text())
    (large / "evidence.json").write_text(json.dumps(evidence | {"large": [{"form": "tail-1", "fars": [0.01]}]}))
    reasons = compare.left_out([fedavg_run, large, large])
    assert reasons == [f"large: {compare.TAIL}"]
    compared = table.compare([fedavg_run, large], {}, reasons)
    assert f"{reasons[0]}." in table.notes(compared) and table.as_dict(compared)["left_out"] == reasons


@pytest.mark.parametrize("odd", [0, None, "x", {"a": 1}, [None], [[]], [{"own": []}]])
def test_evidence_of_another_kind_is_refused(odd: Any, fedavg_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(fedavg_run, tmp_path / "run")
    (run / runs.DIGESTS).unlink()
    (run / "evidence.json").write_text(json.dumps({"unseen": [{}]}))
    assert compare.intervals([run, fedavg_run]) == {} and compare.left_out([run]) == []  # of no list
    (run / "evidence.json").write_text(json.dumps({"unseen": odd}))
    for read in (lambda: compare.intervals([run, fedavg_run]), lambda: compare.left_out([run])):
        with pytest.raises(DataError) as error:
            read()
        assert error.value.where == str(run / "evidence.json")


def test_models_of_a_seed_are_averaged_before_they_are_compared(fedavg_run: Path, solo_run: Path) -> None:
    ((_, identities),) = read_lists(fedavg_run / "judged")
    bootstrap = compare.bootstrap_of(identities)
    fed, solo = (json.loads((run / "evidence.json").read_text())["unseen"] for run in (fedavg_run, solo_run))
    single = paired([fed], [solo], bootstrap)["accuracy"]
    twice = paired([fed, fed], [solo, solo], bootstrap)["accuracy"]  # two seeds that came out the same
    assert (twice.difference, twice.low, twice.high) == pytest.approx((single.difference, single.low, single.high))
    assert (single.seeds, twice.seeds) == (1, 2)
    (of_fed,), of_solo = ([v.point for v in compare.resampled(run, bootstrap, 0)["accuracy"]] for run in (fed, solo))
    assert len(of_solo) == 2 and single.difference == pytest.approx(of_fed - sum(of_solo) / 2)


# --- seeds ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def six_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """FedAvg and solo, each with three seeds; tests only read them."""
    folder = tmp_path_factory.mktemp("six")
    sides = [("fedavg", {}), ("solo", {"method": "solo"})]
    return [
        tinyruns.run(folder / f"{name}-{seed}", name=f"{name}-{seed}", rounds=1, seed=seed, **changes)
        for name, changes in sides
        for seed in range(3)
    ]


def test_runs_that_differ_in_their_seed_are_compared_as_one_method(six_runs: list[Path]) -> None:
    differences = compare.intervals(six_runs)
    assert {run for run, _ in differences} == set(six_runs[3:])
    of_figure = [{differences[run, f"unseen/{figure}"] for run in six_runs[3:]} for figure in ("accuracy", "eer")]
    assert [len(values) for values in of_figure] == [1, 1]  # each run of the method has the method's difference
    ((difference, low, high, seeds),) = of_figure[1]
    eers = [json.loads((run / "summary.json").read_text())["figures"]["unseen"]["eer"] for run in six_runs]
    assert difference == pytest.approx(sum(eers[3:]) / 3 - sum(eers[:3]) / 3, abs=1e-9) and seeds == 3
    ((_, identities),) = read_lists(six_runs[0] / "judged")
    drawn = [
        compare.resampled(json.loads((run / "evidence.json").read_text())["unseen"], bootstrap_of(identities), 0)["eer"]
        for run in six_runs
    ]
    values = np.array([np.mean([model.values for model in models], axis=0) for models in drawn])
    points = np.array([np.mean([model.point for model in models]) for models in drawn])
    apart = points[3:] - points[:3]
    expected = naive_interval((values[3:] - values[:3]).mean(axis=0), apart)
    assert (low, high) == pytest.approx((100 * expected[0], 100 * expected[1]), abs=0.2)
    # A seed that one side alone has is left out; where they have none in common, both sides' spreads add up.
    difference, _, _, seeds = compare.intervals(six_runs[:2] + six_runs[3:])[six_runs[5], "unseen/eer"]
    assert seeds == 2 and difference == pytest.approx(100 * apart[:2].mean())
    difference, _, _, seeds = compare.intervals([six_runs[0], *six_runs[4:]])[six_runs[4], "unseen/eer"]
    assert seeds == 1 and difference == pytest.approx(100 * (points[4:].mean() - points[0]))
    assert compare.intervals(six_runs[:3]) == {}


def test_six_runs_are_compared_by_the_command(six_runs: list[Path]) -> None:
    compared = json.loads(said("compare", *six_runs, "--json"))["runs"]
    assert all(run["against_first"]["unseen/eer"]["verdict"] is None for run in compared[1:3])
    for run in compared[3:]:
        against = run["against_first"]["unseen/eer"]
        holds_zero = against["low"] <= 0 <= against["high"]
        assert against["seeds"] == 3 and against["verdict"] == ("undecided" if holds_zero else "decided")
        assert (run["steps"], run["images"]) == (2, 32)  # both parties one batch of 16
    text = said("compare", *six_runs)
    assert (
        "images" in text
        and text.count("3 seeds") == 6
        and "one seed" not in text
        and max(map(len, text.splitlines())) <= 80
    )
    assert table.SEVERAL_SEEDS in " ".join(text.split()) and table.ONE_SEED not in " ".join(text.split())


def test_one_seed_is_never_decided(six_runs: list[Path], tmp_path: Path) -> None:
    """A run against one whose pairs all come out the other way."""
    worse = tmp_path / "worse"
    shutil.copytree(six_runs[3], worse)
    evidence = json.loads((worse / "evidence.json").read_text())
    ((_, identities),) = read_lists(worse / "judged")
    evidence["unseen"] = [accuracy_evidence(-1.0 * identities.same, identities)]
    (worse / "evidence.json").write_text(json.dumps(evidence))
    (worse / runs.DIGESTS).unlink()
    ((difference, low, high, _),) = [compare.intervals([six_runs[0], worse])[worse, "unseen/eer"]]
    assert difference > 50 and 0 < low < high or low == high
    against = json.loads(said("compare", six_runs[0], worse, "--json"))["runs"][1]["against_first"]
    assert {entry["verdict"] for entry in against.values()} == {"undecided"}
    text = " ".join(said("compare", six_runs[0], worse, "--report", tmp_path / "page.html").split())
    assert "] one seed" in text and table.ONE_SEED in text
    page_text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "; one seed)" in page_text and "<small>one seed</small>" in page_text
    frame = cf.compare([six_runs[0], worse]).to_frame()
    assert set(frame[frame.run == "worse"].decided) == {False}
