"""Half-split validation: validators hold five folds of a list, the figures are of the other five, and swapped."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyruns
from naive import naive_accuracy
from tinyruns import Silent, tiny

from coalface.core.errors import RecipeError
from coalface.core.method import Tensors
from coalface.data.pairs import all_pairs
from coalface.evaluation.metrics.bootstrap import PairIdentities, draw_identities
from coalface.evaluation.metrics.evidence import accuracy_evidence
from coalface.evaluation.metrics.paired import compare, resample
from coalface.evaluation.metrics.verification import eer, evaluate_pairs, score_pairs, tenths
from coalface.evaluation.verification import Verification, VerificationPairs
from coalface.experiments.comparison.paired import intervals
from coalface.experiments.recipe import loader, schema
from coalface.experiments.setup import pair_lists
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.experiments.sweep.run import grid, read_cells, sweep, table
from coalface.models.embedding import embed

SPLIT: dict[str, Any] = {
    "method": "fedavg-fv",
    "rounds": 2,
    "methods": {"fedavg-fv": {"validation": {"smoothing": 0.5}}},
    "evaluation": {"pairs": {"unseen": {"kind": "balanced", "pairs": 20}}},
    "validators": {"v": {"validates": "unseen"}},
}


def recipe(half: str, **changes: Any) -> schema.Recipe:
    return tiny(**loader.merged(SPLIT | {"fold_split": half}, changes))


def parts(parsed: schema.Recipe) -> tuple[Any, VerificationPairs]:
    """(the validator's images and pairs, the list as it is evaluated)."""
    parts = Parts(parsed)
    (chosen,) = parts.pairs
    return parts.validators["v"], chosen


def test_a_validator_at_a_node_of_its_own_opens_no_other_list() -> None:
    absent = {"elsewhere": {"kind": "lfw", "path": "absent.txt", "source": {"kind": "folder", "path": "/absent"}}}
    parsed = recipe("first", evaluation={"pairs": absent})
    validators = Parts(parsed, played=("v",)).validators
    assert list(validators) == ["v"] and len(validators["v"][1]) == len(parts(recipe("first"))[0][1])
    with pytest.raises(FileNotFoundError):
        _ = Parts(parsed).validators


def weights(seed: int) -> Tensors:
    return {n: t.clone() for n, t in first_backbone(tiny(seed=seed)).shared().items()}


# --- who holds what ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("half", "mine", "evaluated"), [("first", range(5), range(5, 10)), ("second", range(5, 10), range(5))]
)
def test_the_validator_holds_one_half_and_the_other_is_evaluated(half: str, mine: range, evaluated: range) -> None:
    (faces, pairs), chosen = parts(recipe(half))
    assert sorted(set(pairs.fold.tolist())) == list(mine) and chosen.evaluated_folds == tuple(evaluated)
    whole, fold = chosen.pairs, chosen.pairs.fold
    assert fold is not None
    files, of_list = faces.files, chosen.faces.files
    assert files is not None and of_list is not None

    def named(side: Any, views: Any, where: Any) -> list[str]:
        return [where[views.rows[i]] for i in side]

    expected = [
        (of_list[chosen.faces.rows[a]], of_list[chosen.faces.rows[b]], bool(s), int(f))
        for a, b, s, f in zip(whole.left, whole.right, whole.same, fold, strict=True)
        if f in mine
    ]
    pairs_held = zip(
        named(pairs.left, faces, files), named(pairs.right, faces, files), pairs.same, pairs.fold, strict=True
    )
    assert [(a, b, bool(s), int(f)) for a, b, s, f in pairs_held] == expected
    paired_images = set(pairs.left.tolist()) | set(pairs.right.tolist())
    assert paired_images == set(range(len(faces))) and (faces.counts() > 0).all()  # no image that its pairs do not name
    labels = faces.labels
    assert ((labels[pairs.left] == labels[pairs.right]) == pairs.same).all()


