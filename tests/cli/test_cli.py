from __future__ import annotations

import gc
import json
import operator
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import typer
from commands import outputs, refused, said

from coalface.cli import main
from coalface.cli.console import importing
from coalface.data.readers.pack import read_pack
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.methods import METHODS


def test_methods_are_a_line_each_and_one_in_detail() -> None:
    by_name = {row["method"]: row for row in json.loads(said("methods", "--json"))}
    assert list(by_name) == list(METHODS)
    assert by_name["fedavg"]["leaves a party"] == "backbone (weight), images (count), loss (score)"
    assert (
        by_name["solo"]["leaves a party"] == "images (count), loss (score)"
        and by_name["centralized"]["setting"] == "pooled"
    )
    lines = said("methods").splitlines()
    assert [line.split()[0] for line in lines[: len(METHODS)]] == list(METHODS) and max(map(len, lines)) <= 80
    detail = said("methods", "fedprox")
    assert "methods.fedprox.mu=0.01" in detail and "Li et al. 2020" in detail
    assert "One of: reset, keep, none." in detail
    assert by_name["fedavg"]["known as"] == "fedpav, fedper, fedbn with model.batchnorm=local"
    assert "known as" not in by_name["fedprox"]


def test_the_wire_as_text_and_as_json() -> None:
    messages = json.loads(said("messages", "fedavg", "--json"))
    up = {s["field"]: s for s in messages["sent"] if s["direction"] == "up"}
    assert up["backbone"]["bytes"] == 4 * 310_768  # parameters of cnn-small at 64×64
    assert any(field.startswith("Learner.head") for field in messages["stays"])
    text = said("messages", "fedavg")
    assert "1,243,072" in text and "stays at the party: Learner.head" in text


@pytest.mark.parametrize("method", METHODS)
def test_the_wire_of_every_method_is_shown_without_a_recipe(method: str) -> None:
    assert re.search(r"^one .+, both ways: ", said("messages", method), re.MULTILINE)


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    path = tinyruns.write(tmp_path / "tiny.yaml")
    text = said("run", path, "method=fedprox", "--workers", "2", "--dry-run", "--out", tmp_path / "out")
    assert text.startswith("tiny: fedprox over 2 parties, 2 rounds, seed 0") and "2 processes of 1 thread" in text
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


def test_run_then_resume(tmp_path: Path) -> None:
    path, out = tinyruns.write(tmp_path / "tiny.yaml"), tmp_path / "out"
    text = said("run", path, "rounds=1", "--out", out)
    assert "round 1/1" in text and f"report: {out / 'report.html'}" in text
    assert loader.load(out / "config.yaml").rounds == 1
    assert "resumed after 1" in said("resume", out)
    assert json.loads(said("resume", out, "--workers", 1, "--json"))["rounds"] == 1
    assert said("resume", out, "--quiet") == f"report: {out / 'report.html'}\n"


def test_compare_as_text_json_and_page(fedavg_run: Path, solo_run: Path, tmp_path: Path) -> None:
    compared = json.loads(said("compare", fedavg_run, solo_run, "--json"))
    assert [run["method"] for run in compared["runs"]] == ["fedavg", "solo"]
    against = compared["runs"][1]["against_first"]["unseen/accuracy"]
    assert against["low"] < against["high"] and against["verdict"] in ("decided", "undecided")
    text = said("compare", fedavg_run, solo_run, "--report", tmp_path / "page.html")
    assert max(map(len, text.splitlines())) <= 80 and "In brackets" in text
    assert re.search(r"[+−]\d+\.\d\d \[[+−]\d+\.\d\d, [+−]\d+\.\d\d\]", text)
    assert "solo" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_sweep_prints_its_table_for_a_recipe_and_for_a_file_of_grids(tmp_path: Path) -> None:
    path, out = tinyruns.write(tmp_path / "tiny.yaml", rounds=1), tmp_path / "out"
    baselines = ["--baseline", "method=solo", "--baseline", "method=fedavg"]
    text = said("sweep", path, "method=solo,fedavg,fedprox", *baselines, "--out", out, "--quiet")
    assert text.startswith("| setting ") and f"cells: {out / 'cells.jsonl'}" in text
    assert "\nDifferences to method=solo:\n" in text and "\nDifferences to method=fedavg:\n" in text
    (tmp_path / "grids.yaml").write_text("recipe: tiny.yaml\ngrids: [{method: [solo, fedavg]}]\n")
    text = said("sweep", tmp_path / "grids.yaml", "--out", tmp_path / "other", "--quiet")
    assert "Differences to method=solo" in text and "| method=fedavg" in text


