"""PrivacyFace: whole rounds by a plain loop, who is sent what, when centres are released, and what is counted."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import naive
import naive_clients as clients
import numpy as np
import pytest
import tinyruns
import torch
from cases import by_default
from naive_clients import heard_run, metrics
from torch import Tensor

from coalface.core import codec
from coalface.core.method import Party, Tensors, step
from coalface.engine.faults import SimulatedFaults
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.party.request import Request
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, faces, run, setup
from coalface.experiments.setup.parts import Parts
from coalface.methods import privacyface
from coalface.methods.fedavg import FedAvg
from coalface.methods.privacyface import Global, Place, PrivacyFace, Update
from coalface.privacy.local_clustering import LocalClustering, sanitised_centres
from coalface.privacy.noise import SecretNoise, digest, seeded_secret
from coalface.training.local_training import Learner
from coalface.training.local_work import LocalTraining
from coalface.training.losses.consensus import ConsensusAware

WORK = LocalTraining(epochs=2, batch_size=4, lr=0.01, momentum=0.5, weight_decay=5e-3)
EXACT = Tiny(flip=False, double=True)
EASY = LocalClustering(angle=1.4, members=0.5, clusters=2, directions=6, noise_multiplier=0.2)
"""So that tiny clients release something in most rounds."""


def released(build: Tiny, name: str, theta: Tensors, before: Tensor, method: PrivacyFace, round_: int) -> Tensor:
    """What a client tells: the means of its people's features, clustered with noise of its own."""
    silo, s = naive.Silo(name, build, WORK), method.clustering
    ((pixels, labels),) = silo.everything()
    silo.net.load_state_dict({**silo.net.state_dict(), **theta})
    with torch.no_grad():
        features = silo.net.eval()(pixels)
    means = torch.zeros(int(labels.max()) + 1, 8, dtype=torch.float64)
    for feature, label in zip(features, labels.tolist(), strict=True):
        means[label] += feature / feature.norm()
    party = naive.party(name, build, round_=round_)
    drawn = torch.from_numpy(party.stream("train", "directions", round_).standard_normal((s.directions, 8)))
    directions, centres = torch.cat([before, drawn]), means / means.norm(dim=1, keepdim=True)
    secret, of = seeded_secret(0), (codec.raw(centres), codec.raw(directions))
    noise = SecretNoise(secret, f"{name}/train/{round_}/{digest(secret, *of)}")
    return sanitised_centres(centres, directions, s, noise)


