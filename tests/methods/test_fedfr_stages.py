"""FedFR for domain adaptation stage by stage: who labels when, who chooses the threshold, and what is sent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import naive
import numpy as np
import pytest
import torch
from naive_unlabelled import TAU, WORK, WORLD, Client, heard, made, metrics, naive_cfinch
from numpy.typing import NDArray
from torch.nn import functional as F

from coalface.core import codec
from coalface.data.augment import to_tensor
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.party.request import Request
from coalface.engine.party.setup import FederatedData
from coalface.engine.transport import StepFailed
from coalface.experiments.conformance import tiny_federation
from coalface.experiments.conformance.tiny_federation import LOSS, Stop, run, setup, stopping
from coalface.methods import fedfr_uda
from coalface.methods.fedfr_uda import FedFRUDA, FinetunePseudo, Own
from coalface.training.clustering.finch import GRID
from coalface.training.clustering.pseudo_labels import Labelling


@pytest.fixture
def quick_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A threshold that costs no search, and follows from the features as the right one does."""
    monkeypatch.setattr(Labelling, "choose", lambda self, features, labels: 0.1 + 0.1 * abs(float(features[0, 0])))


# --- stages, clients and labels ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_choice")
def test_each_stage_asks_those_that_it_is_for(tmp_path: Path) -> None:
    _, calls = heard(made(pretrain=2, rounds=2, labelling=Labelling()), tmp_path)
    assert calls.asked == [
        *(("pretrain", r, "train_alone", "silo-0") for r in (1, 2)),
        ("label", 1, "choose", "silo-0"),
        *(("label", 1, "label", f"silo-{i}") for i in (1, 2)),
        *(("train", r, "train", f"silo-{i}") for r in (1, 2) for i in range(3)),
    ]


@pytest.mark.usefixtures("quick_choice")
def test_a_source_that_trains_no_more_is_still_asked_for_the_threshold(tmp_path: Path) -> None:
    method = made(source=False, constraint=0.0, pretrain=1, labelling=Labelling())
    ran, calls = heard(method, tmp_path / "one")
    assert {party for _, _, party in calls.of("train")} == {"silo-1", "silo-2"}
    assert calls.of("choose") == [("label", 1, "silo-0")]
    finetune = FinetunePseudo(local=WORK, loss=LOSS, rounds=4, pretrain=1, labelling=Labelling())
    assert run(finetune, tmp_path / "other", WORLD).bytes() == ran.bytes()


@pytest.mark.usefixtures("quick_choice")
def test_targets_label_anew_after_so_many_rounds(tmp_path: Path) -> None:
    _, calls = heard(made(relabel=2, rounds=5, labelling=Labelling()), tmp_path)
    when = [("label", 1), ("train", 3), ("train", 5)]
    assert calls.of("choose") == [(*at, "silo-0") for at in when]
    assert calls.of("label") == [(*at, party) for at in when for party in ("silo-1", "silo-2")]


@pytest.mark.usefixtures("quick_choice")
def test_a_round_to_label_anew_that_is_abandoned_is_made_up_for(tmp_path: Path) -> None:
    """And the next is counted from there."""

    def failing(request: Request) -> bool:
        return request.step == "choose" and request.round == 3

    method = made(relabel=2, rounds=6, labelling=Labelling())
    ran, calls = heard(method, tmp_path, failing=failing, on_error="exclude")
    assert calls.of("choose") == [(*at, "silo-0") for at in (("label", 1), ("train", 3), ("train", 4), ("train", 6))]
    assert [bool(line.get("abandoned")) for line in metrics(ran)] == [False, False, False, True, False, False, False]