def test_data_pack_and_sheet(tmp_path: Path) -> None:
    pictures = tinyruns.picture_folders(tmp_path / "faces", ["Ann", "Bob"])
    text = said("data", "pack", pictures, tmp_path / "faces.pack", "--size", 16, "--grey")
    assert f"{tmp_path / 'faces.pack'}: 8 images of 2 identities, 16×16" in text
    assert read_pack(tmp_path / "faces.pack", verify=True).names == ("Ann", "Bob")
    assert said("data", "preview", tmp_path / "preview.png", "--seed", 3) == f"wrote {tmp_path / 'preview.png'}\n"
    assert (tmp_path / "preview.png").read_bytes().startswith(b"\x89PNG")


def test_a_defect_takes_one_line_and_with_debug_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(experiment, "run", operator.itemgetter("a defect"))  # no frame of another's code
    path = tinyruns.write(tmp_path / "tiny.yaml")
    assert "--debug" in refused(capsys, monkeypatch, "run", path, "--quiet")
    for words in (["--debug", "run", str(path)], ["run", str(path), "--debug"]):
        monkeypatch.setattr(sys, "argv", ["coalface", *words])
        with pytest.raises(SystemExit, match="1"):
            main.main()
        assert "Traceback" in capsys.readouterr().err


def test_the_version_names_torch_and_the_device() -> None:
    text = said("--version")
    assert re.match(r"coalface \d\S+\ntorch \d\S+, ", text) and text.count("torch") == 1


