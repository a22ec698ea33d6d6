"""Validators as parties: when they are asked, that a run can be stopped meanwhile, their failures, what they send."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
from cases import by_default
from naive import naive_accuracy
from naive_clients import heard_run
from test_validation import FIVE, fv, ledger, metrics, naive_mean, traced

from coalface.core import codec
from coalface.core.method import generator
from coalface.engine import checkpoint
from coalface.engine.faults import SimulatedFaults
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.transport import Reply
from coalface.experiments.conformance.tiny_federation import Stop, Tiny, raw, run, stopping
from coalface.experiments.plan import messages
from coalface.methods.fedavg import FedAvg
from coalface.models.embedding import embed

# --- the lag ----------------------------------------------------------------------------------------------------------


def events(folder: Path) -> list[tuple[str, str, int, int]]:
    """(what, step, the round of the call, the round under way) of all that the server did."""
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [(e["event"], e["step"], e["of_round"], e["round"]) for e in lines if e["event"] != "round"]


GRADE = "validation.grade"


def training(r: int) -> list[tuple[str, str, int, int]]:
    return [("asks", "train", r, r), ("answered", "train", r, r)]


def posting(r: int) -> tuple[str, str, int, int]:
    return ("posts", GRADE, r, r)


def collecting(r: int, round_: int) -> list[tuple[str, str, int, int]]:
    return [("collects", GRADE, r, round_), ("collected", GRADE, r, round_)]


@pytest.mark.parametrize("name", ["fedavg-fv", "pfm-fv"])
def test_with_a_lag_of_1_a_whole_training_of_all_lies_between_posting_and_collecting(name: str, tmp_path: Path) -> None:
    """So no trainer's request ever waits for a score: all that the server waits for between asking and being answered
    is the trainers, and a validation has as long as they have."""
    run(fv(name, rounds=3), tmp_path, FIVE)
    assert events(tmp_path) == [
        *training(1), posting(1),
        *training(2), *collecting(1, 2), posting(2),
        *training(3), *collecting(2, 3), posting(3),
    ]  # fmt: skip
    asked = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert {e["parties"] for e in asked if e.get("step") == "train"} == {5}


def test_with_a_lag_of_2_a_validation_has_two_trainings_and_every_second_round_begins_one(tmp_path: Path) -> None:
    run(fv(lag=2, rounds=5), tmp_path, FIVE)
    assert events(tmp_path) == [
        *training(1), posting(1),
        *training(2),
        *training(3), *collecting(1, 3), posting(3),
        *training(4),
        *training(5), *collecting(3, 5), posting(5),
    ]  # fmt: skip


@pytest.mark.parametrize("lag", by_default(2, [0, 1, 2]))
def test_the_weighting_of_a_validation_is_in_use_so_many_rounds_later_and_one(lag: int, tmp_path: Path) -> None:
    """With φ = 1 the weighting becomes a candidate of round 1; the means that follow tell from which round on."""
    method = fv(lag=lag, smoothing=1.0, candidates=6, rounds=lag + 2)
    ran = run(method, tmp_path, FIVE)
    records = metrics(ran)
    images = {name: len(faces) for name, faces in FIVE.data().items()}
    first = {name: n / sum(images.values()) for name, n in images.items()}
    rows = generator(0, "server", "train", 1, "validation").dirichlet(np.ones(5), size=5).tolist()
    drawn = [pytest.approx(first), *(pytest.approx(dict(zip(sorted(images), row, strict=True))) for row in rows)]
    for r in range(1, lag + 1):  # the line of round r has the weighting of round r + 1
        assert traced(records[r - 1]) == drawn[0]
    assert any(traced(records[lag]) == candidate for candidate in drawn[1:])
    # round lag + 2 averages by it: the message to its trainers is checked against the single backbones
    heard = single_backbones(method, tmp_path / "again", FIVE, lag + 2)
    assert naive.furthest(ran.state.training.backbone, naive_mean(heard, traced(records[lag]))) < 1e-6
    assert naive.furthest(ran.state.training.backbone, naive_mean(heard, first)) > 1e-4


def single_backbones(method: Any, folder: Path, build: Tiny, round_: int) -> dict[str, Any]:
    """What each trainer sends in a round."""
    _, heard = heard_run(method, folder, build)
    replies = {h.request.party: h.data for h in heard if (h.request.step, h.request.round) == ("train", round_)}
    reply = method.steps["train"][1].reply
    return {party: codec.decode(bytearray(data), reply).backbone for party, data in replies.items()}


# --- stopped while a validation is under way --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(("mode", "lag"), by_default(1, [("kept", 2), ("folded", 1)]))
def test_a_run_stopped_at_any_answer_with_a_validation_under_way_is_never_stopped(
    mode: Any, lag: int, tmp_path: Path
) -> None:
    build, method = Tiny(parties=4, validators=1), fv(rounds=4, lag=lag, fv=mode, norm="moving")
    unbroken, open_at_stops = run(method, tmp_path / "unbroken", build).bytes(), 0
    for after in range(0, 100, 5):
        folder = tmp_path / str(after)
        try:
            run(method, folder, build, transport=stopping(after))
        except Stop:
            loaded = checkpoint.load(folder / "checkpoints")
            open_at_stops += loaded is not None and bool(loaded.posted)
            assert run(method, folder, build).bytes() == unbroken
        else:
            break
    assert 15 < after < 99  # four rounds of four trainers and the validations
    assert open_at_stops >= 2


# --- validators that do not answer ------------------------------------------------------------------------------------


class Failing(InProcess):
    """Steps of some validators fail, or the party sends something else."""

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        for request, reply in super().exchange(requests):
            yield request, self.instead(request, reply)

    def instead(self, request: Request, reply: Reply) -> Reply:
        return reply


def failing(*parties: str) -> type[InProcess]:
    class Some(Failing):
        def instead(self, request: Request, reply: Reply) -> Reply:
            return StepFailed("its disk is full") if request.party in parties else reply

    return Some


THREE = Tiny(parties=4, validators=3)


@dataclass(frozen=True)
class Only(Tiny):
    """The world of three validators without the last ones."""

    first: int = 2

    def validating(self) -> Any:
        return dict(list(super().validating().items())[: self.first])


def test_a_validator_that_fails_is_left_out_by_name_and_the_others_decide(tmp_path: Path) -> None:
    settings = {"rounds": 4, "norm": "moving"}
    ran = run(fv(**settings), tmp_path / "failed", THREE, transport=failing("judge-2"), on_error="exclude")
    continued = run(fv(**settings), tmp_path / "rest", Only(**vars(THREE), first=2))
    assert [r["failed"] for r in metrics(ran)] == [{}, *[{"judge-2": "its disk is full"}] * 3]
    assert [traced(r) for r in metrics(ran)] == [traced(r) for r in metrics(continued)]
    assert [traced(r, "score") for r in metrics(ran)] == [traced(r, "score") for r in metrics(continued)]
    assert set(traced(metrics(ran)[1], "score")) == {"judge-0", "judge-1"}
    assert len({tuple(traced(r).values()) for r in metrics(ran)}) > 1
    assert raw(ran.models.shared or {}) == raw(continued.models.shared or {})


def test_where_no_validator_answers_the_weighting_stays_and_the_round_goes_on(tmp_path: Path) -> None:
    lost = SimulatedFaults(slow={f"judge-{i}": 1e9 for i in range(3)}, deadline=1.0)
    ran = run(fv(smoothing=1.0), tmp_path / "fv", THREE, faults=lost)
    plain = run(fv(smoothing=0.0), tmp_path / "plain", THREE)
    assert all(set(r["failed"]) == {"judge-0", "judge-1", "judge-2"} for r in metrics(ran)[1:])
    assert not any(r["abandoned"] for r in metrics(ran))
    assert len({tuple(traced(r).values()) for r in metrics(ran)}) == 1
    assert raw(ran.models.shared or {}) == raw(plain.models.shared or {})


def test_an_abandoned_round_leaves_the_validation_under_way_and_it_is_collected_in_the_next(tmp_path: Path) -> None:
    class Away(Failing):
        def instead(self, request: Request, reply: Reply) -> Reply:
            return StepFailed("away") if request.round == 2 and request.step == "train" else reply

    ran = run(fv(rounds=3), tmp_path, FIVE, transport=Away, on_error="exclude")
    first, second, third = metrics(ran)
    assert second["abandoned"] and not traced(second)
    assert set(traced(third, "score")) == {"judge-0", "judge-1"}
    assert ("collects", GRADE, 1, 3) in events(tmp_path)


# --- what leaves a validator ------------------------------------------------------------------------------------------


def test_nothing_but_scores_leaves_a_validator(tmp_path: Path) -> None:
    ran = run(fv(rounds=3), tmp_path, Tiny(parties=4, validators=2))
    lines = [(e["round"], e["step"], e["name"], e["bytes"]) for _, e in ledger(tmp_path, "judge-0")]
    scores = [(r, GRADE, "scores", 24) for r in (1, 2, 3)]  # the last ones have come when the run ends, to no use
    assert [line for line in lines if line[2] != "header"] == scores
    assert all(size < 400 for _, _, name, size in lines if name == "header")
    assert messages.what_stays(type(fv())) == messages.what_stays(FedAvg)  # a validator keeps no state
    assert ran.server.at.party_stats["judge-0"].rounds == 2


# --- the scores -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["accuracy", "tar", "loss"])
def test_a_score_is_that_of_the_model_on_the_validators_pairs(score: Any, tmp_path: Path) -> None:
    method, build = fv(score=score, far=0.1, rounds=2, lag=0), Tiny(parties=4, validators=1, norm=True)
    models = single_backbones(method, tmp_path / "heard", build, 1)
    record = metrics(run(method, tmp_path / "run", build))[0]
    images = {name: len(faces) for name, faces in build.data().items()}
    mean = naive_mean(models, {n: float(k) for n, k in images.items()})
    faces, pairs = build.validating()["judge-0"]
    net = build().backbone.module
    net.load_state_dict({**net.state_dict(), **mean})
    embeddings = embed(net, faces).astype(np.float64)
    cosines = [
        float(embeddings[a] @ embeddings[b]) for a, b in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)
    ]
    genuine = sorted(c for c, is_genuine in zip(cosines, pairs.same, strict=True) if is_genuine)
    impostor = sorted(c for c, is_genuine in zip(cosines, pairs.same, strict=True) if not is_genuine)
    assert pairs.fold is not None
    expected = {
        "accuracy": naive_accuracy(cosines, pairs.same.tolist(), pairs.fold.tolist()),
        "tar": 100 * sum(g > impostor[-3] for g in genuine) / len(genuine),  # of 20 impostors two are accepted
        "loss": -100 * (sum(1 - g for g in genuine) + sum(max(0.0, i) for i in impostor)) / 40,
    }[score]
    assert record["score/judge-0"] == pytest.approx(expected, rel=1e-5)


# --- at the start -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg-fv", "pfm-fv"])
def test_without_validators_there_is_no_validation(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no validator: give the recipe `validators`"):
        run(fv(name), tmp_path, Tiny())


@pytest.mark.parametrize("policy", ["local", "parameters-only"])
def test_a_backbone_that_stays_in_part_at_its_trainers_cannot_be_validated(policy: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"with model.batchnorm={policy} some stay at their trainers: set .*=average"):
        run(fv(), tmp_path, replace(FIVE, norm=True, policy=policy))


@pytest.mark.parametrize(("initial", "unequal"), [("images", True), ("uniform", False)])
def test_the_first_weighting(initial: Any, unequal: bool, tmp_path: Path) -> None:
    ran = run(fv(initial=initial, rounds=1), tmp_path, FIVE)
    images = {name: len(faces) for name, faces in FIVE.data().items()}
    shares = {n: k / sum(images.values()) if unequal else 0.2 for n, k in images.items()}
    assert traced(metrics(ran)[0]) == pytest.approx(shares)
    assert len(set(shares.values())) == (3 if unequal else 1)
