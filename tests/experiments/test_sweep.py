from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyruns
import written_method
from pages import markdown_rows
from tinyruns import Silent, Stop, Stops

from coalface.core.errors import DataError, RecipeError
from coalface.engine.transport import RunFailed
from coalface.experiments.sweep import differences
from coalface.experiments.sweep import run as sweeping
from coalface.experiments.sweep.grid import grid
from coalface.experiments.sweep.run import plan, plan_text, read_cells, sweep


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of two methods over two seeds; tests only read it."""
    folder = tmp_path_factory.mktemp("sweep")
    sweep(recipe(folder), ["method=solo,fedavg", "seed=0,1"], folder / "out", Silent())
    return folder


def recipe(folder: Path, **changes: Any) -> Path:
    return tinyruns.write(folder / "tiny.yaml", rounds=1, **changes)


def copied(swept: Path, to: Path) -> Path:
    shutil.copytree(swept, to / "sweep")
    return to / "sweep"


def cells(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]


def rows(text: str) -> list[list[str]]:
    """The table of figures and that of the differences."""
    return markdown_rows(text.partition("Final training loss")[0])


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        (["seed"], "'seed'"),
        (["seed=[0"], "'seed=[0'"),
        (["seed=0", "seed=1"], "seed"),
        (["seeds=0,1"], ""),
        (["local.lr=0.1,x"], "local.lr"),
    ],
)
def test_a_mistake_in_any_cell_shows_before_anything_runs(changes: list[str], where: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        sweep(recipe(tmp_path), changes, tmp_path / "out", Silent())
    assert where in str(error.value) and not (tmp_path / "out").exists()


def test_every_cell_has_its_line_and_no_run_folder_is_left(swept: Path) -> None:
    finished = cells(swept / "out")
    assert [cell["cell"] for cell in finished] == [
        {"method": "solo", "seed": 0},
        {"method": "solo", "seed": 1},
        {"method": "fedavg", "seed": 0},
        {"method": "fedavg", "seed": 1},
    ]
    assert len({cell["hash"] for cell in finished}) == 4
    assert all(cell["figures"]["unseen"] and cell["evidence"]["unseen"] and cell["last_loss"] for cell in finished)
    assert list((swept / "out" / "runs").iterdir()) == []


def test_the_table_is_the_mean_and_spread_of_the_cells(swept: Path) -> None:
    text = (swept / "out" / "table.md").read_text()
    header, rule, untrained, solo, fedavg, *differences = rows(text)
    assert header == [
        "setting",
        "unseen accuracy",
        "unseen EER",
        "seeds",
        "steps",
        "images seen",
        "down",
        "up",
        "seconds",
    ]
    assert set("".join(rule)) == {"-", ":"}
    values = [
        cell["figures"]["unseen"]["accuracy"] for cell in cells(swept / "out") if cell["cell"]["method"] == "solo"
    ]
    spread = np.sqrt(((values[0] - np.mean(values)) ** 2 + (values[1] - np.mean(values)) ** 2) / 1)
    assert (solo[0], solo[1], solo[3]) == ("method=solo", f"{np.mean(values):.2f} ± {spread:.2f}", "2")
    assert solo[6] == "0 B"
    assert untrained[0] == "untrained" and untrained[4:] == [""] * 5
    assert fedavg[6] == "2.1 MB"
    assert differences[0] == ["setting", "figure", "difference", "interval", "verdict"]
    assert differences[2][:2] == ["method=fedavg", "unseen accuracy"]
    assert differences[2][4] in ("higher", "lower", "undecided")
    assert "Differences to method=solo, percent points" in text
    assert len({len(line) for line in text.splitlines()[:5]}) == 1  # columns stand beneath each other as text


def test_the_committed_cells_give_the_committed_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The differences are left out: their pair lists need LFW."""
    monkeypatch.setattr(differences, "of_figures", lambda *_: ([], []))
    folder = Path(__file__).parents[2]
    changes = ["seed=0,1,2", "method=fedavg,centralized,solo,fedprox"]
    finished = read_cells(folder / "docs" / "results" / "lfw-silos" / "cells.jsonl")
    text, *_ = sweeping.table(grid(Path("lfw/silos"), changes), finished)
    assert (folder / "docs" / "results" / "lfw-silos" / "table.md").read_text().startswith(text.rstrip())


