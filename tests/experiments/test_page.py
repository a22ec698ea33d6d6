from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
import yaml

from coalface.experiments.report import page

EVIL = '</title><script>alert(1)</script><img src=x onerror="alert(2)">\x1b\u202e'
VOID = {"meta", "br", "img", "link", "input", "hr", "wbr"}


class Reader(HTMLParser):
    """Reads a page strictly: every tag is closed in order; keeps tags, attributes and text."""

    def __init__(self, page_text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(page_text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def read(path):
    return Reader(path.read_text(encoding="utf-8"))


def test_the_page_says_what_was_trained_and_what_came_of_it(write_run):
    target = page.build(write_run("demo", method="fedface", gain=22.0))
    assert target.name == "report.html"
    text = read(target).text
    assert "fedface trained sphere20 over 4 parties (cross-silo) in 6 rounds, seed 1." in text
    assert "devtest accuracy: 82.0 ± 1.1 %, untrained 60.0 % (+22.00 points)." in text
    for part in ("Over the rounds", "devtest ROC", "silo-03 trainer 33 630 6 0 25.2 MB 25.2 MB", "sum 126 2,460"):
        assert part in text
    assert "train 3 silo-02 sent NaN in backbone" in text
    assert "↑ leaves Update.backbone to server tensors 4.2 MB" in text and "Stays at the party" in text
    assert "This run has 288 lines for 101 MB" in text and "backbone.conv1.weight parameter 64 × 3 × 3 × 3" in text
    assert "02" * 32 in text and "cohorts off" in text and "image_size: 112" in text
    assert "Pooled" not in text and "side by side" not in text


def test_the_same_folder_gives_the_same_bytes(write_run):
    folder, other = write_run("a"), write_run("b")
    first = page.build(folder, other).read_bytes()
    assert page.build(folder, other).read_bytes() == first


def test_the_page_needs_nothing_from_outside_and_runs_nothing(write_run):
    reader = read(page.build(write_run("a"), write_run("b")))
    assert not {tag for tag, _ in reader.tags} & {"script", "link", "img", "iframe", "object", "base", "form"}
    for _, attributes in reader.tags:
        assert not {"src", "href", "srcset", "data"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    whole = page.build(write_run("c")).read_text()
    assert not re.findall(r"url\(|@import", whole)
    assert set(re.findall(r"https?://[^\"' ]+", whole)) <= {"http://www.w3.org/2000/svg"}


def test_every_string_of_the_folder_is_escaped(write_run):
    folder = write_run("a", method=EVIL)

    def poisoned(value):
        if isinstance(value, dict):
            return {EVIL + key if key.startswith("silo") else key: poisoned(found) for key, found in value.items()}
        if isinstance(value, list):
            return [poisoned(found) for found in value]
        return EVIL + value if isinstance(value, str) and value not in ("up", "down") else value

    summary = poisoned(json.loads((folder / "summary.json").read_text()))
    for key in ("figures", "untrained", "curves"):
        summary[key] = {EVIL: {**summary[key]["devtest"], EVIL: 1.0}}
    (folder / "summary.json").write_text(json.dumps(summary | {"numerics": {EVIL: EVIL}}))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line | {"stage": EVIL + str(i % 2), EVIL: i, "failed": {EVIL: EVIL}} for i, line in enumerate(lines)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text(json.dumps({"model": EVIL, EVIL: EVIL}))
    for target in (page.build(folder), page.build(folder, write_run("b"))):
        whole = target.read_text(encoding="utf-8")
        assert [bad for bad in ("<script", "<img", "\x1b", "\u202e") if bad in whole] == []
        reader = read(target)
        assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
        assert "alert(1)" in reader.text  # shown as text


def test_a_pooled_run_says_so_plainly(write_run):
    text = read(page.build(write_run("merge", method="merge", pooled=True))).text
    assert "merge trained sphere20 on the images of all parties, pooled in one place" in text
    assert "Pooled: merge puts the images of all parties in one place. This is a baseline" in text


def test_a_solo_run_shows_each_partys_own_figures(write_run):
    text = read(page.build(write_run("solo", method="solo"))).text
    assert "solo trained sphere20 at each of 4 parties (cross-silo), each on its own images" in text
    assert "its figures are means over the parties" in text
    assert "silo-01 trainer 31 610 6 0 25.2 MB 25.2 MB 1.600 71.0" in text


def test_several_runs_are_compared_on_one_page(write_run, tmp_path):
    runs = [write_run("fedface", gain=22.0), write_run("fedavg", method="fedavg", rounds=9), write_run("none")]
    (runs[2] / "summary.json").unlink()
    key = "devtest/accuracy"
    target = page.build(*runs, intervals={(runs[1], key): (-2.0, -4.1, 0.1)}, to=tmp_path / "all.html")
    text = read(target).text
    assert target == tmp_path / "all.html" and not (runs[0] / "report.html").exists()
    assert "comparison of 3 runs" in text and "against fedavg, none" in text
    assert "fedavg: 80.0 ± 1.1 %, −2.00 points (interval −4.10 to +0.10, undecided)." in text
    assert "80.0 ± 1.1 −2.00 [−4.10, +0.10] undecided" in text
    assert "config rounds 6 9 6" in text
    whole = target.read_text()
    assert whole.count('<polyline class="line s1"') >= 3  # the second run lies over the first: loss, figures, ROC


@pytest.mark.parametrize("keep", ["config.yaml", "metrics.jsonl", "summary.json"])
def test_one_file_is_enough_for_a_page(write_run, keep):
    folder = write_run()
    for path in folder.iterdir():
        if path.name != keep:
            path.unlink()
    text = read(page.build(folder)).text
    assert "demo-fedavg" in text
    assert ("This run has no summary yet" in text) == (keep != "summary.json")


def test_any_missing_or_misshapen_key_draws_nothing_and_breaks_nothing(write_run):
    folder = write_run()
    whole = json.loads((folder / "summary.json").read_text())
    for key in whole:
        for value in ("absent", None, [], {}, "text", 7, [None], {"devtest": None}, [{}], {"a": {"b": [1]}}):
            summary = {k: v for k, v in whole.items() if k != key} | ({} if value == "absent" else {key: value})
            (folder / "summary.json").write_text(json.dumps(summary))
            page.render(page.read_all([folder]))


def test_numbers_that_are_none_break_no_drawing(write_run):
    folder = write_run()
    lines = [{"round": r, "loss": loss} for r, loss in enumerate([1.0, None, float("nan"), 1e300, float("inf"), 2.0])]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    whole = page.build(folder).read_text()
    assert len(re.search(r'class="line s0" points="([^"]*)"', whole)[1].split()) == 2


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
    whole = page.build(folder).read_text()
    xs = [float(p.split(",")[0]) for p in re.search(r'class="line s0" points="([^"]*)"', whole)[1].split()]
    assert xs == sorted(set(xs)) and len(xs) == 4
    marked = re.findall(r'class="mark" x1="([0-9.]+)"', whole)
    assert [float(x) for x in marked[:2]] == [xs[0], xs[2]]


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
    both = page.build(folder, write_run("plain"), to=folder / "both.html").read_text()
    assert "untrained" not in both  # the runs start from different things, so the drawings have no common level


def test_an_interval_stands_on_a_line_of_its_own(write_run):
    runs = [write_run("fedavg"), write_run("solo", gain=19.0)]
    given = {(runs[1], "devtest/accuracy"): (-1.0, -2.0, 0.5)}
    text = page.build(*runs, intervals=given).read_text(encoding="utf-8")
    assert "<small>−1.00</small><small>[−2.00, +0.50]</small><small>undecided</small>" in text


def test_a_long_field_of_a_message_may_break_at_its_underscores_and_nowhere_else(write_run):
    """Beside the arrow, the kind and the bytes a card leaves room for one word: `backbone` broke within it."""
    messages = [
        {"step": "train", "direction": "up", "field": field, "kind": "tensors", "bytes": 9, "to": "server"}
        for field in ("control_variate_of_the_backbone", "<i>_b")
    ]
    text = page.build(write_run(messages=messages)).read_text(encoding="utf-8")
    assert "<code>control_<wbr>variate_<wbr>of_<wbr>the_<wbr>backbone</code>" in text
    assert "<code>&lt;i&gt;_<wbr>b</code>" in text
    assert ".step td code { overflow-wrap: normal; }" in text
