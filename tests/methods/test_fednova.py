from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
from cases import by_default
from worlds import recipe

from coalface.data.augment import Augment
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run
from coalface.methods.fednova import FedNova, normaliser
from coalface.models.groups import Backbone
from coalface.training.compute import Compute
from coalface.training.local_work import LocalTraining


def answered(folder: Path) -> list[list[str]]:
    """Who answered in each round."""
    return [sorted(json.loads(line)["losses"]) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("settings", "norm"),
    by_default(
        1,
        [
            ({"momentum": "reset", "mu": 0.3, "sample": 2}, True),
            ({"momentum": "reset"}, False),
            ({"momentum": "none", "mu": 2.0}, True),
        ],
    ),
)
def test_it_is_algorithm_1_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], norm: bool
) -> None:
    """Each party's own list of coefficients of its gradients, whose sum is a_i; the rate falls from round to round."""
    build = Tiny(flip=False, double=True, norm=norm)
    work = LocalTraining(epochs=2, batch_size=5, lr=0.1, schedule="cosine", momentum=0.6, weight_decay=5e-3)
    states = naive.watched(FedNova, monkeypatch)
    run(FedNova(rounds=3, local=work, loss=LOSS, head_momentum="keep", **settings), tmp_path, build)
    beta, mu = 0.6 if settings["momentum"] == "reset" else 0.0, settings.get("mu", 0.0)
    x, parties = build().backbone.shared(), naive.silos(build, work)
    seen = set()
    for state, names, lr in zip(states, answered(tmp_path), (0.1, 0.075, 0.025), strict=True):
        present = [silo for silo in parties if silo.name in names]
        ends, a = [], []
        for silo in present:
            y, velocity, batches = dict(x), naive.zeros(build), silo.batches()
            for pixels, labels in batches:
                g, h, running = silo.gradients(y, silo.head, pixels, labels)
                for n in g:
                    velocity[n] = beta * velocity[n] + g[n] + 5e-3 * y[n] + mu * (y[n] - x[n])
                    y[n] = y[n] - lr * velocity[n]
                y.update(running)
                silo.step_head(h, lr)
            ends.append(y)
            a.append(sum(coefficients(len(batches), beta, lr * mu)))
            seen.add(len(batches))
        p = naive.shares(present)
        effective = sum(share * a_i for share, a_i in zip(p, a, strict=True))
        mean = naive.mean(p, ends)
        d = naive.mean(
            [share / a_i for share, a_i in zip(p, a, strict=True)], [{n: x[n] - y[n] for n in x} for y in ends]
        )
        x = {n: x[n] - effective * d[n] if n in naive.zeros(build) else mean[n] for n in x}
        assert naive.furthest(state.backbone, x) < 1e-10
    assert len(seen) > 1  # parties take different numbers of steps


def coefficients(steps: int, beta: float, shrink: float) -> list[float]:
    """What the gradient of each step moves by the end, in units of η: an impulse in that step alone."""
    moves = []
    for impulse in range(steps):
        moved = velocity = 0.0
        for step in range(steps):
            velocity = beta * velocity + (step == impulse) - shrink * moved
            moved += velocity
        moves.append(moved)
    return moves


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_normaliser_is_the_papers(steps: int) -> None:
    """Wang et al., Section 4: of SGD, with momentum, and with a proximal term; and a sum over single gradients."""
    assert normaliser(steps, 0.0, 0.0) == steps
    for beta in (0.3, 0.9):
        closed = (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)
        assert normaliser(steps, beta, 0.0) == pytest.approx(closed, rel=1e-12)
    for shrink in (0.01, 0.5):
        assert normaliser(steps, 0.0, shrink) == pytest.approx((1 - (1 - shrink) ** steps) / shrink, rel=1e-12)
    assert normaliser(steps, 0.7, 0.1) == pytest.approx(sum(coefficients(steps, 0.7, 0.1)), rel=1e-12)


