from __future__ import annotations

import yaml

from coalface.experiments.comparison import table


def edit(folder, **changes):
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | changes))


def test_differences_are_to_the_first_run_with_the_intervals_given(write_run):
    first, second, third = (
        write_run(n, method=n, gain=g) for n, g in [("fedface", 22.0), ("fedavg", 17.0), ("solo", 21.5)]
    )
    key = "devtest/accuracy"
    intervals = {(second, key): (-4.9, -7.0, -2.5, 3), (third, key): (-0.4, -1.5, 0.8, 3)}
    comparison = table.compare([first, second, third], intervals)
    assert comparison.rows[0].differences == {}
    assert comparison.rows[1].differences[key] == table.Record(
        "fedavg", key, -4.9, by="fedface", low=-7.0, high=-2.5, seeds=3
    )
    assert comparison.rows[1].differences["devtest/eer"] == table.Record(
        "fedavg", "devtest/eer", 5.0, by="fedface"
    )  # no interval: the plain one
    assert [row.differences[key].is_decided for row in comparison.rows[1:]] == [True, False]
    assert table.difference_text(comparison.rows[1].differences[key]) == "−4.90 [−7.00, −2.50] 3 seeds"
    assert table.difference_text(comparison.rows[2].differences[key]) == "−0.40 [−1.50, +0.80] 3 seeds, undecided"
    assert comparison.figures == (key, "devtest/tar@far=0.01", "devtest/eer")  # standard errors have no column


def test_an_interval_that_touches_zero_or_is_of_one_seed_decides_nothing():
    records = [table.Record("a", "eer", 1.0, low=low, high=2.0, seeds=seeds) for low in (0.0, 0.1) for seeds in (1, 2)]
    assert [record.is_decided for record in records] == [False, False, False, True]
    assert table.Record("a", "eer", 1.0).is_decided is None


def test_other_differences_in_config_and_numerics_are_named(write_run):
    first, second = write_run("a"), write_run("b", numerics={"threads": 2, "cohorts": "off", "block": 16})
    edit(second, seed=7, data={"train": {"min_images": 8}, "image_size": 112})
    sentences = table.notes(table.compare([first, second]))
    assert sentences == [
        "These runs differ also in: data.train.min_images (4, 8).",
        "Their numerics differ in: threads (1, 2).",
    ]


def test_a_methods_own_settings_are_named_only_where_they_can_be_compared(write_run):
    first, second = write_run("a", method="fedavg"), write_run("b", method="fedface")
    edit(first, rounds=6, methods={"fedavg": {"momentum": "reset"}})
    edit(second, rounds=9, methods={"fedface": {"margin": 0.7}})
    assert [a.key for a in table.compare([first, second]).apart] == ["rounds"]
    third = write_run("c", method="fedface")
    edit(third, rounds=9, methods={"fedface": {"margin": 0.9}})
    assert [(a.key, a.values) for a in table.compare([second, third]).apart] == [
        ("methods.fedface.margin", {"b": "0.7", "c": "0.9"})
    ]


def test_json_holds_the_rows_and_their_differences(write_run):
    runs = [write_run("a"), write_run("b", gain=10.0)]
    tree = table.as_dict(table.compare(runs, {(runs[1], "devtest/accuracy"): (-10.0, -12.0, -8.0, 3)}))
    assert [row["run"] for row in tree["runs"]] == ["a", "b"]
    assert tree["runs"][0]["figures"]["devtest/accuracy"] == 80.0
    assert tree["runs"][1]["against_first"]["devtest/accuracy"] == {
        "difference": -10.0, "low": -12.0, "high": -8.0, "seeds": 3, "verdict": "decided",
    }  # fmt: skip


def test_unfinished_runs_have_a_row_with_what_is_known(write_run):
    whole, cut = write_run("whole"), write_run("cut")
    (cut / "summary.json").unlink()
    compared = table.compare([whole, cut])
    row, (note,) = compared.rows[1], table.notes(compared)
    assert note.startswith("cut is not finished (6 rounds so far)") and f"`coalface resume {cut}`" in note
    assert [row.about[key] for key in ("method", "seed", "rounds")] == ["fedavg", 1, None]
    assert row.run.figures == row.differences == {}
    (cut / "evidence.json").write_text("{}")  # of an evaluation that was stopped
    (note,) = table.notes(table.compare([whole, cut]))
    assert note.startswith("cut has done its 6 rounds") and f"`coalface resume {cut}` evaluates it" in note


def test_of_two_kinds_the_keys_that_one_alone_has_are_no_difference(write_run):
    runs = first, second, third = write_run("a"), write_run("b"), write_run("c")
    edit(
        first,
        data={"faces": {"kind": "folder", "path": "faces"}, "partition": {"kind": "equal", "parties": 8, "seed": 8}},
    )
    edit(second, data={"faces": {"kind": "synthetic", "images": 4}, "partition": {"kind": "one-identity", "seed": 9}})
    edit(third, data={"faces": {"kind": "synthetic", "images": 5}, "partition": {"kind": "one-identity", "seed": 9}})
    apart = {key.key: list(key.values.values()) for key in table.compare([first, second]).apart}
    assert apart == {
        "data.faces.kind": ["folder", "synthetic"],
        "data.partition.kind": ["equal", "one-identity"],
        "data.partition.seed": ["8", "9"],
    }
    apart = {key.key: list(key.values.values()) for key in table.compare(runs).apart}
    assert apart["data.faces.images"] == ["absent", "4", "5"]
    assert "data.faces.path" not in apart and "data.partition.parties" not in apart


def test_a_part_that_one_run_alone_has_is_a_difference(write_run):
    first, second = write_run("a"), write_run("b")
    parts = {"orl": {"kind": "folder", "path": "orl"}, "lfw": {"kind": "rec", "path": "lfw"}}
    edit(first, data={"faces": {"kind": "joined", "parts": parts}})
    edit(second, data={"faces": {"kind": "joined", "parts": {"orl": parts["orl"]}}})
    apart = [key.key for key in table.compare([first, second]).apart]
    assert apart == ["data.faces.parts.lfw.kind", "data.faces.parts.lfw.path"]