def test_a_target_whose_labelling_is_lost_labels_later_and_trains_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = naive.watched(FedFRUDA, monkeypatch)

    def failing(request: Request) -> bool:
        return (request.step, request.party) == ("label", "silo-2") and (request.stage, request.round) != ("train", 2)

    ran, calls = heard(made(rounds=3, local=replace(WORK, lr=0.05)), tmp_path, failing=failing, on_error="exclude")
    expected_calls = [("label", 1), ("train", 1), ("train", 2)]
    assert [(stage, r) for stage, r, party in calls.of("label") if party == "silo-2"] == expected_calls
    assert [(stage, r) for stage, r, party in calls.of("label") if party == "silo-1"] == [("label", 1)]
    assert [(r, party) for _, r, party in calls.of("train")] == [
        *[(1, f"silo-{i}") for i in (0, 1)],
        *[(r, f"silo-{i}") for r in (2, 3) for i in (0, 1, 2)],
    ]
    assert ran.state.labelled == ("silo-1", "silo-2")
    later = naive.kept(tmp_path, "silo-2", Own).labels.labels
    for backbone, is_same in ((states[0].backbone, True), (WORLD().backbone.shared(), False)):
        client = Client("silo-2", WORLD)  # with the model of then: source and silo-1 have trained for a round
        client.label(backbone, TAU, 2)
        assert torch.equal(later, client.labels) == is_same


def test_where_no_target_has_labels_the_source_trains_on_or_the_round_is_given_up(tmp_path: Path) -> None:
    def failing(request: Request) -> bool:
        return request.step == "label" and (request.stage, request.round) != ("train", 2)

    faults = {"failing": failing, "on_error": "exclude"}
    with_source, with_calls = heard(made(rounds=2), tmp_path / "with", **faults)
    assert [(r, party) for _, r, party in with_calls.of("train")] == [
        (1, "silo-0"),
        *((2, f"silo-{i}") for i in range(3)),
    ]
    without, with_calls = heard(made(rounds=2, source=False, constraint=0.0), tmp_path / "without", **faults)
    assert [(r, party) for _, r, party in with_calls.of("train")] == [(2, "silo-1"), (2, "silo-2")]
    assert "no target client has labelled its images yet" in metrics(without)[1]["reason"]
    assert with_source.state.labelled == without.state.labelled == ("silo-1", "silo-2")


def test_without_any_cluster_the_run_says_what_to_do(tmp_path: Path) -> None:
    method = made(labelling=Labelling(threshold=1e-6, min_cluster_size=12))
    with pytest.raises(Exception, match=r"none of its 11 images is in a cluster of 12 or more at τ = 1e-06: raise the"):
        run(method, tmp_path, WORLD)


# --- the threshold ----------------------------------------------------------------------------------------------------


def pairwise_f(identities: NDArray[np.int64], clusters: list[int]) -> float:
    pairs = [(i, j) for i in range(len(identities)) for j in range(i)]
    genuine, joined = ({(i, j) for i, j in pairs if by[i] == by[j]} for by in (identities, clusters))
    return 2 * len(genuine & joined) / (len(genuine) + len(joined)) if genuine or joined else 1.0


def with_aside() -> FederatedData:
    """The source has images of three more people to choose by."""
    strangers = tiny_federation.faces(9, 6).only([6, 7, 8])
    return replace(WORLD(), calibration_data={"silo-0": strangers})


@pytest.mark.parametrize("aside", [False, True])
def test_the_source_chooses_the_threshold_by_its_own_and_sends_a_number(aside: bool, tmp_path: Path) -> None:
    ran, calls = heard(made(labelling=Labelling(), rounds=1), tmp_path, with_aside if aside else WORLD)
    (threshold,) = (reply.threshold for step, reply in calls.replies if step == "choose")
    assert [vars(reply) for step, reply in calls.replies if step == "choose"] == [{"threshold": threshold}]
    faces = with_aside().calibration_data["silo-0"] if aside else WORLD().data["silo-0"]
    client = Client("silo-0", WORLD)
    client.images = to_tensor(faces.take(np.arange(len(faces)))).double()
    features = client.features(WORLD().backbone.shared()).numpy()

    def score(at: float) -> float:
        return pairwise_f(faces.labels, naive_cfinch(features, at))

    assert score(threshold) >= max(map(score, GRID)) > score(GRID[0])
    assert ran.state.threshold == threshold == metrics(ran)[0]["threshold"]