def test_a_command_that_is_to_be_typed_has_its_path_in_quotes(
    fedavg_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(fedavg_run, tmp_path / "my runs; and $HOME")
    text = refused(capsys, monkeypatch, "run", tinyruns.write(tmp_path / "tiny.yaml"), "--out", out)
    typed = re.findall(r"`([^`]*)`", text)
    assert [shlex.split(command) for command in typed] == [["coalface", "resume", str(out)]]
    (out / "summary.json").unlink()
    typed = re.findall(r"`([^`]*)`", " ".join(said("status", out).split()))
    assert [shlex.split(command) for command in typed] == [["coalface", "resume", str(out)]]


def test_too_little_memory_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def greedy(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 20.0 GiB")

    monkeypatch.setattr("coalface.data.stores.open_store", greedy)
    assert "Unable to allocate 20.0 GiB" in refused(capsys, monkeypatch, "data", "inspect", "faces")


def test_a_run_goes_back_to_an_accepted_checkpoint_and_comes_to_the_same_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stops(tinyruns.Silent):
        def round(self, record: dict[str, object]) -> None:
            if record["round"] == 3:
                raise KeyboardInterrupt

    out, threads = tmp_path / "out", {"workers": 1, "threads": 1}
    whole = tinyruns.run(tmp_path / "whole", rounds=4, engine=threads)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(tinyruns.tiny(rounds=4, engine=threads), out, Stops())
    says = refused(capsys, monkeypatch, "resume", out, "--from-round", 1)
    assert "--from-round: " in says and "checkpoints after round 2, 3" in says
    assert "resumed after 2" in said("resume", out, "--from-round", 2, "engine.max_update_norm=3")
    assert (out / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert tinyruns.model_bytes(out) == tinyruns.model_bytes(whole)
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert {"event": "adjusted", "from_round": 2} in events
    assert json.loads((out / "summary.json").read_text())["ledger"]["checked"]["faults"] == {}
    assert "is finished" in refused(capsys, monkeypatch, "resume", out, "--from-round", 3)


@pytest.mark.parametrize(
    "words",
    [
        "data pack faces one.pack",
        "data convert faces copy --to folder",
        "cache clear",
        "run tiny.yaml --dry-run",
        "sweep tiny.yaml seed=0,1 --dry-run",
    ],
)
def test_a_result_is_json_for_programs(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    tinyruns.picture_folders(tmp_path / "faces", ["Ann", "Bob"])
    tinyruns.write(tmp_path / "tiny.yaml")
    assert json.loads(said(*words.split(), "--json"))


def test_every_command_with_a_result_has_json() -> None:
    """Others write files, end something, or print text that is the result, such as a log."""
    texts = "new method", "resume", "report", "data preview", "provision make", "provision rotate", "party rekey"

    def walk(group: Any, words: str) -> Iterator[tuple[str, set[str]]]:
        for name, command in getattr(group, "commands", {}).items():
            options = {option for parameter in command.params for option in parameter.opts}
            if not command.hidden:
                yield from (
                    walk(command, f"{words} {name}") if hasattr(command, "commands") else [(f"{words} {name}", options)]
                )

    lacking = {
        words.strip() for words, options in walk(typer.main.get_command(main.app), "") if "--json" not in options
    }
    assert lacking <= {*texts, "up", "logs", "import-config", "flower new"}


def test_what_needs_no_torch_does_not_wait_for_it() -> None:
    for words in (["--help"], ["runn"], ["data", "pack", "none", "x"], ["cache", "--json"]):
        code = f"import sys; sys.argv = ['coalface', *{words}]; from coalface.cli import main\ntry: main.main()\n"
        code += "except SystemExit: sys.exit('torch' in sys.modules)"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert ran.returncode == 0, (words, ran.stderr)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("me", {"megaface", "methods", "messages"}),
        ("run synthetic/si", {"synthetic/silos"}),
        ("run x.yaml local.lr_milestone_", {"local.lr_milestone_shares="}),
        ("run x.yaml method=fedp", {"method=fedprox"}),
        ("methods scaff", {"scaffold"}),
    ],
)
def test_a_shell_completes_commands_recipes_keys_and_methods(
    words: str, completed: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = {"COMP_WORDS": f"coalface {words}", "COMP_CWORD": str(len(words.split()))}
    for variable, value in {"_COALFACE_COMPLETE": "complete_bash", **shell}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "argv", ["coalface"])
    with pytest.raises(SystemExit):
        main.main()
    assert set(capsys.readouterr().out.split()) == completed


def test_an_evaluation_computes_the_figures_that_the_run_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gap_of_scores.py").write_text(
        "import coalface as cf\nclass Gap(cf.PairFigure):\n    figure = cf.Figure('gap', unit=cf.COSINE)\n"
        "    def compute(self, scores, same):\n        return scores[same].mean() - scores[~same].mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    evaluation = {**tinyruns.tiny().resolved()["evaluation"], "figures": ["gap_of_scores:Gap"]}
    out, faces = tinyruns.run(tmp_path / "out", evaluation=evaluation), tmp_path / "faces"
    tinyruns.picture_folders(faces, [f"P{n}" for n in range(4)])
    evaluated = json.loads(said("evaluate", out, "--on", faces, "--quiet", "--json"))
    assert -2 < evaluated["gap"] < 2
    (tmp_path / "gap_of_scores.py").unlink()
    monkeypatch.delitem(sys.modules, "gap_of_scores")
    printed, notes = outputs("evaluate", out, "--on", faces, "--quiet", "--json")
    assert "gap" not in json.loads(printed) and "gap_of_scores:Gap" in notes


def test_garbage_is_collected_again_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), importing():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "coalface.cli.main", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "Usage: coalface" in done.stdout