def test_the_halves_share_no_pair_and_make_up_the_list() -> None:
    first, second = (parts(recipe(half))[0][1] for half in ("first", "second"))
    whole = parts(recipe("first"))[1].pairs
    assert len(first) + len(second) == len(whole) == 40
    assert parts(recipe("first"))[1].identities.sha256 == parts(recipe("second"))[1].identities.sha256


def test_the_validators_accuracy_chooses_each_threshold_on_its_other_four_folds() -> None:
    parsed = recipe("first")
    (faces, pairs), _ = parts(parsed)
    features = embed(first_backbone(parsed).module, faces)
    cosines = score_pairs(features, pairs.left, pairs.right)
    validation: Any = parsed.build_method().validation  # type: ignore[attr-defined]
    score = validation.graded(cosines, pairs.same, pairs.fold)
    assert score == pytest.approx(naive_accuracy(cosines.tolist(), pairs.same.tolist(), pairs.fold.tolist()))


# --- the evaluation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("half", "evaluated"), [("first", {5, 6, 7, 8, 9}), ("second", {0, 1, 2, 3, 4})])
def test_the_figures_are_of_the_other_half_with_thresholds_from_all_nine_other_folds(
    half: str, evaluated: set[int]
) -> None:
    _, chosen = parts(recipe(half))
    verification = Verification([chosen], first_backbone(tiny()))
    figures = verification.models([weights(0)])["unseen"]
    scores, same, fold = verification.last_scores["unseen"][0], chosen.pairs.same, chosen.pairs.fold
    assert fold is not None
    assert figures["accuracy"] == pytest.approx(
        naive_accuracy(scores.tolist(), same.tolist(), fold.tolist(), evaluated)
    )
    half_pairs = np.isin(fold, list(evaluated))
    assert figures["eer"] == pytest.approx(100 * eer(scores[half_pairs], same[half_pairs]))
    bars = verification.curves()["unseen"]["histogram"]
    assert sum(bars["genuine"]) == sum(bars["impostor"]) == 10


def made_list(seed: int, pairs: int = 600, people: int = 60) -> tuple[PairIdentities, Any]:
    """Half genuine pairs over some people, in ten folds, with scores that tell them apart a little."""
    rng = np.random.default_rng(seed)
    left = rng.integers(0, people, pairs)
    right = np.where(np.arange(pairs) % 2 == 0, left, (left + rng.integers(1, people, pairs)) % people)
    scores = np.round(rng.normal(np.where(left == right, 0.4, 0.2), 0.12), 2)  # with ties
    return PairIdentities(left, right, "x" * 64, None, np.arange(pairs) * 10 // pairs), scores


def test_evaluating_some_folds_of_a_list_that_brings_none_makes_tenths_first() -> None:
    pairs, _ = made_list(3, pairs=80)
    features = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    features = np.concatenate([features, -features])  # a second image of each, so that genuine pairs are no 1
    sides = pairs.left, np.where(pairs.same, pairs.right + 60, pairs.right)
    explicit = evaluate_pairs(score_pairs(features, *sides), pairs.same, tenths(pairs.same), folds=(0, 1, 2, 3, 4))
    assert evaluate_pairs(score_pairs(features, *sides), pairs.same, None, folds=(0, 1, 2, 3, 4)) == explicit
    assert explicit != evaluate_pairs(score_pairs(features, *sides), pairs.same, None)


def test_the_mean_of_both_halves_is_resampled_as_such() -> None:
    pairs, scores = made_list(5)
    other_scores = scores + np.random.default_rng(1).normal(0, 0.05, len(scores))
    bootstrap = draw_identities(pairs, np.random.default_rng(0), draws=50)
    halves = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
    sides = [[[accuracy_evidence(s, pairs, folds=f)] for f in halves] for s in (scores, other_scores)]
    found = compare(*([resample(e, bootstrap)["accuracy"] for (e,) in side] for side in sides))
    drawn = [[resample(e, bootstrap)["accuracy"].values for (e,) in side] for side in sides]
    difference = (drawn[0][0] + drawn[0][1]) / 2 - (drawn[1][0] + drawn[1][1]) / 2
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(difference, [0.025, 0.975])))