@pytest.mark.parametrize(
    ("settings", "build", "rules"),
    by_default(
        2,
        [
            ({}, EXACT, {}),
            ({"sample": 2, "rounds": 5, "every": 2}, replace(EXACT, norm=True), {}),
            ({"rounds": 6}, EXACT, {"faults": SimulatedFaults(dropout=0.4, lost=0.3), "min_reply_fraction": 0.3}),
        ],
    ),
)
def test_the_rounds_are_those_of_a_plain_loop(
    settings: dict[str, Any], build: Tiny, rules: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = PrivacyFace(**{"rounds": 3, "local": WORK, "loss": LOSS, "clustering": EASY, "every": 1} | settings)
    states = naive.watched(PrivacyFace, monkeypatch)
    _, heard = heard_run(method, tmp_path, build, **rules)
    lines, silos = metrics(tmp_path), {silo.name: silo for silo in naive.silos(build, WORK)}
    theta, centres = build().backbone.shared(), dict[str, Tensor]()
    against = 0
    for line, state, came in zip(lines, states, clients.counted(heard, "train", lines), strict=True):
        order = sorted(centres)
        everybodys = torch.cat([torch.zeros(0, 8, dtype=torch.float64), *(centres[name] for name in order)])
        requests = {h.request.party: h for h in heard if h.request.round == line["round"]}
        for name, h in requests.items():
            assert naive.furthest({"c": h.common.centres}, {"c": everybodys}) < 1e-9 if len(everybodys) else True
            mine = h.common.centres[h.each.first : h.each.first + h.each.count]
            assert torch.equal(mine, states_own(states, line["round"], name))
        ends, told = [], set[str]()
        for name in came:
            silo, y, velocity = silos[name], dict(theta), naive.zeros(build)
            others = torch.cat([everybodys[:0], *(centres[other] for other in order if other != name)])
            against += len(others)
            if (line["round"] - 1) % method.every == 0:
                told.add(name)
            silo.head_velocity = torch.zeros_like(silo.head)
            silo.loss = ConsensusAware(LOSS, others, EASY.angle) if len(others) else LOSS
            for pixels, labels in silo.batches():
                g, h_, running = silo.gradients(y, silo.head, pixels, labels)
                for n in g:
                    velocity[n] = WORK.momentum * velocity[n] + g[n] + WORK.weight_decay * y[n]
                    y[n] = y[n] - WORK.lr * velocity[n]
                y.update(running)
                silo.step_head(h_, WORK.lr)
            ends.append(y)
        total = sum(silos[name].images for name in came)
        theta = naive.mean([silos[name].images / total for name in came], ends)
        assert naive.furthest(state.backbone, theta) < 1e-8
        assert state.centres.keys() == centres.keys() | told
        centres = dict(state.centres)  # whose noise follows from every bit of the features, and no loop has these
        assert line["clusters"] == sum(map(len, centres.values()))
    assert against > 0 and naive.furthest(theta, build().backbone.shared()) > 1e-3


def states_own(states: list[Any], round_: int, name: str) -> Tensor:
    """What a client had released before a round."""
    before = states[round_ - 2].centres if round_ > 1 else {}
    return before.get(name, torch.zeros(0, 8, dtype=torch.float64))


def test_what_is_released_is_the_clustering_of_the_mean_features_by_the_backbone_that_was_sent(
    tmp_path: Path,
) -> None:
    """In the first round, from weights that both sides have bit for bit; the noise so is told by less than its size."""
    quiet = replace(EASY, noise_multiplier=1e-3)
    method = PrivacyFace(rounds=1, local=WORK, loss=LOSS, clustering=quiet)
    ran = run(method, tmp_path, EXACT)
    assert sum(map(len, ran.state.centres.values())) >= 3
    for name, rows in ran.state.centres.items():
        none = torch.zeros(0, 8, dtype=torch.float64)
        expected = released(EXACT, name, EXACT().backbone.shared(), none, method, 1)
        torch.testing.assert_close(rows, expected, rtol=0, atol=0.02)


def test_no_person_changes_how_another_ones_feature_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a backbone made to turn rounding into all of a feature: large numbers that cancel."""
    people, world, generator = faces(44, 6), Tiny(flip=False)(), torch.Generator().manual_seed(0)
    theta = {name: torch.randn(w.shape, generator=generator) for name, w in world.backbone.shared().items()}
    theta["down.bias"][:] = 3e8
    theta["up.weight"] -= theta["up.weight"].mean(1, keepdim=True)
    theta["up.bias"][:] = 0
    centres: list[Tensor] = []

    def noted(party: Party, of: Tensor, directions: Tensor, settings: LocalClustering) -> tuple[None, None]:
        centres.append(of)
        return None, None

    monkeypatch.setattr(privacyface, "release", noted)
    for count in (43, 44):
        party = replace(naive.party("silo-0", Tiny(flip=False)), data=people.only(list(range(count))))
        common = Global(backbone=theta, centres=torch.zeros(0, 8))
        with suppress(FloatingPointError):
            PrivacyFace(local=WORK, loss=LOSS).train(party, None, common, Place(first=0, count=0))
    assert torch.equal(centres[0], centres[1][:43])


def test_without_a_dense_cap_it_is_fedavg(tmp_path: Path) -> None:
    """Clients of two people release nothing at T = 20: then no loss has a cluster, and the weights are FedAvg's."""
    settings: dict[str, Any] = {"rounds": 3, "local": WORK, "loss": LOSS}
    ran = run(PrivacyFace(every=1, **settings), tmp_path / "privacyface", EXACT)
    assert all(not len(rows) for rows in ran.state.centres.values())
    assert {line["clusters"] for line in metrics(tmp_path / "privacyface")} == {0}
    plain = run(FedAvg(**settings), tmp_path / "fedavg", EXACT)
    assert naive.furthest(ran.state.backbone, plain.state.backbone) == 0
    spent = metrics(tmp_path / "privacyface")[-1]["centre_epsilon"]
    assert spent == LocalClustering().epsilon(1.5)  # that it is so, costs


def test_public_people_are_directions_as_well(tmp_path: Path) -> None:
    """With no drawn ones there is nothing else to choose from in round 1."""
    alone = replace(EASY, directions=0, noise_multiplier=1e-3)
    for public, dense in ((0, False), (3, True)):
        build = replace(EXACT, public=public)
        method = PrivacyFace(rounds=1, local=WORK, loss=LOSS, clustering=alone)
        ran = run(method, tmp_path / str(public), build)
        assert any(len(rows) for rows in ran.state.centres.values()) is dense


# --- what is counted --------------------------------------------------------------------------------------------------


def ledger(folder: Path, party: str) -> list[dict[str, Any]]:
    """The lines of what a client has released."""
    path = folder / "ledger" / f"{party}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["name"] == "centres"]


def test_centres_leave_in_every_other_round_and_the_ledger_says_what_is_spent(tmp_path: Path) -> None:
    run(PrivacyFace(rounds=5, local=WORK, loss=LOSS, clustering=EASY, every=2), tmp_path, EXACT)
    lines = ledger(tmp_path, "silo-1")
    assert [line["round"] for line in lines] == [1, 3, 5]
    for count, line in enumerate(lines, start=1):
        assert line["protection"] == EASY.protection(count * EASY.rho)
    spent = [line["centre_epsilon"] for line in metrics(tmp_path)]
    assert spent == pytest.approx([EASY.epsilon(count * EASY.rho) for count in (1, 1, 2, 2, 3)])


def test_at_its_target_a_client_releases_nothing_more_and_trains_on(tmp_path: Path) -> None:
    limited = replace(EASY, target_epsilon=EASY.epsilon(2 * EASY.rho))
    ran = run(PrivacyFace(rounds=4, local=WORK, loss=LOSS, clustering=limited, every=1), tmp_path, EXACT)
    assert [line["round"] for line in ledger(tmp_path, "silo-0")] == [1, 2]
    assert metrics(tmp_path)[-1]["centre_epsilon"] == EASY.epsilon(2 * EASY.rho)
    assert len(ran.state.centres) == 3  # those of the last release are used still


def test_a_release_in_a_round_that_was_abandoned_is_spent(tmp_path: Path) -> None:
    """The party's private state goes back with the round; its ledger does not."""
    faults = SimulatedFaults(lost=0.6)
    rules: dict[str, Any] = {"faults": faults, "min_reply_fraction": 0.9, "max_abandoned_rounds": 99}
    run(PrivacyFace(rounds=6, local=WORK, loss=LOSS, clustering=EASY, every=1), tmp_path, EXACT, **rules)
    assert any(line["abandoned"] for line in metrics(tmp_path))
    for party in ("silo-0", "silo-1", "silo-2"):
        lines = ledger(tmp_path, party)
        spent = [EASY.protection(count * EASY.rho) for count in range(1, len(lines) + 1)]
        assert [line["protection"] for line in lines] == spent
        assert len(lines) > sum(not line["abandoned"] and party not in line["failed"] for line in metrics(tmp_path))


def asked(folder: Path, ordinal: int, z: float, target: float | None = None) -> bool:
    """Whether a client releases something more to a server that changes z, and asks for round 1 again and again."""
    settings = LocalClustering(angle=1.4, members=0.5, directions=6, noise_multiplier=z, target_epsilon=target)
    method = PrivacyFace(rounds=9, local=WORK, loss=LOSS, clustering=settings)
    world = EXACT()
    common = Global(backbone=world.backbone.shared(), centres=torch.zeros(0, 8, dtype=torch.float64))
    messages = codec.encode(common), codec.encode(Place(first=0, count=0))
    request = Request("test", "silo-0", "train", 1, 9, ordinal, 0, "train", *messages, None, (0, None))
    reply = PartyExecutor(setup(method, folder, EXACT).context(world), "silo-0").answer(request)
    return codec.decode(reply.data, Update).centres is not None


def test_a_server_that_changes_the_noise_gets_no_more_for_the_target_and_epsilon_never_falls(tmp_path: Path) -> None:
    """Three releases at z = 1 have ρ = 1.5; a fourth at z = 3 adds 1/18, and ε is of all four."""
    full = LocalClustering().epsilon(1.501)
    released = [asked(tmp_path, ordinal, z, full) for ordinal, z in enumerate((1.0, 1.0001, 1.0002, 3.0), start=1)]
    assert released == [True, True, True, False]
    assert asked(tmp_path, 6, 3.0)
    rho = [float(line["protection"].split("rho of ")[1].split()[0]) for line in ledger(tmp_path, "silo-0")]
    assert rho == pytest.approx([0.5, 1.0, 1.5, 1.5 + 1 / 18], abs=1e-3) and rho == sorted(rho)
    epsilons = [float(line["protection"].split("epsilon ")[1].split()[0]) for line in ledger(tmp_path, "silo-0")]
    assert epsilons == sorted(epsilons) and epsilons[0] > 4.7


def test_what_the_metrics_say_of_epsilon_never_falls(tmp_path: Path) -> None:
    """Of one client a round, who may have released less than another did before."""
    run(PrivacyFace(rounds=8, sample=1, local=WORK, loss=LOSS, clustering=EASY, every=1), tmp_path, EXACT)
    spent = [line["centre_epsilon"] for line in metrics(tmp_path)]
    own = [len(ledger(tmp_path, f"silo-{number}")) for number in range(3)]
    assert spent == sorted(spent) and spent[-1] == pytest.approx(EASY.epsilon(max(own) * EASY.rho))
    assert sorted(own) != [0, 0, 8]


@dataclass(frozen=True, kw_only=True)
class Odd(PrivacyFace):
    """One client sends centres that no clustering gives."""

    what: str = "many"

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global, each: Place) -> tuple[Update, Learner]:
        reply, learner = PrivacyFace.train(self, party, own, common, each)
        rows = torch.from_numpy(np.eye(8))
        if party.name == "silo-2":
            reply = replace(reply, rho={"many": -1e30, "zeros": 1e30}.get(self.what, reply.rho))
        odd = {"many": rows, "zeros": 0 * rows[:1], "columns": rows[:1, :5], "dtype": rows[:1].float(), "flat": rows[0]}
        return replace(reply, centres=odd[self.what]) if party.name == "silo-2" else reply, learner

    def protection(self, reply: Update) -> str:
        return "a lie"


@pytest.mark.parametrize("what", by_default(2, ["many", "zeros", "columns", "dtype", "flat"]))
def test_what_no_clustering_gives_is_left_out(what: str, tmp_path: Path) -> None:
    ran = run(Odd(rounds=2, local=WORK, loss=LOSS, clustering=EASY, every=1, what=what), tmp_path, EXACT)
    assert set(ran.state.centres) == {"silo-0", "silo-1"}


def test_a_recipe_with_public_people_gives_them_to_its_parties() -> None:
    data = {"scenario": "private-public", "private": {"identities": 4}, "partition": {"parties": 2}}
    for method, given in (("privacyface", True), ("fedavg", False)):
        parts = Parts(tinyruns.tiny(method=method, data=data))
        assert (parts.public is not None) is given
