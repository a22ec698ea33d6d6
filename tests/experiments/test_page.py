from __future__ import annotations

import json

import pytest
import yaml
from pages import Reader

from coalface.experiments.comparison import page as comparison
from coalface.experiments.comparison.table import compare
from coalface.experiments.report import page, runs

EVIL = '</title><script>alert(1)</script><img src=x onerror="alert(2)">\x1b\u202e'


def read(path):
    return Reader(path.read_text(encoding="utf-8"))


def chart_of(reader, title):
    """The chart whose vertical axis has a title."""
    (chart,) = [
        c for c in reader.charts if any(part["encoding"].get("y", {}).get("title") == title for part in c["layer"])
    ]
    return chart


def test_the_page_says_what_was_trained_and_what_came_of_it(write_run):
    target = page.build(write_run("demo", method="fedface", gain=22.0))
    assert target.name == "report.html"
    text = read(target).text
    for name in (
        "fedface",
        "sphere20",
        "over 4 parties",
        "6 rounds",
        "seed 1",
        "82.0 ± 1.1 %",
        "untrained 60.0 %",
        "+22.00",
    ):
        assert name in text
    assert "silo-03 trainer 33 630 6 0 25.2 MB 25.2 MB" in text and "sum 126 2,460" in text
    assert "train 3 silo-02 sent NaN in backbone" in text and "Update.backbone to server tensors 4.2 MB" in text
    assert "288 lines for 101 MB" in text and "backbone.conv1.weight parameter 64 × 3 × 3 × 3" in text
    assert "02" * 32 in text and "cohorts off" in text and "image_size: 112" in text
    assert "Pooled" not in text


def test_a_far_has_its_threshold_and_what_it_attains(write_run):
    reader = read(page.build(write_run()))
    assert ["devtest", "0.01", "0.3125", "0.0095", "40.00"] in reader.rows and "AUC: 91.25 %." in reader.text
    (histogram,) = (chart for chart in reader.charts if "pairs" in chart["data"]["values"][0])
    (line,) = (layer["data"]["values"] for layer in histogram["layer"] if layer["mark"]["type"] == "rule")
    assert line == [{"level": 0.3125, "name": "FAR 0.01"}]


def test_the_same_folder_gives_the_same_bytes(write_run):
    folder = write_run("a")
    first = page.build(folder).read_bytes()
    assert page.build(folder).read_bytes() == first


def test_the_page_needs_nothing_from_outside_and_runs_its_own_script_alone(write_run):
    read(page.build(write_run("a"))).check_offline()


def test_every_string_of_the_folder_is_escaped(write_run):
    folder = write_run("a", method=EVIL)

    def poisoned(value):
        if isinstance(value, dict):
            return {EVIL + key if key.startswith("silo") else key: poisoned(item) for key, item in value.items()}
        if isinstance(value, list):
            return [poisoned(item) for item in value]
        return EVIL + value if isinstance(value, str) and value not in ("up", "down") else value

    summary = poisoned(json.loads((folder / "summary.json").read_text()))
    for key in ("figures", "untrained", "curves"):
        summary[key] = {EVIL: {**summary[key]["devtest"], EVIL: 1.0}}
    (folder / "summary.json").write_text(json.dumps(summary | {"numerics": {EVIL: EVIL}}))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line | {"stage": EVIL + str(i % 2), EVIL: i, "failed": {EVIL: EVIL}} for i, line in enumerate(lines)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text(json.dumps({"model": EVIL, EVIL: EVIL}))
    for target in (page.build(folder), comparison.build(compare([folder, write_run("b")]), folder / "all.html")):
        whole = target.read_text(encoding="utf-8")
        assert [bad for bad in ("<script>alert", "<img", "\x1b", "\u202e") if bad in whole] == []
        reader = read(target)
        reader.check_offline()
        assert "alert(1)" in reader.text  # shown as text


def test_pooled_and_solo_runs_say_so(write_run):
    pooled = read(page.build(write_run("merge", method="merge", pooled=True))).text
    assert "Pooled:" in pooled and "over 4 parties" not in pooled
    solo = read(page.build(write_run("solo", method="solo"))).text
    assert "at each of 4 parties" in solo and "silo-01 trainer 31 610 6 0 25.2 MB 25.2 MB 1.600 71.0" in solo
    folder = write_run("fv", method="pfm-fv", parties=3)
    summary = json.loads((folder / "summary.json").read_text())
    summary["parties"][2]["role"] = "validator"
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "2 trainers and 1 validator" in read(page.build(folder)).text