def test_it_goes_on_from_the_text_file_alone(swept: Path, tmp_path: Path) -> None:
    folder = copied(swept, tmp_path)
    for name in ("runs", "table.md"):
        path = folder / "out" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before, view = (folder / "out" / "cells.jsonl").read_bytes(), Silent()
    sweep(folder / "tiny.yaml", ["method=solo,fedavg", "seed=0,1"], folder / "out", view)
    assert view.started == []
    assert (folder / "out" / "cells.jsonl").read_bytes() == before
    assert (folder / "out" / "table.md").read_bytes() == (swept / "out" / "table.md").read_bytes()


def test_only_new_and_changed_cells_are_run(swept: Path, tmp_path: Path) -> None:
    folder = copied(swept, tmp_path)
    view = Silent()
    sweep(folder / "tiny.yaml", ["method=solo,fedavg", "seed=0,1,2"], folder / "out", view)
    assert [name for name, _, _ in view.started] == ["tiny method=solo seed=2", "tiny method=fedavg seed=2"]
    recipe(folder, local={"lr": 0.01})
    view = Silent()
    sweep(folder / "tiny.yaml", ["method=solo", "seed=0"], folder / "out", view)
    assert [name for name, _, _ in view.started] == ["tiny"] and len(cells(folder / "out")) == 7
    view = Silent()
    sweep(folder / "tiny.yaml", ["method=solo", "seed=0", "engine.checkpoint_every=3"], folder / "out", view)
    assert view.started == []  # a setting that the result does not depend on


def test_a_last_line_that_was_cut_off_is_run_again(swept: Path, tmp_path: Path) -> None:
    folder = copied(swept, tmp_path)
    path = folder / "out" / "cells.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    view = Silent()
    sweep(folder / "tiny.yaml", ["method=solo,fedavg", "seed=0,1"], folder / "out", view)
    assert [name for name, _, _ in view.started] == ["tiny method=fedavg seed=1"]
    again = cells(folder / "out")
    assert [c["hash"] for c in again] == [c["hash"] for c in cells(swept / "out")]
    assert [c["figures"] for c in again] == [c["figures"] for c in cells(swept / "out")]


@pytest.mark.parametrize("damage", [lambda line: line[:-9], lambda line: line.replace('"seed": 1', '"seed": 2')])
def test_a_line_that_is_damaged_is_named(swept: Path, tmp_path: Path, damage: Callable[[str], str]) -> None:
    path = tmp_path / "cells.jsonl"
    lines = (swept / "out" / "cells.jsonl").read_text().splitlines()
    path.write_text("\n".join([lines[0], damage(lines[1]), lines[2], ""]))
    with pytest.raises(DataError) as error:
        read_cells(path)
    assert error.value.where == f"{path}, line 2"


def test_a_cell_that_broke_off_goes_on(tmp_path: Path) -> None:
    path = tinyruns.write(tmp_path / "tiny.yaml")
    with pytest.raises(Stop):
        sweep(path, ["seed=0,1"], tmp_path / "out", Stops())
    view = Silent()
    sweep(path, ["seed=0,1"], tmp_path / "out", view)
    assert view.started == [("tiny seed=0", 2, 1), ("tiny seed=1", 2, 0)]


def test_settings_judged_on_other_pairs_are_not_compared(tmp_path: Path) -> None:
    text = sweep(recipe(tmp_path), ["evaluation.pairs.unseen.pairs=20,18"], tmp_path / "out", Silent())
    assert rows(text)[-1] == ["evaluation.pairs.unseen.pairs=18", "unseen", "", "", "evaluated on other pairs"]


def test_each_kind_of_start_has_a_row_by_its_own_name(tmp_path: Path) -> None:
    start = "{method: centralized, rounds: 1}"
    text = sweep(recipe(tmp_path), [f"pretrain={start}", "seed=0"], tmp_path / "one", Silent())
    assert [row[0] for row in rows(text)[2:3]] == ["pre-trained"] and "untrained" not in text
    mixed = sweep(recipe(tmp_path), [f"pretrain=null,{start}", "seed=0"], tmp_path / "two", Silent())
    assert [row[0] for row in rows(mixed)[2:4]] == ["untrained", "pre-trained"]


