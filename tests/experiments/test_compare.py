from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tinyruns
from paired_runs import paired

from coalface.evaluation.verification import read_lists
from coalface.experiments import compare
from coalface.experiments.report import page, runs, table


def accuracy(run: Path) -> float:
    return float(json.loads((run / "summary.json").read_text())["figures"]["unseen"]["accuracy"])


def test_the_difference_is_that_of_the_figures_and_lies_in_its_interval(fedavg_run: Path, solo_run: Path) -> None:
    differences = compare.intervals([fedavg_run, solo_run])
    assert set(differences) == {
        (solo_run, "unseen/accuracy"),
        (solo_run, "unseen/eer"),
    }  # 20 impostors carry no FAR of 0.01
    difference, low, high = differences[solo_run, "unseen/accuracy"]
    # The paired figure takes one threshold over all pairs, the evaluation one a fold: points apart with 40 pairs.
    assert difference == pytest.approx(accuracy(solo_run) - accuracy(fedavg_run), abs=8)
    assert low <= high and low > -100 and high < 100


def test_the_other_way_round_the_signs_are_turned(fedavg_run: Path, solo_run: Path) -> None:
    forth = compare.intervals([fedavg_run, solo_run])
    back = compare.intervals([solo_run, fedavg_run])
    assert forth.keys() == {(solo_run, figure) for _, figure in back}
    for (_, figure), (difference, low, high) in back.items():
        assert forth[solo_run, figure] == pytest.approx((-difference, -high, -low))


def test_a_run_that_came_out_the_same_differs_by_nothing(fedavg_run: Path, tmp_path: Path) -> None:
    shutil.copytree(fedavg_run, tmp_path / "copy")
    assert set(compare.intervals([fedavg_run, tmp_path / "copy"]).values()) == {(0, 0, 0)}


def test_runs_evaluated_on_other_pairs_have_no_difference_and_are_told_why(fedavg_run: Path, tmp_path: Path) -> None:
    lists = {"unseen": {"pairs": 18}}
    with_other_pairs = tinyruns.run(tmp_path / "other", evaluation={"pairs": lists}, rounds=1)
    assert compare.intervals([fedavg_run, with_other_pairs]) == {}
    compared = table.compare([fedavg_run, with_other_pairs], {})
    assert "unseen/accuracy" in compared.rows[1].figures and compared.rows[1].differences == {}
    (reason,) = compared.left_out
    assert reason.startswith("unseen: other was evaluated on other pairs than fedavg")
    assert reason in page.render(runs.read_all([fedavg_run, with_other_pairs]))


def test_the_difference_of_the_eer_is_exactly_that_of_the_figures(fedavg_run: Path, solo_run: Path) -> None:
    difference, low, high = compare.intervals([fedavg_run, solo_run])[solo_run, "unseen/eer"]
    eers = [
        json.loads((run / "summary.json").read_text())["figures"]["unseen"]["eer"] for run in (fedavg_run, solo_run)
    ]
    assert difference == pytest.approx(eers[1] - eers[0], abs=1e-9) and low <= difference <= high


def test_figures_without_an_interval_are_told_why(fedavg_run: Path, solo_run: Path, tmp_path: Path) -> None:
    assert compare.left_out([fedavg_run, solo_run]) == []
    early = tmp_path / "early"
    shutil.copytree(solo_run, early)
    (early / runs.DIGESTS).unlink()  # as of a version that wrote none
    evidence = json.loads((early / "evidence.json").read_text())
    for model in evidence["unseen"]:
        del model["fars"]
    (early / "evidence.json").write_text(json.dumps(evidence | {"large": [{"form": "tail-1", "fars": [0.01]}]}))
    assert set(compare.intervals([fedavg_run, early])) == {(early, "unseen/accuracy")}
    reasons = compare.left_out([fedavg_run, early])
    assert reasons == [f"unseen: {compare.EARLY.format(run=early)}", f"large: {compare.TAIL}"]
    compared = table.compare([fedavg_run, early], {}, reasons)
    assert f"{reasons[1]}." in table.notes(compared) and table.as_dict(compared)["left_out"] == reasons


def test_runs_of_a_version_that_wrote_less_are_compared(fedavg_run: Path, solo_run: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for name in ("config.yaml", "metrics.jsonl", "summary.json"):
        shutil.copyfile(solo_run / name, old / name)
    for both_runs in ([fedavg_run, old], [old, fedavg_run]):
        comparison = table.compare(both_runs, compare.intervals(both_runs), compare.left_out(both_runs))
        assert "old" in str(table.as_dict(comparison)) and table.notes(comparison) is not None


def test_seeds_are_averaged_before_they_are_compared(fedavg_run: Path, solo_run: Path) -> None:
    ((_, identities),) = read_lists(fedavg_run / "judged")
    bootstrap = compare.bootstrap_of(identities)
    fed, solo = (json.loads((run / "evidence.json").read_text())["unseen"] for run in (fedavg_run, solo_run))
    single = paired([fed], [solo], bootstrap)["accuracy"]
    twice = paired([fed, fed], [solo, solo], bootstrap)["accuracy"]
    assert (twice.difference, twice.low, twice.high) == pytest.approx((single.difference, single.low, single.high))
    mixed = paired([fed, solo], [solo], bootstrap)["accuracy"]
    (of_fed,), of_solo = ([v.point for v in compare.resampled(run, bootstrap)["accuracy"]] for run in (fed, solo))
    assert len(of_solo) == 2 and single.difference == pytest.approx(of_fed - sum(of_solo) / 2)
    assert mixed.difference == pytest.approx((of_fed + sum(of_solo)) / 3 - sum(of_solo) / 2)
