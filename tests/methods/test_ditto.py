from __future__ import annotations

from pathlib import Path
from typing import Any

import naive
import pytest
from cases import by_default
from worlds import recipe

from coalface.core.local_results import PERSONAL_MODEL
from coalface.core.method import Tensors
from coalface.experiments.conformance.tiny_federation import LOSS, Ran, Tiny, raw, run
from coalface.methods.ditto import Ditto, TwoModels
from coalface.training.local_work import LocalTraining


def personal_models(ran: Ran) -> dict[str, Tensors]:
    return dict(ran.server.local_results(PERSONAL_MODEL, ran.models))


@pytest.mark.parametrize("policy", by_default(1, ["local", "average", "parameters-only"]))
def test_without_a_pull_it_is_fedavg_beside_solo_bit_for_bit(tmp_path: Path, policy: Any) -> None:
    build, settings = Tiny(norm=True, policy=policy), {"momentum": "keep"}
    ditto = run(recipe("ditto", lam=0.0, **settings)[0], tmp_path / "ditto", build)
    plain = run(recipe("fedavg", **settings)[0], tmp_path / "fedavg", build)
    alone = run(recipe("solo")[0], tmp_path / "solo", build).own_models()
    assert raw(ditto.state.backbone) == raw(plain.state.backbone)
    assert {p: raw(m) for p, m in ditto.own_models().items()} == {p: raw(m) for p, m in plain.own_models().items()}
    personal = personal_models(ditto)
    assert {party: raw(model) for party, model in personal.items()} == {p: raw(m) for p, m in alone.items()}
    assert raw(personal["silo-0"]) != raw(personal["silo-1"])


def test_however_strong_the_pull_the_global_model_and_what_is_sent_are_those_of_fedavg(tmp_path: Path) -> None:
    build = Tiny(norm=True)
    ran = [run(recipe("ditto", lam=lam)[0], tmp_path / str(lam), build) for lam in (0.1, 4.0)]
    plain = run(recipe("fedavg")[0], tmp_path / "fedavg", build)
    for ditto in ran:
        assert raw(ditto.state.backbone) == raw(plain.state.backbone)
        assert ditto.server.at.totals == plain.server.at.totals
    weak, strong = (
        max(naive.furthest(model, ditto.state.backbone) for model in personal_models(ditto).values()) for ditto in ran
    )
    assert weak > 1.5 * strong > 0


@pytest.mark.parametrize("norm", by_default(1, [True, False]))
@pytest.mark.parametrize(
    "work",
    [
        LocalTraining(steps_per_round=3, batch_size=4, lr=0.1, schedule="cosine", weight_decay=5e-3),
        LocalTraining(epochs=2, batch_size=5, lr=0.05, momentum=0.0),
    ],
    ids=["steps", "epochs"],
)
def test_a_partys_own_model_is_algorithm_1_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: LocalTraining, norm: bool
) -> None:
    build, lam = Tiny(flip=False, double=True, norm=norm), 0.7
    states = naive.watched(Ditto, monkeypatch)
    run(Ditto(rounds=3, local=work, loss=LOSS, lam=lam), tmp_path, build)
    sent = [build().backbone.shared(), *(state.backbone for state in states[:-1])]
    rates = [work.lr_at(round_, 3) for round_ in (1, 2, 3)]
    assert len(set(rates)) == (3 if work.schedule == "cosine" else 1)
    for silo in naive.silos(build, work):
        v, velocity = dict(sent[0]), naive.zeros(build)
        for theta, lr in zip(sent, rates, strict=True):
            for pixels, labels in silo.batches():
                g, h, running = silo.gradients(v, silo.head, pixels, labels)
                for n in g:
                    pulled = g[n] + lam * (v[n] - theta[n])
                    velocity[n] = work.momentum * velocity[n] + pulled + work.weight_decay * v[n]
                    v[n] = v[n] - lr * velocity[n]
                v.update(running)
                silo.step_head(h, lr)
        personal = naive.kept(tmp_path, silo.name, TwoModels).personal
        assert naive.furthest(personal.backbone, v) < 1e-10
        assert naive.furthest({"head": personal.head}, {"head": silo.head}) < 1e-10
        assert naive.furthest(v, states[-1].backbone) > 1e-3


def test_numbers_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """λ = 1; v has momentum 1/2, which goes on, and θ none: −3/8 after round 1, as in `fedavg`.

    v_a: gradients −1, 0, then 7/8, 1/4 and velocities −1, −1/2, 5/8, 9/16: 0 → 1/2 → 3/4 → 7/16 → 5/32.
    v_b: gradients 1, 0, then −1/8, −1/4 and velocities 1, 1/2, 1/8, −3/16: 0 → −1/2 → −3/4 → −13/16 → −23/32.
    """
    assert naive.worked(Ditto, tmp_path, monkeypatch, momentum="none")[0] == {"backbone": -0.375}
    own = [float(naive.kept(tmp_path, p, TwoModels).personal.backbone["w"]) for p in "ab"]
    assert own == [5 / 32, -23 / 32]


def test_a_party_that_is_not_drawn_keeps_its_own_model_as_it_was(tmp_path: Path) -> None:
    """One party a round: the first one's model is after round 2 what it was, and who never came has none."""
    after = [personal_models(run(recipe("ditto", sample=1, rounds=n)[0], tmp_path / str(n))) for n in (1, 2)]
    ((first, model),) = ((party, model) for party, model in after[0].items() if model)
    assert raw(after[1][first]) == raw(model)
    assert [bool(model) for model in after[1].values()].count(False) == 1


def test_a_party_that_comes_late_begins_where_the_run_began(tmp_path: Path) -> None:
    """Not where everybody is by then: unheld, it comes to where it comes by itself in one round."""
    build = Tiny(flip=False)
    alone = run(recipe("solo", rounds=1)[0], tmp_path / "solo", build).own_models()
    personal = personal_models(run(recipe("ditto", sample=1, rounds=2, lam=0.0)[0], tmp_path / "ditto", build))
    came = {party: raw(model) for party, model in personal.items() if model}
    assert len(came) == 2 and came == {party: raw(alone[party]) for party in came}


def test_a_round_is_twice_the_work() -> None:
    method = Ditto(local=LocalTraining(steps_per_round=3, batch_size=4))
    assert method.round_work("train", 1, "trainer", "a", 10) == (6, 24)


@pytest.mark.parametrize("lam", [-1.0, float("inf"), float("nan")])
def test_strengths_that_cannot_be_are_refused(lam: float) -> None:
    with pytest.raises(ValueError, match="lam"):
        Ditto(lam=lam)
