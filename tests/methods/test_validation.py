"""Federated Validation: the formulas against plain loops, what is asked and sent when, and what happens in trouble."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import torch
from cases import by_default
from naive import naive_accuracy
from test_validation_choice import naive_choice, opened

from coalface.core import codec
from coalface.core.method import Federation, Mean, Tensors, generator
from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.sums.running import RunningMean
from coalface.engine.transport import Reply
from coalface.experiments.conformance import tiny_federation
from coalface.experiments.conformance.tiny_federation import LOSS, NUMERICS, WORK, Ran, Tiny, run
from coalface.methods import METHODS, fedavg
from coalface.methods.fv import FedAvgFV, FedAvgState
from coalface.training.federated_validation import FederatedValidation, Weighting

FIVE = Tiny(parties=5, validators=2)
SHARP = {"smoothing": 0.5}
"""A weighting that moves enough to be seen in four rounds."""


def fv(name: str = "fedavg-fv", *, rounds: int = 4, sample: int | None = None, **settings: Any) -> Any:
    validation = FederatedValidation(**SHARP | settings)
    return METHODS[name](rounds=rounds, local=WORK, loss=LOSS, sample=sample, validation=validation)


def metrics(ran: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ran.folder / "metrics.jsonl").read_text().splitlines()]


def traced(record: dict[str, Any], prefix: str = "weight") -> dict[str, float]:
    """Party -> its weight, or validator -> its score, in a line of the metrics."""
    return {k.partition("/")[2]: v for k, v in record.items() if k.startswith(f"{prefix}/")}


def test_the_blind_control_moves_as_far_towards_a_candidate_of_the_same_draw(tmp_path: Path) -> None:
    begun = run(fv(rounds=1, lag=0, smoothing=0.0), tmp_path / "still", FIVE).state.weighting.weights
    candidates = FederatedValidation().draw(begun, generator(0, "server", "train", 1, "validation"))
    reached = [{p: 0.5 * w + 0.5 * candidate[p] for p, w in begun.items()} for candidate in candidates]
    for choice in (None, "blind"):
        after = run(fv(rounds=1, lag=0, choice=choice), tmp_path / str(choice), FIVE).state.weighting.weights
        assert any(after == pytest.approx(weights) for weights in reached), choice


# --- drawing ----------------------------------------------------------------------------------------------------------


def test_candidates_are_uniform_on_the_simplex() -> None:
    """Dirichlet(1, 1, 1, 1): mean 1/4, variance 3/80, covariance −1/80; each share is Beta(1, 3)."""
    names = ["a", "b", "c", "d"]
    many = FederatedValidation(candidates=20_001)
    first, *drawn = many.draw(dict.fromkeys(names, 0.25), np.random.default_rng(0))
    assert first == dict.fromkeys(names, 0.25)
    shares = np.array([[w[n] for n in names] for w in drawn])
    assert np.abs(shares.sum(axis=1) - 1).max() < 1e-12 and shares.min() > 0
    assert shares.mean(axis=0) == pytest.approx([0.25] * 4, abs=0.006)
    covariance = np.cov(shares.T)
    assert np.diag(covariance) == pytest.approx([3 / 80] * 4, abs=0.0015)
    assert covariance[~np.eye(4, dtype=bool)] == pytest.approx([-1 / 80] * 12, abs=0.001)
    for quantile in (0.1, 0.5, 0.9):
        below = 1 - (1 - quantile) ** (1 / 3)  # the Beta(1, 3) value with so much below it
        assert (shares < below).mean(axis=0) == pytest.approx([quantile] * 4, abs=0.012)


def test_the_drawn_candidates_are_those_of_the_rounds_own_stream(tmp_path: Path) -> None:
    ran = run(fv(), tmp_path, FIVE, seed=3)
    validation = ran.state.weighting.open
    assert validation is not None and validation.round == 4 and len(validation.candidates) == 3
    rows = generator(3, "server", "train", 4, "validation").dirichlet(np.ones(5), size=2)
    assert [list(c.values()) for c in validation.candidates[1:]] == rows.tolist()
    assert validation.candidates[0] == pytest.approx(traced(metrics(ran)[2]))  # the one in use in round 4


def ledger(folder: Path, party: str = "silo*") -> list[tuple[str, dict[str, Any]]]:
    """(party, line) of the ledgers of the parties so called."""
    paths = sorted((folder / "ledger").glob(f"{party}.jsonl"))
    return [(path.stem, json.loads(line)) for path in paths for line in path.read_text().splitlines()]


@pytest.mark.parametrize("mode", ["kept", "folded"])
@pytest.mark.parametrize("sample", by_default(1, [None, 4]))
@pytest.mark.parametrize("name", ["fedavg", "pfm"])
def test_a_weighting_that_never_moves_gives_the_bits_of_the_method_without_it(
    name: str, sample: int | None, mode: Any, tmp_path: Path
) -> None:
    """So its own draws are what they were. With four parties of eight images the weights n / Σ n are exact."""
    build = Even(parties=4 if sample is None else 8, validators=1, each=4)
    plain = run(METHODS[name](rounds=3, local=WORK, loss=LOSS, sample=sample), tmp_path / "plain", build)
    still = fv(f"{name}-fv", rounds=3, sample=sample, smoothing=0.0, fv=mode)
    validated = run(still, tmp_path / "fv", build, numerics=replace(NUMERICS))
    assert tiny_federation.raw(validated.models.shared or {}) == tiny_federation.raw(plain.models.shared or {})
    assert ledger(tmp_path / "fv") == ledger(tmp_path / "plain")
    if sample is not None:
        assert len({(e["round"], party) for party, e in ledger(tmp_path / "fv")}) == 3 * sample


class Even(Tiny):
    """Every party holds as many images."""

    def data(self) -> dict[str, FaceSet]:
        whole = tiny_federation.faces(2 * self.parties, self.each)
        return {f"silo-{i}": whole.only([2 * i, 2 * i + 1]) for i in range(self.parties)}


# --- Algorithm 2 from end to end --------------------------------------------------------------------------------------


def naive_score(model: Tensors, faces: FaceSet, pairs: PairList, build: Tiny) -> float:
    net = build().backbone.module
    net.load_state_dict({**net.state_dict(), **model})
    embeddings = [naive.embedding(net, image) for image in faces.take(np.arange(len(faces)))]
    sides = zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)
    cosines = [torch.cosine_similarity(embeddings[a], embeddings[b], dim=0).item() for a, b in sides]
    assert pairs.fold is not None
    return naive_accuracy(cosines, pairs.same.tolist(), pairs.fold.tolist())


def naive_mean(models: dict[str, Tensors], weights: dict[str, float]) -> Tensors:
    """Σ w_i θ_i / Σ w_i in float64."""
    whole = sum(weights[p] for p in models)
    return {
        name: (sum(weights[p] * m[name].double() for p, m in models.items()) / whole).float()  # type: ignore[union-attr]
        for name in next(iter(models.values()))
    }


@pytest.mark.parametrize("norm", by_default(1, ["local", "moving"]))
@pytest.mark.parametrize("mode", ["kept", "folded"])
def test_fedavg_fv_is_algorithm_2(mode: Any, norm: Any, tmp_path: Path) -> None:
    """Bare SGD at the silos, float64 means at the server, and a validation that is scored a round later."""
    build = replace(FIVE, flip=False)
    method = fv(rounds=5, fv=mode, norm=norm)
    ran = run(method, tmp_path, build)
    parties = {silo.name: silo for silo in naive.silos(replace(build, validators=0), WORK)}
    images = sum(silo.images for silo in parties.values())
    theta = {n: t.clone() for n, t in build().backbone.shared().items()}
    in_use = Weighting(weights={p: s.images / images for p, s in parties.items()}, open=None, mean={}, variance={})
    under_way: Any = None
    for r, record in enumerate(metrics(ran), start=1):
        rows = generator(0, "server", "train", r, "validation").dirichlet(np.ones(5), size=2).tolist()
        drawn = (in_use.weights, *(dict(zip(parties, row, strict=True)) for row in rows))
        local = {name: trained(silo, theta) for name, silo in parties.items()}
        theta = naive_mean(local, in_use.weights)
        if under_way is not None:  # scored with the backbones of the round before
            validation, models = under_way
            scored = {
                name: [naive_score(naive_mean(models, c), faces, pairs, build) for c in validation.candidates]
                for name, (faces, pairs) in build.validating().items()
            }
            assert traced(record, "score") == pytest.approx({name: row[0] for name, row in scored.items()})
            weights, mean, variance = naive_choice(method.validation, in_use, validation, scored)
            in_use = Weighting(weights=weights, open=None, mean=mean, variance=variance)
        assert ("score/judge-0" in record) == (r > 1)
        under_way = opened(drawn), local
        assert traced(record) == pytest.approx(in_use.weights, rel=1e-12)
    assert naive.furthest(ran.state.training.backbone, theta) < 2e-6
    assert ran.state.weighting.variance == pytest.approx(in_use.variance)
    assert len({tuple(traced(r).values()) for r in metrics(ran)}) > 2


def trained(silo: naive.Silo, theta: Tensors) -> Tensors:
    """θ_i: SGD whose momentum begins at zero in each round."""
    theta, velocity = dict(theta), {n: torch.zeros_like(t) for n, t in theta.items()}
    silo.head_velocity = torch.zeros_like(silo.head)
    for pixels, labels in silo.batches():
        gradients, head, _ = silo.gradients(theta, silo.head, pixels, labels)
        for name, gradient in gradients.items():
            velocity[name] = WORK.momentum * velocity[name] + gradient + WORK.weight_decay * theta[name]
            theta[name] = theta[name] - WORK.lr * velocity[name]
        silo.step_head(head, WORK.lr)
    return theta


# --- kept and folded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "parties", "lag"),
    by_default(2, [("fedavg-fv", 2, 4, 1), ("pfm-fv", 3, 4, 0), ("fedavg-fv", 3, 5, 2)]),
)
@pytest.mark.parametrize("block", by_default(1, [16, 2]))
def test_kept_and_folded_give_the_same_weights(
    name: str, count: int, parties: int, lag: int, block: int, tmp_path: Path
) -> None:
    """To the bit where all are in one block; else the sums round in another order, which training makes more of."""
    build, numerics = (
        Tiny(parties=parties, validators=2, norm=block == 16),
        replace(NUMERICS, sum_block=block),
    )
    settings = {"candidates": count, "lag": lag, "rounds": 5 if block == 16 else 4}
    kept_run = run(fv(name, **settings), tmp_path / "kept", build, numerics=numerics, seed=2)
    folded = run(fv(name, fv="folded", **settings), tmp_path / "folded", build, numerics=numerics, seed=2)
    assert [traced(r) for r in metrics(kept_run)] == [traced(r) for r in metrics(folded)]
    assert len({tuple(traced(r).values()) for r in metrics(kept_run)}) > 1
    assert naive.furthest(folded.models.shared or {}, kept_run.models.shared or {}) < 1e-6
    if block == 16:  # all parties in one block: the same sums in the same order
        assert folded.bytes() == kept_run.bytes()


@pytest.mark.parametrize(("count", "sample", "most"), [(5, None, 4), (7, None, 4), (3, 3, 2)])
def test_folded_refuses_means_that_could_be_solved_before_anything_is_asked(
    count: int, sample: int | None, most: int, tmp_path: Path
) -> None:
    method = fv(fv="folded", candidates=count, sample=sample)
    with pytest.raises(ValueError, match=rf"{count} means of the backbones of {most + 1} .* \(at most {most}\)"):
        run(method, tmp_path, FIVE)
    assert not list((tmp_path / "parties").glob("*")) and not (tmp_path / "events.jsonl").exists()
    if most > 1:
        run(replace(method, rounds=1, validation=replace(method.validation, candidates=most)), tmp_path / "less", FIVE)


class Missing(InProcess):
    """Some trainers' replies are lost in round 2."""

    lost: tuple[str, ...] = ()

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        for request, reply in super().exchange(requests):
            is_lost = request.round == 2 and request.party in self.lost
            yield request, StepFailed("away") if is_lost else reply