def test_cells_that_start_from_another_pretrained_model_are_named_beneath_the_table(tmp_path: Path) -> None:
    swept, out = ["pretrain={method: centralized, rounds: 1}", "local.lr=0.1,0.2", "seed=0"], tmp_path / "out"
    assert "Not from one model" not in sweep(recipe(tmp_path), swept, out, Silent())
    first, second = cells(out)
    for figure in first["untrained"]["unseen"]:
        first["untrained"]["unseen"][figure] += 3.0
    del first["sha256"]
    (out / "cells.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (first, second)), encoding="utf-8")
    assert "**Not from one model:**" in sweep(recipe(tmp_path), swept, out, Silent())


def test_cells_by_code_that_was_changed_since_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_method.method(tmp_path, monkeypatch)
    path, out, source, view = recipe(tmp_path, method="damped"), tmp_path / "out", tmp_path / "damped.py", Silent()
    assert "Not by one code" not in sweep(path, ["seed=0,1"], out, view)
    sweep(path, ["seed=0,1"], out, view)
    assert not any("the code of methods" in note for note in view.notes)

    source.write_text(source.read_text() + "\n# changed\n")
    assert "cell 2 of 3: seed=1: done, " in (text := plan_text(plan(path, ["seed=0,1,2"], out), out))
    assert text.count("by other code than is here now") == 2
    mixed = sweep(path, ["seed=0,1,2"], out, view)
    (note,) = [note for note in view.notes if "the code of methods (damped) is another now" in note]
    assert "these cells: seed=0; seed=1. They" in note and f"delete their lines in {out / 'cells.jsonl'}" in note
    assert "**Not by one code:**" in mixed and "\n\n- seed=0: damped\n- seed=1: damped\n\n" in mixed
    assert "Not by one code" in (out / "table.md").read_text() and "Not by one code" in (out / "sweep.html").read_text()

    lines = (out / "cells.jsonl").read_text().splitlines(keepends=True)
    (out / "cells.jsonl").write_text(lines[2])  # as it says
    again = Silent()
    assert "Not by one code" not in sweep(path, ["seed=0,1,2"], out, again)
    assert len(again.started) == 2 and not any("the code of methods" in note for note in again.notes)


def test_run_folders_are_kept_where_asked(tmp_path: Path) -> None:
    sweep(recipe(tmp_path), ["seed=0,1"], tmp_path / "out", Silent(), keep_runs=True)
    folders = sorted((tmp_path / "out" / "runs").iterdir())
    assert len(folders) == 2 and all((folder / "report.html").exists() for folder in folders)
    assert {json.loads((folder / "summary.json").read_text())["name"] for folder in folders} == {
        "tiny seed=0",
        "tiny seed=1",
    }


def test_a_cell_that_fails_does_not_stop_the_others_and_is_tried_again_last(tmp_path: Path) -> None:
    path, out, view = tinyruns.write(tmp_path / "tiny.yaml"), tmp_path / "out", Silent()
    changes = ["local.lr=1000000000,0.02", "seed=0,1"]
    with pytest.raises(RunFailed) as failed:
        sweep(path, changes, out, view)
    assert [cell["cell"] for cell in cells(out)] == [{"local.lr": 0.02, "seed": s} for s in (0, 1)]
    assert "cell 1 of 4 failed: 16 of 16 embeddings are not finite" in " ".join(view.notes)
    text = str(failed.value)
    assert text.startswith("2 of 4 cells failed; the same command tries them again\n")
    assert "- lr=1000000000 seed=0: failed: 16 of 16 embeddings are not finite" in text
    assert (out / "table.md").read_text() in text
    assert [row[0::3][:2] for row in rows(text)[3:5]] == [["local.lr=1000000000", "0 of 2"], ["local.lr=0.02", "2"]]
    assert "Differences" not in text
    again = Silent()
    with pytest.raises(RunFailed):
        sweep(path, [changes[0], "seed=0,2"], out, again)
    started = [note for note in again.notes if note.startswith("cell") and "failed" not in note]
    assert started == [
        f"cell {n}" for n in ("2 of 4: lr=1000000000 seed=2", "4 of 4: lr=0.02 seed=2", "1 of 4: lr=1000000000 seed=0")
    ]
    sound = Silent()
    sweep(path, ["local.lr=0.02", "seed=0,1"], out, sound)  # failures of cells that were not asked for are no matter
    assert sound.started == []


def test_a_failed_cell_that_comes_through_is_no_failure_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = recipe(tmp_path), tmp_path / "out"

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EFBIG, "File too large")

    with monkeypatch.context() as broken:
        broken.setattr(sweeping.experiment, "run", fails)
        with pytest.raises(RunFailed, match=r"2 of 2 cells failed[^|]*\| setting") as failed:
            sweep(path, ["seed=0,1"], out, Silent())
    assert "- seed=1: failed: File too large, in the output or a file without a name. Make room" in str(failed.value)
    assert not (out / "cells.jsonl").exists() and len(json.loads((out / "failed.json").read_text())) == 2
    sweep(path, ["seed=0,1"], out, Silent())
    assert len(cells(out)) == 2 and json.loads((out / "failed.json").read_text()) == {}
    assert "failed" not in (out / "table.md").read_text()
    (out / "failed.json").write_text('{"a": ')  # damaged, it holds up nothing
    sweep(path, ["seed=0,1"], out, Silent())
    assert len(cells(out)) == 2