# --- both halves in a sweep -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds, both halves."""
    folder = tmp_path_factory.mktemp("halves")
    path = tinyruns.write(folder / "tiny.yaml", **SPLIT | {"fold_split": "first", "rounds": 1})
    changes = ["method=fedavg,fedavg-fv", "seed=0,1", "fold_split=first,second"]
    sweep(path, changes, folder / "out", Silent())
    return folder


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.slow
@pytest.mark.ci
def test_a_sweep_shows_each_half_and_the_mean_of_both(swept: Path) -> None:
    text = (swept / "out" / "table.md").read_text()
    header, _, _, *shown = rows(text)
    assert header[:2] == ["setting", "unseen accuracy"]
    columns = [header.index(name) for name in ("setting", "runs", "unseen accuracy")]
    cells = list(read_cells(swept / "out" / "cells.jsonl").values())
    by = {
        (c["cell"]["method"], c["cell"]["fold_split"], c["cell"]["seed"]): c["figures"]["unseen"]["accuracy"]
        for c in cells
    }
    assert len(by) == 8 and len({by["fedavg", half, 0] for half in ("first", "second")}) == 2

    def mean_and_spread(values: list[float]) -> str:
        middle = sum(values) / len(values)
        return f"{middle:.2f} ± {(sum((v - middle) ** 2 for v in values) / (len(values) - 1)) ** 0.5:.2f}"

    expected = []
    for method in ("fedavg", "fedavg-fv"):
        of = {half: [by[method, half, seed] for seed in (0, 1)] for half in ("first", "second")}
        means = [(a + b) / 2 for a, b in zip(*of.values(), strict=True)]
        expected.append([f"method={method}", "4", mean_and_spread(means)])
        expected += [[f"method={method}, fold_split={half}", "2", mean_and_spread(v)] for half, v in of.items()]
    assert [[row[column] for column in columns] for row in shown[:6]] == expected
    assert "the validators" in text and "A setting's own row is of each seed's mean of both." in " ".join(
        text.split("\n")
    )
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("|"))


def test_the_differences_are_of_both_halves_together(swept: Path) -> None:
    text = (swept / "out" / "table.md").read_text()
    difference_rows = [row for row in rows(text.partition("Differences to method=fedavg,")[2]) if len(row) == 5]
    assert [row[:2] for row in difference_rows[2:]] == [
        ["method=fedavg-fv", f"unseen {f}"] for f in ("accuracy", "EER")
    ]
    assert all(row[4] in ("higher", "lower", "undecided") for row in difference_rows[2:])
    assert not any("fold_split" in row[0] for row in difference_rows)


def test_methods_without_validators_are_evaluated_on_the_same_half(swept: Path) -> None:
    for cell in read_cells(swept / "out" / "cells.jsonl").values():
        (evidence,) = cell["evidence"]["unseen"]
        assert evidence["folds"] == ([5, 6, 7, 8, 9] if cell["cell"]["fold_split"] == "first" else [0, 1, 2, 3, 4])


def test_where_a_half_is_missing_the_number_of_runs_says_so(swept: Path, tmp_path: Path) -> None:
    cells = grid(swept / "tiny.yaml", ["method=fedavg,fedavg-fv", "fold_split=first,second"])
    done = read_cells(swept / "out" / "cells.jsonl")
    less = {c.recipe.digest(): done[c.recipe.digest()] for c in cells[:-1]}
    text, *_ = table(cells, less)
    figures = {row[0]: row[3] for row in rows(text.partition("Figures in percent")[0])}
    assert figures["method=fedavg"] == "2" and figures["method=fedavg-fv"] == "1 of 2"
    assert "method=fedavg-fv, fold_split=second" not in figures
    assert "evaluated on other pairs" in text  # a half is not held against both