def missing(*lost: str) -> type[InProcess]:
    return type("Some", (Missing,), {"lost": lost})


def test_a_round_in_which_too_few_arrived_is_abandoned_before_a_sum_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five trainers, three candidates: with four replies the sums are taken, with three they are not."""
    sums: list[Mean] = []
    result = RunningMean.result
    monkeypatch.setattr(RunningMean, "result", lambda self: sums.append(self.mean) or result(self))
    rules: dict[str, Any] = {"min_reply_fraction": 0.1, "on_error": "exclude"}
    two = fv(fv="folded", rounds=2)
    run(two, tmp_path / "four", FIVE, transport=missing("silo-3"), **rules)
    assert len(sums) == 2 * 3
    sums.clear()
    whole = run(replace(two, rounds=1), tmp_path / "one", FIVE, **rules)
    sums.clear()
    ran = run(two, tmp_path / "three", FIVE, transport=missing("silo-1", "silo-3"), **rules)
    assert len(sums) == 3  # of round 1
    first, second = metrics(ran)
    assert second["abandoned"] and second["reason"].startswith("3 of 5 replies count, 4 are needed (silo-1: ")
    assert set(second["failed"]) == {"silo-1", "silo-3"}
    assert codec.pack(ran.state).data == codec.pack(whole.state).data
    kept_run = run(fv(rounds=2), tmp_path / "kept", FIVE, transport=missing("silo-1", "silo-3"), **rules)
    assert not any(r["abandoned"] for r in metrics(kept_run))


@dataclass(frozen=True, kw_only=True)
class Peeking(FedAvgFV):
    """Asks for one more mean of the backbones, by which a single one shows."""

    def round(self, fed: Federation, state: Any) -> FedAvgState:
        weighted = self.validation.over(fed, state.weighting)
        peek = Mean("backbone", by={"silo-0": 1.0}, name="peek")
        common = fedavg.Global(backbone=state.training.backbone)
        weighted.ask(self.train, common=common, aggregate=[Mean("backbone", by="images"), peek])
        return FedAvgState(training=state.training, weighting=state.weighting)


def test_folded_refuses_another_mean_of_the_backbones(tmp_path: Path) -> None:
    method = Peeking(rounds=1, local=WORK, loss=LOSS, validation=FederatedValidation(fv="folded", candidates=2))
    with pytest.raises(ValueError, match="validation.fv=folded"):
        run(method, tmp_path, Tiny(parties=4, validators=1))