@pytest.mark.parametrize(("plain", "mu"), [("fedavg", 0.0), *by_default(0, [("fedprox", 0.5)])])
def test_with_equal_steps_it_is_fedavg(tmp_path: Path, plain: str, mu: float) -> None:
    build, work = Tiny(norm=True, double=True), LocalTraining(steps_per_round=3, batch_size=4, lr=0.1)
    nova = run(recipe("fednova", local=work, mu=mu)[0], tmp_path / "nova", build)
    settings = {"mu": mu} if mu else {}
    other = run(recipe(plain, local=work, **settings)[0], tmp_path / "plain", build)
    assert naive.furthest(nova.state.backbone, other.state.backbone) < 1e-12


def line() -> FederatedData:
    """Party a has one image of pixel 1, party b four of pixel −1."""
    pixels = np.array([255, 0, 0, 0, 0], dtype=np.uint8).reshape(5, 1, 1, 1)
    rows = {"a": np.arange(1), "b": np.arange(1, 5)}
    data = {p: FaceSet(pixels, r, np.zeros(len(r), dtype=np.int64), (f"person {p}",)) for p, r in rows.items()}
    return FederatedData(
        data, Backbone(naive.Number()), Compute(augment=Augment(flip=False), dtype=naive.torch.float64)
    )


FLUKE = {0.0: -0.3346875, 0.5: -0.4650612244897959}
"""β -> w after the first round of two clients, by `FedNovaClient` and `FedNovaServer` of fluke-fl 0.8.1 in float64: the
loss (w − p)²/2, batches of 2, 2 epochs, η = 1/4, shares 1/5 and 4/5. From the second round on its server adds up
τ_eff p_i x_i / a_i alone, whose weights are not 1 together, where the paper keeps x."""


@pytest.mark.parametrize("beta", FLUKE)
def test_fluke_and_a_closed_form_come_to_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beta: float
) -> None:
    """Without momentum a goes (1 − w) (1 − (3/4)²) and b −(1 + w) (1 − (3/4)⁴); a_i are 2 and 4, and τ_eff is 18/5."""
    work = LocalTraining(epochs=2, batch_size=2, lr=0.25, momentum=beta, weight_decay=0.0)
    states = naive.watched(FedNova, monkeypatch)
    run(FedNova(rounds=3, local=work, loss=naive.Square()), tmp_path, line)
    ran = [float(state.backbone["w"]) for state in states]
    assert ran[0] == pytest.approx(FLUKE[beta], abs=1e-14)
    w = 0.0
    for number in ran if beta == 0 else ():
        w += 3.6 * (0.2 * (1 - w) * (1 - 0.75**2) / 2 - 0.8 * (1 + w) * (1 - 0.75**4) / 4)
        assert number == pytest.approx(w, abs=1e-14)


def test_the_optimum_is_not_that_of_who_takes_more_steps(tmp_path: Path) -> None:
    """Party b takes twice a's steps. FedAvg comes to rest beyond the optimum of the shares, −3/5; FedNova near it."""
    work = LocalTraining(epochs=2, batch_size=2, lr=0.05, momentum=0.0, weight_decay=0.0)
    rest = {}
    for name in ("fedavg", "fednova"):
        ran = run(recipe(name, rounds=40, local=work, loss=naive.Square())[0], tmp_path / name, line)
        rest[name] = abs(float(ran.state.backbone["w"]) + 0.6)
    assert rest["fedavg"] > 0.1 > 5 * rest["fednova"]


@pytest.mark.parametrize("mu", [-0.1, 10.0, 20.0, float("nan")])
def test_a_proximal_term_that_passes_x_by_is_refused(mu: float) -> None:
    with pytest.raises(ValueError, match="mu"):
        FedNova(mu=mu, local=LocalTraining(lr=0.1))


def test_a_cap_on_a_party_s_weight_leaves_its_steps_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = set[int]()
    monkeypatch.setattr(
        "coalface.methods.fednova.normaliser", lambda steps, *_: counted.add(steps) or normaliser(steps, 0.0, 0.0)
    )
    work, build = LocalTraining(epochs=1, batch_size=1, lr=0.01), Tiny(parties=4)
    run(FedNova(local=work, rounds=1, momentum="none"), tmp_path, build, max_share=0.26)
    assert counted == {work.count(len(faces)) for faces in build().data.values()} and len(counted) > 1
