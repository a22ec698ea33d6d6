from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import naive
import pytest
import tinyruns
import torch
import yaml
from safetensors.torch import load_file
from tinyruns import Normed, Silent, Stop, Stops, model_bytes, tiny

from coalface import models
from coalface.core.errors import DataError, RecipeError
from coalface.core.parsing import parse_yaml
from coalface.engine.processes import wait_for_workers
from coalface.engine.transport import RunFailed
from coalface.experiments import run as experiment
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader
from coalface.experiments.summary import MOST_CLASS_EMBEDDINGS, class_embeddings
from coalface.models.groups import Backbone
from coalface.training.local_training import Learner


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def test_its_config_makes_the_same_model_again_bit_for_bit(fedavg_run: Path, tmp_path: Path) -> None:
    kept = fedavg_run / "config.yaml"
    again = experiment.run(loader.load(kept), tmp_path / "again", Silent())
    assert model_bytes(again) == model_bytes(fedavg_run)
    for name in ("config.yaml", "metrics.jsonl", "ledger/silo-00.jsonl", "evidence.json"):
        assert (again / name).read_bytes() == (fedavg_run / name).read_bytes(), name
    other = experiment.run(loader.load(kept, ["seed=1"]), tmp_path / "other", Silent())
    assert model_bytes(other) != model_bytes(fedavg_run)


@pytest.mark.slow
@pytest.mark.ci
def test_workers_change_no_bit(fedavg_run: Path, tmp_path: Path) -> None:
    out = experiment.run(loader.load(fedavg_run / "config.yaml", ["engine.workers=2"]), tmp_path / "two", Silent())
    assert model_bytes(out) == model_bytes(fedavg_run)
    assert (out / "metrics.jsonl").read_bytes() == (fedavg_run / "metrics.jsonl").read_bytes()


def test_a_run_folder_holds_what_the_pages_promise(fedavg_run: Path) -> None:
    names = {path.name for path in fedavg_run.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "summary.json", "trained_on.npz", "ledger", "model", "report.html"} <= names
    assert {"evidence.json", "events.jsonl", "judged", "checkpoints", "parties"} <= names
    assert not list(fedavg_run.glob("*.new"))
    found = summary(fedavg_run)
    assert found["figures"].keys() == found["untrained"].keys() == found["curves"].keys() == {"unseen"}
    (first, second) = found["parties"]
    assert (first["name"], first["role"], first["identities"], first["images"]) == ("silo-00", "trainer", 4, 16)
    assert (first["rounds"], first["failed"]) == (2, 0) and first["last_loss"] > 0
    assert found["bytes"]["up"] == first["bytes_up"] + second["bytes_up"]
    assert found["seconds"]["total"] >= found["seconds"]["training"] > 0


def test_the_class_embeddings_of_pooled_training_are_in_the_summary(tmp_path: Path) -> None:
    """As those that a server knows are; of many for which all pairs would take long, the first."""
    out = experiment.run(tiny(method="centralized"), tmp_path / "run", Silent(), report=False)
    head = naive.kept(out, "pooled", Learner).head
    cosines = torch.nn.functional.cosine_similarity(head[:, None], head[None], dim=2)
    above = cosines[torch.ones_like(cosines).triu(1).bool()]
    found = summary(out)["class_embeddings"]
    assert found["count"] == len(head) == 8 and sum(found["pairs"]) == len(above)
    assert found["mean"] == pytest.approx(above.mean().item(), abs=1e-6)
    assert found["percentiles"]["50"] == pytest.approx(above.median().item(), abs=0.0051)
    most = torch.zeros(MOST_CLASS_EMBEDDINGS + 5, 1) + 1
    assert class_embeddings(most)["count"] == MOST_CLASS_EMBEDDINGS