@pytest.mark.parametrize("behind", [False, True], ids=["told", "behind another error"])
def test_a_disk_that_takes_nothing_more_ends_the_sweep_which_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    path, out, runs = recipe(tmp_path), tmp_path / "out", sweeping.experiment.run

    def full(recipe: Any, *arguments: Any, **options: Any) -> None:
        if recipe.seed == 0:
            runs(recipe, *arguments, **options)
            return
        refused = OSError(errno.ENOSPC, "No space left on device", "/disk/x")
        if behind:
            raise RunFailed("silo-00, step train: no") from refused
        raise refused

    with monkeypatch.context() as filled:
        filled.setattr(sweeping.experiment, "run", full)
        view = Silent()
        with pytest.raises(OSError) as caught:
            sweep(path, ["seed=0,1,2"], out, view)
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == "/disk/x"
    assert len(cells(out)) == 1 and not (out / "failed.json").exists()
    assert [note for note in view.notes if "of 3" in note] == ["cell 1 of 3: seed=0", "cell 2 of 3: seed=1"]
    sweep(path, ["seed=0,1,2"], out, Silent())
    assert len(cells(out)) == 3


def test_a_mean_over_fewer_seeds_says_so(swept: Path, tmp_path: Path) -> None:
    finished = read_cells(swept / "out" / "cells.jsonl")
    every = grid(swept / "tiny.yaml", ["method=solo,fedavg", "seed=0,1"])
    missing = every[3].recipe.digest()
    text, whole, _ = sweeping.table(
        every, {k: v for k, v in finished.items() if k != missing}, (), {missing: "it broke"}
    )
    assert whole and [row[0::3][:2] for row in rows(text)[3:5]] == [["method=solo", "2"], ["method=fedavg", "1 of 2"]]
    assert "- method=fedavg seed=1: failed: it broke\n" in text and "Differences to method=solo" in text
    solo = {k: v for k, v in finished.items() if v["cell"]["method"] == "fedavg"}
    assert "Differences" not in sweeping.table(every, solo, ["method=solo"])[0]


def test_a_table_needs_the_cells_file_alone_and_overwrites_no_fuller_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tinyruns.picture_folders(tmp_path / "data" / "faces", [f"p{i}" for i in range(12)])
    path, out = recipe(tmp_path, data={"faces": {"kind": "folder", "path": "faces"}}), tmp_path / "out"
    monkeypatch.setenv("COALFACE_DATA", str(tmp_path / "data"))
    sweep(path, ["method=solo,fedavg"], out, Silent())
    full = (out / "table.md").read_text()
    monkeypatch.delenv("COALFACE_DATA")
    text = sweep(path, ["method=solo,fedavg"], out, Silent())
    assert text.startswith(full.partition("\n\nDifferences")[0])
    assert "Differences are left out: their pair lists cannot be made here" in text and "COALFACE_DATA" in text
    assert (out / "table.md").read_text() == full and "(left as it was)" in text
    (out / "table.md").unlink()
    sweep(path, ["method=solo,fedavg"], out, Silent())
    assert "Differences are left out" in (out / "table.md").read_text()


def test_final_losses_are_smoothed_over_steps_and_averaged_over_runs(swept: Path) -> None:
    """Of two rounds of 100 or unknown many steps each; here one round, so it is the round's loss."""
    losses = {(c["cell"]["method"], c["cell"]["seed"]): c["losses"] for c in cells(swept / "out")}
    text = sweep(swept / "tiny.yaml", ["method=solo,fedavg", "seed=0,1"], swept / "out", Silent())
    table = text.partition("Final training loss")[2]
    row = next(line for line in table.splitlines() if line.startswith("| method=solo"))
    for place, party in enumerate(["silo-00", "silo-01"], start=2):
        by_seed = [losses["solo", seed][party] for seed in (0, 1)]
        assert row.split("|")[place].strip() == f"{np.mean(by_seed):.2f} ± {np.std(by_seed, ddof=1):.2f}"
    records = [{"losses": {"a": 4.0, "b": 1.0}}, {"losses": {"a": 2.0}}]
    smoothed = sweeping._smoothed(records, tinyruns.tiny(local={"steps_per_round": 50}))
    keep = 0.99**50
    assert smoothed == {"a": pytest.approx(keep * 4 + (1 - keep) * 2), "b": 1.0}
    assert sweeping._smoothed(records, tinyruns.tiny(privacy={"dp": {}})) == {}  # no noise is on them
