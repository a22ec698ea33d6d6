"""Parts of a run's page: bands, groups, who holds what, the hardest pairs, and what is template-like."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import tinyruns
import yaml
from pages import Reader

from coalface.data.faceset import FaceSet
from coalface.engine.transport import Member
from coalface.evaluation.hardest import FILE, MOST, SIDE, hardest_pairs
from coalface.evaluation.metrics.verification import EER
from coalface.experiments import run as experiment
from coalface.experiments import summary
from coalface.experiments.report import charts, groups, hardest, holdings, page, runs, specs
from coalface.experiments.report.specs import Curve
from coalface.experiments.sharing import shared


def page_of(folder: Path) -> Reader:
    return Reader(page.build(folder).read_text(encoding="utf-8"))


def changed(folder: Path, **keys: object) -> Path:
    """A run folder with keys of its summary replaced."""
    whole = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**whole, **keys}))
    return folder


# --- bands ------------------------------------------------------------------------------------------------------------


def test_a_curve_has_its_band_in_percent_and_upside_down_in_a_det() -> None:
    curve = Curve("a", [0.001, 0.01, 1.0], [0.5, 0.75, 1.0], band=[(0.25, 0.75), (0.5, 1.0), (1.0, 1.0)])
    values = specs.roc([curve])["data"]["values"]
    assert [(row["low"], row["high"]) for row in values] == [(25, 75), (50, 100), (100, 100)]
    spec = specs.roc([curve], is_det=True)
    values = spec["data"]["values"]
    assert [(row["y"], row["low"], row["high"]) for row in values] == [(50, 25, 75), (25, 25, 50)]  # 0 has no logarithm
    assert [layer["mark"]["type"] for layer in spec["layer"]][:2] == ["area", "line"]
    crowd = specs.roc([curve] * (specs.BANDED + 1))
    assert "area" not in [layer["mark"]["type"] for layer in crowd["layer"]]


def test_the_band_and_the_intervals_of_a_run_are_on_its_page(fedavg_run: Path) -> None:
    run = runs.read(fedavg_run)
    roc, det, _ = charts.similarity([run])
    kept = run.summary["curves"]["unseen"]
    assert [row["low"] for row in roc.rows] == [specs.rounded(100 * end) for end in kept["roc"]["low"]]
    assert all(row["low"] <= row["y"] <= row["high"] for row in det.rows)
    low, high = run.intervals["unseen/eer"]
    assert [low, high] == kept["intervals"]["eer"] and low < run.figures["unseen/eer"] < high
    row = next(row for row in page_of(fedavg_run).rows if row[0] == "unseen EER")
    assert row[2] == " to ".join(map(EER.text, (low, high)))


def test_a_mean_over_models_has_no_interval(solo_run: Path) -> None:
    assert runs.read(solo_run).summary["curves"]["unseen"]["intervals"] and not runs.read(solo_run).intervals


# --- groups -----------------------------------------------------------------------------------------------------------


def test_lists_have_their_spread_and_the_worst_by_name(write_run) -> None:
    figures = {"asian": {"accuracy": 80.0, "accuracy_se": 1.0, "eer": 20.0}, "indian": {"accuracy": 86.0, "eer": 12.0}}
    figures["african"] = {"accuracy": 77.0, "eer": 25.0}
    run = runs.read(write_run(figures=figures))
    grid = groups.spreads([run])
    assert grid.header == ["over", "figure", "worst", "best", "worst to best", "standard deviation"]
    assert ["lists", "accuracy", "77.0\nafrican", "86.0\nindian", "9.00", "4.58"] in grid.rows  # √((1 + 25 + 16) / 2)
    assert ["lists", "EER", "25.0\nafrican", "12.0\nindian", "13.00", "6.56"] in grid.rows  # √((1 + 49 + 36) / 2)
    chart = groups.charts(run)[0]
    assert chart.title == "accuracy by list" and chart.rows[0] == {
        "setting": "asian",
        "value": 80,
        "low": 79,
        "high": 81,
    }
    assert [row[:2] for row in groups.lists([run]).rows] == [
        ["asian", "80.0 ± 1.0"],
        ["indian", "86.0"],
        ["african", "77.0"],
    ]


def test_parties_and_clients_have_their_spread(write_run) -> None:
    clients = {"silo-1": {"own": {"rank": 90.0}}, "silo-2": {"own": {"rank": 70.0}}, "silo-3": {"own": {"rank": None}}}
    folder = write_run(method="solo", personalised={"clients": clients})
    rows = groups.spreads([runs.read(folder)]).rows
    assert ["parties", "devtest accuracy", "70.0\nsilo-00", "73.0\nsilo-03", "3.00", "1.29"] in rows
    assert ["clients, by its own backbone", "rank", "70.0\nsilo-2", "90.0\nsilo-1", "20.00", "14.14"] in rows
    assert groups.spreads([runs.read(write_run("single"))]).rows == []  # one list, one model
    assert "By group" in page_of(folder).text


def test_lists_of_two_domains_have_their_gap(write_run) -> None:
    figures = {"studio": {"eer": 10.0}, "street": {"eer": 25.0}}
    folder = write_run(figures=figures, untrained={"studio": {"eer": 40.0}, "street": {"eer": 42.0}})
    config = yaml.safe_load((folder / "config.yaml").read_text())
    pairs = {"studio": {"domain": "source"}, "street": {"domain": "target"}}
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "evaluation": {"pairs": pairs}}))
    grid = groups.lists([runs.read(folder)])
    assert grid.header == ["list", "domain", "EER"]
    assert grid.rows[0] == ["studio", "source", "10.0"] and grid.rows[-1] == ["gap", "", "−15.00"]


# --- who holds what ---------------------------------------------------------------------------------------------------


def faces(**counts: int) -> FaceSet:
    labels = np.repeat(np.arange(len(counts)), list(counts.values()))
    rows = np.zeros(len(labels), dtype=np.int64)
    return FaceSet(np.zeros((1, 2, 2, 1), dtype=np.uint8), rows, labels, tuple(counts))


def members(data: dict[str, FaceSet]) -> dict[str, Member]:
    return {name: Member("trainer", len(held), len(held.names)) for name, held in data.items()}


def test_identities_are_ordered_by_who_has_most_of_their_images(write_run) -> None:
    data = {"silo-10": faces(ann=1, bob=2), "silo-2": faces(ann=5, eve=7)}
    held = summary.holdings(data, members(data))
    assert held["parties"] == [["silo-2"], ["silo-10"]] and held["images"] == [2, 6, 7]
    assert (held["identities"], held["shared"], held["identities_per_column"]) == (3, 1, 1)
    assert held["cells"] == [[0, 0, 7], [0, 1, 5], [1, 1, 1], [1, 2, 2]]  # eve, ann, bob
    (chart,) = holdings.charts(runs.read(write_run(holdings=held)))
    assert chart.rows[2] == {"party": "silo-10", "from": 2, "to": 3, "images": 1}
    assert "2 to 7 images" in chart.caption and "1 is held by several" in chart.caption


def test_thousands_of_parties_and_identities_share_rows_and_columns(write_run) -> None:
    data = {f"p{n}": faces(**{f"p{n}-{i}": 1 + i for i in range(3)}) for n in range(2000)}
    held = summary.holdings(data, members(data))
    assert len(held["parties"]) <= summary.MOST_ROWS and held["parties"][0] == ["p0", "p66"]
    assert max(column for _, column, _ in held["cells"]) < summary.MOST_COLUMNS
    assert sum(images for *_, images in held["cells"]) == 2000 * 6
    folder = write_run(holdings=held)
    (chart,) = holdings.charts(runs.read(folder))
    assert chart.rows[0]["party"] == "p0 to p66" and chart.rows[0]["images"] == 2.02  # 16 × (3 + 2 + 1), 3 and 2
    assert "50 identities" in chart.caption and len(chart.json) < 40_000


def test_what_is_not_known_here_is_not_recorded() -> None:
    data = {"a": faces(ann=1), "b": faces(bob=1)}
    assert summary.holdings(data, {name: member.untold for name, member in members(data).items()}) == {}
    assert summary.holdings({"pooled": faces(ann=1)}, members(data)) == {}


def test_a_run_records_who_holds_what(fedavg_run: Path) -> None:
    held = runs.read(fedavg_run).summary["holdings"]
    assert (held["identities"], held["shared"], held["images"]) == (8, 0, [4, 4, 4])
    assert held["cells"] == [[n // 4, n, 4] for n in range(8)]


# --- the hardest pairs ------------------------------------------------------------------------------------------------


def test_the_hardest_pairs_are_those_most_wrong_and_no_image_comes_twice() -> None:
    shades = np.arange(8, dtype=np.uint8)[:, None, None, None] * 30 + np.zeros((8, 300, 200, 3), dtype=np.uint8)
    faces = FaceSet(shades, np.arange(8), np.arange(8), tuple("abcdefgh"))
    left, right = np.array([0, 0, 2, 4, 5, 6]), np.array([1, 2, 3, 5, 6, 7])
    same = np.array([True, True, True, False, False, False])
    pairs = hardest_pairs(np.array([0.2, 0.1, 0.9, 0.3, 0.8, 0.1]), same, left, right, faces)
    assert [pair["cosine"] for pair in pairs["genuine"]] == [0.1]  # 0 and 2, which the others show as well
    assert [pair["cosine"] for pair in pairs["impostor"]] == [0.8]
    picture = cv2.imdecode(np.frombuffer(base64.b64decode(pairs["impostor"][0]["jpeg"]), np.uint8), cv2.IMREAD_COLOR)
    assert picture.shape == (SIDE, 2 * 64 + 4, 3)
    assert picture[:, :60].mean() == pytest.approx(150, abs=2) and picture[:, -60:].mean() == pytest.approx(180, abs=2)


def test_a_run_on_synthetic_faces_shows_them_and_the_same_ones_again(fedavg_run: Path, tmp_path: Path) -> None:
    reader = page_of(fedavg_run)
    reader.check_offline()
    images = [attributes for tag, attributes in reader.tags if tag == "img"]
    kept = json.loads((fedavg_run / FILE).read_text())["unseen"]
    assert [len(kept[kind]) for kind in ("genuine", "impostor")] == [MOST, 5]  # of 4 people with 4 images
    assert len(images) == MOST + 5
    assert "img-src data:" in reader.page and all(attributes["alt"] for attributes in images)
    again = tinyruns.run(tmp_path / "again", name="tiny-fedavg")
    assert (again / FILE).read_bytes() == (fedavg_run / FILE).read_bytes()


def test_faces_from_a_folder_are_pictured_where_the_recipe_says_so_alone(tmp_path: Path) -> None:
    folder = tinyruns.picture_folders(tmp_path / "faces", [f"p{n}" for n in range(12)])
    tree = {**tinyruns.TINY, "data": {**tinyruns.TINY["data"], "faces": {"kind": "folder", "path": str(folder)}}}
    recipe = tinyruns.loader.parse(tree)
    out = tmp_path / "run"
    experiment.run(recipe, out, tinyruns.Silent())
    assert not (out / FILE).exists() and "img-src" not in (out / "report.html").read_text()
    experiment.resume(out, tinyruns.Silent(), ("evaluation.pictures=true",))
    assert (out / FILE).exists() and "img-src data:" in (out / "report.html").read_text()
    experiment.resume(out, tinyruns.Silent(), ("evaluation.pictures=false",))
    assert not (out / FILE).exists()


def test_no_list_with_images_of_its_own_is_taken_for_synthetic() -> None:
    pictured = {
        name: chosen.pictured for name, chosen in _lists({"a": {}, "b": {"source": {"identities": 4, "first": 50}}})
    }
    assert pictured == {"a": True, "b": True}
    assert not any(chosen.pictured for _, chosen in _lists({"a": {}}, pictures=False))


def _lists(pairs, **evaluation):
    from coalface.experiments.setup.parts import Parts

    pairs = {name: {"kind": "balanced", "pairs": 10, **settings} for name, settings in pairs.items()}
    recipe = tinyruns.tiny(evaluation={"pairs": {**pairs, "unseen": {"pairs": 20}}, **evaluation})
    return [(chosen.name, chosen) for chosen in Parts(recipe).pairs if chosen.name != "unseen"]


@pytest.mark.parametrize("kept", ["", "[]", '{"a": 1}', '{"a": {"genuine": [{"jpeg": "\\"><script>", "cosine": 1}]}}'])
def test_damaged_pictures_are_left_out(write_run, kept: str) -> None:
    folder = write_run()
    (folder / FILE).write_text(kept)
    assert hardest.read(folder) == [] and "<img" not in page_of(folder).page


# --- what left, and how to repeat it ----------------------------------------------------------------------------------


def test_what_is_template_like_is_named_with_its_bytes(write_run) -> None:
    messages = [
        {"step": "train", "direction": "up", "field": "centre", "content": "template", "bytes": 100, "kind": "tensor"}
    ]
    tensor = {"name": "centre/centre", "kind": "tensor", "shape": [25], "dtype": "F32", "bytes": 100, "count": 12}
    folder = changed(write_run(), messages=messages, ledger={"tensors": [tensor], "lines": 12, "bytes": 1200})
    reader = page_of(folder)
    assert "Template-like: centre, 1.2 kB in all." in reader.text
    assert [row[:2] for row in reader.rows if row[0] == "template"] == [
        ["template", "template-like: an embedding or a class embedding of a person, or several fused"]
    ]
    messages[0] |= {"content": "weight"}
    assert "No field that left is declared as a template" in page_of(changed(folder, messages=messages)).text


def test_the_command_and_the_versions_stand_open(write_run) -> None:
    environment = {"coalface": "0.1.0", "commit": "abc", "python": "3.11.7", "torch": "2.13.0"}
    environment |= {"date": "2026-11-25T02:34:42+00:00", "command": "coalface run x <y>"}
    reader = page_of(write_run(environment=environment))
    assert "with Coalface 0.1.0, commit abc, Python 3.11.7, torch 2.13.0, on 2026-11-25 02:34:42 UTC." in reader.text
    assert '<pre class="command">coalface run x &lt;y&gt;</pre>' in reader.page


def test_a_page_to_pass_on_shows_no_face_and_names_no_party(fedavg_run: Path) -> None:
    run = shared(runs.read(fedavg_run))
    assert "<img" not in page.render(run) and hardest.read(fedavg_run)
    (chart,) = holdings.charts(run)
    assert {row["party"] for row in chart.rows} == {"party 1", "party 2"}