def test_the_ledger_in_the_summary_is_that_of_the_files(fedavg_run: Path) -> None:
    found, lines = summary(fedavg_run)["ledger"], []
    for path in (fedavg_run / "ledger").glob("*.jsonl"):
        mine = [json.loads(line) for line in path.read_text().splitlines()]
        assert found["head"][path.stem] == mine[-1]["chain"]
        lines += mine
    assert found["lines"] == len(lines) == sum(tensor["count"] for tensor in found["tensors"])
    assert found["bytes"] == sum(line["bytes"] for line in lines) == summary(fedavg_run)["bytes"]["up"]


def test_the_card_says_what_the_model_is(fedavg_run: Path) -> None:
    card = (fedavg_run / "model" / "README.md").read_text(encoding="utf-8")
    accuracy = summary(fedavg_run)["figures"]["unseen"]["accuracy"]
    assert card.startswith("# tiny-fedavg\n") and "an update tells of the images" in card
    for line in (
        "- method: fedavg, 2 rounds, seed 0",
        "- backbone: cnn-small, 32×32 grey",
        "- pixels: (x − 127.5) / 127.5; compare embeddings by cosine",
        "- data: synthetic; equal, 2 parties",
        f"| unseen | accuracy | {accuracy:.2f} % |",
    ):
        assert line in card


def test_a_folder_that_holds_a_run_is_left_alone(fedavg_run: Path) -> None:
    before = (fedavg_run / "config.yaml").read_bytes()
    with pytest.raises(RecipeError) as error:
        experiment.run(tiny(), fedavg_run, Silent())
    assert error.value.where == str(fedavg_run)
    assert (fedavg_run / "config.yaml").read_bytes() == before


def test_a_finished_run_is_evaluated_again_and_comes_out_the_same(fedavg_run: Path, tmp_path: Path) -> None:
    copy, view = tmp_path / "copy", Silent()
    shutil.copytree(fedavg_run, copy)
    shutil.rmtree(copy / "model")
    (copy / "report.html").unlink()
    experiment.resume(copy, view)
    assert view.started == [("tiny-fedavg", 2, 2)] and view.rounds == []
    assert any("finished already" in note for note in view.notes)
    with pytest.raises(RecipeError, match="model.weights="):
        experiment.resume(copy, Silent(), ("rounds=3",))
    assert model_bytes(copy) == model_bytes(fedavg_run)
    assert (copy / "metrics.jsonl").read_bytes() == (fedavg_run / "metrics.jsonl").read_bytes()
    first, again = summary(fedavg_run), summary(copy)
    assert again["figures"] == first["figures"] and again["bytes"] == first["bytes"]
    assert 0 < again["seconds"]["training"] <= first["seconds"]["training"]
    assert again["seconds"]["total"] > again["seconds"]["training"]
    assert (copy / "report.html").exists()