@pytest.mark.parametrize("keep", ["config.yaml", "metrics.jsonl", "summary.json"])
def test_one_file_is_enough_for_a_page(write_run, keep):
    folder = write_run()
    for path in folder.iterdir():
        if path.name != keep:
            path.unlink()
    text = read(page.build(folder)).text
    assert "demo-fedavg" in text
    assert ("This run has no summary yet" in text) == (keep != "summary.json")


@pytest.mark.slow
@pytest.mark.ci
def test_any_missing_or_misshapen_key_draws_nothing_and_breaks_nothing(write_run):
    folder, other = write_run("a"), write_run("b")
    whole = json.loads((folder / "summary.json").read_text())
    for key in whole:
        for value in ("absent", None, [], {}, "text", 7, [None], {"devtest": None}, [{}], {"a": {"b": [1]}}):
            summary = {k: v for k, v in whole.items() if k != key} | ({} if value == "absent" else {key: value})
            (folder / "summary.json").write_text(json.dumps(summary))
            page.render(runs.read(folder))
            comparison.render(compare([folder, other]))


def test_numbers_that_are_none_break_no_drawing(write_run):
    folder = write_run()
    lines = [{"round": r, "loss": loss} for r, loss in enumerate([1.0, None, float("nan"), 1e300, float("inf"), 2.0])]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    loss = chart_of(read(page.build(folder)), "loss")
    assert loss["data"]["values"] == [{"series": folder.name, "x": x, "y": y} for x, y in ((0, 1.0), (5, 2.0))]


def test_ten_thousand_parties_and_rounds_stay_below_a_megabyte(write_run):
    folder = write_run(parties=10_000, rounds=2)
    lines = [
        {"stage": "train", "round": r, "loss": 1 / (r + 1), "bytes_up": r, "failed": {f"p{r}": "late"}}
        for r in range(10_000)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = page.build(folder)
    assert target.stat().st_size < 1_000_000
    text = read(target).text
    assert "9,940 more are not shown here; the run folder holds them all." in text and "over 10,000 parties" in text


def test_stages_are_counted_on_and_marked(write_run):
    folder = write_run()
    stages = [("pretrain", 1), ("pretrain", 2), ("federate", 1), ("federate", 2)]
    lines = [{"stage": stage, "round": r, "loss": float(i)} for i, (stage, r) in enumerate(stages)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    loss = chart_of(read(page.build(folder)), "loss")
    assert [row["x"] for row in loss["data"]["values"]] == [1, 2, 3, 4]
    assert loss["layer"][0]["data"]["values"] == [{"at": 1, "stage": "pretrain"}, {"at": 3, "stage": "federate"}]


def test_a_fall_of_an_error_is_a_gain_and_a_fall_of_a_rate_is_a_loss(write_run):
    figures = {"devtest": {"accuracy": 55.0, "eer": 30.0}}
    whole = page.build(write_run(figures=figures)).read_text()  # untrained: accuracy 60, EER 41
    assert '<td class="n worse">−5.00</td>' in whole and '<td class="n better">−11.00</td>' in whole


def test_a_model_that_was_trained_before_is_called_so(write_run):
    folder = write_run(gain=22.0)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "pretrain": {"method": "centralized"}}))
    text = page.build(folder).read_text()
    assert "untrained" not in text and "82.0 ± 1.1 %, pre-trained 60.0 % (" in text
    assert '<th scope="col" class="n">pre-trained</th>' in text
    both = comparison.build(compare([folder, write_run("plain")]), folder / "both.html").read_text()
    assert "untrained" not in both  # the runs start from different things, so the drawings have no common level


def test_a_figure_is_shown_in_its_own_unit(write_run):
    figures = {"devtest": {"threshold@far=0.01": 0.43219, "accuracy": 80.0}}
    text = read(page.build(write_run(figures=figures, untrained={"devtest": {"threshold@far=0.01": 0.5}}))).text
    assert "threshold at FAR 0.01 (cosine) 0.432190 0.500000 −0.067810" in text and "0.432190 %" not in text