@pytest.mark.parametrize(
    "labelling",
    [
        Labelling(threshold=0.2),
        Labelling(algorithm="finch"),
        Labelling(algorithm="finch", clusters=3),
        Labelling(algorithm="k-means", clusters=3),
        Labelling(algorithm="dbscan", threshold=0.2, min_samples=2),
    ],
    ids=str,
)
def test_a_threshold_that_is_not_asked_for_is_asked_of_nobody(labelling: Labelling, tmp_path: Path) -> None:
    ran, calls = heard(made(labelling=labelling, rounds=1), tmp_path)
    assert calls.of("choose") == []
    thresholds = [reply for step, reply in calls.replies if step == "label"]
    for party, reply in zip(("silo-1", "silo-2"), thresholds, strict=True):
        labels = naive.kept(tmp_path, party, Own).labels.labels
        assert reply.clusters == len(set(labels.tolist()) - {-1}) and reply.images == len(labels)
        assert reply.kept == pytest.approx(float((labels >= 0).double().mean()))
        assert labelling.algorithm != "k-means" or reply.clusters == 3
    assert metrics(ran)[0]["clusters"] == sum(reply.clusters for reply in thresholds)


# --- what is kept and what is sent ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_choice")
def test_neither_labels_nor_features_are_sent(tmp_path: Path) -> None:
    ran, calls = heard(made(labelling=Labelling(), pretrain=1, relabel=2), tmp_path)
    lines = [json.loads(t) for p in sorted((tmp_path / "ledger").iterdir()) for t in p.read_text().splitlines()]
    tensors = {(line["step"], line["name"]) for line in lines if line["kind"] == "tensor"}
    names = {f"backbone/{name}" for name in ran.state.backbone}
    assert tensors == {(step, name) for step in ("train_alone", "train") for name in names}
    fields = {step: set(vars(reply)) for step, reply in calls.replies}
    update = {"backbone", "images", "loss"}
    assert fields == {
        **{"train_alone": update, "train": update},
        **{"choose": {"threshold"}, "label": {"images", "clusters", "kept"}},
    }


@pytest.mark.parametrize("start", ["mean", "random"])
def test_class_embeddings_start_at_mean_features_or_at_random(start: str, tmp_path: Path) -> None:
    """After a round of next to no step."""
    work = replace(WORK, lr=1e-12)
    ran = run(made(rounds=1, local=work, head_init=start), tmp_path, WORLD)
    client = Client("silo-1", WORLD)
    client.label(ran.state.backbone, TAU, 2)
    means = client.means(ran.state.backbone)
    head = naive.kept(tmp_path, "silo-1", Own).learner.head
    assert bool((head - means).abs().max() < 1e-8) == (start == "mean")
    assert float(F.normalize(head).mul(means).sum(1).min()) < 0.9 or start == "mean"


# --- stopping, and who may be asked for what --------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_choice")
@pytest.mark.parametrize("after", [1, 2, 11])
def test_it_goes_on_from_any_stage_to_the_same_bytes(after: int, tmp_path: Path) -> None:
    """After so many replies: of the source alone, of the choice, of the labels, of the training and of labels anew."""
    unbroken, calls = heard(in_stages(), tmp_path / "unbroken", checkpoint_every=2)
    assert len(calls.asked) == 1 + 1 + 2 + 2 * 3 + 1 + 2 + 2 * 3
    with pytest.raises(Stop):
        run(in_stages(), tmp_path / "broken", WORLD, checkpoint_every=2, transport=stopping(after))
    assert run(in_stages(), tmp_path / "broken", WORLD, checkpoint_every=2).bytes() == unbroken.bytes()


def in_stages() -> FedFRUDA:
    return made(pretrain=1, rounds=4, relabel=2, labelling=Labelling())


def test_a_desk_refuses_a_step_of_another_role_by_itself(tmp_path: Path) -> None:
    """Whatever a server asks."""
    method = made()
    executor = PartyExecutor(setup(method, tmp_path, WORLD).context(WORLD()), "silo-1")
    common = codec.encode(fedfr_uda.Global(backbone=WORLD().backbone.shared()))
    request = Request("test", "silo-1", "label", 1, 1, 1, 1, "choose", common, None, None, (0, None))
    with pytest.raises(StepFailed, match="the step is for the role 'trainer/source', this party is a 'trainer/target'"):
        executor.answer(request)