def test_a_run_that_broke_off_goes_on_to_the_same_bytes(fedavg_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "broken"
    with pytest.raises(Stop):
        experiment.run(tiny(name="tiny-fedavg"), out, Stops())
    assert not (out / "summary.json").exists()
    view = Silent()
    experiment.resume(out, view)
    assert view.started == [("tiny-fedavg", 2, 1)] and [r["round"] for r in view.rounds] == [2]
    assert model_bytes(out) == model_bytes(fedavg_run)
    assert (out / "metrics.jsonl").read_bytes() == (fedavg_run / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("changes", [("local.lr=0.5",), ("name=x",), ("engine.update_dtype=int8",)])
def test_a_resume_that_would_change_the_result_is_refused(fedavg_run: Path, changes: tuple[str, ...]) -> None:
    with pytest.raises(RecipeError) as error:
        experiment.resume(fedavg_run, Silent(), changes)
    assert error.value.where == changes[0].partition("=")[0]


CORRUPT: dict[str, Any] = {"rounds": 4, "faults": {"corrupt": {"silo-00": "nan"}}}


def test_a_resume_may_lower_the_quorum_and_the_folder_says_so(tmp_path: Path) -> None:
    out, engine = tmp_path / "run", {"min_reply_fraction": 1.0, "max_abandoned_rounds": 2}
    with pytest.raises(RunFailed, match=r"2 rounds in a row.*resume with a lower engine.min_reply_fraction"):
        tinyruns.run(out, **CORRUPT, engine=engine)
    before = yaml.safe_load((out / "config.yaml").read_text())
    experiment.resume(out, Silent(), ("engine.min_reply_fraction=0.5", "engine.max_in_flight=3"))
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [r["abandoned"] for r in records] == [True, True, False, False]
    after = yaml.safe_load((out / "config.yaml").read_text())
    assert after == {**before, "engine": {**before["engine"], "min_reply_fraction": 0.5}}
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    events = [e for e in events if e["event"] in ("round", "adjusted")]
    assert [e["event"] for e in events] == ["round", "round", "adjusted", "round", "round"]
    assert events[2] == {"event": "adjusted", "engine.min_reply_fraction": {"from": 1.0, "to": 0.5}}
    assert "report" in (out / "report.html").read_text(encoding="utf-8")
    with pytest.raises(RecipeError) as error:
        experiment.resume(out, Silent(), ("engine.max_abandoned_rounds=9",))
    assert error.value.where == "engine.max_abandoned_rounds" and "is finished" in str(error.value)
    assert yaml.safe_load((out / "config.yaml").read_text()) == after


def test_solo_leaves_one_model_per_party(solo_run: Path) -> None:
    left = model_bytes(solo_run)
    assert list(left) == ["parties/silo-00.safetensors", "parties/silo-01.safetensors"]
    assert len(set(left.values())) == 2
    card = (solo_run / "model" / "README.md").read_text(encoding="utf-8")
    assert "One model per party, in `parties/`" in card
    assert "updates left" not in card
    found = summary(solo_run)
    each = [party["judged"]["unseen"]["accuracy"] for party in found["parties"]]
    assert found["figures"]["unseen"]["accuracy"] == pytest.approx(sum(each) / 2)
    assert len(json.loads((solo_run / "evidence.json").read_text())["unseen"]) == 2
    assert found["bytes"]["up"] < 1000  # progress numbers alone


def test_local_batchnorm_leaves_models_that_differ_in_batchnorm_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(models.BACKBONES.own, "normed", Normed)
    out = tinyruns.run(tmp_path / "run", model={"name": "normed", "batchnorm": "local"})
    one, other = (load_file(out / "model" / "parties" / f"silo-{i:02d}.safetensors") for i in (0, 1))
    differ = {name for name in one if not one[name].equal(other[name])}
    norms = {name for name in one if name.startswith("norm.")}
    assert {"norm.running_mean", "norm.running_var", "norm.weight", "norm.bias"} <= norms
    assert differ == norms - {"norm.num_batches_tracked"}
    sent = {line["name"] for line in summary(out)["ledger"]["tensors"]}
    assert "backbone/conv.weight" in sent and not [name for name in sent if "norm" in name]
    network = Backbone(Normed(32, 1))
    network.load(one)  # a model file alone is a whole network


def test_a_run_without_lists_says_that_nothing_is_evaluated(tmp_path: Path) -> None:
    view = Silent()
    tree = {**tiny(rounds=1).model_dump(mode="json"), "evaluation": {}}
    out = experiment.run(loader.parse(tree), tmp_path / "run", view)
    assert any(preflight.nothing_evaluated(loader.parse(tree)) in note for note in view.notes)
    assert "data.hold_out=20" in preflight.nothing_evaluated(
        loader.parse(loader.merged(tree, {"data": {"hold_out": 0}}))
    )
    held_out = preflight.nothing_evaluated(loader.parse(loader.merged(tree, {"data": {"hold_out": 4}})))
    assert held_out.startswith("data.hold_out: ")
    shown = held_out[held_out.index("evaluation: {pairs") :]  # it can be pasted
    assert loader.parse(loader.merged(tree, parse_yaml(shown))).evaluation.pairs["unseen"].pairs == 300
    of_clients = Silent()  # its own people are evaluated all the same
    experiment.run(loader.parse(loader.merged(tree, {"data": {"test": {"images": 1}}})), tmp_path / "own", of_clients)
    assert not any("evaluation: {pairs" in note for note in of_clients.notes)
    assert summary(out)["figures"] == {}
    assert "This run has not been evaluated yet." in (out / "report.html").read_text(encoding="utf-8")


def test_two_named_data_sets_federate_end_to_end(tmp_path: Path) -> None:
    parts = {name: {"kind": "synthetic", "identities": 4, "images": 4, "seed": seed} for seed, name in enumerate("ab")}
    source = {"kind": "joined", "parts": parts}
    lists = {"unseen": {"source": {"kind": "synthetic", "identities": 4, "images": 4, "first": 4}}}
    data = {"faces": source, "hold_out": 0, "partition": {"kind": "by-domain"}}
    out = tinyruns.run(tmp_path / "run", data=data, evaluation={"pairs": lists}, rounds=1)
    assert [party["name"] for party in summary(out)["parties"]] == ["a", "b"]
    assert "- data: joined a b; by-domain, 2 parties" in (out / "model" / "README.md").read_text(encoding="utf-8")
    assert yaml.safe_load((out / "config.yaml").read_text())["data"]["faces"]["parts"]["b"]["seed"] == 1


def test_a_run_in_which_no_round_counts_fails(tmp_path: Path) -> None:
    changes = {"faults": {"dropout": 1.0}}
    with pytest.raises(RunFailed, match="no round was accepted.*most often, dropped out"):
        experiment.run(tiny(**changes), tmp_path / "run", Silent())


def test_one_process_at_a_time_is_at_a_run_folder(tmp_path: Path) -> None:
    out = tinyruns.run(tmp_path / "run")
    with open(out / "run.lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RecipeError, match="another process") as error:
            experiment.resume(out, Silent())
        assert error.value.where == str(out)


@pytest.mark.slow
@pytest.mark.ci
def test_workers_end_with_a_killed_run_and_a_resume_with_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"rounds": 40, "engine": {"threads": 1, "workers": 2, "checkpoint_every": 3}}
    unbroken = tinyruns.run(tmp_path / "unbroken", **changes)
    recipe, out = tinyruns.write(tmp_path / "tiny.yaml", **changes), tmp_path / "broken"
    command = [
        sys.executable,
        "-c",
        "from coalface.cli.main import main; main()",
        "run",
        str(recipe),
        "--out",
        str(out),
    ]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    metrics = out / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 5:
        assert started.poll() is None, "the run ended before it could be killed"
        time.sleep(0.02)
    started.kill()  # the parent alone: its workers must see to their own end
    started.wait()
    wait_for_workers(out, patience=10)
    experiment.resume(out, Silent())
    ledgers = [f"ledger/{path.name}" for path in sorted((unbroken / "ledger").iterdir())]
    assert len(ledgers) == 2
    for name in ("metrics.jsonl", "model/backbone.safetensors", *ledgers):
        assert (out / name).read_bytes() == (unbroken / name).read_bytes(), name


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for place in (out, out / "notes.txt"):
        with pytest.raises(RecipeError) as error:
            experiment.run(tiny(), place, Silent())
        assert error.value.where == str(place)
    assert [p.name for p in out.iterdir()] == ["notes.txt"] and (out / "notes.txt").read_text() == "mine"
    (out / "notes.txt").rename(out / "config.yaml.new")  # left by a run that was killed as it began
    experiment.run(tiny(rounds=1), out, Silent())
    assert (out / "summary.json").exists()


@pytest.mark.parametrize("place", ["file/run", "/proc/run"])
def test_where_no_folder_can_be_made_is_said(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError) as error:
        experiment.run(tiny(), tmp_path / place, Silent())
    assert error.value.where == str(tmp_path / place)
