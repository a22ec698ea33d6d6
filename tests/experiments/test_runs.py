from __future__ import annotations

import json

import pytest

from coalface.core.errors import DataError, RecipeError
from coalface.core.text import clean, size
from coalface.experiments.report import runs


def test_a_line_cut_off_by_a_kill_is_left_out_but_a_broken_line_inside_is_named(write_run):
    folder = write_run()
    metrics = folder / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + '{"round": 7, "los')
    assert len(runs.read(folder).metrics) == 6
    metrics.write_text("{broken\n" + whole)
    with pytest.raises(DataError) as error:
        runs.read(folder)
    assert f"{metrics}, line 1" in error.value.where


def test_a_damaged_line_of_the_events_is_left_out_and_named(write_run):
    folder = write_run()
    events = folder / "events.jsonl"
    events.write_text('{"event": "begins"}\n{broken\n{"event": "round"}\n')
    assert [event["event"] for event in runs.read(folder).events] == ["begins", "round"]
    (skipped,) = runs.read_events(folder)[1]
    assert f"{events}, line 2" in skipped


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "evidence.json", runs.DIGESTS])
def test_a_damaged_file_of_a_finished_run_is_named_with_what_to_do(write_run, name):
    folder = write_run()
    (folder / "evidence.json").write_text('{"unseen": []}')
    before = runs.read(folder)  # of a version that wrote no digests
    runs.keep_digests(folder)
    assert runs.read(folder).metrics == before.metrics
    data = bytearray((folder / name).read_bytes())
    place = next(i for i in range(len(data) // 2, len(data)) if chr(data[i]).isalnum())
    data[place] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(DataError, match="coalface resume") as error:
        runs.read(folder)
    assert name == runs.DIGESTS or error.value.where == str(folder / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [("summary.json", "{"), ("summary.json", "[" * 200_000), ("summary.json", "[1]"), ("config.yaml", "a: [")],
)
def test_a_file_that_cannot_be_read_is_named(write_run, name, content):
    folder = write_run()
    (folder / name).write_text(content)
    with pytest.raises(DataError) as error:
        runs.read(folder)
    assert error.value.where == str(folder / name)


def test_labels_take_in_parents_only_where_names_are_the_same(write_run):
    paths = [write_run("a/fedavg"), write_run("b/fedavg"), write_run("b/solo")]
    assert [run.label for run in runs.read_all(paths)] == ["a/fedavg", "b/fedavg", "b/solo"]
    assert [run.label for run in runs.read_all(paths[1:])] == ["fedavg", "solo"]
    with pytest.raises(RecipeError) as error:
        runs.read_all([paths[0], paths[0].parent / "../a/fedavg"])
    assert error.value.where == str(paths[0])


def test_only_finite_numbers_are_numbers():
    values = json.loads('[1, 2.5, true, null, "3", NaN, Infinity, 1e999]') + [10**400]
    assert [runs.number(value) for value in values] == [1.0, 2.5] + [None] * 7


def test_sizes_are_decimal_and_never_show_a_thousand_of_a_unit():
    texts = [size(n) for n in (0, 999, 1000, 999_499, 999_500, 999_600, 5_000_000_000, 10**21)]
    assert texts == ["0 B", "999 B", "1 kB", "999 kB", "1 MB", "1 MB", "5 GB", "1e+06 PB"]


def test_names_keep_no_control_characters():
    assert clean("silo\x1b[31m\n\u202eevil\ud800 ß") == "silo?[31m ?evil? ß"