def test_one_half_alone_is_told_of_the_table(swept: Path) -> None:
    cells = grid(swept / "tiny.yaml", ["method=fedavg,fedavg-fv", "seed=0,1"])
    text, *_ = table(cells, read_cells(swept / "out" / "cells.jsonl"))
    assert rows(text)[0][3] == "seeds" and "fold_split=" not in rows(text)[3][0]
    assert "Of unseen these are of one half alone: fold_split=first,second gives both and their mean." in text


def test_runs_of_other_halves_have_no_interval(tmp_path: Path) -> None:
    changes = loader.merged(SPLIT, {"rounds": 1})
    runs = [tinyruns.run(tmp_path / half, **changes, fold_split=half) for half in ("first", "second")]
    slower = loader.merged(changes, {"fold_split": "first", "local": {"lr": 0.05}})
    runs.append(tinyruns.run(tmp_path / "slower", **slower))
    differences = intervals(runs)
    assert {run for run, _ in differences} == {runs[2]}


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"fold_split": "third"}, "fold_split"),
        ({"fold_split": None}, "validators.v.validates"),
        ({"validators": {"v": {"validates": "unsee"}}}, "validators.v.validates"),
        ({"validators": {"v": {"validates": "unseen", "pairs": 9}}}, "validators.v.pairs"),
        ({"validators": {"w": {"validates": "unseen"}}}, "validators.w.validates"),
        ({"validators": {"v": {"validates": None, "identities": 3}}}, "fold_split"),
    ],
)
def test_a_recipe_that_is_not_clear_is_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(RecipeError) as error:
        recipe("first", **changes)
    assert error.value.where == where


def test_a_list_that_makes_no_two_halves_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = functools.partial(all_pairs, impostors=10, per_identity=6, rng=np.random.default_rng(0), title="few")
    monkeypatch.setattr(pair_lists, "devtest_all", lambda faces, names: few(faces, names=names))  # 200,000 are too many
    people = ["Ann", "Bob", "Cyd", "Dan", "Eve", "Fay"]
    tinyruns.picture_folders(tmp_path / "people", people)
    blocks = "".join(f"{a}\t1\t2\n{a}\t1\t{b}\t1\n" for a, b in [("Ann", "Bob"), ("Bob", "Ann")])
    (tmp_path / "two.txt").write_text(f"2\t1\n{blocks}")
    (tmp_path / "few.txt").write_text("2\nAnn\t1\t2\nBob\t1\t2\nAnn\t1\tBob\t2\nAnn\t2\tBob\t2\n")

    def with_list(**settings: Any) -> schema.Recipe:
        source = {"kind": "folder", "path": "people"}
        data = {"root": str(tmp_path), "faces": source, "size": 32, "exclude": [settings["path"]]}
        tree = {"method": "fedavg-fv", "data": data, "evaluation": {"pairs": {"unseen": settings}}}
        return loader.parse({**tree, "fold_split": "first", "validators": {"v": {"validates": "unseen"}}})

    for path, kind, said in (
        ("two.txt", "lfw", ".* so a half needs two or more, and the list has 2 folds in all: split a list of ten"),
        ("few.txt", "lfw", "this list cannot be split in halves: 2 genuine pairs cannot make 10 folds"),
        ("few.txt", "all-pairs", "this list has no folds, so it cannot be split in halves"),
    ):
        parsed = with_list(path=path, kind=kind)
        with pytest.raises(RecipeError, match=f"evaluation.pairs.unseen: {said}"):
            _ = Parts(parsed).pairs


def test_the_half_that_a_validator_holds_is_no_part_of_another_list_that_is_evaluated() -> None:
    lists = {"more": {"kind": "balanced", "pairs": 15}}
    parsed = recipe("first", evaluation={"pairs": lists})
    with pytest.raises(RecipeError, match=r"validators.v: it would hold 4 identities of evaluation.pairs.more \(s0-"):
        _ = Parts(parsed).validators
    split = recipe("first", evaluation={"pairs": lists}, validators={"w": {"validates": "more"}})
    assert set(Parts(split).validators) == {"v", "w"}  # of both lists the other half is evaluated
